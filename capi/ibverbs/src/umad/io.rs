//! Ports, agents, sending and receiving (umad_open_port(3), umad_register(3), umad_send(3), umad_recv(3)).

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ironverbs::raw as soft;
use ironverbs_sys::cancel;
use ironverbs_sys::umad::Registration;
use ironverbs_wire::Gid;
use ironverbs_wire::mad::MadHeader;
use parking_lot::Mutex;

use super::abi::*;
use super::names::{Ca, find};
use super::{errno, failed, kernel, number};

/// Bytes of the shortest MAD.
const MAD_HEADER: usize = MadHeader::LEN;

/// The one flag of registrations: the program sees to long messages itself.
const USER_RMPP: u32 = 1;

/// Bytes in front of a MAD.
const HEADER: usize = size_of::<ib_user_mad_t>();

/// Open ports, by the descriptor that programs know them by.
static PORTS: LazyLock<Mutex<HashMap<c_int, Port>>> = LazyLock::new(Mutex::default);

/// An open port of a software device, or of an adapter of the kernel.
#[derive(Clone)]
enum Port {
    Soft(Arc<soft::MadPort>),
    Kernel(Arc<kernel::Port>),
}

fn port(id: c_int) -> Result<Port, c_int> {
    PORTS.lock().get(&id).cloned().ok_or(libc::EBADF)
}

pub(crate) extern "C" fn init() -> c_int {
    0
}

pub(crate) extern "C" fn done() -> c_int {
    0
}

pub(crate) extern "C" fn debug(_level: c_int) -> c_int {
    0
}

/// # Safety
/// `name` is null or a string.
pub(crate) unsafe extern "C" fn open_port(name: *const c_char, number_of: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let (fd, port) = match unsafe { find(name, number_of)? } {
            Ca::Soft(context) => {
                context.await_subnet_manager();
                let port = context.open_mads().map_err(errno)?;
                (port.fd(), Port::Soft(port))
            }
            Ca::Kernel(adapter) => {
                let port = kernel::Port::open(&adapter, kernel::number(&adapter, number_of)?)?;
                (port.fd(), Port::Kernel(Arc::new(port)))
            }
        };
        PORTS.lock().insert(fd, port);
        Ok(fd)
    })
}

pub(crate) extern "C" fn close_port(id: c_int) -> c_int {
    number(|| {
        let gone = PORTS.lock().remove(&id);
        gone.map(|_| 0).ok_or(libc::EBADF)
    })
}

pub(crate) extern "C" fn get_fd(id: c_int) -> c_int {
    id
}

/// # Safety
/// `mask` is null or has 128 bits.
pub(crate) unsafe extern "C" fn register(
    id: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let methods = unsafe { methods(mask.cast()) };
        enlist(id, class, version, methods, rmpp_version, [0; 3]).map_err(refused)
    })
}

/// These calls say EPERM of what the kernel refuses.
fn refused(errno: c_int) -> c_int {
    if errno == libc::EBADF { errno } else { libc::EPERM }
}

/// # Safety
/// As [`register`]; `oui` has three bytes.
pub(crate) unsafe extern "C" fn register_oui(
    id: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const u8,
    mask: *const c_long,
) -> c_int {
    number(|| {
        // The vendor classes that begin with an OUI (IBA 16.5).
        if !(0x30..=0x4f).contains(&class) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let (methods, oui) = unsafe {
            (
                methods(mask.cast()),
                if oui.is_null() { [0; 3] } else { oui.cast::<[u8; 3]>().read() },
            )
        };
        enlist(id, class, 1, methods, rmpp_version, oui)
    })
}

/// # Safety
/// `attr` and `agent` point to their types.
pub(crate) unsafe extern "C" fn register2(
    id: c_int,
    attr: *mut umad_reg_attr,
    agent: *mut u32,
) -> c_int {
    // The errno itself, not negated (umad_register2(3)).
    let result = number(|| {
        if attr.is_null() || agent.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let attr = unsafe { &mut *attr };
        if attr.flags & !USER_RMPP != 0 {
            attr.flags = USER_RMPP;
            return Err(libc::EINVAL);
        }
        // Then the parts of long messages are datagrams like others.
        let rmpp_version = if attr.flags & USER_RMPP != 0 { 0 } else { attr.rmpp_version };
        let [low, high] = attr.method_mask;
        let methods = u128::from(high) << 64 | u128::from(low);
        let version = attr.mgmt_class_version.into();
        let class = attr.mgmt_class.into();
        let [_, oui @ ..] = attr.oui.to_be_bytes();
        let number = enlist(id, class, version, methods, rmpp_version, oui)?;
        // SAFETY: the caller's promise.
        unsafe { agent.write(number as u32) };
        Ok(0)
    });
    -result
}

/// # Safety
/// `mask` is null or has 16 bytes.
unsafe fn methods(mask: *const [u64; 2]) -> u128 {
    // SAFETY: the caller's promise.
    let [low, high] = if mask.is_null() { [0; 2] } else { unsafe { ptr::read_unaligned(mask) } };
    u128::from(high) << 64 | u128::from(low)
}

