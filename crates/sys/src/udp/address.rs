//! Socket addresses, as the kernel's bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ironverbs_wire::Gid;

const V4_LEN: usize = size_of::<libc::sockaddr_in>();
const V6_LEN: usize = size_of::<libc::sockaddr_in6>();

/// A `sockaddr_in` or `sockaddr_in6`: what `msg_name` points at.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(super) struct SocketAddress {
    bytes: [u8; V6_LEN],
    len: u8,
}

impl SocketAddress {
    /// Room for the kernel to write an address of either family into.
    pub(super) const EMPTY: Self = Self { bytes: [0; V6_LEN], len: V6_LEN as u8 };

    pub(super) fn new(ip: IpAddr, port: u16, scope: u32) -> Self {
        let mut address = Self::EMPTY;
        match ip {
            IpAddr::V4(v4) => address.put_v4(v4, port),
            IpAddr::V6(v6) => address.put_v6(v6, port, scope),
        }
        address
    }

    fn put_v4(&mut self, ip: Ipv4Addr, port: u16) {
        self.len = V4_LEN as u8;
        self.bytes[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self.bytes[4..8].copy_from_slice(&ip.octets());
    }

    fn put_v6(&mut self, ip: Ipv6Addr, port: u16, scope: u32) {
        self.bytes[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        self.bytes[2..4].copy_from_slice(&port.to_be_bytes());
        self.bytes[8..24].copy_from_slice(&ip.octets());
        self.bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        libc::socklen_t::from(self.len)
    }

    /// The address as a GID, and the port; `None` for a family that UDP does not have.
    pub(super) fn parse(&self) -> Option<(Gid, u16)> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match i32::from(u16::from_ne_bytes([b[0], b[1]])) {
            libc::AF_INET => Some((Gid::from_ipv4([b[4], b[5], b[6], b[7]].into()), port)),
            libc::AF_INET6 => {
                let mut gid = [0; 16];
                gid.copy_from_slice(&b[8..24]);
                Some((Gid(gid), port))
            }
            _ => None,
        }
    }
}

/// bind(2).
pub(super) fn bind(fd: BorrowedFd<'_>, ip: IpAddr, port: u16) -> io::Result<()> {
    let mut address = SocketAddress::new(ip, port, 0);
    let len = address.len();
    // SAFETY: the pointer is to `len` bytes that hold a socket address.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), address.as_mut_ptr().cast(), len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The port that a socket is bound to, by getsockname(2).
pub(super) fn local_port(fd: BorrowedFd<'_>) -> io::Result<u16> {
    let mut address = SocketAddress::EMPTY;
    let mut len = address.len();
    // SAFETY: the kernel writes at most `len` bytes, the room there is.
    let rc = unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &mut len) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let (_, port) = address.parse().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went_in() {
        for ip in ["127.0.0.5", "fe80::1:2", "ff0e::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let address = SocketAddress::new(ip, 4791, 3);
            assert_eq!(address.parse(), Some((Gid::from_ip(ip), 4791)));
        }
    }

    #[test]
    fn another_family_is_none() {
        assert_eq!(SocketAddress::EMPTY.parse(), None);
    }
}
