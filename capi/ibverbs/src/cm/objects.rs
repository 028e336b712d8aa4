//! What stands behind the structures of librdmacm.

use std::ptr;
use std::sync::Arc;

use ironverbs::raw as soft;
use parking_lot::Mutex;
use soft::cm::{CmEvent, CmEventKind, CmId};

use super::address::Address;
use super::channel::Channel;
use super::{address, devices, kernel};
use crate::abi::*;
use crate::fail::{Failure, Outcome};
use crate::objects;
use crate::pool::{Object, Pool};

/// An id: the device's, and what only C has.
pub(super) struct Id {
    pub(super) soft: Arc<CmId>,
    pub(super) parts: Mutex<Parts>,
}

/// The parts of an id that its C side has.
#[derive(Default)]
pub(super) struct Parts {
    /// Calls wait for their events, which come from a channel of the id's own.
    pub(super) sync: bool,
    /// The connection has ended, and its event was read.
    pub(super) ended: bool,
    /// What `route.path_rec` points to.
    path: Option<Box<ibv_sa_path_rec>>,
    /// Completion queues and channels that were made with its queue pair or SRQ, to end with it.
    pub(super) made: Made,
    /// What a listening endpoint makes queue pairs from.
    pub(super) template: Option<Template>,
    /// Sent ahead of the program's own private data.
    pub(super) preface: Vec<u8>,
    /// READs and atomics that a request asks for: as responder, as initiator.
    pub(super) asked: Option<(u8, u8)>,
}

/// Addresses of C objects.
#[derive(Copy, Clone, Default)]
pub(super) struct Made {
    pub(super) send_channel: usize,
    pub(super) send_cq: usize,
    pub(super) recv_channel: usize,
    pub(super) recv_cq: usize,
}

/// The queue pair of each connection to a listening endpoint.
pub(in crate::cm) struct Template {
    pub(in crate::cm) pd: *mut ibv_pd,
    pub(in crate::cm) init: ibv_qp_init_attr,
}

// SAFETY: the pointers are names of objects, which are checked whenever they are used.
unsafe impl Send for Template {}

/// What stands behind a program's id. It is of one world or the other; of both while it listens in both.
#[derive(Clone)]
pub(super) struct Halves {
    pub(super) soft: Option<Arc<Id>>,
    pub(super) kernel: Option<Arc<kernel::Id>>,
    /// Where its events are told.
    pub(super) channel: Arc<Channel>,
}

pub(crate) struct IdView(Mutex<Halves>);

impl Object for rdma_cm_id {
    type View = IdView;
    type Public = rdma_cm_id;
    const NAME: &'static str = "rdma_cm_id";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<rdma_cm_id> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const rdma_cm_id) -> Option<u32> {
        None
    }
}

pub(crate) struct ChannelView(pub(super) Arc<Channel>);

impl Object for rdma_event_channel {
    type View = ChannelView;
    type Public = rdma_event_channel;
    const NAME: &'static str = "event channel";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<rdma_event_channel> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const rdma_event_channel) -> Option<u32> {
        None
    }
}

/// Dropping it acknowledges the event.
pub(crate) struct EventView {
    pub(super) _event: CmEvent,
}

impl Object for rdma_cm_event {
    type View = EventView;
    type Public = rdma_cm_event;
    const NAME: &'static str = "rdma_cm_event";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<rdma_cm_event> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const rdma_cm_event) -> Option<u32> {
        None
    }
}

/// A structure that a program holds, and what stands behind it.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) c: *mut rdma_cm_id,
    pub(super) id: Arc<Id>,
}

/// What stands behind a program's pointer.
///
/// # Safety
/// `c` is null or points to readable memory of the size of the structure.
pub(super) unsafe fn halves(c: *mut rdma_cm_id) -> Outcome<Halves> {
    // SAFETY: the caller's promise.
    Ok(unsafe { rdma_cm_id::pool().find(c)? }.0.lock().clone())
}

/// Changes what stands behind a program's pointer; what it was.
pub(super) fn change(c: *mut rdma_cm_id, how: impl FnOnce(&mut Halves)) -> Outcome<Halves> {
    // SAFETY: places are never unmapped.
    let found = unsafe { rdma_cm_id::pool().find(c)? };
    let mut halves = found.0.lock();
    let before = halves.clone();
    how(&mut halves);
    Ok(before)
}

