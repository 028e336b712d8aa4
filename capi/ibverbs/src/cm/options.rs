//! Options of ids.

use std::ffi::{c_int, c_void};

use super::objects::{self, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// rdma_set_option(3). `RDMA_OPTION_IB_PATH` names paths of InfiniBand, which there are none of
/// here: ENOSYS, as for any option that is not known.
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

/// # Safety
/// `value` points to `len` bytes, and every pattern of bytes is a `T`.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Outcome<T> {
    if len != size_of::<T>() {
        return Err(Failure::Argument { what: "optlen", value: len as u64 });
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}
