//! Arrays of plain values, in memory of the library's or in memory that somebody else gives.
//!
//! The queues of the verbs are such arrays. A program may want their memory to be its own (ibv_alloc_parent_domain(3)): then
//! one [`Block`] is asked for at a queue's creation, and the arrays of the queue are cut from it. Without a giver a block
//! costs nothing, and its arrays grow as they are filled.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// The alignment of blocks: that of anything in a queue, and of a line of the cache.
pub const ALIGNMENT: usize = 64;

/// What a [`Giver`] says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// It has none.
    Refused,
    /// The library is to use its own.
    Default,
    /// Here.
    At(NonNull<u8>),
}

/// Who gives memory.
///
/// # Safety
/// What [`allocate`](Giver::allocate) says to be `At` can be read and written for `size` bytes, by nobody else, until it
/// is freed.
pub unsafe trait Giver: Send + Sync + fmt::Debug {
    /// `size` bytes, aligned to `alignment`, for what `kind` says.
    fn allocate(&self, size: usize, alignment: usize, kind: u64) -> Given;

    /// Takes back what `allocate` gave for that kind.
    ///
    /// # Safety
    /// It was given, was not taken back since, and is used no more.
    unsafe fn free(&self, start: NonNull<u8>, kind: u64);
}

/// The giver has no memory, or gave some that is not aligned as asked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Refused;

/// Memory that was given, until the last array in it goes.
#[derive(Debug)]
struct Held {
    start: NonNull<u8>,
    giver: Arc<dyn Giver>,
    kind: u64,
}

// SAFETY: `start` is only a name for the giver; givers may be called from any thread.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: given to `Block::ask`, which made this; whoever had arrays in it has dropped them.
        unsafe { self.giver.free(self.start, self.kind) }
    }
}

/// Memory for the arrays of one queue.
#[derive(Debug)]
pub struct Block {
    held: Option<Arc<Held>>,
    size: usize,
    used: usize,
}

impl Block {
    /// Asks for `size` bytes, a sum of [`bytes_for`]. Without a giver, or by its wish, the arrays have memory of the library.
    pub fn ask(giver: Option<&Arc<dyn Giver>>, size: usize, kind: u64) -> Result<Block, Refused> {
        let given = match giver {
            Some(giver) if size > 0 => (giver, giver.allocate(size, ALIGNMENT, kind)),
            _ => return Ok(Block::default()),
        };
        let (giver, start) = match given {
            (_, Given::Refused) => return Err(Refused),
            (_, Given::Default) => return Ok(Block::default()),
            (giver, Given::At(start)) => (giver.clone(), start),
        };
        let held = Arc::new(Held { start, giver, kind });
        match start.addr().get() % ALIGNMENT {
            0 => Ok(Block { held: Some(held), size, used: 0 }),
            _ => Err(Refused),
        }
    }

    /// The next array: of `n` slots that are `value`; empty, and of room for as many as are pushed, in memory of the library.
    pub fn slots<T: Copy>(&mut self, n: usize, value: T) -> Slots<T> {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let size = bytes_for::<T>(n);
        let Some(held) = self.held.as_ref().filter(|_| size > 0 && size <= self.size - self.used)
        else {
            return Slots::new();
        };
        // SAFETY: within the block: `used + size <= self.size`.
        let start = unsafe { held.start.add(self.used) }.cast::<T>();
        self.used += size;
        let mut slots = Slots { start, len: 0, room: n, held: Some(held.clone()) };
        slots.resize(n, value);
        slots
    }
}

impl Default for Block {
    /// No memory of anybody's.
    fn default() -> Self {
        Block { held: None, size: 0, used: 0 }
    }
}

/// The bytes of a block that an array of `n` slots takes.
pub const fn bytes_for<T>(n: usize) -> usize {
    (n * size_of::<T>()).next_multiple_of(ALIGNMENT)
}

/// An array that grows and does not shrink. Where its memory was given it has its room from the start.
pub struct Slots<T: Copy> {
    start: NonNull<T>,
    len: usize,
    room: usize,
    /// Whose memory it is; None: of the library, if it has room.
    held: Option<Arc<Held>>,
}

// SAFETY: it owns what is in it, alone.
unsafe impl<T: Copy + Send> Send for Slots<T> {}
// SAFETY: shared, it only shows what is in it.
unsafe impl<T: Copy + Sync> Sync for Slots<T> {}

impl<T: Copy> Slots<T> {
    /// An empty one.
    pub const fn new() -> Slots<T> {
        const { assert!(size_of::<T>() > 0) };
        Slots { start: NonNull::dangling(), len: 0, room: 0, held: None }
    }

    /// Whether its memory was given.
    pub fn is_given(&self) -> bool {
        self.held.is_some()
    }

