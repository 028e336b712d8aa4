//! From what people write to addresses of ports.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::Ipv6Addr;
use std::ptr;

use super::abi::*;
use super::fields::{mad_get_field, mad_get_field64};
use super::portid::str2drpath;
use super::query::{ib_path_query_via, smp_query_via};
use super::rpc::{ibmad_port, own};
use super::set_errno;
use super::warn::warn;

const NODE_INFO: u32 = 0x11;
const PORT_INFO: u32 = 0x15;

/// Fields of PortInfo.
const GID_PREFIX: u32 = 28;
const LID: u32 = 29;
const SM_LID: u32 = 30;
const SM_SL: u32 = 47;
/// Fields of NodeInfo.
const PORT_GUID: u32 = 81;
const LOCAL_PORT: u32 = 85;
/// A directed route from end to end.
const ANY: c_int = PERMISSIVE_LID as c_int;
/// PathRecord:SL.
const PATH_SL: u32 = 166;

/// The unicast LIDs (IBA 4.1.3).
fn is_unicast(lid: i64) -> bool {
    (1..0xc000).contains(&lid)
}

/// PortInfo or NodeInfo of the port by which this process asks.
fn of_own(attr: u32, timeout: c_int, port: *const ibmad_port) -> Option<[u8; 64]> {
    let mut own = ib_portid_t::SELF;
    let mut data = [0; 64];
    let into = data.as_mut_ptr().cast();
    // SAFETY: the attribute has 64 bytes; `port` is what the functions below were promised.
    let answer = unsafe { smp_query_via(into, &raw mut own, attr, 0, timeout as u32, port) };
    (!answer.is_null()).then_some(data)
}

fn get(data: &mut [u8; 64], field: u32) -> u32 {
    // SAFETY: the fields above are within 64 bytes.
    unsafe { mad_get_field(data.as_mut_ptr().cast(), 0, field) }
}

fn get64(data: &mut [u8; 64], field: u32) -> u64 {
    // SAFETY: as above.
    unsafe { mad_get_field64(data.as_mut_ptr().cast(), 0, field) }
}

/// The address of the subnet manager: 0, or -1.
///
/// # Safety
/// The pointers are null or point to their types; so in the functions below.
pub(crate) unsafe extern "C" fn ib_resolve_smlid_via(
    sm_id: *mut ib_portid_t,
    timeout: c_int,
    port: *const ibmad_port,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(sm) = (unsafe { sm_id.as_mut() }) else { return -1 };
    *sm = ib_portid_t::SELF;
    let Some(mut info) = of_own(PORT_INFO, timeout, port) else { return -1 };
    let lid = get(&mut info, SM_LID);
    if !is_unicast(lid.into()) {
        set_errno(libc::ENXIO);
        return -1;
    }
    sm.sl = get(&mut info, SM_SL) as u8;
    sm.set(lid as c_int, 0, 0);
    0
}

/// # Safety
/// As [`ib_resolve_smlid_via`].
pub(crate) unsafe extern "C" fn ib_resolve_smlid(sm_id: *mut ib_portid_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ib_resolve_smlid_via(sm_id, timeout, own()) }
}

/// Address, number and GID of the port by which this process asks: 0, or -1.
///
/// # Safety
/// As [`ib_resolve_smlid_via`]; `gid` is null or has 16 bytes.
pub(crate) unsafe extern "C" fn ib_resolve_self_via(
    portid: *mut ib_portid_t,
    portnum: *mut c_int,
    gid: *mut [u8; 16],
    port: *const ibmad_port,
) -> c_int {
    let Some(mut node) = of_own(NODE_INFO, 0, port) else { return -1 };
    let Some(mut info) = of_own(PORT_INFO, 0, port) else { return -1 };
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(portid) = portid.as_mut() {
            *portid = ib_portid_t { lid: get(&mut info, LID) as c_int, ..ib_portid_t::SELF };
        }
        if let Some(portnum) = portnum.as_mut() {
            *portnum = get(&mut node, LOCAL_PORT) as c_int;
        }
        if let Some(gid) = gid.as_mut() {
            *gid = joined(get64(&mut info, GID_PREFIX), get64(&mut node, PORT_GUID));
        }
    }
    0
}

fn joined(prefix: u64, guid: u64) -> [u8; 16] {
    (u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes()
}

/// # Safety
/// As [`ib_resolve_self_via`].
pub(crate) unsafe extern "C" fn ib_resolve_self(
    portid: *mut ib_portid_t,
    portnum: *mut c_int,
    gid: *mut [u8; 16],
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ib_resolve_self_via(portid, portnum, gid, own()) }
}

/// The address of a port by its GUID, on this subnet: 0, or -1.
///
/// # Safety
/// As [`ib_resolve_smlid_via`].
pub(crate) unsafe extern "C" fn ib_resolve_guid_via(
    portid: *mut ib_portid_t,
    guid: *mut u64,
    sm_id: *mut ib_portid_t,
    timeout: c_int,
    port: *const ibmad_port,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(to), Some(guid)) = (unsafe { (portid.as_mut(), guid.as_ref()) }) else { return -1 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sm = ib_portid_t::SELF;
        let Some(sm_id) = administrator(sm_id, &mut sm, timeout, port) else { return -1 };
        let mut from = [0; 16];
        if ib_resolve_self_via(ptr::null_mut(), ptr::null_mut(), &raw mut from, port) < 0 {
            return -1;
        }
        let mut gid = from;
        let (_, last) = gid.split_at_mut(8);
        last.copy_from_slice(&guid.to_be_bytes());
        by_path(to, from, gid, sm_id, port)
    }
}

