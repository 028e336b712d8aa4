//! Posting lists of work requests.

use std::ffi::c_int;
use std::{ptr, slice};

use ironverbs::raw as soft;
use soft::{MwType, Payload, PostError, SendFlags, SendWr, Sge, UdDest, WrOpcode};

use crate::abi::*;
use crate::fail::{Failure, Outcome, swift};
use crate::pool::Object;
use crate::{convert, mw, raw};

/// Elements that a list of this device may have; no queue is created with more.
const MAX_SGE: usize = 32;

/// Runs `post` on every request of a list. After a failure `*bad` is the first that was not posted;
/// those before it are.
///
/// # Safety
/// `first` is null or leads to a list of requests; `bad` is null or has room for a pointer.
pub(crate) unsafe fn each<W>(
    first: *mut W,
    bad: *mut *mut W,
    next: impl Fn(&W) -> *mut W,
    mut post: impl FnMut(&W) -> Outcome<()>,
) -> Outcome<()> {
    let mut wr = first;
    // SAFETY: the caller's promise.
    while let Some(request) = unsafe { wr.as_ref() } {
        if let Err(failure) = post(request) {
            // SAFETY: the caller's promise.
            unsafe { blame(bad, wr) };
            return Err(failure);
        }
        wr = next(request);
    }
    Ok(())
}

/// # Safety
/// `bad` is null or has room for a pointer.
pub(crate) unsafe fn blame<W>(bad: *mut *mut W, wr: *mut W) {
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad = wr };
    }
}

/// An element of a list, which may stand at any address: the kernel copies them, and some programs keep theirs in packed
/// structures.
#[derive(Copy, Clone)]
#[repr(C, packed)]
pub(crate) struct Element(ibv_sge);

impl Element {
    #[inline]
    pub(crate) fn get(self) -> ibv_sge {
        self.0
    }
}

/// The list of a request.
///
/// # Safety
/// `list` points to `count` elements, unless that is 0 or less.
pub(crate) unsafe fn elements<'a>(list: *const ibv_sge, count: c_int) -> Outcome<&'a [Element]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(Failure::Null { what: "list of elements" }),
        // SAFETY: the caller's promise.
        Ok(count) => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        Err(_) => Err(Failure::Argument { what: "num_sge", value: count as u64 }),
    }
}

/// Runs `work` on the device's form of a list, on the stack.
pub(crate) fn with_sges<T>(
    list: &[Element],
    work: impl FnOnce(&[Sge]) -> Result<T, PostError>,
) -> Result<T, PostError> {
    // Most lists are of one element, and an array of the longest costs more than the rest.
    if let [sge] = list {
        return work(&[convert::sge(&sge.get())]);
    }
    let mut sges = [Sge::default(); MAX_SGE];
    let Some(sges) = sges.get_mut(..list.len()) else {
        return Err(PostError::TooManySges { asked: list.len(), max: MAX_SGE as u32 });
    };
    for (to, from) in sges.iter_mut().zip(list) {
        *to = convert::sge(&from.get());
    }
    work(sges)
}

/// A receive request of one of the two ABIs.
pub(crate) trait RecvRequest {
    fn next(&self) -> *mut Self;
    fn wr_id(&self) -> u64;
    fn list(&self) -> (*mut ibv_sge, c_int);
}

impl RecvRequest for ibv_recv_wr {
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

/// Posts a list of receive requests to a queue.
///
/// # Safety
/// As for [`each`]; each request's list has as many elements as it says.
pub(crate) unsafe fn receives<W: RecvRequest>(
    first: *mut W,
    bad: *mut *mut W,
    mut post: impl FnMut(u64, &[Sge]) -> Result<(), PostError>,
) -> Outcome<()> {
    let one = |wr: &W| {
        let (list, count) = wr.list();
        // SAFETY: the caller's promise.
        let list = unsafe { elements(list, count)? };
        Ok(with_sges(list, |sges| post(wr.wr_id(), sges))?)
    };
    // SAFETY: the caller's promise.
    unsafe { each(first, bad, W::next, one) }
}

/// ibv_post_recv(3).
///
/// # Safety
/// As for [`crate::objects::find`]; `wr` is null or leads to a list of requests.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    swift::status("ibv_post_recv", || {
        // SAFETY: the caller's promise.
        unsafe {
            let found = match ibv_qp_ex::pool().find(qp) {
                Ok(found) => found,
                Err(failure) => {
                    let Some(qp) = raw::of(qp) else {
                        blame(bad, wr);
                        return Err(failure);
                    };
                    return raw::qp::post_recv(&qp, wr, bad);
                }
            };
            receives(wr, bad, |wr_id, sges| found.inner.post_recv(wr_id, sges))
        }
    })
}

/// ibv_post_srq_recv(3).
///
/// # Safety
/// As for [`post_recv`].
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    swift::status("ibv_post_srq_recv", || {
        // SAFETY: the caller's promise.
        unsafe {
            let found = ibv_srq::pool().find(srq).inspect_err(|_| blame(bad, wr))?;
            receives(wr, bad, |wr_id, sges| found.inner.post_recv(wr_id, sges))
        }
    })
}

