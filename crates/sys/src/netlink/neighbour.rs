//! Whether a host on the link answers.

use std::io;
use std::net::IpAddr;

use super::frame::{self, Netlink};

/// What the kernel knows of a host on the link (`NUD_*` of rtnetlink(7)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Neighbour {
    /// Nothing, or it is being asked for; packets to it wait.
    Unknown,
    /// It did not answer when it was asked last.
    Silent,
    /// It has a link address, or needs none: packets to it leave.
    Known,
}

/// What is known of `ip` on the link of the interface. Asking does not make the kernel look for it; a packet to it
/// does.
///
/// # Errors
/// `ENODEV` without that interface. A kernel that cannot be asked about one neighbour (before 5.0) says `EOPNOTSUPP`
/// or `EINVAL`.
pub fn neighbour(ip: IpAddr, ifindex: u32) -> io::Result<Neighbour> {
    let mut request = vec![0; FIXED];
    request[0] = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    match ip {
        IpAddr::V4(ip) => frame::push_attribute(&mut request, libc::NDA_DST, &ip.octets()),
        IpAddr::V6(ip) => frame::push_attribute(&mut request, libc::NDA_DST, &ip.octets()),
    }
    let reply = match Netlink::open(libc::NETLINK_ROUTE)?.ask(libc::RTM_GETNEIGH, &request) {
        Ok(reply) => reply,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Neighbour::Unknown),
        Err(e) => return Err(e),
    };
    let state =
        reply.payload.get(8..10).and_then(|b| b.first_chunk()).map(|b| u16::from_ne_bytes(*b));
    Ok(match state.unwrap_or_default() {
        state if state & VALID != 0 => Neighbour::Known,
        libc::NUD_FAILED => Neighbour::Silent,
        _ => Neighbour::Unknown,
    })
}

/// Bytes of `struct ndmsg`: family, padding of 3, i32 index, u16 state, flags, type.
const FIXED: usize = 12;

/// States in which packets leave.
const VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;
