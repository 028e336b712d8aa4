//! The errno values the verbs API speaks, and this thread's own.

pub use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EAGAIN, EBUSY, ECONNREFUSED, EEXIST, EFAULT,
    EHOSTUNREACH, EINTR, EINVAL, EIO, EISCONN, ENETUNREACH, ENOBUFS, ENODEV, ENOENT, ENOMEM,
    ENOSYS, ENOTCONN, ENXIO, EOPNOTSUPP, EPERM, ERANGE, ETIMEDOUT,
};

/// This thread's errno.
pub fn last() -> i32 {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
pub fn set(value: i32) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = value }
}
