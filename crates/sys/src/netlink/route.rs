//! Where packets to an address leave.

use std::io;
use std::net::IpAddr;

use super::frame::{self, Attributes, Netlink};

/// How packets to an address travel from here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// The interface they leave by: the loopback interface for an address of this host.
    pub ifindex: u32,
    /// The source address they get where the sender does not choose one.
    pub prefer_src: Option<IpAddr>,
    /// The router they are sent to; `None` when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Whether the address is one of this host's.
    pub local: bool,
    /// MTU in bytes that the route itself states, as after path MTU discovery; `None` when it is
    /// the interface's.
    pub mtu: Option<u32>,
}

/// The route to an address, for packets from `src` if given.
///
/// # Errors
/// `ENETUNREACH` or `EHOSTUNREACH` without a route, `EINVAL` when the families differ or `src` is
/// not an address of this host.
pub fn route_to(dst: IpAddr, src: Option<IpAddr>) -> io::Result<Route> {
    route_through(dst, src, 0)
}

/// [`route_to`] through a given interface, as link-local addresses need; 0 for any.
///
/// # Errors
/// As [`route_to`]; `ENODEV` without that interface.
pub fn route_through(dst: IpAddr, src: Option<IpAddr>, ifindex: u32) -> io::Result<Route> {
    let family = |ip: IpAddr| if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    if src.is_some_and(|src| family(src) != family(dst)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut request = vec![0; FIXED];
    request[0] = family(dst) as u8;
    request[1] = bits(dst);
    push_ip(&mut request, libc::RTA_DST, dst);
    if let Some(src) = src {
        request[2] = bits(src);
        push_ip(&mut request, libc::RTA_SRC, src);
    }
    if ifindex != 0 {
        frame::push_attribute(&mut request, libc::RTA_OIF, &ifindex.to_ne_bytes());
    }
    let reply = Netlink::open(libc::NETLINK_ROUTE)?.ask(libc::RTM_GETROUTE, &request)?;
    parse(&reply.payload)
}

/// Bytes of `struct rtmsg`: family, lengths of dst and src, TOS, table, protocol, scope, type, u32
/// flags.
const FIXED: usize = 12;

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

fn push_ip(request: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => frame::push_attribute(request, kind, &ip.octets()),
        IpAddr::V6(ip) => frame::push_attribute(request, kind, &ip.octets()),
    }
}

fn parse(reply: &[u8]) -> io::Result<Route> {
    let (fixed, attributes) =
        reply.split_first_chunk::<FIXED>().ok_or(io::ErrorKind::InvalidData)?;
    let [_, _, _, _, _, _, _, kind, ..] = *fixed;
    match kind {
        libc::RTN_UNREACHABLE => return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
        libc::RTN_PROHIBIT => return Err(io::Error::from_raw_os_error(libc::EACCES)),
        libc::RTN_BLACKHOLE => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        _ => {}
    }
    let mut route = Route {
        ifindex: 0,
        prefer_src: None,
        gateway: None,
        local: kind == libc::RTN_LOCAL,
        mtu: None,
    };
    for (kind, value) in Attributes(attributes) {
        match kind {
            libc::RTA_OIF => route.ifindex = frame::int(value).unwrap_or_default() as u32,
            libc::RTA_PREFSRC => route.prefer_src = frame::ip(value),
            libc::RTA_GATEWAY => route.gateway = frame::ip(value),
            libc::RTA_VIA => route.gateway = value.get(2..).and_then(frame::ip),
            libc::RTA_METRICS => {
                route.mtu = Attributes(value)
                    .find(|(kind, _)| *kind == RTAX_MTU)
                    .and_then(|(_, mtu)| frame::int(mtu))
                    .map(|mtu| mtu as u32)
                    .filter(|&mtu| mtu != 0);
            }
            _ => {}
        }
    }
    Ok(route)
}

/// The nested attribute of `RTA_METRICS` that is the MTU, by linux/rtnetlink.h.
const RTAX_MTU: u16 = 2;
