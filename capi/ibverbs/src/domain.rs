//! Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
//!
//! Every object of this device may be used from any thread: a thread domain says what a program does, and is taken note of.
//! The queues of what is made in a parent domain with allocators are in memory that these give.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
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
        // The last allows what this device has no need of: it reads and writes any memory.
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
        if attr.comp_mask & !known != 0 {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        let allocators = Allocators::of(&attr)?.map(Arc::new);
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
            inner: base.inner.parent_domain(allocators.clone().map(|all| all as _))?,
            context: id,
            unacknowledged: AtomicU32::new(0),
            extra: PdExtra { _td: td.map(|td| TdUser::new(&td.inner)) },
        };
        let object = ibv_pd::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_pd { context, handle }) };
            if let Some(allocators) = &allocators {
                allocators.pd.store(object, Ordering::Release);
            }
        })?;
        Ok(object.as_ptr())
    })
}

/// What a program's allocator says instead of NULL (`IBV_ALLOCATOR_USE_DEFAULT`).
const USE_DEFAULT: usize = usize::MAX;

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// A program's allocators. The type of what is asked for is an [`soft::Kind`], below `RDMA_DRIVER_UNKNOWN` in its upper half.
#[derive(Debug)]
struct Allocators {
    alloc: Alloc,
    free: Free,
    pd_context: *mut c_void,
    /// The parent domain, once it is there: nothing is made in it before.
    pd: AtomicPtr<ibv_pd>,
}

// SAFETY: `pd_context` is the program's, which passes it for whatever thread makes or destroys something in the domain.
unsafe impl Send for Allocators {}
// SAFETY: as above.
unsafe impl Sync for Allocators {}

impl Allocators {
    fn of(attr: &ibv_parent_domain_init_attr) -> Outcome<Option<Allocators>> {
        if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
            return Ok(None);
        }
        let (Some(alloc), Some(free)) = (attr.alloc, attr.free) else {
            return Err(Failure::Null { what: "alloc or free" });
        };
        let pd_context = match attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT {
            0 => ptr::null_mut(),
            _ => attr.pd_context,
        };
        Ok(Some(Allocators { alloc, free, pd_context, pd: AtomicPtr::default() }))
    }
}

// SAFETY: that what a program gives for a queue is the queue's, of the size asked for, is what ibv_alloc_parent_domain(3)
// demands of it.
unsafe impl soft::Giver for Allocators {
    fn allocate(&self, size: usize, alignment: usize, kind: u64) -> soft::Given {
        let pd = self.pd.load(Ordering::Acquire);
        // SAFETY: the program's function, with what the manual has it called with.
        let memory = unsafe { (self.alloc)(pd, self.pd_context, size, alignment, kind) };
        match NonNull::new(memory.cast::<u8>()) {
            None => soft::Given::Refused,
            Some(memory) if memory.addr().get() == USE_DEFAULT => soft::Given::Default,
            Some(memory) => soft::Given::At(memory),
        }
    }

    unsafe fn free(&self, start: NonNull<u8>, kind: u64) {
        let pd = self.pd.load(Ordering::Acquire);
        // SAFETY: the program's function, with what its other one gave.
        unsafe { (self.free)(pd, self.pd_context, start.as_ptr().cast(), kind) }
    }
}
