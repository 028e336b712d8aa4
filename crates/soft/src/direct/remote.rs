//! A peer's table, mapped to be read.
//!
//! The peer may write anything into it at any time: each value is loaded once and used from the copy. What can
//! come of a lie is that this process writes to the wrong place in the liar's memory.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use ironverbs_sys::peer::{self, Range};
use ironverbs_sys::shm::{Memfd, Shared};
use ironverbs_sys::{lock, process};
use ironverbs_transport::verbs::Access;

use super::protocol::{self, Memory, Word};
use super::table::{self, PRESENT, QpLine, RegionLine, header, line};

/// The table of another process, or of another Host of this one.
#[derive(Debug)]
pub(crate) struct Remote {
    memory: Shared,
    pid: u32,
    /// It is of this process: its addresses are ours.
    ours: bool,
    /// The kernel copies between that process and this one.
    kernel: bool,
    /// The process's arena, mapped when the first region in it is met; None where that is not possible.
    arena: OnceLock<Option<Shared>>,
}

/// A region, and where in its process's arena it is.
#[derive(Copy, Clone, Debug)]
pub(super) struct Found {
    pub(super) line: RegionLine,
    pub(super) place: Option<u64>,
}

/// A line as it was when its sequence number was.
#[derive(Copy, Clone, Debug)]
pub(super) struct Seen<T> {
    pub(super) number: u32,
    pub(super) at: usize,
    pub(super) what: T,
}

