//! Names to addresses: what getaddrinfo(3) knows, in librdmacm's words.

use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use ironverbs::raw::cm::{IbAddr, PortSpace};
use ironverbs_wire::Gid;

use super::address;
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

const RC: c_int = 2;
const UC: c_int = 3;
const UD: c_int = 4;
const XRC_SEND: c_int = IBV_QPT_XRC_SEND as c_int;
const XRC_RECV: c_int = IBV_QPT_XRC_RECV as c_int;

const FLAGS: c_int = RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY;

/// rdma_getaddrinfo(3): 0; -1 and errno; or one of the `EAI_` codes of getaddrinfo(3).
///
/// The result has memory of its own throughout, whatever it was made from.
///
/// # Safety
/// The strings are null or end in a zero byte; `hints` is null or points to the structure, in which
/// addresses are null or as long as they say; `res` is null or has room for a pointer.
pub(crate) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    fail::number("rdma_getaddrinfo", || {
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Failure::Null { what: "node, service and hints" });
        }
        if res.is_null() {
            return Err(Failure::Null { what: "result" });
        }
        // SAFETY: the caller's promise.
        let hints = unsafe { hints.as_ref() };
        if hints.is_some_and(|hints| hints.ai_flags & !FLAGS != 0) {
            return Ok(libc::EAI_BADFLAGS);
        }
        // SAFETY: the caller's promise.
        match unsafe { resolve(node, service, hints)? } {
            Ok(result) => {
                // SAFETY: the caller's promise.
                unsafe { res.write(result.release()) };
                Ok(0)
            }
            Err(code) => Ok(code),
        }
    })
}

/// rdma_freeaddrinfo(3).
///
/// # Safety
/// `res` is null or came from [`getaddrinfo`] and was not freed before.
pub(crate) unsafe extern "C" fn freeaddrinfo(mut res: *mut rdma_addrinfo) {
    while let Some(info) = NonNull::new(res) {
        // SAFETY: the caller's promise: the structure and what it points to came from calloc.
        unsafe {
            res = (*info.as_ptr()).ai_next;
            drop(Info(info));
        }
    }
}

/// A result that is being made.
struct Info(NonNull<rdma_addrinfo>);

impl Info {
    fn new() -> Outcome<Info> {
        // SAFETY: calloc has no requirements, and zeros are a valid structure.
        let memory = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
        NonNull::new(memory.cast()).map(Info).ok_or(Failure::Full { what: "address" })
    }

    fn fields(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: it is ours alone until it is released.
        unsafe { self.0.as_mut() }
    }

    fn release(self) -> *mut rdma_addrinfo {
        let pointer = self.0.as_ptr();
        mem::forget(self);
        pointer
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: everything was allocated by `copy` or `new`; free(NULL) does nothing.
        unsafe {
            let info = self.0.as_ptr();
            for part in [
                (*info).ai_src_addr.cast(),
                (*info).ai_dst_addr.cast(),
                (*info).ai_src_canonname.cast(),
                (*info).ai_dst_canonname.cast(),
                (*info).ai_route,
                (*info).ai_connect,
            ] {
                libc::free(part);
            }
            libc::free(info.cast());
        }
    }
}

