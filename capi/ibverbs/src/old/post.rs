//! The data path of 1.0: requests are turned into ones of today one by one, on the stack.

use std::ffi::c_int;
use std::mem;

use super::*;
use crate::fail;
use crate::post::{RecvRequest, blame, each, elements, push, receives, send_wr};
use crate::{cq, fail::Failure};

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq_1_0, num: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's promise.
    fail::number("ibv_poll_cq", || unsafe { Ok(cq::poll_cq(real(cq)?, num, wc)) })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq_1_0, solicited: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match fail::returned("ibv_req_notify_cq", || unsafe { real(cq) }) {
        // SAFETY: it was just found.
        Ok(today) => unsafe { cq::req_notify_cq(today, solicited) },
        Err(errno) => errno,
    }
}

impl RecvRequest for ibv_recv_wr_1_0 {
    fn next(&self) -> *mut Self {
        self.next
    }

    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn list(&self) -> (*mut ibv_sge, c_int) {
        (self.sg_list, self.num_sge)
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    fail::status("ibv_post_recv", || {
        // SAFETY: the caller's promise.
        unsafe {
            let find = || ibv_qp_ex::pool().find(real(qp)?);
            let found = find().inspect_err(|_| blame(bad, wr))?;
            receives(wr, bad, |wr_id, sges| found.inner.post_recv(wr_id, sges))
        }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    fail::status("ibv_post_srq_recv", || {
        // SAFETY: the caller's promise.
        unsafe {
            let find = || ibv_srq::pool().find(real(srq)?);
            let found = find().inspect_err(|_| blame(bad, wr))?;
            receives(wr, bad, |wr_id, sges| found.inner.post_recv(wr_id, sges))
        }
    })
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_send_wr_1_0,
    bad: *mut *mut ibv_send_wr_1_0,
) -> c_int {
    fail::status("ibv_post_send", || {
        // SAFETY: the caller's promise.
        unsafe {
            let find = || ibv_qp_ex::pool().find(real(qp)?);
            let found = find().inspect_err(|_| blame(bad, wr))?;
            let is_ud = found.inner.qp_type() == ironverbs::raw::QpType::Ud;
            let mut batch = found.inner.post_batch();
            each(
                wr,
                bad,
                |wr| wr.next,
                |wr| {
                    let today = today(wr, is_ud)?;
                    let request = send_wr(&today, &found.inner)?;
                    push(&mut batch, &request, elements(wr.sg_list, wr.num_sge)?)
                },
            )
        }
    })
}

/// # Safety
/// A datagram's address handle is null or points to readable memory of the structure's size.
unsafe fn today(wr: &ibv_send_wr_1_0, is_ud: bool) -> Result<ibv_send_wr, Failure> {
    // SAFETY: zeroes are valid for every field of the structure.
    let mut out: ibv_send_wr = unsafe { mem::zeroed() };
    (out.wr_id, out.sg_list, out.num_sge) = (wr.wr_id, wr.sg_list, wr.num_sge);
    (out.opcode, out.send_flags, out.imm_data) = (wr.opcode, wr.send_flags, wr.imm_data);
    out.wr = wr.wr;
    if is_ud {
        // SAFETY: the caller's promise; all members of the union are plain.
        unsafe { out.wr.ud.ah = real(wr.wr.ud.ah.cast::<ibv_ah_1_0>())? };
    }
    Ok(out)
}
