//! Endpoints: ids that work synchronously, made from what [`super::getaddrinfo`] found.

use std::ffi::c_int;
use std::io;
use std::ptr;

use ironverbs::raw as soft;
use soft::cm::CmEventKind;

use super::objects::{self, Template, given};
use super::worlds::Any;
use super::{channel, dispatch, id, kernel};
use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome};

/// How long an endpoint waits for each of address and route, in milliseconds.
const PATIENCE: c_int = 2000;

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
        // SAFETY: no channel is given.
        let c = unsafe {
            match dispatch::is_only_kernels(ptr::null_mut()) {
                true => {
                    kernel::create(ptr::null_mut(), ptr::null_mut(), ps, res.ai_qp_type as u32)?.c
                }
                false => {
                    let qp_type = match res.ai_qp_type {
                        0 => None,
                        other => Some(convert::qp_type(other as u32)?),
                    };
                    id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type)?.c
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe {
            if let Err(refused) = prepare(c, res, pd, init) {
                destroy_ep(c);
                return Err(refused);
            }
            out.write(c);
        }
        Ok(0)
    })
}

/// The failure of a call that has set errno, and said why.
fn done(result: c_int) -> Outcome<()> {
    if result == 0 { Ok(()) } else { Err(Failure::Io(io::Error::last_os_error())) }
}

/// # Safety
/// As for [`create_ep`]; the id is alive.
unsafe fn prepare(
    c: *mut rdma_cm_id,
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
            done(dispatch::bind_addr(c, given("ai_src_addr", res.ai_src_addr)?))?;
            if !init.is_null() {
                remember(c, &Template { pd, init: *init })?;
            }
            return Ok(());
        }
        done(dispatch::resolve_addr(c, res.ai_src_addr, res.ai_dst_addr, PATIENCE))?;
        if res.ai_route_len > 0 {
            let (level, name) = (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH);
            done(dispatch::set_option(c, level, name, res.ai_route, res.ai_route_len))?;
            // Of a path that the program knows there is an event, too.
            let any = Any::find(c)?;
            any.complete()?;
        } else {
            done(dispatch::resolve_route(c, PATIENCE))?;
        }
        if !init.is_null() {
            done(dispatch::create_qp(c, pd, init))?;
        }
        if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            let halves = Any::find(c)?.halves;
            if let Some(id) = halves.soft {
                id.parts.lock().preface = data.to_vec();
            }
            if let Some(id) = halves.kernel {
                id.parts.lock().preface = data.to_vec();
            }
        }
    }
    Ok(())
}

/// Keeps what queue pairs are made from, in whatever world requests come.
///
/// # Safety
/// As for [`objects::find`].
unsafe fn remember(c: *mut rdma_cm_id, template: &Template) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let halves = unsafe { Any::find(c)? }.halves;
    let copy = || Some(Template { pd: template.pd, init: template.init });
    if let Some(id) = halves.soft {
        id.parts.lock().template = copy();
    }
    if let Some(id) = halves.kernel {
        id.parts.lock().template = copy();
    }
    Ok(())
}

/// What queue pairs of a listening endpoint are made from.
fn remembered(listener: &Any) -> Option<(*mut ibv_pd, ibv_qp_init_attr)> {
    let copy = |template: &Template| (template.pd, template.init);
    let soft = || listener.halves.soft.as_ref()?.parts.lock().template.as_ref().map(copy);
    soft().or_else(|| listener.halves.kernel.as_ref()?.parts.lock().template.as_ref().map(copy))
}

/// rdma_destroy_ep(3): the id, its queue pair and its SRQ.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_ep(c: *mut rdma_cm_id) {
    fail::silent("rdma_destroy_ep", || {
        // SAFETY: the caller's promise.
        unsafe {
            objects::halves(c)?;
            if !(*c).qp.is_null() {
                dispatch::destroy_qp(c);
            }
            if !(*c).srq.is_null() {
                dispatch::destroy_srq(c);
            }
            // Either has said why.
            if !(*c).qp.is_null() || !(*c).srq.is_null() {
                return Err(Failure::Io(io::Error::last_os_error()));
            }
            done(dispatch::destroy_id(c))
        }
    });
}

/// rdma_get_request(3).
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a pointer.
pub(crate) unsafe extern "C-unwind" fn get_request(
    listen: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    let find = || {
        given("id", out)?;
        // SAFETY: the caller's promise.
        let listener = unsafe { Any::find(listen)? };
        match listener.is_sync() {
            true => Ok(listener),
            false => Err(Failure::Null { what: "channel of a synchronous id" }),
        }
    };
    let its_channel = || find().map(|listener| listener.channel().clone());
    channel::next_event("rdma_get_request", its_channel, |read| {
        let listener = find()?;
        listener.drop_event();
        let event = read.c;
        if read.status != 0 || read.event != CmEventKind::ConnectRequest as u32 {
            listener.set_event(event);
            listener.drop_event();
            let errno = if read.status == 0 { libc::EINVAL } else { read.status.saturating_abs() };
            return Err(Failure::Io(io::Error::from_raw_os_error(errno)));
        }
        // SAFETY: the event is ours until it is acknowledged; its id was made with it.
        let new = unsafe { Any::find((*event).id)? };
        if let Some((pd, mut init)) = remembered(&listener) {
            // SAFETY: what the program gave to rdma_create_ep(3); checked as in every verb.
            unsafe {
                if let Err(refused) = done(dispatch::create_qp(new.c, pd, &raw mut init)) {
                    dispatch::ack_cm_event(event);
                    dispatch::reject(new.c, ptr::null(), 0);
                    dispatch::destroy_id(new.c);
                    return Err(refused);
                }
            }
        }
        new.set_event(event);
        // SAFETY: the caller's promise.
        unsafe { out.write(new.c) };
        Ok(())
    })
}