/// # Safety
/// As for [`getaddrinfo`].
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Outcome<Result<Info, c_int>> {
    let mut info = Info::new()?;
    info.fields().ai_flags = hints.map_or(0, |hints| hints.ai_flags);
    if !node.is_null() || !service.is_null() {
        // SAFETY: the caller's promise.
        if let Err(code) = unsafe { ask(node, service, hints, &mut info)? } {
            return Ok(Err(code));
        }
    } else if let Some(hints) = hints {
        let out = info.fields();
        (out.ai_family, out.ai_qp_type) = (hints.ai_family, hints.ai_qp_type);
        out.ai_port_space = hints.ai_port_space;
        // SAFETY: the caller's promise.
        (out.ai_dst_addr, out.ai_dst_len) =
            unsafe { copy_addr(hints.ai_dst_addr, hints.ai_dst_len)? };
    }
    let out = info.fields();
    if let Some(hints) = hints
        && out.ai_src_len == 0
    {
        // SAFETY: the caller's promise.
        (out.ai_src_addr, out.ai_src_len) =
            unsafe { copy_addr(hints.ai_src_addr, hints.ai_src_len)? };
    }
    // A path that the caller knows; nobody else is asked for one.
    if let Some(hints) = hints
        && !hints.ai_route.is_null()
        && hints.ai_route_len > 0
    {
        // SAFETY: the caller's promise.
        out.ai_route = unsafe { copy(hints.ai_route, hints.ai_route_len)? };
        out.ai_route_len = hints.ai_route_len;
    }
    if out.ai_family == 0 {
        let known = [out.ai_src_addr, out.ai_dst_addr].into_iter().find(|addr| !addr.is_null());
        // SAFETY: both are null or copies of addresses.
        out.ai_family = known.map_or(0, |addr| unsafe { address::c_family(addr) });
    }
    Ok(Ok(info))
}

/// Asks the system, and takes its first answer.
///
/// # Safety
/// As for [`getaddrinfo`].
unsafe fn ask(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
    info: &mut Info,
) -> Outcome<Result<(), c_int>> {
    // SAFETY: zeros are a valid structure.
    let mut question: libc::addrinfo = unsafe { mem::zeroed() };
    let passive = hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0);
    if let Some(hints) = hints {
        match socket_type(hints) {
            Ok((kind, protocol)) => {
                (question.ai_socktype, question.ai_protocol) = (kind, protocol);
            }
            Err(code) => return Ok(Err(code)),
        }
        if passive {
            question.ai_flags |= libc::AI_PASSIVE;
        }
        if hints.ai_flags & RAI_NUMERICHOST != 0 {
            question.ai_flags |= libc::AI_NUMERICHOST;
        }
        question.ai_family = if hints.ai_family == AF_IB {
            // A GID is written as an IPv6 address is.
            question.ai_flags |= libc::AI_NUMERICHOST;
            libc::AF_INET6
        } else {
            hints.ai_family
        };
    }
    let mut answer = ptr::null_mut();
    // SAFETY: the caller's promise; the other two are ours.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const question, &raw mut answer) };
    match code {
        0 => {}
        libc::EAI_SYSTEM => return Err(std::io::Error::last_os_error().into()),
        code => return Ok(Err(code)),
    }
    // SAFETY: a list that getaddrinfo made, freed once, after it was copied from.
    let taken = unsafe {
        let taken = take(answer, hints, passive, info);
        libc::freeaddrinfo(answer);
        taken
    };
    taken.map(Ok)
}

/// What kind of socket is like the queue pair that is asked for. A type that its port space does
/// not have is none.
fn socket_type(hints: &rdma_addrinfo) -> Result<(c_int, c_int), c_int> {
    let kind = match hints.ai_qp_type {
        0 => 0,
        RC | UC | XRC_SEND | XRC_RECV => libc::SOCK_STREAM,
        UD => libc::SOCK_DGRAM,
        _ => return Err(libc::EAI_SOCKTYPE),
    };
    let space = u32::try_from(hints.ai_port_space).map_err(|_| libc::EAI_SERVICE)?;
    let of_space = match (space, PortSpace::from_number(space.into())) {
        (0, _) | (_, Some(PortSpace::Ib)) => return Ok((kind, 0)),
        (_, Some(PortSpace::Tcp)) => libc::SOCK_STREAM,
        (_, Some(PortSpace::Udp | PortSpace::Ipoib)) => libc::SOCK_DGRAM,
        (_, None) => return Err(libc::EAI_SERVICE),
    };
    if kind != 0 && kind != of_space {
        return Err(libc::EAI_SOCKTYPE);
    }
    let stream = of_space == libc::SOCK_STREAM;
    Ok((of_space, if stream { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP }))
}

