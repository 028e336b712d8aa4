//! Shared receive queues of the kernel's ids.

use std::ffi::c_int;
use std::ptr;

use super::objects::{self, field, given};
use crate::abi::*;
use crate::dispatch;
use crate::fail::{self, Failure};

pub(in crate::cm) unsafe fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    fail::number("rdma_create_srq", || {
        let init = given("srq_init_attr", init)?;
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(id)?;
            if !handle.get(field!(srq)).is_null() {
                return Err(Failure::Argument { what: "shared receive queues of an id", value: 2 });
            }
            let pd = if pd.is_null() { handle.get(field!(pd)) } else { pd };
            let srq = dispatch::create_srq(given("device of the id", pd)?, init);
            if srq.is_null() {
                return Err(Failure::Io(std::io::Error::last_os_error()));
            }
            handle.set(field!(srq), srq);
            handle.set(field!(pd), pd);
        }
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    let attr = match given("srq_init_attr_ex", attr) {
        // SAFETY: the caller's promise.
        Ok(attr) => unsafe { &mut *attr },
        Err(failure) => return fail::number("rdma_create_srq_ex", || Err(failure)),
    };
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type != IBV_SRQT_BASIC {
        let what =
            "another shared receive queue than a basic one, of the kernel's connection manager,";
        return fail::number("rdma_create_srq_ex", || Err(Failure::Unsupported { what }));
    }
    let mut init = ibv_srq_init_attr { srq_context: attr.srq_context, attr: attr.attr };
    let pd = if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 { attr.pd } else { ptr::null_mut() };
    // SAFETY: the caller's promise.
    let result = unsafe { create_srq(id, pd, &raw mut init) };
    attr.attr = init.attr;
    result
}

pub(in crate::cm) unsafe fn destroy_srq(id: *mut rdma_cm_id) {
    fail::silent("rdma_destroy_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(id)?;
            let srq = given("shared receive queue of the id", handle.get(field!(srq)))?;
            if dispatch::destroy_srq(srq) != 0 {
                return Err(Failure::Io(std::io::Error::last_os_error()));
            }
            handle.set(field!(srq), ptr::null_mut());
        }
        Ok(())
    });
}
