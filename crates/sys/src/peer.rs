//! Memory that another process uses: copied to and from it by the kernel (process_vm_readv(2)), or
//! mapped here, too.
//!
//! Who is at the other end may look at any byte at any time, and often does nothing but wait for the
//! last one. So what is put there is put in ascending order, the last word or byte by one store
//! after all the others.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A range of this process's memory, as the kernel wants it.
#[derive(Copy, Clone, Debug)]
#[repr(transparent)]
pub struct Range(libc::iovec);

impl Range {
    /// A range of no bytes.
    pub const EMPTY: Range = Range::new(0, 0);

    /// `len` bytes at `addr`.
    pub const fn new(addr: u64, len: usize) -> Range {
        Range(libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len })
    }
}

/// Copies `len` bytes from `local`, in order, to `addr` in the process `pid`. How many were copied:
/// fewer where memory is not there, or may not be written.
///
/// # Errors
/// As process_vm_writev(2): EPERM where ptrace(2) of that process would not be allowed, EFAULT when
/// the first byte could not be copied.
///
/// # Safety
/// If the process is this one, what is written breaks nothing: no Rust reference to it is live.
pub unsafe fn write(pid: u32, local: &[Range], addr: u64, len: usize) -> io::Result<usize> {
    let remote = Range::new(addr, len);
    // SAFETY: the kernel validates the local ranges, which it only reads, and what is named of the
    // other process; `Range` is an iovec.
    let copied = unsafe {
        let local_len = local.len() as libc::c_ulong;
        libc::process_vm_writev(pid as _, local.as_ptr().cast(), local_len, &remote.0, 1, 0)
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Copies `len` bytes at `addr` in the process `pid` to `local`, in order. How many: as for [`write`].
///
/// # Errors
/// As process_vm_readv(2); see [`write`].
///
/// # Safety
/// As far as the local ranges are mapped and writable, writing to them breaks nothing.
pub unsafe fn read(pid: u32, local: &[Range], addr: u64, len: usize) -> io::Result<usize> {
    let remote = Range::new(addr, len);
    // SAFETY: the kernel validates the ranges; what it writes the caller vouches for.
    let copied = unsafe {
        let local_len = local.len() as libc::c_ulong;
        libc::process_vm_readv(pid as _, local.as_ptr().cast(), local_len, &remote.0, 1, 0)
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Copies `len` bytes from `src` to `dst`, which others watch: the last byte is seen last, and with
/// it all that was stored before. 1, 2, 4 and 8 bytes to an address that is a multiple of their
/// number are one store. The ranges may overlap.
///
/// # Safety
/// Both ranges are mapped, `src` readable and `dst` writable, for the time of the call, and no Rust
/// reference to `dst` is live.
#[inline]
pub unsafe fn put(src: u64, dst: u64, len: usize) {
    let end = dst.wrapping_add(len as u64);
    let last = match len {
        0 => return,
        1 | 2 | 4 | 8 if dst.is_multiple_of(len as u64) => len,
        9.. if end.is_multiple_of(8) => 8,
        _ => 1,
    };
    let head = len - last;
    let (from, to) = (src.wrapping_add(head as u64), dst.wrapping_add(head as u64));
    macro_rules! last {
        ($word:ty, $atomic:ty) => {{
            // SAFETY: within the ranges that the caller vouches for; `to` is a multiple of the
            // word's size. The word is read before the head is written, which may overlap it.
            unsafe {
                let value = (from as *const $word).read_unaligned();
                if head > 0 {
                    std::ptr::copy(src as *const u8, dst as *mut u8, head);
                }
                // SYNC POINT: with whoever waits for the last word or byte.
                <$atomic>::from_ptr(to as *mut $word).store(value, Ordering::Release);
            }
        }};
    }
    match last {
        8 => last!(u64, AtomicU64),
        4 => last!(u32, AtomicU32),
        2 => last!(u16, AtomicU16),
        _ => last!(u8, AtomicU8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Mapping;
    use crate::process;

    #[test]
    fn put_copies_every_length_at_every_alignment() {
        let source: Vec<u8> = (0..600u32).map(|n| (n * 7) as u8).collect();
        for len in (0..80).chain([255, 256, 257, 511]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (8, 16), (7, 4), (0, 2)] {
                let mut target = vec![0xee; 600];
                let (src, dst) = (source.as_ptr() as u64 + from, target.as_mut_ptr() as u64 + to);
                // SAFETY: both are longer than any offset and length here.
                unsafe { put(src, dst, len) };
                let (from, to) = (from as usize, to as usize);
                assert_eq!(target[to..to + len], source[from..from + len], "{len} {from} {to}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn put_moves_what_overlaps() {
        for (from, to) in [(0, 3), (3, 0), (0, 16), (16, 0), (5, 5)] {
            let mut bytes: Vec<u8> = (0..200).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + 100, to);
            let base = bytes.as_mut_ptr() as u64;
            // SAFETY: within the vector.
            unsafe { put(base + from as u64, base + to as u64, 100) };
            assert_eq!(bytes, expected, "{from} {to}");
        }
    }

    #[test]
    fn the_kernel_gathers_scatters_and_says_how_far_it_came() {
        let map = Mapping::anonymous(2 * crate::mem::page_size()).unwrap();
        let page = crate::mem::page_size();
        let (pid, a, b) = (process::pid(), [1u8; 10], [2u8; 6]);
        let ranges = [Range::new(a.as_ptr() as u64, 10), Range::new(b.as_ptr() as u64, 6)];
        // SAFETY: the mapping is ours, and nobody refers to it.
        let copied = unsafe { write(pid, &ranges, map.addr() + 3, 16) };
        assert_eq!(copied.unwrap(), 16);
        let (mut c, mut d) = ([0u8; 4], [0u8; 12]);
        let ranges = [Range::new(c.as_mut_ptr() as u64, 4), Range::new(d.as_mut_ptr() as u64, 12)];
        // SAFETY: the arrays are ours.
        assert_eq!(unsafe { read(pid, &ranges, map.addr() + 3, 16) }.unwrap(), 16);
        assert_eq!((c, d), ([1; 4], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]));
        map.protect(true, false).unwrap();
        // SAFETY: it cannot be written.
        let error = unsafe { write(pid, &ranges, map.addr(), 16) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // SAFETY: the second page is ours and unused.
        unsafe { libc::munmap((map.addr() + page as u64) as *mut _, page) };
        let mut all = vec![0u8; 2 * page];
        let ranges = [Range::new(all.as_mut_ptr() as u64, 2 * page)];
        // SAFETY: the vector is ours.
        assert_eq!(unsafe { read(pid, &ranges, map.addr(), 2 * page) }.unwrap(), page);
    }
}
