//! Device memory: a device of software has none of its own, so that it is memory of this process that peers on this
//! host can map, and that the program itself reaches by copies (ibv_alloc_dm(3)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ironverbs_sys::mem;

use crate::Error;
use crate::context::limits;
use crate::direct::Memory;
use crate::object::{self, Identity};

/// Bytes that the process has allocated.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Bytes that copies begin at and are multiples of, as ibv_memcpy_to_dm(3) has it.
const GRAIN: u64 = 4;

/// Device memory.
#[derive(Debug)]
pub struct Dm {
    identity: Identity,
    /// Regions that it is registered as.
    users: AtomicUsize,
    memory: Memory,
    len: u64,
}

impl Dm {
    /// A fork may have its own: nothing of the device is involved.
    pub(crate) fn allocate(identity: Identity, len: u64, log_align: u32) -> Result<Arc<Dm>, Error> {
        if len == 0 {
            let why = "there is no empty device memory";
            return Err(Error::Invalid { what: "length", value: 0, why });
        }
        let too_long = Error::Limit { what: "length", asked: len, max: limits::DM };
        // What is allocated begins a page.
        let max = mem::page_size().ilog2();
        if log_align > max {
            return Err(Error::Limit {
                what: "log_align_req",
                asked: log_align.into(),
                max: max.into(),
            });
        }
        let more = |used: u64| used.checked_add(len).filter(|sum| *sum <= limits::DM);
        if ALLOCATED.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_err() {
            return Err(if len > limits::DM {
                too_long
            } else {
                Error::NoMemory { what: "device memory" }
            });
        }
        match Memory::allocate(len as usize, true) {
            Ok(memory) => Ok(Arc::new(Dm { identity, users: AtomicUsize::new(0), memory, len })),
            Err(error) => {
                ALLOCATED.fetch_sub(len, Ordering::AcqRel);
                Err(error.into())
            }
        }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "it has at least a byte")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The address in this process of `len` bytes from `offset` on.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Result<u64, Error> {
        self.identity.check()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.memory.addr() + offset),
            _ => {
                let max = self.len.saturating_sub(offset);
                Err(Error::Limit { what: "length from this offset on", asked: len, max })
            }
        }
    }

    fn aligned_place(&self, offset: u64, len: usize) -> Result<u64, Error> {
        for (what, value) in [("dm_offset", offset), ("length", len as u64)] {
            if !value.is_multiple_of(GRAIN) {
                return Err(Error::Invalid { what, value, why: "it is no multiple of 4" });
            }
        }
        self.place(offset, len as u64)
    }

    /// Copies `len` bytes from the program's memory to `offset` (ibv_memcpy_to_dm(3)).
    ///
    /// # Safety
    /// `from` leads to as many readable bytes.
    pub unsafe fn copy_in(&self, offset: u64, from: *const u8, len: usize) -> Result<(), Error> {
        let to = self.aligned_place(offset, len)?;
        // SAFETY: the caller's promise; the range lies within the memory, to which there are no references.
        unsafe { mem::copy(from as u64, to, len) };
        Ok(())
    }

    /// Copies `len` bytes from `offset` to the program's memory (ibv_memcpy_from_dm(3)).
    ///
    /// # Safety
    /// `to` leads to as many writable bytes that nobody else uses.
    pub unsafe fn copy_out(&self, to: *mut u8, offset: u64, len: usize) -> Result<(), Error> {
        let from = self.aligned_place(offset, len)?;
        // SAFETY: as above, the other way.
        unsafe { mem::copy(from, to as u64, len) };
        Ok(())
    }

    pub(crate) fn take(&self) -> Result<(), Error> {
        self.identity.check()?;
        object::take(&self.users);
        Ok(())
    }

    pub(crate) fn give_back(&self) {
        object::give_back(&self.users);
    }

    /// Frees it; Busy while a region is registered on it (ibv_free_dm(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.identity.retire_unless_used(&self.users)
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.len, Ordering::AcqRel);
    }
}

object::accessors!(Dm);
