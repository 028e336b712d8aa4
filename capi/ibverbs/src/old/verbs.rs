//! Calls of 1.0 that make, query and end objects.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use parking_lot::Mutex;

use super::*;
use crate::fail::{self, Failure};
use crate::objects::ContextId;
use crate::{ah, cq, device, mr, qp, query, srq};

/// Looks the object of today up, or returns the errno of it.
macro_rules! behind {
    ($verb:literal, $object:expr, $failed:expr) => {
        // SAFETY: the caller's promise.
        match fail::returned($verb, || unsafe { real($object) }) {
            Ok(today) => today,
            Err(errno) => {
                let failed: fn(c_int) -> _ = $failed;
                return failed(errno);
            }
        }
    };
}

/// Wraps what today's call made; null when that failed, errno being set.
fn wrapped<C: Old>(
    verb: &'static str,
    today: *mut C::Today,
    fill: impl FnOnce(*mut C, u32),
) -> *mut C {
    if today.is_null() {
        return ptr::null_mut();
    }
    fail::object(verb, || adopt(today, fill))
}

/// Ends an object of 1.0 after the one behind it.
///
/// # Safety
/// As for [`real`].
unsafe fn end<C: Old>(
    verb: &'static str,
    object: *mut C,
    today: unsafe extern "C" fn(*mut C::Today) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let found = fail::returned(verb, || unsafe {
        let found = C::pool().find(object)?;
        Ok((ptr::with_exposed_provenance_mut(found.0), found.number()))
    });
    match found {
        Err(errno) => errno,
        // SAFETY: it was an object of today when this one was made, and is checked again.
        Ok((behind, handle)) => match unsafe { today(behind) } {
            0 => {
                C::pool().remove(handle);
                0
            }
            errno => errno,
        },
    }
}

/// Devices of 1.0, each for one of today; like those they stay.
static DEVICES: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn old_device(today: *mut ibv_device) -> Outcome<*mut ibv_device_1_0> {
    let mut devices = DEVICES.lock();
    if let Some((_, old)) = devices.iter().find(|(t, _)| *t == today as usize) {
        return Ok(ptr::with_exposed_provenance_mut(*old));
    }
    let old = adopt(today, |object: *mut ibv_device_1_0, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { (*object).real = today };
    })?;
    devices.push((today as usize, old.expose_provenance()));
    Ok(old)
}

pub(crate) unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut *mut ibv_device_1_0 {
    // SAFETY: the caller's promise. The array of today becomes one of 1.0 in place: both are
    // pointers, ended by NULL.
    unsafe {
        let list = device::get_device_list(num);
        let mut entry = list;
        while !entry.is_null() && !(*entry).is_null() {
            match old_device(*entry) {
                Ok(old) => *entry = old.cast(),
                Err(_) => {
                    device::free_device_list(list);
                    fail::set_errno(libc::ENOMEM);
                    return ptr::null_mut();
                }
            }
            entry = entry.add(1);
        }
        list.cast()
    }
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device_1_0) {
    // SAFETY: the caller's promise; only the array is freed.
    unsafe { device::free_device_list(list.cast()) }
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device_1_0) -> *const c_char {
    let today = behind!("ibv_get_device_name", device, |_| ptr::null());
    // SAFETY: found just now.
    unsafe { device::get_device_name(today) }
}

pub(crate) unsafe extern "C" fn get_device_guid(device: *mut ibv_device_1_0) -> u64 {
    let today = behind!("ibv_get_device_guid", device, |_| 0);
    // SAFETY: found just now.
    unsafe { device::get_device_guid(today) }
}

pub(crate) unsafe extern "C" fn open_device(device: *mut ibv_device_1_0) -> *mut ibv_context_1_0 {
    let today = behind!("ibv_open_device", device, |_| ptr::null_mut());
    // SAFETY: found just now.
    let context = unsafe { device::open_device(today) };
    wrapped("ibv_open_device", context, |object: *mut ibv_context_1_0, _| {
        const NONE: Unused = ptr::null();
        let ops = ibv_context_ops_1_0 {
            query_device: [NONE; 7],
            poll_cq: Some(poll_cq),
            req_notify_cq: Some(req_notify_cq),
            cq_event: [NONE; 7],
            post_srq_recv: Some(post_srq_recv),
            create_qp: [NONE; 4],
            post_send: Some(post_send),
            post_recv: Some(post_recv),
            create_ah: [NONE; 4],
        };
        // SAFETY: nobody else sees the place yet; the context of today was just made.
        unsafe {
            let (cmd_fd, async_fd) = ((*context).cmd_fd, (*context).async_fd);
            let num_comp_vectors = (*context).num_comp_vectors;
            let real = context;
            object.write(ibv_context_1_0 { device, ops, cmd_fd, async_fd, num_comp_vectors, real });
        }
    })
}

pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context_1_0) -> c_int {
    // SAFETY: the caller's promise.
    let status = unsafe { end("ibv_close_device", context, device::close_device) };
    if status == 0 {
        // Channels know the context by the pointer they were made with.
        device::end_children(ContextId::of(context.cast()));
    }
    status
}

pub(crate) unsafe extern "C" fn query_device(
    context: *mut ibv_context_1_0,
    attr: *mut ibv_device_attr,
) -> c_int {
    let today = behind!("ibv_query_device", context, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { query::query_device(today, attr) }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context_1_0,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    let today = behind!("ibv_query_port", context, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { query::query_port(today, port, attr) }
}

pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context_1_0,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    let today = behind!("ibv_query_gid", context, |_| -1);
    // SAFETY: the caller's promise.
    unsafe { query::query_gid(today, port, index, gid) }
}

pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context_1_0,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let today = behind!("ibv_query_pkey", context, |_| -1);
    // SAFETY: the caller's promise.
    unsafe { query::query_pkey(today, port, index, pkey) }
}

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context_1_0) -> *mut ibv_pd_1_0 {
    let today = behind!("ibv_alloc_pd", context, |_| ptr::null_mut());
    // SAFETY: the caller's promise.
    let real = unsafe { mr::alloc_pd(today) };
    wrapped("ibv_alloc_pd", real, |object: *mut ibv_pd_1_0, handle| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(ibv_pd_1_0 { context, handle, real }) };
    })
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_dealloc_pd", pd, mr::dealloc_pd) }
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd_1_0,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr_1_0 {
    let today = behind!("ibv_reg_mr", pd, |_| ptr::null_mut());
    // SAFETY: the caller's promise.
    let real = unsafe { mr::reg_mr(today, addr, length, access) };
    wrapped("ibv_reg_mr", real, |object: *mut ibv_mr_1_0, handle| {
        // SAFETY: nobody else sees the place yet; the PD and the region were just found and made.
        unsafe {
            let (context, lkey, rkey) = ((*pd).context, (*real).lkey, (*real).rkey);
            object.write(ibv_mr_1_0 { context, pd, handle, lkey, rkey, real });
        }
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_dereg_mr", mr, mr::dereg_mr) }
}

pub(crate) unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd_1_0,
    attr: *const ibv_ah_attr,
) -> *mut ibv_ah_1_0 {
    let today = behind!("ibv_create_ah", pd, |_| ptr::null_mut());
    // SAFETY: the caller's promise.
    let real = unsafe { ah::create_ah(today, attr) };
    wrapped("ibv_create_ah", real, |object: *mut ibv_ah_1_0, handle| {
        // SAFETY: nobody else sees the place yet; the PD was just found.
        unsafe { object.write(ibv_ah_1_0 { context: (*pd).context, pd, handle, real }) };
    })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_ah", ah, ah::destroy_ah) }
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context_1_0,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq_1_0 {
    let today = behind!("ibv_create_cq", context, |_| ptr::null_mut());
    // SAFETY: the caller's promise.
    let real = unsafe { cq::create_cq(today, cqe, ptr::null_mut(), channel, comp_vector) };
    let old = wrapped("ibv_create_cq", real, |object: *mut ibv_cq_1_0, handle| {
        // SAFETY: nobody else sees the place yet, which starts zeroed; the CQ was just made.
        unsafe {
            let object = &mut *object;
            (object.context, object.cq_context, object.handle) = (context, cq_context, handle);
            (object.cqe, object.real) = ((*real).cqe, real);
        }
    });
    if !old.is_null() {
        // SAFETY: the CQ of today is new; its context leads events back to the one of 1.0.
        unsafe { (*real).cq_context = old.cast() };
    }
    old
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq_1_0, cqe: c_int) -> c_int {
    let today = behind!("ibv_resize_cq", cq, |errno| errno);
    // SAFETY: the caller's promise; both objects were just found.
    unsafe {
        let status = cq::resize_cq(today, cqe);
        if status == 0 {
            (*cq).cqe = (*today).cqe;
        }
        status
    }
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_cq", cq, cq::destroy_cq) }
}

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd_1_0,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq_1_0 {
    let today = behind!("ibv_create_srq", pd, |_| ptr::null_mut());
    // SAFETY: the caller's promise.
    let real = unsafe { srq::create_srq(today, init) };
    let old = wrapped("ibv_create_srq", real, |object: *mut ibv_srq_1_0, handle| {
        // SAFETY: nobody else sees the place yet, which starts zeroed; the others were just found.
        unsafe {
            let object = &mut *object;
            (object.context, object.pd, object.handle) = ((*pd).context, pd, handle);
            (object.srq_context, object.real) = ((*real).srq_context, real);
        }
    });
    if !old.is_null() {
        // SAFETY: as for a CQ.
        unsafe { (*real).srq_context = old.cast() };
    }
    old
}

pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq_1_0,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let today = behind!("ibv_modify_srq", srq, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { srq::modify_srq(today, attr, mask) }
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq_1_0, attr: *mut ibv_srq_attr) -> c_int {
    let today = behind!("ibv_query_srq", srq, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { srq::query_srq(today, attr) }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_srq", srq, srq::destroy_srq) }
}

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd_1_0,
    init: *mut ibv_qp_init_attr_1_0,
) -> *mut ibv_qp_1_0 {
    // SAFETY: the caller's promise.
    let made = fail::returned("ibv_create_qp", || unsafe {
        let asked = init.as_mut().ok_or(Failure::Null { what: "qp_init_attr" })?;
        let srq = match asked.srq.is_null() {
            true => ptr::null_mut(),
            false => real(asked.srq)?,
        };
        let mut attr = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: real(asked.send_cq)?,
            recv_cq: real(asked.recv_cq)?,
            srq,
            cap: asked.cap,
            qp_type: asked.qp_type,
            sq_sig_all: asked.sq_sig_all,
        };
        let qp = qp::create_qp(real(pd)?, &raw mut attr);
        if !qp.is_null() {
            asked.cap = attr.cap;
        }
        Ok(qp)
    });
    let Ok(real) = made else { return ptr::null_mut() };
    let old = wrapped("ibv_create_qp", real, |object: *mut ibv_qp_1_0, handle| {
        // SAFETY: nobody else sees the place yet, which starts zeroed; the others were just found.
        unsafe {
            let (object, init) = (&mut *object, &*init);
            (object.context, object.pd, object.handle) = ((*pd).context, pd, handle);
            (object.qp_context, object.srq) = (init.qp_context, init.srq);
            (object.send_cq, object.recv_cq) = (init.send_cq, init.recv_cq);
            (object.qp_num, object.state) = ((*real).qp_num, (*real).state);
            (object.qp_type, object.real) = ((*real).qp_type, real);
        }
    });
    if !old.is_null() {
        // SAFETY: as for a CQ.
        unsafe { (*real).qp_context = old.cast() };
    }
    old
}

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp_1_0,
    attr: *const ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let today = behind!("ibv_modify_qp", qp, |errno| errno);
    // SAFETY: the caller's promise; both objects were just found.
    unsafe {
        let status = qp::modify_qp(today, attr, mask);
        if status == 0 {
            (*qp).state = (*today).state;
        }
        status
    }
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp_1_0,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr_1_0,
) -> c_int {
    let today = behind!("ibv_query_qp", qp, |errno| errno);
    // SAFETY: the caller's promise; the structures of both versions are alike but for what their
    // pointers mean, which are put right after.
    unsafe {
        let status = qp::query_qp(today, attr, mask, init.cast());
        if status == 0 {
            let (init, qp) = (&mut *init, &*qp);
            (init.qp_context, init.srq) = (qp.qp_context, qp.srq);
            (init.send_cq, init.recv_cq) = (qp.send_cq, qp.recv_cq);
        }
        status
    }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp_1_0) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { end("ibv_destroy_qp", qp, qp::destroy_qp) }
}

pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp_1_0,
    gid: *const c_void,
    lid: u16,
) -> c_int {
    let today = behind!("ibv_attach_mcast", qp, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { qp::attach_mcast(today, gid, lid) }
}

pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp_1_0,
    gid: *const c_void,
    lid: u16,
) -> c_int {
    let today = behind!("ibv_detach_mcast", qp, |errno| errno);
    // SAFETY: the caller's promise.
    unsafe { qp::detach_mcast(today, gid, lid) }
}
