//! A ring in a sealed memfd: one process produces, another consumes. The protocol and its memory
//! orders are in [`super::protocol`].
//!
//! Nothing that the other side does is trusted beyond the lane: it may write anything anywhere at any
//! time, which costs an error or wrong bytes in a record, and both processes may be stopped or killed
//! between any two instructions.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ironverbs_sys::mem;
use ironverbs_sys::shm::{Memfd, Shared};

use crate::direct::slots::{self, Slots};

use super::protocol::{Broken, HEADER, LINE, Memory, Place, Reader, Word, Writer};

pub use super::protocol::MAX_RECORD;

/// Bytes of the memfd; two of them, a pair's, are 256 KiB.
pub const SIZE: usize = 128 * 1024;

/// Byte offsets of the words. Each line is written by one side.
mod at {
    use super::slots;

    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const HEAD: usize = 64;
    pub(super) const WAITS: usize = 128;
    pub(super) const GONE: usize = 132;
    pub(super) const SLEEPS: usize = 192;
    pub(super) const TAKEN: usize = 196;
    pub(super) const CLOSED: usize = 200;
    pub(super) const WATCHED: usize = 204;
    pub(super) const SLOTS: usize = 256;
    pub(super) const LINES: usize = SLOTS + slots::COUNT * slots::STRIDE;
}

const LINES: usize = (SIZE - at::LINES) / LINE;

const MAGIC: u64 = u64::from_le_bytes(*b"ironring");
const VERSION: u32 = 3;

/// How the memfd shows in /proc/PID/maps.
const NAME: &std::ffi::CStr = c"ironverbs-lane";

/// Why there is no record to be had from a ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The producer wrote what it never writes.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// What was handed over is no ring of this version.
    #[error("not a ring of version {VERSION}")]
    Foreign,
    /// It could not be mapped.
    #[error("mapping a ring: {0}")]
    Io(#[from] io::Error),
}

/// One side's mapping of the ring.
#[derive(Debug)]
struct Mapped(Arc<Shared>);

impl Mapped {
    fn slots(&self) -> Slots {
        Slots::new(self.0.clone(), at::SLOTS, at::WATCHED)
    }

    fn word(&self, word: Word) -> &AtomicU32 {
        let offset = match word {
            Word::Header(line) => line_at(line),
            Word::Head => at::HEAD,
            Word::Sleeps => at::SLEEPS,
            Word::Waits => at::WAITS,
            Word::Taken => at::TAKEN,
            Word::Closed => at::CLOSED,
            Word::Gone => at::GONE,
        };
        self.0.u32(offset).expect("lines are positions of our own, the others constants")
    }

    /// The address of byte `from` of a record that starts in `line`.
    fn bytes(&self, line: u32, from: usize) -> *mut u8 {
        let offset = line_at(line) + HEADER + from;
        debug_assert!(offset <= SIZE);
        self.0.as_ptr().wrapping_add(offset)
    }
}

fn line_at(line: u32) -> usize {
    at::LINES + line as usize * LINE
}

impl Memory for Mapped {
    const LINES: u32 = LINES as u32;

    #[inline]
    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.word(word).load(order)
    }

    #[inline]
    fn store(&self, word: Word, value: u32, order: Ordering) {
        self.word(word).store(value, order);
    }

    #[inline]
    fn fence(&self) {
        mem::fence();
    }
}

/// The sending side of a ring.
#[derive(Debug)]
pub struct Producer {
    writer: Writer<Mapped>,
}

impl Producer {
    /// Makes a ring, and the descriptor to hand to the consumer.
    ///
    /// # Errors
    /// As memfd_create(2) and mmap(2).
    pub fn create() -> io::Result<(Producer, OwnedFd)> {
        let memfd = Memfd::create(NAME, SIZE)?;
        let memory = Shared::map(&memfd, SIZE, true)?;
        let constant = "offsets are constants";
        memory.u32(at::VERSION).expect(constant).store(VERSION, Ordering::Relaxed);
        memory.u64(at::MAGIC).expect(constant).store(MAGIC, Ordering::Release);
        Ok((Producer { writer: Writer::new(Mapped(Arc::new(memory))) }, memfd.into()))
    }

