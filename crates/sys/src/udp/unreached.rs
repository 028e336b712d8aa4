//! What the network says of packets that did not arrive (ICMP, by the error queue of ip(7) and ipv6(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use ironverbs_wire::Gid;
use libc::{SOL_IP, SOL_IPV6, c_int};

use super::address::SocketAddress;
use super::control::{Control, int};
use super::sockopt;
use super::tx::{Family, TxSocket};

/// A packet that did not arrive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unreached {
    /// Where it was sent to.
    pub dst: Gid,
    /// Why: `ECONNREFUSED` (nobody has the port), `EHOSTUNREACH`, `ENETUNREACH`, `EMSGSIZE` and others.
    pub errno: c_int,
}

impl TxSocket {
    /// Has the kernel keep what comes back for packets of this socket, for [`TxSocket::next_unreached`]. A send then
    /// fails once with the error of an earlier packet; what it was to send is not sent.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn keep_unreached(&self) -> io::Result<()> {
        match self.family() {
            Family::V4 => sockopt::set(self.as_fd(), SOL_IP, libc::IP_RECVERR, 1),
            Family::V6 => sockopt::set(self.as_fd(), SOL_IPV6, libc::IPV6_RECVERR, 1),
        }
    }

    /// The next packet of which something has come back; None: nothing has. Never blocks.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn next_unreached(&self) -> io::Result<Option<Unreached>> {
        loop {
            let mut name = SocketAddress::EMPTY;
            let mut control = Control::EMPTY;
            let mut byte = [0u8; 1];
            let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
            // SAFETY: all zeros is a valid msghdr: null pointers with lengths 0.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_name = name.as_mut_ptr();
            header.msg_namelen = name.len();
            header.msg_iov = &mut iov;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr();
            header.msg_controllen = Control::ROOM as _;
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            // SAFETY: the header points at buffers of the lengths it says, all alive during the call.
            let n = unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &mut header, flags) };
            if n < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            control.set_len(header.msg_controllen as usize);
            let ours = |level, kind| {
                level == SOL_IP && kind == libc::IP_RECVERR
                    || level == SOL_IPV6 && kind == libc::IPV6_RECVERR
            };
            // The first word of `struct sock_extended_err` is the errno.
            let errno = control
                .messages()
                .find(|(level, kind, _)| ours(*level, *kind))
                .and_then(|(_, _, data)| int(data));
            if let (Some((dst, _)), Some(errno)) = (name.parse(), errno) {
                return Ok(Some(Unreached { dst, errno }));
            }
        }
    }
}
