//! Queue pairs of the kernel's ids, and the completion queues that are made with them.

use std::ffi::c_int;
use std::ptr;

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::dispatch;
use crate::fail::{self, Failure, Outcome};

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
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(id)?;
            if !handle.get(field!(qp)).is_null() {
                return Err(Failure::Argument { what: "queue pairs of an id", value: 2 });
            }
            let context = given("device of the id", handle.get(field!(verbs)))?;
            let pd = if pd.is_null() { handle.get(field!(pd)) } else { pd };
            let entries = [(*init).cap.max_send_wr, (*init).cap.max_recv_wr];
            let given = [(*init).send_cq, (*init).recv_cq];
            let made = handle.make_cqs(context, entries, given);
            if made.is_err() {
                handle.end_cqs();
            }
            [(*init).send_cq, (*init).recv_cq] = made?;
            if (*init).srq.is_null() {
                (*init).srq = handle.get(field!(srq));
            }
            let qp = dispatch::create_qp(pd, init);
            if qp.is_null() {
                let failure = refused();
                handle.end_cqs();
                return Err(failure);
            }
            handle.set(field!(qp), qp);
            handle.set(field!(pd), pd);
            if let Err(failure) = handle.begin() {
                handle.set(field!(qp), ptr::null_mut());
                dispatch::destroy_qp(qp);
                handle.end_cqs();
                return Err(failure);
            }
        }
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    let attr = match given("qp_init_attr_ex", attr) {
        // SAFETY: the caller's promise.
        Ok(attr) => unsafe { &mut *attr },
        Err(failure) => return fail::number("rdma_create_qp_ex", || Err(failure)),
    };
    if attr.comp_mask & !IBV_QP_INIT_ATTR_PD != 0 {
        let what = "more than a PD for a queue pair of the kernel's connection manager";
        return fail::number("rdma_create_qp_ex", || Err(Failure::Unsupported { what }));
    }
    let mut init = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let pd = if attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 { attr.pd } else { ptr::null_mut() };
    // SAFETY: the caller's promise.
    let result = unsafe { create_qp(id, pd, &raw mut init) };
    (attr.cap, attr.srq) = (init.cap, init.srq);
    (attr.send_cq, attr.recv_cq) = (init.send_cq, init.recv_cq);
    result
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
    unsafe fn make_cqs(
        &self,
        context: *mut ibv_context,
        entries: [u32; 2],
        given: [*mut ibv_cq; 2],
    ) -> Outcome<[*mut ibv_cq; 2]> {
        let mut queues = given;
        for (side, queue) in queues.iter_mut().enumerate() {
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
    fn end_cqs(&self) {
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
