//! Requests of each class: subnet management, performance, congestion control, the administrator, vendors, boards.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;

use super::abi::*;
use super::clients::mad_send_via;
use super::fields::{mad_get_field, mad_set_array, mad_set_field, mad_set_field64};
use super::rpc::{ibmad_port, mad_rpc, mad_rpc_rmpp, own};
use super::set_errno;
use super::warn::{trace, warn};

/// A subnet management request by LID, or by directed route where the address has no LID.
///
/// # Safety
/// `data` has 64 bytes; the pointers are null or point to their types.
unsafe fn subnet(
    method: c_int,
    data: *mut c_void,
    portid: *mut ib_portid_t,
    (attr_id, attr_mod, timeout): (c_uint, c_uint, c_uint),
    rstatus: *mut c_int,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    let (to, from, rstatus) = unsafe { (portid.as_mut(), port.as_ref(), rstatus.as_mut()) };
    let (Some(to), Some(from)) = (to, from) else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    let path = &to.drpath;
    let is_directed = to.lid <= 0 || path.drslid == PERMISSIVE_LID || path.drdlid == PERMISSIVE_LID;
    let mut rpc = ib_rpc_t {
        mgtclass: if is_directed { SMI_DIRECT } else { SMI }.into(),
        method,
        attr_id,
        attr_mod,
        timeout: timeout as c_int,
        dataoffs: 64,
        datasz: 64,
        mkey: from.mkey.load(Relaxed),
        ..ib_rpc_t::default()
    };
    (to.sl, to.qp) = (0, 0);
    // SAFETY: the caller's promise.
    let answer = unsafe { mad_rpc(port, &raw mut rpc, to, data, data) };
    if let Some(rstatus) = rstatus {
        *rstatus = rpc.rstatus as c_int;
    }
    answer.cast()
}

/// # Safety
/// `data` has 64 bytes; the pointers are null or point to their types. So in the functions below.
pub(crate) unsafe extern "C" fn smp_query_status_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    rstatus: *mut c_int,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { subnet(GET, data, portid, (attr, modifier, timeout), rstatus, port) }
}

/// # Safety
/// As [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn smp_set_status_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    rstatus: *mut c_int,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { subnet(SET, data, portid, (attr, modifier, timeout), rstatus, port) }
}

/// # Safety
/// As [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn smp_query_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { subnet(GET, data, portid, (attr, modifier, timeout), ptr::null_mut(), port) }
}

/// # Safety
/// As [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn smp_set_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { subnet(SET, data, portid, (attr, modifier, timeout), ptr::null_mut(), port) }
}

/// # Safety
/// As [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn smp_query(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { smp_query_via(data, portid, attr, modifier, timeout, own()) }
}

/// # Safety
/// As [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn smp_set(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { smp_set_via(data, portid, attr, modifier, timeout, own()) }
}

/// # Safety
/// `port` is null or from mad_rpc_open_port().
pub(crate) unsafe extern "C" fn smp_mkey_set(port: *mut ibmad_port, mkey: u64) {
    // SAFETY: the caller's promise.
    if let Some(port) = unsafe { port.as_ref() } {
        port.mkey.store(mkey, Relaxed);
    }
}

/// # Safety
/// As [`smp_mkey_set`].
pub(crate) unsafe extern "C" fn smp_mkey_get(port: *const ibmad_port) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { port.as_ref() }.map_or(0, |port| port.mkey.load(Relaxed))
}

/// Fields of PortCounters and its relatives.
const PORT_SELECT: u32 = 121;
const COUNTER_SELECT: u32 = 122;
const COUNTER_SELECT2: u32 = 132;
/// Of PortCountersExtended.
const EXTENDED_SELECT2: u32 = 643;
const PORT_COUNTERS_EXTENDED: c_uint = 0x1d;

/// # Safety
/// `data` has 192 bytes; the rest as in [`smp_query_status_via`].
unsafe fn performance(
    function: &str,
    method: c_int,
    data: *mut c_void,
    dest: *mut ib_portid_t,
    attr_id: c_uint,
    timeout: c_uint,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    let Some(to) = (unsafe { dest.as_mut() }) else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    if to.lid == -1 {
        warn(function, format_args!("only lid routed is supported"));
        return ptr::null_mut();
    }
    let mut rpc = ib_rpc_t {
        mgtclass: PERFORMANCE.into(),
        method,
        attr_id,
        timeout: timeout as c_int,
        dataoffs: 64,
        datasz: 192,
        ..ib_rpc_t::default()
    };
    if to.qp == 0 {
        to.qp = 1;
    }
    if to.qkey == 0 {
        to.qkey = QP1_QKEY;
    }
    // SAFETY: the caller's promise.
    unsafe { mad_rpc(port, &raw mut rpc, to, data, data) }.cast()
}

