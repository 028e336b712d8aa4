//! A barrier of which one side costs nothing: for what is done with every message, and rarely to be waited for.
//!
//! Who stores, then calls [`light`], then loads, and who stores, then calls [`heavy`], then loads: one of the two sees the
//! other's store, as if both had called a sequentially consistent fence. The second has the kernel interrupt whoever
//! runs a thread of this process (membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED), which takes microseconds.

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};
use std::thread;
use std::time::Duration;

use crate::cancel;

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

static AVAILABLE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// By then every processor has long made its stores known.
const LONG: Duration = Duration::from_millis(10);

/// Whether there are such barriers: not on kernels before 4.14, nor where a sandbox forbids the call. The answer stays the
/// same. The first call in a process that has threads already takes some milliseconds.
#[inline]
pub fn available() -> bool {
    match AVAILABLE.load(Ordering::Acquire) {
        UNKNOWN => find_out(),
        known => known == YES,
    }
}

#[cold]
fn find_out() -> bool {
    let answer = if call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) { YES } else { NO };
    // Of threads that ask at the same time the first one's answer counts for all.
    let known = AVAILABLE.compare_exchange(UNKNOWN, answer, Ordering::AcqRel, Ordering::Acquire);
    known.map_or_else(|first| first, |_| answer) == YES
}

/// The side that costs nothing. Of use only where barriers are [`available`].
#[inline]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The other side.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if !call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // Forbidden since it was found to be there.
        let _held = cancel::held();
        thread::sleep(LONG);
    }
    fence(Ordering::SeqCst);
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: it takes numbers, and touches no memory of the caller's.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