/// The address of a port by its GID: 0, or -1.
///
/// # Safety
/// As [`ib_resolve_smlid_via`]; `gid` has 16 bytes.
pub(crate) unsafe extern "C" fn ib_resolve_gid_via(
    portid: *mut ib_portid_t,
    gid: *mut [u8; 16],
    sm_id: *mut ib_portid_t,
    timeout: c_int,
    port: *const ibmad_port,
) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(to), Some(gid)) = (unsafe { (portid.as_mut(), gid.as_ref()) }) else { return -1 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sm = ib_portid_t::SELF;
        let Some(sm_id) = administrator(sm_id, &mut sm, timeout, port) else { return -1 };
        // From itself: all that is asked is its LID.
        by_path(to, *gid, *gid, sm_id, port)
    }
}

/// The one that the caller names, or the one of this subnet.
///
/// # Safety
/// As [`ib_resolve_smlid_via`].
unsafe fn administrator(
    named: *mut ib_portid_t,
    own: &mut ib_portid_t,
    timeout: c_int,
    port: *const ibmad_port,
) -> Option<&mut ib_portid_t> {
    // SAFETY: the caller's promise.
    let sm = unsafe { named.as_mut() }.unwrap_or(own);
    // SAFETY: the caller's promise.
    (sm.lid != 0 || unsafe { ib_resolve_smlid_via(sm, timeout, port) } == 0).then_some(sm)
}

/// # Safety
/// As [`ib_resolve_smlid_via`].
unsafe fn by_path(
    to: &mut ib_portid_t,
    mut from: [u8; 16],
    mut gid: [u8; 16],
    sm_id: &mut ib_portid_t,
    port: *const ibmad_port,
) -> c_int {
    let mut data = [0_u8; 256];
    let buf = data.as_mut_ptr().cast::<c_void>();
    // SAFETY: the caller's promise; the buffers have those sizes.
    unsafe {
        to.lid = ib_path_query_via(port, from.as_mut_ptr(), gid.as_mut_ptr(), sm_id, buf);
        if to.lid < 0 {
            return -1;
        }
        to.sl = mad_get_field(buf, 0, PATH_SL) as u8;
    }
    0
}

/// The address that a string names, in one of the ways of enum MAD_DEST: 0, or -1.
///
/// # Safety
/// As [`ib_resolve_smlid_via`]; `text` is null or a string.
pub(crate) unsafe extern "C" fn ib_resolve_portid_str_via(
    portid: *mut ib_portid_t,
    text: *mut c_char,
    way: c_int,
    sm_id: *mut ib_portid_t,
    port: *const ibmad_port,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(to) = (unsafe { portid.as_mut() }).filter(|_| !text.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the caller's promise.
    let found = unsafe {
        match way {
            0 => by_lid(to, text).map(|_| 0),
            1 => Some(str2drpath(&raw mut to.drpath, text, ANY, ANY))
                .filter(|hops| *hops >= 0)
                .map(|_| 0),
            2 => {
                let mut guid = libc::strtoull(text, ptr::null_mut(), 0);
                Some(guid)
                    .filter(|guid| *guid != 0)
                    .map(|_| ib_resolve_guid_via(to, &raw mut guid, sm_id, 0, port))
            }
            3 => by_both(to, text, port),
            4 => CStr::from_ptr(text)
                .to_str()
                .ok()
                .and_then(|text| text.parse::<Ipv6Addr>().ok())
                .map(|gid| ib_resolve_gid_via(to, &mut gid.octets(), sm_id, 0, port)),
            _ => {
                warn("ib_resolve_portid_str_via", format_args!("bad dest_type {way}"));
                None
            }
        }
    };
    found.unwrap_or_else(|| {
        set_errno(libc::EINVAL);
        -1
    })
}

/// Returns what stands behind the number.
///
/// # Safety
/// `text` is a string.
unsafe fn by_lid(to: &mut ib_portid_t, text: *mut c_char) -> Option<*mut c_char> {
    let mut rest = text;
    // SAFETY: the caller's promise.
    let lid = unsafe { libc::strtol(text, &raw mut rest, 0) };
    if !is_unicast(lid) {
        return None;
    }
    to.set(lid as c_int, 0, 0);
    Some(rest)
}

/// A LID and the directed route from there.
///
/// # Safety
/// `text` is a string; `port` is null or from mad_rpc_open_port().
unsafe fn by_both(
    to: &mut ib_portid_t,
    text: *mut c_char,
    port: *const ibmad_port,
) -> Option<c_int> {
    let mut from = ib_portid_t::SELF;
    // SAFETY: the caller's promise; what is behind a number is at most the string's end.
    unsafe {
        let rest = by_lid(to, text)?;
        let rest = if rest.read() == 0 { rest } else { rest.add(1) };
        if ib_resolve_self_via(&raw mut from, ptr::null_mut(), ptr::null_mut(), port) < 0 {
            return Some(-1);
        }
        let hops = str2drpath(&raw mut to.drpath, rest, from.lid, ANY);
        (hops >= 0).then_some(0)
    }
}

/// # Safety
/// As [`ib_resolve_portid_str_via`].
pub(crate) unsafe extern "C" fn ib_resolve_portid_str(
    portid: *mut ib_portid_t,
    text: *mut c_char,
    way: c_int,
    sm_id: *mut ib_portid_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { ib_resolve_portid_str_via(portid, text, way, sm_id, own()) }
}
