//! Queue pairs of ids, and the completion queues that are made with them.

use std::ffi::c_int;
use std::ptr;

use ironverbs::raw as soft;
use soft::QpState;

use super::devices;
use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::convert;
use crate::cq;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{ContextId, CqExtra};
use crate::qp;

/// rdma_create_qp(3). `init` then holds what was granted, and the queues that were made.
///
/// # Safety
/// As for [`objects::find`], for the id, the PD and every object in `init`, which is null or points
/// to the structure.
pub(crate) unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    fail::number("rdma_create_qp", || {
        // SAFETY: the caller's promise.
        unsafe { create(&objects::find(id)?, pd, &mut *given("qp_init_attr", init)?)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`create_qp`].
pub(super) unsafe fn create(
    handle: &Handle,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Outcome<()> {
    // SAFETY: the structure is numbers and pointers, for which zeros are valid.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.qp_context, attr.cap) = (init.qp_context, init.cap);
    (attr.send_cq, attr.recv_cq, attr.srq) = (init.send_cq, init.recv_cq, init.srq);
    (attr.qp_type, attr.sq_sig_all) = (init.qp_type, init.sq_sig_all);
    if !pd.is_null() {
        (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    }
    // SAFETY: the caller's promise.
    unsafe { create_ex(handle, &mut attr)? };
    (init.cap, init.srq) = (attr.cap, attr.srq);
    (init.send_cq, init.recv_cq) = (attr.send_cq, attr.recv_cq);
    Ok(())
}

/// rdma_create_qp_ex: as [`create_qp`], the PD among the attributes.
///
/// # Safety
/// As for [`create_qp`].
pub(crate) unsafe extern "C" fn create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    fail::number("rdma_create_qp_ex", || {
        // SAFETY: the caller's promise.
        unsafe { create_ex(&objects::find(id)?, &mut *given("qp_init_attr_ex", attr)?)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`create_qp`].
unsafe fn create_ex(handle: &Handle, attr: &mut ibv_qp_init_attr_ex) -> Outcome<()> {
    if !handle.get(field!(qp)).is_null() {
        return Err(Failure::Argument { what: "queue pairs of an id", value: 2 });
    }
    let context = given("device of the id", handle.get(field!(verbs)))?;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        (attr.comp_mask, attr.pd) = (attr.comp_mask | IBV_QP_INIT_ATTR_PD, handle.get(field!(pd)));
    // SAFETY: the caller's promise.
    } else if unsafe { crate::objects::find::<ibv_pd>(attr.pd)? }.context != ContextId::of(context)
    {
        return Err(Failure::OtherContext { what: "protection domain" });
    }
    let other =
        |own: *mut ibv_cq, asked: *mut ibv_cq| !own.is_null() && !asked.is_null() && own != asked;
    if other(handle.get(field!(send_cq)), attr.send_cq)
        || other(handle.get(field!(recv_cq)), attr.recv_cq)
    {
        return Err(Failure::Argument { what: "completion queues of an id", value: 2 });
    }
    if attr.qp_type == IBV_QPT_XRC_RECV && attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        let device = handle.id.soft.device().ok_or(Failure::Null { what: "device of the id" })?;
        attr.xrcd = devices::opened(&device)?.xrcd()?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let needed = |given: *mut ibv_cq, entries: u32| if given.is_null() { entries } else { 0 };
    let send = needed(attr.send_cq, attr.cap.max_send_wr);
    let recv = needed(attr.recv_cq, attr.cap.max_recv_wr);
    handle.make_cqs(context, send, recv)?;
    if attr.send_cq.is_null() {
        attr.send_cq = handle.get(field!(send_cq));
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = handle.get(field!(recv_cq));
    }
    // Queues without entries were not made: one that is never used stands for the other.
    if attr.send_cq.is_null() {
        attr.send_cq = attr.recv_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = attr.send_cq;
    }
    if attr.srq.is_null() {
        attr.srq = handle.get(field!(srq));
    }
    // SAFETY: the caller's promise.
    let made = unsafe { make(handle, context, attr) };
    if made.is_err() {
        handle.end_cqs();
    }
    made
}

/// # Safety
/// As for [`create_qp`].
unsafe fn make(
    handle: &Handle,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Outcome<()> {
    // SAFETY: the caller's promise; the queue pair is alive.
    unsafe {
        let c = qp::create_ex(context, attr)?;
        let inner = crate::objects::find::<ibv_qp_ex>(c)?.inner.clone();
        if let Err(refused) = handle.id.soft.attach_qp(Some(&inner)) {
            qp::end(c)?;
            return Err(refused.into());
        }
        handle.set(field!(qp), c);
        let pd = (*c).pd;
        if !pd.is_null() {
            handle.set(field!(pd), pd);
        }
    }
    handle.refresh_qp();
    Ok(())
}

impl Handle {
    /// Completion queues of the id's own with their channels, of so many entries; none for 0, or
    /// where the id has one.
    pub(super) fn make_cqs(&self, context: *mut ibv_context, send: u32, recv: u32) -> Outcome<()> {
        let mut made = self.id.parts.lock().made;
        let mut build = || -> Outcome<()> {
            if send > 0 && self.get(field!(send_cq)).is_null() {
                let (channel, queue) = self.make_cq(context, send, &mut made.send_channel)?;
                made.send_cq = queue.expose_provenance();
                self.set(field!(send_cq_channel), channel);
                self.set(field!(send_cq), queue);
            }
            if recv > 0 && self.get(field!(recv_cq)).is_null() {
                let (channel, queue) = self.make_cq(context, recv, &mut made.recv_channel)?;
                made.recv_cq = queue.expose_provenance();
                self.set(field!(recv_cq_channel), channel);
                self.set(field!(recv_cq), queue);
            }
            Ok(())
        };
        let built = build();
        self.id.parts.lock().made = made;
        if built.is_err() {
            self.end_cqs();
        }
        built
    }

    fn make_cq(
        &self,
        context: *mut ibv_context,
        entries: u32,
        channel: &mut usize,
    ) -> Outcome<(*mut ibv_comp_channel, *mut ibv_cq)> {
        // SAFETY: the context is checked as in every verb.
        let c = unsafe { cq::create_channel(context)? };
        *channel = c.expose_provenance();
        let (options, extra) = (soft::CqOptions::default(), CqExtra::default());
        // SAFETY: likewise; the programs' inline functions expect the id as the queue's context.
        let queue =
            unsafe { cq::create(context, entries, self.c.cast(), c, 0, options, extra, |_| ())? };
        Ok((c, queue.cast()))
    }

    /// Ends the completion queues that were made for the id; those that are in use stay.
    pub(super) fn end_cqs(&self) {
        let mut made = std::mem::take(&mut self.id.parts.lock().made);
        let ended = |address: &mut usize, end: fn(usize) -> Outcome<()>| {
            *address == 0 || end(*address).map(|()| *address = 0).is_ok()
        };
        // SAFETY: addresses of places, checked as in every verb.
        let queue = |at| unsafe { cq::end(ptr::with_exposed_provenance_mut(at)) };
        // SAFETY: likewise.
        let channel = |at| unsafe { cq::end_channel(ptr::with_exposed_provenance_mut(at)) };
        if ended(&mut made.recv_cq, queue) && ended(&mut made.recv_channel, channel) {
            self.set(field!(recv_cq), ptr::null_mut());
            self.set(field!(recv_cq_channel), ptr::null_mut());
        }
        if ended(&mut made.send_cq, queue) && ended(&mut made.send_channel, channel) {
            self.set(field!(send_cq), ptr::null_mut());
            self.set(field!(send_cq_channel), ptr::null_mut());
        }
        self.id.parts.lock().made = made;
    }
}

/// rdma_destroy_qp(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    fail::silent("rdma_destroy_qp", || unsafe { destroy(&objects::find(id)?) });
}

/// # Safety
/// As for [`objects::find`], for the queue pair that stands in the structure.
pub(super) unsafe fn destroy(handle: &Handle) -> Outcome<()> {
    let c = given("queue pair of the id", handle.get(field!(qp)))?;
    // SAFETY: the caller's promise.
    unsafe { qp::end(c)? };
    handle.id.soft.attach_qp(None)?;
    handle.set(field!(qp), ptr::null_mut());
    handle.end_cqs();
    Ok(())
}

/// rdma_init_qp_attr(3): `attr->qp_state` says for which transition.
///
/// # Safety
/// As for [`objects::find`]; `attr` and `mask` are null or point to their types.
pub(crate) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    fail::number("rdma_init_qp_attr", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let (attr, mask) = (given("qp_attr", attr)?, given("qp_attr_mask", mask)?);
        // SAFETY: the caller's promise.
        let state = unsafe { (&raw const (*attr).qp_state).read() };
        let target = [QpState::Init, QpState::Rtr, QpState::Rts]
            .into_iter()
            .find(|target| *target as u32 == state)
            .ok_or(Failure::Argument { what: "qp_state", value: state.into() })?;
        let (found, named) = handle.id.soft.qp_attr(target)?;
        // SAFETY: the caller's promise.
        unsafe {
            convert::c_qp_attr(&found).write_without_rate_limit(attr);
            mask.write(named.bits() as c_int);
        }
        Ok(0)
    })
}
