//! Socket addresses of C and of Rust.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;
use std::time::Duration;

use ironverbs::raw as soft;
use ironverbs_wire::Gid;
use soft::cm::{CmId, IbAddr};

use crate::abi::{AF_IB, sockaddr_ib, sockaddr_storage};
use crate::fail::{Failure, Outcome};

/// What a program may name a port and a service by.
#[derive(Copy, Clone)]
pub(super) enum Address {
    Ip(SocketAddr),
    Ib(IbAddr),
}

impl Address {
    /// # Safety
    /// As for [`read`].
    pub(super) unsafe fn read(from: *const libc::sockaddr) -> Outcome<Address> {
        // SAFETY: the caller's promise; programs do not align addresses.
        unsafe {
            if from.is_null() || c_family(from) != AF_IB {
                return read(from).map(Address::Ip);
            }
            let ib = ptr::read_unaligned(from.cast::<sockaddr_ib>());
            Ok(Address::Ib(IbAddr {
                gid: Gid(ib.sib_addr),
                pkey: u16::from_be(ib.sib_pkey),
                flowinfo: u32::from_be(ib.sib_flowinfo),
                sid: u64::from_be(ib.sib_sid),
                sid_mask: u64::from_be(ib.sib_sid_mask),
                scope_id: ib.sib_scope_id,
            }))
        }
    }

    /// One that may be missing.
    ///
    /// # Safety
    /// As for [`read`].
    pub(super) unsafe fn read_optional(from: *const libc::sockaddr) -> Outcome<Option<Address>> {
        match from.is_null() {
            true => Ok(None),
            // SAFETY: the caller's promise.
            false => unsafe { Self::read(from) }.map(Some),
        }
    }

    pub(super) fn bind(self, id: &CmId) -> Outcome<()> {
        match self {
            Address::Ip(addr) => Ok(id.bind(addr)?),
            Address::Ib(addr) => Ok(id.bind_ib(addr)?),
        }
    }

    /// Resolves this one, from `src` if there is one, which must be of the same family.
    pub(super) fn resolve(self, id: &CmId, src: Option<Address>, timeout: Duration) -> Outcome<()> {
        match (self, src) {
            (Address::Ip(dst), None) => Ok(id.resolve_addr(None, dst, timeout)?),
            (Address::Ip(dst), Some(Address::Ip(src))) => {
                Ok(id.resolve_addr(Some(src), dst, timeout)?)
            }
            (Address::Ib(dst), None) => Ok(id.resolve_addr_ib(None, dst, timeout)?),
            (Address::Ib(dst), Some(Address::Ib(src))) => {
                Ok(id.resolve_addr_ib(Some(src), dst, timeout)?)
            }
            _ => Err(Failure::Argument { what: "address family", value: AF_IB as u64 }),
        }
    }

    pub(super) fn storage(self) -> sockaddr_storage {
        match self {
            Address::Ip(addr) => storage(addr),
            Address::Ib(addr) => {
                let mut out = sockaddr_storage { bytes: [0; 128] };
                // SAFETY: it fits.
                unsafe {
                    out.bytes.as_mut_ptr().cast::<sockaddr_ib>().write_unaligned(of_ib(addr))
                };
                out
            }
        }
    }
}

pub(super) fn of_ib(addr: IbAddr) -> sockaddr_ib {
    sockaddr_ib {
        sib_family: AF_IB as u16,
        sib_pkey: addr.pkey.to_be(),
        sib_flowinfo: addr.flowinfo.to_be(),
        sib_addr: addr.gid.0,
        sib_sid: addr.sid.to_be(),
        sib_sid_mask: addr.sid_mask.to_be(),
        sib_scope_id: addr.scope_id,
    }
}

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
        AF_IB => size_of::<sockaddr_ib>(),
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
    // SAFETY: 128 bytes hold the address of any family.
    let addr = unsafe { Address::read(stored.bytes.as_ptr().cast()) };
    addr.map_or(0, |addr| match addr {
        Address::Ip(addr) => addr.port().to_be(),
        Address::Ib(addr) => addr.port().to_be(),
    })
}