    /// Room for a record of `len` bytes, to be written and then committed; reserving again voids it.
    /// What is read back from it may have been changed by the other process.
    ///
    /// None: the ring is full, and the consumer has been told so; `len` is beyond [`MAX_RECORD`]; or
    /// the lane [is closed](Producer::is_closed). Whoever sleeps while the ring is full calls
    /// [`Producer::prepare_sleep`] first, or is not woken.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        let line = self.writer.reserve(len)?;
        let bytes = self.writer.memory().bytes(line, 0);
        // SAFETY: the writer gives lines that hold `len` bytes within the mapping, which lives as
        // long as `self`; nobody else in this process has them until they are committed. The other
        // process may write them, which costs wrong bytes: they are not read back.
        Some(unsafe { std::slice::from_raw_parts_mut(bytes, len) })
    }

    /// Publishes the record reserved last; without one, does nothing.
    #[inline]
    pub fn commit(&mut self, kind: u8) {
        self.writer.commit(kind);
    }

    /// Reserves, writes and commits a record. False: there was no room for it, as for a reservation.
    #[inline]
    pub fn push(&mut self, kind: u8, bytes: &[u8]) -> bool {
        let Some(line) = self.writer.reserve(bytes.len()) else { return false };
        let to = self.writer.memory().bytes(line, 0);
        // SAFETY: the writer gives lines that hold as many bytes within the mapping; no reference to
        // them exists.
        unsafe { mem::write(to as u64, bytes) };
        self.writer.commit(kind);
        true
    }

    /// Whether the consumer has gone to sleep and is to be woken. To be asked after commits, once
    /// for several will do; true once for each time it sleeps.
    #[inline]
    pub fn needs_wake(&self) -> bool {
        self.writer.needs_wake()
    }

    /// Whether the last reservation failed for want of room.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.writer.is_waiting()
    }

    /// Whether the last reservation failed for want of room, since [`Producer::prepare_sleep`] if that was called.
    pub(crate) fn waits_awake(&self) -> bool {
        self.writer.waits_awake()
    }

    /// To be called before going to sleep: has the consumer wake this process when there is room, if
    /// the last reservation failed. False: the consumer has moved meanwhile, try again.
    pub fn prepare_sleep(&mut self) -> bool {
        self.writer.prepare_sleep()
    }

    /// Undoes [`Producer::prepare_sleep`].
    pub fn awake(&mut self) {
        self.writer.awake();
    }

    /// Whether the consumer has mapped the ring. One that cannot, for want of descriptors or memory,
    /// never does.
    pub fn is_taken(&self) -> bool {
        self.writer.is_taken()
    }

    /// Whether the lane is of no more use: the consumer has closed it, or wrote nonsense.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.writer.is_closed()
    }

    /// Whether the consumer's process has said that it ends in good order ([`Consumer::leave`]), or
    /// has closed the lane.
    pub fn peer_is_leaving(&self) -> bool {
        self.writer.peer_is_leaving()
    }

    /// Tells the consumer that this process is about to end in good order, so that its death is not
    /// taken for a crash. The lane works on.
    pub fn leave(&mut self) {
        self.writer.leave();
    }

    /// Whether the consumer is done with everything that was committed.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.writer.is_drained()
    }

    /// The slots in which this side says what it touches by itself.
    pub(crate) fn slots(&self) -> Slots {
        self.writer.memory().slots()
    }

    /// Tells the consumer that nothing more will come.
    pub fn close(&mut self) {
        self.writer.close();
    }
}

/// The receiving side of a ring.
#[derive(Debug)]
pub struct Consumer {
    reader: Reader<Mapped>,
}

/// A record in the ring, until it is released.
#[derive(Debug)]
pub struct Record<'a> {
    /// What the producer said it is.
    pub kind: u8,
    /// Its bytes, at most [`MAX_RECORD`].
    pub len: usize,
    start: *mut u8,
    ring: std::marker::PhantomData<&'a Consumer>,
}

