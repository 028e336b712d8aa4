//! The Ethernet address behind a destination, for drivers that put it into their address handles.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_sys::netlink;

use crate::abi::*;

use super::command::Errno;
use super::gids;
use ironverbs::raw::Gid;

/// How long a neighbour may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The address of the host that packets for `dgid` go to from that entry of the GID table; and its VLAN, of which there
/// is none.
///
/// # Safety
/// `context` is a driver's.
pub(super) unsafe fn resolve(
    context: *mut ibv_context,
    attr: &ibv_ah_attr,
) -> Result<([u8; 6], u16), Errno> {
    const NO_VLAN: u16 = 0xffff;
    let (port, index) = (attr.port_num.into(), attr.grh.sgid_index.into());
    // SAFETY: the caller's promise.
    let own = unsafe { gids::whole(context, port, index)? };
    let destination = Gid(attr.grh.dgid);
    let ip = destination.to_ip();
    let mac = if destination.is_multicast() {
        multicast(ip)
    } else {
        unicast(ip, Gid(own.gid).to_ip(), own.ndev_ifindex)?
    };
    Ok((mac, NO_VLAN))
}

fn multicast(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn unicast(ip: IpAddr, from: IpAddr, interface: u32) -> Result<[u8; 6], Errno> {
    let interfaces = netlink::interfaces().map_err(|_| libc::EHOSTUNREACH)?;
    let own = |index: u32| interfaces.iter().find(|i| i.index == index);
    // A host of several interfaces may have it on another one.
    let here = interfaces.iter().find(|i| i.addresses.iter().any(|a| a.ip == ip));
    if let Some(here) = here {
        return Ok(here.mac);
    }
    let source = (ip.is_ipv4() == from.is_ipv4()).then_some(from);
    let route = netlink::route_through(ip, source, interface)
        .or_else(|_| netlink::route_to(ip, None))
        .map_err(|_| libc::ENETUNREACH)?;
    if route.local {
        return own(interface).map(|i| i.mac).ok_or(libc::EHOSTUNREACH);
    }
    let next = route.gateway.unwrap_or(ip);
    let until = Instant::now() + PATIENCE;
    let mut asked = false;
    loop {
        match netlink::link_address(next, route.ifindex) {
            Ok(Some(mac)) => return Ok(mac),
            Ok(None) if Instant::now() < until => {}
            _ => return Err(libc::EHOSTUNREACH),
        }
        if !asked {
            ask(ip, route.ifindex);
            asked = true;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Has the kernel look for a host: by a datagram to it, for the port that discards.
fn ask(ip: IpAddr, interface: u32) {
    const DISCARD: u16 = 9;
    let (any, to) = match ip {
        IpAddr::V4(ip) => (SocketAddr::from(([0; 4], 0)), SocketAddr::from((ip, DISCARD))),
        IpAddr::V6(ip) => {
            let to = std::net::SocketAddrV6::new(ip, DISCARD, 0, interface);
            (SocketAddr::from(([0u16; 8], 0)), SocketAddr::V6(to))
        }
    };
    // Where that fails, nobody answers, and the caller says so.
    let _ = UdpSocket::bind(any).and_then(|socket| socket.send_to(&[], to));
}
