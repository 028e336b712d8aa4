//! Shared receive queues of the kernel's ids.

use std::ffi::c_int;
use std::ptr;

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::cm::srq::extended;
use crate::fail::{self, Failure, Outcome};
use crate::{dispatch, driver};

pub(in crate::cm) unsafe fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    fail::number("rdma_create_srq", || {
        // SAFETY: the caller's promise.
        unsafe {
            let (handle, init) = (objects::find(id)?, &mut *given("srq_init_attr", init)?);
            let mut attr = extended(init, handle.get(field!(qp_type)), pd);
            create(&handle, &mut attr)?;
            init.attr = attr.attr;
        }
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn create_srq_ex(
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
    // SAFETY: the caller's promise; the context is the id's, the older structure starts the newer one (verbs.h).
    let srq = unsafe {
        if attr.srq_type == IBV_SRQT_XRC {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                attr.xrcd = handle.device()?.xrcd()?;
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                let entries = [0, attr.attr.max_wr];
                [_, attr.cq] = handle.make_cqs(context, entries, [ptr::null_mut(); 2])?;
            }
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        match driver::of(context) {
            Some(driven) if attr.srq_type != IBV_SRQT_BASIC => {
                driver::verbs::create_srq_ex(driven, attr)
            }
            _ => dispatch::create_srq(attr.pd, ptr::from_mut(attr).cast()),
        }
    };
    if srq.is_null() {
        let failure = Failure::Io(std::io::Error::last_os_error());
        if handle.get(field!(qp)).is_null() {
            handle.end_cqs();
        }
        return Err(failure);
    }
    handle.set(field!(srq), srq);
    if handle.get(field!(pd)).is_null() {
        handle.set(field!(pd), attr.pd);
    }
    Ok(())
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
            if handle.get(field!(qp)).is_null() {
                handle.end_cqs();
            }
        }
        Ok(())
    });
}
