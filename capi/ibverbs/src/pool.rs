//! Where the C objects live.
//!
//! A program holds plain pointers, keeps them after destruction, copies the structures behind them
//! and overwrites their fields. So objects of one type live in chunks that are never unmapped or
//! used for anything else, and a pointer counts as an object only if the handle found in it leads
//! back to the very same place and that place is alive. Freed places rest before they are used
//! again, so that a stale pointer meets an empty place and not somebody else's object.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use ironverbs_sys::marks::{self, Entry, Mark};
use parking_lot::Mutex;

use crate::fail::Failure;

/// A structure that programs hold pointers to.
pub(crate) trait Object: Sized + 'static {
    /// What stands behind it on our side.
    type View: Send + Sync;
    /// The structure whose pointer the API passes; it lies `OFFSET` bytes into this one.
    type Public;
    /// See [`Object::Public`].
    const OFFSET: usize = 0;
    /// Name for messages.
    const NAME: &'static str;

    /// All objects of this type.
    fn pool() -> &'static Pool<Self>;

    /// The handle field of the structure at `object`; `None` for a structure without one, which is
    /// then found by its address alone.
    ///
    /// # Safety
    /// `object` points to readable memory of the size of `Public`, aligned or not.
    unsafe fn handle(object: *const Self::Public) -> Option<u32>;
}

/// One place: the C structure, then what programs do not see.
#[repr(C, align(64))]
struct Place<C: Object> {
    public: UnsafeCell<MaybeUninit<C>>,
    /// Handle (upper 32 bits), [`ALIVE`], and the number of calls that use the view right now and have no mark for it.
    state: AtomicU64,
    view: UnsafeCell<MaybeUninit<C::View>>,
}

const ALIVE: u64 = 1 << 31;
const USERS: u64 = ALIVE - 1;

const INDEX_BITS: u32 = 20;
const MAX_PLACES: u32 = 1 << INDEX_BITS;
const FIRST_CHUNK: u32 = 64;
const FIRST_CHUNK_BITS: u32 = FIRST_CHUNK.ilog2();
const CHUNKS: usize = (INDEX_BITS - FIRST_CHUNK_BITS + 1) as usize;
/// Places that rest at least.
const RESTING: usize = 64;
/// Places remembered by their address, a power of two.
const RECENT: usize = 16;

/// All objects of one type. Chunk `k` holds `FIRST_CHUNK << k` places.
pub(crate) struct Pool<C: Object> {
    chunks: [AtomicPtr<Place<C>>; CHUNKS],
    /// Places that were found by their address lately: what once is a place stays one.
    recent: [AtomicPtr<Place<C>>; RECENT],
    book: Mutex<Book>,
}

/// Which places are free; a handle is an index and, above it, how often the place was used before.
struct Book {
    places: u32,
    /// Handles that the free places had last, oldest first.
    free: VecDeque<u32>,
}

// SAFETY: the public part is memory that C code shares between threads by its own rules and that we
// touch through raw pointers only; the view is `Send + Sync`, reached only while `state` says that
// it is alive and counts the user, and taken out only when no user is left.
unsafe impl<C: Object> Sync for Pool<C> {}

impl<C: Object> Pool<C> {
    pub(crate) const fn new() -> Self {
        Pool {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            recent: [const { AtomicPtr::new(ptr::null_mut()) }; RECENT],
            book: Mutex::new(Book { places: 0, free: VecDeque::new() }),
        }
    }

    /// Puts a view into a free place. `fill` completes the C structure, which starts zeroed, before
    /// anyone can find it; it gets the handle to write down.
    pub(crate) fn insert(
        &self,
        view: C::View,
        fill: impl FnOnce(*mut C, u32),
    ) -> Result<NonNull<C::Public>, Failure> {
        let handle = self.claim().ok_or(Failure::Full { what: C::NAME })?;
        let Some(place) = self.place(handle) else {
            return Err(Failure::Full { what: C::NAME });
        };
        // SAFETY: the place is not alive and `claim` gave it to this call alone; places are never
        // freed, and zeroes are a valid start for every C structure.
        let public = unsafe {
            ptr::write_bytes(place.public.get(), 0, 1);
            (*place.view.get()).write(view);
            place.public.get().cast::<C>()
        };
        fill(public, handle);
        // A stale pointer may have counted itself in for a moment, so that the count is kept.
        // SYNC POINT with `enter`: whoever sees ALIVE sees the view.
        let alive = u64::from(handle) << 32 | ALIVE;
        let publish = |old: u64| Some(alive | (old & USERS));
        let _ = place.state.fetch_update(Ordering::Release, Ordering::Relaxed, publish);
        // SAFETY: OFFSET lies within the structure.
        let object = unsafe { public.cast::<u8>().add(C::OFFSET).cast::<C::Public>() };
        NonNull::new(object).ok_or(Failure::Full { what: C::NAME })
    }