    /// Adds a slot.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.len == self.room {
            self.grow(1);
        }
        // SAFETY: there is room for one more.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
    }

    /// Makes it `len` slots long, if it is not longer; the new ones are `value`.
    pub fn resize(&mut self, len: usize, value: T) {
        if len <= self.len {
            return;
        }
        if len > self.room {
            self.grow(len - self.len);
        }
        for at in self.len..len {
            // SAFETY: there is room for `len`.
            unsafe { self.start.add(at).write(value) };
        }
        self.len = len;
    }

    /// Makes room for that many more, twice what there was at least, in memory of the library.
    #[cold]
    fn grow(&mut self, more: usize) {
        let room = (self.len + more).max(2 * self.room).max(4);
        let Ok(layout) = Layout::array::<T>(room) else {
            handle_alloc_error(Layout::new::<T>());
        };
        let memory = match self.owned() {
            // SAFETY: its memory is of that layout; the new size is not 0 and was checked by `Layout::array`.
            Some(old) => unsafe { realloc(self.start.as_ptr().cast(), old, layout.size()) },
            // SAFETY: not of size 0, as no T is.
            None => unsafe { alloc(layout) },
        };
        let Some(start) = NonNull::new(memory.cast::<T>()) else { handle_alloc_error(layout) };
        if let Some(held) = self.held.take() {
            // SAFETY: both are of `len` slots at least, and different.
            unsafe { start.copy_from_nonoverlapping(self.start, self.len) };
            drop(held);
        }
        (self.start, self.room) = (start, room);
    }

    /// The layout of its memory, where that is the library's.
    fn owned(&self) -> Option<Layout> {
        let owned = self.held.is_none() && self.room > 0;
        owned.then(|| Layout::array::<T>(self.room).ok()).flatten()
    }
}

impl<T: Copy> Drop for Slots<T> {
    fn drop(&mut self) {
        if let Some(layout) = self.owned() {
            // SAFETY: allocated by `grow`, with that layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Copy> Deref for Slots<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` slots are written.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Slots<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` slots are written, and nobody else has them.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Default for Slots<T> {
    fn default() -> Self {
        Slots::new()
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Gives one block, and keeps count.
    #[derive(Debug, Default)]
    struct One {
        refuses: bool,
        leaves_it: bool,
        living: Mutex<Vec<(usize, usize, u64)>>,
        askew: usize,
    }

    // SAFETY: a fresh allocation each time, one line longer than asked for.
    unsafe impl Giver for One {
        fn allocate(&self, size: usize, alignment: usize, kind: u64) -> Given {
            match (self.refuses, self.leaves_it) {
                (true, _) => return Given::Refused,
                (_, true) => return Given::Default,
                _ => {}
            }
            let layout = Layout::from_size_align(size + alignment, alignment).unwrap();
            // SAFETY: not of size 0.
            let start = NonNull::new(unsafe { alloc(layout) }).unwrap();
            // SAFETY: `askew` is less than a line.
            let start = unsafe { start.add(self.askew) };
            self.living.lock().unwrap().push((start.addr().get(), size, kind));
            Given::At(start)
        }

        unsafe fn free(&self, start: NonNull<u8>, kind: u64) {
            let mut living = self.living.lock().unwrap();
            let is = |&(address, _, of): &(usize, usize, u64)| {
                (address, of) == (start.addr().get(), kind)
            };
            let at = living.iter().position(is).unwrap();
            let (_, size, _) = living.remove(at);
            let layout = Layout::from_size_align(size + ALIGNMENT, ALIGNMENT).unwrap();
            // SAFETY: from `allocate`.
            unsafe { dealloc(start.sub(self.askew).as_ptr(), layout) };
        }
    }

    fn one(one: One) -> (Arc<One>, Arc<dyn Giver>) {
        let one = Arc::new(one);
        (one.clone(), one)
    }

    #[test]
    fn memory_of_the_library_grows() {
        let mut slots = Block::default().slots::<u64>(8, 0);
        assert!(slots.is_empty() && !slots.is_given());
        (0..1000).for_each(|n| slots.push(n));
        slots.resize(1500, 7);
        slots.resize(3, 9);
        assert!(slots.iter().take(1000).copied().eq(0..1000));
        assert_eq!((slots.len(), slots[1499]), (1500, 7));
    }

    #[test]
    fn arrays_of_a_block_lie_apart_in_it_and_the_last_gives_it_back() {
        let (counts, giver) = one(One::default());
        let size = bytes_for::<u64>(3) + bytes_for::<u8>(100);
        let mut block = Block::ask(Some(&giver), size, 5).unwrap();
        let (mut a, mut b) = (block.slots::<u64>(3, 1), block.slots::<u8>(100, 2));
        drop(block);
        let (start, given, kind) = counts.living.lock().unwrap()[0];
        assert_eq!((given, kind, size), (size, 5, 64 + 128));
        assert_eq!((a.as_ptr().addr(), b.as_ptr().addr()), (start, start + 64));
        assert!(a.is_given() && a.len() == 3 && b.len() == 100);
        a.fill(u64::MAX);
        assert!(b.iter().all(|byte| *byte == 2));
        b.fill(9);
        assert_eq!(*a, [u64::MAX; 3]);
        drop(a);
        assert_eq!(counts.living.lock().unwrap().len(), 1);
        // What asks for more than it has moves.
        b.push(1);
        assert!(!b.is_given() && b.len() == 101 && b[99] == 9);
        assert!(counts.living.lock().unwrap().is_empty());
    }

    #[test]
    fn what_givers_say() {
        let (_, giver) = one(One { refuses: true, ..One::default() });
        assert!(Block::ask(Some(&giver), 64, 0).is_err());
        // Nothing is asked for nothing.
        assert!(Block::ask(Some(&giver), 0, 0).is_ok());
        let (_, giver) = one(One { leaves_it: true, ..One::default() });
        assert!(!Block::ask(Some(&giver), 64, 0).unwrap().slots::<u64>(4, 0).is_given());
        let (counts, giver) = one(One { askew: 8, ..One::default() });
        assert!(Block::ask(Some(&giver), 64, 0).is_err());
        assert!(counts.living.lock().unwrap().is_empty());
    }
}
