//! What each process tells of itself, in memory that the other processes of the user can read.
//!
//! A group has one sparse memfd with a *window* for each slot. The slot's tenant writes its window
//! and nobody else's: its queue pairs with their state, peers and counters, and which verbs wait for
//! what. Who reads needs nothing of the process that wrote: it may be stopped, or dead.
//!
//! Besides being looked at (`ironverbs ps`), a window is a process's testament: up to which PSN each
//! queue pair has carried out its peer's requests. A peer that waits for an acknowledgement when
//! the process is gone looks there; so nothing that was done counts as lost, wherever the process was
//! when it ended.

mod layout;
mod view;
mod will;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::process;
use ironverbs_sys::shm::{Memfd, Shared};
use ironverbs_transport::qp::Counters;
use ironverbs_transport::verbs::{QpState, QpType};
use ironverbs_wire::Gid;
use parking_lot::Mutex;

use crate::registry::SLOTS;
use layout::{COUNTERS, ENTRY, HEADER, LIVE, LOCAL, SRQ, WAIT, WAITS, WINDOW, entry, header, wait};
pub use view::{ProcessStatus, QpStatus, ServiceStatus, WaitStatus};
pub(crate) use view::{Testament, View};
pub(crate) use will::Will;

/// How the memfd shows in /proc/PID/fd.
pub(crate) const NAME: &std::ffi::CStr = c"ironverbs-status";

/// Makes the memfd of a group. Where a file may not be as long (RLIMIT_FSIZE), it holds nothing, and nobody tells
/// anything.
pub(crate) fn create() -> io::Result<Memfd> {
    match Memfd::create(NAME, WINDOW * usize::from(SLOTS)) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Memfd::create(NAME, HEADER),
        made => made,
    }
}

fn window(slot: u16) -> u64 {
    u64::from(slot) * WINDOW as u64
}

/// Where in a window the QP's entry is.
fn place(qpn: u32) -> usize {
    let block = (qpn >> 12) as usize / usize::from(SLOTS);
    HEADER + (block * crate::qpn::BLOCK + qpn as usize % crate::qpn::BLOCK) * ENTRY
}

/// What a verb waits for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Waiting {
    /// ibv_destroy_qp(3): asynchronous events of the QP with that number.
    Qp = 1,
    /// ibv_destroy_cq(3): completion events of the CQ with that handle.
    Completions = 2,
    /// ibv_destroy_cq(3): asynchronous events of it.
    Cq = 3,
    /// ibv_destroy_srq(3): asynchronous events of the SRQ with that handle.
    Srq = 4,
    /// ibv_dereg_mr(3): a process that touches the region with that lkey by itself.
    Deregister = 5,
    /// ibv_rereg_mr(3): likewise.
    Reregister = 6,
    /// ibv_dealloc_mw(3): a process that touches memory by the window with that rkey.
    Deallocate = 7,
    /// ibv_destroy_qp(3): a process that carries out requests to the QP with that number.
    DestroyQp = 8,
    /// ibv_modify_qp(3): likewise.
    ModifyQp = 9,
}

/// The window of this process.
#[derive(Debug)]
pub(crate) struct Board {
    memory: Shared,
    slot: u16,
    /// Waits in use, a bit each.
    waits: Mutex<u64>,
}

/// What a QP tells of itself besides its counters.
#[derive(Copy, Clone, Debug)]
pub(crate) struct QpFacts {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) state: QpState,
    pub(crate) srq: bool,
    /// Its peer's address and number, if it is connected.
    pub(crate) peer: Option<(Gid, u32)>,
    /// Slot and tenure of the peer's process, if packets go through shared memory.
    pub(crate) process: Option<(u16, u32)>,
}

