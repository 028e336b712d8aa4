//! Shared receive queues. The kernel cannot resize them.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::c_int;
use std::ptr;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::siw::{self, request};
use parking_lot::Mutex;

use super::super::abi::verbs_srq;
use super::super::command::Extra;
use super::super::srq::make_srq;
use super::ring::{Queue, Writer};
use super::{free_if, zeroed};
use crate::abi::*;
use crate::driver::{cmd_destroy_srq, cmd_modify_srq};
use crate::fail;

/// Bytes of the fixed part of the kernel's answer.
const FIXED: usize = 16;

/// A shared receive queue. The public part starts it.
#[repr(C)]
pub(super) struct Srq {
    public: verbs_srq,
    /// Present from creation on.
    pub(super) receives: Mutex<Option<Writer>>,
}

pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the verb's promise; zeros are valid structures but for the mutex, which is written.
    unsafe {
        let srq = zeroed::<Srq>();
        if srq.is_null() {
            return ptr::null_mut();
        }
        (&raw mut (*srq).receives).write(Mutex::new(None));
        let mut whole: ibv_srq_init_attr_ex = std::mem::zeroed();
        whole.attr = (*attr).attr;
        let mut made = || {
            let mut response = [0_u8; FIXED + siw::SRQ_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, FIXED)?;
            make_srq(pd, srq.cast(), &raw mut (*srq).public, &raw mut whole, extra)?;
            let map = || {
                let area = siw::srq(Response(&response), FIXED).ok_or(libc::EINVAL)?;
                Queue::map((*pd).context, area, request::RECEIVE)
            };
            let queue = map().inspect_err(|_| {
                cmd_destroy_srq(srq.cast());
            })?;
            *(*srq).receives.lock() = Some(Writer::new(queue));
            Ok(())
        };
        if let Err(errno) = made() {
            libc::free(srq.cast());
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        ((*attr).attr.max_wr, (*attr).attr.max_sge) = (whole.attr.max_wr, whole.attr.max_sge);
        srq.cast()
    }
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { cmd_modify_srq(srq, attr, mask, ptr::null_mut(), 0) }
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the verb's promise; what ended is used no more.
    unsafe {
        let errno = cmd_destroy_srq(srq);
        if errno == 0 {
            *(*srq.cast::<Srq>()).receives.lock() = None;
        }
        free_if(errno, srq)
    }
}
