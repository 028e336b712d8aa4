//! Completion queues: creation, both ways to poll, resizing.
//!
//! Pointers are the program's and the library's: to objects of this driver, with room as the verbs say.

use std::ffi::{c_int, c_void};
use std::{mem, ptr};

use ironverbs_kernel::command::Response;
use ironverbs_kernel::queue::{self as commands, CreateCq, WC};
use ironverbs_kernel::rxe::{self, Area};
use parking_lot::Mutex;

use super::super::command::{Extra, failed, issue, status};
use super::super::cq::make_cq;
use super::queue::Queue;
use super::{free_if, zeroed};
use crate::abi::*;
use crate::driver::cmd_destroy_cq;
use crate::fail;

/// The kernel's completions are as long as the program's, and have the same fields in the same places.
const _: () = assert!(size_of::<ibv_wc>() == WC);

/// A completion queue. The public part starts it.
#[repr(C)]
pub(super) struct Cq {
    public: ibv_cq_ex,
    /// What the functions of the extended way to poll read: the completion that was shown last. Written by who has the lock.
    shown: *const ibv_wc,
    reader: Mutex<Reader>,
}

/// What is shown before anything was.
static NONE: Blank = Blank([0; WC]);

#[repr(C, align(8))]
struct Blank([u8; WC]);

impl Blank {
    fn shown(&'static self) -> *const ibv_wc {
        (&raw const self.0).cast()
    }
}

/// The reading end.
struct Reader {
    queue: Queue,
    /// What is read next.
    next: u32,
}

impl Reader {
    fn new(queue: Queue) -> Reader {
        Reader { next: queue.consumer(), queue }
    }

    /// What was shown was read: the kernel may have its place.
    #[inline]
    fn pop(&mut self) {
        self.next = self.queue.ring.next(self.next);
        self.queue.consumed(self.next);
    }
}

