//! The errno values the verbs API speaks, and this thread's own.

pub use libc::{
    EACCES, EADDRINUSE, EAFNOSUPPORT, EAGAIN, EBUSY, EEXIST, EFAULT, EINTR, EINVAL, EIO, ENOBUFS,
    ENODEV, ENOENT, ENOMEM, ENOSYS, ENXIO, EOPNOTSUPP, EPERM, ERANGE,
};

/// Sets this thread's errno.
pub fn set(value: i32) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = value }
}
