//! Notice of changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::frame::{Messages, Netlink};

/// Hears of changes to interfaces and addresses of the network namespace it was made in. Its
/// descriptor is readable when there were some; what is the case now, [`super::interfaces`] says.
#[derive(Debug)]
pub struct Monitor {
    netlink: Netlink,
}

impl Monitor {
    /// Starts to listen. Changes from now on are noticed: make it before the first listing.
    ///
    /// # Errors
    /// As socket(2) and bind(2) of netlink.
    pub fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Netlink::subscribe(libc::NETLINK_ROUTE, groups).map(|netlink| Self { netlink })
    }

    /// Takes all notices that have come; whether any told of a change, or some were lost. Never
    /// blocks.
    ///
    /// # Errors
    /// As recv(2), save `EAGAIN`, `EINTR` and `ENOBUFS`.
    pub fn drain(&self) -> io::Result<bool> {
        let mut buffer = vec![0; 16 * 1024];
        let mut changed = false;
        loop {
            match self.netlink.receive(&mut buffer) {
                Ok(n) => {
                    // A notice too long for the buffer is cut, its header is not.
                    let messages = buffer.get(..n.min(buffer.len())).unwrap_or_default();
                    changed |= n == buffer.len() || Messages(messages).any(|m| tells(m.kind));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(e) => return Err(e),
            }
        }
    }
}

fn tells(kind: u16) -> bool {
    matches!(kind, libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR)
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}