/// Ends a program's pointer. False when somebody else did.
pub(super) fn remove(c: *mut rdma_cm_id) -> bool {
    // SAFETY: places are never unmapped.
    let found = unsafe { rdma_cm_id::pool().find(c) };
    let Ok(number) = found.map(|found| found.number()) else { return false };
    rdma_cm_id::pool().remove(number).is_some()
}

/// The living id behind a program's pointer, on a software device or on none yet.
///
/// # Safety
/// As for [`halves`].
pub(super) unsafe fn find(c: *mut rdma_cm_id) -> Outcome<Handle> {
    // SAFETY: the caller's promise.
    match unsafe { halves(c)? } {
        Halves { soft: Some(id), .. } => Ok(Handle { c, id }),
        _ => Err(Failure::Unsupported { what: "this call, by the kernel's connection manager," }),
    }
}

/// The C structure of an id of the device, if it has one (yet).
pub(super) fn known(soft: &Arc<CmId>) -> Option<Handle> {
    let c: *mut rdma_cm_id = ptr::with_exposed_provenance_mut(soft.cookie());
    // SAFETY: the cookie is 0 or the address of a place, and places are never unmapped.
    let handle = unsafe { find(c) }.ok()?;
    Arc::ptr_eq(&handle.id.soft, soft).then_some(handle)
}

/// The channel behind a program's pointer.
///
/// # Safety
/// As for [`find`].
pub(super) unsafe fn channel(c: *mut rdma_event_channel) -> Outcome<Arc<Channel>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { rdma_event_channel::pool().find(c)? }.0.clone())
}

/// An id's place among those that programs see.
pub(super) struct Shown {
    pub(super) channel: (*mut rdma_event_channel, Arc<Channel>),
    pub(super) context: *mut std::ffi::c_void,
    pub(super) ps: u32,
    pub(super) qp_type: u32,
}

/// Gives an id its C structure.
pub(super) fn show(
    shown: Shown,
    soft: Option<Arc<Id>>,
    kernel: Option<Arc<kernel::Id>>,
) -> Outcome<*mut rdma_cm_id> {
    let (c_channel, channel) = shown.channel;
    let view = IdView(Mutex::new(Halves { soft, kernel, channel }));
    let c = rdma_cm_id::pool().insert(view, |object, _| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let object = unsafe { &mut *object };
        (object.channel, object.context) = (c_channel, shown.context);
        (object.ps, object.qp_type) = (shown.ps, shown.qp_type);
    })?;
    Ok(c.as_ptr())
}

/// Gives an id of the device its C structure.
pub(super) fn insert(
    soft: Arc<CmId>,
    channel: (*mut rdma_event_channel, Arc<Channel>),
    context: *mut std::ffi::c_void,
    sync: bool,
) -> Outcome<Handle> {
    let parts = Parts { sync, ..Parts::default() };
    let id = Arc::new(Id { soft: soft.clone(), parts: Mutex::new(parts) });
    let (ps, qp_type) = (soft.port_space() as u32, soft.qp_type() as u32);
    let c = show(Shown { channel, context, ps, qp_type }, Some(id.clone()), None)?;
    soft.set_cookie(c.expose_provenance());
    Ok(Handle { c, id })
}

impl Handle {
    pub(super) fn is_sync(&self) -> bool {
        self.id.parts.lock().sync
    }

    /// A field of the C structure, which the program may change.
    pub(super) fn get<T: Copy>(&self, field: fn(*mut rdma_cm_id) -> *mut T) -> T {
        // SAFETY: places are never unmapped, and the field is one of the structure's.
        unsafe { field(self.c).read() }
    }

    /// Writes a field of the C structure.
    pub(super) fn set<T>(&self, field: fn(*mut rdma_cm_id) -> *mut T, value: T) {
        // SAFETY: as for `get`; a program does not touch an id while it calls us with it.
        unsafe { field(self.c).write(value) };
    }

