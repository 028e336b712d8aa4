//! Copies by the kernel, which reports what is not there.

use std::io;

/// Copies between ranges that do not overlap. False: part of it is not there.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy(dst: u64, src: u64, len: usize) -> bool {
    // SAFETY: passed on.
    unsafe { try_copy(dst, src, len) }.is_ok_and(|copied| copied == len)
}

/// # Safety
/// As [`super::copy`].
unsafe fn try_copy(dst: u64, src: u64, len: usize) -> io::Result<usize> {
    let mut done = 0;
    // One call moves at most 2 GiB.
    while done < len {
        let at = |base: u64| libc::iovec {
            iov_base: base.wrapping_add(done as u64) as *mut libc::c_void,
            iov_len: len - done,
        };
        let (from, to) = (at(src), at(dst));
        // SAFETY: the kernel validates both ranges; the caller vouches for what is at `dst`.
        let n = unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) };
        match usize::try_from(n) {
            Err(_) => return Err(io::Error::last_os_error()),
            Ok(0) => break,
            Ok(n) => done += n,
        }
    }
    Ok(done)
}

/// Whether the kernel does this for us: a sandbox may forbid it.
pub(super) fn is_allowed() -> io::Result<()> {
    let (from, mut to) = ([1u8; 8], [0u8; 8]);
    // SAFETY: two arrays of our own.
    unsafe { try_copy(to.as_mut_ptr() as u64, from.as_ptr() as u64, 8) }.map(drop)
}

/// Whether the eight bytes at `addr` can be written, as far as the kernel tells: the mapping's rights
/// are looked up, then a byte of it read.
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
pub(super) fn is_writable(addr: u64) -> bool {
    let mut byte = [0u8; 8];
    // SAFETY: reads into an array of our own.
    let there = unsafe { copy(byte.as_mut_ptr() as u64, addr, byte.len()) };
    there && crate::mem::accessible(addr, 8, true).is_ok()
}
