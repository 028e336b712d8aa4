//! Queue pairs of the kernel's ids, and the completion queues that are made with them.

use std::ffi::c_int;
use std::ptr;

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::{dispatch, driver};

fn refused() -> Failure {
    Failure::Io(std::io::Error::last_os_error())
}

pub(in crate::cm) unsafe fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    fail::number("rdma_create_qp", || {
        let init = given("qp_init_attr", init)?;
        // SAFETY: the caller's promise; zeros are a valid structure.
        unsafe {
            let mut attr: ibv_qp_init_attr_ex = std::mem::zeroed();
            let init = &mut *init;
            (attr.qp_context, attr.cap) = (init.qp_context, init.cap);
            (attr.send_cq, attr.recv_cq, attr.srq) = (init.send_cq, init.recv_cq, init.srq);
            (attr.qp_type, attr.sq_sig_all) = (init.qp_type, init.sq_sig_all);
            if !pd.is_null() {
                (attr.comp_mask, attr.pd) = (IBV_QP_INIT_ATTR_PD, pd);
            }
            create(&objects::find(id)?, &mut attr)?;
            (init.cap, init.srq) = (attr.cap, attr.srq);
            (init.send_cq, init.recv_cq) = (attr.send_cq, attr.recv_cq);
        }
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    fail::number("rdma_create_qp_ex", || {
        // SAFETY: the caller's promise.
        unsafe { create(&objects::find(id)?, &mut *given("qp_init_attr_ex", attr)?)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`create_qp_ex`].
unsafe fn create(handle: &Handle, attr: &mut ibv_qp_init_attr_ex) -> Outcome<()> {
    if !handle.get(field!(qp)).is_null() {
        return Err(Failure::Argument { what: "queue pairs of an id", value: 2 });
    }
    let context = given("device of the id", handle.get(field!(verbs)))?;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        (attr.comp_mask, attr.pd) = (attr.comp_mask | IBV_QP_INIT_ATTR_PD, handle.get(field!(pd)));
    }
    if attr.qp_type == IBV_QPT_XRC_RECV && attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        attr.xrcd = handle.device()?.xrcd()?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let entries = [attr.cap.max_send_wr, attr.cap.max_recv_wr];
    // What ibv_cmd_create_qp_ex of a driver takes: a queue pair that receives by XRC has neither queue.
    let made = match attr.qp_type {
        IBV_QPT_XRC_RECV => Ok([attr.send_cq, attr.recv_cq]),
        // SAFETY: the context is the id's.
        _ => unsafe { handle.make_cqs(context, entries, [attr.send_cq, attr.recv_cq]) },
    };
    if made.is_err() {
        handle.end_cqs();
    }
    [attr.send_cq, attr.recv_cq] = made?;
    if attr.srq.is_null() {
        attr.srq = handle.get(field!(srq));
    }
    // SAFETY: the caller's promise.
    let qp = unsafe { make(context, attr) };
    if qp.is_null() {
        let failure = refused();
        handle.end_cqs();
        return Err(failure);
    }
    let before = handle.get(field!(pd));
    handle.set(field!(qp), qp);
    if !attr.pd.is_null() {
        handle.set(field!(pd), attr.pd);
    }
    if let Err(failure) = handle.know_options().and_then(|()| handle.begin()) {
        handle.set(field!(qp), ptr::null_mut());
        handle.set(field!(pd), before);
        // SAFETY: it was made a moment ago, and nobody has seen it.
        unsafe { dispatch::destroy_qp(qp) };
        handle.end_cqs();
        return Err(failure);
    }
    Ok(())
}

/// As the header's inline function has it: what is of a PD alone goes to the older call.
///
/// # Safety
/// As for [`create_qp_ex`].
unsafe fn make(context: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller's promise; the older structure starts the newer one (verbs.h).
    unsafe {
        match driver::of(context) {
            Some(driven) if attr.comp_mask != IBV_QP_INIT_ATTR_PD => {
                driver::verbs::create_qp_ex(driven, attr)
            }
            _ => dispatch::create_qp(attr.pd, ptr::from_mut(attr).cast()),
        }
    }
}

pub(in crate::cm) unsafe fn destroy_qp(id: *mut rdma_cm_id) {
    fail::silent("rdma_destroy_qp", || {
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(id)?;
            let qp = given("queue pair of the id", handle.get(field!(qp)))?;
            if dispatch::destroy_qp(qp) != 0 {
                return Err(refused());
            }
            handle.set(field!(qp), ptr::null_mut());
            handle.end_cqs();
        }
        Ok(())
    });
}

impl Handle {
    /// Completion queues where the program gave none, each with its channel.
    ///
    /// # Safety
    /// The context is the id's.
    pub(super) unsafe fn make_cqs(
        &self,
        context: *mut ibv_context,
        entries: [u32; 2],
        given: [*mut ibv_cq; 2],
    ) -> Outcome<[*mut ibv_cq; 2]> {
        let mut queues = given;
        for (side, queue) in queues.iter_mut().enumerate() {
            // One that was made with a shared receive queue.
            if queue.is_null() && self.id.parts.lock().made.get(side) == Some(&true) {
                *queue =
                    if side == 0 { self.get(field!(send_cq)) } else { self.get(field!(recv_cq)) };
            }
            let Some(&entries) = entries.get(side).filter(|&&n| n > 0 && queue.is_null()) else {
                continue;
            };
            // SAFETY: the caller's promise; the programs' inline functions expect the id as the queue's context.
            unsafe {
                let channel = dispatch::create_comp_channel(context);
                if channel.is_null() {
                    return Err(refused());
                }
                let (size, own) = (c_int::try_from(entries).unwrap_or(c_int::MAX), self.c.cast());
                *queue = dispatch::create_cq(context, size, own, channel, 0);
                if queue.is_null() {
                    let failure = refused();
                    dispatch::destroy_comp_channel(channel);
                    return Err(failure);
                }
                if side == 0 {
                    self.set(field!(send_cq_channel), channel);
                    self.set(field!(send_cq), *queue);
                } else {
                    self.set(field!(recv_cq_channel), channel);
                    self.set(field!(recv_cq), *queue);
                }
            }
            if let Some(made) = self.id.parts.lock().made.get_mut(side) {
                *made = true;
            }
        }
        // Queues without entries were not made: one that is never used stands for the other.
        let [send, recv] = queues;
        Ok([if send.is_null() { recv } else { send }, if recv.is_null() { send } else { recv }])
    }

    /// Ends the completion queues that were made for the id.
    pub(super) fn end_cqs(&self) {
        let [send, recv] = std::mem::take(&mut self.id.parts.lock().made);
        // SAFETY: they were made for the id, which has no queue pair any more.
        unsafe {
            if send {
                dispatch::destroy_cq(self.get(field!(send_cq)));
                dispatch::destroy_comp_channel(self.get(field!(send_cq_channel)));
                self.set(field!(send_cq), ptr::null_mut());
                self.set(field!(send_cq_channel), ptr::null_mut());
            }
            if recv {
                dispatch::destroy_cq(self.get(field!(recv_cq)));
                dispatch::destroy_comp_channel(self.get(field!(recv_cq_channel)));
                self.set(field!(recv_cq), ptr::null_mut());
                self.set(field!(recv_cq_channel), ptr::null_mut());
            }
        }
    }
}
