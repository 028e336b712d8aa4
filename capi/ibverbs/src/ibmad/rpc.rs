//! Ports, and requests that wait for their response.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::abi::*;
use super::clients;
use super::fields::{mad_get_field, mad_get_field64};
use super::packet::{mad_build_pkt, number};
use super::portid::name;
use super::text::string;
use super::warn::{explain, trace, warn};
use super::{errno, error_text, set_errno};
use crate::umad::{self, ib_user_mad_t};

/// Times that a request is sent, and milliseconds that each waits, where nobody says otherwise.
static RETRIES: AtomicI32 = AtomicI32::new(3);
static TIMEOUT: AtomicI32 = AtomicI32::new(1000);

/// How often a request follows whoever refers it to another port. A subnet has no use for more.
const REDIRECTIONS: u32 = 8;

const CLASSES: usize = 256;

/// What programs hold a pointer to.
#[allow(non_camel_case_types)]
pub(crate) struct ibmad_port {
    /// As umad knows it.
    pub(super) id: c_int,
    /// Agents by class, -1 where there is none.
    pub(super) agents: [AtomicI32; CLASSES],
    timeout: AtomicI32,
    retries: AtomicI32,
    pub(super) mkey: AtomicU64,
}

impl ibmad_port {
    pub(super) fn agent(&self, class: u8) -> c_int {
        self.agents.get(usize::from(class)).map_or(-1, |agent| agent.load(Relaxed))
    }
}

/// The port of the functions that are not told one.
static OWN: AtomicPtr<ibmad_port> = AtomicPtr::new(ptr::null_mut());

/// Null before madrpc_init().
pub(super) fn own() -> *mut ibmad_port {
    OWN.load(Relaxed)
}

pub(crate) extern "C" fn madrpc_set_retries(retries: c_int) -> c_int {
    if retries > 0 {
        RETRIES.store(retries, Relaxed);
    }
    RETRIES.load(Relaxed)
}

pub(crate) extern "C" fn madrpc_set_timeout(timeout: c_int) -> c_int {
    TIMEOUT.store(timeout, Relaxed);
    0
}

/// # Safety
/// `port` is null or from [`mad_rpc_open_port`], as in all functions here.
pub(crate) unsafe extern "C" fn mad_rpc_set_retries(port: *mut ibmad_port, retries: c_int) {
    // SAFETY: the caller's promise.
    if let Some(port) = unsafe { port.as_ref() } {
        port.retries.store(retries, Relaxed);
    }
}

/// # Safety
/// As [`mad_rpc_set_retries`].
pub(crate) unsafe extern "C" fn mad_rpc_set_timeout(port: *mut ibmad_port, timeout: c_int) {
    // SAFETY: the caller's promise.
    if let Some(port) = unsafe { port.as_ref() } {
        port.timeout.store(timeout, Relaxed);
    }
}

/// # Safety
/// As [`mad_rpc_set_retries`].
pub(crate) unsafe extern "C" fn mad_get_timeout(
    port: *const ibmad_port,
    override_ms: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let of_port = unsafe { port.as_ref() }.map_or(0, |port| port.timeout.load(Relaxed));
    [override_ms, of_port].into_iter().find(|ms| *ms != 0).unwrap_or(TIMEOUT.load(Relaxed))
}

/// # Safety
/// As [`mad_rpc_set_retries`].
pub(crate) unsafe extern "C" fn mad_get_retries(port: *const ibmad_port) -> c_int {
    // SAFETY: the caller's promise.
    let of_port = unsafe { port.as_ref() }.map_or(0, |port| port.retries.load(Relaxed));
    if of_port != 0 { of_port } else { RETRIES.load(Relaxed) }
}

/// # Safety
/// As [`mad_rpc_set_retries`].
pub(crate) unsafe extern "C" fn mad_rpc_portid(port: *mut ibmad_port) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { port.as_ref() }.map_or(-1, |port| port.id)
}

pub(crate) extern "C" fn madrpc_portid() -> c_int {
    // SAFETY: null, or from mad_rpc_open_port().
    unsafe { mad_rpc_portid(own()) }
}

/// # Safety
/// As [`mad_rpc_set_retries`].
pub(crate) unsafe extern "C" fn mad_rpc_class_agent(port: *mut ibmad_port, class: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let agents = unsafe { port.as_ref() }.map(|port| &port.agents);
    let at = usize::try_from(class).ok().filter(|class| *class >= 1);
    agents.zip(at).and_then(|(agents, at)| agents.get(at)).map_or(-1, |agent| agent.load(Relaxed))
}

pub(crate) extern "C" fn mad_class_agent(class: c_int) -> c_int {
    // SAFETY: null, or from mad_rpc_open_port().
    unsafe { mad_rpc_class_agent(own(), class) }
}

