//! Marks: who uses a thing says so in a place of its own thread, by a plain store; who ends the thing, or changes it, looks
//! at all threads' places, behind a barrier that is his to pay for ([`crate::barrier`]).
//!
//! So a use costs no locked instruction, and threads that use one thing do not take a cache line from each other. The rules
//! are [`protocol`], over any memory: that of the threads, or a model checker's.
//!
//! Each thread has a few places, for as many uses at a time. Where there is none free, or no such barrier, the user does
//! without a mark and is to count itself in some other way.

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use crate::{barrier, cancel};

/// The rules.
pub mod protocol {
    use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

    /// One user's place and what it is to look at.
    pub trait Memory {
        /// Loads the place.
        fn mark(&self, order: Ordering) -> usize;
        /// Stores into it.
        fn set_mark(&self, value: usize, order: Ordering);
        /// Whether the thing may still be used; the load is an acquire.
        fn is_open(&self) -> bool;
        /// The user's side of a barrier.
        fn light(&self);
    }

    /// Says that the thing is used, if it may be.
    #[inline]
    pub fn enter<M: Memory>(memory: &M, name: usize) -> bool {
        memory.set_mark(name, Relaxed);
        // SYNC POINT: who ends the thing closes it, calls the other side of the barrier, then looks at the marks. Either we
        // see that it is closed, or our mark is seen.
        memory.light();
        let open = memory.is_open();
        if !open {
            leave(memory);
        }
        open
    }

    /// Ends what [`enter`] began.
    #[inline]
    pub fn leave<M: Memory>(memory: &M) {
        // SYNC POINT: with the load in `is_used`: the use is over.
        memory.set_mark(0, Release);
    }

    /// Whether that place says that the thing is used. To be asked behind a barrier, once the thing is closed.
    #[inline]
    pub fn is_used<M: Memory>(memory: &M, name: usize) -> bool {
        memory.mark(Acquire) == name
    }
}

/// Things that one thread may use at a time without falling back on something else.
const PLACES: usize = 4;

/// A thread's places. Never freed: the next thread takes them.
#[derive(Default)]
#[repr(align(128))]
struct Thread {
    places: [AtomicUsize; PLACES],
    taken: AtomicBool,
    next: AtomicPtr<Thread>,
}

/// All threads that ever had places at one time. Nothing here takes a lock: a child of fork(2) may come by.
static THREADS: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    static MINE: Cell<Option<&'static Thread>> = const { Cell::new(None) };
    static TENURE: Tenure = const { Tenure };
}

/// Gives the places back when the thread ends.
struct Tenure;

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Some(thread) = MINE.take()
            && thread.places.iter().all(|place| place.load(Ordering::Relaxed) == 0)
        {
            thread.taken.store(false, Ordering::Release);
        }
    }
}

#[cold]
fn register() -> Option<&'static Thread> {
    // Not in a thread that is ending.
    TENURE.try_with(|_| ()).ok().filter(|()| barrier::available())?;
    let thread = threads()
        .find(|thread| !thread.taken.swap(true, Ordering::AcqRel))
        .unwrap_or_else(|| add(Box::leak(Box::default())));
    MINE.set(Some(thread));
    Some(thread)
}

fn add(thread: &'static Thread) -> &'static Thread {
    thread.taken.store(true, Ordering::Relaxed);
    let address = ptr::from_ref(thread).cast_mut();
    let mut first = THREADS.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        // SYNC POINT: whoever sees it sees what is in it. Who looks for marks behind a barrier sees it, if it has one.
        match THREADS.compare_exchange(first, address, Ordering::SeqCst, Ordering::Acquire) {
            Ok(_) => return thread,
            Err(now) => first = now,
        }
    }
}

fn threads() -> impl Iterator<Item = &'static Thread> {
    // SAFETY: what is in the list was leaked.
    let follow = |from: &AtomicPtr<Thread>| unsafe { from.load(Ordering::Acquire).as_ref() };
    std::iter::successors(follow(&THREADS), move |thread| follow(&thread.next))
}

/// What this thread is known by while it lives: never 0 or 1. None where there are no such barriers, or when it ends.
#[inline]
pub(crate) fn thread() -> Option<usize> {
    MINE.get().or_else(register).map(|thread| ptr::from_ref(thread) as usize)
}

struct Place<'a, F> {
    place: &'a AtomicUsize,
    is_open: F,
}

