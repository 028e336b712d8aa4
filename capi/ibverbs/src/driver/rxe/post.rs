//! Posting lists of requests.
//!
//! Pointers are the program's: to objects of this driver, lists that end with null, elements as many as a request says.

use std::ffi::c_int;

use ironverbs_kernel::queue::{self as commands, Queue};
use ironverbs_kernel::rxe::recv;
use ironverbs_kernel::rxe::send::{self, Head};
use ironverbs_sys::uverbs;

use super::super::command::{Errno, Extra, failed, issue};
use super::super::context::descriptor;
use super::memory::binding;
use super::objects::Ah;
use super::qp::Qp;
use super::queue::{Element, Writer};
use super::srq::Srq;
use crate::abi::*;
use crate::post::blame;

/// A send queue.
pub(super) struct Sends {
    pub(super) writer: Writer,
    /// Number of the next request.
    pub(super) ssn: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    /// What is wrong with the requests since ibv_wr_start, and the last of them.
    pub(super) problem: Errno,
    pub(super) last: Option<Element>,
}

impl Sends {
    /// With the limits that were granted, as far as the elements have room for them.
    pub(super) fn new(writer: Writer, cap: &ibv_qp_cap) -> Sends {
        let room = (writer.ring().element() - send::HEADER) as u32;
        Sends {
            writer,
            ssn: 0,
            max_sge: cap.max_send_sge.min(room / send::SGE as u32),
            max_inline: cap.max_inline_data.min(room),
            problem: 0,
            last: None,
        }
    }
}

/// A receive queue.
pub(super) struct Receives {
    pub(super) writer: Writer,
    max_sge: u32,
}

impl Receives {
    /// With the limit that was granted, as far as the elements have room for it.
    pub(super) fn new(writer: Writer, max_sge: u32) -> Receives {
        let max_sge = max_sge.min(recv::max_sge(writer.ring().element()));
        Receives { writer, max_sge }
    }
}

const RESET: u32 = 0;
const RTS: u32 = 3;
const ERR: u32 = 6;

/// Whether the queue pair takes send requests.
#[inline]
pub(super) fn sends(qp: &ibv_qp) -> bool {
    qp.state >= RTS
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let mut guard = (*qp.cast::<Qp>()).sends.lock();
        let Some(queue) = guard.as_mut() else { return failed(libc::EINVAL) };
        let (mut wr, mut errno) = (first, 0);
        while let Some(request) = wr.as_ref() {
            if let Err(wrong) = write(&*qp, queue, request) {
                blame(bad, wr);
                errno = wrong;
                break;
            }
            wr = request.next;
        }
        let new = queue.writer.show();
        drop(guard);
        if new && let Err(wrong) = ring(qp) {
            if errno == 0 {
                blame(bad, first);
            }
            errno = wrong;
        }
        if errno == 0 { 0 } else { failed(errno) }
    }
}

/// One request of the queue pair that binds a window.
///
/// # Safety
/// `qp` is this driver's.
pub(super) unsafe fn bind(qp: *mut ibv_qp, wr_id: u64, flags: u32, bind: &send::Bind) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let mut guard = (*qp.cast::<Qp>()).sends.lock();
        let Some(queue) = guard.as_mut().filter(|_| sends(&*qp)) else {
            return failed(libc::EINVAL);
        };
        let Some(mut element) = queue.writer.room() else { return failed(libc::ENOMEM) };
        send::head(&mut element, &Head { wr_id, opcode: send::BIND_MW, flags, imm: 0 });
        send::bind(&mut element, bind);
        send::tail(&mut element, queue.ssn, 0, 0);
        queue.ssn = queue.ssn.wrapping_add(1);
        queue.writer.push();
        queue.writer.show();
        drop(guard);
        match ring(qp) {
            Ok(()) => 0,
            Err(errno) => failed(errno),
        }
    }
}

const UD: u32 = 4;

