//! Raw access to a program's memory by address, the check whether a range may be accessed at all,
//! and anonymous memory of our own.
//!
//! Registered memory belongs to the program: it may change it, from any thread and without telling
//! us, while a transfer reads or writes it. That is the contract of RDMA, and why nothing here
//! makes a `&[u8]` of such memory: bytes are copied in and out.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The address of a 64-bit atomic operation is not a multiple of eight (IBA 9.4.5: such a request
/// is answered with NAK "invalid request").
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("address {0:#x} of an atomic operation is not a multiple of 8")]
pub struct Misaligned(pub u64);

/// Copies `dst.len()` bytes from the address `src`. A concurrent writer may tear the result.
///
/// # Safety
/// `src .. src + dst.len()` is mapped and readable for the time of the call, and does not overlap
/// `dst`.
pub unsafe fn read(src: u64, dst: &mut [u8]) {
    if dst.is_empty() {
        return;
    }
    // SAFETY: the caller vouches for the source; `dst` is ours and does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst.as_mut_ptr(), dst.len()) }
}

/// Copies `src` to the address `dst`. A concurrent reader may see part of it.
///
/// # Safety
/// `dst .. dst + src.len()` is mapped and writable for the time of the call, does not overlap `src`,
/// and no Rust reference to it is live.
pub unsafe fn write(dst: u64, src: &[u8]) {
    if src.is_empty() {
        return;
    }
    // SAFETY: the caller vouches for the destination; `src` does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst as *mut u8, src.len()) }
}

/// Copies `len` bytes from one address to another; the ranges may overlap.
///
/// # Safety
/// As for [`read`] of `src` and [`write`] of `dst`, except for the overlap.
pub unsafe fn copy(src: u64, dst: u64, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: the caller vouches for both ranges.
    unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, len) }
}

/// Atomically replaces the native-endian u64 at `addr` by `swap` if it equals `compare`; returns
/// the value before, as the AtomicETH's CmpSwap does (IBA 9.4.5). Sequentially consistent, and
/// atomic also towards the program's own CPU atomics.
///
/// # Safety
/// The eight bytes at `addr` are mapped and writable for the time of the call.
pub unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Misaligned> {
    // SAFETY: the caller vouches for the memory.
    let word = unsafe { atomic(addr) }?;
    Ok(word
        .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
        .unwrap_or_else(|actual| actual))
}

/// Atomically adds `add` (wrapping) to the native-endian u64 at `addr`; returns the value before
///. Sequentially consistent, and atomic also towards the program's own CPU atomics.
///
/// # Safety
/// The eight bytes at `addr` are mapped and writable for the time of the call.
pub unsafe fn fetch_add(addr: u64, add: u64) -> Result<u64, Misaligned> {
    // SAFETY: the caller vouches for the memory.
    Ok(unsafe { atomic(addr) }?.fetch_add(add, Ordering::SeqCst))
}

/// # Safety
/// The eight bytes at `addr` are mapped and writable while the reference lives.
unsafe fn atomic<'a>(addr: u64) -> Result<&'a AtomicU64, Misaligned> {
    if addr == 0 || !addr.is_multiple_of(8) {
        return Err(Misaligned(addr));
    }
    // SAFETY: aligned and not null as just checked, mapped by the caller's word.
    Ok(unsafe { AtomicU64::from_ptr(addr as *mut u64) })
}

/// A sequentially consistent fence.
#[inline]
pub fn fence() {
    // What the compiler makes of one takes about twice as long here as any locked instruction, which orders as much
    // (Intel SDM vol. 3, 9.2.3; non-temporal stores, of which there are none here, excepted).
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a word of this stack is changed to what it is; as it may be any memory to the compiler, nothing is moved
    // across.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// The size of a page in bytes.
pub fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    })
}

/// Whether this process may read (and, if `write`, write) all of `addr .. addr + len`.
///
/// The memory itself is not touched: nothing is populated, pinned or faulted in, and the cost is
/// per mapping, not per page, so that a region of many GiB costs what a small one does. It asks the
/// kernel by `PROCMAP_QUERY` (Linux 6.11), before that by parsing `/proc/self/maps`. Without a
/// `/proc`, only whether the range is mapped at all is known (`msync`), and the protection is taken
/// on trust.
///
/// Says nothing about later: the program may unmap at any moment. A mapping longer than its file
/// passes, though its tail faults.
///
/// Errors: EFAULT (the errno of ibv_reg_mr(3) for such a range) when part of it is unmapped or
/// protected; EINVAL when the range wraps around the address space.
pub fn accessible(addr: u64, len: u64, write: bool) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let Some(end) = addr.checked_add(len) else {
        return Err(errno(libc::EINVAL));
    };
    let allowed = match maps::Source::open() {
        Ok(source) => source.allows(addr, end, write)?,
        Err(_) => maps::mapped(addr, end),
    };
    if allowed { Ok(()) } else { Err(errno(libc::EFAULT)) }
}

