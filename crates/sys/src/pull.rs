//! Fetching from another process's memory (process_vm_readv(2)).

use std::io;

/// Bytes of a process's memory: address and length.
pub type Span = (u64, usize);

/// Spans that one call fetches from, at most.
pub const SPANS: usize = 7;

/// Copies `from`, in memory of the process `pid`, to `to` in ours. What `to` lies in may be unmapped.
///
/// # Errors
/// As process_vm_readv(2): EPERM where ptrace(2) of that process would not be allowed, EFAULT also where a part of either
/// side is not mapped; ESRCH. InvalidInput for more than [`SPANS`] spans, or ones that are not as long as `to`.
///
/// # Safety
/// What is mapped of `to` is memory that may change: no Rust reference to it is live.
pub unsafe fn pull(pid: u32, from: &[Span], to: Span) -> io::Result<()> {
    let mut remote = [vector((0, 0)); SPANS + 1];
    let total = list(from, &mut remote)?;
    if total != to.1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the caller vouches for `to`.
    unsafe { read(pid, &[vector(to)], remote.get(..from.len()).unwrap_or_default(), total) }
}

/// The same, and after that reads the u64 at `word` there, which it gives. All is of one process and of one program in it:
/// had the process died or started another program meanwhile, the call would fail, or all of it be of that other.
///
/// # Errors
/// As [`pull`].
///
/// # Safety
/// As [`pull`].
pub unsafe fn pull_and_read(pid: u32, from: &[Span], to: Span, word: u64) -> io::Result<u64> {
    let mut value = 0u64;
    let mut remote = [vector((0, 0)); SPANS + 1];
    let total = list(from, &mut remote)?;
    let Some(place) = remote.get_mut(from.len()).filter(|_| total == to.1) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    *place = vector((word, 8));
    let local = [vector(to), vector((&raw mut value as u64, 8))];
    // SAFETY: the caller vouches for `to`, and `value` is ours.
    unsafe { read(pid, &local, remote.get(..=from.len()).unwrap_or_default(), total + 8)? };
    Ok(value)
}

fn vector((addr, len): Span) -> libc::iovec {
    libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len }
}

/// Puts spans into a list that has room for one more, and gives their length.
fn list(from: &[Span], remote: &mut [libc::iovec; SPANS + 1]) -> io::Result<usize> {
    if from.len() > SPANS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, &span) in remote.iter_mut().zip(from) {
        *place = vector(span);
    }
    Ok(from.iter().map(|span| span.1).sum())
}

/// # Safety
/// What is mapped of `local` is memory that may change.
unsafe fn read(
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
    total: usize,
) -> io::Result<()> {
    let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    // SAFETY: the kernel validates both sides; what it writes is what the caller vouches for.
    let n = unsafe {
        let pid = pid as libc::pid_t;
        libc::process_vm_readv(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
    };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n == total => Ok(()),
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
        let read =
            unsafe { pull_and_read(std::process::id(), &spans, target, &raw const word as u64) };
        assert_eq!((read.unwrap(), to), (77, [4, 5, 6, 1, 2]));
        // SAFETY: as above; nothing is at the addresses named otherwise.
        unsafe {
            let short = (target.0, 4);
            assert!(pull_and_read(std::process::id(), &spans, short, at(0)).is_err());
            assert!(pull_and_read(std::process::id(), &[(8, 5)], target, at(0)).is_err());
            assert!(pull_and_read(std::process::id(), &[(at(0), 5)], (8, 5), at(0)).is_err());
            assert!(pull_and_read(std::process::id(), &[(at(0), 5)], target, 8).is_err());
            assert!(pull_and_read(u32::MAX >> 1, &[(at(0), 5)], target, at(0)).is_err());
            assert!(pull(std::process::id(), &spans, short).is_err());
            assert!(pull(std::process::id(), &[(8, 5)], target).is_err());
            to = [0; 5];
            assert!(pull(std::process::id(), &spans, target).is_ok());
            assert_eq!(to, [4, 5, 6, 1, 2]);
        }
    }
}
