//! Queues in memory that the kernel shares, whose elements say by a word of their own whose they are.
//!
//! Where either side is in the queue is its own knowledge, and never read from the shared memory: whatever is written there,
//! places stay within it.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ironverbs_kernel::siw::request::{self, is_taken};
use ironverbs_kernel::siw::{Area, MAX_SGE, WORD};

use super::super::command::Errno;
use super::super::own::Mapping;
use crate::abi::{ibv_context, ibv_sge};

/// A queue's memory.
pub(super) struct Queue {
    memory: Mapping,
    /// Elements less one.
    mask: u32,
    /// Bytes of an element.
    size: usize,
}

impl Queue {
    /// Maps a new queue, whose elements have so many bytes.
    ///
    /// # Errors
    /// mmap(2)'s.
    ///
    /// # Safety
    /// `context` is a driver's; the area was read of elements of that size.
    pub(super) unsafe fn map(
        context: *mut ibv_context,
        area: Area,
        size: usize,
    ) -> Result<Queue, Errno> {
        // SAFETY: the caller's promise.
        let memory = unsafe { Mapping::new(context, area.offset, area.bytes)? };
        Ok(Queue { memory, mask: area.elements - 1, size })
    }

    /// The element at that count.
    #[inline]
    pub(super) fn element(&self, count: u32) -> Element {
        let place = (count & self.mask) as usize * self.size;
        // SAFETY: below the number of elements, so within the memory.
        Element(unsafe { self.memory.start().add(place) })
    }

    /// How many elements there are.
    fn elements(&self) -> u32 {
        self.mask.saturating_add(1)
    }

    /// A word behind the elements.
    #[inline]
    pub(super) fn control(&self) -> &AtomicU32 {
        let place = self.elements() as usize * self.size;
        // SAFETY: completion queues, which alone are asked for it, have `complete::CONTROL` bytes there; aligned to 8.
        unsafe { AtomicU32::from_ptr(self.memory.start().add(place).cast()) }
    }
}

/// An element: at least `request::RECEIVE` bytes of a queue of requests, `complete::SIZE` of one of completions, aligned to 8.
#[derive(Clone, Copy)]
pub(super) struct Element(*mut u8);

impl Element {
    /// The word by which it changes hands.
    #[inline]
    pub(super) fn word(&self) -> &AtomicU32 {
        // SAFETY: within every element, aligned; the kernel writes it, hence atomic.
        unsafe { AtomicU32::from_ptr(self.0.add(WORD).cast()) }
    }

    /// # Safety
    /// The element is ours and has 4 bytes at that place, a multiple of 4.
    #[inline]
    pub(super) unsafe fn get32(self, at: usize) -> u32 {
        // SAFETY: the caller's promise. Read once, whatever another process does to it.
        unsafe { self.0.add(at).cast::<u32>().read_volatile() }
    }

    /// # Safety
    /// As for [`Element::get32`], of 8.
    #[inline]
    pub(super) unsafe fn get64(self, at: usize) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(at).cast::<u64>().read_volatile() }
    }

    /// # Safety
    /// As for [`Element::get32`].
    #[inline]
    pub(super) unsafe fn put32(self, at: usize, value: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(at).cast::<u32>().write(value) };
    }

    /// # Safety
    /// As for [`Element::get64`].
    #[inline]
    pub(super) unsafe fn put64(self, at: usize, value: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(at).cast::<u64>().write(value) };
    }

    /// Copies bytes into the element.
    ///
    /// # Safety
    /// The element is ours and has `len` bytes from that place on, `from` likewise.
    #[inline]
    pub(super) unsafe fn copy(self, at: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's promise; programs cannot have pointers into the mapping.
        unsafe { ptr::copy_nonoverlapping(from, self.0.add(at), len) };
    }

    /// Copies the first entries of a list; an entry has the same fields for the kernel.
    ///
    /// # Safety
    /// As for [`Element::copy`]; the list has so many entries.
    #[inline]
    pub(super) unsafe fn list(self, at: usize, list: &[ibv_sge; MAX_SGE], entries: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copy(at, list.as_ptr().cast(), entries * request::SGE) };
    }
}

/// The writing end of a queue of requests.
pub(super) struct Writer {
    queue: Queue,
    /// How many requests there were.
    count: u32,
}

impl Writer {
    pub(super) fn new(queue: Queue) -> Writer {
        Writer { queue, count: 0 }
    }

    /// The next free element; None while the kernel has them all.
    #[inline]
    pub(super) fn room(&self) -> Option<Element> {
        let element = self.queue.element(self.count);
        // SYNC POINT: the kernel clears the word when it has read the request.
        (!is_taken(element.word().load(Ordering::Acquire))).then_some(element)
    }

    /// Gives the kernel the element that [`Writer::room`] gave, which is written but for its word.
    #[inline]
    pub(super) fn push(&mut self, element: Element, word: u32) {
        // SYNC POINT: the kernel reads the rest behind it.
        element.word().store(word, Ordering::Release);
        self.count = self.count.wrapping_add(1);
    }

    /// How many requests there were.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether the kernel may have stopped before it saw the requests since that count. If it still has the one before
    /// them it has not: it looks for the next when it is through with that.
    #[inline]
    pub(super) fn needs_bell(&self, since: u32) -> bool {
        let new = self.count.wrapping_sub(since);
        if new == 0 {
            return false;
        }
        // SYNC POINT: either the kernel finds our words when it has cleared the one before, with a barrier, or we find it cleared.
        fence(Ordering::SeqCst);
        let before = self.queue.element(since.wrapping_sub(1));
        // Where all elements are new, that is one of them.
        new >= self.queue.elements() || !is_taken(before.word().load(Ordering::Acquire))
    }

    /// Takes back requests since that count, the last one first, as long as the kernel has not begun them; whether that was all.
    pub(super) fn take_back(&mut self, since: u32) -> bool {
        while self.count != since {
            let element = self.queue.element(self.count.wrapping_sub(1));
            let word = element.word().load(Ordering::Acquire);
            let swapped =
                element.word().compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire);
            if !is_taken(word) || swapped.is_err() {
                return false;
            }
            self.count = self.count.wrapping_sub(1);
        }
        true
    }
}