    /// Copies what the device knows of the id into the structure: addresses, device, path.
    pub(super) fn refresh(&self) -> Outcome<()> {
        let soft = &self.id.soft;
        if let Some(addr) = soft.local_addr() {
            self.set(field!(route.addr.src_addr), address::storage(addr));
        }
        if let Some(addr) = soft.peer_addr() {
            self.set(field!(route.addr.dst_addr), address::storage(addr));
        }
        if let Some((local, peer)) = soft.ib_addrs() {
            self.set(field!(route.addr.src_addr), Address::Ib(local).storage());
            if let Some(peer) = peer {
                self.set(field!(route.addr.dst_addr), Address::Ib(peer).storage());
            }
        }
        let Some(device) = soft.device() else { return Ok(()) };
        let opened = devices::opened(&device)?;
        if self.get(field!(verbs)).is_null() {
            self.set(field!(verbs), opened.context());
            if self.get(field!(pd)).is_null() {
                self.set(field!(pd), opened.pd()?);
            }
        }
        self.set(field!(port_num), soft.port_num());
        if let Some((_, gid)) = soft.gid() {
            self.set(field!(route.addr.addr.sgid), gid.0);
            let pkey = soft.route().map_or(PKEY, |route| route.path.pkey);
            self.set(field!(route.addr.addr.pkey), pkey.to_be());
        }
        if let Some(gid) = soft.peer_gid() {
            self.set(field!(route.addr.addr.dgid), gid.0);
        }
        if let Some(route) = soft.route() {
            self.write_path(&route.path);
        }
        Ok(())
    }

    fn write_path(&self, path: &soft::cm::PathRecord) {
        /// "Exactly" (IBA 15.2.5.16, selectors).
        const EXACTLY: u8 = 2;
        let record = ibv_sa_path_rec {
            dgid: path.dgid.0,
            sgid: path.sgid.0,
            _align: [],
            dlid: path.dlid.to_be(),
            slid: path.slid.to_be(),
            raw_traffic: 0,
            flow_label: path.flow_label.to_be(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: path.pkey.to_be(),
            sl: path.sl,
            mtu_selector: EXACTLY,
            mtu: path.mtu as u8,
            rate_selector: EXACTLY,
            rate: path.rate,
            packet_life_time_selector: EXACTLY,
            packet_life_time: path.packet_life_time,
            preference: 0,
        };
        let mut parts = self.id.parts.lock();
        // The program may hold the pointer: the record stays where it is.
        let kept = parts.path.get_or_insert_with(|| Box::new(record));
        **kept = record;
        let pointer = &raw mut **kept;
        self.set(field!(route.path_rec), pointer);
        self.set(field!(route.num_paths), 1);
    }

    /// Shows in the structure of its queue pair what became of it.
    pub(super) fn refresh_qp(&self) {
        let qp = self.get(field!(qp));
        if qp.is_null() {
            return;
        }
        // SAFETY: a pointer that we or the program put there; checked as in every verb.
        if let Ok(found) = unsafe { objects::find::<ibv_qp_ex>(qp) } {
            let state = found.inner.state() as u32;
            // SAFETY: the place is alive; the field is ours to write.
            unsafe { (&raw mut (*found.object()).qp_base.state).write(state) };
        }
    }

    /// A queue pair that the program made itself and put into the structure is the id's like one
    /// that `rdma_create_qp` made.
    pub(super) fn adopt_qp(&self) -> Outcome<()> {
        let qp = self.get(field!(qp));
        if qp.is_null() {
            return Ok(());
        }
        // SAFETY: as in `refresh_qp`.
        let inner = unsafe { objects::find::<ibv_qp_ex>(qp)? }.inner.clone();
        match self.id.soft.qp() {
            Some(attached) if Arc::ptr_eq(&attached, &inner) => Ok(()),
            _ => Ok(self.id.soft.attach_qp(Some(&inner))?),
        }
    }

    /// Notes what an event means for later calls.
    pub(super) fn note(&self, kind: CmEventKind) {
        let mut parts = self.id.parts.lock();
        match kind {
            CmEventKind::Established => parts.ended = false,
            CmEventKind::Disconnected => parts.ended = true,
            _ => {}
        }
    }
}

/// The one P_Key: the default partition, full member.
const PKEY: u16 = 0xffff;

/// Finds a field of an id's C structure.
macro_rules! field {
    ($($field:ident).+) => {
        |id| {
            #[allow(unused_unsafe, reason = "some of its users are unsafe blocks themselves")]
            // SAFETY: only an address is computed, within a place of the pool.
            let field = unsafe { &raw mut (*id).$($field).+ };
            field
        }
    };
}
pub(in crate::cm) use field;

/// A pointer must be there.
pub(in crate::cm) fn given<T>(what: &'static str, pointer: *mut T) -> Outcome<*mut T> {
    match pointer.is_null() {
        true => Err(Failure::Null { what }),
        false => Ok(pointer),
    }
}
