//! Requests as bytes.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use super::abi::*;
use super::fields::{mad_set_array, mad_set_field, mad_set_field64};
use super::warn::warn;
use crate::umad::{ib_user_mad_t, set_addr};

/// Numbers of the fields that are written and read here (enum MAD_FIELDS).
pub(super) mod number {
    pub(crate) const METHOD: u32 = 3;
    pub(crate) const RESPONSE: u32 = 4;
    pub(crate) const CLASS_VERSION: u32 = 5;
    pub(crate) const CLASS: u32 = 6;
    pub(crate) const BASE_VERSION: u32 = 7;
    pub(crate) const STATUS: u32 = 8;
    pub(crate) const HOP_COUNT: u32 = 9;
    pub(crate) const HOP_POINTER: u32 = 10;
    pub(crate) const DR_STATUS: u32 = 11;
    pub(crate) const DIRECTION: u32 = 12;
    pub(crate) const TRID: u32 = 13;
    pub(crate) const ATTR_ID: u32 = 14;
    pub(crate) const ATTR_MOD: u32 = 15;
    pub(crate) const MKEY: u32 = 16;
    pub(crate) const DR_DLID: u32 = 17;
    pub(crate) const DR_SLID: u32 = 18;
    pub(crate) const ATTR_OFFSET: u32 = 20;
    pub(crate) const COMPONENT_MASK: u32 = 21;
    pub(crate) const PATH: u32 = 25;
    pub(crate) const RETURN_PATH: u32 = 26;
    pub(crate) const RMPP_VERSION: u32 = 147;
    pub(crate) const RMPP_TYPE: u32 = 148;
    pub(crate) const RMPP_RESPONSE_TIME: u32 = 149;
    pub(crate) const RMPP_FLAGS: u32 = 150;
    pub(crate) const RMPP_STATUS: u32 = 151;
    pub(crate) const RMPP_D1: u32 = 152;
    pub(crate) const RMPP_D2: u32 = 154;
    pub(crate) const OUI: u32 = 192;
}

/// A transaction number that this process has not used yet: 32 bits, as the upper half is the device's.
pub(crate) extern "C" fn mad_trid() -> u64 {
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u32);
        AtomicU32::new(now.wrapping_mul(std::process::id() | 1))
    });
    match NEXT.fetch_add(1, Relaxed) {
        0 => mad_trid(),
        number => number.into(),
    }
}

/// Writes header and data of a request. Returns where the datagram ends, null where it cannot be.
///
/// # Safety
/// `buf` has 256 bytes and room for the data where the request has it; `rpc` and `data` are as the class has them.
pub(crate) unsafe extern "C" fn mad_encode(
    buf: *mut c_void,
    rpc: *mut ib_rpc_t,
    drpath: *mut ib_dr_path_t,
    data: *mut c_void,
) -> *mut c_void {
    use number::*;
    if buf.is_null() || rpc.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let (request, drpath) = unsafe { (&mut *rpc, drpath.as_ref()) };
    let class = request.class();
    let is_response = request.method & super::abi::RESPONSE != 0;
    let set = |field, value| {
        // SAFETY: the caller's promise: fields of the header.
        unsafe { mad_set_field(buf, 0, field, value) };
    };
    let set64 = |field, value| {
        // SAFETY: the caller's promise.
        unsafe { mad_set_field64(buf, 0, field, value) };
    };
    set(METHOD, request.method as u32);
    set(RESPONSE, is_response.into());
    set(CLASS_VERSION, if matches!(class, SA | CONGESTION) { 2 } else { 1 });
    set(CLASS, class.into());
    set(BASE_VERSION, 1);
    if class == SMI_DIRECT {
        let Some(path) = drpath else {
            warn("mad_encode", format_args!("encoding dr mad without drpath (null)"));
            super::set_errno(libc::EINVAL);
            return ptr::null_mut();
        };
        if path.cnt >= HOPS_MAX as c_int {
            warn("mad_encode", format_args!("dr path with hop count {}", path.cnt));
            super::set_errno(libc::EINVAL);
            return ptr::null_mut();
        }
        set(HOP_COUNT, path.cnt as u32);
        // A response comes back from behind the last hop.
        set(HOP_POINTER, if is_response { path.cnt as u32 + 1 } else { 0 });
        set(DR_STATUS, request.rstatus);
        set(DIRECTION, is_response.into());
    } else {
        set(STATUS, request.rstatus);
    }
    if request.trid == 0 {
        request.trid = mad_trid();
    }
    set64(TRID, request.trid);
    set(ATTR_ID, request.attr_id);
    set(ATTR_MOD, request.attr_mod);
    let key = match class {
        // SAFETY: requests of this class are ib_rpc_cc_t.
        CONGESTION => unsafe { (*rpc.cast::<ib_rpc_cc_t>()).cckey },
        _ => request.mkey,
    };
    set64(MKEY, key);
    if let Some(path) = drpath.filter(|_| class == SMI_DIRECT) {
        let lid = |lid: u16| u32::from(if lid == 0 { PERMISSIVE_LID } else { lid });
        set(DR_DLID, lid(path.drdlid));
        set(DR_SLID, lid(path.drslid));
        let mut hops = path.p;
        let way = if is_response { RETURN_PATH } else { PATH };
        // SAFETY: the caller's promise.
        unsafe { mad_set_array(buf, 0, way, hops.as_mut_ptr().cast()) };
    }
    if class == SA {
        set64(COMPONENT_MASK, request.mask);
    }
    if let (false, Ok(size)) = (data.is_null(), usize::try_from(request.datasz)) {
        // SAFETY: the caller's promise.
        unsafe {
            ptr::copy(data.cast::<u8>(), buf.cast::<u8>().offset(request.dataoffs as isize), size)
        };
    }
    if is_vendor_range2(class) {
        set(OUI, request.oui);
    }
    // SAFETY: the caller's promise.
    unsafe { buf.cast::<u8>().add(MAD_SIZE).cast() }
}

