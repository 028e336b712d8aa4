//! Verbs that need no device of ours: fork safety, old drivers, neighbours.

use std::ffi::{c_char, c_int, c_void};
use std::net::IpAddr;

use ironverbs::raw::Gid;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects;

/// ibv_fork_init(3): nothing is pinned, so that nothing is to be done.
pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

/// ibv_is_fork_initialized(3).
pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

/// ibv_dontfork_range and ibv_dofork_range: a child may share or copy any page.
pub(crate) extern "C" fn fork_range(_: *mut c_void, _: usize) -> c_int {
    0
}

/// ibv_register_driver of drivers from before 2017, which no program can load any more.
pub(crate) extern "C" fn register_driver(_name: *const c_char, _init: *const c_void) {
    eprintln!("ironverbs: ibv_register_driver: drivers of that age are not supported");
}

/// ibv_resolve_eth_l2_from_gid: the Ethernet address behind a destination, for those who build
/// frames. Known are multicast addresses and IPv4 neighbours that the kernel has resolved.
///
/// # Safety
/// As for [`objects::find`]; the others are null or point to their structures.
pub(crate) unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *const ibv_ah_attr,
    mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    fail::number("ibv_resolve_eth_l2_from_gid", || {
        if attr.is_null() || mac.is_null() || vid.is_null() {
            return Err(Failure::Null { what: "attr, eth_mac or vid" });
        }
        // SAFETY: the caller's promise.
        unsafe {
            objects::context(context)?;
            mac.write(ethernet_address(&Gid((*attr).grh.dgid))?);
            // No VLAN.
            vid.write(0xffff);
        }
        Ok(0)
    })
}

fn ethernet_address(gid: &Gid) -> Outcome<[u8; 6]> {
    let bytes = gid.0;
    match gid.to_ip() {
        IpAddr::V4(ip) if gid.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Ok([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(_) if gid.is_multicast() => {
            Ok([0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]])
        }
        IpAddr::V4(ip) => neighbour(&ip.to_string()),
        IpAddr::V6(_) => Err(Failure::Unsupported { what: "resolving an IPv6 neighbour" }),
    }
}

/// Looks an address up in /proc/net/arp: address, type, flags, Ethernet address, mask, interface.
fn neighbour(ip: &str) -> Outcome<[u8; 6]> {
    let table = std::fs::read_to_string("/proc/net/arp")?;
    let unknown = || std::io::Error::from_raw_os_error(libc::EHOSTUNREACH);
    let mac = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.next()? == ip).then_some(())?;
        fields.nth(2)
    });
    let mut out = [0; 6];
    let mut parts = mac.ok_or_else(unknown)?.split(':');
    for byte in &mut out {
        let part = parts.next().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        *byte = part.ok_or_else(unknown)?;
    }
    if out == [0; 6] { Err(unknown().into()) } else { Ok(out) }
}
