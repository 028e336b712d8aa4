//! What this process tells its peers: which queue pairs and regions they may use by themselves.
//!
//! A memfd that this process alone can write, sparse: a page costs memory once something in it is used. What
//! does not fit is reached by packets.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::lock::{self, Kept};
use ironverbs_sys::mem::Mapping;
use ironverbs_sys::process::{self, ClosedOnFork, ForkGuard};
use ironverbs_sys::shm::{Memfd, Shared};
use ironverbs_transport::verbs::Access;
use parking_lot::Mutex;

use super::arena;
use super::protocol::{self, Memory, Word};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"irondoor");
pub(super) const VERSION: u32 = 3;

/// Regions that the table has lines for: those with smaller slot numbers.
pub(crate) const REGIONS: usize = 1 << 16;
/// Queue pairs: all that a process can have numbers for.
pub(crate) const QPS: usize = 1 << 14;

pub(super) const LINE: usize = 64;
const FIRST_QP: usize = 4096;
const FIRST_REGION: usize = FIRST_QP + QPS * LINE;
pub(super) const SIZE: usize = FIRST_REGION + REGIONS * LINE;

/// Byte offsets of the header's words.
pub(super) mod header {
    pub(in crate::direct) const MAGIC: usize = 0;
    pub(in crate::direct) const VERSION: usize = 8;
    pub(in crate::direct) const LOCK_LAYOUT: usize = 12;
    /// A random number that names the table.
    pub(in crate::direct) const ID: usize = 16;
    /// Where the same number is in private memory of this process, for others to try whether they reach it.
    pub(in crate::direct) const PROBE: usize = 24;
    /// The number of the arena's descriptor plus one; 0 while no region is in it.
    pub(in crate::direct) const ARENA: usize = 32;
    /// What must stand behind payloads that are fetched from this process.
    pub(in crate::direct) const COOKIE: usize = 40;
    /// Held by a thread for as long as the process lives and is this program.
    pub(in crate::direct) const LIFE: usize = 64;
}

/// Byte offsets in a line. The first word is its sequence number.
pub(super) mod line {
    pub(in crate::direct) const PD: usize = 4;
    pub(in crate::direct) const ACCESS: usize = 8;

    /// Of a queue pair: its peer.
    pub(in crate::direct) const PEER_QPN: usize = 12;
    pub(in crate::direct) const PEER_SLOT: usize = 16;
    pub(in crate::direct) const PEER_TENURE: usize = 20;
    /// PSN of the next request: changes without the sequence number.
    pub(in crate::direct) const PSN: usize = 24;

    /// Of a region.
    pub(in crate::direct) const RKEY: usize = 12;
    pub(in crate::direct) const ADDR: usize = 16;
    pub(in crate::direct) const LEN: usize = 24;
    pub(in crate::direct) const IOVA: usize = 32;
    /// Where it is in the arena, plus one; 0: it is not.
    pub(in crate::direct) const ARENA: usize = 40;
    /// The only queue pair by which it may be reached; 0: any.
    pub(in crate::direct) const QPN: usize = 48;
}

/// In an access word: the line says something.
pub(super) const PRESENT: u32 = 1 << 31;

/// Names of the tables of this process. An exec starts with none, a fork's child never looks.
static OURS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Whether a table is of this process, so that its addresses are ours.
pub(super) fn is_ours(id: u64) -> bool {
    OURS.lock().contains(&id)
}

/// The line of a queue pair: 4,096 for each of the blocks that a process can have.
pub(crate) fn line_of_qp(qpn: u32) -> usize {
    ((qpn >> 22 & 3) << 12 | qpn & 0xfff) as usize
}

pub(super) fn qp_at(index: usize) -> Option<usize> {
    (index < QPS).then_some(FIRST_QP + index * LINE)
}

pub(super) fn region_at(index: usize) -> Option<usize> {
    (index < REGIONS).then_some(FIRST_REGION + index * LINE)
}

/// A queue pair, as its peer must know it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct QpLine {
    pub(crate) pd: u32,
    pub(crate) access: Access,
    pub(crate) peer_qpn: u32,
    /// The peer's process.
    pub(crate) peer_slot: u16,
    pub(crate) peer_tenure: u32,
}

/// A region, as peers must know it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionLine {
    pub(crate) rkey: u32,
    pub(crate) pd: u32,
    pub(crate) access: Access,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) iova: u64,
    /// The one queue pair by which it may be reached, as a window of type 2; 0: any.
    pub(crate) qpn: u32,
}

/// This process's table, or rather one Host's.
#[derive(Debug)]
pub(crate) struct Table {
    memory: Arc<Shared>,
    /// In a child of fork(2) it must not be dropped: the descriptor is closed, its number may be another's.
    descriptor: ManuallyDrop<Descriptor>,
    fork: ForkGuard,
    id: u64,
    probe: Mapping,
}

#[derive(Debug)]
struct Descriptor {
    /// First, so that it is gone before the descriptor is closed.
    _closed_on_fork: ClosedOnFork,
    memfd: Memfd,
}

