//! What stands behind the structures of librdmacm for ids of the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ironverbs::raw as soft;
use ironverbs_kernel::cm::{self, CmCommand, Place};
use ironverbs_sys::uverbs;
use parking_lot::{Condvar, Mutex};

use crate::abi::*;
use crate::fail::{Failure, Outcome};
use crate::host::host;
use crate::pool::{Object, Pool};

use super::devices::{self, Opened};

/// Whether new channels and ids are the kernel's.
pub(in crate::cm) fn wanted() -> bool {
    host().is_ok_and(|host| host.config().soft.value == soft::config::Soft::Off)
}

/// An open connection manager.
pub(super) struct Channel {
    pub(super) fd: OwnedFd,
}

impl Channel {
    /// Issues a command, and gives its response.
    pub(super) fn issue(&self, command: &CmCommand) -> Outcome<Vec<u8>> {
        let mut response = vec![0u8; command.response];
        let written = command.written(response.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the response has the room that the command says; other addresses of these commands are values.
        unsafe { uverbs::write(self.fd.as_fd(), &written)? };
        Ok(response)
    }
}

#[repr(transparent)]
pub(in crate::cm) struct KernelChannel(rdma_event_channel);

pub(in crate::cm) struct ChannelView(pub(super) Arc<Channel>);

/// An id, and what only C has.
pub(in crate::cm) struct Id {
    /// The kernel's number.
    pub(super) handle: AtomicU32,
    pub(super) parts: Mutex<Parts>,
    pub(super) events: Arc<Counter>,
}

/// Counts events that were acknowledged.
#[derive(Default)]
pub(super) struct Counter {
    acknowledged: Mutex<u32>,
    changed: Condvar,
}

impl Counter {
    pub(super) fn acknowledge(&self) {
        *self.acknowledged.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until so many were.
    pub(super) fn wait(&self, events: u32) {
        let mut acknowledged = self.acknowledged.lock();
        while *acknowledged < events {
            self.changed.wait(&mut acknowledged);
        }
    }
}

pub(super) struct Parts {
    pub(super) channel: Arc<Channel>,
    /// Calls wait for their events, which come from a channel of the id's own.
    pub(super) sync: bool,
    /// READs and atomics of a request: as responder, as initiator.
    pub(super) asked: Option<(u8, u8)>,
    /// What `route.path_rec` points to.
    pub(super) path: Option<Box<ibv_sa_path_rec>>,
    /// What a listening endpoint makes queue pairs from.
    pub(super) template: Option<Template>,
    /// Sent ahead of the program's own private data.
    pub(super) preface: Vec<u8>,
    /// Whether completion queues, and channels, were made with the queue pair: send, receive.
    pub(super) made: [bool; 2],
}

impl Id {
    pub(super) fn number(&self) -> u32 {
        self.handle.load(Ordering::Acquire)
    }

