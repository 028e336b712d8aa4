//! Completion queues: creation, polling, events.
//!
//! Pointers are the program's and the library's: to objects of this driver, with room as the verbs say.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::queue::CreateCq;
use ironverbs_kernel::siw::{self, complete};
use parking_lot::Mutex;

use super::super::command::Extra;
use super::super::cq::make_cq;
use super::ring::Queue;
use super::{free_if, zeroed};
use crate::abi::*;
use crate::driver::cmd_destroy_cq;
use crate::fail;

/// A completion queue. The public part starts it.
#[repr(C)]
struct Cq {
    public: ibv_cq_ex,
    /// Present from creation on.
    reader: Mutex<Option<Reader>>,
}

/// The reading end.
struct Reader {
    queue: Queue,
    /// How many completions there were.
    count: u32,
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    const FIXED: usize = 8;
    // SAFETY: the verb's promise; zeros are a valid structure but for the mutex, which is written.
    unsafe {
        let cq = zeroed::<Cq>();
        if cq.is_null() {
            return ptr::null_mut();
        }
        (&raw mut (*cq).reader).write(Mutex::new(None));
        let public = &raw mut (*cq).public.base;
        let made = || {
            let mut response = [0_u8; FIXED + siw::CQ_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, FIXED)?;
            let (user, vector) = (cq.expose_provenance() as u64, comp_vector as u32);
            let wanted = CreateCq { user, cqe: cqe as u32, vector, channel: None, flags: 0 };
            make_cq(context, public, channel, wanted, extra)?;
            let map = || {
                let area = siw::cq(Response(&response), FIXED).ok_or(libc::EINVAL)?;
                Queue::map(context, area, complete::SIZE)
            };
            let queue = map().inspect_err(|_| {
                cmd_destroy_cq(public);
            })?;
            *(*cq).reader.lock() = Some(Reader { queue, count: 0 });
            Ok(())
        };
        if let Err(errno) = made() {
            libc::free(cq.cast());
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        public
    }
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the verb's promise; what ended is used no more.
    unsafe {
        let errno = cmd_destroy_cq(cq);
        if errno == 0 {
            *(*cq.cast::<Cq>()).reader.lock() = None;
        }
        free_if(errno, cq)
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the verb's promise: a queue of this driver, room for `n`.
    unsafe {
        let mut reader = (*cq.cast::<Cq>()).reader.lock();
        let Some(reader) = reader.as_mut() else { return 0 };
        let mut count = 0;
        while count < n {
            let element = reader.queue.element(reader.count);
            // SYNC POINT: with the kernel's store of the word, behind the rest of the completion.
            let word = element.word().load(Ordering::Acquire);
            let Some(what) = complete::what(word) else { break };
            let to = wc.add(count as usize);
            ((*to).status, (*to).opcode) = (what.status, what.opcode);
            (*to).wr_id = element.get64(complete::ID);
            (*to).byte_len = element.get32(complete::BYTES);
            (*to).qp_num = element.get64(complete::QPN) as u32;
            ((*to).vendor_err, (*to).imm_data, (*to).wc_flags) = (0, 0, 0);
            // SYNC POINT: the kernel writes the next completion here once the word is clear.
            element.word().store(0, Ordering::Release);
            reader.count = reader.count.wrapping_add(1);
            count += 1;
        }
        count
    }
}

/// Asks for an event, without a system call.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let reader = (*cq.cast::<Cq>()).reader.lock();
        let Some(reader) = reader.as_ref() else { return 0 };
        // SYNC POINT: the program polls once more behind it, and finds what the kernel completed before it saw the word.
        reader.queue.control().swap(complete::asks(solicited != 0), Ordering::SeqCst);
    }
    0
}
