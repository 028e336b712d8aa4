//! What stands behind each C object, and how a pointer from a program is checked.

use std::ffi::c_void;
use std::fs::File;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ironverbs::raw as soft;
use ironverbs_sys::biased::Mutex;

use crate::abi::*;
use crate::cq_ex::Cursor;
use crate::fail::{Failure, Outcome};
use crate::pool::{Object, Pool, Ref};
use crate::qp_ex::Batch;

/// A device, laid out as far as libmlx5 and libefa look to see whether it is one of theirs: they
/// compare `ops`, right behind the public part, with a pointer of their own.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) public: ibv_device,
    ops: *const c_void,
}

pub(crate) struct DeviceView {
    pub(crate) device: Arc<soft::Device>,
}

pub(crate) struct ContextView {
    pub(crate) context: Arc<soft::Context>,
    /// Behind `cmd_fd`: a descriptor that is valid, and on which every ioctl fails. Its copies lead to the same file,
    /// by which imports find the context.
    pub(crate) cmd: File,
}

/// What all objects below a context have: the object of the device, and the context they belong to.
pub(crate) struct View<T, X = ()> {
    pub(crate) inner: Arc<T>,
    /// The program's pointer to the context. An address to compare, never read through.
    pub(crate) context: ContextId,
    /// Asynchronous events read and not yet acknowledged.
    pub(crate) unacknowledged: AtomicU32,
    pub(crate) extra: X,
}

impl<T, X: Default> View<T, X> {
    pub(crate) fn new(inner: Arc<T>, context: ContextId) -> Self {
        View { inner, context, unacknowledged: AtomicU32::new(0), extra: X::default() }
    }
}

/// The address of a context.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ContextId(usize);

impl ContextId {
    pub(crate) fn of(context: *const ibv_context) -> Self {
        ContextId(context as usize)
    }

    pub(crate) fn pointer(self) -> *mut ibv_context {
        // Contexts live in a pool of their own, whose addresses programs have seen.
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// Objects below a context.
pub(crate) trait Child: Object {
    /// The context that it was made from.
    fn owner(view: &Self::View) -> ContextId;

    /// The context field of the structure at `object`.
    ///
    /// # Safety
    /// As for [`Object::handle`].
    unsafe fn context_field(object: *const Self::Public) -> *const ibv_context;
}

/// The living object behind a program's pointer, its handle and its context being what we wrote.
///
/// # Safety
/// `object` is null or points to readable memory of the size of the structure.
pub(crate) unsafe fn find<'a, C: Child>(object: *const C::Public) -> Outcome<Ref<'a, C>> {
    // SAFETY: the caller's promise.
    let found = unsafe { C::pool().find(object)? };
    // SAFETY: it is an object of ours.
    if ContextId::of(unsafe { C::context_field(object) }) != C::owner(&found) {
        return Err(Failure::OtherContext { what: C::NAME });
    }
    Ok(found)
}

/// The living context behind a program's pointer.
///
/// # Safety
/// As for [`find`].
pub(crate) unsafe fn context<'a>(object: *const ibv_context) -> Outcome<Ref<'a, verbs_context>> {
    // SAFETY: the caller's promise.
    unsafe { verbs_context::pool().find(object) }
}

macro_rules! object {
    ($object:ty, $public:ty, $view:ty, $name:literal) => {
        impl $crate::pool::Object for $object {
            type View = $view;
            type Public = $public;
            const NAME: &'static str = $name;

            fn pool() -> &'static Pool<Self> {
                static POOL: Pool<$object> = Pool::new();
                &POOL
            }

            unsafe fn handle(object: *const $public) -> Option<u32> {
                // SAFETY: the caller's promise.
                Some(unsafe { (&raw const (*object).handle).read_unaligned() })
            }
        }

        $crate::objects::child!($object, $public);
    };
}

macro_rules! child {
    ($object:ty, $public:ty) => {
        impl $crate::objects::Child for $object {
            fn owner(view: &Self::View) -> $crate::objects::ContextId {
                view.context
            }

            unsafe fn context_field(object: *const $public) -> *const ibv_context {
                // SAFETY: the caller's promise.
                unsafe { (&raw const (*object).context).read_unaligned() }
            }
        }
    };
}

pub(crate) use {child, object};

/// The parts of a CQ that only its C side has.
#[derive(Default)]
pub(crate) struct CqExtra {
    /// The channel whose `refcnt` counts it; null without one. Compared and found, never trusted.
    pub(crate) channel: usize,
    /// Present on a CQ made by `ibv_create_cq_ex`.
    pub(crate) cursor: Option<Mutex<Cursor>>,
    /// The parent domain that it was made with.
    pub(crate) domain: Option<soft::Hold>,
}

/// The parts of a QP that only its C side has.
#[derive(Default)]
pub(crate) struct QpExtra {
    /// Present on a QP made with `send_ops_flags`.
    pub(crate) batch: Option<Mutex<Batch>>,
}

/// The parts of a protection domain that only its C side has.
#[derive(Default)]
pub(crate) struct PdExtra {
    /// The thread domain of a parent domain.
    pub(crate) _td: Option<TdUser>,
}

/// A thread domain: a promise of the program that needs nothing of this device.
#[derive(Default)]
pub(crate) struct Td {
    pub(crate) users: AtomicUsize,
}

/// Counts a user of a thread domain.
pub(crate) struct TdUser(Arc<Td>);

impl TdUser {
    pub(crate) fn new(td: &Arc<Td>) -> TdUser {
        td.users.fetch_add(1, Ordering::AcqRel);
        TdUser(td.clone())
    }
}

impl Drop for TdUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

object!(ibv_pd, ibv_pd, View<soft::Pd, PdExtra>, "protection domain");
object!(ibv_mw, ibv_mw, View<soft::Mw>, "memory window");
object!(ibv_dm, ibv_dm, View<soft::Dm>, "device memory");
/// The parts of a region that only its C side has.
#[derive(Default)]
pub(crate) struct MrExtra {
    /// Memory of ours that it is registered on.
    pub(crate) _memory: Option<Arc<soft::Memory>>,
}

object!(ibv_mr, ibv_mr, View<soft::Mr, MrExtra>, "memory region");
object!(ibv_ah, ibv_ah, View<soft::Ah>, "address handle");
object!(ibv_cq_ex, ibv_cq, View<soft::Cq, CqExtra>, "completion queue");
object!(ibv_srq, ibv_srq, View<soft::Srq>, "shared receive queue");
object!(ibv_qp_ex, ibv_qp, View<soft::Qp, QpExtra>, "queue pair");

impl Object for ibv_xrcd {
    type View = View<soft::Xrcd>;
    type Public = ibv_xrcd;
    const NAME: &'static str = "XRC domain";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<ibv_xrcd> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_xrcd) -> Option<u32> {
        None
    }
}

