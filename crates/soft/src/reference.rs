//! Large payloads between processes of one host by reference: a record names the sender's memory, and the receiver
//! fetches it from there, straight to where it belongs.
//!
//! The memory is the request's until that is acknowledged. Where the program gets it back sooner, because the queue pair
//! goes or fails, the sender changes a word of its own ([`Cookie`]) whose address and value each record names, too: the
//! receiver reads it behind the payload and in the same call. A payload with another cookie behind it is none, whether
//! the sender took it back or is another program by now.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ironverbs_sys::mem::Mapping;
use ironverbs_sys::{clock, copy, pull};
use ironverbs_transport::device::{ByReference, PIECES, Piece};

use crate::direct::{Remote, Table};

/// What goes by reference. Below, two copies at the same time on two processors are as fast.
pub(crate) const LIMITS: ByReference = ByReference { least: 32 * 1024, most: 512 * 1024 };

/// The word that says whether what was named may still be fetched.
#[derive(Debug)]
pub(crate) struct Cookie(AtomicU64);

impl Cookie {
    pub(crate) fn new() -> Cookie {
        Cookie(AtomicU64::new(fastrand::u64(..)))
    }

    /// What was named until now may not be fetched any more. The cookie stands in the process's table besides, if it has
    /// one.
    pub(crate) fn change(&self, table: Option<&Table>) {
        // SYNC POINT: whoever fetches bytes that the program writes after this, finds this when it reads the cookie
        // behind them, wherever it does.
        self.0.fetch_add(1, Ordering::SeqCst);
        if let Some(table) = table {
            table.change_cookie();
        }
    }

    /// What it is now.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn addr(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// What stands in a record before the headers of a packet by reference.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Source {
    cookie: (u64, u64),
    pieces: [Piece; PIECES],
    /// Bytes of all pieces.
    len: u32,
}

impl Source {
    pub(crate) const LEN: usize = 16 + PIECES * 16;

    /// Names pieces of this process's memory; further ones than [`PIECES`] are left out.
    pub(crate) fn emit(cookie: &Cookie, pieces: &[Piece], out: &mut [u8; Source::LEN]) {
        let (head, rest) = out.split_at_mut(16);
        head[..8].copy_from_slice(&cookie.addr().to_le_bytes());
        head[8..].copy_from_slice(&cookie.0.load(Ordering::Relaxed).to_le_bytes());
        let pieces = pieces.iter().copied().chain(std::iter::repeat(Piece::default()));
        for (room, piece) in rest.chunks_exact_mut(16).zip(pieces) {
            room[..8].copy_from_slice(&piece.addr.to_le_bytes());
            room[8..12].copy_from_slice(&piece.len.to_le_bytes());
            room[12..].fill(0);
        }
    }

    /// None: nobody of ours writes such a one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Source> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (value, mut rest) = rest.split_first_chunk()?;
        let (mut pieces, mut len) = ([Piece::default(); PIECES], 0u32);
        for piece in &mut pieces {
            let (addr, after) = rest.split_first_chunk()?;
            let (bytes, after) = after.split_first_chunk()?;
            (_, rest) = after.split_first_chunk::<4>()?;
            *piece = Piece { addr: u64::from_le_bytes(*addr), len: u32::from_le_bytes(*bytes) };
            len = len.checked_add(piece.len)?;
        }
        let cookie = (u64::from_le_bytes(*addr), u64::from_le_bytes(*value));
        Some(Source { cookie, pieces, len })
    }

    /// Bytes of the payload.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Fetches `len` bytes from byte `from` of the payload on, from the process `pid`, whose table is `remote` where there
    /// is one to look at. False: they are not to be had.
    ///
    /// # Safety
    /// What is mapped of `len` bytes at `to` is memory that may change.
    pub(crate) unsafe fn fetch(
        &self,
        (pid, remote): (u32, Option<&Remote>),
        from: u64,
        to: u64,
        len: usize,
    ) -> bool {
        let mut spans = [(0, 0); PIECES];
        let (mut skip, mut left, mut used) = (from, len, 0);
        for piece in &self.pieces {
            let start = skip.min(piece.len.into());
            skip -= start;
            let take = left.min((u64::from(piece.len) - start) as usize);
            left -= take;
            if let (Some(span), true) = (spans.get_mut(used), take > 0) {
                *span = (piece.addr.wrapping_add(start), take);
                used += 1;
            }
        }
        let spans = spans.get(..used).unwrap_or_default();
        let Some(remote) = remote.filter(|remote| remote.pid() == pid) else {
            // SAFETY: passed on.
            let cookie = unsafe { pull::pull_and_read(pid, spans, (to, len), self.cookie.0) };
            return left == 0 && cookie.is_ok_and(|value| value == self.cookie.1);
        };
        // A page more is a twentieth of the time that a payload of 64 KiB takes. What the table says afterwards, of a process that
        // lives, is what would have been read.
        // SAFETY: passed on.
        let fetched = unsafe { pull::pull(pid, spans, (to, len)) };
        left == 0 && fetched.is_ok() && remote.cookie() == Some(self.cookie.1)
    }
}