/// Writes address and datagram of a request for umad_send(3). Returns the datagram's length.
///
/// # Safety
/// `umad` has room for a header and a datagram with the request's data; the rest is as [`mad_encode`] takes it.
pub(crate) unsafe extern "C" fn mad_build_pkt(
    umad: *mut c_void,
    rpc: *mut ib_rpc_t,
    dport: *mut ib_portid_t,
    rmpp: *mut ib_rmpp_hdr_t,
    data: *mut c_void,
) -> c_int {
    use number::*;
    if umad.is_null() || rpc.is_null() || dport.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let (class, port, rmpp) = unsafe { ((*rpc).class(), &mut *dport, rmpp.as_ref()) };
    let is_subnet = matches!(class, SMI | SMI_DIRECT);
    // SAFETY: the caller's promise.
    unsafe {
        let header = umad.cast::<ib_user_mad_t>();
        match class {
            SMI => set_addr(umad, port.lid, port.qp as c_int, 0, 0),
            // A route whose first part goes by LID.
            SMI_DIRECT if port.drpath.drslid != PERMISSIVE_LID && port.lid > 0 => {
                set_addr(umad, port.lid, 0, 0, 0)
            }
            SMI_DIRECT => set_addr(umad, PERMISSIVE_LID.into(), 0, 0, 0),
            _ => set_addr(umad, port.lid, port.qp as c_int, port.sl.into(), port.qkey as c_int),
        };
        let addr = &mut (*header).addr;
        addr.grh_present = u8::from(port.grh_present != 0 && !is_subnet);
        if addr.grh_present != 0 {
            addr.gid = port.gid;
            (addr.hop_limit, addr.traffic_class, addr.flow_label) = (0xff, 0, 0);
        }
        addr.pkey_index = if is_subnet { 0 } else { port.pkey_idx as u16 };
        let mad: *mut c_void = header.add(1).cast();
        let path = if class == SMI_DIRECT { &raw mut port.drpath } else { ptr::null_mut() };
        if mad_encode(mad, rpc, path, data).is_null() {
            return -1;
        }
        if let Some(rmpp) = rmpp.filter(|_| !is_subnet) {
            mad_set_field(mad, 0, RMPP_VERSION, 1);
            mad_set_field(mad, 0, RMPP_TYPE, rmpp.kind as u32);
            mad_set_field(mad, 0, RMPP_RESPONSE_TIME, 0x3f);
            mad_set_field(mad, 0, RMPP_FLAGS, rmpp.flags as u32 & 7);
            mad_set_field(mad, 0, RMPP_STATUS, rmpp.status as u32);
            mad_set_field(mad, 0, RMPP_D1, rmpp.d1);
            mad_set_field(mad, 0, RMPP_D2, rmpp.d2);
        }
    }
    MAD_SIZE as c_int
}
