//! Agents of a class: those that ask, those that answer, and what they send and receive without waiting.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use super::abi::*;
use super::fields::{mad_get_field, mad_get_field64};
use super::packet::{mad_build_pkt, number};
use super::portid::name;
use super::rpc::{Packet, ibmad_port, mad_get_timeout, own};
use super::warn::{trace, warn};
use super::{errno, error_text};
use crate::umad::{self, ib_user_mad_t};

/// None for a class that libibmad does not know.
fn version(class: u8) -> Option<c_int> {
    match class {
        SA | CONGESTION => Some(2),
        SMI | SMI_DIRECT | PERFORMANCE | BOARD | DEVICE => Some(1),
        class if is_vendor_range1(class) || is_vendor_range2(class) => Some(1),
        _ => None,
    }
}

/// # Safety
/// `port` is null or from mad_rpc_open_port(), as in all functions here.
pub(crate) unsafe extern "C" fn mad_register_client_via(
    class: c_int,
    rmpp_version: u8,
    port: *mut ibmad_port,
) -> c_int {
    const FUNCTION: &str = "mad_register_port_client";
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_ref() }) else { return -1 };
    let known = u8::try_from(class).ok().and_then(|class| Some((class, version(class)?)));
    let Some((class, version)) = known else {
        trace(FUNCTION, format_args!("Unknown class {class} mgmt_class"));
        super::set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: no methods.
    let agent =
        unsafe { umad::register(port.id, class.into(), version, rmpp_version, ptr::null()) };
    if agent < 0 {
        trace(FUNCTION, format_args!("Can't register agent for class {class}"));
        return agent;
    }
    keep(port, class, agent)
}

fn keep(port: &ibmad_port, class: u8, agent: c_int) -> c_int {
    if let Some(slot) = port.agents.get(usize::from(class)) {
        slot.store(agent, Relaxed);
    }
    agent
}

pub(crate) extern "C" fn mad_register_client(class: c_int, rmpp_version: u8) -> c_int {
    // SAFETY: null, or from mad_rpc_open_port().
    unsafe { mad_register_client_via(class, rmpp_version, own()) }
}

/// # Safety
/// `methods` is null or has 128 bits.
pub(crate) unsafe extern "C" fn mad_register_server_via(
    class: c_int,
    rmpp_version: u8,
    methods: *const c_long,
    oui: u32,
    port: *mut ibmad_port,
) -> c_int {
    const FUNCTION: &str = "mad_register_server_via";
    const ALL: [c_long; 16 / size_of::<c_long>()] = [-1; 16 / size_of::<c_long>()];
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_ref() }) else { return -1 };
    let known = u8::try_from(class).ok().and_then(|class| Some((class, version(class)?)));
    let Some((class, version)) = known else {
        trace(FUNCTION, format_args!("Unknown class {class:#x} mgmt_class"));
        return -1;
    };
    let taken = port.agent(class);
    if taken >= 0 {
        trace(FUNCTION, format_args!("Class {class:#x} already registered {taken}"));
        return -1;
    }
    let methods = if methods.is_null() { ALL.as_ptr() } else { methods };
    // SAFETY: the caller's promise.
    let agent = unsafe {
        if is_vendor_range2(class) {
            let [_, oui @ ..] = oui.to_be_bytes();
            umad::register_oui(port.id, class.into(), rmpp_version, oui.as_ptr(), methods)
        } else {
            umad::register(port.id, class.into(), version, rmpp_version, methods)
        }
    };
    if agent < 0 {
        trace(FUNCTION, format_args!("Can't register agent for class {class}"));
        return -1;
    }
    keep(port, class, agent)
}

/// # Safety
/// As [`mad_register_server_via`].
pub(crate) unsafe extern "C" fn mad_register_server(
    class: c_int,
    rmpp_version: u8,
    methods: *const c_long,
    oui: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mad_register_server_via(class, rmpp_version, methods, oui, own()) }
}

/// Sends a datagram to which no response is expected.
///
/// # Safety
/// As mad_rpc_rmpp().
pub(crate) unsafe extern "C" fn mad_send_via(
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
    port: *mut ibmad_port,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(request), Some(port)) = (unsafe { (rpc.as_ref(), port.as_ref()) }) else { return -1 };
    if !Packet::holds(request) {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    let (class, timeout) = (request.class(), request.timeout);
    let mut packet = Packet::new();
    // SAFETY: the caller's promise; it was seen that there is room.
    let sent = unsafe {
        if mad_build_pkt(packet.umad(), rpc, dport, rmpp, data) < 0 {
            return -1;
        }
        let timeout = mad_get_timeout(port, timeout);
        umad::send(port.id, port.agent(class), packet.umad(), MAD_SIZE as c_int, timeout, 0)
    };
    if sent < 0 {
        warn("mad_send_via", format_args!("send failed; {}", error_text(errno())));
        return -1;
    }
    0
}

/// # Safety
/// As [`mad_send_via`].
pub(crate) unsafe extern "C" fn mad_send(
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mad_send_via(rpc, dport, rmpp, data, own()) }
}

