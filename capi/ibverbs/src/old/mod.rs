//! Version 1.0, the interface of before 2007, for programs that were linked to it.
//!
//! Its structures are laid out differently, so that its objects are ones of their own, checked like
//! those of today, with an object of today behind each; its calls look that up and go on to the
//! function of today. What a program of 1.0 passes to a function without an old version, a
//! completion channel, is the same in both.

mod events;
mod layout;
mod post;
mod verbs;

use std::ptr;

pub(crate) use events::*;
pub(crate) use layout::*;
pub(crate) use post::*;
pub(crate) use verbs::*;

use crate::abi::*;
use crate::fail::Outcome;
use crate::pool::{Object, Pool};

/// The object of today behind one of 1.0, as an address: it is checked again where it is used.
pub(crate) struct Real(usize);

/// An object of 1.0.
pub(crate) trait Old: Object<View = Real, Public = Self> {
    /// Its type today.
    type Today;
}

/// The object of today behind a program's pointer.
///
/// # Safety
/// `object` is null or points to readable memory of the size of the structure.
pub(crate) unsafe fn real<C: Old>(object: *const C) -> Outcome<*mut C::Today> {
    // SAFETY: the caller's promise.
    let found = unsafe { C::pool().find(object)? };
    Ok(ptr::with_exposed_provenance_mut(found.0))
}

/// The context of today behind either kind of pointer.
///
/// # Safety
/// As for [`real`].
pub(crate) unsafe fn context_behind(context: *mut ibv_context) -> *mut ibv_context {
    // SAFETY: the caller's promise: a context of 1.0 is no larger than one of today, and is found
    // by its address without a look at what it holds.
    unsafe { real(context.cast::<ibv_context_1_0>()) }.unwrap_or(context)
}

macro_rules! old {
    ($($object:ty => $today:ty, $name:literal, $handle:expr;)*) => {$(
        impl Object for $object {
            type View = Real;
            type Public = $object;
            const NAME: &'static str = $name;

            fn pool() -> &'static Pool<Self> {
                static POOL: Pool<$object> = Pool::new();
                &POOL
            }

            unsafe fn handle(object: *const $object) -> Option<u32> {
                let field: Option<fn(*const $object) -> *const u32> = $handle;
                // SAFETY: the caller's promise.
                field.map(|field| unsafe { field(object).read_unaligned() })
            }
        }

        impl Old for $object {
            type Today = $today;
        }
    )*};
}

/// The address of the handle in a structure.
macro_rules! handle {
    ($object:ty) => {
        Some(|object| object.wrapping_byte_add(std::mem::offset_of!($object, handle)).cast::<u32>())
    };
}

old! {
    ibv_device_1_0 => ibv_device, "device", None;
    ibv_context_1_0 => ibv_context, "context", None;
    ibv_pd_1_0 => ibv_pd, "protection domain", handle!(ibv_pd_1_0);
    ibv_mr_1_0 => ibv_mr, "memory region", handle!(ibv_mr_1_0);
    ibv_ah_1_0 => ibv_ah, "address handle", handle!(ibv_ah_1_0);
    ibv_cq_1_0 => ibv_cq, "completion queue", handle!(ibv_cq_1_0);
    ibv_srq_1_0 => ibv_srq, "shared receive queue", handle!(ibv_srq_1_0);
    ibv_qp_1_0 => ibv_qp, "queue pair", handle!(ibv_qp_1_0);
}

/// Makes the object of 1.0 for one of today; `fill` completes it.
pub(crate) fn adopt<C: Old>(
    today: *mut C::Today,
    fill: impl FnOnce(*mut C, u32),
) -> Outcome<*mut C> {
    Ok(C::pool().insert(Real(today.expose_provenance()), fill)?.as_ptr())
}
