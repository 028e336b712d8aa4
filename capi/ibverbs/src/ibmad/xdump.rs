//! Bytes in hex.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;

/// Prints bytes to a stream, sixteen a line in pairs, below a text.
///
/// # Safety
/// `file` is a stream; `text` is null or a string; `from` has `size` bytes.
pub(crate) unsafe extern "C" fn xdump(
    file: *mut libc::FILE,
    text: *const c_char,
    from: *const c_void,
    size: c_int,
) {
    if file.is_null() {
        return;
    }
    let size = usize::try_from(size).unwrap_or(0);
    let bytes: &[u8] = match from.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(from.cast(), size) },
    };
    let mut out = String::new();
    for line in bytes.chunks(16) {
        for (nth, pair) in line.chunks(2).enumerate() {
            for byte in pair {
                let _ = write!(out, "{byte:02x}");
            }
            // Behind every pair but a line's last, whether another one follows or not.
            out += if nth < 7 && pair.len() == 2 { " " } else { "" };
        }
        out.push('\n');
    }
    // SAFETY: the caller's promise; the stream is C's own.
    unsafe {
        if !text.is_null() {
            libc::fputs(text, file);
        }
        libc::fwrite(out.as_ptr().cast(), 1, out.len(), file);
    }
}