/// Whether fetching is worth it here.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// Nanoseconds of a copy within this process, by the 64 KiB.
    copy: OnceLock<u64>,
    /// How many fetches in a row were slow.
    slow: AtomicU32,
    off: AtomicBool,
}

impl Gauge {
    /// A fetch this many times slower than a copy within the process is slow: where the kernel's own copy falls behind, as
    /// it does for some alignments on some processors.
    const SLOW: u64 = 8;

    /// So many slow ones in a row are no accident.
    const PATIENCE: u32 = 32;

    const UNIT: usize = 64 * 1024;

    /// Whether payloads are fetched; otherwise they are to be sent by value.
    pub(crate) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    /// Measures a fetch of `len` bytes.
    pub(crate) fn measure<T>(&self, len: usize, fetch: impl FnOnce() -> T) -> T {
        let copy = *self.copy.get_or_init(|| copy_time().unwrap_or(u64::MAX / Gauge::SLOW));
        // One that was slow may have been off the processor: the next are judged by what they spend on it.
        let now = match self.slow.load(Ordering::Relaxed) {
            0 => clock::monotonic_ns,
            _ => clock::thread_ns,
        };
        let start = now();
        let fetched = fetch();
        let time = now() - start;
        if len >= Gauge::UNIT / 2 {
            let slow = time
                > copy.saturating_mul(Gauge::SLOW).saturating_mul(len as u64) / Gauge::UNIT as u64;
            if !slow {
                self.slow.store(0, Ordering::Relaxed);
            } else if self.slow.fetch_add(1, Ordering::Relaxed) >= Gauge::PATIENCE {
                self.off.store(true, Ordering::Relaxed);
            }
        }
        fetched
    }
}

/// Nanoseconds of the quickest of a few copies of [`Gauge::UNIT`] bytes. None: no memory.
fn copy_time() -> Option<u64> {
    let len = Gauge::UNIT;
    let (from, to) = (Mapping::anonymous(len).ok()?, Mapping::anonymous(len).ok()?);
    (0..5)
        .map(|_| {
            let start = clock::monotonic_ns();
            // SAFETY: mappings of our own.
            let _ = unsafe { copy::copy(from.addr(), to.addr(), len) };
            clock::monotonic_ns() - start
        })
        .min()
        .map(|time| time.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_fetched_until_it_is_taken_back() {
        let (cookie, data) = (Cookie::new(), [1u8, 2, 3, 4, 5, 6, 7, 8, 9]);
        let at = |index| data.as_ptr() as u64 + index;
        let pieces = [Piece { addr: at(5), len: 4 }, Piece { addr: at(0), len: 3 }];
        let mut record = [0; Source::LEN];
        Source::emit(&cookie, &pieces, &mut record);
        let source = Source::parse(&record).unwrap();
        assert_eq!(source.len(), 7);
        let mut out = [0u8; 4];
        let (to, pid) = (out.as_mut_ptr() as u64, std::process::id());
        // SAFETY: an array of this function.
        unsafe {
            assert!(source.fetch((pid, None), 2, to, 4));
            assert_eq!(out, [8, 9, 1, 2]);
            assert!(!source.fetch((pid, None), 4, to, 4), "beyond the end");
            assert!(!source.fetch((pid, None), u64::MAX, to, 4));
            cookie.change(None);
            assert!(!source.fetch((pid, None), 2, to, 4));
        }
    }

    #[test]
    fn nonsense_is_none() {
        assert!(Source::parse(&[0; Source::LEN - 1]).is_none());
        assert!(Source::parse(&[0xff; Source::LEN]).is_none());
        assert_eq!(Source::parse(&[0; Source::LEN]).map(|source| source.len()), Some(0));
    }

    #[test]
    fn slow_fetches_are_given_up_quick_ones_are_not() {
        let gauge = Gauge::default();
        (0..100).for_each(|_| gauge.measure(1 << 30, || ()));
        assert!(gauge.is_on());
        let slow = Gauge { copy: OnceLock::from(0), ..Gauge::default() };
        (0..100).for_each(|_| slow.measure(Gauge::UNIT, std::hint::spin_loop));
        assert!(!slow.is_on());
    }

    #[test]
    fn who_has_no_processor_is_not_slow() {
        let gauge = Gauge { copy: OnceLock::from(100_000), ..Gauge::default() };
        for _ in 0..Gauge::PATIENCE + 2 {
            gauge.measure(Gauge::UNIT, || std::thread::sleep(std::time::Duration::from_millis(2)));
        }
        assert!(gauge.is_on());
    }
}