    fn claim(&self) -> Option<u32> {
        let mut book = self.book.lock();
        if book.free.len() > RESTING || book.places == MAX_PLACES {
            let last = book.free.pop_front()?;
            return Some(last.wrapping_add(MAX_PLACES));
        }
        let index = book.places;
        let (chunk, _) = split(index);
        if self.chunks.get(chunk)?.load(Ordering::Relaxed).is_null() {
            let layout = Layout::array::<Place<C>>((FIRST_CHUNK as usize) << chunk).ok()?;
            // SAFETY: a place is never of size zero.
            let memory = unsafe { alloc_zeroed(layout) }.cast::<Place<C>>();
            if memory.is_null() {
                return None;
            }
            // SYNC POINT with `place`: whoever sees the chunk sees its zeroes.
            self.chunks.get(chunk)?.store(memory, Ordering::Release);
        }
        book.places += 1;
        Some(index)
    }

    /// The place of a handle, alive or not.
    fn place(&self, handle: u32) -> Option<&Place<C>> {
        let (chunk, offset) = split(handle & (MAX_PLACES - 1));
        let first = self.chunks.get(chunk)?.load(Ordering::Acquire);
        if first.is_null() {
            return None;
        }
        // SAFETY: the chunk holds `FIRST_CHUNK << chunk` places, `offset` is below that, and chunks
        // are never freed; zeroed memory is a valid place that is not alive.
        Some(unsafe { &*first.add(offset) })
    }

    /// The index of the place whose C structure `object` points at, whatever its state.
    fn index_of(&self, object: *const C::Public) -> Option<u32> {
        let address = (object as usize).wrapping_sub(C::OFFSET);
        for (k, chunk) in self.chunks.iter().enumerate() {
            let first = chunk.load(Ordering::Acquire);
            if first.is_null() {
                return None;
            }
            let offset = address.wrapping_sub(first as usize);
            let (n, rest) = (offset / size_of::<Place<C>>(), offset % size_of::<Place<C>>());
            if n < (FIRST_CHUNK as usize) << k && rest == 0 {
                return Some((FIRST_CHUNK << k) - FIRST_CHUNK + n as u32);
            }
        }
        None
    }

    /// The object behind a pointer that a program passed.
    ///
    /// # Safety
    /// `object` is null or points to readable memory of the size of the structure.
    #[inline]
    pub(crate) unsafe fn find(&self, object: *const C::Public) -> Result<Ref<'_, C>, Failure> {
        if object.is_null() {
            return Err(Failure::Null { what: C::NAME });
        }
        // SAFETY: the caller's promise.
        let handle = match unsafe { C::handle(object) } {
            Some(handle) => handle,
            None => match self.index_of(object).and_then(|index| self.place(index)) {
                Some(place) => (place.state.load(Ordering::Acquire) >> 32) as u32,
                None => 0,
            },
        };
        match self.at(object, handle).and_then(|place| place.enter(handle)) {
            Some(found) => Ok(found),
            None => Err(Failure::Unknown { what: C::NAME, handle }),
        }
    }

    /// The same without counting the call in, which costs a little: for calls between which the manual has
    /// the object be the caller's, and be ended by nobody (from start to end of polling and of building requests).
    ///
    /// # Safety
    /// As for [`find`](Pool::find), and nobody ends the object while the result is used.
    #[inline]
    pub(crate) unsafe fn peek(
        &self,
        object: *const C::Public,
    ) -> Result<ManuallyDrop<Ref<'_, C>>, Failure> {
        if object.is_null() {
            return Err(Failure::Null { what: C::NAME });
        }
        // SAFETY: the caller's promise.
        let handle = unsafe { C::handle(object) }.unwrap_or(0);
        let lives = |place: &&Place<C>| {
            place.state.load(Ordering::Acquire) >> 31 == u64::from(handle) << 1 | 1
        };
        match self.at(object, handle).filter(lives) {
            Some(place) => Ok(ManuallyDrop::new(Ref { place, mark: None })),
            None => Err(Failure::Unknown { what: C::NAME, handle }),
        }
    }

    /// The place whose C structure is at that address, if it is the one that the handle leads to.
    #[inline]
    fn at(&self, object: *const C::Public, handle: u32) -> Option<&Place<C>> {
        // Places are as far apart as they are long, which is more than that.
        let recent = self.recent.get(object as usize >> 9 & (RECENT - 1))?;
        let is_here = |place: *const Place<C>| place as usize + C::OFFSET == object as usize;
        // SYNC POINT: as in `place`.
        let known = recent.load(Ordering::Acquire);
        if !known.is_null() && is_here(known) {
            // SAFETY: it came from `place`; places are never freed.
            return Some(unsafe { &*known });
        }
        let place = self.place(handle).filter(|place| is_here(ptr::from_ref(*place)))?;
        recent.store(ptr::from_ref(place).cast_mut(), Ordering::Release);
        Some(place)
    }

    /// The object with a handle that a program passed as a number.
    pub(crate) fn numbered(&self, handle: u32) -> Result<Ref<'_, C>, Failure> {
        let place = self.place(handle).filter(|_| handle & (MAX_PLACES - 1) < self.places());
        place
            .and_then(|place| place.enter(handle))
            .ok_or(Failure::Unknown { what: C::NAME, handle })
    }

    fn places(&self) -> u32 {
        self.book.lock().places
    }

    /// Ends an object: waits until no call uses its view, and gives the place back. `None` when
    /// somebody else did.
    ///
    /// The caller holds no [`Ref`] to it.
    pub(crate) fn remove(&self, handle: u32) -> Option<C::View> {
        let place = self.place(handle)?;
        let alive = u64::from(handle) << 32 | ALIVE;
        let end = |old: u64| ((old & !USERS) == alive).then_some(old & !ALIVE);
        place.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end).ok()?;
        // Calls on the data path do not block, the others hold their own count of the device's
        // object: this is short. SYNC POINT with `Ref::drop`.
        marks::wait(place.name());
        while place.state.load(Ordering::Acquire) & USERS != 0 {
            std::thread::yield_now();
        }
        // SAFETY: it was alive, hence the view is there; this call ended it, and no user is left.
        let view = unsafe { (*place.view.get()).assume_init_read() };
        self.book.lock().free.push_back(handle);
        Some(view)
    }

    /// Every living object for which `keep` holds.
    pub(crate) fn living(&self, keep: impl Fn(&C::View) -> bool) -> Vec<Ref<'_, C>> {
        let places = self.book.lock().places;
        let alive = |index| {
            let place = self.place(index)?;
            place.enter((place.state.load(Ordering::Acquire) >> 32) as u32)
        };
        (0..places).filter_map(alive).filter(|object| keep(object)).collect()
    }
}

