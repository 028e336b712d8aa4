//! Endpoints of the kernel: ids that work synchronously, made from what [`crate::cm::getaddrinfo`] found.

use std::ffi::c_int;
use std::ptr;

use super::connect;
use super::objects::{self, Handle, Template, field, given};
use super::{event, ids, qp};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// How long an endpoint waits for each of address and route, in milliseconds.
const PATIENCE: c_int = 2000;

pub(in crate::cm) unsafe fn create_ep(
    out: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    fail::number("rdma_create_ep", || {
        // SAFETY: the caller's promise.
        unsafe {
            let (out, res) = (given("id", out)?, &*given("rdma_addrinfo", res)?);
            let ps = res.ai_port_space as u32;
            let handle = ids::create(ptr::null_mut(), ptr::null_mut(), ps, res.ai_qp_type as u32)?;
            if let Err(refused) = prepare(&handle, res, pd, init) {
                let _ = ids::destroy(&handle);
                return Err(refused);
            }
            out.write(handle.c);
        }
        Ok(0)
    })
}

/// The failure of a call that has set errno.
fn done(result: c_int) -> Outcome<()> {
    if result == 0 { Ok(()) } else { Err(Failure::Io(std::io::Error::last_os_error())) }
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
    unsafe {
        if !init.is_null() && res.ai_qp_type != 0 {
            (*init).qp_type = res.ai_qp_type as u32;
        }
        if res.ai_flags & RAI_PASSIVE != 0 {
            done(ids::bind_addr(handle.c, res.ai_src_addr))?;
            if !init.is_null() {
                handle.id.parts.lock().template = Some(Template { pd, init: *init });
            }
            return Ok(());
        }
        done(ids::resolve_addr(handle.c, res.ai_src_addr, res.ai_dst_addr, PATIENCE))?;
        done(ids::resolve_route(handle.c, PATIENCE))?;
        if !init.is_null() {
            done(qp::create_qp(handle.c, pd, init))?;
        }
        if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            handle.id.parts.lock().preface = data.to_vec();
        }
    }
    Ok(())
}

pub(in crate::cm) unsafe fn destroy_ep(c: *mut rdma_cm_id) {
    fail::silent("rdma_destroy_ep", || {
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(c)?;
            if !handle.get(field!(qp)).is_null() {
                qp::destroy_qp(c);
            }
            ids::destroy(&handle)
        }
    });
}

pub(in crate::cm) unsafe fn get_request(
    listen: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    const REQUEST: u32 = 4;
    fail::number("rdma_get_request", || {
        let out = given("id", out)?;
        // SAFETY: the caller's promise.
        let listener = unsafe { objects::find(listen)? };
        if !listener.is_sync() {
            return Err(Failure::Null { what: "channel of a synchronous id" });
        }
        let next = listener.await_event()?;
        if next.status != 0 || next.event != REQUEST {
            listener.drop_event();
            let errno = if next.status == 0 { libc::EINVAL } else { next.status.saturating_abs() };
            return Err(Failure::Io(std::io::Error::from_raw_os_error(errno)));
        }
        // From here on it is the new id's.
        listener.set(field!(event), ptr::null_mut());
        // SAFETY: the event is ours until it is acknowledged; its id was made with it.
        let new = unsafe { objects::find((*next.c).id)? };
        let template = listener.id.parts.lock().template.as_ref().map(|t| (t.pd, t.init));
        if let Some((pd, mut init)) = template {
            // SAFETY: what the program gave to rdma_create_ep(3).
            if let Err(refused) = unsafe { done(qp::create_qp(new.c, pd, &raw mut init)) } {
                let _ = event::acknowledge(next.c);
                // SAFETY: the id is there, and no data is given.
                unsafe { connect::reject(new.c, ptr::null(), 0) };
                let _ = ids::destroy(&new);
                return Err(refused);
            }
        }
        new.set(field!(event), next.c);
        // SAFETY: the caller's promise.
        unsafe { out.write(new.c) };
        Ok(0)
    })
}
