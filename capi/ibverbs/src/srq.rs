//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, View, find};
use crate::pool::Object;

/// ibv_create_srq(3); `attr` then holds what was granted.
///
/// # Safety
/// As for [`objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    fail::object("ibv_create_srq", || {
        if init.is_null() {
            return Err(Failure::Null { what: "srq_init_attr" });
        }
        // SAFETY: the caller's promise.
        unsafe { create(pd, (*init).srq_context, &raw mut (*init).attr, basic) }
    })
}

/// ibv_create_srq_ex(3). The header's inline function sends basic SRQs to [`create_srq`]; here come
/// those for XRC, and the types that this device lacks.
///
/// # Safety
/// As for [`objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    fail::object("ibv_create_srq_ex", || {
        if init.is_null() {
            return Err(Failure::Null { what: "srq_init_attr_ex" });
        }
        // SAFETY: the caller's promise.
        unsafe { create_ex(context, &mut *init) }
    })
}

/// # Safety
/// As for [`objects::find`], for the context and every object in `attr`.
pub(crate) unsafe fn create_ex(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    unsafe {
        objects::context(context)?;
        let xrc = match attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE {
            0 => false,
            _ if attr.srq_type == IBV_SRQT_BASIC => false,
            _ if attr.srq_type == IBV_SRQT_XRC => true,
            _ => return Err(Failure::Unsupported { what: "an SRQ of that type" }),
        };
        let of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | if xrc { of_xrc } else { 0 };
        if attr.comp_mask & !known != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the SRQ" });
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Failure::Null { what: "protection domain" });
        }
        let (pd, context, out) = (attr.pd, attr.srq_context, &raw mut attr.attr);
        if !xrc {
            return create(pd, context, out, basic);
        }
        if attr.comp_mask & of_xrc != of_xrc {
            return Err(Failure::Null { what: "XRC domain or completion queue" });
        }
        let xrcd = find::<ibv_xrcd>(attr.xrcd)?.inner.clone();
        let cq = find::<ibv_cq_ex>(attr.cq)?.inner.clone();
        create(pd, context, out, |pd, init| Ok(pd.create_xrc_srq(init, &xrcd, &cq)?))
    }
}

/// # Safety
/// As for [`objects::find`]; `attr` points to the structure.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: *mut ibv_srq_attr,
    make: impl FnOnce(&Arc<soft::Pd>, soft::SrqInit) -> Outcome<Arc<soft::Srq>>,
) -> Outcome<*mut ibv_srq> {
    // SAFETY: the caller's promise.
    let (found, asked) = unsafe { (find::<ibv_pd>(pd)?, *attr) };
    let init = soft::SrqInit { max_wr: asked.max_wr, max_sge: asked.max_sge };
    let srq = make(&found.inner, init)?;
    let granted = srq.query();
    let id = found.context;
    let view = View::new(srq.clone(), id);
    let object = ibv_srq::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let object = unsafe { &mut *object };
        (object.context, object.srq_context, object.pd) = (id.pointer(), srq_context, pd);
        object.handle = handle;
    })?;
    srq.set_cookie(object.as_ptr().expose_provenance());
    // SAFETY: the caller's promise.
    unsafe { ((*attr).max_wr, (*attr).max_sge) = (granted.max_wr, granted.max_sge) };
    Ok(object.as_ptr())
}

fn basic(pd: &Arc<soft::Pd>, init: soft::SrqInit) -> Outcome<Arc<soft::Srq>> {
    Ok(pd.create_srq(init)?)
}

/// ibv_get_srq_num(3): XRC only.
///
/// # Safety
/// As for [`objects::find`]; `number` is null or has room for it.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    fail::status("ibv_get_srq_num", || {
        if number.is_null() {
            return Err(Failure::Null { what: "srq_num" });
        }
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_srq>(srq)? }.inner.number();
        let found = found.ok_or(Failure::Unsupported { what: "the number of a basic SRQ" })?;
        // SAFETY: the caller's promise.
        unsafe { number.write(found) };
        Ok(())
    })
}

/// ibv_modify_srq(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    fail::status("ibv_modify_srq", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "srq_attr" });
        }
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Failure::Argument { what: "srq_attr_mask", value: mask as u64 });
        }
        // SAFETY: the caller's promise.
        let (found, attr) = unsafe { (find::<ibv_srq>(srq)?, *attr) };
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        Ok(found.inner.modify(max_wr, limit)?)
    })
}

/// ibv_query_srq(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or has room for the structure.
pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    fail::status("ibv_query_srq", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "srq_attr" });
        }
        // SAFETY: the caller's promise.
        let now = unsafe { find::<ibv_srq>(srq)? }.inner.query();
        let (max_wr, max_sge, srq_limit) = (now.max_wr, now.max_sge, now.limit);
        // SAFETY: the caller's promise.
        unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
        Ok(())
    })
}

/// ibv_destroy_srq(3): EBUSY while a QP uses it; waits until its events are acknowledged.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_srq", || unsafe { end(srq) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn end(srq: *mut ibv_srq) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe { objects::destroy::<ibv_srq, _, _>(srq, |srq: &soft::Srq| srq.destroy()) }
}
