//! Posting lists of requests.
//!
//! Pointers are the program's: to objects of this driver, lists that end with null, elements as many as a request says.

use std::ffi::c_int;

use ironverbs_kernel::queue::{self as commands, Queue as Of};
use ironverbs_kernel::siw::{MAX_SGE, request};
use ironverbs_sys::uverbs;
use parking_lot::Mutex;

use super::super::command::{Errno, Extra, failed, issue};
use super::super::context::descriptor;
use super::qp::Qp;
use super::ring::{Element, Writer};
use super::srq::Srq;
use crate::abi::*;
use crate::post::blame;

/// A send queue.
pub(super) struct Sends {
    pub(super) writer: Writer,
    /// Every request is to be completed (`sq_sig_all`).
    pub(super) signals_all: bool,
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
        let since = queue.writer.count();
        let (mut wr, mut errno) = (first, 0);
        while let Some(request) = wr.as_ref() {
            if let Err(wrong) = write(queue, request) {
                blame(bad, wr);
                errno = wrong;
                break;
            }
            wr = request.next;
        }
        if queue.writer.needs_bell(since)
            && let Err(wrong) = ring(qp)
            // What the kernel has begun all the same will be completed.
            && queue.writer.take_back(since)
        {
            blame(bad, first);
            errno = wrong;
        }
        if errno == 0 { 0 } else { failed(errno) }
    }
}

/// The entries of a list that have any bytes. Of others the kernel does not look up the region, and falls over that; but a READ's
/// has to have one.
#[derive(Default)]
struct Filled {
    entries: [ibv_sge; MAX_SGE],
    count: usize,
}

impl Filled {
    /// Adds those of a list, or all of them.
    ///
    /// # Errors
    /// EINVAL for more than there is room for.
    ///
    /// # Safety
    /// The list has so many entries.
    #[inline]
    unsafe fn take(
        &mut self,
        list: *const ibv_sge,
        entries: usize,
        all: bool,
    ) -> Result<(), Errno> {
        if entries > MAX_SGE {
            return Err(libc::EINVAL);
        }
        for i in 0..entries {
            // SAFETY: the caller's promise.
            let entry = unsafe { list.add(i).read_unaligned() };
            if (all || entry.length > 0)
                && let Some(place) = self.entries.get_mut(self.count)
            {
                *place = entry;
                self.count += 1;
            }
        }
        Ok(())
    }
}

/// Writes a request to the queue.
///
/// # Safety
/// As for [`post_send`].
#[inline]
unsafe fn write(queue: &mut Sends, wr: &ibv_send_wr) -> Result<(), Errno> {
    let sges = wr.num_sge as u32 as usize;
    let signaled = if queue.signals_all { request::SIGNALED } else { 0 };
    let mut filled = Filled::default();
    if wr.send_flags & request::INLINE == 0 {
        // SAFETY: the caller's promise.
        unsafe { filled.take(wr.sg_list, sges, wr.opcode == request::RDMA_READ)? };
    }
    let flags = wr.send_flags | signaled;
    let word = request::send_word(wr.opcode, flags, filled.count).ok_or(libc::EINVAL)?;
    let element = queue.writer.room().ok_or(libc::ENOMEM)?;
    // SAFETY: the caller's promise: the opcode says which part of the union is there. The element is ours, and places and
    // lengths are within it: `send_word` has seen to the number of entries, `inline` sees to the length.
    unsafe {
        element.put64(request::ID, wr.wr_id);
        match wr.opcode {
            request::RDMA_WRITE | request::RDMA_READ => {
                element.put32(request::RKEY, wr.wr.rdma.rkey);
                element.put64(request::REMOTE_ADDRESS, wr.wr.rdma.remote_addr);
            }
            // The key to invalidate, in the same place as immediate data.
            request::SEND_WITH_INV => element.put32(request::RKEY, wr.imm_data),
            _ => {}
        }
        if wr.send_flags & request::INLINE != 0 {
            inline(element, wr.sg_list, sges)?;
        } else {
            element.list(request::SEND_LIST, &filled.entries, filled.count);
        }
    }
    queue.writer.push(element, word);
    Ok(())
}

/// Copies the data itself into the request, and its length into the first entry.
///
/// # Safety
/// The list has so many entries; the element is a free one of a send queue.
#[inline]
unsafe fn inline(element: Element, list: *const ibv_sge, sges: usize) -> Result<(), Errno> {
    let mut total = 0;
    for i in 0..sges {
        // SAFETY: the caller's promise; the element has room for `MAX_INLINE` bytes.
        unsafe {
            let sge = list.add(i).read_unaligned();
            let length = sge.length as usize;
            if length > request::MAX_INLINE - total {
                return Err(libc::EINVAL);
            }
            let from = std::ptr::with_exposed_provenance(sge.addr as usize);
            element.copy(request::INLINE_DATA + total, from, length);
            total += length;
        }
    }
    // SAFETY: within the element: the entry's address and key, which nobody reads, and its length.
    unsafe {
        element.put64(request::SEND_LIST, 0);
        element.put32(request::SEND_LIST + 8, total as u32);
        element.put32(request::SEND_LIST + 12, 0);
    }
    Ok(())
}

/// Tells the kernel that there is something to send.
///
/// # Safety
/// `qp` is this driver's.
#[inline]
unsafe fn ring(qp: *mut ibv_qp) -> Result<(), Errno> {
    let mut answer = [0_u8; 4];
    // SAFETY: the caller's promise; the answer is there during the call.
    unsafe {
        let room = answer.as_mut_ptr().expose_provenance() as u64;
        let told = commands::doorbell((*qp).handle, room);
        match uverbs::write(descriptor((*qp).context), &told).map_err(|e| e.raw_os_error()) {
            Ok(()) => Ok(()),
            // By the way of all other commands: writing is refused to a process that changed its user.
            Err(Some(libc::EACCES) | None) => {
                let command = commands::post(Of::Send, (*qp).handle, &[], &[]);
                issue((*qp).context, &command, Extra::NONE).map(drop)
            }
            Err(Some(errno)) => Err(errno),
        }
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { receive(&(*qp.cast::<Qp>()).receives, first, bad) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { receive(&(*srq.cast::<Srq>()).receives, first, bad) }
}

/// # Safety
/// As for the verbs.
#[inline]
unsafe fn receive(
    queue: &Mutex<Option<Writer>>,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut guard = queue.lock();
    let mut wr = first;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(request) = wr.as_ref() {
            let written = match guard.as_mut() {
                Some(writer) => take(writer, request),
                None => Err(libc::EINVAL),
            };
            if let Err(errno) = written {
                blame(bad, wr);
                return failed(errno);
            }
            wr = request.next;
        }
    }
    0
}

/// Writes a request to receive to the queue.
///
/// # Safety
/// As for the verbs.
#[inline]
unsafe fn take(writer: &mut Writer, wr: &ibv_recv_wr) -> Result<(), Errno> {
    let sges = wr.num_sge as u32 as usize;
    let mut filled = Filled::default();
    // SAFETY: the caller's promise.
    unsafe { filled.take(wr.sg_list, sges, false)? };
    let word = request::receive_word(filled.count).ok_or(libc::EINVAL)?;
    let element = writer.room().ok_or(libc::ENOMEM)?;
    // SAFETY: the caller's promise; the element is ours and has room for as many entries as `receive_word` lets through.
    unsafe {
        element.put64(request::ID, wr.wr_id);
        element.list(request::RECEIVE_LIST, &filled.entries, filled.count);
    }
    writer.push(element, word);
    Ok(())
}