/// Tells the kernel that the range will be used soon (madvise(2)). `populate` for writing: its pages are made now. A hint:
/// whether it was followed is not said, and nothing else changes.
pub fn will_need(addr: u64, len: u64, populate: bool) {
    let page = page_size() as u64;
    let start = addr / page * page;
    let Ok(len) = usize::try_from(addr.saturating_add(len) - start) else { return };
    let advice = if populate { libc::MADV_POPULATE_WRITE } else { libc::MADV_WILLNEED };
    // SAFETY: neither advice changes what is in memory, nor whether it is mapped; ranges that are not are an error.
    unsafe { libc::madvise(start as *mut libc::c_void, len, advice) };
}

/// The length of a file in bytes; of one without a length that can be told, such as some dma-bufs, where seeking to its end leads.
pub fn file_size(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: fstat writes the structure, for which zeros are valid too.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the structure ours.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if stat.st_size > 0 {
        return Ok(stat.st_size as u64);
    }
    // SAFETY: the descriptor is open. A dma-buf allows exactly this, and has no position that it could change.
    match unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) } {
        end if end >= 0 => Ok(end as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// Copies from an address that may turn out not to be mapped: the kernel copies and reports EFAULT
/// where a load would be a SIGSEGV. About 1.6 us a call.
pub fn read_checked(src: u64, dst: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    let remote = libc::iovec { iov_base: src as *mut libc::c_void, iov_len: dst.len() };
    // SAFETY: `local` is the caller's slice; `remote` is validated by the kernel.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    whole(n, dst.len())
}

/// Copies to an address that may turn out not to be mapped: the kernel copies and reports EFAULT
/// where a store would be a SIGSEGV.
///
/// # Safety
/// Where `dst .. dst + src.len()` is mapped, writing to it breaks nothing: no Rust reference to it
/// is live.
pub unsafe fn write_checked(dst: u64, src: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: src.as_ptr().cast_mut().cast(), iov_len: src.len() };
    let remote = libc::iovec { iov_base: dst as *mut libc::c_void, iov_len: src.len() };
    // SAFETY: `local` is only read; the caller vouches for what is mapped at `dst`, the kernel
    // validates the rest.
    let n = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    whole(n, src.len())
}

fn whole(copied: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(copied) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n == wanted => Ok(()),
        Ok(_) => Err(errno(libc::EFAULT)),
    }
}