/// # Safety
/// `device` is null or a string; `classes` has `count` numbers.
pub(crate) unsafe extern "C" fn mad_rpc_open_port(
    device: *mut c_char,
    port: c_int,
    classes: *mut c_int,
    count: c_int,
) -> *mut ibmad_port {
    const FUNCTION: &str = "mad_rpc_open_port";
    if count > 0 && classes.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    if count >= CLASSES as c_int {
        warn(FUNCTION, format_args!("too many classes {count} requested"));
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let id = unsafe { umad::open_port(device, port) };
    if id < 0 {
        // SAFETY: the caller's promise.
        let device = unsafe { string(device) }.unwrap_or(b"(null)");
        let device = String::from_utf8_lossy(device);
        warn(FUNCTION, format_args!("can't open UMAD port ({device}:{port})"));
        return ptr::null_mut();
    }
    let opened = Box::into_raw(Box::new(ibmad_port {
        id,
        agents: [const { AtomicI32::new(-1) }; CLASSES],
        timeout: AtomicI32::new(0),
        retries: AtomicI32::new(0),
        mkey: AtomicU64::new(0),
    }));
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        let class = unsafe { classes.add(at).read() };
        let rmpp = u8::from(class == SA.into());
        // SAFETY: opened above.
        if unsafe { clients::mad_register_client_via(class, rmpp, opened) } < 0 {
            warn(FUNCTION, format_args!("client_register for mgmt {class} failed"));
            if errno() == 0 {
                set_errno(libc::EINVAL);
            }
            let why = errno();
            // SAFETY: nobody else knows it.
            unsafe { mad_rpc_close_port(opened) };
            set_errno(why);
            return ptr::null_mut();
        }
    }
    opened
}

/// # Safety
/// `port` is null or from [`mad_rpc_open_port`], and not used any more.
pub(crate) unsafe extern "C" fn mad_rpc_close_port(port: *mut ibmad_port) {
    if port.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let port = unsafe { Box::from_raw(port) };
    umad::close_port(port.id);
}

/// Ends the program where there is no such port, as libibmad does.
///
/// # Safety
/// As [`mad_rpc_open_port`].
pub(crate) unsafe extern "C" fn madrpc_init(
    device: *mut c_char,
    port: c_int,
    classes: *mut c_int,
    count: c_int,
) {
    // SAFETY: the caller's promise.
    let opened = unsafe { mad_rpc_open_port(device, port, classes, count) };
    if opened.is_null() {
        eprintln!(
            "ibpanic: [{}] madrpc_init: can't open UMAD port: {}",
            std::process::id(),
            error_text(errno())
        );
        std::process::exit(-1);
    }
    OWN.store(opened, Relaxed);
}

/// Where the next request is copied to, for programs that want to see it.
static COPY: Mutex<Option<(usize, usize)>> = Mutex::new(None);

/// # Safety
/// `buf` is null or has room for `len` bytes until the next request is sent.
pub(crate) unsafe extern "C" fn madrpc_save_mad(buf: *mut c_void, len: c_int) {
    let len = usize::try_from(len).unwrap_or(0);
    *COPY.lock() = (!buf.is_null()).then_some((buf.addr(), len));
}

/// A header and a datagram, or what of a longer one fits.
#[repr(C, align(8))]
pub(super) struct Packet([u8; Packet::LEN]);

impl Packet {
    const LEN: usize = 1024;
    const HEADER: usize = size_of::<ib_user_mad_t>();

    pub(super) fn new() -> Self {
        Self([0; Self::LEN])
    }