/// # Safety
/// `data` has 256 bytes; the rest as in [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn pma_query_via(
    data: *mut c_void,
    dest: *mut ib_portid_t,
    select: c_int,
    timeout: c_uint,
    attr: c_uint,
    port: *const ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        mad_set_field(data, 0, PORT_SELECT, select as u32);
        performance("pma_query_via", GET, data, dest, attr, timeout, port)
    }
}

/// `mask` has CounterSelect, and CounterSelect2 in its upper half; 0 stands for all.
///
/// # Safety
/// As [`pma_query_via`].
pub(crate) unsafe extern "C" fn performance_reset_via(
    data: *mut c_void,
    dest: *mut ib_portid_t,
    select: c_int,
    mask: c_uint,
    timeout: c_uint,
    attr: c_uint,
    port: *const ibmad_port,
) -> *mut u8 {
    if data.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let mask = if mask == 0 { !0 } else { mask };
    let is_extended = attr == PORT_COUNTERS_EXTENDED;
    let second = if is_extended { EXTENDED_SELECT2 } else { COUNTER_SELECT2 };
    // SAFETY: the caller's promise.
    unsafe {
        ptr::write_bytes(data.cast::<u8>(), 0, MAD_SIZE);
        mad_set_field(data, 0, PORT_SELECT, select as u32);
        mad_set_field(data, 0, COUNTER_SELECT, mask & 0xffff);
        mad_set_field(data, 0, second, mask >> 16);
        performance("performance_reset_via", SET, data, dest, attr, timeout, port)
    }
}

/// # Safety
/// `payload` and `into` have 192 bytes, for CongestionLog 224; the rest as in [`smp_query_status_via`].
unsafe fn congestion(
    method: c_int,
    (payload, into): (*mut c_void, *mut c_void),
    portid: *mut ib_portid_t,
    (attr_id, attr_mod, timeout): (c_uint, c_uint, c_uint),
    rstatus: *mut c_int,
    port: *const ibmad_port,
    cckey: u64,
) -> *mut c_void {
    const LOG: c_uint = 0x13;
    // SAFETY: the caller's promise.
    let (to, rstatus) = unsafe { (portid.as_mut(), rstatus.as_mut()) };
    let Some(to) = to else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    let (dataoffs, datasz) = if attr_id == LOG { (32, 224) } else { (64, 192) };
    let rpc = ib_rpc_t {
        mgtclass: CONGESTION.into(),
        method,
        attr_id,
        attr_mod,
        timeout: timeout as c_int,
        dataoffs,
        datasz,
        ..ib_rpc_t::default()
    };
    let mut rpc = ib_rpc_cc_t { rpc, cckey };
    to.of_qp1();
    // SAFETY: the caller's promise; this class's requests have a key behind them.
    let answer = unsafe { mad_rpc(port, (&raw mut rpc).cast(), to, payload, into) };
    if let Some(rstatus) = rstatus {
        *rstatus = rpc.rpc.rstatus as c_int;
    }
    answer
}

/// # Safety
/// `data` has 192 bytes, for CongestionLog 224; the rest as in [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn cc_query_status_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    rstatus: *mut c_int,
    port: *const ibmad_port,
    cckey: u64,
) -> *mut c_void {
    let what = (attr, modifier, timeout);
    // SAFETY: the caller's promise.
    unsafe { congestion(GET, (data, data), portid, what, rstatus, port, cckey) }
}

/// # Safety
/// As [`cc_query_status_via`], of `payload` and `into`.
pub(crate) unsafe extern "C" fn cc_config_status_via(
    payload: *mut c_void,
    into: *mut c_void,
    portid: *mut ib_portid_t,
    attr: c_uint,
    modifier: c_uint,
    timeout: c_uint,
    rstatus: *mut c_int,
    port: *const ibmad_port,
    cckey: u64,
) -> *mut c_void {
    let what = (attr, modifier, timeout);
    // SAFETY: the caller's promise.
    unsafe { congestion(SET, (payload, into), portid, what, rstatus, port, cckey) }
}

