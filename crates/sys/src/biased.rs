//! A lock that is mostly one thread's: who takes it first takes it by plain stores from then on. The first other thread
//! that wants it pays for a barrier ([`crate::barrier`]), and from then on it is a lock as of [`crate::moment`].
//!
//! For what is in fact used by one thread, though it must bear more. Whoever waits looks for himself, soon and then less
//! often.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lock_api::RawMutex;

use crate::moment::RawMoment;
use crate::{barrier, cancel, marks};

/// A mutex by [`RawBiased`].
pub type Mutex<T> = lock_api::Mutex<RawBiased, T>;

/// The rules by which the lock leaves its first owner, over any memory.
pub mod protocol {
    use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

    /// The owner is nobody any more.
    pub const REVOKED: usize = 1;

    /// The words of a lock.
    pub trait Memory {
        /// Who may take it by plain stores.
        fn owner(&self, order: Ordering) -> usize;
        /// Changes that.
        fn set_owner(&self, owner: usize, order: Ordering);
        /// Whether the owner has it, or is about to look whether it may.
        fn busy(&self, order: Ordering) -> bool;
        /// Changes that. Only the owner does.
        fn set_busy(&self, busy: bool, order: Ordering);
        /// The owner's side of a barrier.
        fn light(&self);
        /// The other side.
        fn heavy(&self);
    }

    /// Takes it, if it is `me` who owns it and does not have it already.
    #[inline]
    pub fn take<M: Memory>(memory: &M, me: usize) -> bool {
        if memory.owner(Relaxed) != me || memory.busy(Relaxed) {
            return false;
        }
        memory.set_busy(true, Relaxed);
        // SYNC POINT: with the barrier in `revoke`: either we see that we own it no more, or we are seen to be busy.
        memory.light();
        let owns = memory.owner(Relaxed) == me;
        if !owns {
            give_back(memory);
        }
        owns
    }

    /// Ends what [`take`] began.
    #[inline]
    pub fn give_back<M: Memory>(memory: &M) {
        // SYNC POINT: with the load in `is_free`: what was done under it is seen.
        memory.set_busy(false, Release);
    }

    /// Takes it away from its owner, who may have it until [`is_free`] says otherwise. One thread at a time.
    pub fn revoke<M: Memory>(memory: &M) {
        memory.set_owner(REVOKED, Relaxed);
        memory.heavy();
    }

    /// Whether the former owner has given it back.
    pub fn is_free<M: Memory>(memory: &M) -> bool {
        !memory.busy(Acquire)
    }
}

/// See the [module](self).
pub struct RawBiased {
    /// 0: nobody has taken it yet.
    owner: AtomicUsize,
    busy: AtomicBool,
    /// Whether who has it took it as its owner. Written by who has it.
    by_owner: AtomicBool,
    /// What the others take, and everyone once it was revoked.
    common: RawMoment,
}

impl protocol::Memory for RawBiased {
    #[inline]
    fn owner(&self, order: Ordering) -> usize {
        self.owner.load(order)
    }

    fn set_owner(&self, owner: usize, order: Ordering) {
        self.owner.store(owner, order);
    }

    #[inline]
    fn busy(&self, order: Ordering) -> bool {
        self.busy.load(order)
    }

    #[inline]
    fn set_busy(&self, busy: bool, order: Ordering) {
        self.busy.store(busy, order);
    }

    #[inline]
    fn light(&self) {
        barrier::light();
    }

    fn heavy(&self) {
        barrier::heavy();
    }
}

/// Offers of the core to others before sleeping between looks.
const OFFERS: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

impl RawBiased {
    #[cold]
    fn take_common(&self, me: Option<usize>) {
        self.common.lock();
        match (self.owner.load(Ordering::Relaxed), me) {
            (protocol::REVOKED, _) => {}
            (0, Some(me)) => {
                self.busy.store(true, Ordering::Relaxed);
                self.by_owner.store(true, Ordering::Relaxed);
                self.owner.store(me, Ordering::Relaxed);
                // SAFETY: taken above. From here on who wants it waits for the owner.
                return unsafe { self.common.unlock() };
            }
            (0, None) => self.owner.store(protocol::REVOKED, Ordering::Relaxed),
            _ => self.take_away(),
        }
        self.by_owner.store(false, Ordering::Relaxed);
    }

