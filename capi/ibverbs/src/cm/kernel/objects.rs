//! What stands behind the structures of librdmacm for ids of the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ironverbs_kernel::cm::{self, CmCommand, Ece, Place};
use ironverbs_sys::{event, uverbs};
use parking_lot::{Condvar, Mutex};

use crate::abi::*;
use crate::fail::{Failure, Outcome};
use crate::pool::{Object, Pool};

use super::devices::{self, Opened};

/// An open connection manager.
pub(in crate::cm) struct Channel {
    pub(in crate::cm) fd: OwnedFd,
}

impl Channel {
    /// ENODEV where there is none, EPERM where it is not for this user.
    pub(in crate::cm) fn open() -> Outcome<Arc<Channel>> {
        let path = c"/dev/infiniband/rdma_cm";
        let fd = uverbs::open(path, None).map_err(|error| {
            let errno = match error.raw_os_error() {
                Some(libc::EACCES) => libc::EPERM,
                // The file may be left of a module that is gone.
                Some(libc::ENOENT | libc::ENXIO) => libc::ENODEV,
                other => other.unwrap_or(libc::EIO),
            };
            Failure::Open { path: path.to_string_lossy().into_owned(), errno, error }
        })?;
        CHANNELS.fetch_add(1, Ordering::AcqRel);
        Ok(Arc::new(Channel { fd }))
    }

    /// Reading from it never waits from now on.
    pub(in crate::cm) fn share(&self) -> Outcome<()> {
        Ok(event::set_nonblocking(self.fd.as_fd())?)
    }

    /// Issues a command, and gives its response.
    pub(super) fn issue(&self, command: &CmCommand) -> Outcome<Vec<u8>> {
        let mut response = vec![0u8; command.response];
        let written = command.written(response.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the response has the room that the command says; other addresses of these commands are values.
        unsafe { uverbs::write(self.fd.as_fd(), &written)? };
        Ok(response)
    }
}

/// An id, and what only C has.
pub(in crate::cm) struct Id {
    /// The kernel's number.
    pub(super) handle: AtomicU32,
    pub(in crate::cm) parts: Mutex<Parts>,
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

pub(in crate::cm) struct Parts {
    pub(super) channel: Arc<Channel>,
    /// Calls wait for their events, which come from a channel of the id's own.
    pub(in crate::cm) sync: bool,
    /// Its device, once it has one.
    pub(super) device: Option<Arc<Opened>>,
    /// READs and atomics of a request: as responder, as initiator.
    pub(super) asked: Option<(u8, u8)>,
    /// What `route.path_rec` points to.
    pub(super) path: Option<Box<ibv_sa_path_rec>>,
    /// What a listening endpoint makes queue pairs from.
    pub(in crate::cm) template: Option<Template>,
    /// Sent ahead of the program's own private data.
    pub(in crate::cm) preface: Vec<u8>,
    /// The options that the program, or else the device of its queue pair, has; and the peer's.
    pub(super) ece: Ece,
    pub(super) peer_ece: Ece,
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

impl Object for KernelEvent {
    type View = EventView;
    type Public = rdma_cm_event;
    const NAME: &'static str = "rdma_cm_event";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<KernelEvent> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const rdma_cm_event) -> Option<u32> {
        None
    }
}

/// How many channels of the kernel's there ever were: where there were none, nothing else is looked at.
static CHANNELS: AtomicUsize = AtomicUsize::new(0);

/// Structures of librdmacm that are of one world.
pub(in crate::cm) trait Owned: Copy {
    /// Whether it is one of the kernel's.
    fn is_kernels(self) -> bool;
}

impl Owned for *mut rdma_cm_id {
    fn is_kernels(self) -> bool {
        // SAFETY: its address is all that is looked at.
        let halves = unsafe { crate::cm::objects::halves(self) };
        halves.is_ok_and(|halves| halves.kernel.is_some() && halves.soft.is_none())
    }
}

impl Owned for *mut rdma_cm_event {
    fn is_kernels(self) -> bool {
        // SAFETY: its address is all that is looked at.
        unsafe { KernelEvent::pool().find(self) }.is_ok()
    }
}

/// Whether what a program passed is one of the kernel's.
pub(in crate::cm) fn is_kernels(object: impl Owned) -> bool {
    CHANNELS.load(Ordering::Acquire) > 0 && object.is_kernels()
}

/// A structure that a program holds, and what stands behind it.
#[derive(Clone)]
pub(in crate::cm) struct Handle {
    pub(in crate::cm) c: *mut rdma_cm_id,
    pub(in crate::cm) id: Arc<Id>,
}

/// The living id behind a program's pointer.
///
/// # Safety
/// `c` is null or points to the structure.
pub(in crate::cm) unsafe fn find(c: *mut rdma_cm_id) -> Outcome<Handle> {
    // SAFETY: the caller's promise.
    let half = unsafe { crate::cm::objects::halves(c)? }.kernel;
    half.map(|id| Handle { c, id }).ok_or(Failure::Unknown { what: "rdma_cm_id", handle: 0 })
}

/// The id that events name so.
pub(super) fn named(name: u64) -> Option<Handle> {
    let c: *mut rdma_cm_id = ptr::with_exposed_provenance_mut(name as usize);
    // SAFETY: its address is all that is looked at.
    unsafe { find(c) }.ok()
}

/// What stands behind an id of the kernel, with the kernel's number.
pub(in crate::cm) fn half(channel: Arc<Channel>, sync: bool, handle: u32) -> Arc<Id> {
    let parts = Parts {
        channel,
        sync,
        device: None,
        asked: None,
        path: None,
        template: None,
        preface: Vec::new(),
        ece: Ece::default(),
        peer_ece: Ece::default(),
        made: [false; 2],
    };
    Arc::new(Id {
        handle: AtomicU32::new(handle),
        parts: Mutex::new(parts),
        events: Arc::default(),
    })
}

/// Gives an id, with the kernel's number, its C structure.
pub(super) fn insert(shown: Shown, sync: bool, handle: u32) -> Outcome<Handle> {
    let lacks = Failure::Null { what: "kernel's part of the channel" };
    let channel = shown.channel.1.kernel().cloned().ok_or(lacks)?;
    let id = half(channel, sync, handle);
    let c = crate::cm::objects::show(shown, None, Some(id.clone()))?;
    Ok(Handle { c, id })
}

impl Handle {
    pub(in crate::cm) fn is_sync(&self) -> bool {
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
    pub(in crate::cm) fn refresh(&self) -> Outcome<()> {
        let place = Place::read(&self.id.issue(&cm::query_addr(self.id.number()))?);
        let [from, to] = place.addresses.map(|bytes| sockaddr_storage { bytes });
        self.set(field!(route.addr.src_addr), from);
        self.set(field!(route.addr.dst_addr), to);
        if place.node_guid == 0 {
            return Ok(());
        }
        let opened = devices::opened(place.node_guid)?;
        self.id.parts.lock().device = Some(opened.clone());
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
        self.id.parts.lock().device.clone().ok_or(Failure::Null { what: "device of the id" })
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

pub(super) use crate::cm::objects::{Shown, Template, field, given, remove};