/// Asks the subnet administrator at `portid`; `recsz` of the call becomes the length of a record.
///
/// # Safety
/// `data` has 200 bytes; the rest as in [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn sa_rpc_call(
    port: *const ibmad_port,
    data: *mut c_void,
    portid: *mut ib_portid_t,
    call: *mut ib_sa_call_t,
    timeout: c_uint,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    let (Some(to), Some(call)) = (unsafe { (portid.as_mut(), call.as_mut()) }) else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    trace(
        "sa_rpc_call",
        format_args!(
            "attr {:#x} mod {:#x} route {}",
            call.attrid,
            call.attrmod,
            super::portid::name(to)
        ),
    );
    if to.lid <= 0 {
        warn("sa_rpc_call", format_args!("only lid routes are supported"));
        return ptr::null_mut();
    }
    let mut rpc = ib_rpc_t {
        mgtclass: SA.into(),
        method: call.method as c_int,
        attr_id: call.attrid,
        attr_mod: call.attrmod,
        mask: call.mask,
        timeout: timeout as c_int,
        dataoffs: 56,
        datasz: 200,
        trid: call.trid,
        ..ib_rpc_t::default()
    };
    to.of_qp1();
    // SAFETY: the caller's promise.
    let answer = unsafe { mad_rpc_rmpp(port, &raw mut rpc, to, ptr::null_mut(), data) };
    call.recsz = rpc.recsz;
    answer.cast()
}

/// # Safety
/// As [`sa_rpc_call`].
pub(crate) unsafe extern "C" fn sa_call(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    call: *mut ib_sa_call_t,
    timeout: c_uint,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { sa_rpc_call(own(), data, portid, call, timeout) }
}

fn get_of(attrid: c_uint, mask: u64) -> ib_sa_call_t {
    let rmpp = ib_rmpp_hdr_t { kind: 0, flags: 0, status: 0, d1: 0, d2: 0 };
    ib_sa_call_t { attrid, attrmod: 0, mask, method: GET as c_uint, trid: 0, recsz: 0, rmpp }
}

/// The LID by which `destgid` is reached from `srcgid`, -1 where it is not known; `buf` gets the PathRecord.
///
/// # Safety
/// The GIDs have 16 bytes, `buf` 200.
pub(crate) unsafe extern "C" fn ib_path_query_via(
    port: *const ibmad_port,
    srcgid: *mut u8,
    destgid: *mut u8,
    sm_id: *mut ib_portid_t,
    buf: *mut c_void,
) -> c_int {
    const PATH_RECORD: c_uint = 0x35;
    const DGID: u32 = 161;
    const SGID: u32 = 162;
    const DLID: u32 = 163;
    // By DGID and SGID (IBA 15.2.5.16).
    let mut call = get_of(PATH_RECORD, 1 << 2 | 1 << 3);
    // SAFETY: the caller's promise.
    unsafe {
        if buf.is_null() {
            return -1;
        }
        ptr::write_bytes(buf.cast::<u8>(), 0, 64);
        mad_set_array(buf, 0, DGID, destgid.cast());
        mad_set_array(buf, 0, SGID, srcgid.cast());
        let answer = sa_rpc_call(port, buf, sm_id, &raw mut call, 0);
        if answer.is_null() {
            warn("ib_path_query_via", format_args!("sa call path_query failed"));
            return -1;
        }
        mad_get_field(answer.cast(), 0, DLID) as c_int
    }
}

/// # Safety
/// As [`ib_path_query_via`].
pub(crate) unsafe extern "C" fn ib_path_query(
    srcgid: *mut u8,
    destgid: *mut u8,
    sm_id: *mut ib_portid_t,
    buf: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ib_path_query_via(own(), srcgid, destgid, sm_id, buf) }
}

/// Puts the NodeRecord of a port's GUID into `buf`: 0, or -1.
///
/// # Safety
/// `buf` has 200 bytes.
pub(crate) unsafe extern "C" fn ib_node_query_via(
    port: *const ibmad_port,
    guid: u64,
    sm_id: *mut ib_portid_t,
    buf: *mut c_void,
) -> c_int {
    const NODE_RECORD: c_uint = 0x11;
    const PORT_GUID: u32 = 590;
    let mut call = get_of(NODE_RECORD, 1 << 8);
    // SAFETY: the caller's promise.
    unsafe {
        if buf.is_null() {
            return -1;
        }
        ptr::write_bytes(buf.cast::<u8>(), 0, 108);
        mad_set_field64(buf, 0, PORT_GUID, guid);
        if sa_rpc_call(port, buf, sm_id, &raw mut call, 0).is_null() {
            warn("ib_node_query_via", format_args!("sa call node_query failed"));
            return -1;
        }
    }
    0
}