/// Writes a request to the queue.
///
/// # Safety
/// As for [`post_send`].
#[inline]
unsafe fn write(qp: &ibv_qp, queue: &mut Sends, wr: &ibv_send_wr) -> Result<(), Errno> {
    let (opcode, flags, sges) = (wr.opcode, wr.send_flags, wr.num_sge as u32);
    if !sends(qp) || sges > queue.max_sge || !send::is_known(opcode) {
        return Err(libc::EINVAL);
    }
    let mut element = queue.writer.room().ok_or(libc::ENOMEM)?;
    send::head(&mut element, &Head { wr_id: wr.wr_id, opcode, flags, imm: wr.imm_data });
    // SAFETY: the caller's promise; the opcode says which part of the union is there.
    let (length, sges) = unsafe {
        if qp.qp_type == UD {
            let ud = wr.wr.ud;
            destination(&mut element, ud.ah, ud.remote_qpn, ud.remote_qkey)?;
        } else {
            match opcode {
                send::RDMA_WRITE | send::RDMA_WRITE_WITH_IMM | send::RDMA_READ => {
                    send::rdma(&mut element, wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
                }
                send::ATOMIC_CMP_AND_SWP | send::ATOMIC_FETCH_AND_ADD => {
                    let at = wr.wr.atomic;
                    if !at.remote_addr.is_multiple_of(8) || !has_a_number(wr.sg_list, sges) {
                        return Err(libc::EINVAL);
                    }
                    let (compare_add, swap) = (at.compare_add, at.swap);
                    send::atomic(&mut element, at.remote_addr, compare_add, swap, at.rkey);
                }
                send::BIND_MW => {
                    let of = &wr.bind_mw;
                    let only = sges == 0 && of.mw.as_ref().is_some_and(|mw| mw.type_ == 2);
                    let bind = binding((&raw const *qp).cast_mut(), of.mw, of.rkey, &of.bind_info);
                    send::bind(&mut element, &bind.filter(|_| only).ok_or(libc::EINVAL)?);
                }
                _ => {}
            }
        }
        match flags & send::INLINE {
            0 => (gather(element, wr.sg_list, sges)?, sges),
            _ if !has_inline(opcode) => return Err(libc::EINVAL),
            _ => (inline(element, wr.sg_list, sges, queue.max_inline)?, 0),
        }
    };
    send::tail(&mut element, queue.ssn, length, sges);
    queue.ssn = queue.ssn.wrapping_add(1);
    queue.writer.push();
    Ok(())
}

/// Whether the entries have room for what an atomic brings back.
///
/// # Safety
/// The list has so many entries.
#[inline]
unsafe fn has_a_number(list: *const ibv_sge, sges: u32) -> bool {
    // SAFETY: the caller's promise.
    let mut lengths =
        (0..sges as usize).map(|i| u64::from(unsafe { list.add(i).read_unaligned() }.length));
    let first = lengths.next().unwrap_or(0);
    first >= 8 || lengths.sum::<u64>() + first >= 8
}

/// Whether a request of that kind takes data along.
#[inline]
pub(super) fn has_inline(opcode: u32) -> bool {
    !matches!(opcode, send::RDMA_READ | send::ATOMIC_CMP_AND_SWP | send::ATOMIC_FETCH_AND_ADD)
}

/// Writes a datagram's destination.
///
/// # Safety
/// `ah` is null or an address handle of this driver.
#[inline]
pub(super) unsafe fn destination(
    element: &mut Element,
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let ah = unsafe { ah.cast::<Ah>().as_ref() }.ok_or(libc::EINVAL)?;
    send::datagram(element, qpn, qkey, ah.number);
    if let Some(address) = &ah.address {
        send::address(element, address);
    }
    Ok(())
}

/// Copies a list behind the request; gives its length.
///
/// # Safety
/// The list has so many entries, for which the element has room.
#[inline]
pub(super) unsafe fn gather(
    element: Element,
    list: *const ibv_sge,
    sges: u32,
) -> Result<u32, Errno> {
    let mut total = 0_u32;
    for i in 0..sges as usize {
        // SAFETY: the caller's promise; an entry has the same fields for the kernel.
        unsafe {
            let sge = list.add(i);
            element.copy(send::HEADER + i * send::SGE, sge.cast(), send::SGE);
            total = total.checked_add(sge.read_unaligned().length).ok_or(libc::EINVAL)?;
        }
    }
    Ok(total)
}

/// Copies the data itself behind the request; gives its length.
///
/// # Safety
/// The list has so many entries; the element has room for `max` bytes.
#[inline]
unsafe fn inline(
    element: Element,
    list: *const ibv_sge,
    sges: u32,
    max: u32,
) -> Result<u32, Errno> {
    let mut total = 0_u32;
    for i in 0..sges as usize {
        // SAFETY: the caller's promise.
        unsafe {
            let sge = list.add(i).read_unaligned();
            total = append(element, total, sge.addr as usize, sge.length as usize, max)?;
        }
    }
    Ok(total)
}

/// Appends data to what is there; gives the new length.
///
/// # Safety
/// The address is of so many bytes; the element has room for `max` bytes behind the request.
#[inline]
pub(super) unsafe fn append(
    element: Element,
    total: u32,
    addr: usize,
    length: usize,
    max: u32,
) -> Result<u32, Errno> {
    if length > (max - total) as usize {
        return Err(libc::EINVAL);
    }
    let from = std::ptr::with_exposed_provenance::<u8>(addr);
    // SAFETY: the caller's promise; with it the total stays within `max`.
    unsafe { element.copy(send::HEADER + total as usize, from, length) };
    Ok(total + length as u32)
}

/// Tells the kernel that there is something to send.
///
/// # Safety
/// `qp` is this driver's.
#[inline]
pub(super) unsafe fn ring(qp: *mut ibv_qp) -> Result<(), Errno> {
    let mut answer = [0_u8; 4];
    // SAFETY: the caller's promise; the answer is there during the call.
    unsafe {
        let room = answer.as_mut_ptr().expose_provenance() as u64;
        let told = commands::doorbell((*qp).handle, room);
        match uverbs::write(descriptor((*qp).context), &told) {
            Ok(()) => Ok(()),
            Err(error) => refused(qp, error),
        }
    }
}

/// Apart from [`ring`], which then keeps nothing for what never happens.
///
/// # Safety
/// As for [`ring`].
#[cold]
#[inline(never)]
unsafe fn refused(qp: *mut ibv_qp, error: std::io::Error) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { ring_again(qp, Queue::Send, error.raw_os_error()) }
}