impl Remote {
    /// Maps the table that the process `pid` has open as `fd` and calls `id`.
    ///
    /// # Errors
    /// PermissionDenied where ptrace(2) of that process would not be allowed: the kernel decides, by user and more.
    /// InvalidData for what is no table of that name. Otherwise as open(2) and mmap(2).
    pub(crate) fn open(pid: u32, fd: u32, id: u64) -> io::Result<Remote> {
        let memfd = Memfd::received(process::open_descriptor(pid, fd, false)?)?;
        if memfd.size()? != table::SIZE as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Shared::map(&memfd, table::SIZE, false)?;
        // SYNC POINT: with the store in `Table::create`.
        let sound = memory.load_u64(header::MAGIC, Ordering::Acquire) == Some(table::MAGIC)
            && memory.load_u32(header::VERSION, Ordering::Relaxed) == Some(table::VERSION)
            && memory.load_u32(header::LOCK_LAYOUT, Ordering::Relaxed) == Some(lock::layout())
            && memory.load_u64(header::ID, Ordering::Relaxed) == Some(id);
        if !sound {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ours = table::is_ours(id);
        let kernel = probe(pid, &memory, id);
        Ok(Remote { memory, pid, ours, kernel, arena: OnceLock::new() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether the kernel copies to and from the process.
    pub(super) fn has_kernel(&self) -> bool {
        self.kernel
    }

    /// The process's cookie, if it lives and runs the program that made the table. To be asked when something has been
    /// fetched from it: both are so from then on, at the latest.
    pub(crate) fn cookie(&self) -> Option<u64> {
        let cookie = self.long(header::COOKIE);
        self.is_alive().then_some(cookie)
    }

    /// Whether the process lives and runs the program that made the table.
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        self.ours || lock::is_kept(&self.memory, header::LIFE)
    }

    /// The PSN that the queue pair at that byte expects.
    #[inline]
    pub(super) fn psn(&self, at: usize) -> u32 {
        self.word(at + line::PSN)
    }

    /// The queue pair with that number.
    pub(super) fn qp(&self, qpn: u32) -> Option<Seen<QpLine>> {
        let at = table::qp_at(table::line_of_qp(qpn))?;
        let number = self.begin(at)?;
        let access = self.word(at + line::ACCESS);
        let what = QpLine {
            pd: self.word(at + line::PD),
            access: Access::from_bits_truncate(access),
            peer_qpn: self.word(at + line::PEER_QPN),
            peer_slot: u16::try_from(self.word(at + line::PEER_SLOT)).ok()?,
            peer_tenure: self.word(at + line::PEER_TENURE),
        };
        (access & PRESENT != 0).then_some(Seen { number, at, what })
    }

    /// The region in that line.
    pub(super) fn region(&self, index: usize) -> Option<Seen<Found>> {
        let at = table::region_at(index)?;
        let number = self.begin(at)?;
        let access = self.word(at + line::ACCESS);
        let line = RegionLine {
            rkey: self.word(at + line::RKEY),
            pd: self.word(at + line::PD),
            access: Access::from_bits_truncate(access),
            addr: self.long(at + line::ADDR),
            len: self.long(at + line::LEN),
            iova: self.long(at + line::IOVA),
            qpn: self.word(at + line::QPN),
        };
        let place = self.long(at + line::ARENA).checked_sub(1);
        let what = Found { line, place };
        (access & PRESENT != 0).then_some(Seen { number, at, what })
    }

    /// Where `len` bytes at `offset` of the process's arena are in this one.
    #[inline]
    pub(super) fn mapped(&self, offset: u64, len: u64) -> Option<u64> {
        let arena = self.arena.get_or_init(|| self.map_arena()).as_ref()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= arena.len() as u64);
        inside.then(|| arena.as_ptr() as u64 + offset)
    }

    #[cold]
    fn map_arena(&self) -> Option<Shared> {
        let number = self.word(header::ARENA).checked_sub(1)?;
        let fd = process::open_descriptor(self.pid, number, true).ok()?;
        // What is sealed against shrinking is there, all of it, and no more than a memfd.
        let memfd = Memfd::received(fd).ok()?;
        let size = usize::try_from(memfd.size().ok()?).ok()?;
        let arena = Shared::map(&memfd, size, true).ok()?;
        arena.keep_out_of_dumps().ok()?;
        Some(arena)
    }

    /// The sequence number of the line at that byte.
    #[inline]
    pub(super) fn number(&self, at: usize, order: Ordering) -> u32 {
        self.memory.load_u32(at, order).unwrap_or(1)
    }

    /// The sequence number of a line that is not being written.
    #[inline]
    fn begin(&self, at: usize) -> Option<u32> {
        let number = protocol::begin(&Line { remote: self, at }, Word::Region)?;
        u32::try_from(number).ok()
    }

    #[inline]
    fn word(&self, at: usize) -> u32 {
        self.memory.load_u32(at, Ordering::Relaxed).unwrap_or(0)
    }

    #[inline]
    fn long(&self, at: usize) -> u64 {
        self.memory.load_u64(at, Ordering::Relaxed).unwrap_or(0)
    }
}

/// A line of which the sequence number is wanted.
struct Line<'a> {
    remote: &'a Remote,
    at: usize,
}

impl Memory for Line<'_> {
    #[inline]
    fn load(&self, _: Word, order: Ordering) -> u64 {
        self.remote.number(self.at, order).into()
    }

    fn store(&self, _: Word, _: u64, _: Ordering) {}

    fn fence(&self, order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// Whether the kernel copies both ways, and the process is the one that we take it for: reads the number that the
/// table says is at that address, and writes the same one there.
fn probe(pid: u32, memory: &Shared, id: u64) -> bool {
    let Some(addr) = memory.load_u64(header::PROBE, Ordering::Relaxed) else { return false };
    let mut found = 0u64;
    let range = [Range::new(&raw mut found as u64, 8)];
    // SAFETY: `found` is ours to be written.
    let read = unsafe { peer::read(pid, &range, addr, 8) };
    if !matches!(read, Ok(8)) || found != id {
        return false;
    }
    // SAFETY: what is written is what was read there; if the process is this one, it is the table's own page, which is
    // only used as an atomic.
    let written = unsafe { peer::write(pid, &range, addr, 8) };
    matches!(written, Ok(8))
}
