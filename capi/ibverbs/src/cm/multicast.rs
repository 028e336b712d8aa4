//! Multicast groups.

use std::ffi::{c_int, c_void};

use ironverbs::raw::cm::McJoin;

use super::objects::{self, given};
use super::{address, objects::Handle};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// rdma_join_multicast(3).
///
/// # Safety
/// As for [`objects::find`] and [`address::read`].
pub(crate) unsafe extern "C" fn join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    fail::number("rdma_join_multicast", || {
        // SAFETY: the caller's promise.
        unsafe { join(&objects::find(id)?, addr, McJoin::Full, context)? };
        Ok(0)
    })
}

/// rdma_join_multicast_ex(3).
///
/// # Safety
/// As for [`join_multicast`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    fail::number("rdma_join_multicast_ex", || {
        // SAFETY: the caller's promise.
        let (handle, attr) = unsafe { (objects::find(id)?, &*given("mc_join_attr", attr)?) };
        let needed = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & !needed != 0 {
            return Err(Failure::Io(std::io::Error::from_raw_os_error(libc::ENOTSUP)));
        }
        if attr.comp_mask != needed {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        let how = match attr.join_flags {
            RDMA_MC_JOIN_FLAG_FULLMEMBER => McJoin::Full,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => McJoin::SendOnly,
            other => return Err(Failure::Argument { what: "join_flags", value: other.into() }),
        };
        // SAFETY: the caller's promise.
        unsafe { join(&handle, attr.addr, how, context)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`address::read`].
unsafe fn join(
    handle: &Handle,
    addr: *const libc::sockaddr,
    how: McJoin,
    context: *mut c_void,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let group = unsafe { address::read(addr)? };
    handle.adopt_qp()?;
    handle.id.soft.join_multicast(group, how, context.expose_provenance())?;
    handle.complete()
}

/// rdma_leave_multicast(3).
///
/// # Safety
/// As for [`join_multicast`].
pub(crate) unsafe extern "C" fn leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    fail::number("rdma_leave_multicast", || {
        // SAFETY: the caller's promise.
        let (handle, group) = unsafe { (objects::find(id)?, address::read(addr)?) };
        // Of a synchronous id nobody else acknowledges that it joined, and this waits for it.
        if handle.is_sync() {
            handle.drop_event();
        }
        handle.id.soft.leave_multicast(group)?;
        Ok(0)
    })
}