/// Waits for a datagram: null where none came. A thread that waits here may be cancelled, which unwinds through this frame:
/// it has nothing to drop.
///
/// # Safety
/// `umad` is null, or has room for a header and a datagram.
pub(crate) unsafe extern "C-unwind" fn mad_receive_via(
    umad: *mut c_void,
    timeout: c_int,
    port: *mut ibmad_port,
) -> *mut c_void {
    if port.is_null() {
        return ptr::null_mut();
    }
    let into = if umad.is_null() { mad_alloc() } else { umad };
    let mut len = MAD_SIZE as c_int;
    // SAFETY: the caller's promise.
    let received = unsafe {
        let timeout = mad_get_timeout(port, timeout);
        umad::recv((*port).id, into, &raw mut len, timeout)
    };
    if received >= 0 {
        return into;
    }
    if umad.is_null() {
        // SAFETY: allocated above.
        unsafe { mad_free(into) };
    }
    ptr::null_mut()
}

/// # Safety
/// As [`mad_receive_via`].
pub(crate) unsafe extern "C-unwind" fn mad_receive(
    umad: *mut c_void,
    timeout: c_int,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mad_receive_via(umad, timeout, own()) }
}

/// Room for a header and a datagram, all zero; null without memory.
pub(crate) extern "C" fn mad_alloc() -> *mut c_void {
    // SAFETY: calloc has no requirements; mad_free() frees it.
    unsafe { libc::calloc(1, size_of::<ib_user_mad_t>() + MAD_SIZE) }
}

/// # Safety
/// `umad` is null or from [`mad_alloc`].
pub(crate) unsafe extern "C" fn mad_free(umad: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(umad) };
}

/// Answers a datagram with itself: its data stays, its header becomes a response's.
///
/// # Safety
/// `umad` has a received datagram; `portid` is null, for who sent it, or points to its type.
pub(crate) unsafe extern "C" fn mad_respond_via(
    umad: *mut c_void,
    portid: *mut ib_portid_t,
    rstatus: u32,
    port: *mut ibmad_port,
) -> c_int {
    use number::*;
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_ref() }).filter(|_| !umad.is_null()) else { return -1 };
    let header = umad.cast::<ib_user_mad_t>();
    // SAFETY: the caller's promise.
    let (addr, mad) = unsafe { ((*header).addr, header.add(1).cast::<c_void>()) };
    let mut sender = ib_portid_t {
        lid: u16::from_be(addr.lid).into(),
        qp: u32::from_be(addr.qpn),
        qkey: u32::from_be(addr.qkey),
        sl: addr.sl,
        ..ib_portid_t::SELF
    };
    // SAFETY: the caller's promise.
    let to = unsafe { portid.as_mut() }.unwrap_or(&mut sender);
    // SAFETY: the caller's promise.
    let get = |field| unsafe { mad_get_field(mad, 0, field) };
    let class = get(CLASS) as u8;
    let method = match get(METHOD) as c_int {
        SET => GET | super::abi::RESPONSE,
        SEND => SEND,
        method => method | super::abi::RESPONSE,
    };
    let mut rpc = ib_rpc_t {
        mgtclass: class.into(),
        method,
        attr_id: get(ATTR_ID),
        attr_mod: get(ATTR_MOD),
        recsz: if class == SA { get(ATTR_OFFSET) } else { 0 },
        oui: if is_vendor_range2(class) { get(OUI) } else { 0 },
        // SAFETY: the caller's promise.
        trid: unsafe { mad_get_field64(mad, 0, TRID) },
        rstatus,
        ..ib_rpc_t::default()
    };
    if matches!(class, SMI | SMI_DIRECT) {
        to.qp = 0;
    } else if to.qp == 0 {
        to.qp = 1;
    }
    if to.qkey == 0 && to.qp == 1 {
        to.qkey = QP1_QKEY;
    }
    trace("mad_respond_via", format_args!("dest {}", name(to)));
    // A response of congestion control has a key behind the request.
    let mut rpc = ib_rpc_cc_t { rpc: std::mem::take(&mut rpc), cckey: 0 };
    // SAFETY: the caller's promise; no data is written.
    let sent = unsafe {
        if mad_build_pkt(umad, (&raw mut rpc).cast(), to, ptr::null_mut(), ptr::null_mut()) < 0 {
            return -1;
        }
        let timeout = mad_get_timeout(port, 0);
        umad::send(port.id, port.agent(class), umad, MAD_SIZE as c_int, timeout, 0)
    };
    if sent < 0 {
        trace("mad_respond_via", format_args!("send failed; {}", error_text(errno())));
        return -1;
    }
    0
}

/// # Safety
/// As [`mad_respond_via`].
pub(crate) unsafe extern "C" fn mad_respond(
    umad: *mut c_void,
    portid: *mut ib_portid_t,
    rstatus: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mad_respond_via(umad, portid, rstatus, own()) }
}
