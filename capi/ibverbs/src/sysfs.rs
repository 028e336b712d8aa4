//! Reading sysfs files, through plain `open` so that a preloaded view of /sys is honoured.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::fail::{self, Failure};

/// ibv_get_sysfs_path: `$SYSFS_PATH`, or /sys; the variable is not for set-user-ID programs.
pub(crate) extern "C" fn get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        // SAFETY: getauxval only reads the process's auxiliary vector.
        let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let path = if privileged { None } else { std::env::var_os("SYSFS_PATH") };
        let bytes = path.as_ref().map_or(&b"/sys"[..], |path| path.as_bytes());
        let end = bytes.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
        CString::new(bytes.get(..end).unwrap_or_default()).unwrap_or_default()
    });
    path.as_ptr()
}

/// ibv_read_sysfs_file: `dir/file` without its last newline, and with a NUL if there is room;
/// the number of bytes, or -1.
///
/// # Safety
/// `dir` and `file` are null or strings; `buf` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    fail::number("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Failure::Null { what: "dir, file or buf" });
        }
        // SAFETY: the caller's promise.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let path = CString::new(path).map_err(|_| Failure::Null { what: "path" })?;
        // SAFETY: the path is a string; the descriptor is ours and closed below; the buffer has
        // room for what is read and for the NUL that is written only before its end.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error().into());
            }
            let read = libc::read(fd, buf.cast(), size);
            let error = std::io::Error::last_os_error();
            libc::close(fd);
            let Ok(mut len) = usize::try_from(read) else { return Err(error.into()) };
            if len > 0 && *buf.add(len - 1) == b'\n' as c_char {
                len -= 1;
                *buf.add(len) = 0;
            } else if len < size {
                *buf.add(len) = 0;
            }
            Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
        }
    })
}