/// The kernel's list of this process's mappings.
mod maps {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    /// `struct procmap_query` of linux/fs.h.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        size: u64,
        query_flags: u64,
        query_addr: u64,
        vma_start: u64,
        vma_end: u64,
        vma_flags: u64,
        vma_page_size: u64,
        vma_offset: u64,
        inode: u64,
        dev_major: u32,
        dev_minor: u32,
        vma_name_size: u32,
        build_id_size: u32,
        vma_name_addr: u64,
        build_id_addr: u64,
    }
    const _: () = assert!(size_of::<Query>() == 104);

    /// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: libc::Ioctl = libc::_IOWR::<Query>(b'f' as u32, 17);
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 2;

    /// Opened anew for every question: after a fork, an inherited one would speak of the parent.
    pub(super) struct Source(File);

    impl Source {
        pub(super) fn open() -> io::Result<Source> {
            File::open("/proc/self/maps").map(Source)
        }

        pub(super) fn allows(mut self, addr: u64, end: u64, write: bool) -> io::Result<bool> {
            match self.query(addr, end, write) {
                Some(allowed) => Ok(allowed),
                None => {
                    let mut text = Vec::new();
                    self.0.read_to_end(&mut text)?;
                    Ok(covered(&String::from_utf8_lossy(&text), addr, end, write))
                }
            }
        }

        /// None: this kernel does not know the question.
        fn query(&self, addr: u64, end: u64, write: bool) -> Option<bool> {
            let need = READABLE | if write { WRITABLE } else { 0 };
            let mut at = addr;
            while at < end {
                let mut query =
                    Query { size: size_of::<Query>() as u64, query_addr: at, ..Query::default() };
                // SAFETY: the argument is a live, correctly sized procmap_query that asks for no
                // name and no build id.
                let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, &mut query) };
                if ret < 0 {
                    return match io::Error::last_os_error().raw_os_error() {
                        Some(libc::ENOENT) => Some(false),
                        Some(libc::EINTR) => continue,
                        _ => None,
                    };
                }
                if query.vma_flags & need != need {
                    return Some(false);
                }
                if query.vma_end <= at {
                    return None;
                }
                at = query.vma_end;
            }
            Some(true)
        }
    }

    /// The same question answered from the text of /proc/self/maps (proc_pid_maps(5)).
    pub(super) fn covered(text: &str, addr: u64, end: u64, write: bool) -> bool {
        let mut at = addr;
        for line in text.lines() {
            let Some((low, high, protection)) = parse(line) else { continue };
            if high <= at {
                continue;
            }
            let allowed =
                protection.starts_with('r') && (!write || protection[1..].starts_with('w'));
            if low > at || !allowed {
                return false;
            }
            at = high;
            if at >= end {
                return true;
            }
        }
        false
    }

    fn parse(line: &str) -> Option<(u64, u64, &str)> {
        let (range, rest) = line.split_once(' ')?;
        let (low, high) = range.split_once('-')?;
        Some((u64::from_str_radix(low, 16).ok()?, u64::from_str_radix(high, 16).ok()?, rest))
    }

    /// Whether the range is mapped, whatever its protection.
    pub(super) fn mapped(addr: u64, end: u64) -> bool {
        let start = addr - addr % page_size() as u64;
        // SAFETY: MS_ASYNC walks the mappings and starts nothing (msync(2), NOTES).
        unsafe {
            libc::msync(start as *mut libc::c_void, (end - start) as usize, libc::MS_ASYNC) == 0
        }
    }
}

