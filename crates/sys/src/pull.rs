//! Fetching from another process's memory (process_vm_readv(2)).

use std::io;

/// Bytes of a process's memory: address and length.
pub type Span = (u64, usize);

/// Spans that one call fetches from, at most.
pub const SPANS: usize = 7;

/// Copies `from`, in memory of the process `pid`, to `to` in ours, and after that reads the u64 at `word` there, which it
/// gives. All is of one process and of one program in it: had the process died or started another program meanwhile, the
/// call would fail, or all of it be of that other. What `to` lies in may be unmapped.
///
/// # Errors
/// As process_vm_readv(2): EPERM where ptrace(2) of that process would not be allowed, EFAULT also where a part of either
/// side is not mapped; ESRCH. InvalidInput for more than [`SPANS`] spans, or ones that are not as long as `to`.
///
/// # Safety
/// What is mapped of `to` is memory that may change: no Rust reference to it is live.
pub unsafe fn pull(pid: u32, from: &[Span], to: Span, word: u64) -> io::Result<u64> {
    let total: usize = from.iter().map(|span| span.1).sum();
    if from.len() > SPANS || total != to.1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let vector =
        |(addr, len): Span| libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len };
    let mut value = 0u64;
    let local = [vector(to), vector((&raw mut value as u64, 8))];
    let mut remote = [vector((0, 0)); SPANS + 1];
    for (place, &span) in remote.iter_mut().zip(from.iter().chain(&[(word, 8)])) {
        *place = vector(span);
    }
    let count = from.len() as libc::c_ulong + 1;
    // SAFETY: the kernel validates both sides; what it writes is `value` and what the caller vouches for.
    let n = unsafe {
        libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), count, 0)
    };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n == total + 8 => Ok(value),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_together_and_the_word_is_read() {
        let (from, word) = ([1u8, 2, 3, 4, 5, 6], 77u64);
        let mut to = [0u8; 5];
        let at = |index: usize| from.as_ptr() as u64 + index as u64;
        let (spans, target) = ([(at(3), 3), (at(0), 2)], (to.as_mut_ptr() as u64, 5));
        // SAFETY: arrays of this function.
        let read = unsafe { pull(std::process::id(), &spans, target, &raw const word as u64) };
        assert_eq!((read.unwrap(), to), (77, [4, 5, 6, 1, 2]));
        // SAFETY: as above; nothing is at the addresses named otherwise.
        unsafe {
            let short = (target.0, 4);
            assert!(pull(std::process::id(), &spans, short, at(0)).is_err());
            assert!(pull(std::process::id(), &[(8, 5)], target, at(0)).is_err());
            assert!(pull(std::process::id(), &[(at(0), 5)], (8, 5), at(0)).is_err());
            assert!(pull(std::process::id(), &[(at(0), 5)], target, 8).is_err());
            assert!(pull(u32::MAX >> 1, &[(at(0), 5)], target, at(0)).is_err());
        }
    }
}