impl<F: Fn() -> bool> protocol::Memory for Place<'_, F> {
    #[inline]
    fn mark(&self, order: Ordering) -> usize {
        self.place.load(order)
    }

    #[inline]
    fn set_mark(&self, value: usize, order: Ordering) {
        self.place.store(value, order);
    }

    #[inline]
    fn is_open(&self) -> bool {
        (self.is_open)()
    }

    #[inline]
    fn light(&self) {
        barrier::light();
    }
}

/// A use that is under way; it ends when this is dropped.
#[derive(Debug)]
pub struct Mark(&'static AtomicUsize);

impl Drop for Mark {
    #[inline]
    fn drop(&mut self) {
        protocol::leave(&Place { place: self.0, is_open: || true });
    }
}

/// What became of [`enter`].
#[derive(Debug)]
pub enum Entry {
    /// The thing stays as it is until the mark is dropped.
    Entered(Mark),
    /// It may not be used.
    Closed,
    /// There is no place for a mark.
    NoPlace,
}

/// Says that this thread uses what has that name, its address, if `is_open` says afterwards that it may be: by an acquiring
/// load of what is stored by whoever closes it.
#[inline]
pub fn enter(name: usize, is_open: impl Fn() -> bool) -> Entry {
    let Some(thread) = MINE.get().or_else(register) else { return Entry::NoPlace };
    let free = |place: &&AtomicUsize| place.load(Ordering::Relaxed) == 0;
    let Some(place) = thread.places.iter().find(free) else { return Entry::NoPlace };
    match protocol::enter(&Place { place, is_open }, name) {
        true => Entry::Entered(Mark(place)),
        false => Entry::Closed,
    }
}

/// Looks before the core is offered to others, and before sleeping between them.
const LOOKS: u32 = 100;
const MORE: u32 = 164;
const PAUSE: Duration = Duration::from_micros(50);

/// Waits until nobody uses what has that name any more. It has been closed before: nobody begins.
pub fn wait(name: usize) {
    if !barrier::available() {
        return;
    }
    barrier::heavy();
    let mut looks = 0;
    let is_used = |place| protocol::is_used(&Place { place, is_open: || true }, name);
    while threads().any(|thread| thread.places.iter().any(is_used)) {
        looks += 1;
        match looks {
            ..LOOKS => std::hint::spin_loop(),
            LOOKS..MORE => thread::yield_now(),
            _ => {
                let _held = cancel::held();
                thread::sleep(PAUSE);
            }
        }
    }
}

/// A lock for what is read with every message and seldom changed: readers leave a mark, and a writer pays.
#[derive(Default)]
pub struct Lock<T> {
    writing: AtomicBool,
    /// For writers among each other, and for readers that come meanwhile or have no place.
    queue: RwLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: as for any lock of readers and writers: a reference is given to readers in any thread, and the value to a writer
// in any.
unsafe impl<T: Send + Sync> Sync for Lock<T> {}

/// What keeps writers out.
#[derive(Debug)]
enum Reading<'a> {
    Mark { _mark: Mark },
    Queue { _guard: RwLockReadGuard<'a, ()> },
}

/// The value, to be read.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    value: &'a T,
    _reading: Reading<'a>,
}

/// The value, to be changed.
pub struct WriteGuard<'a, T> {
    lock: &'a Lock<T>,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl<T> Lock<T> {
    /// Waits for the writer there is, and then keeps others out. A panic of a writer leaves the value as it is.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        // SYNC POINT: with the store at a writer's end: we see what it wrote.
        let entry = enter(self.name(), || !self.writing.load(Ordering::Acquire));
        let reading = match entry {
            Entry::Entered(mark) => Reading::Mark { _mark: mark },
            Entry::Closed | Entry::NoPlace => self.queue_up(),
        };
        // SAFETY: until `reading` is dropped there is no writer: it either waits for the mark, or for the queue.
        ReadGuard { value: unsafe { &*self.value.get() }, _reading: reading }
    }

    #[cold]
    fn queue_up(&self) -> Reading<'_> {
        Reading::Queue {
            _guard: self.queue.read().unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let guard = self.queue.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.writing.store(true, Ordering::Relaxed);
        wait(self.name());
        WriteGuard { lock: self, _guard: guard }
    }

    fn name(&self) -> usize {
        ptr::from_ref(self) as usize
    }
}

impl<T: fmt::Debug> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(&*self.read()).finish()
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the writer is alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the writer is alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.writing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
