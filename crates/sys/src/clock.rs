//! Clocks.

/// Nanoseconds of `CLOCK_MONOTONIC` (clock_gettime(2)): the same in every process of the host,
/// never set back, standing still while the machine is suspended.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for one timespec; the call does nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    // The clock counts up from boot: neither field is ever negative, and 64 bits last 584 years.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Nanoseconds that this thread has been on a processor, by `CLOCK_THREAD_CPUTIME_ID`. Asking costs a system call.
pub fn thread_ns() -> u64 {
    let mut spent = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut spent) };
    (spent.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(spent.tv_nsec as u64)
}

/// Nanoseconds since 1970 by `CLOCK_REALTIME`, which may be set back.
pub fn wall_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn advances_by_what_was_slept() {
        let before = super::monotonic_ns();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(super::monotonic_ns() - before >= 2_000_000);
    }

    #[test]
    fn a_thread_spends_what_it_computes() {
        let before = super::thread_ns();
        while super::thread_ns() - before < 1_000_000 {}
    }
}
