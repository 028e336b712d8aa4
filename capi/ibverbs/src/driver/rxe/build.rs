//! The extended way to post sends: ibv_wr_start, one call for each request, ibv_wr_complete (ibv_wr_post(3)).
//!
//! Requests are written to the queue's elements as they come, and shown to the kernel by ibv_wr_complete, all or none. From
//! start to complete or abort the queue is locked.
//!
//! Pointers are the program's: to objects of this driver.

use std::ffi::{c_int, c_void};
use std::mem;

use ironverbs_kernel::rxe::send::{self, Head};

use super::super::command::failed;
use super::memory::binding;
use super::post::{self, Sends};
use super::qp::Qp;
use super::queue::Element;
use crate::abi::*;

const OF_RC: u64 = IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV;
const OF_UC: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;
const OF_ALL: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

/// Whether queue pairs of that type have all these operations.
pub(super) fn knows(qp_type: u32, ops: u64) -> bool {
    const RC: u32 = 2;
    const UC: u32 = 3;
    let possible = match qp_type {
        RC => OF_RC | OF_UC | OF_ALL,
        UC => OF_UC | OF_ALL,
        _ => OF_ALL,
    };
    ops & !possible == 0
}

/// Fills the table of a queue pair with what was asked for.
pub(super) fn install(qp: &mut ibv_qp_ex, ops: u64) {
    let asked = |bit: u64| ops & bit != 0;
    qp.wr_atomic_cmp_swp = asked(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp as _);
    qp.wr_atomic_fetch_add =
        asked(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add as _);
    qp.wr_bind_mw = asked(IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw as _);
    qp.wr_local_inv = asked(IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv as _);
    qp.wr_rdma_read = asked(IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read as _);
    qp.wr_rdma_write = asked(IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write as _);
    qp.wr_rdma_write_imm = asked(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    qp.wr_send = asked(IBV_QP_EX_WITH_SEND).then_some(send as _);
    qp.wr_send_imm = asked(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm as _);
    qp.wr_send_inv = asked(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv as _);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the call's promise.
    unsafe {
        let mut guard = (*qp.cast::<Qp>()).sends.lock();
        if let Some(queue) = guard.as_mut() {
            queue.problem = if post::sends(&(*qp).qp_base) { 0 } else { libc::EINVAL };
            queue.last = None;
        }
        // Complete or abort unlock it.
        mem::forget(guard);
    }
}

/// The queue, which the caller has locked by [`start`].
///
/// # Safety
/// The caller is between start and complete or abort.
#[inline]
unsafe fn locked<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut Sends> {
    // SAFETY: the caller's promise.
    unsafe { (*(*qp.cast::<Qp>()).sends.data_ptr()).as_mut() }
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the call's promise.
    unsafe {
        let Some(queue) = locked(qp) else { return failed(libc::EINVAL) };
        let errno = queue.problem;
        let new = match errno {
            0 => queue.writer.show(),
            _ => {
                queue.writer.take_back();
                false
            }
        };
        (*qp.cast::<Qp>()).sends.force_unlock();
        if errno != 0 {
            return failed(errno);
        }
        match new.then(|| post::ring(qp.cast())) {
            Some(Err(errno)) => failed(errno),
            _ => 0,
        }
    }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the call's promise.
    unsafe {
        if let Some(queue) = locked(qp) {
            queue.writer.take_back();
        }
        (*qp.cast::<Qp>()).sends.force_unlock();
    }
}

/// Begins a request without data, of which `fill` writes what its kind has; after a problem, nothing more is written.
///
/// # Safety
/// As for [`locked`].
#[inline]
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    opcode: u32,
    imm: u32,
    fill: impl FnOnce(&mut Element) -> Result<(), c_int>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(queue) = locked(qp) else { return };
        queue.last = None;
        if queue.problem != 0 {
            return;
        }
        let Some(mut element) = queue.writer.room() else {
            queue.problem = libc::ENOMEM;
            return;
        };
        // Whether the data is inline is the setter's to say.
        let flags = (*qp).wr_flags & !send::INLINE;
        send::head(&mut element, &Head { wr_id: (*qp).wr_id, opcode, flags, imm });
        send::tail(&mut element, queue.ssn, 0, 0);
        match fill(&mut element) {
            Ok(()) => {
                queue.ssn = queue.ssn.wrapping_add(1);
                queue.writer.push();
                queue.last = Some(element);
            }
            Err(errno) => queue.problem = errno,
        }
    }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the call's promise.
    unsafe { begin(qp, send::SEND, 0, |_| Ok(())) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the call's promise.
    unsafe { begin(qp, send::SEND_WITH_IMM, imm, |_| Ok(())) }
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the call's promise.
    unsafe { begin(qp, send::SEND_WITH_INV, rkey, |_| Ok(())) }
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the call's promise.
    unsafe { begin(qp, send::LOCAL_INV, rkey, |_| Ok(())) }
}

