//! Memory shared between processes: sealed memfds, their mappings, and checked views of words.
//!
//! A mapped word is only ever an atomic: another process may change it at any moment. Read it once,
//! check the value, and go on with the value.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::process::{check, owned};

/// A memfd whose size is sealed: whoever maps it can rely on every byte being there, so that an
/// access is never a SIGBUS.
#[derive(Debug)]
pub struct Memfd(OwnedFd);

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Memfd {
    /// A zeroed one of `size` bytes. The name shows in /proc/PID/fd and /proc/PID/maps.
    ///
    /// # Errors
    /// As memfd_create(2) and ftruncate(2). FileTooLarge: it would be larger than a file may be
    /// (RLIMIT_FSIZE, `ulimit -f`).
    pub fn create(name: &CStr, size: usize) -> io::Result<Memfd> {
        let memfd = Memfd::unsealed(name, size)?;
        memfd.seal(SEALS)?;
        Ok(memfd)
    }

    fn unsealed(name: &CStr, size: usize) -> io::Result<Memfd> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a NUL-terminated name; a success returns a new descriptor.
        let make = |flags| unsafe { owned(libc::memfd_create(name.as_ptr(), flags)) };
        // Where vm.memfd_noexec is 2, only those that give up execution are allowed; before Linux
        // 6.3 the flag does not exist.
        let fd = match make(flags | libc::MFD_NOEXEC_SEAL) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => make(flags),
            result => result,
        }?;
        let file = File::from(fd);
        without_size_signal(|| file.set_len(size as u64))
            .map_err(|error| beyond_limit(error, size))?;
        Ok(Memfd(file.into()))
    }

    fn seal(&self, seals: i32) -> io::Result<()> {
        // SAFETY: no pointers.
        check(unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
    }

    /// A zeroed one of `size` bytes that only this process can write, by the mapping that comes with
    /// it: whoever else opens or maps it can but read (F_SEAL_FUTURE_WRITE, Linux 5.1).
    ///
    /// # Errors
    /// As memfd_create(2), ftruncate(2), mmap(2) and fcntl(2): EINVAL where the kernel is older.
    pub fn create_owned(name: &CStr, size: usize) -> io::Result<(Memfd, Shared)> {
        let memfd = Memfd::unsealed(name, size)?;
        let memory = Shared::map(&memfd, size, true)?;
        memfd.seal(SEALS | libc::F_SEAL_FUTURE_WRITE)?;
        Ok((memfd, memory))
    }

    /// Takes a memfd that another process sent.
    ///
    /// # Errors
    /// InvalidData when it is not sealed against shrinking; otherwise as fcntl(2).
    pub fn received(fd: OwnedFd) -> io::Result<Memfd> {
        // SAFETY: no pointers.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Memfd(fd))
    }

    /// Gives the memory of whole pages back: they read as zeroes, for everybody who has them mapped.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        check(unsafe { libc::fallocate(self.0.as_raw_fd(), mode, offset as _, len as _) }).map(drop)
    }

    /// Its size in bytes.
    pub fn size(&self) -> io::Result<u64> {
        Ok(File::from(self.0.try_clone()?).metadata()?.len())
    }

    /// Reads up to `to.len()` bytes at `offset` without mapping them: what was never written costs no
    /// memory, and reads as zero. Whoever writes meanwhile may be seen in part, word by word. Returns
    /// how many bytes there were.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let at = offset_of(offset)?;
        // SAFETY: the buffer is as long as the call is told.
        let read = unsafe { libc::pread(self.0.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), at) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// From where on, at `offset` or behind it, there is something that was written; None: nothing.
    ///
    /// # Errors
    /// As lseek(2).
    pub fn next_written(&self, offset: u64) -> io::Result<Option<u64>> {
        // SAFETY: no pointers; the position of the descriptor means nothing to anybody.
        let found = unsafe { libc::lseek(self.0.as_raw_fd(), offset_of(offset)?, libc::SEEK_DATA) };
        match u64::try_from(found) {
            Ok(at) => Ok(Some(at)),
            Err(_) => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Makes `len` bytes at `offset` zero and gives their memory back.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, len) = (offset_of(offset)?, offset_of(len)?);
        // SAFETY: no pointers. Mappings of the range read zeros from then on.
        check(unsafe { libc::fallocate(self.0.as_raw_fd(), mode, at, len) }).map(drop)
    }
}

