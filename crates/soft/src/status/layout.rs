//! Where things stand in a window.
//!
//! All words are u64 in the byte order of the host. The writer is the slot's tenant; readers take
//! what they find for what it is worth, and nothing of it as an index.

/// Bytes of a slot's window. What is never written costs no memory.
pub(super) const WINDOW: usize = HEADER + ENTRIES * ENTRY;

pub(super) const HEADER: usize = 4096;

/// A queue pair each, by the place of its number in the slot's blocks.
pub(super) const ENTRIES: usize = 4 * 4096;

pub(super) const ENTRY: usize = 512;

const _: () = assert!(ENTRIES == crate::registry::BLOCKS_PER_SLOT as usize * crate::qpn::BLOCK);

/// Byte offsets from the start of the window.
pub(super) mod header {
    /// Which of the slot's tenants wrote this; 0 while nothing here is valid.
    pub(in super::super) const TENURE: usize = 0;
    /// Process id, in its own PID namespace.
    pub(in super::super) const PID: usize = 8;
    /// Name of the program, as in /proc/PID/comm: 16 bytes.
    pub(in super::super) const COMMAND: usize = 16;
    /// When the window was opened: seconds since 1970.
    pub(in super::super) const SINCE: usize = 32;
    /// What the process waits for.
    pub(in super::super) const WAITS: usize = 1024;
}

/// Verbs that wait at once, at most, of which others are told.
pub(super) const WAITS: usize = 48;
pub(super) const WAIT: usize = 64;

const _: () = assert!(header::WAITS + WAITS * WAIT <= HEADER);

/// Byte offsets from the start of a wait.
pub(super) mod wait {
    /// What is waited for; 0: nothing. Written last, cleared first.
    pub(in super::super) const KIND: usize = 0;
    /// Handle of the object, or the number of the QP.
    pub(in super::super) const OBJECT: usize = 8;
    /// How many events, or the process id.
    pub(in super::super) const COUNT: usize = 16;
    /// Since when, in nanoseconds of the monotonic clock.
    pub(in super::super) const SINCE: usize = 24;
}

/// Byte offsets from the start of an entry.
pub(super) mod entry {
    /// [`super::LIVE`] or [`super::ENDED`], the flags, state and type.
    pub(in super::super) const HEAD: usize = 0;
    /// Its number, and above it the peer's.
    pub(in super::super) const NUMBERS: usize = 8;
    /// Address of the peer.
    pub(in super::super) const PEER: usize = 16;
    /// The PSN of the next request: all before it were carried out.
    pub(in super::super) const EXPECTED: usize = 32;
    /// Slot and, above it, tenure of the peer's process, of a local connection.
    pub(in super::super) const PROCESS: usize = 40;
    /// As in `struct Counters`.
    pub(in super::super) const COUNTERS: usize = 64;
    /// What is to be done for the QP when its process is dead: a kind, of which 0 is nothing, and
    /// 64 bytes that the kind gives a meaning.
    pub(in super::super) const WILL: usize = 384;
}

pub(super) const COUNTERS: usize = 31;

const _: () = assert!(entry::COUNTERS + 8 * COUNTERS <= entry::WILL);
const _: () = assert!(entry::WILL + 8 + 64 <= ENTRY);

/// The QP exists.
pub(super) const LIVE: u64 = 1 << 32;
/// It was destroyed by the program.
pub(super) const ENDED: u64 = 1 << 33;
/// Its packets go through shared memory.
pub(super) const LOCAL: u64 = 1 << 34;
/// Its receives are those of an SRQ.
pub(super) const SRQ: u64 = 1 << 35;