unsafe fn rdma(qp: *mut ibv_qp_ex, opcode: u32, rkey: u32, remote_addr: u64, imm: u32) {
    let fill = |element: &mut Element| {
        send::rdma(element, remote_addr, rkey);
        Ok(())
    };
    // SAFETY: the call's promise.
    unsafe { begin(qp, opcode, imm, fill) }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the call's promise.
    unsafe { rdma(qp, send::RDMA_READ, rkey, remote_addr, 0) }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the call's promise.
    unsafe { rdma(qp, send::RDMA_WRITE, rkey, remote_addr, 0) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: the call's promise.
    unsafe { rdma(qp, send::RDMA_WRITE_WITH_IMM, rkey, remote_addr, imm) }
}

unsafe fn atomic(qp: *mut ibv_qp_ex, opcode: u32, rkey: u32, remote_addr: u64, operands: [u64; 2]) {
    let fill = |element: &mut Element| {
        if !remote_addr.is_multiple_of(8) {
            return Err(libc::EINVAL);
        }
        let [compare_add, swap] = operands;
        send::atomic(element, remote_addr, compare_add, swap, rkey);
        Ok(())
    };
    // SAFETY: the call's promise.
    unsafe { begin(qp, opcode, 0, fill) }
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the call's promise.
    unsafe { atomic(qp, send::ATOMIC_CMP_AND_SWP, rkey, remote_addr, [compare, swap]) }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: the call's promise.
    unsafe { atomic(qp, send::ATOMIC_FETCH_AND_ADD, rkey, remote_addr, [add, 0]) }
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the call's promise.
    unsafe {
        let fill = |element: &mut Element| {
            let kind = mw.as_ref().map(|mw| mw.type_);
            let info = info.as_ref().filter(|_| kind == Some(2)).ok_or(libc::EINVAL)?;
            let bind = binding(qp.cast(), mw, rkey, info).ok_or(libc::EINVAL)?;
            send::bind(element, &bind);
            Ok(())
        };
        begin(qp, send::BIND_MW, 0, fill);
    }
}

/// Sets something of the last request; what is wrong with it is wrong with all of them.
///
/// # Safety
/// As for [`locked`].
#[inline]
unsafe fn set(
    qp: *mut ibv_qp_ex,
    work: impl FnOnce(&mut Sends, &mut Element) -> Result<(), c_int>,
) {
    // SAFETY: the caller's promise.
    let Some(queue) = (unsafe { locked(qp) }) else { return };
    let done = match queue.last {
        Some(mut element) => work(queue, &mut element),
        // A setter without a request.
        None => Err(libc::EINVAL),
    };
    if let Err(errno) = done
        && queue.problem == 0
    {
        queue.problem = errno;
    }
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the call's promise.
    unsafe { set(qp, |_, element| post::destination(element, ah, remote_qpn, remote_qkey)) }
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the call's promise.
    unsafe { set_sge_list(qp, 1, &raw const sge) }
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the call's promise.
    unsafe {
        set(qp, |queue, element| {
            if count > queue.max_sge as usize {
                return Err(libc::EINVAL);
            }
            let total = post::gather(*element, list, count as u32)?;
            send::data(element, total, count as u32);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: the call's promise.
    unsafe { set_inline_data_list(qp, 1, &raw const buffer) }
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the call's promise.
    unsafe {
        set(qp, |queue, element| {
            let mut total = 0;
            for i in 0..count {
                let ibv_data_buf { addr, length } = *list.add(i);
                let addr = addr.expose_provenance();
                total = post::append(*element, total, addr, length, queue.max_inline)?;
            }
            send::mark_inline(element, (*qp).wr_flags);
            send::data(element, total, 0);
            Ok(())
        });
    }
}
