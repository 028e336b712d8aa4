//! Shared receive queues of ids.

use std::ffi::c_int;
use std::ptr;

use super::devices;
use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::srq;

/// rdma_create_srq(3): for XRC where the id receives by XRC.
///
/// # Safety
/// As for [`objects::find`], for the id and the PD; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    fail::number("rdma_create_srq", || {
        // SAFETY: the caller's promise.
        let (handle, init) = unsafe { (objects::find(id)?, &mut *given("srq_init_attr", init)?) };
        let mut attr = extended(init, handle.get(field!(qp_type)), pd);
        // SAFETY: the caller's promise.
        unsafe { create(&handle, &mut attr)? };
        init.attr = attr.attr;
        Ok(0)
    })
}

/// What rdma_create_srq(3) is told, as rdma_create_srq_ex would be.
pub(super) fn extended(
    init: &ibv_srq_init_attr,
    qp_type: u32,
    pd: *mut ibv_pd,
) -> ibv_srq_init_attr_ex {
    // SAFETY: the structure is numbers and pointers, for which zeros are valid.
    let mut attr: ibv_srq_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.srq_context, attr.attr) = (init.srq_context, init.attr);
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    attr.srq_type = match qp_type {
        IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
        _ => IBV_SRQT_BASIC,
    };
    if !pd.is_null() {
        (attr.comp_mask, attr.pd) = (attr.comp_mask | IBV_SRQ_INIT_ATTR_PD, pd);
    }
    attr
}

/// rdma_create_srq_ex: the type, and what goes with it, among the attributes.
///
/// # Safety
/// As for [`create_srq`], for every object in `attr` too.
pub(crate) unsafe extern "C" fn create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    fail::number("rdma_create_srq_ex", || {
        // SAFETY: the caller's promise.
        unsafe { create(&objects::find(id)?, &mut *given("srq_init_attr_ex", attr)?)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`create_srq_ex`].
unsafe fn create(handle: &Handle, attr: &mut ibv_srq_init_attr_ex) -> Outcome<()> {
    if !handle.get(field!(srq)).is_null() {
        return Err(Failure::Argument { what: "shared receive queues of an id", value: 2 });
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
    }
    let context = given("device of the id", handle.get(field!(verbs)))?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        (attr.comp_mask, attr.pd) = (attr.comp_mask | IBV_SRQ_INIT_ATTR_PD, handle.get(field!(pd)));
    }
    if attr.srq_type == IBV_SRQT_XRC {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            let device =
                handle.id.soft.device().ok_or(Failure::Null { what: "device of the id" })?;
            attr.xrcd = devices::opened(&device)?.xrcd()?;
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            handle.make_cqs(context, 0, attr.attr.max_wr)?;
            attr.cq = handle.get(field!(recv_cq));
        }
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: the caller's promise.
    match unsafe { srq::create_ex(context, attr) } {
        Ok(c) => handle.set(field!(srq), c),
        Err(refused) => {
            if handle.get(field!(qp)).is_null() {
                handle.end_cqs();
            }
            return Err(refused);
        }
    }
    if handle.get(field!(pd)).is_null() {
        handle.set(field!(pd), attr.pd);
    }
    Ok(())
}

/// rdma_destroy_srq(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    fail::silent("rdma_destroy_srq", || unsafe { destroy(&objects::find(id)?) });
}

/// # Safety
/// As for [`objects::find`], for the SRQ that stands in the structure.
pub(super) unsafe fn destroy(handle: &Handle) -> Outcome<()> {
    let c = given("shared receive queue of the id", handle.get(field!(srq)))?;
    // SAFETY: the caller's promise.
    unsafe { srq::end(c)? };
    handle.set(field!(srq), ptr::null_mut());
    if handle.get(field!(qp)).is_null() {
        handle.end_cqs();
    }
    Ok(())
}