/// Page-aligned memory of our own; unmapped on drop. Unless it is of a file it is zeroed and private,
/// and children of a fork inherit it copy-on-write, as they do any memory.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Mapping is an address range; access to it goes through the raw functions of this
// module, whose callers answer for races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, rounded up to whole pages (at least one). Nothing is populated.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::map(len, flags, -1, true)
    }

    fn map(len: usize, flags: libc::c_int, fd: RawFd, write: bool) -> io::Result<Mapping> {
        let page = page_size();
        let len = len.max(1).checked_next_multiple_of(page).ok_or_else(|| errno(libc::ENOMEM))?;
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| errno(libc::ENOMEM))?;
        Ok(Mapping { base, len })
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped; a multiple of the page size, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Maps the first `len` bytes of a file, rounded up to whole pages (at least one), shared with
    /// whoever has the file: what is written goes there, and what lies beyond its end is a SIGBUS.
    pub fn of_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        Mapping::of_file_for(file, len, true)
    }

    /// The same, for reading, or for both.
    pub fn of_file_for(file: BorrowedFd<'_>, len: usize, write: bool) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED, file.as_raw_fd(), write)
    }

    /// Takes rights away from the whole mapping, or gives them back: the tests' way to make memory
    /// that cannot be written or accessed.
    pub fn protect(&self, read: bool, write: bool) -> io::Result<()> {
        self.protect_from(0, read, write)
    }

    /// As [`Mapping::protect`], from byte `offset` on, rounded up to a whole page.
    pub fn protect_from(&self, offset: usize, read: bool, write: bool) -> io::Result<()> {
        let protection =
            if read { libc::PROT_READ } else { 0 } | if write { libc::PROT_WRITE } else { 0 };
        let offset = offset.checked_next_multiple_of(page_size()).unwrap_or(self.len).min(self.len);
        let start = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: the range is ours; who accesses it against its protection gets the signal asked for.
        match unsafe { libc::mprotect(start.cast(), self.len - offset, protection) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `anonymous`, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    fn refused(addr: u64, len: u64, write: bool) -> Option<i32> {
        accessible(addr, len, write).err().and_then(|e| e.raw_os_error())
    }

    #[test]
    fn a_range_is_accessible_as_far_as_it_is_mapped() {
        let map = Mapping::anonymous(3 * page_size()).unwrap();
        let page = page_size() as u64;
        assert_eq!(refused(map.addr(), map.len() as u64, true), None);
        assert_eq!(refused(map.addr() + 5, map.len() as u64 - 5, true), None);
        // SAFETY: the middle page is ours and unused; it is mapped again by nobody.
        unsafe { libc::munmap((map.addr() + page) as *mut _, page as usize) };
        assert_eq!(refused(map.addr(), page, true), None);
        assert_eq!(refused(map.addr(), page + 1, false), Some(libc::EFAULT));
        assert_eq!(refused(map.addr() + page, 1, false), Some(libc::EFAULT));
        assert_eq!(refused(map.addr() + 2 * page, page, true), None);
        assert_eq!(refused(8, 1, false), Some(libc::EFAULT));
        assert_eq!(refused(u64::MAX - 3, 8, false), Some(libc::EINVAL));
        assert_eq!(refused(8, 0, true), None);
    }

    #[test]
    fn protection_counts() {
        let map = Mapping::anonymous(1).unwrap();
        map.protect(true, false).unwrap();
        assert_eq!(refused(map.addr(), 1, false), None);
        assert_eq!(refused(map.addr(), 1, true), Some(libc::EFAULT));
        map.protect(false, false).unwrap();
        assert_eq!(refused(map.addr(), 1, false), Some(libc::EFAULT));
    }

    #[test]
    fn the_check_populates_nothing() {
        let map = Mapping::anonymous(64 * GIB).unwrap();
        assert_eq!(refused(map.addr(), map.len() as u64, true), None);
        let mut resident = vec![1u8; GIB / page_size()];
        // SAFETY: the vector has a byte for every page asked for.
        let ret = unsafe { libc::mincore(map.as_ptr().cast(), GIB, resident.as_mut_ptr()) };
        assert_eq!(ret, 0);
        assert!(resident.iter().all(|&page| page & 1 == 0));
    }

    #[test]
    fn the_text_form_answers_as_the_query_does() {
        let text = "1000-3000 r--p 00000000 00:00 0\n3000-4000 rw-p 00000000 00:00 0 [heap]\n\
                    5000-6000 ---p 00000000 00:00 0\n6000-7000 rw-s 00000000 00:01 9 /memfd:x (deleted)\n";
        assert!(maps::covered(text, 0x1000, 0x4000, false));
        assert!(!maps::covered(text, 0x1000, 0x4000, true));
        assert!(maps::covered(text, 0x3001, 0x4000, true));
        assert!(!maps::covered(text, 0x3000, 0x4001, true));
        assert!(!maps::covered(text, 0x5000, 0x5001, false));
        assert!(maps::covered(text, 0x6000, 0x6001, true));
        assert!(!maps::covered(text, 0x7000, 0x7001, false));
        assert!(!maps::covered("", 0, 1, false));
        let map = Mapping::anonymous(1).unwrap();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps::covered(&text, map.addr(), map.addr() + 1, true));
        assert!(maps::mapped(map.addr(), map.addr() + 1));
        assert!(!maps::mapped(8, 9));
    }

    #[test]
    fn bytes_and_atomics_by_address() {
        let map = Mapping::anonymous(64).unwrap();
        let mut out = [0u8; 5];
        // SAFETY: all addresses lie in the mapping.
        unsafe {
            write(map.addr() + 3, b"hello");
            read(map.addr() + 3, &mut out);
            assert_eq!(&out, b"hello");
            copy(map.addr() + 3, map.addr() + 4, 5);
            read(map.addr() + 4, &mut out);
            assert_eq!(&out, b"hello");
            assert_eq!(fetch_add(map.addr() + 16, 7), Ok(0));
            assert_eq!(compare_swap(map.addr() + 16, 6, 1), Ok(7));
            assert_eq!(compare_swap(map.addr() + 16, 7, 1), Ok(7));
            assert_eq!(fetch_add(map.addr() + 16, u64::MAX), Ok(1));
            assert_eq!(fetch_add(map.addr() + 16, 0), Ok(0));
            assert_eq!(fetch_add(map.addr() + 17, 0), Err(Misaligned(map.addr() + 17)));
            assert_eq!(compare_swap(0, 0, 0), Err(Misaligned(0)));
            // An empty slice has any address.
            read(0, &mut []);
            write(0, &[]);
        }
    }

    #[test]
    fn checked_copies_report_instead_of_faulting() {
        let map = Mapping::anonymous(2 * page_size()).unwrap();
        let mut out = [0u8; 8];
        // SAFETY: the range is ours.
        unsafe { write_checked(map.addr(), b"12345678") }.unwrap();
        read_checked(map.addr(), &mut out).unwrap();
        assert_eq!(&out, b"12345678");
        map.protect(true, false).unwrap();
        // SAFETY: as above.
        let error = unsafe { write_checked(map.addr(), b"12345678") }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(read_checked(8, &mut out).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
}
