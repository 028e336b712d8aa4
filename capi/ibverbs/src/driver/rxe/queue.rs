//! Queues in memory that the kernel shares.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use ironverbs_kernel::rxe::ring::{self, Ring};
use ironverbs_kernel::rxe::{Area, Slot};

use super::super::command::Errno;
use super::super::context::descriptor;
use crate::abi::ibv_context;

/// A queue's memory, with room for every element that its [`Ring`] has.
pub(super) struct Queue {
    base: NonNull<u8>,
    len: usize,
    pub(super) ring: Ring,
}

// SAFETY: mapped memory belongs to no thread.
unsafe impl Send for Queue {}

/// What a queue is that has no memory of the kernel's: a header that says that nothing is in it.
static NOTHING: [AtomicU32; ring::DATA / 4 + 16] =
    [const { AtomicU32::new(0) }; ring::DATA / 4 + 16];

impl Queue {
    /// A queue in which there never is anything.
    pub(super) fn nothing() -> Queue {
        // Written only by who has read something.
        let base = NonNull::from(&NOTHING).cast();
        Queue { base, len: 0, ring: Ring::EMPTY }
    }

    /// Maps the area of a new queue whose elements need so many bytes.
    ///
    /// # Errors
    /// mmap(2)'s; EINVAL when what the kernel wrote there is no queue.
    ///
    /// # Safety
    /// `context` is a driver's.
    pub(super) unsafe fn map(
        context: *mut ibv_context,
        area: Area,
        least: usize,
    ) -> Result<Queue, Errno> {
        let len = area.size as usize;
        if len < ring::DATA {
            return Err(libc::EINVAL);
        }
        let offset = libc::off_t::try_from(area.offset).map_err(|_| libc::EINVAL)?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, in no place of ours; the context's descriptor is open.
        let base = unsafe {
            use std::os::fd::AsRawFd;
            let fd = descriptor(context).as_raw_fd();
            libc::mmap(ptr::null_mut(), len, rights, flags, fd, offset)
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        let base = NonNull::new(base.cast()).ok_or(libc::EINVAL)?;
        let mut queue = Queue { base, len, ring: Ring::EMPTY };
        let read = |at| queue.word(at).load(Ordering::Relaxed);
        let (log2, mask) = (read(ring::LOG2_ELEMENT), read(ring::INDEX_MASK));
        queue.ring = Ring::new(log2, mask, len, least).ok_or(libc::EINVAL)?;
        Ok(queue)
    }

    /// A number of the header.
    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at < ring::DATA);
        // SAFETY: `map` saw that the memory has a whole header; places in it are aligned; the kernel writes it, hence atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The index that is written next, by whoever writes. What stands before it may be read.
    #[inline]
    pub(super) fn producer(&self) -> u32 {
        let ring = self.ring;
        // SYNC POINT: with the release of whoever writes; the kernel does so after it wrote a completion.
        ring.wrapped(self.word(ring::PRODUCER).load(Ordering::Acquire))
    }

    /// The index that is read next, by whoever reads. What stands before it may be written.
    #[inline]
    pub(super) fn consumer(&self) -> u32 {
        // SYNC POINT: with the release of whoever reads; the kernel does so when it is through with a request.
        self.ring.wrapped(self.word(ring::CONSUMER).load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn produced(&self, index: u32) {
        // SYNC POINT: the kernel acquires it before it reads the requests.
        self.word(ring::PRODUCER).store(index, Ordering::Release);
    }

    #[inline]
    pub(super) fn consumed(&self, index: u32) {
        // SYNC POINT: the kernel acquires it before it writes over the completions.
        self.word(ring::CONSUMER).store(index, Ordering::Release);
    }

    /// The first element, at whose [`Ring::offset`]s the others are.
    #[inline]
    pub(super) fn first(&self) -> *mut u8 {
        // SAFETY: a header is in front of it.
        unsafe { self.base.as_ptr().add(ring::DATA) }
    }

    /// The element of that index: so many bytes as the ring's elements have.
    #[inline]
    pub(super) fn element(&self, index: u32) -> *mut u8 {
        // SAFETY: the ring's places are within the memory that it was made for.
        unsafe { self.base.as_ptr().add(self.ring.place(index)) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and nobody has pointers into it any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// The writing end of a queue.
pub(super) struct Writer {
    queue: Queue,
    /// Where the next request goes.
    next: u32,
    /// Up to where the kernel knows of them.
    shown: u32,
    /// Up to where the kernel was through with them, when that was last looked at.
    done: u32,
}

impl Writer {
    /// The writing end of a queue of requests, as it is now.
    pub(super) fn new(queue: Queue) -> Writer {
        let (next, done) = (queue.producer(), queue.consumer());
        Writer { queue, next, shown: next, done }
    }

    pub(super) fn ring(&self) -> Ring {
        self.queue.ring
    }

    /// The next free element; None when there is none.
    #[inline]
    pub(super) fn room(&mut self) -> Option<Element> {
        let ring = self.queue.ring;
        if ring.is_full(self.next, self.done) {
            self.done = self.queue.consumer();
            if ring.is_full(self.next, self.done) {
                return None;
            }
        }
        Some(Element(self.queue.element(self.next)))
    }

    /// The element that [`Writer::room`] gave is written.
    #[inline]
    pub(super) fn push(&mut self) {
        self.next = self.queue.ring.next(self.next);
    }

    /// Shows the kernel what was pushed; whether there is anything.
    #[inline]
    pub(super) fn show(&mut self) -> bool {
        let new = self.next != self.shown;
        if new {
            self.shown = self.next;
            self.queue.produced(self.next);
        }
        new
    }

    /// Takes back what was pushed and not shown.
    pub(super) fn take_back(&mut self) {
        self.next = self.shown;
    }
}

/// An element that may be written to: free, of a queue that whoever has it keeps locked.
#[derive(Clone, Copy)]
pub(super) struct Element(pub(super) *mut u8);

impl Element {
    /// Copies to a place within the element.
    ///
    /// # Safety
    /// `from` has `len` bytes, for which the element has room behind the place.
    #[inline]
    pub(super) unsafe fn copy(self, at: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's promise; programs cannot have pointers into the mapping.
        unsafe { ptr::copy_nonoverlapping(from, self.0.add(at), len) };
    }
}

impl Slot for Element {
    #[inline]
    fn put32(&mut self, at: usize, value: u32) {
        // SAFETY: elements are longer than any place that `rxe::send` and `rxe::recv` write to, as `Queue::map` was asked to
        // see to, and aligned to 8 as they are powers of two behind a header of such a length.
        unsafe { self.0.add(at).cast::<u32>().write(value) };
    }

    #[inline]
    fn put64(&mut self, at: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.0.add(at).cast::<u64>().write(value) };
    }
}
