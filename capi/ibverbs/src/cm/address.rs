//! Socket addresses of C and of Rust.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use crate::abi::sockaddr_storage;
use crate::fail::{Failure, Outcome};

/// What a program passed as an address.
///
/// # Safety
/// `from` is null or points to an address that is as long as its family has it.
pub(super) unsafe fn read(from: *const libc::sockaddr) -> Outcome<SocketAddr> {
    if from.is_null() {
        return Err(Failure::Null { what: "address" });
    }
    // SAFETY: the caller's promise; programs do not align addresses.
    unsafe {
        match c_family(from) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(from.cast::<libc::sockaddr_in>());
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = ptr::read_unaligned(from.cast::<libc::sockaddr_in6>());
                let (port, flow) = (u16::from_be(v6.sin6_port), u32::from_be(v6.sin6_flowinfo));
                let ip = v6.sin6_addr.s6_addr.into();
                Ok(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into())
            }
            other => Err(Failure::Argument { what: "address family", value: other as u64 }),
        }
    }
}

/// An address that may be missing.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn read_optional(from: *const libc::sockaddr) -> Outcome<Option<SocketAddr>> {
    match from.is_null() {
        true => Ok(None),
        // SAFETY: the caller's promise.
        false => unsafe { read(from) }.map(Some),
    }
}

/// # Safety
/// `from` points to an address.
pub(super) unsafe fn c_family(from: *const libc::sockaddr) -> libc::c_int {
    // SAFETY: the caller's promise.
    let family = unsafe { (&raw const (*from).sa_family).read_unaligned() };
    libc::c_int::from(family)
}

/// Bytes of an address of this family; 0 for families that are not supported.
pub(super) fn length(family: libc::c_int) -> usize {
    match family {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => 0,
    }
}

/// The address as C has it, zeros behind.
pub(super) fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut out = sockaddr_storage { bytes: [0; 128] };
    let to = out.bytes.as_mut_ptr();
    // SAFETY: the structures are plain numbers, for which zeros are valid, and they fit.
    unsafe {
        match addr {
            SocketAddr::V4(v4) => {
                let mut c: libc::sockaddr_in = std::mem::zeroed();
                c.sin_family = libc::AF_INET as libc::sa_family_t;
                c.sin_port = v4.port().to_be();
                c.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                to.cast::<libc::sockaddr_in>().write_unaligned(c);
            }
            SocketAddr::V6(v6) => {
                let mut c: libc::sockaddr_in6 = std::mem::zeroed();
                c.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                c.sin6_port = v6.port().to_be();
                c.sin6_flowinfo = v6.flowinfo().to_be();
                c.sin6_addr.s6_addr = v6.ip().octets();
                c.sin6_scope_id = v6.scope_id();
                to.cast::<libc::sockaddr_in6>().write_unaligned(c);
            }
        }
    }
    out
}

/// The port of a stored address, in network order; 0 for none.
pub(super) fn port(stored: &sockaddr_storage) -> u16 {
    // SAFETY: 128 bytes hold the address of either family.
    let addr = unsafe { read(stored.bytes.as_ptr().cast()) };
    addr.map_or(0, |addr| addr.port().to_be())
}
