//! The memory of another process, to and from which the kernel copies (process_vm_readv(2)).

use std::io;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Mapping;
    use crate::process;

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
