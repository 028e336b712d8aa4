//! A lock for what is held for moments, on the path of every message.
//!
//! Taking it costs one locked instruction, giving it back none: who waits looks for himself, soon and then less often,
//! and nobody wakes him. So it is not for what may be held long.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cancel;

/// A mutex by [`RawMoment`].
pub type Mutex<T> = lock_api::Mutex<RawMoment, T>;

/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMoment, T>;

/// Looks that a waiter takes before it offers its core to others, and how often it does that before it sleeps.
const LOOKS: u32 = 100;
const OFFERS: u32 = 16;

/// How long it sleeps at first, and at most. Its holder may be of a lower priority, and need the core.
const FIRST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(200);

/// See the [module](self).
#[derive(Debug)]
pub struct RawMoment {
    held: AtomicBool,
}

impl RawMoment {
    /// Waits for it. False: not before that time.
    #[cold]
    fn wait(&self, until: Option<Instant>) -> bool {
        let (mut offers, mut pause) = (0, FIRST);
        loop {
            for _ in 0..LOOKS {
                if !self.held.load(Ordering::Relaxed) && self.take() {
                    return true;
                }
                hint::spin_loop();
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
            if offers < OFFERS {
                offers += 1;
                thread::yield_now();
            } else {
                let _held = cancel::held();
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }

    #[inline]
    fn take(&self) -> bool {
        !self.held.swap(true, Ordering::Acquire)
    }
}

// SAFETY: `held` is true from a successful `lock` or `try_lock` until `unlock`, and the one that made it true, by an atomic
// exchange, is alone in having found it false.
unsafe impl lock_api::RawMutex for RawMoment {
    #[allow(clippy::declare_interior_mutable_const, reason = "what the trait asks for")]
    const INIT: RawMoment = RawMoment { held: AtomicBool::new(false) };

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.take() {
            self.wait(None);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.take()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMoment {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, timeout: Duration) -> bool {
        self.take() || self.wait(Instant::now().checked_add(timeout))
    }

    fn try_lock_until(&self, timeout: Instant) -> bool {
        self.take() || self.wait(Some(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let count = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let count = count.clone();
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut count = count.lock();
                        let before = *count;
                        hint::black_box(&mut *count);
                        *count = before + 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*count.lock(), 80_000);
    }

    #[test]
    fn who_waits_gives_up_in_time_and_gets_it_when_it_is_free() {
        let lock = Mutex::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock_for(Duration::from_millis(3)).is_none());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.lock()));
            thread::sleep(Duration::from_millis(5));
            drop(guard);
            waiter.join().unwrap();
        });
        assert!(lock.try_lock_for(Duration::ZERO).is_some());
    }
}
