//! From IP addresses to devices and GIDs, by the kernel's tables.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ironverbs_sys::errno;
use ironverbs_sys::netlink::{self, Route as KernelRoute};
use ironverbs_wire::Gid;

use super::CmError;
use crate::host::Inner;
use crate::{Device, Host};

/// An address of this host as devices have it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) device: Arc<Device>,
    pub(super) gid_index: u32,
    pub(super) gid: Gid,
}

/// What a destination was resolved to.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    /// The source address, for programs; its port is not set.
    pub(super) src: SocketAddr,
    /// The destination as packets name it.
    pub(super) dgid: Gid,
    /// Who must be known on the link before packets leave: an address, an interface.
    pub(super) next_hop: Option<(IpAddr, u32)>,
    /// What the route says of the MTU.
    pub(super) mtu: Option<u32>,
}

/// ENODEV unless there is a device.
pub(super) fn require_device(host: &Host) -> Result<(), CmError> {
    match host.devices()?.is_empty() {
        true => Err(io::Error::from_raw_os_error(errno::ENODEV).into()),
        false => Ok(()),
    }
}

/// Where an address given to bind is; None for a wildcard, and for a loopback address that no device has: it stands for
/// any of them, and which one is only known with a peer. Programs that ask whether a bound id has a device (libfabric)
/// then list the addresses of all, as they do for an adapter, and are reached from other hosts.
pub(super) fn bind(host: &Arc<Inner>, addr: SocketAddr) -> Result<Option<Place>, CmError> {
    check(addr)?;
    if addr.ip().is_unspecified() {
        return Ok(None);
    }
    match place(host, addr.ip(), scope(&addr)) {
        Some(place) if host.gid_of(addr.ip()) != Some(place.gid) => Ok(None),
        Some(place) => Ok(Some(place)),
        None if host.is_local(&Gid::from_ip(addr.ip())) => Err(CmError::NoDevice { addr }),
        None => Err(CmError::AddrNotAvailable { addr }),
    }
}

/// A link-local address means nothing without its link.
pub(super) fn check(addr: SocketAddr) -> Result<(), CmError> {
    match addr.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() && scope(&addr) == 0 => {
            Err(CmError::Invalid { what: "address", why: "a link-local address needs its scope" })
        }
        _ => Ok(()),
    }
}

pub(super) fn scope(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// Finds out how `dst` is reached, from `src` if it is given.
///
/// # Errors
/// The negative errno that the event is to carry.
pub(super) fn route(
    host: &Arc<Inner>,
    src: Option<SocketAddr>,
    dst: SocketAddr,
) -> Result<Found, i32> {
    let src = src.filter(|src| !src.ip().is_unspecified());
    let dst_ip = match dst.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    if dst_ip.is_loopback() {
        return loopback(host, src, dst_ip);
    }
    if host.is_simulated() {
        return simulated(host, src, dst_ip);
    }
    let ifindex = match scope(&dst) {
        0 => src.as_ref().map_or(0, scope),
        scope => scope,
    };
    let found = netlink::route_through(dst_ip, src.map(|src| src.ip()), ifindex);
    let route = found.map_err(|e| -e.raw_os_error().unwrap_or(errno::EINVAL))?;
    by_route(host, &route, src, dst_ip)
}

fn by_route(
    host: &Arc<Inner>,
    route: &KernelRoute,
    src: Option<SocketAddr>,
    dst: IpAddr,
) -> Result<Found, i32> {
    let own = if route.local { Some(dst) } else { route.prefer_src };
    let src_ip = src.map(|src| src.ip()).or(own).ok_or(-errno::EADDRNOTAVAIL)?;
    let hint = if route.local { 0 } else { route.ifindex };
    let place = place(host, src_ip, hint).ok_or(-errno::ENODEV)?;
    let next_hop = match route.gateway {
        _ if route.local || dst.is_multicast() => None,
        gateway => Some((gateway.unwrap_or(dst), route.ifindex)),
    };
    // A loopback address is no place where packets could come from; its device's GID is.
    let dgid = match dst.is_multicast() {
        true => Gid::from_ip(dst),
        false => host.gid_of(dst).ok_or(-errno::EHOSTUNREACH)?,
    };
    let src = src.unwrap_or_else(|| with_scope(src_ip, place.device.ifindex()));
    Ok(Found { place, src, dgid, next_hop, mtu: route.mtu })
}

/// A loopback address stands for a device of this host that has an address of its family.
fn loopback(host: &Arc<Inner>, src: Option<SocketAddr>, dst: IpAddr) -> Result<Found, i32> {
    let to = place(host, dst, 0).ok_or(-errno::ENODEV)?;
    let (place, src) = match src {
        Some(src) => (place(host, src.ip(), scope(&src)).ok_or(-errno::ENODEV)?, src),
        None => (to.clone(), SocketAddr::new(dst, 0)),
    };
    if place.gid.is_ipv4() != to.gid.is_ipv4() {
        return Err(-errno::EINVAL);
    }
    Ok(Found { place, src, dgid: to.gid, next_hop: None, mtu: None })
}

fn simulated(host: &Arc<Inner>, src: Option<SocketAddr>, dst: IpAddr) -> Result<Found, i32> {
    let place = match src {
        Some(src) => place(host, src.ip(), 0),
        None => any_place(host, dst.is_ipv4()),
    };
    let place = place.ok_or(-errno::ENETUNREACH)?;
    let src = src.unwrap_or_else(|| SocketAddr::new(place.gid.to_ip(), 0));
    Ok(Found { place, src, dgid: Gid::from_ip(dst), next_hop: None, mtu: None })
}

fn with_scope(ip: IpAddr, ifindex: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(ip, 0, 0, ifindex).into()
        }
        ip => SocketAddr::new(ip, 0),
    }
}

/// Where a GID of this host is, without a look at the system.
pub(super) fn known_place(host: &Inner, gid: &Gid) -> Option<Place> {
    host.present_devices().iter().find_map(|device| at(device, |other| other == gid))
}

/// The device that has an address of this host; a loopback address, if none has it, is any device's.
pub(super) fn place(host: &Arc<Inner>, ip: IpAddr, ifindex: u32) -> Option<Place> {
    let known = || {
        let gid = host.gid_of(ip)?;
        let devices = host.present_devices();
        let preferred = devices.iter().filter(|device| device.ifindex() == ifindex);
        preferred.chain(&devices).find_map(|device| at(device, |other| *other == gid))
    };
    let found = known().or_else(|| {
        // The address may be newer than the last look.
        let _ = host.follow_interfaces();
        known()
    });
    found.or_else(|| if ip.is_loopback() { any_place(host, ip.is_ipv4()) } else { None })
}

/// A device with a GID of that family, one that is valid beyond its link if possible.
pub(super) fn any_place(host: &Inner, v4: bool) -> Option<Place> {
    let devices = host.present_devices();
    let find = |link_local: bool| {
        // On InfiniBand a GID says nothing of its kind.
        let wanted = |gid: &Gid| {
            let ip = host.ip_of(gid);
            let link_local = Gid::from_ip(ip).is_link_local() == link_local;
            ip.is_ipv4() == v4 && link_local
        };
        devices.iter().find_map(|device| at(device, wanted))
    };
    find(false).or_else(|| find(true))
}

fn at(device: &Arc<Device>, wanted: impl Fn(&Gid) -> bool) -> Option<Place> {
    let (gid_index, gid) = device.gids().into_iter().find(|(_, gid)| wanted(gid))?;
    Some(Place { device: device.clone(), gid_index, gid })
}