/// # Safety
/// As for the verbs.
unsafe fn create(
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cqe: u32,
    vector: u32,
) -> *mut Cq {
    // SAFETY: the verbs' promise; zeros are a valid structure but for the mutex, which is written.
    unsafe {
        let cq = zeroed::<Cq>();
        if cq.is_null() {
            return cq;
        }
        (&raw mut (*cq).reader).write(Mutex::new(Reader::new(Queue::nothing())));
        (*cq).shown = NONE.shown();
        let made = || {
            let mut response = [0_u8; 8 + rxe::CQ_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, 8)?;
            let user = cq.expose_provenance() as u64;
            let wanted = CreateCq { user, cqe, vector, channel: None, flags: 0 };
            let public = &raw mut (*cq).public.base;
            make_cq(context, public, channel, wanted, extra)?;
            let area = Area::read(Response(&response), 8);
            match Queue::map(context, area, WC) {
                Ok(queue) => {
                    *(*cq).reader.lock() = Reader::new(queue);
                    Ok(())
                }
                Err(errno) => {
                    cmd_destroy_cq(public);
                    Err(errno)
                }
            }
        };
        if let Err(errno) = made() {
            libc::free(cq.cast());
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        cq
    }
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the verb's promise.
    unsafe { create(context, channel, cqe as u32, comp_vector as u32) }.cast()
}

/// Fields that completions of this device have.
const FIELDS: u64 = (1 << 7) - 1;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the verb's promise; `flags` is there if its bit is set.
    unsafe {
        let mask = (*attr).comp_mask;
        let flags = if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { (*attr).flags } else { 0 };
        let known = mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS == 0
            && flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED == 0
            && (*attr).wc_flags & !FIELDS == 0;
        if !known {
            fail::set_errno(libc::EOPNOTSUPP);
            return ptr::null_mut();
        }
        let cq = create(context, (*attr).channel, (*attr).cqe, (*attr).comp_vector);
        if !cq.is_null() {
            install(&mut (*cq).public, (*attr).wc_flags);
        }
        cq.cast()
    }
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the verb's promise. Nobody polls while the kernel copies what is in the queue to another one.
    status(unsafe {
        let mut reader = (*cq.cast::<Cq>()).reader.lock();
        let mut work = || {
            let mut response = [0_u8; 8 + rxe::CQ_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, 8)?;
            let command = commands::resize_cq((*cq).handle, cqe as u32);
            let told = issue((*cq).context, &command, extra)?;
            let area = Area::read(Response(&response), 8);
            *reader = Reader::new(Queue::map((*cq).context, area, WC)?);
            (*cq.cast::<Cq>()).shown = NONE.shown();
            (*cq).cqe = Response(&told).u32(0) as c_int;
            Ok(())
        };
        work()
    })
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the verb's promise; what ended is used no more.
    unsafe {
        let errno = cmd_destroy_cq(cq);
        if errno == 0 {
            *(*cq.cast::<Cq>()).reader.lock() = Reader::new(Queue::nothing());
        }
        free_if(errno, cq)
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the verb's promise: a queue of this driver, room for `n`.
    unsafe {
        let mut reader = (*cq.cast::<Cq>()).reader.lock();
        // Kept here, or each would be read again for every completion: the compiler cannot know that the program's memory is
        // elsewhere.
        let (ring, first, mut at) = (reader.queue.ring, reader.queue.first(), reader.next);
        let end = reader.queue.producer();
        let mut count = 0;
        if at != end && n > 0 {
            loop {
                let to = wc.add(count as usize);
                ptr::copy_nonoverlapping(first.add(ring.offset(at)).cast(), to, 1);
                if rxe::is_translated((*to).wc_flags) {
                    (*to).wc_flags = rxe::wc_flags((*to).wc_flags);
                }
                at = ring.next(at);
                count += 1;
                if at == end || count == n {
                    break;
                }
            }
            reader.next = at;
            reader.queue.consumed(at);
        }
        count
    }
}

/// Fills the table of a queue for the extended way to poll.
fn install(cq: &mut ibv_cq_ex, wc_flags: u64) {
    let asked = |bit: u32| wc_flags & 1 << bit != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = asked(0).then_some(read_byte_len as _);
    cq.read_imm_data = asked(1).then_some(read_imm_data as _);
    cq.read_qp_num = asked(2).then_some(read_qp_num as _);
    cq.read_src_qp = asked(3).then_some(read_src_qp as _);
    cq.read_slid = asked(4).then_some(read_slid as _);
    cq.read_sl = asked(5).then_some(read_sl as _);
    cq.read_dlid_path_bits = asked(6).then_some(read_dlid_path_bits as _);
}

/// Shows a completion.
///
/// # Safety
/// `cq` is a queue of this driver that the caller has locked, and in which that completion is.
#[inline]
unsafe fn show(cq: *mut ibv_cq_ex, element: *mut u8) {
    let wc = element.cast::<ibv_wc>().cast_const();
    // SAFETY: the caller's promise; the element is whole, and the kernel is through with it.
    unsafe {
        ((*cq).wr_id, (*cq).status) = ((*wc).wr_id, (*wc).status);
        (*cq.cast::<Cq>()).shown = wc;
    }
}

/// Between start and end the queue is locked.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // SAFETY: the verb's promise; the attributes start with a mask.
    unsafe {
        if !attr.is_null() && *attr.cast::<u32>() != 0 {
            return failed(libc::EINVAL);
        }
        let reader = (*cq.cast::<Cq>()).reader.lock();
        // Before the producer's index, behind which nothing may be read ahead.
        let (ring, first, next) = (reader.queue.ring, reader.queue.first(), reader.next);
        if next == reader.queue.producer() {
            return libc::ENOENT;
        }
        show(cq, first.add(ring.offset(next)));
        mem::forget(reader);
        0
    }
}

/// The reader of a queue that the caller keeps locked.
///
/// # Safety
/// The caller is between start and end.
#[inline]
unsafe fn locked<'a>(cq: *mut ibv_cq_ex) -> &'a mut Reader {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*cq.cast::<Cq>()).reader.data_ptr() }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let reader = locked(cq);
        // Once there was none, the one before is still what the fields are read of.
        let (ring, first) = (reader.queue.ring, reader.queue.first());
        let next = ring.next(reader.next);
        if next == reader.queue.producer() {
            return libc::ENOENT;
        }
        reader.pop();
        show(cq, first.add(ring.offset(next)));
        0
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the verb's promise.
    unsafe {
        locked(cq).pop();
        (*cq.cast::<Cq>()).reader.force_unlock();
    }
}

macro_rules! readers {
    ($($name:ident: $type:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the verb's promise; the element is whole, and the kernel is through with it.
            unsafe { (*(*cq.cast::<Cq>()).shown).$field.into() }
        }
    )*};
}

readers! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { rxe::wc_flags((*(*cq.cast::<Cq>()).shown).wc_flags) }
}
