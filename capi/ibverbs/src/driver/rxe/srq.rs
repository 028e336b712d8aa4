//! Shared receive queues.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::c_int;
use std::ptr;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::rxe::{self, Area, recv};
use parking_lot::Mutex;

use super::super::abi::verbs_srq;
use super::super::command::{Errno, Extra, issue, status};
use super::super::srq::make_srq;
use super::post::Receives;
use super::queue::{Queue, Writer};
use super::{free_if, zeroed};
use crate::abi::*;
use crate::driver::cmd_destroy_srq;
use crate::fail;

/// A shared receive queue. The public part starts it.
#[repr(C)]
pub(super) struct Srq {
    public: verbs_srq,
    /// Present from creation on.
    pub(super) receives: Mutex<Option<Receives>>,
}

/// # Safety
/// As for the verbs.
unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: the verbs' promise; zeros are a valid structure but for the mutex, which is written.
    unsafe {
        let srq = zeroed::<Srq>();
        if srq.is_null() {
            return ptr::null_mut();
        }
        (&raw mut (*srq).receives).write(Mutex::new(None));
        let made = || {
            let mut response = [0_u8; 16 + rxe::SRQ_RESPONSE];
            let (out, len) = (response.as_mut_ptr().cast(), response.len());
            let extra = Extra::new(ptr::null(), 0, 0, out, len, 16)?;
            make_srq(pd, srq.cast(), &raw mut (*srq).public, attr, extra)?;
            let area = Area::read(Response(&response), 16);
            match Queue::map((*pd).context, area, recv::HEADER) {
                Ok(queue) => {
                    let receives = Receives::new(Writer::new(queue), (*attr).attr.max_sge);
                    *(*srq).receives.lock() = Some(receives);
                    Ok(())
                }
                Err(errno) => {
                    cmd_destroy_srq(srq.cast());
                    Err(errno)
                }
            }
        };
        if let Err(errno) = made() {
            libc::free(srq.cast());
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        srq.cast()
    }
}

pub(super) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the verb's promise; zeroes are a valid structure.
    unsafe {
        let mut whole: ibv_srq_init_attr_ex = std::mem::zeroed();
        whole.attr = (*attr).attr;
        let srq = create(pd, &raw mut whole);
        if !srq.is_null() {
            ((*attr).attr.max_wr, (*attr).attr.max_sge) = (whole.attr.max_wr, whole.attr.max_sge);
        }
        srq
    }
}

pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the verb's promise; fields are there where their bits say so.
    unsafe {
        let has = |bit: u32| (*attr).comp_mask & bit != 0;
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { (*attr).srq_type } else { IBV_SRQT_BASIC };
        if kind != IBV_SRQT_BASIC {
            fail::set_errno(libc::EOPNOTSUPP);
            return ptr::null_mut();
        }
        if !has(IBV_SRQ_INIT_ATTR_PD) || (*attr).pd.is_null() {
            fail::set_errno(libc::EINVAL);
            return ptr::null_mut();
        }
        let srq = create((*attr).pd, attr);
        if !srq.is_null() {
            // What the library fills in for the older verb.
            (*srq).context = (*(*attr).pd).context;
            (*srq).srq_context = (*attr).srq_context;
            (*srq).pd = (*attr).pd;
        }
        srq
    }
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    let work = || -> Result<(), Errno> {
        // SAFETY: the verb's promise. Nobody posts while the kernel copies what is in the queue to another one.
        unsafe {
            let mut receives = (*srq.cast::<Srq>()).receives.lock();
            let mut moved = [0_u8; Area::SIZE];
            // The driver's part says where to write the new queue's area.
            let place = (moved.as_mut_ptr().expose_provenance() as u64).to_ne_bytes();
            let extra = Extra::new(place.as_ptr().cast(), place.len(), 0, ptr::null_mut(), 0, 0)?;
            let (size, limit) = ((*attr).max_wr, (*attr).srq_limit);
            let command =
                ironverbs_kernel::queue::modify_srq((*srq).handle, mask as u32, size, limit);
            issue((*srq).context, &command, extra)?;
            if mask & IBV_SRQ_MAX_WR != 0
                && let Some(receives) = receives.as_mut()
            {
                let area = Area::read(Response(&moved), 0);
                receives.writer = Writer::new(Queue::map((*srq).context, area, recv::HEADER)?);
            }
            Ok(())
        }
    };
    status(work())
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
