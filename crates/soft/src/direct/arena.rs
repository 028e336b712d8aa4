//! Memory that this process allocates for regions and that peers on this host can map: a WRITE into it is a
//! store, and atomics are those of the processor.
//!
//! There is one arena in a process, a sparse memfd: a page costs memory once it is touched, and no more when it is given
//! back. Peers find it by what their table says (see [`super::table`]), as far as the kernel lets them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use ironverbs_sys::mem::{self, Mapping};
use ironverbs_sys::process::{ClosedOnFork, ForkGuard};
use ironverbs_sys::shm::{Memfd, Shared};
use parking_lot::Mutex;

/// Bytes of the arena; fewer where the process may not have as many addresses or as long a file.
const LARGEST: usize = 1 << 36;
const SMALLEST: usize = 1 << 26;

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

#[derive(Debug)]
pub(super) struct Arena {
    /// First, so that it is gone before the descriptor is closed.
    _closed_on_fork: ClosedOnFork,
    memfd: Memfd,
    memory: Shared,
    free: Mutex<Free>,
    fork: ForkGuard,
}

impl Arena {
    /// The process's, made now if there is none; None where none can be made.
    fn obtain() -> Option<&'static Arena> {
        ARENA.get_or_init(|| Arena::new().ok()).as_ref().filter(|arena| !arena.fork.is_child())
    }

    fn new() -> io::Result<Arena> {
        let mut size = LARGEST;
        loop {
            match Arena::of(size) {
                Err(_) if size > SMALLEST => size /= 4,
                result => return result,
            }
        }
    }

    fn of(size: usize) -> io::Result<Arena> {
        let memfd = Memfd::create(c"ironverbs-arena", size)?;
        let memory = Shared::map(&memfd, size, true)?;
        // A dump would look at every page there could be.
        memory.keep_out_of_dumps()?;
        let closed_on_fork = ClosedOnFork::new(memfd.as_fd())?;
        let (free, fork) = (Mutex::new(Free::new(size)), ForkGuard::new()?);
        Ok(Arena { _closed_on_fork: closed_on_fork, memfd, memory, free, fork })
    }

    fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// The descriptor's number, for peers.
    pub(super) fn number(&self) -> u32 {
        self.memfd.as_fd().as_raw_fd() as u32
    }
}

/// The arena, and where in it that range is, if it is.
pub(super) fn locate(addr: u64, len: u64) -> Option<(&'static Arena, u64)> {
    let arena = ARENA.get()?.as_ref()?;
    let offset = addr.checked_sub(arena.addr())?;
    let end = offset.checked_add(len)?;
    (end <= arena.memory.len() as u64).then_some((arena, offset))
}

/// Zeroed, page-aligned memory to be registered.
#[derive(Debug)]
pub struct Memory(Kind);

#[derive(Debug)]
enum Kind {
    Private(Mapping),
    Shared { arena: &'static Arena, offset: usize, len: usize },
}

impl Memory {
    /// At least `len` bytes, and at least one page. Nothing is populated. `shared`: peers on this host may map it, and then
    /// reach it by themselves in the quickest way; so may, by the kernel's rules for ptrace(2), other processes of this
    /// user. Where that is not possible it is as without.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn allocate(len: usize, shared: bool) -> io::Result<Memory> {
        let whole = len.max(1).checked_next_multiple_of(mem::page_size());
        let place = whole.filter(|_| shared).and_then(|len| {
            let arena = Arena::obtain()?;
            let offset = arena.free.lock().take(len)?;
            Some(Kind::Shared { arena, offset, len })
        });
        match place {
            Some(kind) => Ok(Memory(kind)),
            None => Mapping::anonymous(len).map(|mapping| Memory(Kind::Private(mapping))),
        }
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        match &self.0 {
            Kind::Private(mapping) => mapping.addr(),
            Kind::Shared { arena, offset, .. } => arena.addr() + *offset as u64,
        }
    }

    /// Bytes; a multiple of the page size.
    #[allow(clippy::len_without_is_empty, reason = "it has at least a page")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Private(mapping) => mapping.len(),
            Kind::Shared { len, .. } => *len,
        }
    }

    /// Whether peers may map it.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Kind::Shared { .. })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Kind::Shared { arena, offset, len } = self.0 else { return };
        // In a child of fork(2) it is the parent's.
        if arena.fork.is_child() {
            return;
        }
        // Whoever has it next finds zeroes. Where that cannot be had, nobody has it next.
        if arena.memfd.discard(offset, len).is_ok() {
            arena.free.lock().give_back(offset, len);
        }
    }
}

/// Which parts are free, by start: their ends. No two touch.
#[derive(Debug)]
struct Free(BTreeMap<usize, usize>);

impl Free {
    fn new(size: usize) -> Free {
        Free(BTreeMap::from([(0, size)]))
    }

    /// The first part that is large enough.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (&start, &end) = self.0.iter().find(|&(start, end)| end - start >= len)?;
        self.0.remove(&start);
        if start + len < end {
            self.0.insert(start + len, end);
        }
        Some(start)
    }

    fn give_back(&mut self, start: usize, len: usize) {
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &until)) = self.0.range(..start).next_back()
            && until == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(until) = self.0.remove(&end) {
            end = until;
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_one_piece_again() {
        let mut free = Free::new(100);
        let mut random = fastrand::Rng::with_seed(1);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for _ in 0..2000 {
            let len = random.usize(1..20);
            match free.take(len) {
                Some(start) if random.bool() || taken.is_empty() => {
                    let apart =
                        |&(other, n): &(usize, usize)| start + len <= other || other + n <= start;
                    assert!(start + len <= 100 && taken.iter().all(apart));
                    taken.push((start, len));
                }
                place => {
                    if let Some(start) = place {
                        free.give_back(start, len);
                    }
                    let (start, len) = taken.swap_remove(random.usize(..taken.len()));
                    free.give_back(start, len);
                }
            }
        }
        taken.iter().for_each(|&(start, len)| free.give_back(start, len));
        assert_eq!(free.0, BTreeMap::from([(0, 100)]));
    }

    #[test]
    fn shared_memory_is_found_zeroed_and_reused() {
        let page = mem::page_size();
        let one = Memory::allocate(page + 1, true).unwrap();
        assert!(one.is_shared() && one.len() == 2 * page);
        let (_, offset) = locate(one.addr() + 5, 10).unwrap();
        assert_eq!(locate(one.addr(), 10).unwrap().1 + 5, offset);
        // SAFETY: within what was allocated.
        unsafe { mem::write(one.addr(), &vec![7; page + 1]) };
        let addr = one.addr();
        drop(one);
        let other = Memory::allocate(page, true).unwrap();
        let mut found = vec![1; page];
        // SAFETY: as above.
        unsafe { mem::read(other.addr(), &mut found) };
        assert!(found.iter().all(|&byte| byte == 0), "{addr:#x} {:#x}", other.addr());
        let private = Memory::allocate(1, false).unwrap();
        assert!(!private.is_shared() && locate(private.addr(), 1).is_none());
        assert!(Memory::allocate(usize::MAX, true).is_err());
    }
}
