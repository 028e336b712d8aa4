//! Endpoints: ids that work synchronously, made from what [`super::getaddrinfo`] found.

use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use ironverbs::raw as soft;
use soft::cm::CmEventKind;

use super::address::Address;
use super::objects::{self, Handle, Template, field, given};
use super::{event, id, options, qp, srq};
use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome};

/// How long an endpoint waits for each of address and route.
const PATIENCE: Duration = Duration::from_secs(2);

/// rdma_create_ep(3).
///
/// # Safety
/// As for [`objects::find`], for the PD and every object in `init`, which is null or points to the
/// structure; `out` is null or has room for a pointer, `res` null or a result of
/// [`super::getaddrinfo`].
pub(crate) unsafe extern "C" fn create_ep(
    out: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    fail::number("rdma_create_ep", || {
        // SAFETY: the caller's promise.
        let (out, res) = unsafe { (given("id", out)?, &*given("rdma_addrinfo", res)?) };
        let ps = u32::try_from(res.ai_port_space)
            .map_err(|_| Failure::Argument { what: "ai_port_space", value: u64::MAX })?;
        let qp_type = match res.ai_qp_type {
            0 => None,
            other => Some(convert::qp_type(other as u32)?),
        };
        // SAFETY: no channel is given.
        let handle = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type)? };
        // SAFETY: the caller's promise.
        if let Err(refused) = unsafe { prepare(&handle, res, pd, init) } {
            let _ = id::destroy(&handle);
            return Err(refused);
        }
        // SAFETY: the caller's promise.
        unsafe { out.write(handle.c) };
        Ok(0)
    })
}

/// # Safety
/// As for [`create_ep`].
unsafe fn prepare(
    handle: &Handle,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let src = unsafe { Address::read_optional(res.ai_src_addr)? };
    // SAFETY: the caller's promise.
    let mut init = unsafe { init.as_mut() };
    if let Some(init) = &mut init
        && res.ai_qp_type != 0
    {
        init.qp_type = res.ai_qp_type as u32;
    }
    if res.ai_flags & RAI_PASSIVE != 0 {
        src.ok_or(Failure::Null { what: "ai_src_addr" })?.bind(&handle.id.soft)?;
        handle.refresh()?;
        if let Some(init) = init {
            handle.id.parts.lock().template = Some(Template { pd, init: *init });
        }
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let dst = unsafe { Address::read(res.ai_dst_addr)? };
    dst.resolve(&handle.id.soft, src, PATIENCE)?;
    handle.set(field!(route.addr.dst_addr), dst.storage());
    handle.complete()?;
    if res.ai_route_len > 0 {
        // SAFETY: the caller's promise.
        let path = unsafe { options::path(res.ai_route, res.ai_route_len)? };
        handle.id.soft.set_path(path)?;
    } else {
        handle.id.soft.resolve_route(PATIENCE)?;
    }
    handle.complete()?;
    if let Some(init) = init {
        // SAFETY: the caller's promise.
        unsafe { qp::create(handle, pd, init)? };
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        // SAFETY: the caller's promise.
        let data =
            unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        handle.id.parts.lock().preface = data.to_vec();
    }
    Ok(())
}

/// rdma_destroy_ep(3): the id, its queue pair and its SRQ.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_ep(c: *mut rdma_cm_id) {
    fail::silent("rdma_destroy_ep", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(c)? };
        // SAFETY: the caller's promise.
        unsafe {
            if !handle.get(field!(qp)).is_null() {
                qp::destroy(&handle)?;
            }
            if !handle.get(field!(srq)).is_null() {
                srq::destroy(&handle)?;
            }
        }
        id::destroy(&handle)
    });
}

/// rdma_get_request(3).
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a pointer.
pub(crate) unsafe extern "C" fn get_request(
    listen: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    fail::number("rdma_get_request", || {
        let out = given("id", out)?;
        // SAFETY: the caller's promise.
        let listener = unsafe { objects::find(listen)? };
        if !listener.is_sync() {
            return Err(Failure::Null { what: "channel of a synchronous id" });
        }
        let (kind, status) = listener.await_event()?;
        let event = listener.get(field!(event));
        if status != 0 || kind != CmEventKind::ConnectRequest {
            listener.drop_event();
            let errno = if status == 0 { libc::EINVAL } else { status.saturating_abs() };
            return Err(Failure::Io(std::io::Error::from_raw_os_error(errno)));
        }
        // From here on it is the new id's.
        listener.set(field!(event), ptr::null_mut());
        // SAFETY: the event is ours until it is acknowledged; its id was made with it.
        let new = unsafe { objects::find((*event).id)? };
        let template =
            listener.id.parts.lock().template.as_ref().map(|found| (found.pd, found.init));
        if let Some((pd, mut init)) = template {
            // SAFETY: what the program gave to rdma_create_ep(3); checked as in every verb.
            if let Err(refused) = unsafe { qp::create(&new, pd, &mut init) } {
                let _ = event::acknowledge(event);
                let _ = new.id.soft.reject(&[]);
                let _ = id::destroy(&new);
                return Err(refused);
            }
        }
        new.set(field!(event), event);
        // SAFETY: the caller's promise.
        unsafe { out.write(new.c) };
        Ok(0)
    })
}
