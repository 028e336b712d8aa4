//! A lock in shared memory that survives the death of its holder.
//!
//! It is the C library's robust, process-shared mutex (pthread_mutexattr_setrobust(3)): the kernel
//! releases it when the holding thread dies, however it dies, and tells the next holder. Nothing of
//! it is home-made, so there is no protocol here to model-check; what the holder's death leaves
//! half-done is the caller's to repair.
//!
//! Its layout is the C library's: processes that share one must use the same library, see
//! [`layout`].

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::cancel;
use crate::process;
use crate::shm::Shared;

/// Bytes that a lock occupies, and the alignment of its offset.
pub const SIZE: usize = 64;
const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= SIZE);

/// A number that is the same in processes whose locks have the same layout.
pub const fn layout() -> u32 {
    let library = if cfg!(target_env = "musl") { 1 } else { 0 };
    let pointer = size_of::<usize>() as u32;
    library << 16 | pointer << 8 | size_of::<libc::pthread_mutex_t>() as u32
}

fn mutex(memory: &Shared, offset: usize) -> io::Result<NonNull<libc::pthread_mutex_t>> {
    match memory.place(offset, SIZE) {
        Some(place) if memory.writable() => Ok(place.cast()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn result(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Makes a lock of the [`SIZE`] bytes at `offset`, which nobody uses yet.
///
/// # Errors
/// InvalidInput when the place is misaligned, out of bounds or read-only; else as
/// pthread_mutex_init(3).
pub fn init(memory: &Shared, offset: usize) -> io::Result<()> {
    let mutex = mutex(memory, offset)?;
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: the attributes are initialised before use and destroyed after; the mutex has room and
    // alignment, in memory that nobody else uses yet.
    unsafe {
        let attributes = attributes.as_mut_ptr();
        result(libc::pthread_mutexattr_init(attributes))?;
        let made =
            result(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))
                .and_then(|()| {
                    result(libc::pthread_mutexattr_setrobust(
                        attributes,
                        libc::PTHREAD_MUTEX_ROBUST,
                    ))
                })
                .and_then(|()| result(libc::pthread_mutex_init(mutex.as_ptr(), attributes)));
        libc::pthread_mutexattr_destroy(attributes);
        made
    }
}

/// The lock, held by this thread.
#[derive(Debug)]
pub enum Locked<'a> {
    /// The previous holder released it.
    Clean(Guard<'a>),
    /// The previous holder died holding it: what it guards may be half changed. Repair it before the
    /// guard is dropped; a death during the repair is told to the next holder again.
    OwnerDied(Guard<'a>),
}

/// Releases the lock when dropped.
#[derive(Debug)]
pub struct Guard<'a> {
    mutex: NonNull<libc::pthread_mutex_t>,
    owner_died: bool,
    /// Keeps the mapping; and, as a raw pointer, the guard on its thread.
    _memory: PhantomData<(&'a Shared, *const ())>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex, in memory that is still mapped.
        unsafe {
            if self.owner_died {
                libc::pthread_mutex_consistent(self.mutex.as_ptr());
            }
            libc::pthread_mutex_unlock(self.mutex.as_ptr());
        }
    }
}

/// Takes the lock at `offset`, waiting at most `timeout`. It is not recursive: a thread that holds
/// it waits in vain.
///
/// It polls instead of sleeping in the kernel, because pthread_mutex_timedlock(3) measures by the
/// settable clock; the lock is held for well under a millisecond.
///
/// # Errors
/// TimedOut when it is held all the while (by a stopped process, perhaps); InvalidInput as for
/// [`init`]; else as pthread_mutex_trylock(3).
pub fn lock(memory: &Shared, offset: usize, timeout: Duration) -> io::Result<Locked<'_>> {
    let mutex = mutex(memory, offset)?;
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        // SAFETY: `init` made a mutex there, in this process or in the one that shares the memory.
        let code = unsafe { libc::pthread_mutex_trylock(mutex.as_ptr()) };
        let guard = |owner_died| Guard { mutex, owner_died, _memory: PhantomData };
        match code {
            0 => return Ok(Locked::Clean(guard(false))),
            libc::EOWNERDEAD => return Ok(Locked::OwnerDied(guard(true))),
            libc::EBUSY if start.elapsed() < timeout => {
                let _held = cancel::held();
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
            libc::EBUSY => return Err(io::ErrorKind::TimedOut.into()),
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Where the word that names the holder is within the C library's mutex, in bytes. [`keep`] checks it.
const WORD: usize = if cfg!(target_env = "musl") { 4 } else { 0 };

/// A lock that this thread has taken to show that its process lives: see [`is_kept`]. Released when
/// dropped.
#[derive(Debug)]
pub struct Kept {
    mutex: NonNull<libc::pthread_mutex_t>,
    /// As a raw pointer, it stays on its thread.
    _memory: (Arc<Shared>, PhantomData<*const ()>),
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex, in memory that is still mapped.
        unsafe { libc::pthread_mutex_unlock(self.mutex.as_ptr()) };
    }
}

/// Takes the lock at `offset` to hold it for the life of this thread. Whoever has the memory mapped,
/// if only to read, can tell by a load whether it is held: the kernel takes it away when the thread
/// ends, however it does, also by execve(2) of the process (futex(2), robust list).
///
/// # Errors
/// WouldBlock when it is held; Unsupported when the C library keeps the holder elsewhere than known
/// here; else as [`lock`].
pub fn keep(memory: &Arc<Shared>, offset: usize) -> io::Result<Kept> {
    let place = mutex(memory, offset)?;
    // SAFETY: `init` made a mutex there.
    match unsafe { libc::pthread_mutex_trylock(place.as_ptr()) } {
        0 => {}
        libc::EOWNERDEAD => {
            // SAFETY: this thread has just taken the mutex.
            unsafe { libc::pthread_mutex_consistent(place.as_ptr()) };
        }
        libc::EBUSY => return Err(io::ErrorKind::WouldBlock.into()),
        code => return Err(io::Error::from_raw_os_error(code)),
    }
    let kept = Kept { mutex: place, _memory: (memory.clone(), PhantomData) };
    let thread = process::thread_id();
    let word = memory.load_u32(offset + WORD, Ordering::Relaxed);
    match word.map(|word| word & libc::FUTEX_TID_MASK) == Some(thread) {
        true => Ok(kept),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Whether some thread [keeps](keep) the lock at `offset`.
#[inline]
pub fn is_kept(memory: &Shared, offset: usize) -> bool {
    let word = offset.checked_add(WORD).and_then(|at| memory.load_u32(at, Ordering::Acquire));
    word.is_some_and(|word| word & libc::FUTEX_TID_MASK != 0 && word & libc::FUTEX_OWNER_DIED == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Memfd;

    fn shared() -> Shared {
        let memory = Shared::map(&Memfd::create(c"lock", 256).unwrap(), 256, true).unwrap();
        init(&memory, 64).unwrap();
        memory
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_holder_at_a_time() {
        let memory = shared();
        let counter = memory.u32(0).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Locked::Clean(_guard) = lock(&memory, 64, LONG).unwrap() else {
                            panic!("nobody died");
                        };
                        let value = counter.load(Ordering::Relaxed);
                        thread::yield_now();
                        counter.store(value + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 2000);
    }

    #[test]
    fn a_held_lock_times_out_and_a_bad_place_is_refused() {
        let memory = shared();
        let _held = lock(&memory, 64, LONG).unwrap();
        let error = lock(&memory, 64, Duration::from_millis(2)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(init(&memory, 8).is_err() && init(&memory, 256).is_err());
    }

    #[test]
    fn a_death_while_holding_is_told_until_it_is_repaired() {
        let memory = shared();
        for _ in 0..2 {
            // The child takes the lock and dies without releasing it.
            // SAFETY: single-threaded use of the lock; the child ends by _exit.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let held = lock(&memory, 64, LONG);
                let code = if held.is_ok() { 0 } else { 1 };
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: a live integer; the child is ours.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0);
        }
        assert!(matches!(lock(&memory, 64, LONG).unwrap(), Locked::OwnerDied(_)));
        assert!(matches!(lock(&memory, 64, LONG).unwrap(), Locked::Clean(_)));
    }

    #[test]
    fn a_thread_that_dies_holding_it_counts_as_dead() {
        let memory = shared();
        thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(lock(&memory, 64, LONG).unwrap())).join().unwrap();
        });
        assert!(matches!(lock(&memory, 64, LONG).unwrap(), Locked::OwnerDied(_)));
    }

    #[test]
    fn a_kept_lock_is_seen_until_its_thread_ends() {
        let memory = Arc::new(shared());
        assert!(!is_kept(&memory, 64));
        let kept = keep(&memory, 64).unwrap();
        assert!(is_kept(&memory, 64));
        drop(kept);
        assert!(!is_kept(&memory, 64));
        // The end of a scope waits for the closure, `join` for the thread: only its end lets go of what it kept.
        thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(keep(&memory, 64).unwrap())).join().unwrap();
        });
        assert!(!is_kept(&memory, 64));
        drop(keep(&memory, 64).unwrap());
    }

    #[test]
    fn execve_of_the_keeper_is_seen() {
        for by_main in [true, false] {
            let memory = Arc::new(shared());
            let go = memory.u32(0).unwrap();
            // SAFETY: the child makes a thread and calls execve, which the C library allows after fork.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let keep_for_ever = || std::mem::forget(keep(&memory, 64).unwrap());
                if by_main {
                    keep_for_ever();
                } else {
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            keep_for_ever();
                            go.store(1, Ordering::Release);
                            thread::sleep(LONG);
                        });
                        while go.load(Ordering::Acquire) == 0 {}
                        go.store(2, Ordering::Release);
                        // SAFETY: NUL-terminated strings and lists that end with null.
                        unsafe { exec() };
                    });
                }
                go.store(2, Ordering::Release);
                // SAFETY: as above.
                unsafe { exec() };
            }
            while go.load(Ordering::Acquire) != 2 {
                thread::yield_now();
            }
            let start = Instant::now();
            while is_kept(&memory, 64) {
                assert!(start.elapsed() < LONG, "still kept");
                thread::yield_now();
            }
            // SAFETY: no pointers; it is the new program that is still running.
            unsafe {
                assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG), 0);
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }

    unsafe fn exec() {
        let arguments = [c"sleep".as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: the path and the arguments are constants, the list ends with null.
        unsafe {
            libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr());
            libc::_exit(1);
        }
    }
}
