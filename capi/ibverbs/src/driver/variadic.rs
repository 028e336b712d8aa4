//! The two calls of drivers that take any number of arguments, by printf(3)'s formats.
//!
//! Rust has no such functions. Integers and pointers travel to them as to a function of as many words, on the stack where
//! the registers end; so the arguments are taken as words, more than any driver passes, and handed to the C library's
//! printf. Those that were not passed are whatever lies there, and the format does not ask for them. No driver prints
//! floating-point numbers.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::abi::verbs_sysfs_dev;
use crate::abi::verbs_context;
use crate::fail;

/// Words that a format may ask for.
type Words = [usize; 8];

/// What the format makes of the words.
///
/// # Safety
/// `format` is a string that asks for words only, and pointers among them are to strings.
unsafe fn print(format: *const c_char, w: Words) -> Vec<u8> {
    let mut out = vec![0u8; 1024];
    // SAFETY: writes at most the length of `out`, with a NUL; the rest is the caller's promise.
    let n = unsafe {
        let room = out.as_mut_ptr().cast();
        libc::snprintf(room, out.len(), format, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
    };
    out.truncate(usize::try_from(n).unwrap_or(0).min(1023));
    out
}

/// VERBS_LOG_LEVEL, and the file VERBS_LOG_FILE that is written to.
fn log() -> Option<&'static (u32, Mutex<std::fs::File>)> {
    static LOG: OnceLock<Option<(u32, Mutex<std::fs::File>)>> = OnceLock::new();
    let open = || {
        let level = std::env::var("VERBS_LOG_LEVEL").ok()?.parse().ok().filter(|&l| l > 0)?;
        let path = std::env::var_os("VERBS_LOG_FILE")?;
        let file = std::fs::File::options().append(true).create(true).open(path).ok()?;
        Some((level, Mutex::new(file)))
    };
    LOG.get_or_init(open).as_ref()
}

/// `__verbs_log`.
///
/// # Safety
/// As the header says of its format.
pub(crate) unsafe extern "C" fn verbs_log(
    _context: *mut verbs_context,
    level: u32,
    format: *const c_char,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) {
    let Some((wanted, file)) = log() else { return };
    if level > *wanted || format.is_null() {
        return;
    }
    // SAFETY: errno is a thread-local int that always exists.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the caller's promise.
    let line = unsafe { print(format, [a, b, c, d, e, f, g, h]) };
    // Nobody can be told that a log is full.
    let _ = file.lock().write_all(&line);
    fail::set_errno(errno);
}

/// `ibv_read_ibdev_sysfs_file`: a file of the device, whose name is by the format.
///
/// # Safety
/// As the header says of its format; `buf` has room for `size` bytes.
pub(crate) unsafe extern "C" fn read_ibdev_sysfs_file(
    buf: *mut c_char,
    size: usize,
    device: *const verbs_sysfs_dev,
    format: *const c_char,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> c_int {
    if device.is_null() || format.is_null() {
        fail::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise; the directory is a string in its field.
    unsafe {
        let mut file = print(format, [a, b, c, d, e, f, g, h]);
        file.push(0);
        let Ok(file) = CStr::from_bytes_until_nul(&file) else { return -1 };
        let directory = (&raw const (*device).ibdev_path).cast();
        crate::sysfs::read_sysfs_file(directory, file.as_ptr(), buf, size)
    }
}