/// # Safety
/// `answer` is a list that getaddrinfo(3) made.
unsafe fn take(
    answer: *const libc::addrinfo,
    hints: Option<&rdma_addrinfo>,
    passive: bool,
    info: &mut Info,
) -> Outcome<()> {
    // SAFETY: the caller's promise; a list has at least one entry.
    let first = unsafe { &*answer };
    let out = info.fields();
    out.ai_family = first.ai_family;
    let datagrams = first.ai_socktype == libc::SOCK_DGRAM;
    let asked = |value: fn(&rdma_addrinfo) -> c_int| hints.map_or(0, value);
    out.ai_qp_type = match asked(|hints| hints.ai_qp_type) {
        0 if datagrams => UD,
        0 => RC,
        asked => asked,
    };
    let space = if datagrams { PortSpace::Udp } else { PortSpace::Tcp };
    out.ai_port_space = match asked(|hints| hints.ai_port_space) {
        0 => space as c_int,
        asked => asked,
    };
    let is_gid = hints.is_some_and(|hints| hints.ai_family == AF_IB);
    if is_gid {
        out.ai_family = AF_IB;
    }
    // SAFETY: what getaddrinfo made.
    unsafe {
        let (addr, len) = if is_gid {
            let ib = of_gid(address::read(first.ai_addr)?, out.ai_port_space);
            let len = size_of::<sockaddr_ib>();
            (copy((&raw const ib).cast(), len)?.cast(), len as libc::socklen_t)
        } else {
            copy_addr(first.ai_addr, first.ai_addrlen)?
        };
        let name = copy_name(first.ai_canonname)?;
        if passive {
            (out.ai_src_addr, out.ai_src_len, out.ai_src_canonname) = (addr, len, name);
        } else {
            (out.ai_dst_addr, out.ai_dst_len, out.ai_dst_canonname) = (addr, len, name);
        }
    }
    Ok(())
}

/// The port that an IPv6 address names as a GID, and its service.
fn of_gid(addr: SocketAddr, space: c_int) -> sockaddr_ib {
    /// The bits of a service ID that are the port.
    const PORT: u64 = 0xffff;
    let port = u64::from(addr.port());
    address::of_ib(IbAddr {
        gid: Gid::from_ip(addr.ip()),
        pkey: 0xffff,
        flowinfo: 0,
        sid: u64::from(space as u32) << 16 | port,
        sid_mask: if port == 0 { !PORT } else { !0 },
        scope_id: 0,
    })
}

/// # Safety
/// `addr` is null or points to `len` bytes.
unsafe fn copy_addr(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Outcome<(*mut libc::sockaddr, libc::socklen_t)> {
    if addr.is_null() || len == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: the caller's promise; a family is two bytes.
    let needed = match len as usize >= size_of::<libc::sa_family_t>() {
        // SAFETY: as above.
        true => address::length(unsafe { address::c_family(addr) }),
        false => 0,
    };
    if needed == 0 || (len as usize) < needed {
        return Err(Failure::Argument { what: "length of an address", value: len.into() });
    }
    // SAFETY: the caller's promise.
    Ok((unsafe { copy(addr.cast(), len as usize)? }.cast(), len))
}

/// # Safety
/// `name` is null or ends in a zero byte.
unsafe fn copy_name(name: *const c_char) -> Outcome<*mut c_char> {
    if name.is_null() {
        return Ok(ptr::null_mut());
    }
    // SAFETY: the caller's promise.
    unsafe { Ok(copy(name.cast(), libc::strlen(name) + 1)?.cast()) }
}

/// # Safety
/// `from` points to `len` bytes, more than none.
unsafe fn copy(from: *const c_void, len: usize) -> Outcome<*mut c_void> {
    // SAFETY: calloc has no requirements; the caller's promise.
    unsafe {
        let to = libc::calloc(1, len);
        if to.is_null() {
            return Err(Failure::Full { what: "address" });
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len);
        Ok(to)
    }
}