impl Table {
    /// With `cookie` for payloads that are fetched from this process.
    pub(crate) fn create(cookie: u64) -> io::Result<Table> {
        let (memfd, memory) = Memfd::create_owned(c"ironverbs-table", SIZE)?;
        let id = new_id();
        let probe = Mapping::anonymous(8)?;
        // SAFETY: the mapping is ours, page-aligned, and larger than the word, which is only used as an atomic.
        unsafe { AtomicU64::from_ptr(probe.as_ptr().cast()) }.store(id, Ordering::Relaxed);
        lock::init(&memory, header::LIFE)?;
        let closed_on_fork = ClosedOnFork::new(memfd.as_fd())?;
        let descriptor = ManuallyDrop::new(Descriptor { _closed_on_fork: closed_on_fork, memfd });
        let (memory, fork) = (Arc::new(memory), ForkGuard::new()?);
        let table = Table { memory, descriptor, fork, id, probe };
        table.set(header::VERSION, VERSION);
        table.set(header::LOCK_LAYOUT, lock::layout());
        table.set_long(header::ID, id);
        table.set_long(header::PROBE, table.probe.addr());
        table.set_long(header::COOKIE, cookie);
        // SYNC POINT: with the load in `Remote::open`.
        if let Some(magic) = table.memory.u64(header::MAGIC) {
            magic.store(MAGIC, Ordering::Release);
        }
        OURS.lock().push(id);
        Ok(table)
    }

    /// By what peers find it: its descriptor's number in this process, and its name.
    pub(crate) fn announcement(&self) -> (u32, u64) {
        (self.descriptor.memfd.as_fd().as_raw_fd() as u32, self.id)
    }

    /// Has the cookie be another, as [`crate::reference::Cookie::change`] does.
    pub(crate) fn change_cookie(&self) {
        if let Some(cookie) = self.memory.u64(header::COOKIE) {
            cookie.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Shows that this process lives, for as long as the calling thread does not drop what it gets.
    pub(crate) fn keep_alive(&self) -> io::Result<Kept> {
        lock::keep(&self.memory, header::LIFE)
    }

    /// Tells of a queue pair, or that the one in that line takes no requests of this kind. One thread at a time
    /// for each line.
    pub(crate) fn set_qp(&self, index: usize, qp: Option<&QpLine>) {
        let Some(at) = qp_at(index) else { return };
        protocol::change(&Line { memory: &self.memory, at }, Word::Qp, || match qp {
            None => self.set(at + line::ACCESS, 0),
            Some(qp) => {
                self.set(at + line::PD, qp.pd);
                self.set(at + line::ACCESS, qp.access.bits() | PRESENT);
                self.set(at + line::PEER_QPN, qp.peer_qpn);
                self.set(at + line::PEER_SLOT, qp.peer_slot.into());
                self.set(at + line::PEER_TENURE, qp.peer_tenure);
            }
        });
    }

    /// Tells the PSN of the queue pair's next request. To be told before the peer learns that the request before
    /// was carried out.
    #[inline]
    pub(crate) fn set_psn(&self, index: usize, psn: u32) {
        if let Some(at) = qp_at(index) {
            self.set(at + line::PSN, psn);
        }
    }

    /// Tells of a region, or that there is none in that line any more. One thread at a time for each line.
    pub(crate) fn set_region(&self, index: usize, region: Option<&RegionLine>) {
        let Some(at) = region_at(index) else { return };
        protocol::change(&Line { memory: &self.memory, at }, Word::Region, || match region {
            None => self.set(at + line::ACCESS, 0),
            Some(region) => {
                self.set(at + line::PD, region.pd);
                self.set(at + line::ACCESS, region.access.bits() | PRESENT);
                self.set(at + line::RKEY, region.rkey);
                self.set_long(at + line::ADDR, region.addr);
                self.set_long(at + line::LEN, region.len);
                self.set_long(at + line::IOVA, region.iova);
                self.set(at + line::QPN, region.qpn);
                self.set_long(at + line::ARENA, self.place(region).map_or(0, |place| place + 1));
            }
        });
    }

    /// Where the region is in the arena, of which peers are told with the first that is in it.
    fn place(&self, region: &RegionLine) -> Option<u64> {
        let (arena, offset) = arena::locate(region.addr, region.len)?;
        self.set(header::ARENA, arena.number() + 1);
        Some(offset)
    }

    #[inline]
    fn set(&self, at: usize, value: u32) {
        if let Some(word) = self.memory.u32(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn set_long(&self, at: usize, value: u64) {
        if let Some(word) = self.memory.u64(at) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        OURS.lock().retain(|id| *id != self.id);
        // SAFETY: dropped here only, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.descriptor) };
    }
}

/// The line that is being changed: its sequence number is all that the protocol needs of it.
struct Line<'a> {
    memory: &'a Shared,
    at: usize,
}

impl Memory for Line<'_> {
    fn load(&self, _: Word, order: Ordering) -> u64 {
        self.memory.load_u32(self.at, order).unwrap_or(0).into()
    }

    fn store(&self, _: Word, value: u64, order: Ordering) {
        if let Some(word) = self.memory.u32(self.at) {
            // It wraps in the line's 32 bits, evenly.
            word.store(value as u32, order);
        }
    }

    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// Not to be guessed, though nothing depends on that; never 0.
fn new_id() -> u64 {
    let random = fastrand::u64(..);
    (random ^ monotonic_ns() ^ u64::from(process::pid()).rotate_left(40)).max(1)
}