    pub(super) fn issue(&self, command: &CmCommand) -> Outcome<Vec<u8>> {
        let channel = self.parts.lock().channel.clone();
        channel.issue(command)
    }
}

#[repr(transparent)]
pub(in crate::cm) struct KernelId(rdma_cm_id);

pub(in crate::cm) struct IdView(pub(super) Arc<Id>);

#[repr(transparent)]
pub(in crate::cm) struct KernelEvent(rdma_cm_event);

/// Dropping it acknowledges the event.
pub(in crate::cm) struct EventView {
    pub(super) events: Arc<Counter>,
    /// The membership whose event it is, too.
    pub(super) member: Option<Arc<Counter>>,
    /// Where the event's private data lies.
    pub(super) _data: Vec<u8>,
}

impl Drop for EventView {
    fn drop(&mut self) {
        if let Some(member) = &self.member {
            member.acknowledge();
        }
        self.events.acknowledge();
    }
}

macro_rules! object {
    ($object:ty, $public:ty, $view:ty, $name:literal) => {
        impl Object for $object {
            type View = $view;
            type Public = $public;
            const NAME: &'static str = $name;

            fn pool() -> &'static Pool<Self> {
                static POOL: Pool<$object> = Pool::new();
                &POOL
            }

            unsafe fn handle(_: *const $public) -> Option<u32> {
                None
            }
        }
    };
}

object!(KernelChannel, rdma_event_channel, ChannelView, "event channel");
object!(KernelId, rdma_cm_id, IdView, "rdma_cm_id");
object!(KernelEvent, rdma_cm_event, EventView, "rdma_cm_event");

/// How many channels of the kernel's there ever were: where there were none, nothing else is looked at.
static CHANNELS: AtomicUsize = AtomicUsize::new(0);

/// Structures of librdmacm that are of one world.
pub(in crate::cm) trait Owned: Copy {
    /// Whether it is one of the kernel's.
    fn is_kernels(self) -> bool;
}

macro_rules! owned {
    ($($public:ty, $object:ty;)*) => {$(
        impl Owned for *mut $public {
            fn is_kernels(self) -> bool {
                // SAFETY: its address is all that is looked at.
                unsafe { <$object>::pool().find(self) }.is_ok()
            }
        }
    )*};
}

owned! {
    rdma_cm_id, KernelId;
    rdma_event_channel, KernelChannel;
    rdma_cm_event, KernelEvent;
}

/// Whether what a program passed is one of the kernel's.
pub(in crate::cm) fn is_kernels(object: impl Owned) -> bool {
    CHANNELS.load(Ordering::Acquire) > 0 && object.is_kernels()
}

/// A new channel and its C structure.
pub(super) fn new_channel() -> Outcome<(*mut rdma_event_channel, Arc<Channel>)> {
    use std::os::fd::AsRawFd;
    let path = c"/dev/infiniband/rdma_cm";
    let fd = uverbs::open(path, None).map_err(|error| {
        let errno = match error.raw_os_error() {
            Some(libc::EACCES) => libc::EPERM,
            Some(libc::ENOENT) => libc::ENODEV,
            other => other.unwrap_or(libc::EIO),
        };
        Failure::Open { path: path.to_string_lossy().into_owned(), errno, error }
    })?;
    let channel = Arc::new(Channel { fd });
    let fd = channel.fd.as_raw_fd();
    CHANNELS.fetch_add(1, Ordering::AcqRel);
    let object = KernelChannel::pool().insert(ChannelView(channel.clone()), |object, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(KernelChannel(rdma_event_channel { fd })) };
    })?;
    Ok((object.as_ptr(), channel))
}

/// The channel behind a program's pointer.
///
/// # Safety
/// `c` is null or points to the structure.
pub(super) unsafe fn channel(c: *mut rdma_event_channel) -> Outcome<Arc<Channel>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { KernelChannel::pool().find(c)? }.0.clone())
}

/// Takes a channel from the program; it is closed with its last id.
pub(super) fn remove_channel(c: *mut rdma_event_channel) -> Outcome<()> {
    // SAFETY: its address is all that is looked at.
    let number = unsafe { KernelChannel::pool().find(c)? }.number();
    KernelChannel::pool().remove(number);
    Ok(())
}

/// A structure that a program holds, and what stands behind it.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) c: *mut rdma_cm_id,
    pub(super) id: Arc<Id>,
}

/// The living id behind a program's pointer.
///
/// # Safety
/// `c` is null or points to the structure.
pub(super) unsafe fn find(c: *mut rdma_cm_id) -> Outcome<Handle> {
    // SAFETY: the caller's promise.
    let found = unsafe { KernelId::pool().find(c)? };
    Ok(Handle { c, id: found.0.clone() })
}

/// The id that events name so.
pub(super) fn named(name: u64) -> Option<Handle> {
    let c: *mut rdma_cm_id = ptr::with_exposed_provenance_mut(name as usize);
    // SAFETY: its address is all that is looked at.
    unsafe { find(c) }.ok()
}

