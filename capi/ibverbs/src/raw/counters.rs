//! Counters of flows (ibv_create_counters(3)).

use std::ffi::c_int;

use ironverbs::raw as soft;
use soft::raw::{Counted, FlowCounters};

use crate::abi::*;
use crate::fail::{self, Failure};
use crate::objects::{self, ContextId, View, find};
use crate::pool::Object;

/// ibv_create_counters(3).
///
/// # Safety
/// As for [`objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    fail::object("ibv_create_counters", || {
        if init.is_null() {
            return Err(Failure::Null { what: "init_attr" });
        }
        // SAFETY: the caller's promise.
        let (soft, comp_mask) =
            unsafe { (objects::context(context)?.context.clone(), (*init).comp_mask) };
        if comp_mask != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the counters object" });
        }
        let view = View::new(FlowCounters::new(&soft)?, ContextId::of(context));
        let object = ibv_counters::pool().insert(view, |object, _| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_counters { context }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_destroy_counters(3): EBUSY while a flow counts with it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_counters", || unsafe {
        objects::destroy::<ibv_counters, _, _>(counters, |c: &FlowCounters| c.destroy())
    })
}

/// ibv_attach_counters_point_flow(3).
///
/// # Safety
/// As for [`objects::find`], for both objects, of which `flow` may be null; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    fail::status("ibv_attach_counters_point_flow", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        let (found, attr) = unsafe { (find::<ibv_counters>(counters)?, *attr) };
        if attr.comp_mask != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the counter" });
        }
        let counted = match attr.counter_desc {
            0 => Counted::Packets,
            1 => Counted::Bytes,
            other => {
                return Err(Failure::Argument { what: "counter_desc", value: other.into() });
            }
        };
        let flow = match flow.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { find::<ibv_flow>(flow)? }),
        };
        let flow = flow.as_ref().map(|flow| flow.inner.as_ref());
        Ok(found.inner.attach(counted, attr.index, flow)?)
    })
}

/// ibv_read_counters(3).
///
/// # Safety
/// As for [`objects::find`]; `values` is null or has room for `count` values.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    fail::status("ibv_read_counters", || {
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_counters>(counters)? };
        // What is read is never older than the call, whether or not that would do.
        if flags & !IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(Failure::Unsupported { what: "a flag" });
        }
        if count == 0 {
            return Err(Failure::Argument { what: "ncounters", value: 0 });
        }
        if values.is_null() {
            return Err(Failure::Null { what: "counters_value" });
        }
        // SAFETY: the caller's promise; they are numbers, which the call fills in.
        let values = unsafe { std::slice::from_raw_parts_mut(values, count as usize) };
        Ok(found.inner.read(values)?)
    })
}
