//! Whether a host on the link answers.

use std::io;
use std::net::IpAddr;

use super::frame::{self, Attributes, Netlink};

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
    let Some(payload) = ask(ip, ifindex)? else { return Ok(Neighbour::Unknown) };
    Ok(match state(&payload) {
        state if state & VALID != 0 => Neighbour::Known,
        libc::NUD_FAILED => Neighbour::Silent,
        _ => Neighbour::Unknown,
    })
}

/// The Ethernet address of `ip` on the link of the interface, if it is known.
///
/// # Errors
/// As [`neighbour`].
pub fn link_address(ip: IpAddr, ifindex: u32) -> io::Result<Option<[u8; 6]>> {
    let Some(payload) = ask(ip, ifindex)?.filter(|p| state(p) & VALID != 0) else {
        return Ok(None);
    };
    let attributes = Attributes(payload.get(FIXED..).unwrap_or_default());
    let address = attributes.filter(|(kind, value)| *kind == libc::NDA_LLADDR && value.len() == 6);
    Ok(address.map(|(_, value)| value.first_chunk().copied()).next().flatten())
}

/// What the kernel says of a neighbour; `None` where it knows nothing.
fn ask(ip: IpAddr, ifindex: u32) -> io::Result<Option<Vec<u8>>> {
    let mut request = vec![0; FIXED];
    request[0] = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    match ip {
        IpAddr::V4(ip) => frame::push_attribute(&mut request, libc::NDA_DST, &ip.octets()),
        IpAddr::V6(ip) => frame::push_attribute(&mut request, libc::NDA_DST, &ip.octets()),
    }
    match Netlink::open(libc::NETLINK_ROUTE)?.ask(libc::RTM_GETNEIGH, &request) {
        Ok(reply) => Ok(Some(reply.payload)),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

fn state(payload: &[u8]) -> u16 {
    payload.get(8..10).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b))
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
