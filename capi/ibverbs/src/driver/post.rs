//! The data path through the kernel, for drivers without one of their own.
//!
//! All pointers are the driver's, and through it the program's: lists end with null.

use std::ffi::c_int;
use std::slice;

use ironverbs_kernel::command::{Bytes, Response};
use ironverbs_kernel::queue::{self, Queue, WC};

use super::command::{Errno, Extra, failed, issue};
use crate::abi::*;
use crate::fail;

/// `ibv_cmd_poll_cq`.
pub(crate) unsafe extern "C" fn cmd_poll_cq(cq: *mut ibv_cq, max: c_int, wc: *mut ibv_wc) -> c_int {
    let max = u32::try_from(max).unwrap_or(0);
    // SAFETY: the driver's promise.
    let response = unsafe { issue((*cq).context, &queue::poll_cq((*cq).handle, max), Extra::NONE) };
    let response = match response {
        Ok(response) => response,
        Err(errno) => {
            fail::set_errno(errno);
            return -1;
        }
    };
    let r = Response(&response);
    let n = r.u32(0).min(max);
    for i in 0..n as usize {
        let at = |field: usize| 8 + i * WC + field;
        let entry = ibv_wc {
            wr_id: r.u64(at(0)),
            status: r.u32(at(8)),
            opcode: r.u32(at(12)),
            vendor_err: r.u32(at(16)),
            byte_len: r.u32(at(20)),
            imm_data: r.u32(at(24)),
            qp_num: r.u32(at(28)),
            src_qp: r.u32(at(32)),
            wc_flags: r.u32(at(36)),
            pkey_index: r.u16(at(40)),
            slid: r.u16(at(42)),
            sl: r.u8(at(44)),
            dlid_path_bits: r.u8(at(45)),
        };
        // SAFETY: the driver's promise: room for `max`.
        unsafe { wc.add(i).write(entry) };
    }
    n as c_int
}

/// The scatter/gather entries of a request, appended as the kernel has them, which is as the header has them.
///
/// # Safety
/// `list` has `n` entries.
unsafe fn gather(out: &mut Vec<u8>, list: *const ibv_sge, n: c_int) -> Result<u32, Errno> {
    let n = u32::try_from(n).map_err(|_| libc::EINVAL)?;
    if n > 0 && list.is_null() {
        return Err(libc::EINVAL);
    }
    if n > 0 {
        // SAFETY: the caller's promise; the entries have no padding.
        let bytes = unsafe { slice::from_raw_parts(list.cast::<u8>(), n as usize * queue::SGE) };
        out.extend_from_slice(bytes);
    }
    Ok(n)
}

/// Which request of a list a call refused: the kernel counts from 1.
fn refused<T>(
    result: Result<Vec<u8>, Errno>,
    first: *mut T,
    next: impl Fn(*mut T) -> *mut T,
    bad: *mut *mut T,
) -> c_int {
    let (errno, number) = match result {
        Ok(response) => (0, Response(&response).u32(0)),
        Err(errno) => (errno, 1),
    };
    if number > 0 && !bad.is_null() {
        let at = (1..number).fold(first, |wr, _| if wr.is_null() { wr } else { next(wr) });
        // SAFETY: the driver's promise: room for a pointer.
        unsafe { *bad = at };
    }
    match (errno, number) {
        (0, 0) => 0,
        (0, _) => failed(libc::EINVAL),
        (errno, _) => failed(errno),
    }
}

const UD: u32 = 4;
const RDMA_WRITE: u32 = 0;
const RDMA_WRITE_WITH_IMM: u32 = 1;
const RDMA_READ: u32 = 4;
const CMP_AND_SWP: u32 = 5;
const FETCH_AND_ADD: u32 = 6;

/// `ibv_cmd_post_send`.
pub(crate) unsafe extern "C" fn cmd_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let work = || {
        let (mut requests, mut sges, mut at) = (Vec::new(), Vec::new(), wr);
        // SAFETY: the driver's promise; the opcode says which part of the union is there.
        unsafe {
            while let Some(send) = at.as_ref() {
                let n = gather(&mut sges, send.sg_list, send.num_sge)?;
                let rest = if (*qp).qp_type == UD {
                    let ud = send.wr.ud;
                    if ud.ah.is_null() {
                        return Err(libc::EINVAL);
                    }
                    Bytes::new().u32((*ud.ah).handle).u32(ud.remote_qpn).u32(ud.remote_qkey)
                } else {
                    match send.opcode {
                        RDMA_WRITE | RDMA_WRITE_WITH_IMM | RDMA_READ => {
                            Bytes::new().u64(send.wr.rdma.remote_addr).u32(send.wr.rdma.rkey)
                        }
                        CMP_AND_SWP | FETCH_AND_ADD => {
                            let atomic = send.wr.atomic;
                            let what = Bytes::new().u64(atomic.remote_addr).u64(atomic.compare_add);
                            what.u64(atomic.swap).u32(atomic.rkey)
                        }
                        _ => Bytes::new(),
                    }
                };
                let left = 32 - rest.0.len();
                let rest = rest.zeros(left).0.first_chunk().copied().unwrap_or([0; 32]);
                let (flags, imm) = (send.send_flags, send.imm_data);
                requests.push(queue::send_wr(send.wr_id, n, send.opcode, flags, imm, rest));
                at = send.next;
            }
            let command = queue::post(Queue::Send, (*qp).handle, &requests, &sges);
            issue((*qp).context, &command, Extra::NONE)
        }
    };
    // SAFETY: the driver's promise.
    refused(work(), wr, |wr| unsafe { (*wr).next }, bad)
}

/// # Safety
/// As for the calls.
unsafe fn post_recv(
    context: *mut ibv_context,
    queue: Queue,
    handle: u32,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let work = || {
        let (mut requests, mut sges, mut at) = (Vec::new(), Vec::new(), wr);
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(recv) = at.as_ref() {
                let n = gather(&mut sges, recv.sg_list, recv.num_sge)?;
                requests.push(queue::recv_wr(recv.wr_id, n));
                at = recv.next;
            }
            issue(context, &queue::post(queue, handle, &requests, &sges), Extra::NONE)
        }
    };
    // SAFETY: the driver's promise.
    refused(work(), wr, |wr| unsafe { (*wr).next }, bad)
}

/// `ibv_cmd_post_recv`.
pub(crate) unsafe extern "C" fn cmd_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the driver's promise.
    unsafe { post_recv((*qp).context, Queue::Recv, (*qp).handle, wr, bad) }
}

/// `ibv_cmd_post_srq_recv`.
pub(crate) unsafe extern "C" fn cmd_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the driver's promise.
    unsafe { post_recv((*srq).context, Queue::Srq, (*srq).handle, wr, bad) }
}
