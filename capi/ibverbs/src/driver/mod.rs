//! Devices of the kernel, through the driver plug-ins of rdma-core (libNAME-rdmav34.so).
//!
//! A plug-in registers what it can do (`device`), makes structures of its own for devices, contexts and objects, whose
//! starts are the public ones, and calls back for everything that goes to the kernel (`command` and what follows).
//! What a program asks of such an object goes to the plug-in (`verbs`). Whether an object is a plug-in's is told by its
//! context alone, in one place: [`of`].

mod abi;
mod action;
mod addresses;
mod command;
mod context;
mod cq;
mod device;
mod events;
mod flow;
mod gids;
mod memory;
mod objects;
mod own;
mod post;
mod qp;
mod queries;
mod rxe;
mod siw;
mod srq;
mod unset;
mod variadic;
pub(crate) mod verbs;
mod watch;
mod wq;

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

pub(crate) use abi::*;
pub(crate) use action::*;
pub(crate) use command::*;
pub(crate) use context::{init_and_alloc_context, set_ops, uninit_context, verbs_init_cq};
pub(crate) use cq::*;
pub(crate) use device::{
    get_device_guid, get_device_index, import, is_driven, list, open_with, register_driver, sysfs,
};
pub(crate) use events::object as event_object;
pub(crate) use flow::*;
pub(crate) use memory::*;
pub(crate) use objects::*;
pub(crate) use post::*;
pub(crate) use qp::*;
pub(crate) use srq::*;
pub(crate) use variadic::*;
pub(crate) use wq::*;

use crate::abi::*;

/// What this library has for each context of a driver, behind `verbs_context.priv`.
pub(crate) struct Private {
    /// The driver's functions; what it lacks answers EOPNOTSUPP.
    pub(crate) ops: verbs_context_ops,
    driver_id: u32,
    /// Commands of write(2) go by ioctl(2), which does not mind a change of user.
    by_ioctl: bool,
    /// Set before the program has the context.
    watch: Option<watch::Watch>,
}

/// A living context of a driver.
#[derive(Copy, Clone)]
pub(crate) struct Driven {
    pub(crate) context: *mut ibv_context,
    private: *mut Private,
}

impl Driven {
    /// The driver's functions.
    pub(crate) fn ops(self) -> verbs_context_ops {
        // SAFETY: it is alive while its context is registered, which programs end last; it is written only while a
        // driver sets a context up.
        unsafe { (*self.private).ops }
    }

    /// What stands behind the context's descriptor for events, where that is not the kernel's own.
    fn watch<'a>(self) -> Option<&'a watch::Watch> {
        // SAFETY: as for `ops`.
        unsafe { (*self.private).watch.as_ref() }
    }

    /// Closes what holds the device, which is gone: the kernel's files behind the context's descriptors, which stay and lead
    /// nowhere.
    pub(crate) fn let_go(self) {
        // SAFETY: as for `ops`.
        let context = unsafe { &*self.context };
        match self.watch() {
            Some(watch) => watch.let_go(),
            None => watch::nowhere(context.async_fd),
        }
        watch::nowhere(context.cmd_fd);
    }
}

/// The contexts of drivers: their address, and that of their private part.
static CONTEXTS: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());
/// How many those are: where there are none, nothing else is looked at.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn register(context: *mut ibv_context, private: *mut Private) {
    let mut contexts = CONTEXTS.write();
    contexts.push((context.expose_provenance(), private.expose_provenance()));
    COUNT.store(contexts.len(), Ordering::Release);
}

fn unregister(context: *mut ibv_context) {
    let mut contexts = CONTEXTS.write();
    contexts.retain(|&(address, _)| address != context as usize);
    COUNT.store(contexts.len(), Ordering::Release);
}

fn registered(context: *const ibv_context) -> Option<Driven> {
    let contexts = CONTEXTS.read();
    let &(address, private) = contexts.iter().find(|(address, _)| *address == context as usize)?;
    Some(Driven {
        context: ptr::with_exposed_provenance_mut(address),
        private: ptr::with_exposed_provenance_mut(private),
    })
}

/// What is told apart by its context: a context itself, and structures that start with a pointer to theirs.
pub(crate) trait Owned: Copy {
    /// The context, as written there.
    ///
    /// # Safety
    /// It is null or points to its readable structure.
    unsafe fn owner(self) -> *const ibv_context;
}

impl Owned for *mut ibv_context {
    unsafe fn owner(self) -> *const ibv_context {
        self
    }
}

macro_rules! owned {
    ($($object:ty)*) => {$(
        impl Owned for *mut $object {
            unsafe fn owner(self) -> *const ibv_context {
                if self.is_null() {
                    return ptr::null();
                }
                // SAFETY: the caller's promise: the first field is the pointer to the context.
                unsafe { self.cast::<*const ibv_context>().read_unaligned() }
            }
        }
    )*};
}

owned! { ibv_pd ibv_mr ibv_mw ibv_dm ibv_td ibv_ah ibv_comp_channel ibv_cq ibv_srq ibv_xrcd ibv_qp }

/// The driver's context that the object belongs to; `None` for those of software devices, and for what is no object.
///
/// # Safety
/// As for [`Owned::owner`].
#[inline]
pub(crate) unsafe fn of(object: impl Owned) -> Option<Driven> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    registered(unsafe { object.owner() })
}
