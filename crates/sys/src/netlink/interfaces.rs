//! The interfaces of the network namespace.

use std::io;
use std::net::IpAddr;

use super::frame::{self, Attributes, Netlink, Reply};

/// A network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its number; never reused while the system runs, save by explicit request.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether packets pass: it is switched on and operational by RFC 2863, which the kernel says
    /// up to a second after the carrier came. Until then what is sent is dropped.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Its Ethernet address; zeros where it has none, or one of another length.
    pub mac: [u8; 6],
    /// Its addresses, in the kernel's order, IPv4 first.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// How far it is valid, by rtnetlink(7): 0 everywhere, 253 on the link, 254 on this host.
    pub scope: u8,
    /// IPv6: not yet, or found not to be, unique on the link; packets cannot be sent from it.
    pub tentative: bool,
    /// Valid still, but not for new connections.
    pub deprecated: bool,
}

/// All interfaces with their addresses, by ascending index.
///
/// # Errors
/// As socket(2) and recv(2) of netlink: `EPERM` or `EAFNOSUPPORT` in a sandbox that denies it.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let netlink = Netlink::open(libc::NETLINK_ROUTE)?;
    let links = netlink.dump(libc::RTM_GETLINK, &[0; LINK_FIXED])?;
    let mut interfaces: Vec<_> = links
        .iter()
        .filter(|reply| reply.kind == libc::RTM_NEWLINK)
        .filter_map(|reply| link(&reply.payload))
        .collect();
    interfaces.sort_by_key(|i| i.index);
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; ADDRESS_FIXED];
        request[0] = family as u8;
        for Reply { kind, payload } in netlink.dump(libc::RTM_GETADDR, &request)? {
            // A kernel without IPv6 answers with the addresses that it has: IPv4 once more.
            if kind != libc::RTM_NEWADDR || payload.first() != Some(&(family as u8)) {
                continue;
            }
            let Some((index, address)) = address(&payload) else { continue };
            if let Ok(at) = interfaces.binary_search_by_key(&index, |i| i.index) {
                interfaces[at].addresses.push(address);
            }
        }
    }
    Ok(interfaces)
}

/// Bytes of `struct ifinfomsg`: family, padding, u16 type, i32 index, u32 flags, u32 change.
const LINK_FIXED: usize = 16;
/// Bytes of `struct ifaddrmsg`: family, prefix length, flags, scope, u32 index.
const ADDRESS_FIXED: usize = 8;

/// Values of `IFLA_OPERSTATE` (RFC 2863) with which packets may pass.
const OPERSTATE_UNKNOWN: u8 = 0;
const OPERSTATE_UP: u8 = 6;

fn link(payload: &[u8]) -> Option<Interface> {
    let (fixed, attributes) = payload.split_first_chunk::<LINK_FIXED>()?;
    let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *fixed;
    let flags = i32::from_ne_bytes([f0, f1, f2, f3]);
    let mut interface = Interface {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: String::new(),
        mtu: 0,
        up: false,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        mac: [0; 6],
        addresses: Vec::new(),
    };
    let mut operational = flags & libc::IFF_LOWER_UP != 0;
    for (kind, value) in Attributes(attributes) {
        match kind {
            libc::IFLA_IFNAME => interface.name = text(value),
            libc::IFLA_MTU => interface.mtu = frame::int(value).unwrap_or_default() as u32,
            libc::IFLA_ADDRESS => interface.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_OPERSTATE => {
                // Drivers that do not keep it leave it unknown: loopback, tunnels.
                operational = matches!(value, [OPERSTATE_UNKNOWN | OPERSTATE_UP, ..]);
            }
            _ => {}
        }
    }
    interface.up = operational && flags & libc::IFF_UP != 0;
    Some(interface)
}

fn address(payload: &[u8]) -> Option<(u32, Address)> {
    let (fixed, attributes) = payload.split_first_chunk::<ADDRESS_FIXED>()?;
    let [_, prefix, flags, scope, i0, i1, i2, i3] = *fixed;
    let mut flags = u32::from(flags);
    let (mut local, mut peer) = (None, None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            libc::IFA_LOCAL => local = frame::ip(value),
            // The other end of a point-to-point link; otherwise the address itself.
            libc::IFA_ADDRESS => peer = frame::ip(value),
            libc::IFA_FLAGS => flags = frame::int(value).unwrap_or_default() as u32,
            _ => {}
        }
    }
    let address = Address {
        ip: local.or(peer)?,
        prefix,
        scope,
        tentative: flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0
            && flags & libc::IFA_F_OPTIMISTIC == 0,
        deprecated: flags & libc::IFA_F_DEPRECATED != 0,
    };
    Some((u32::from_ne_bytes([i0, i1, i2, i3]), address))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}