/// Gives an id, with the kernel's number, its C structure.
pub(super) fn insert(
    (c_channel, channel): (*mut rdma_event_channel, Arc<Channel>),
    context: *mut std::ffi::c_void,
    (ps, qp_type): (u32, u32),
    sync: bool,
    handle: u32,
) -> Outcome<Handle> {
    let parts = Parts {
        channel,
        sync,
        asked: None,
        path: None,
        template: None,
        preface: Vec::new(),
        made: [false; 2],
    };
    let id = Arc::new(Id {
        handle: AtomicU32::new(handle),
        parts: Mutex::new(parts),
        events: Arc::default(),
    });
    let c = KernelId::pool().insert(IdView(id.clone()), |object, _| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let object = unsafe { &mut (*object).0 };
        (object.channel, object.context) = (c_channel, context);
        (object.ps, object.qp_type) = (ps, qp_type);
    })?;
    Ok(Handle { c: c.as_ptr(), id })
}

impl Handle {
    /// Ends the C side. False when somebody else did.
    pub(super) fn remove(&self) -> bool {
        // SAFETY: its address is all that is looked at.
        let found = unsafe { KernelId::pool().find(self.c) };
        let Ok(number) = found.map(|found| found.number()) else { return false };
        KernelId::pool().remove(number).is_some()
    }

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

    pub(super) fn is_datagram(&self) -> bool {
        const UD: u32 = 4;
        self.get(field!(qp_type)) == UD
    }

    /// Copies what the kernel knows of the id into the structure: addresses, device, port.
    pub(super) fn refresh(&self) -> Outcome<()> {
        let place = Place::read(&self.id.issue(&cm::query_addr(self.id.number()))?);
        let [from, to] = place.addresses.map(|bytes| sockaddr_storage { bytes });
        self.set(field!(route.addr.src_addr), from);
        self.set(field!(route.addr.dst_addr), to);
        if place.node_guid == 0 {
            return Ok(());
        }
        let opened = devices::opened(place.node_guid)?;
        if self.get(field!(verbs)).is_null() {
            self.set(field!(verbs), opened.context());
            if self.get(field!(pd)).is_null() {
                self.set(field!(pd), opened.pd());
            }
        }
        self.set(field!(port_num), place.port);
        self.set(field!(route.addr.addr.pkey), place.pkey);
        let [own, peers] = Place::read(&self.id.issue(&cm::query_gid(self.id.number()))?).gids();
        self.set(field!(route.addr.addr.sgid), own);
        self.set(field!(route.addr.addr.dgid), peers);
        Ok(())
    }

    /// Copies the path that the kernel found into the structure.
    pub(super) fn refresh_path(&self) -> Outcome<()> {
        let response = self.id.issue(&cm::query_path(self.id.number()))?;
        let Some(path) = cm::first_path(&response) else { return Ok(()) };
        let record = Box::new(path_record(&path));
        let mut parts = self.id.parts.lock();
        let kept = parts.path.insert(record);
        let pointer = &raw mut **kept;
        self.set(field!(route.path_rec), pointer);
        self.set(field!(route.num_paths), 1);
        Ok(())
    }

    /// The device of the id.
    pub(super) fn device(&self) -> Outcome<Arc<Opened>> {
        devices::of_context(self.get(field!(verbs)))
    }
}

/// A path record as MADs have it (IBA 15.2.5.16).
fn path_record(bytes: &[u8; 64]) -> ibv_sa_path_rec {
    let r = ironverbs_kernel::command::Response(bytes);
    let word = u32::from_be(r.u32(44));
    ibv_sa_path_rec {
        dgid: r.part(8).unwrap_or_default(),
        sgid: r.part(24).unwrap_or_default(),
        _align: [],
        dlid: r.u16(40),
        slid: r.u16(42),
        raw_traffic: (word >> 31) as i32,
        flow_label: (word >> 8 & 0xf_ffff).to_be(),
        hop_limit: word as u8,
        traffic_class: r.u8(48),
        reversible: (r.u8(49) >> 7).into(),
        numb_path: r.u8(49) & 0x7f,
        pkey: r.u16(50),
        sl: (u16::from_be(r.u16(52)) & 0xf) as u8,
        mtu_selector: r.u8(54) >> 6,
        mtu: r.u8(54) & 0x3f,
        rate_selector: r.u8(55) >> 6,
        rate: r.u8(55) & 0x3f,
        packet_life_time_selector: r.u8(56) >> 6,
        packet_life_time: r.u8(56) & 0x3f,
        preference: r.u8(57),
    }
}

pub(super) use crate::cm::objects::{Template, field, given};