child!(ibv_xrcd, ibv_xrcd);

impl Object for ibv_td {
    type View = View<Td>;
    type Public = ibv_td;
    const NAME: &'static str = "thread domain";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<ibv_td> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_td) -> Option<u32> {
        None
    }
}

child!(ibv_td, ibv_td);

impl Object for ibv_comp_channel {
    type View = View<soft::Channel>;
    type Public = ibv_comp_channel;
    const NAME: &'static str = "completion channel";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<ibv_comp_channel> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_comp_channel) -> Option<u32> {
        None
    }
}

child!(ibv_comp_channel, ibv_comp_channel);

impl Object for verbs_context {
    type View = ContextView;
    type Public = ibv_context;
    const OFFSET: usize = std::mem::offset_of!(verbs_context, context);
    const NAME: &'static str = "context";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<verbs_context> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_context) -> Option<u32> {
        None
    }
}

impl Object for Device {
    type View = DeviceView;
    type Public = ibv_device;
    const NAME: &'static str = "device";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Device> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_device) -> Option<u32> {
        None
    }
}

/// Ends an object: first the device's, which may refuse, then the C side. Destroying what somebody
/// else destroys at the same time is refused.
///
/// # Safety
/// As for [`find`].
pub(crate) unsafe fn destroy<C, T, X>(
    object: *const C::Public,
    end: impl FnOnce(&T) -> Result<(), soft::Error>,
) -> Outcome<()>
where
    C: Child<View = View<T, X>>,
    X: 'static,
    T: 'static,
{
    // SAFETY: the caller's promise.
    let found = unsafe { find::<C>(object)? };
    let (inner, handle) = (found.inner.clone(), found.number());
    // The end may wait for acknowledgements, which find the object too.
    drop(found);
    end(&inner)?;
    C::pool().remove(handle);
    Ok(())
}
