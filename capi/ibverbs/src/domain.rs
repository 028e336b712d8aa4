//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
//!
//! Every object of this device may be used from any thread, and its queues are not made of memory that a program could give:
//! both say what a program does, and are taken note of.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure};
use crate::objects::{self, ContextId, PdExtra, Td, TdUser, View, find};
use crate::pool::Object;

/// ibv_alloc_td(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    fail::object("ibv_alloc_td", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "init_attr" });
        }
        // SAFETY: the caller's promise.
        let comp_mask = unsafe {
            objects::context(context)?;
            (*attr).comp_mask
        };
        if comp_mask != 0 {
            return Err(Failure::Argument { what: "comp_mask", value: comp_mask.into() });
        }
        let view = View::new(Arc::new(Td::default()), ContextId::of(context));
        let object = ibv_td::pool().insert(view, |object, _| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_td { context }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_dealloc_td(3): EBUSY while a parent domain has it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dealloc_td", || unsafe {
        objects::destroy::<ibv_td, _, _>(td, |td: &Td| match td.users.load(Ordering::Acquire) {
            0 => Ok(()),
            users => Err(soft::Error::Busy { what: "thread domain", users }),
        })
    })
}

/// ibv_alloc_parent_domain(3).
///
/// # Safety
/// As for [`objects::find`], for the context and the objects in `attr`, which is null or points to the structure.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    fail::object("ibv_alloc_parent_domain", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        let attr = unsafe {
            objects::context(context)?;
            *attr
        };
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if allocators && (attr.alloc.is_null() || attr.free.is_null()) {
            return Err(Failure::Null { what: "alloc or free" });
        }
        let id = ContextId::of(context);
        // SAFETY: the caller's promise.
        let (base, td) = unsafe {
            let td = match attr.td.is_null() {
                true => None,
                false => Some(find::<ibv_td>(attr.td)?),
            };
            (find::<ibv_pd>(attr.pd)?, td)
        };
        if base.context != id || td.as_ref().is_some_and(|td| td.context != id) {
            return Err(Failure::OtherContext { what: "domain" });
        }
        let view = View {
            inner: base.inner.parent_domain()?,
            context: id,
            unacknowledged: AtomicU32::new(0),
            extra: PdExtra { _td: td.map(|td| TdUser::new(&td.inner)) },
        };
        let object = ibv_pd::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_pd { context, handle }) };
        })?;
        Ok(object.as_ptr())
    })
}
