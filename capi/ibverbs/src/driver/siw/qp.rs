//! Queue pairs: creation and end.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::c_int;
use std::ptr;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::siw::{self, request};
use parking_lot::Mutex;

use super::super::abi::verbs_qp;
use super::super::command::{Errno, Extra};
use super::super::qp::{extended, make_qp};
use super::post::Sends;
use super::ring::{Queue, Writer};
use super::zeroed;
use crate::abi::*;
use crate::driver::cmd_destroy_qp;
use crate::fail;

/// Bytes of the fixed part of the kernel's answer.
const FIXED: usize = 32;

/// A queue pair. The public part starts it.
#[repr(C)]
pub(super) struct Qp {
    public: verbs_qp,
    /// Present from creation on.
    pub(super) sends: Mutex<Option<Sends>>,
    /// None where a shared receive queue takes its place, and where none was asked for.
    pub(super) receives: Mutex<Option<Writer>>,
}

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the verb's promise; zeros are a valid structure but for the mutexes, which are written.
    unsafe {
        let context = (*pd).context;
        let qp = zeroed::<Qp>();
        if qp.is_null() {
            return ptr::null_mut();
        }
        (&raw mut (*qp).sends).write(Mutex::new(None));
        (&raw mut (*qp).receives).write(Mutex::new(None));
        let mut whole = extended(&*attr, pd);
        let mut made = || {
            let mut response = [0_u8; FIXED + siw::QP_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, FIXED)?;
            make_qp(context, qp.cast(), &raw mut (*qp).public, &raw mut whole, extra)?;
            map(qp, context, &*attr, Response(&response)).inspect_err(|_| {
                cmd_destroy_qp(qp.cast());
            })
        };
        if let Err(errno) = made() {
            end(qp);
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        (*attr).cap = whole.cap;
        qp.cast()
    }
}

/// Maps the queues of a new queue pair.
///
/// # Safety
/// `qp` is one that the kernel has just made.
unsafe fn map(
    qp: *mut Qp,
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr,
    response: Response<'_>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        if attr.srq.is_null() && attr.cap.max_recv_wr > 0 {
            let area = siw::receives(response, FIXED).ok_or(libc::EINVAL)?;
            let queue = Queue::map(context, area, request::RECEIVE)?;
            *(*qp).receives.lock() = Some(Writer::new(queue));
        }
        let area = siw::sends(response, FIXED).ok_or(libc::EINVAL)?;
        let writer = Writer::new(Queue::map(context, area, request::SEND)?);
        *(*qp).sends.lock() = Some(Sends { writer, signals_all: attr.sq_sig_all != 0 });
    }
    Ok(())
}

/// # Safety
/// `qp` is this driver's, ended in the kernel, and used no more.
unsafe fn end(qp: *mut Qp) {
    // SAFETY: the caller's promise.
    unsafe {
        *(*qp).sends.lock() = None;
        *(*qp).receives.lock() = None;
        libc::free(qp.cast());
    }
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let errno = cmd_destroy_qp(qp);
        if errno == 0 {
            end(qp.cast());
        }
        errno
    }
}