/// By the way of all other commands: writing is refused to a process that changed its user.
///
/// # Safety
/// As for [`ring`].
#[cold]
unsafe fn ring_again(qp: *mut ibv_qp, queue: Queue, errno: Option<Errno>) -> Result<(), Errno> {
    match errno {
        // SAFETY: the caller's promise.
        Some(libc::EACCES) | None => unsafe {
            let command = commands::post(queue, (*qp).handle, &[], &[]);
            issue((*qp).context, &command, Extra::NONE).map(drop)
        },
        Some(errno) => Err(errno),
    }
}

/// # Safety
/// As for the verbs.
#[inline]
unsafe fn receive(
    queue: &mut Receives,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Errno {
    let (mut wr, mut errno) = (first, 0);
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let sges = request.num_sge as u32;
            let room = match sges > queue.max_sge {
                true => Err(libc::EINVAL),
                false => queue.writer.room().ok_or(libc::ENOMEM),
            };
            let written = room.and_then(|mut element| {
                let mut total = 0_u32;
                for i in 0..sges as usize {
                    let sge = request.sg_list.add(i).cast_const();
                    element.copy(recv::HEADER + i * recv::SGE, sge.cast(), recv::SGE);
                    total = total.checked_add(sge.read_unaligned().length).ok_or(libc::EINVAL)?;
                }
                recv::put(&mut element, request.wr_id, total, sges);
                queue.writer.push();
                Ok(())
            });
            if let Err(wrong) = written {
                blame(bad, wr);
                errno = wrong;
                break;
            }
            wr = request.next;
        }
    }
    queue.writer.show();
    errno
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let mut guard = (*qp.cast::<Qp>()).receives.lock();
        let Some(queue) = guard.as_mut().filter(|_| (*qp).state != RESET) else {
            blame(bad, first);
            return failed(libc::EINVAL);
        };
        let errno = receive(queue, first, bad);
        drop(guard);
        if (*qp).state == ERR {
            // Nothing comes in any more that would make the kernel look: it is to flush them.
            let _ = ring_again(qp, Queue::Recv, None);
        }
        if errno == 0 { 0 } else { failed(errno) }
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let mut guard = (*srq.cast::<Srq>()).receives.lock();
        let Some(queue) = guard.as_mut() else { return failed(libc::EINVAL) };
        match receive(queue, first, bad) {
            0 => 0,
            errno => failed(errno),
        }
    }
}