fn enlist(
    id: c_int,
    class: c_int,
    version: c_int,
    methods: u128,
    rmpp_version: u8,
    oui: [u8; 3],
) -> Result<c_int, c_int> {
    let class = u8::try_from(class).map_err(|_| libc::EINVAL)?;
    let version = u8::try_from(version).map_err(|_| libc::EINVAL)?;
    // Subnet management is QP0's (IBA 13.4.4).
    let qpn = u32::from(!matches!(class, 0x01 | 0x81));
    let port = match port(id)? {
        Port::Soft(port) => port,
        Port::Kernel(port) => {
            let methods = [0, 32, 64, 96].map(|from| (methods >> from) as u32);
            let qpn = qpn as u8;
            let asked = Registration { id: 0, methods, qpn, class, version, oui, rmpp_version };
            return port.register(&asked).map(|id| id as c_int);
        }
    };
    port.register(qpn, class, version, methods, rmpp_version != 0).map(|id| id as c_int).map_err(
        |e| match e {
            soft::Error::Busy { .. } => libc::EPERM,
            other => errno(other),
        },
    )
}

pub(crate) extern "C" fn unregister(id: c_int, agent: c_int) -> c_int {
    number(|| {
        let agent = u32::try_from(agent).map_err(|_| libc::EINVAL)?;
        match port(id)? {
            Port::Soft(port) => port.unregister(agent).map_err(errno)?,
            Port::Kernel(port) => port.unregister(agent)?,
        }
        Ok(0)
    })
}

/// # Safety
/// `umad` points to a header and `length` bytes behind it.
pub(crate) unsafe extern "C" fn send(
    id: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    number(|| {
        let port = port(id)?;
        let agent = u32::try_from(agent).map_err(|_| libc::EINVAL)?;
        let length = usize::try_from(length).map_err(|_| libc::EINVAL)?;
        if umad.is_null() || length < MAD_HEADER {
            return Err(libc::EINVAL);
        }
        let mut message = vec![0; HEADER + length];
        // SAFETY: the caller's promise.
        let addr = unsafe {
            let header = umad.cast::<ib_user_mad_t>();
            (*header).timeout_ms = timeout_ms as u32;
            (*header).retries = retries as u32;
            (*header).agent_id = agent;
            ptr::copy_nonoverlapping(umad.cast(), message.as_mut_ptr(), HEADER + length);
            (*header).addr
        };
        let port = match port {
            Port::Soft(port) => port,
            Port::Kernel(port) => return port.send(&message).map(|()| 0),
        };
        let message = message.split_off(HEADER);
        let to = address(&addr);
        // For ever is the longest there is.
        let timeout = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
        let retries = u32::try_from(retries).unwrap_or(0);
        port.send(agent, &to, &message, timeout, retries).map_err(errno)?;
        Ok(0)
    })
}

fn address(addr: &ib_mad_addr_t) -> soft::MadAddress {
    let ah = soft::AhAttr {
        dlid: u16::from_be(addr.lid),
        sl: addr.sl,
        src_path_bits: addr.path_bits,
        is_global: addr.grh_present != 0,
        dgid: Gid(addr.gid),
        sgid_index: addr.gid_index,
        hop_limit: addr.hop_limit,
        traffic_class: addr.traffic_class,
        flow_label: u32::from_be(addr.flow_label) & 0xf_ffff,
        port_num: 1,
        ..soft::AhAttr::default()
    };
    soft::MadAddress { ah, qpn: u32::from_be(addr.qpn), pkey_index: addr.pkey_index }
}

/// A thread that waits here may be cancelled (opensm ends its receiver so), which unwinds through this frame: it has
/// nothing to drop.
///
/// # Safety
/// `umad` has room for a header and `*length` bytes behind it.
pub(crate) unsafe extern "C-unwind" fn recv(
    id: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    let end = deadline(timeout_ms);
    loop {
        // SAFETY: the caller's promise.
        let taken = number(|| unsafe { take(id, umad, length) });
        if taken != -libc::EWOULDBLOCK || timeout_ms == 0 {
            return taken;
        }
        let waited = wait(id, end);
        if waited != 0 {
            return failed(waited);
        }
    }
}

