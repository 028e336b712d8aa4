//! Queue pairs: creation, attributes, end.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::c_int;
use std::ptr;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::rxe::{self, Area, recv, send};
use parking_lot::Mutex;

use super::super::abi::{VERBS_QP_EX, verbs_qp};
use super::super::command::{Errno, Extra};
use super::super::qp::{extended, make_qp};
use super::post::{Receives, Sends};
use super::queue::{Queue, Writer};
use super::{build, zeroed};
use crate::abi::*;
use crate::driver::cmd_destroy_qp;
use crate::fail;

/// A queue pair. The public part starts it.
#[repr(C)]
pub(super) struct Qp {
    pub(super) public: verbs_qp,
    /// Present from creation on.
    pub(super) sends: Mutex<Option<Sends>>,
    /// None where a shared receive queue takes its place.
    pub(super) receives: Mutex<Option<Receives>>,
}

/// # Safety
/// As for the verbs.
unsafe fn create(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut Qp {
    // SAFETY: the verbs' promise; zeros are a valid structure but for the mutexes, which are written.
    unsafe {
        let qp = zeroed::<Qp>();
        if qp.is_null() {
            return qp;
        }
        (&raw mut (*qp).sends).write(Mutex::new(None));
        (&raw mut (*qp).receives).write(Mutex::new(None));
        let made = || {
            let mut response = [0_u8; 32 + rxe::QP_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, 32)?;
            make_qp(context, qp.cast(), &raw mut (*qp).public, attr, extra)?;
            map(qp, context, &(*attr).cap, Response(&response)).inspect_err(|_| {
                cmd_destroy_qp(qp.cast());
            })
        };
        if let Err(errno) = made() {
            end(qp);
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        qp
    }
}

/// Maps the queues of a new queue pair.
///
/// # Safety
/// `qp` is one that the kernel has just made.
unsafe fn map(
    qp: *mut Qp,
    context: *mut ibv_context,
    cap: &ibv_qp_cap,
    response: Response<'_>,
) -> Result<(), Errno> {
    let (receives, sends) = (Area::read(response, 32), Area::read(response, 32 + Area::SIZE));
    // SAFETY: the caller's promise.
    unsafe {
        if receives.size > 0 {
            let queue = Queue::map(context, receives, recv::HEADER)?;
            let queue = Receives::new(Writer::new(queue), cap.max_recv_sge);
            *(*qp).receives.lock() = Some(queue);
        }
        let queue = Queue::map(context, sends, send::HEADER)?;
        *(*qp).sends.lock() = Some(Sends::new(Writer::new(queue), cap));
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

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the verb's promise.
    unsafe {
        let mut whole = extended(&*attr, pd);
        let qp = create((*pd).context, &raw mut whole);
        if !qp.is_null() {
            (*attr).cap = whole.cap;
        }
        qp.cast()
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the verb's promise; fields are there where their bits say so.
    unsafe {
        let has = |bit: u32| (*attr).comp_mask & bit != 0;
        let flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { (*attr).create_flags } else { 0 };
        let builds = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
        let known = (*attr).comp_mask & !KNOWN == 0 && flags == 0;
        if !known || builds && !build::knows((*attr).qp_type, (*attr).send_ops_flags) {
            fail::set_errno(libc::EOPNOTSUPP);
            return ptr::null_mut();
        }
        let qp = create(context, attr);
        if !qp.is_null() && builds {
            build::install(&mut (*qp).public.qp_ex, (*attr).send_ops_flags);
            (*qp).public.comp_mask |= VERBS_QP_EX;
        }
        qp.cast()
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