    fn take_away(&self) {
        protocol::revoke(self);
        let mut offers = 0;
        while !protocol::is_free(self) {
            offers += 1;
            match offers {
                ..OFFERS => thread::yield_now(),
                _ => {
                    let _held = cancel::held();
                    thread::sleep(PAUSE);
                }
            }
        }
    }
}

impl fmt::Debug for RawBiased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBiased").field("is_locked", &self.is_locked()).finish_non_exhaustive()
    }
}

// SAFETY: the owner has it alone by the rules of `protocol`; nobody else comes by but with `common` locked, when there is
// no owner any more, and the last one has given it back.
unsafe impl RawMutex for RawBiased {
    #[allow(clippy::declare_interior_mutable_const, reason = "what the trait asks for")]
    const INIT: RawBiased = RawBiased {
        owner: AtomicUsize::new(0),
        busy: AtomicBool::new(false),
        by_owner: AtomicBool::new(false),
        common: RawMoment::INIT,
    };

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        let me = marks::thread();
        if !me.is_some_and(|me| protocol::take(self, me)) {
            self.take_common(me);
        }
    }

    /// Fails also where the lock would have to be taken away from its owner.
    fn try_lock(&self) -> bool {
        if marks::thread().is_some_and(|me| protocol::take(self, me)) {
            return true;
        }
        if !self.common.try_lock() {
            return false;
        }
        let free = self.owner.load(Ordering::Relaxed) == protocol::REVOKED;
        if free {
            self.by_owner.store(false, Ordering::Relaxed);
        } else {
            // SAFETY: taken above.
            unsafe { self.common.unlock() };
        }
        free
    }

    #[inline]
    unsafe fn unlock(&self) {
        match self.by_owner.load(Ordering::Relaxed) {
            true => protocol::give_back(self),
            // SAFETY: who has it did not take it as its owner, hence by this.
            false => unsafe { self.common.unlock() },
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.busy.load(Ordering::Relaxed) || self.common.is_locked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn owner<T>(lock: &Mutex<T>) -> usize {
        // SAFETY: only looked at.
        unsafe { lock.raw() }.owner.load(Ordering::SeqCst)
    }

    #[test]
    fn the_first_owns_it_until_another_comes() {
        let lock = Mutex::new(0);
        for n in 0..3 {
            let mut guard = lock.lock();
            assert_eq!(*guard, n);
            *guard += 1;
            // SAFETY: only looked at.
            assert!(unsafe { lock.raw() }.is_locked());
        }
        assert_eq!(owner(&lock), marks::thread().unwrap_or(protocol::REVOKED));
        thread::scope(|scope| scope.spawn(|| *lock.lock() += 1).join().unwrap());
        assert_eq!(owner(&lock), protocol::REVOKED);
        assert_eq!(*lock.lock(), 4);
        // SAFETY: only looked at.
        assert!(lock.try_lock().is_some() && !unsafe { lock.raw() }.is_locked());
    }

    #[test]
    fn who_comes_waits_for_the_owner() {
        let lock = Arc::new(Mutex::new(0));
        let guard = lock.lock();
        let other = {
            let lock = lock.clone();
            thread::spawn(move || std::mem::replace(&mut *lock.lock(), 2))
        };
        thread::sleep(Duration::from_millis(5));
        assert!(!other.is_finished());
        drop(guard);
        assert_eq!((other.join().unwrap(), *lock.lock()), (0, 2));
    }

    /// Many locks, each taken away while its owner takes it as often as it can.
    #[test]
    fn one_thread_at_a_time_has_it() {
        for _ in 0..200 {
            let count = Arc::new(Mutex::new(0u64));
            drop(count.lock());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let count = count.clone();
                    thread::spawn(move || (0..200).for_each(|_| add(&count)))
                })
                .collect();
            (0..200).for_each(|_| add(&count));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(*count.lock(), 600);
        }
    }

    fn add(count: &Mutex<u64>) {
        let mut count = count.lock();
        let before = *count;
        std::hint::black_box(&mut *count);
        *count = before + 1;
    }
}
