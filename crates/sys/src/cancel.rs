//! Cancellation of threads (pthread_cancel(3)).
//!
//! It unwinds the thread from the next call that is a cancellation point, which most calls of libc are that can block, and
//! open(2) and close(2), too. Frames of Rust with anything to drop end a process that is unwound so. Therefore whoever is called by
//! threads of programs is [`held`] where such a call is possible, and waits for long only in [`read`] and [`wait_readable`], called from
//! frames that have nothing to drop.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

// "C-unwind": these are what unwinds.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    #[link_name = "poll"]
    fn cancellable_poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    #[link_name = "read"]
    fn cancellable_read(fd: c_int, bytes: *mut c_void, len: usize) -> isize;
}

/// PTHREAD_CANCEL_DISABLE of glibc and musl.
const DISABLE: c_int = 1;

/// While it lives, this thread is not cancelled; a cancellation waits.
#[derive(Debug)]
pub struct Held {
    before: c_int,
    /// Not to be sent: the state is the thread's.
    _thread: PhantomData<*const ()>,
}

/// Puts a cancellation of this thread off until what is returned is dropped. May be nested.
#[must_use]
pub fn held() -> Held {
    Held { before: set(DISABLE), _thread: PhantomData }
}

impl Drop for Held {
    fn drop(&mut self) {
        set(self.before);
    }
}

/// Returns the state before.
fn set(state: c_int) -> c_int {
    let mut old = 0;
    // SAFETY: writes the old state to the int. It unwinds only threads of asynchronous cancelability, which may call nothing else.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// read(2), in which this thread may be cancelled: the callers' frames up to the program's must then have nothing to
/// drop, and no way to catch. How many bytes were read, or the value of errno.
///
/// # Errors
/// As read(2).
#[inline(never)]
pub fn read(fd: c_int, bytes: &mut [u8]) -> Result<usize, c_int> {
    // SAFETY: writes at most the length of `bytes` into it.
    let n = unsafe { cancellable_read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(n).map_err(|_| crate::errno::last())
}

/// Waits until a descriptor is readable, at most so many milliseconds, for ever if negative: whether it is. A thread may be
/// cancelled here as in [`read`].
///
/// # Errors
/// As poll(2), as the value of errno: EINTR when a signal handler ran meanwhile.
#[inline(never)]
pub fn wait_readable(fd: c_int, timeout: c_int) -> Result<bool, c_int> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive during the call.
    match unsafe { cancellable_poll(&raw mut poll, 1, timeout) } {
        ready @ 0.. => Ok(ready > 0),
        _ => Err(crate::errno::last()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_nest_and_end() {
        assert_eq!(set(0), 0);
        {
            let _outer = held();
            {
                let _inner = held();
                assert_eq!(set(DISABLE), DISABLE);
            }
            assert_eq!(set(DISABLE), DISABLE, "the outer one still holds");
        }
        assert_eq!(set(0), 0);
    }

    #[test]
    fn a_read_tells_what_came_and_why_nothing_did() {
        let mut bytes = [0; 8];
        assert_eq!(read(-1, &mut bytes), Err(libc::EBADF));
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(read(std::os::fd::AsRawFd::as_raw_fd(&zero), &mut bytes), Ok(8));
    }
}