/// # Safety
/// As [`recv`].
unsafe fn take(id: c_int, umad: *mut c_void, length: *mut c_int) -> Result<c_int, c_int> {
    let port = port(id)?;
    if umad.is_null() || length.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let room = usize::try_from(unsafe { *length }).unwrap_or(0);
    let port = match port {
        Port::Soft(port) => port,
        // SAFETY: the caller's promise.
        Port::Kernel(port) => unsafe {
            let whole = std::slice::from_raw_parts_mut(umad.cast::<u8>(), HEADER + room);
            let taken = port.take(whole);
            let header = umad.cast::<ib_user_mad_t>().read_unaligned();
            let long =
                |bytes: usize| c_int::try_from(bytes.saturating_sub(HEADER)).unwrap_or(c_int::MAX);
            return match taken {
                Ok(bytes) => {
                    length.write(long(bytes));
                    Ok(header.agent_id as c_int)
                }
                Err(libc::ENOSPC) => {
                    length.write(long(header.length as usize));
                    Err(libc::ENOSPC)
                }
                Err(errno) => Err(errno),
            };
        },
    };
    let received = match port.next(room) {
        Ok(received) => received.ok_or(libc::EWOULDBLOCK)?,
        Err(needed) => {
            // SAFETY: the caller's promise.
            unsafe { length.write(c_int::try_from(needed).unwrap_or(c_int::MAX)) };
            return Err(libc::ENOSPC);
        }
    };
    let len = received.mad.len();
    let header = ib_user_mad_t {
        agent_id: received.agent,
        status: received.status as u32,
        timeout_ms: 0,
        retries: 0,
        length: (size_of::<ib_user_mad_t>() + len) as u32,
        addr: told(&received),
    };
    // SAFETY: the caller's promise; it was seen that there is room.
    unsafe {
        let out = umad.cast::<ib_user_mad_t>();
        out.write_unaligned(header);
        let data = out.add(1).cast::<u8>();
        ptr::copy_nonoverlapping(received.mad.as_ptr(), data, len);
        length.write(len as c_int);
    }
    Ok(received.agent as c_int)
}

fn told(received: &soft::ReceivedMad) -> ib_mad_addr_t {
    let mut addr = ib_mad_addr_t {
        qpn: received.qpn.to_be(),
        lid: received.lid.to_be(),
        sl: received.sl,
        path_bits: received.path_bits,
        pkey_index: received.pkey_index,
        ..ib_mad_addr_t::default()
    };
    if let Some(grh) = &received.grh {
        addr.grh_present = 1;
        addr.hop_limit = grh.hop_limit;
        addr.traffic_class = grh.traffic_class;
        addr.gid = grh.src.0;
        addr.flow_label = grh.flow_label.to_be();
    }
    addr
}

pub(crate) extern "C-unwind" fn poll(id: c_int, timeout_ms: c_int) -> c_int {
    let known = number(|| port(id).map(|_| 0));
    if known != 0 {
        return known;
    }
    match wait(id, deadline(timeout_ms)) {
        0 => 0,
        errno => failed(errno),
    }
}

/// None: never.
fn deadline(timeout_ms: c_int) -> Option<Instant> {
    let timeout = u64::try_from(timeout_ms).ok()?;
    Instant::now().checked_add(Duration::from_millis(timeout))
}

/// Waits until something can be read: 0, or the errno of why not. A thread may be cancelled here.
fn wait(fd: c_int, end: Option<Instant>) -> c_int {
    loop {
        let left = end.map_or(-1, |end| {
            let left = end.saturating_duration_since(Instant::now());
            let rest = c_int::from(left.subsec_nanos() % 1_000_000 != 0);
            c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).saturating_add(rest)
        });
        match cancel::wait_readable(fd, left) {
            Ok(true) => return 0,
            Ok(false) if left >= 0 => return libc::ETIMEDOUT,
            Ok(false) => {}
            Err(errno) => return errno,
        }
    }
}

pub(crate) extern "C" fn size() -> usize {
    size_of::<ib_user_mad_t>()
}

/// # Safety
/// `umad` points to a header.
pub(crate) unsafe extern "C" fn get_mad(umad: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { umad.cast::<ib_user_mad_t>().add(1).cast() }
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn get_mad_addr(umad: *mut c_void) -> *mut ib_mad_addr_t {
    // SAFETY: the caller's promise.
    unsafe { &raw mut (*umad.cast::<ib_user_mad_t>()).addr }
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn status(umad: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*umad.cast::<ib_user_mad_t>()).status as c_int }
}

/// # Safety
/// As [`get_mad`]; `addr` is null or has the fields of a GRH.
pub(crate) unsafe extern "C" fn set_grh(umad: *mut c_void, addr: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let to = &mut (*umad.cast::<ib_user_mad_t>()).addr;
        match addr.cast::<ib_mad_addr_t>().as_ref() {
            None => to.grh_present = 0,
            Some(from) => {
                to.grh_present = 1;
                to.gid = from.gid;
                to.flow_label = from.flow_label.to_be();
                to.hop_limit = from.hop_limit;
                to.traffic_class = from.traffic_class;
            }
        }
    }
    0
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (lid, qpn, qkey) = (dlid as u16, dqp as u32, qkey as u32);
    // SAFETY: the caller's promise.
    unsafe { set_addr_net(umad, lid.to_be(), qpn.to_be(), sl, qkey.to_be()) }
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let addr = unsafe { &mut (*umad.cast::<ib_user_mad_t>()).addr };
    (addr.lid, addr.qpn, addr.qkey, addr.sl) = (dlid, dqp, qkey, sl as u8);
    0
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*umad.cast::<ib_user_mad_t>()).addr.pkey_index = index as c_uint as u16 };
    0
}

/// # Safety
/// As [`get_mad`].
pub(crate) unsafe extern "C" fn get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { (*umad.cast::<ib_user_mad_t>()).addr.pkey_index.into() }
}