impl Board {
    /// Opens the window of a slot for its tenant, who has it alone.
    pub(crate) fn open(memfd: &Memfd, slot: u16, tenure: u32) -> io::Result<Board> {
        let memory = Shared::map_at(memfd, window(slot), WINDOW, true)?;
        let board = Board { memory, slot, waits: Mutex::new(0) };
        // What the tenant before left is valid until here.
        board.store(header::TENURE, 0, Ordering::Release);
        memfd.clear(window(slot), WINDOW as u64)?;
        board.store(header::PID, process::pid().into(), Ordering::Relaxed);
        let command = std::fs::read("/proc/self/comm").unwrap_or_default();
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(command.trim_ascii_end()) {
            *to = *from;
        }
        for (at, bytes) in [header::COMMAND, header::COMMAND + 8].into_iter().zip(name.chunks(8)) {
            let word = bytes.try_into().map_or(0, u64::from_ne_bytes);
            board.store(at, word, Ordering::Relaxed);
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        board.store(header::SINCE, since, Ordering::Relaxed);
        // SYNC POINT: with the read in `View::header`.
        board.store(header::TENURE, tenure.into(), Ordering::Release);
        Ok(board)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        if let Some(word) = self.word(at) {
            word.store(value, order);
        }
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.memory.u64(at)
    }

    /// Whether the number is one of the slot's: one that was made without a wire is not.
    fn has(&self, qpn: u32) -> bool {
        crate::registry::slot_of(qpn) == self.slot
    }

    /// Starts the entry of a new QP.
    pub(crate) fn begin(&self, facts: &QpFacts) {
        if !self.has(facts.qpn) {
            return;
        }
        let at = place(facts.qpn);
        for offset in (0..ENTRY).step_by(8) {
            self.store(at + offset, 0, Ordering::Relaxed);
        }
        self.tell(facts);
    }

    /// Tells the QP's facts, which change seldom.
    pub(crate) fn tell(&self, facts: &QpFacts) {
        if !self.has(facts.qpn) {
            return;
        }
        let at = place(facts.qpn);
        let (gid, peer) = facts.peer.unwrap_or_default();
        let numbers = u64::from(facts.qpn) | u64::from(peer) << 32;
        let (slot, tenure) = facts.process.unwrap_or_default();
        let mut head = LIVE | facts.state as u64 & 0xff | (facts.qp_type as u64 & 0xff) << 8;
        head |= if facts.process.is_some() { LOCAL } else { 0 };
        head |= if facts.srq { SRQ } else { 0 };
        let [high, low] =
            [&gid.0[..8], &gid.0[8..]].map(|half| half.try_into().map_or(0, u64::from_ne_bytes));
        self.store(at + entry::NUMBERS, numbers, Ordering::Relaxed);
        self.store(at + entry::PEER, high, Ordering::Relaxed);
        self.store(at + entry::PEER + 8, low, Ordering::Relaxed);
        let process = u64::from(slot) | u64::from(tenure) << 32;
        self.store(at + entry::PROCESS, process, Ordering::Relaxed);
        self.store(at + entry::HEAD, head, Ordering::Release);
    }

    /// All requests before this PSN have been carried out. To be called before the program can know.
    #[inline]
    pub(crate) fn expects(&self, qpn: u32, psn: u32) {
        if self.has(qpn) {
            self.store(place(qpn) + entry::EXPECTED, psn.into(), Ordering::Release);
        }
    }

    /// Tells what the QP counted.
    pub(crate) fn count(&self, qpn: u32, counters: &Counters) {
        if !self.has(qpn) {
            return;
        }
        let at = place(qpn) + entry::COUNTERS;
        for (n, word) in words(counters).iter().enumerate() {
            self.store(at + 8 * n, *word, Ordering::Relaxed);
        }
    }

    /// The QP was destroyed. What it has carried out stays to be read until its number is used again.
    pub(crate) fn end(&self, qpn: u32) {
        if let Some(head) = self.word(place(qpn) + entry::HEAD).filter(|_| self.has(qpn)) {
            let told = head.load(Ordering::Relaxed);
            head.store(told & !LIVE | layout::ENDED, Ordering::Release);
        }
    }

    /// Tells that a verb waits, until what is returned is dropped.
    pub(crate) fn wait(&self, kind: Waiting, object: u32) -> Wait<'_> {
        let mut waits = self.waits.lock();
        let free = (0..WAITS).find(|n| *waits & 1 << n == 0);
        if let Some(n) = free {
            *waits |= 1 << n;
            let at = header::WAITS + n * WAIT;
            self.store(at + wait::OBJECT, object.into(), Ordering::Relaxed);
            self.store(at + wait::SINCE, monotonic_ns(), Ordering::Relaxed);
            self.store(at + wait::KIND, kind as u64, Ordering::Release);
        }
        Wait { board: self, place: free }
    }
}

/// A verb that waits.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    board: &'a Board,
    /// None: more wait than can be told of.
    place: Option<usize>,
}

impl Wait<'_> {
    /// For which process.
    pub(crate) fn of(self, pid: u32) -> Self {
        self.remaining(pid);
        self
    }

    /// For how many.
    pub(crate) fn remaining(&self, count: u32) {
        if let Some(n) = self.place {
            let at = header::WAITS + n * WAIT + wait::COUNT;
            self.board.store(at, count.into(), Ordering::Relaxed);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(n) = self.place {
            self.board.store(header::WAITS + n * WAIT + wait::KIND, 0, Ordering::Release);
            *self.board.waits.lock() &= !(1 << n);
        }
    }
}

/// The counters in the order of their struct.
fn words(counters: &Counters) -> [u64; COUNTERS] {
    let c = counters;
    let d = &c.dropped;
    let [process, mapped, kernel] = [c.direct.process, c.direct.mapped, c.direct.kernel];
    [
        c.tx_packets,
        c.tx_bytes,
        c.tx_messages,
        c.rx_packets,
        c.rx_bytes,
        c.rx_messages,
        c.retransmits,
        c.timeouts,
        c.probes,
        c.rnr_naks_sent,
        c.rnr_naks_received,
        c.seq_naks_sent,
        c.seq_naks_received,
        c.recoveries,
        c.duplicates,
        d.state,
        d.service,
        d.peer,
        d.pkey,
        d.qkey,
        d.sequence,
        d.message,
        d.no_receive,
        d.stale,
        c.tx_references,
        process.messages,
        process.bytes,
        mapped.messages,
        mapped.bytes,
        kernel.messages,
        kernel.bytes,
    ]
}