/// ibv_post_send(3): the whole list is posted, then sent together.
///
/// # Safety
/// As for [`post_recv`]; the elements of inline requests name readable memory.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    swift::status("ibv_post_send", || {
        // SAFETY: the caller's promise.
        unsafe {
            let found = match ibv_qp_ex::pool().find(qp) {
                Ok(found) => found,
                Err(failure) => {
                    let Some(qp) = raw::of(qp) else {
                        blame(bad, wr);
                        return Err(failure);
                    };
                    return raw::qp::post_send(&qp, wr, bad);
                }
            };
            let mut batch = found.inner.post_batch();
            each(
                wr,
                bad,
                |wr| wr.next,
                |wr| {
                    let request = send_wr(wr, found.inner.as_ref())?;
                    let list = elements(wr.sg_list, wr.num_sge)?;
                    push(&mut batch, &request, list)
                },
            )
        }
    })
}

/// # Safety
/// If the request is inline, the list names readable memory.
pub(crate) unsafe fn push(
    batch: &mut soft::PostGuard<'_>,
    request: &SendWr,
    list: &[Element],
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe { with_payload(request, list, |data| batch.push(request, data)) }
}

/// Runs `work` on the data of a request.
///
/// # Safety
/// As for [`push`].
#[inline]
pub(crate) unsafe fn with_payload(
    request: &SendWr,
    list: &[Element],
    work: impl FnOnce(Payload<'_>) -> Result<(), PostError>,
) -> Outcome<()> {
    if request.flags.contains(SendFlags::INLINE) {
        let len = list.iter().map(|sge| sge.get().length as usize).sum();
        // SAFETY: the caller's promise.
        let mut copy = |to: &mut [u8]| unsafe { gather(list, to) };
        return Ok(work(Payload::Inline { len, copy: &mut copy })?);
    }
    Ok(with_sges(list, |sges| work(Payload::Sges(sges)))?)
}

/// # Safety
/// The list names readable memory.
unsafe fn gather(list: &[Element], mut to: &mut [u8]) {
    for sge in list.iter().map(|sge| sge.get()) {
        let len = sge.length as usize;
        let Some((head, rest)) = std::mem::take(&mut to).split_at_mut_checked(len) else { return };
        if len > 0 {
            let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            // SAFETY: the caller's promise; the queue's memory is not the program's.
            unsafe { ptr::copy_nonoverlapping(from, head.as_mut_ptr(), len) };
        }
        to = rest;
    }
}

/// The device's form of a request.
///
/// # Safety
/// A UD request's address handle is null or points to readable memory of the structure's size.
pub(crate) unsafe fn send_wr(wr: &ibv_send_wr, qp: &soft::Qp) -> Outcome<SendWr> {
    let opcode = convert::wr_opcode(wr.opcode)?;
    let mut request = SendWr {
        wr_id: wr.wr_id,
        opcode,
        flags: SendFlags::from_bits_truncate(wr.send_flags),
        imm: wr.imm_data.to_ne_bytes(),
        invalidate_rkey: wr.imm_data,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
        ud: None,
        xrc_srqn: if qp.qp_type() == soft::QpType::XrcSend { wr.remote_srqn } else { 0 },
    };
    // SAFETY: all members are plain numbers and pointers, for which every bit pattern is valid; the
    // operation and the QP's type say which is meant.
    unsafe {
        match opcode {
            _ if qp.qp_type() == soft::QpType::Ud => {
                let ud = wr.wr.ud;
                request.ud = Some(destination(ud.ah, ud.remote_qpn, ud.remote_qkey, qp)?);
            }
            WrOpcode::CompareSwap | WrOpcode::FetchAdd => {
                let atomic = wr.wr.atomic;
                (request.remote_addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            WrOpcode::Write | WrOpcode::WriteWithImm | WrOpcode::Read | WrOpcode::AtomicWrite => {
                let rdma = wr.wr.rdma;
                (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
            }
            WrOpcode::BindMw => {
                let asked = &wr.bind_mw;
                let bind = mw::binding(MwType::Two, asked.mw, asked.rkey, &asked.bind_info)?;
                request = SendWr::bind(wr.wr_id, request.flags, &bind);
            }
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv | WrOpcode::LocalInv => {
            }
        }
    }
    Ok(request)
}

/// Where a datagram goes.
///
/// # Safety
/// As for [`crate::objects::find`].
pub(crate) unsafe fn destination(
    ah: *const ibv_ah,
    qpn: u32,
    qkey: u32,
    qp: &soft::Qp,
) -> Outcome<UdDest> {
    // SAFETY: the caller's promise.
    let found = unsafe { ibv_ah::pool().find(ah)? };
    if !found.inner.pd().is_same(qp.pd()) {
        return Err(Failure::OtherDomain { what: "address handle" });
    }
    Ok(UdDest { path: found.inner.path(), qpn, qkey })
}