impl Record<'_> {
    /// Copies the record's beginning, as much as there is of it and `to` can take; gives how much.
    #[inline]
    pub fn copy_prefix(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(self.len);
        if let Some(to) = to.get_mut(..len) {
            // SAFETY: the reader checked that `self.len` bytes are within the mapping, which the
            // borrow of the consumer keeps; `to` is private memory.
            unsafe { mem::read(self.start as u64, to) };
        }
        len
    }

    /// Its first bytes, read once; None: it is shorter.
    #[inline]
    pub(crate) fn array<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: the reader checked that `self.len` bytes are within the mapping, which the borrow of the consumer keeps.
        (self.len >= N).then(|| unsafe { self.start.cast::<[u8; N]>().read_volatile() })
    }

    /// Its bytes, in place. The other process may change them at any time: copy what a decision
    /// depends on ([`Record::copy_prefix`]), and read each byte of the rest once, by copying it.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: within the mapping, as in `copy_prefix`. This process does not write them before
        // the record is released; that another one may is why this is private to the crate, whose
        // only use is to copy them.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Consumer {
    /// Maps a ring that was handed over.
    ///
    /// # Errors
    /// [`RingError::Foreign`] for what is no ring of this version; [`RingError::Io`] as mmap(2), and
    /// for a descriptor that is no sealed memfd.
    pub fn map(fd: OwnedFd) -> Result<Consumer, RingError> {
        let memfd = Memfd::received(fd)?;
        if memfd.size()? != SIZE as u64 {
            return Err(RingError::Foreign);
        }
        let memory = Shared::map(&memfd, SIZE, true)?;
        let ours = memory.load_u64(at::MAGIC, Ordering::Acquire) == Some(MAGIC)
            && memory.load_u32(at::VERSION, Ordering::Relaxed) == Some(VERSION);
        if !ours {
            return Err(RingError::Foreign);
        }
        Ok(Consumer { reader: Reader::new(Mapped(Arc::new(memory))) })
    }

    /// The next record, or the same again until it is released; None: there is none now.
    ///
    /// # Errors
    /// [`RingError::Broken`], from then on always.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "what it gives borrows the ring")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, RingError> {
        let Some(Place { kind, line, len }) = self.reader.next()? else { return Ok(None) };
        let start = self.reader.memory().bytes(line, 0);
        Ok(Some(Record { kind, len, start, ring: std::marker::PhantomData }))
    }

    /// Gives the record's room back to the producer.
    #[inline]
    pub fn release(&mut self) {
        self.reader.release();
    }

    /// To be called before going to sleep: has the producer say so when something comes. False:
    /// something came meanwhile, or the producer is to be woken; then nobody sleeps.
    pub fn prepare_sleep(&mut self) -> bool {
        self.reader.prepare_sleep()
    }

    /// Undoes [`Consumer::prepare_sleep`].
    pub fn awake(&mut self) {
        self.reader.awake();
    }

    /// Whether the producer sleeps until there is room, and there is: it is to be woken. True once
    /// for each time it sleeps.
    #[inline]
    pub fn producer_waits(&mut self) -> bool {
        self.reader.producer_waits()
    }

    /// Whether no record waits.
    pub fn is_empty(&self) -> bool {
        self.reader.is_empty()
    }

    /// Whether nothing is left and nothing more will come: the producer has closed the lane or wrote
    /// nonsense.
    pub fn is_over(&self) -> bool {
        self.reader.is_over()
    }

    /// Whether the producer has closed the lane; records may be left.
    pub fn is_gone(&self) -> bool {
        self.reader.is_gone()
    }

    /// Whether the producer wrote nonsense.
    pub fn is_broken(&self) -> bool {
        self.reader.is_broken()
    }

    /// Whether the producer's process has said that it ends in good order ([`Producer::leave`]), or
    /// has closed the lane.
    pub fn peer_is_leaving(&self) -> bool {
        self.reader.peer_is_leaving()
    }

    /// Tells the producer that this process is about to end in good order, as [`Producer::leave`].
    pub fn leave(&mut self) {
        self.reader.leave();
    }

    /// The slots in which the other side says what it touches by itself.
    pub(crate) fn slots(&self) -> Slots {
        self.reader.memory().slots()
    }

    /// Tells the producer that nothing more will be consumed.
    pub fn close(&mut self) {
        self.reader.close();
    }
}

#[cfg(test)]
mod tests;