    pub(super) fn umad(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    pub(super) fn mad(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().wrapping_add(Self::HEADER).cast()
    }

    /// Whether the data of a request has its place.
    pub(super) fn holds(rpc: &ib_rpc_t) -> bool {
        let range = usize::try_from(rpc.dataoffs).ok().zip(usize::try_from(rpc.datasz).ok());
        range.is_some_and(|(at, len)| at.saturating_add(len) <= Self::LEN - Self::HEADER)
    }

    fn get(&mut self, field: u32) -> u32 {
        // SAFETY: all fields of headers are within the buffer.
        unsafe { mad_get_field(self.mad(), 0, field) }
    }
}

/// Sends a request until its response is here: the packet holds it then. Else the errno of why not.
fn exchange(
    port: &ibmad_port,
    agent: c_int,
    packet: &mut Packet,
    timeout: c_int,
    retries: c_int,
) -> Result<(), c_int> {
    const FUNCTION: &str = "_do_madrpc";
    trace(
        FUNCTION,
        format_args!(">>> sending: len {MAD_SIZE} pktsz {}", Packet::HEADER + MAD_SIZE),
    );
    if let Some((to, len)) = COPY.lock().take() {
        // SAFETY: the promise of madrpc_save_mad().
        unsafe {
            let to = ptr::with_exposed_provenance_mut::<u8>(to);
            ptr::copy_nonoverlapping(packet.mad().cast(), to, len.min(MAD_SIZE));
        }
    }
    if retries <= 0 {
        explain(FUNCTION, format_args!("max_retries {retries} <= 0"));
        return Err(libc::EINVAL);
    }
    // SAFETY: within the buffer.
    let trid = unsafe { mad_get_field64(packet.mad(), 0, number::TRID) } as u32;
    let mut response = Packet::new();
    for retry in 0..retries {
        if retry > 0 {
            explain(FUNCTION, format_args!("retry {retry} (timeout {timeout} ms)"));
        }
        // SAFETY: a header and a datagram.
        if unsafe { umad::send(port.id, agent, packet.umad(), MAD_SIZE as c_int, timeout, 0) } < 0 {
            let why = errno();
            explain(FUNCTION, format_args!("send failed; {}", error_text(why)));
            return Err(why);
        }
        // Others' datagrams do not make it wait longer.
        let end = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            let left = end.map_or(-1, |end| {
                let left = end.saturating_duration_since(Instant::now()).as_millis();
                // The response that tells of the timeout comes at its end.
                c_int::try_from(left).unwrap_or(c_int::MAX).saturating_add(100)
            });
            let mut len = MAD_SIZE as c_int;
            // SAFETY: the buffer is longer than that.
            if unsafe { umad::recv(port.id, response.umad(), &raw mut len, left) } < 0 {
                let why = errno();
                explain(FUNCTION, format_args!("recv failed: {}", error_text(why)));
                return Err(why);
            }
            // SAFETY: within the buffer.
            if unsafe { mad_get_field64(response.mad(), 0, number::TRID) } as u32 == trid {
                break;
            }
        }
        // SAFETY: a header.
        let status = unsafe { umad::status(response.umad()) };
        if status == 0 || status == libc::ENOMEM {
            std::mem::swap(packet, &mut response);
            return Ok(());
        }
        set_errno(status);
    }
    let waited = timeout.saturating_mul(retries);
    explain(FUNCTION, format_args!("timeout after {retries} retries, {waited} ms"));
    Err(libc::ETIMEDOUT)
}

/// Builds and sends a request, and tells the program why it failed.
///
/// # Safety
/// `rpc` and `dport` point to their types; `data` has the request's data.
unsafe fn ask(
    function: &str,
    port: &ibmad_port,
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
) -> Option<Packet> {
    // SAFETY: the caller's promise.
    let (request, to) = unsafe { (&*rpc, &*dport) };
    if !Packet::holds(request) {
        set_errno(libc::EINVAL);
        return None;
    }
    let tells_error = request.mgtclass & 0x0f00 == 1 << 8;
    let (agent, timeout) = (port.agent(request.class()), request.timeout);
    let mut packet = Packet::new();
    // SAFETY: the caller's promise; it was seen that there is room.
    let (timeout, retries) = unsafe {
        if mad_build_pkt(packet.umad(), rpc, dport, rmpp, data) < 0 {
            return None;
        }
        (mad_get_timeout(port, timeout), mad_get_retries(port))
    };
    let result = exchange(port, agent, &mut packet, timeout, retries);
    if tells_error {
        // SAFETY: the caller's promise: requests that say so have that field.
        unsafe { (*rpc).error = result.err().unwrap_or(0) };
    }
    if let Err(why) = result {
        warn(function, format_args!("_do_madrpc failed; dport ({})", name(to)));
        set_errno(why);
        return None;
    }
    Some(packet)
}

/// Puts where the responder refers to into the address. Not where it does so by GID alone.
fn redirect(dport: &mut ib_portid_t, packet: &mut Packet) -> bool {
    // ClassPortInfo:RedirectLID and so on, in the data of a general management datagram.
    let field = |packet: &mut Packet, number| {
        // SAFETY: within the buffer.
        unsafe { mad_get_field(packet.mad(), 64, number) }
    };
    let lid = field(packet, 215);
    if lid == 0 {
        warn("redirect_port", format_args!("GID-based redirection is not supported"));
        return false;
    }
    dport.lid = lid as c_int;
    dport.qp = field(packet, 217);
    dport.qkey = field(packet, 218);
    dport.sl = field(packet, 213) as u8;
    let ib_portid_t { qp, qkey, sl, .. } = *dport;
    trace(
        "redirect_port",
        format_args!("redirected to lid {lid}, qp {qp:#x}, qkey {qkey:#x}, sl {sl:#x}"),
    );
    true
}