/// Runs `f` in which the kernel may send this thread SIGXFSZ, which ends a program that does not
/// handle it; takes the signal back.
fn without_size_signal<T>(f: impl FnOnce() -> T) -> T {
    let (mut set, mut before, mut pending) =
        (MaybeUninit::zeroed(), MaybeUninit::zeroed(), MaybeUninit::zeroed());
    // SAFETY: all zero is an empty set, and each call has room for what it gives.
    unsafe {
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        let blocked =
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) == 0;
        libc::sigpending(pending.as_mut_ptr());
        let theirs = libc::sigismember(pending.as_ptr(), libc::SIGXFSZ) == 1;
        let value = f();
        if blocked {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // What was pending before is the program's, and stays.
            while !theirs
                && libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &at_once) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
        value
    }
}

fn beyond_limit(error: io::Error, size: usize) -> io::Error {
    if error.raw_os_error() != Some(libc::EFBIG) {
        return error;
    }
    let text = format!(
        "{size} bytes of shared memory are more than a file may have here (RLIMIT_FSIZE, ulimit -f)"
    );
    io::Error::new(io::ErrorKind::FileTooLarge, text)
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Memfd> for OwnedFd {
    fn from(memfd: Memfd) -> OwnedFd {
        memfd.0
    }
}

fn offset_of(bytes: u64) -> io::Result<libc::off_t> {
    bytes.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// A part of a memfd, mapped.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the memory is only handed out as atomics and by address.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the first `len` bytes.
    ///
    /// # Errors
    /// InvalidData when the memfd is smaller; otherwise as mmap(2).
    pub fn map(memfd: &Memfd, len: usize, writable: bool) -> io::Result<Shared> {
        Shared::map_at(memfd, 0, len, writable)
    }

    /// Maps `len` bytes from `offset` on, which is a multiple of the page size.
    ///
    /// # Errors
    /// As [`Shared::map`].
    pub fn map_at(memfd: &Memfd, offset: u64, len: usize, writable: bool) -> io::Result<Shared> {
        let end = offset.checked_add(len as u64);
        let size = memfd.size()?;
        if len == 0 || end.is_none_or(|end| size < end) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let offset = offset_of(offset)?;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that cannot shrink
        // below it.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                memfd.as_fd().as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Shared { base, len, writable })
    }

    /// Bytes mapped; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Leaves it out of core dumps.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn keep_out_of_dumps(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's; nothing in it changes.
        check(unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTDUMP) })
            .map(drop)
    }

    /// Whether the mapping may be written.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The u32 at byte `offset`; None if it is misaligned or out of bounds, or the mapping is
    /// read-only (see [`Shared::load_u32`]).
    pub fn u32(&self, offset: usize) -> Option<&AtomicU32> {
        let word = self.place(offset, size_of::<u32>())?;
        // SAFETY: aligned, in bounds, writable, mapped as long as `self` lives, and accessed as an
        // atomic only.
        self.writable.then(|| unsafe { word.cast::<AtomicU32>().as_ref() })
    }

    /// The u64 at byte `offset`; None as for [`Shared::u32`].
    pub fn u64(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.place(offset, size_of::<u64>())?;
        // SAFETY: as in `u32`.
        self.writable.then(|| unsafe { word.cast::<AtomicU64>().as_ref() })
    }

    /// The value of the u32 at byte `offset`; None if it is misaligned or out of bounds.
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Option<u32> {
        let word = self.place(offset, size_of::<u32>())?;
        // SAFETY: as in `u32`; a load does not write, so a read-only mapping serves.
        Some(unsafe { word.cast::<AtomicU32>().as_ref() }.load(order))
    }

    /// The value of the u64 at byte `offset`; None if it is misaligned or out of bounds.
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Option<u64> {
        let word = self.place(offset, size_of::<u64>())?;
        // SAFETY: as in `load_u32`.
        Some(unsafe { word.cast::<AtomicU64>().as_ref() }.load(order))
    }

    /// The address of `size` bytes at `offset` that is a multiple of `size`.
    pub(crate) fn place(&self, offset: usize, size: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(size)?;
        if end > self.len || !offset.is_multiple_of(size) {
            return None;
        }
        // SAFETY: in bounds, as just checked.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped once.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_one_memory() {
        let memfd = Memfd::create(c"test", 100).unwrap();
        let here = Shared::map(&memfd, 100, true).unwrap();
        let there = Shared::map(&memfd, 64, false).unwrap();
        here.u32(8).unwrap().store(7, Ordering::Release);
        here.u64(16).unwrap().store(8, Ordering::Release);
        assert_eq!(there.load_u32(8, Ordering::Acquire), Some(7));
        assert_eq!(there.load_u64(16, Ordering::Acquire), Some(8));
        assert!(there.u32(8).is_none() && there.u64(16).is_none());
    }

    #[test]
    fn an_owned_one_is_written_by_its_owner_only() {
        let (memfd, here) = Memfd::create_owned(c"test", 4096).unwrap();
        let there = Shared::map(&memfd, 4096, false).unwrap();
        here.u64(8).unwrap().store(7, Ordering::Release);
        assert_eq!(there.load_u64(8, Ordering::Acquire), Some(7));
        let again = memfd.as_fd().as_raw_fd() as u32;
        for write in [false, true] {
            let fd = crate::process::open_descriptor(crate::process::pid(), again, write).unwrap();
            let other = Memfd::received(fd).unwrap();
            assert!(Shared::map(&other, 4096, true).is_err());
            assert!(io::Write::write(&mut File::from(other.0), &[1]).is_err());
        }
        // SAFETY: the range is the test's, which does not write it.
        let code = unsafe { libc::mprotect(there.as_ptr().cast(), 4096, libc::PROT_WRITE) };
        assert_eq!(code, -1);
    }

    #[test]
    fn views_stay_inside_and_aligned() {
        let memfd = Memfd::create(c"test", 64).unwrap();
        let map = Shared::map(&memfd, 64, true).unwrap();
        assert!(map.u32(60).is_some() && map.u64(56).is_some());
        for offset in [61, 62, 64, 1, usize::MAX, usize::MAX - 3] {
            assert!(map.u32(offset).is_none(), "{offset}");
            assert!(map.load_u64(offset, Ordering::Relaxed).is_none(), "{offset}");
        }
        assert!(map.u64(60).is_none());
    }

    #[test]
    fn what_is_written_is_found_read_and_cleared_without_a_mapping() {
        const SIZE: usize = 64 << 20;
        let memfd = Memfd::create(c"test", SIZE).unwrap();
        assert_eq!(memfd.next_written(0).unwrap(), None);
        let at = 32 << 20;
        let part = Shared::map_at(&memfd, at, 8192, true).unwrap();
        part.u64(4096).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(memfd.next_written(0).unwrap(), Some(at + 4096));
        assert_eq!(memfd.next_written(at + 8192).unwrap(), None);
        let mut word = [1; 8];
        assert_eq!(memfd.read_at(at + 4096, &mut word).unwrap(), 8);
        assert_eq!(word, 7u64.to_ne_bytes());
        assert_eq!(memfd.read_at(0, &mut word).unwrap(), 8);
        assert_eq!(word, [0; 8]);
        assert_eq!(memfd.read_at(SIZE as u64 - 4, &mut word).unwrap(), 4);
        memfd.clear(at, 8192).unwrap();
        assert_eq!(part.load_u64(4096, Ordering::Relaxed), Some(0));
        // The load has made a page; nothing else is there.
        assert_eq!(memfd.next_written(at + 8192).unwrap(), None);
        for (offset, len) in [(SIZE as u64, 1), (u64::MAX, 1), (0, 0), (SIZE as u64 - 4096, 4097)] {
            assert!(Shared::map_at(&memfd, offset, len, true).is_err());
        }
        assert!(Shared::map_at(&memfd, 1, 1, true).is_err());
    }

    #[test]
    fn the_size_is_fixed_and_checked() {
        let memfd = Memfd::create(c"test", 4096).unwrap();
        assert_eq!(memfd.size().unwrap(), 4096);
        let file = File::from(memfd.as_fd().try_clone_to_owned().unwrap());
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        assert!(Shared::map(&memfd, 4097, true).is_err());
        assert!(Memfd::received(file.into()).is_ok());
        let unsealed = File::open("/dev/null").unwrap();
        assert!(Memfd::received(unsealed.into()).is_err());
    }
}
