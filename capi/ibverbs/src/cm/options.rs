//! Options of ids.

use std::ffi::{c_int, c_void};

use ironverbs::raw as soft;
use ironverbs_wire::{Gid, Mtu};
use soft::cm::PathRecord;

use super::objects::{self, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// rdma_set_option(3). `RDMA_OPTION_IB_PATH` takes the place of rdma_resolve_route(3). ENOSYS for an option that is not known.
///
/// # Safety
/// As for [`objects::find`]; `value` is null or points to `len` bytes.
pub(crate) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    fail::number("rdma_set_option", || {
        // SAFETY: the caller's promise.
        let soft = unsafe { objects::find(id)? }.id.soft.clone();
        let value = given("option value", value)?.cast_const();
        if (level, name) == (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) {
            // SAFETY: the caller's promise.
            soft.set_path(unsafe { path(value, len)? })?;
            return Ok(0);
        }
        let mut options = soft.options();
        // SAFETY: the caller's promise; the length is checked against the type.
        unsafe {
            match (level, name) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => options.tos = read(value, len)?,
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    options.reuse_addr = read::<c_int>(value, len)? != 0;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    options.af_only = read::<c_int>(value, len)? != 0;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                    options.ack_timeout = Some(read(value, len)?);
                }
                _ => return Err(Failure::Io(std::io::Error::from_raw_os_error(libc::ENOSYS))),
            }
        }
        soft.set_options(options)?;
        Ok(0)
    })
}

/// The path for everything among records of paths (`struct ibv_path_data[]`).
///
/// # Safety
/// `value` is null or points to `len` bytes.
pub(super) unsafe fn path(value: *const c_void, len: usize) -> Outcome<PathRecord> {
    const RECORD: usize = size_of::<ibv_path_data>();
    let wrong = Failure::Argument { what: "optlen", value: len as u64 };
    if value.is_null() || len == 0 || !len.is_multiple_of(RECORD) {
        return Err(wrong);
    }
    let records = value.cast::<ibv_path_data>();
    // SAFETY: the caller's promise.
    let found = (0..len / RECORD).map(|at| unsafe { records.add(at).read_unaligned() });
    let mut for_all = found.filter(|data| data.flags == PATH_FOR_ALL);
    let path = for_all.next().ok_or(wrong)?.path;
    parse(&path).ok_or(Failure::Argument { what: "MTU of a path", value: u64::from(path[54]) })
}

/// A PathRecord (IBA 15.2.5.16): None where there is no such MTU.
fn parse(record: &[u8; 64]) -> Option<PathRecord> {
    let [_, _, _, _, _, _, _, _, rest @ ..] = record;
    let (dgid, rest) = rest.split_first_chunk()?;
    let (sgid, rest) = rest.split_first_chunk()?;
    let (lids, rest) = rest.split_first_chunk()?;
    let [d0, d1, s0, s1] = *lids;
    let [f0, f1, f2, hop_limit, traffic_class, _, k0, k1, _, sl, mtu, rate, life, ..] = rest else {
        return None;
    };
    Some(PathRecord {
        dgid: Gid(*dgid),
        sgid: Gid(*sgid),
        dlid: u16::from_be_bytes([d0, d1]),
        slid: u16::from_be_bytes([s0, s1]),
        flow_label: u32::from_be_bytes([0, *f0, *f1, *f2]) & 0xf_ffff,
        hop_limit: *hop_limit,
        traffic_class: *traffic_class,
        pkey: u16::from_be_bytes([*k0, *k1]),
        sl: sl & 15,
        // Above them are selectors.
        mtu: Mtu::try_from(mtu & 0x3f).ok()?,
        rate: rate & 0x3f,
        packet_life_time: life & 0x3f,
    })
}

/// # Safety
/// `value` points to `len` bytes, and every pattern of bytes is a `T`.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Outcome<T> {
    if len != size_of::<T>() {
        return Err(Failure::Argument { what: "optlen", value: len as u64 });
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