/// Sends a request and waits for its response. Returns `into`, which has the response's data then; null where there is
/// none or its status is an error.
///
/// # Safety
/// `rpc` and `dport` point to their types; `payload` and `into` are null or have the request's data.
pub(crate) unsafe extern "C" fn mad_rpc(
    port: *const ibmad_port,
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    payload: *mut c_void,
    into: *mut c_void,
) -> *mut c_void {
    const FUNCTION: &str = "mad_rpc";
    const REDIRECT: u32 = 2;
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_ref() }).filter(|_| !rpc.is_null() && !dport.is_null())
    else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    for _ in 0..=REDIRECTIONS {
        // SAFETY: the caller's promise.
        let asked = unsafe { ask(FUNCTION, port, rpc, dport, ptr::null_mut(), payload) };
        let Some(mut packet) = asked else { return ptr::null_mut() };
        let status = packet.get(number::DR_STATUS);
        // SAFETY: the caller's promise.
        let (request, to) = unsafe { (&mut *rpc, &mut *dport) };
        if status == REDIRECT && redirect(to, &mut packet) {
            continue;
        }
        request.rstatus = status;
        if status != 0 {
            explain(
                FUNCTION,
                format_args!("MAD completed with error status {status:#x}; dport ({})", name(to)),
            );
            set_errno(libc::EIO);
            return ptr::null_mut();
        }
        // SAFETY: the caller's promise; ask() saw that the packet has as much.
        unsafe { copy_data(&mut packet, request, into) };
        return into;
    }
    set_errno(libc::ELOOP);
    ptr::null_mut()
}

/// # Safety
/// `into` is null or has room for the request's data; [`Packet::holds`] was asked.
unsafe fn copy_data(packet: &mut Packet, rpc: &ib_rpc_t, into: *mut c_void) {
    if into.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let from = packet.mad().cast::<u8>().offset(rpc.dataoffs as isize);
        ptr::copy_nonoverlapping(from, into.cast(), rpc.datasz as usize);
    }
}

/// As [`mad_rpc`], with the header of RMPP where `rmpp` is not null. Sets `recsz` of the request.
///
/// # Safety
/// As [`mad_rpc`]; `rmpp` is null or points to its type.
pub(crate) unsafe extern "C" fn mad_rpc_rmpp(
    port: *const ibmad_port,
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
) -> *mut c_void {
    const FUNCTION: &str = "mad_rpc_rmpp";
    trace(FUNCTION, format_args!("rmpp {rmpp:p} data {data:p}"));
    // SAFETY: the caller's promise.
    let Some(port) = (unsafe { port.as_ref() }).filter(|_| !rpc.is_null() && !dport.is_null())
    else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    let asked = unsafe { ask(FUNCTION, port, rpc, dport, rmpp, data) };
    let Some(mut packet) = asked else { return ptr::null_mut() };
    // SAFETY: the caller's promise.
    let (request, to, rmpp) = unsafe { (&mut *rpc, &*dport, rmpp.as_mut()) };
    let status = packet.get(number::STATUS);
    if status != 0 {
        explain(
            FUNCTION,
            format_args!("MAD completed with error status {status:#x}; dport ({})", name(to)),
        );
        set_errno(libc::EIO);
        return ptr::null_mut();
    }
    if let Some(rmpp) = rmpp {
        rmpp.flags = packet.get(number::RMPP_FLAGS) as c_int;
        if rmpp.flags & 3 != 0 && packet.get(number::RMPP_VERSION) != 1 {
            warn(FUNCTION, format_args!("bad rmpp version"));
            return ptr::null_mut();
        }
        rmpp.kind = packet.get(number::RMPP_TYPE) as c_int;
        rmpp.status = packet.get(number::RMPP_STATUS) as c_int;
        trace(FUNCTION, format_args!("rmpp type {} status {}", rmpp.kind, rmpp.status));
        rmpp.d1 = packet.get(number::RMPP_D1);
        rmpp.d2 = packet.get(number::RMPP_D2);
    }
    // SAFETY: the caller's promise.
    unsafe { copy_data(&mut packet, request, data) };
    request.recsz = packet.get(number::ATTR_OFFSET);
    data
}

/// # Safety
/// As [`mad_rpc`].
pub(crate) unsafe extern "C" fn madrpc(
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    payload: *mut c_void,
    into: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mad_rpc(own(), rpc, dport, payload, into) }
}

/// # Safety
/// As [`mad_rpc_rmpp`].
pub(crate) unsafe extern "C" fn madrpc_rmpp(
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mad_rpc_rmpp(own(), rpc, dport, rmpp, data) }
}
