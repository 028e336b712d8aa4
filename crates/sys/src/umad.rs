//! The kernel's files of management datagrams, /dev/infiniband/umadN (`rdma/ib_user_mad.h`, version 5).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
#[derive(Copy, Clone, Debug, Default)]
pub struct Registration {
    /// The agent's number, which the kernel gives.
    pub id: u32,
    /// Bit n: method n, of requests that nobody asked for.
    pub methods: [u32; 4],
    /// 0 or 1.
    pub qpn: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub version: u8,
    /// Of vendor classes that have one.
    pub oui: [u8; 3],
    /// 1 where the kernel is to put long messages together, 0 where not.
    pub rmpp_version: u8,
}

/// `_IOWR(0x1b, 1, struct ib_user_mad_reg_req)`.
const REGISTER: libc::Ioctl = 0xc01c_1b01_u32 as libc::Ioctl;
/// `_IOW(0x1b, 2, __u32)`.
const UNREGISTER: libc::Ioctl = 0x4004_1b02_u32 as libc::Ioctl;
/// `_IO(0x1b, 3)`.
const ENABLE_PKEY: libc::Ioctl = 0x0000_1b03_u32 as libc::Ioctl;

/// Has the addresses of datagrams carry the index of a P_Key: the layout since 2007.
///
/// # Errors
/// The kernel's: `EINVAL` once there is an agent, `ENOTTY` for another file.
pub fn enable_pkey(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointer.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), ENABLE_PKEY, 0) })
}

/// Registers an agent: its number.
///
/// # Errors
/// The kernel's: `EINVAL` for a class or method that is none or is taken, `ENOMEM` at 32 agents, `ENODEV` once the device
/// is gone.
pub fn register(fd: BorrowedFd<'_>, registration: &Registration) -> io::Result<u32> {
    let mut asked = *registration;
    // SAFETY: the structure is as long as the command's number says, and alive during the call.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), REGISTER, &raw mut asked) })?;
    Ok(asked.id)
}

/// Ends an agent.
///
/// # Errors
/// The kernel's: `EINVAL` without that agent.
pub fn unregister(fd: BorrowedFd<'_>, id: u32) -> io::Result<()> {
    // SAFETY: the number is alive during the call.
    done(unsafe { libc::ioctl(fd.as_raw_fd(), UNREGISTER, &raw const id) })
}

/// Sends a datagram behind its header.
///
/// # Errors
/// The kernel's: `EINVAL` for an agent, a length or an address that is none; `ENODEV` once the device is gone.
pub fn send(fd: BorrowedFd<'_>, message: &[u8]) -> io::Result<()> {
    // SAFETY: reads the bytes of `message`.
    let n = unsafe { libc::write(fd.as_raw_fd(), message.as_ptr().cast(), message.len()) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the next datagram, with its header: how long it is.
///
/// # Errors
/// The kernel's: `EAGAIN` where there is none and the file is `O_NONBLOCK`; `ENOSPC` where it is longer than the room, in
/// which then is its start; `EIO` once the device is gone.
pub fn receive(fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    // SAFETY: writes at most the length of `room` into it.
    let n = unsafe { libc::read(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn layouts_are_the_kernel_headers() {
        assert_eq!(size_of::<Registration>(), 28);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let errno = |result: io::Result<u32>| result.unwrap_err().raw_os_error();
        assert_eq!(errno(enable_pkey(null.as_fd()).map(|()| 0)), Some(libc::ENOTTY));
        assert_eq!(errno(register(null.as_fd(), &Registration::default())), Some(libc::ENOTTY));
        assert_eq!(errno(unregister(null.as_fd(), 0).map(|()| 0)), Some(libc::ENOTTY));
    }
}
