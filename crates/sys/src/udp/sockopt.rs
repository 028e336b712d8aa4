//! Socket options, and the constants of linux/udp.h that libc lacks.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};

pub(super) const UDP_NO_CHECK6_RX: c_int = 102;

/// A new nonblocking, close-on-exec UDP socket.
pub(super) fn udp_socket(domain: c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(domain, kind, libc::IPPROTO_UDP) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// setsockopt(2) with a value that the kernel only reads.
///
/// `T` is an integer or a struct of the kernel's, of the size that the option expects.
pub(super) fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: `value` is alive during the call and its size is passed with it.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as socklen_t,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// getsockopt(2) of an array of integers; words that the kernel does not fill stay 0.
pub(super) fn get<const N: usize>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<[c_int; N]> {
    let mut value = [0; N];
    let mut len = size_of::<[c_int; N]>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, and any bytes are
    // integers.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// The value of a one-integer option.
pub(super) fn get_int(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let [value] = get::<1>(fd, level, name)?;
    Ok(value)
}

/// Sets a buffer size: beyond the system's limit when privileged, else as far as that allows.
pub(super) fn set_buffer(fd: BorrowedFd<'_>, force: c_int, plain: c_int, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if set(fd, libc::SOL_SOCKET, force, bytes).is_err() {
        // Values beyond net.core.?mem_max are cut, not refused; a failure leaves the default.
        let _ = set(fd, libc::SOL_SOCKET, plain, bytes);
    }
}