/// Whether a request is answered.
fn is_answered(method: c_uint) -> bool {
    matches!(method as c_int, GET | SET)
}

/// # Safety
/// `data` has the 232 bytes of a vendor's datagram without an OUI, the 216 of one with; the rest as in
/// [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn ib_vendor_call_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    call: *mut ib_vendor_call_t,
    port: *mut ibmad_port,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    let (Some(to), Some(call)) = (unsafe { (portid.as_mut(), call.as_ref()) }) else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    let class = call.mgmt_class as u8;
    let (dataoffs, datasz) = if is_vendor_range1(class) {
        (24, 232)
    } else if is_vendor_range2(class) {
        (40, 216)
    } else {
        return ptr::null_mut();
    };
    if to.lid <= 0 {
        return ptr::null_mut();
    }
    let is_answered = is_answered(call.method);
    let mut rpc = ib_rpc_t {
        mgtclass: class.into(),
        method: call.method as c_int,
        attr_id: call.attrid,
        attr_mod: call.attrmod,
        timeout: if is_answered { call.timeout as c_int } else { 0 },
        dataoffs,
        datasz,
        oui: if is_vendor_range2(class) { call.oui } else { 0 },
        ..ib_rpc_t::default()
    };
    to.of_qp1();
    // SAFETY: the caller's promise.
    unsafe {
        if is_answered {
            return mad_rpc_rmpp(port, &raw mut rpc, to, ptr::null_mut(), data).cast();
        }
        let sent = mad_send_via(&raw mut rpc, to, ptr::null_mut(), data, port);
        if sent < 0 { ptr::null_mut() } else { data.cast() }
    }
}

/// # Safety
/// As [`ib_vendor_call_via`].
pub(crate) unsafe extern "C" fn ib_vendor_call(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    call: *mut ib_vendor_call_t,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { ib_vendor_call_via(data, portid, call, own()) }
}

/// # Safety
/// `data` has 192 bytes; the rest as in [`smp_query_status_via`].
pub(crate) unsafe extern "C" fn bm_call_via(
    data: *mut c_void,
    portid: *mut ib_portid_t,
    call: *mut ib_bm_call_t,
    port: *mut ibmad_port,
) -> *mut u8 {
    /// The key, and bytes between it and the data.
    const KEY: usize = 40;
    const DATA: usize = 192;
    // SAFETY: the caller's promise.
    let (Some(to), Some(call)) = (unsafe { (portid.as_mut(), call.as_ref()) }) else {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    };
    if to.lid <= 0 {
        warn("bm_call_via", format_args!("only lid routes are supported"));
        return ptr::null_mut();
    }
    if data.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let is_answered = is_answered(call.method);
    let mut rpc = ib_rpc_t {
        mgtclass: BOARD.into(),
        method: call.method as c_int,
        attr_id: call.attrid,
        attr_mod: call.attrmod,
        timeout: if is_answered { call.timeout as c_int } else { 0 },
        dataoffs: 24,
        datasz: (KEY + DATA) as c_int,
        ..ib_rpc_t::default()
    };
    to.of_qp1();
    let mut whole = [0_u8; KEY + DATA];
    let (key, rest) = whole.split_at_mut(KEY);
    if let Some(key) = key.first_chunk_mut() {
        *key = call.bkey.to_be_bytes();
    }
    // SAFETY: the caller's promise.
    unsafe {
        ptr::copy_nonoverlapping(data.cast(), rest.as_mut_ptr(), DATA);
        let whole = whole.as_mut_ptr();
        if !is_answered {
            let sent = mad_send_via(&raw mut rpc, to, ptr::null_mut(), whole.cast(), port);
            return if sent < 0 { ptr::null_mut() } else { data.cast() };
        }
        if mad_rpc(port, &raw mut rpc, to, whole.cast(), whole.cast()).is_null() {
            return ptr::null_mut();
        }
        ptr::copy_nonoverlapping(whole.add(KEY), data.cast(), DATA);
    }
    data.cast()
}
