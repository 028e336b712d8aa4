//! Counters of completions (ibv_create_comp_cntr(3)), of libibverbs after version 44.

use std::ffi::c_int;
use std::ptr;

use ironverbs::raw as soft;
use soft::{CompCntr, CompCntrUnit};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, ContextId, View, find};
use crate::pool::{Object, Pool};
use crate::{driver, raw};

/// `struct ibv_comp_cntr`.
#[repr(C)]
pub(crate) struct ibv_comp_cntr {
    context: *mut ibv_context,
    handle: u32,
}

/// `struct ibv_comp_cntr_init_attr`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_comp_cntr_init_attr {
    comp_mask: u32,
    /// `enum ibv_comp_cntr_type`.
    type_: u32,
    flags: u32,
}

/// `struct ibv_qp_attach_comp_cntr_attr`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_qp_attach_comp_cntr_attr {
    comp_mask: u32,
    op_mask: u32,
}

/// `struct ibv_comp_cntr_caps`, which may grow.
#[repr(C)]
pub(crate) struct ibv_comp_cntr_caps {
    max_value: u64,
    max_counters: u32,
    supported_qp_attach_ops: u32,
}

const _: () = assert!(size_of::<ibv_comp_cntr>() == 16);
const _: () = assert!(size_of::<ibv_comp_cntr_init_attr>() == 12);
const _: () = assert!(size_of::<ibv_qp_attach_comp_cntr_attr>() == 8);
const _: () = assert!(size_of::<ibv_comp_cntr_caps>() == 16);

const TYPE_WRS: u32 = 0;
const TYPE_BYTES: u32 = 1;

objects::object!(ibv_comp_cntr, ibv_comp_cntr, View<CompCntr>, "completion counter");

/// The drivers of version 44 have none.
const OF_A_DRIVER: Failure = Failure::Unsupported { what: "a completion counter of this device" };

/// What the header's inline `ibv_query_comp_cntr_caps` calls, with the size that it knows.
///
/// # Safety
/// As for [`objects::find`]; `caps` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    fail::status("ibv_query_comp_cntr_caps", || {
        if caps.is_null() {
            return Err(Failure::Null { what: "caps" });
        }
        // SAFETY: the caller's promise.
        if unsafe { driver::of(context) }.is_some() {
            return Err(OF_A_DRIVER);
        }
        // SAFETY: the caller's promise.
        drop(unsafe { objects::context(context)? });
        let soft::CompCntrCaps { max_value, max_counters, operations } = CompCntr::caps();
        let known =
            ibv_comp_cntr_caps { max_value, max_counters, supported_qp_attach_ops: operations };
        let len = size.min(size_of_val(&known));
        // SAFETY: the caller's promise; the structure is plain numbers without padding.
        unsafe {
            ptr::write_bytes(caps.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), caps.cast::<u8>(), len);
        }
        Ok(())
    })
}

/// ibv_create_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    fail::object("ibv_create_comp_cntr", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "cc_attr" });
        }
        // SAFETY: the caller's promise.
        if unsafe { driver::of(context) }.is_some() {
            return Err(OF_A_DRIVER);
        }
        // SAFETY: the caller's promise.
        let (soft, attr) = unsafe { (objects::context(context)?.context.clone(), *attr) };
        if attr.comp_mask != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the completion counter" });
        }
        if attr.flags != 0 {
            return Err(Failure::Argument { what: "flags", value: attr.flags.into() });
        }
        let unit = match attr.type_ {
            TYPE_WRS => CompCntrUnit::Operations,
            TYPE_BYTES => CompCntrUnit::Bytes,
            other => return Err(Failure::Argument { what: "type", value: other.into() }),
        };
        let view = View::new(CompCntr::new(&soft, unit)?, ContextId::of(context));
        let object = ibv_comp_cntr::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_comp_cntr { context, handle }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_destroy_comp_cntr(3): EBUSY while a queue pair is counted by it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_comp_cntr", || unsafe {
        objects::destroy::<ibv_comp_cntr, _, _>(counter, |c: &CompCntr| c.destroy())
    })
}

/// # Safety
/// As for [`objects::find`].
unsafe fn change(
    verb: &'static str,
    counter: *mut ibv_comp_cntr,
    change: impl FnOnce(&CompCntr) -> Result<(), soft::Error>,
) -> c_int {
    // SAFETY: the caller's promise.
    fail::status(verb, || Ok(change(&unsafe { find::<ibv_comp_cntr>(counter)? }.inner)?))
}

/// ibv_set_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change("ibv_set_comp_cntr", counter, |c| c.set_completed(value)) }
}

/// ibv_set_err_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn set_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change("ibv_set_err_comp_cntr", counter, |c| c.set_failed(value)) }
}

/// ibv_inc_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change("ibv_inc_comp_cntr", counter, |c| c.add_completed(amount)) }
}

/// ibv_inc_err_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn inc_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    amount: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change("ibv_inc_err_comp_cntr", counter, |c| c.add_failed(amount)) }
}

/// # Safety
/// As for [`objects::find`]; `value` is null or has room for the number.
unsafe fn value_of(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
    read: impl FnOnce(&CompCntr) -> Result<u64, soft::Error>,
) -> Outcome<()> {
    if value.is_null() {
        return Err(Failure::Null { what: "value" });
    }
    // SAFETY: the caller's promise.
    unsafe { *value = read(&find::<ibv_comp_cntr>(counter)?.inner)? };
    Ok(())
}

/// ibv_read_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`]; `value` is null or has room for the number.
pub(crate) unsafe extern "C" fn read_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_read_comp_cntr", || unsafe { value_of(counter, value, CompCntr::completed) })
}

/// ibv_read_err_comp_cntr(3).
///
/// # Safety
/// As for [`objects::find`]; `value` is null or has room for the number.
pub(crate) unsafe extern "C" fn read_err_comp_cntr(
    counter: *mut ibv_comp_cntr,
    value: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_read_err_comp_cntr", || unsafe { value_of(counter, value, CompCntr::failed) })
}

/// ibv_qp_attach_comp_cntr(3). Raw packet queue pairs are refused.
///
/// # Safety
/// As for [`objects::find`], for both objects; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    fail::status("ibv_qp_attach_comp_cntr", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        unsafe {
            if driver::of(qp).is_some() {
                return Err(OF_A_DRIVER);
            }
            if !qp.is_null() && raw::of(qp).is_some() {
                let what = "a completion counter of a raw packet queue pair";
                return Err(Failure::Unsupported { what });
            }
            let (qp, counter, attr) =
                (find::<ibv_qp_ex>(qp)?, find::<ibv_comp_cntr>(counter)?, *attr);
            if attr.comp_mask != 0 {
                return Err(Failure::Unsupported { what: "an attribute of the attachment" });
            }
            Ok(qp.inner.attach_comp_cntr(&counter.inner, attr.op_mask)?)
        }
    })
}