fn split(index: u32) -> (usize, usize) {
    let shifted = index + FIRST_CHUNK;
    let chunk = shifted.ilog2();
    ((chunk - FIRST_CHUNK_BITS) as usize, (shifted - (1 << chunk)) as usize)
}

impl<C: Object> Place<C> {
    #[inline]
    fn enter(&self, handle: u32) -> Option<Ref<'_, C>> {
        // The one compare: alive, and still the object that the handle meant. SYNC POINT with `insert`.
        let lives = |state: u64| state >> 31 == u64::from(handle) << 1 | 1;
        match marks::enter(self.name(), || lives(self.state.load(Ordering::Acquire))) {
            Entry::Entered(mark) => Some(Ref { place: self, mark: Some(mark) }),
            Entry::Closed => None,
            Entry::NoPlace => self.enter_counted(lives),
        }
    }

    #[cold]
    fn enter_counted(&self, lives: impl Fn(u64) -> bool) -> Option<Ref<'_, C>> {
        let state = self.state.fetch_add(1, Ordering::AcqRel);
        let entered = Ref { place: self, mark: None };
        lives(state).then_some(entered)
    }

    fn name(&self) -> usize {
        ptr::from_ref(self) as usize
    }
}

/// A living object, which stays so while this exists. Never held across anything that blocks.
pub(crate) struct Ref<'a, C: Object> {
    place: &'a Place<C>,
    /// None: it is counted in the place's state.
    mark: Option<Mark>,
}

impl<C: Object> Ref<'_, C> {
    /// Its C structure. Programs write to it too: only raw accesses.
    pub(crate) fn object(&self) -> *mut C {
        self.place.public.get().cast()
    }

    /// Its handle, as we wrote it.
    pub(crate) fn number(&self) -> u32 {
        (self.place.state.load(Ordering::Relaxed) >> 32) as u32
    }
}

impl<C: Object> Deref for Ref<'_, C> {
    type Target = C::View;

    fn deref(&self) -> &C::View {
        // SAFETY: `enter` found the place alive and counted this in, so that the view stays.
        unsafe { (*self.place.view.get()).assume_init_ref() }
    }
}

impl<C: Object> Drop for Ref<'_, C> {
    fn drop(&mut self) {
        if self.mark.is_none() {
            // SYNC POINT with `remove`.
            self.place.state.fetch_sub(1, Ordering::Release);
        }
    }
}
