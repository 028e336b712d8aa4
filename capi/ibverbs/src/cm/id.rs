//! Ids: creation, addresses, the end.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use ironverbs::raw as soft;
use soft::QpType;
use soft::cm::{CmId, PortSpace};

use super::address::Address;
use super::objects::{self, Handle, field, given};
use super::{address, channel};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// rdma_create_id(3). Without a channel the id works synchronously, on one of its own.
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a pointer.
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    fail::number("rdma_create_id", || {
        let out = given("id", out)?;
        // SAFETY: the caller's promise.
        let new = unsafe { create(channel, context, ps, None)? };
        // SAFETY: the caller's promise.
        unsafe { out.write(new.c) };
        Ok(0)
    })
}

/// # Safety
/// As for [`objects::find`].
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: Option<QpType>,
) -> Outcome<Handle> {
    let space = PortSpace::from_number(ps.into())
        .ok_or(Failure::Argument { what: "port space", value: ps.into() })?;
    // SAFETY: the caller's promise.
    let shown = unsafe { channel::given_or_own(channel)? };
    let sync = channel.is_null();
    let own = shown.0;
    let soft = shown.1.soft().cloned().ok_or(Failure::Null { what: "channel of the id" });
    let new = soft
        .and_then(|soft| Ok(CmId::new(&soft, space, qp_type)?))
        .and_then(|id| objects::insert(id, shown, context, sync));
    if new.is_err() && sync {
        let _ = channel::destroy(own);
    }
    new
}

/// rdma_destroy_id(3): waits until the events that were read are acknowledged.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_destroy_id", || {
        // SAFETY: the caller's promise.
        destroy(&unsafe { objects::find(id)? }).map(|()| 0)
    })
}

pub(super) fn destroy(handle: &Handle) -> Outcome<()> {
    handle.drop_event();
    handle.id.soft.destroy()?;
    end(handle);
    Ok(())
}

/// Ends an id that the program never saw.
pub(super) fn abandon(handle: &Handle) {
    let _ = handle.id.soft.destroy();
    end(handle);
}

fn end(handle: &Handle) {
    let own = handle.is_sync().then(|| handle.get(field!(channel)));
    if !objects::remove(handle.c) {
        return;
    }
    if let Some(own) = own {
        let _ = channel::destroy(own);
    }
}

/// rdma_bind_addr(3).
///
/// # Safety
/// As for [`objects::find`] and [`address::read`].
pub(crate) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    fail::number("rdma_bind_addr", || {
        // SAFETY: the caller's promise.
        let (handle, addr) = unsafe { (objects::find(id)?, Address::read(addr)?) };
        addr.bind(&handle.id.soft)?;
        handle.refresh()?;
        Ok(0)
    })
}

/// rdma_resolve_addr(3).
///
/// # Safety
/// As for [`objects::find`] and [`address::read`].
pub(crate) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    fail::number("rdma_resolve_addr", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        // SAFETY: the caller's promise.
        let (src, dst) = unsafe { (Address::read_optional(src)?, Address::read(dst)?) };
        dst.resolve(&handle.id.soft, src, milliseconds(timeout_ms))?;
        handle.set(field!(route.addr.dst_addr), dst.storage());
        handle.complete()?;
        Ok(0)
    })
}

/// rdma_resolve_route(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    fail::number("rdma_resolve_route", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.id.soft.resolve_route(milliseconds(timeout_ms))?;
        handle.complete()?;
        Ok(0)
    })
}

/// A timeout; none of negative length.
pub(super) fn milliseconds(ms: c_int) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// rdma_listen(3). A backlog of 0 or less is the most that is possible.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    fail::number("rdma_listen", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.id.soft.listen(u32::try_from(backlog).unwrap_or(0))?;
        handle.refresh()?;
        Ok(0)
    })
}

/// rdma_get_src_port(3), in network order.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    fail::returned("rdma_get_src_port", || unsafe {
        Ok(address::port(&objects::find(id)?.get(field!(route.addr.src_addr))))
    })
    .unwrap_or(0)
}

/// rdma_get_dst_port(3), in network order.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    fail::returned("rdma_get_dst_port", || unsafe {
        Ok(address::port(&objects::find(id)?.get(field!(route.addr.dst_addr))))
    })
    .unwrap_or(0)
}
