//! All that this crate asks the compiler to believe: registered memory, by address, and descriptors, by number.
//!
//! Everything else in the crate is safe code over these few functions.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_soft as soft;
use ironverbs_sys::mem;
use ironverbs_sys::process::ForkGuard;

use crate::region::RangeError;

/// Memory of our own that peers may reach: allocated here, registered while this lives, never moved.
#[derive(Debug)]
pub(crate) struct Registered {
    mr: Arc<soft::Mr>,
    memory: ManuallyDrop<soft::Memory>,
    len: usize,
    fork: Arc<ForkGuard>,
}

impl Registered {
    pub(crate) fn new(
        pd: &Arc<soft::Pd>,
        fork: &Arc<ForkGuard>,
        len: usize,
        access: soft::Access,
    ) -> Result<Registered, soft::Error> {
        // What peers may reach they may as well map.
        let remote =
            soft::Access::REMOTE_WRITE | soft::Access::REMOTE_READ | soft::Access::REMOTE_ATOMIC;
        let remote = remote | soft::Access::MW_BIND;
        let memory = soft::Memory::allocate(len, access.intersects(remote))?;
        let addr = memory.addr();
        // SAFETY: the mapping is readable and writable and at least `len` long; it is unmapped only by our Drop,
        // after deregistration. No Rust reference into it is ever made: all access goes through the copies below.
        let mr = unsafe { pd.reg_mr(addr, len as u64, addr, access) }?;
        Ok(Registered { mr, memory: ManuallyDrop::new(memory), len, fork: fork.clone() })
    }

    pub(crate) fn mr(&self) -> &soft::Mr {
        &self.mr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes at `offset`, if they lie within.
    fn locate(&self, offset: usize, len: usize) -> Result<u64, RangeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.memory.addr() + offset as u64),
            _ => Err(RangeError::Outside { offset, len, size: self.len }),
        }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        let addr = self.locate(offset, into.len())?;
        // SAFETY: the range was just found to lie in the mapping, which lives as long as `self`; `into` cannot
        // overlap it, as no references into the mapping exist.
        unsafe { mem::read(addr, into) };
        Ok(())
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let addr = self.locate(offset, bytes.len())?;
        // SAFETY: as in `read`; the mapping is writable.
        unsafe { mem::write(addr, bytes) };
        Ok(())
    }

    /// The word at `offset`, for the time of a call.
    pub(crate) fn word(&self, offset: usize) -> Result<Word<'_>, RangeError> {
        let addr = self.locate(offset, 8)?;
        if !addr.is_multiple_of(8) {
            return Err(RangeError::Misaligned { offset });
        }
        // SAFETY: eight aligned, mapped bytes that live as long as `self`, which the result borrows. Peers and
        // the device access them by atomics or by copies that may tear, never through references.
        Ok(Word(unsafe { AtomicU64::from_ptr(addr as *mut u64) }))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.fork.is_child() {
            // The registration is the parent's, and so is the thread that may hold its lock.
            std::mem::forget(self.mr.clone());
            return;
        }
        // After deregistration nobody reads or writes the memory. Should it be refused, the memory must stay.
        if self.mr.destroy().is_ok() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// A 64-bit word of registered memory.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Word<'a>(&'a AtomicU64);

impl Word<'_> {
    pub(crate) fn load(self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn store(self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    pub(crate) fn fetch_add(self, add: u64) -> u64 {
        self.0.fetch_add(add, Ordering::SeqCst)
    }

    pub(crate) fn compare_swap(self, compare: u64, swap: u64) -> u64 {
        let result = self.0.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        result.unwrap_or_else(|before| before)
    }
}

/// The completion channel's descriptor, which is open as long as the channel.
pub(crate) fn channel_fd(channel: &soft::Channel) -> BorrowedFd<'_> {
    borrow(channel.fd(), channel)
}

/// The descriptor of asynchronous events, which is open as long as the context.
pub(crate) fn events_fd(context: &soft::Context) -> BorrowedFd<'_> {
    borrow(context.async_fd(), context)
}

/// The descriptor of an event channel, which is open as long as the channel.
pub(crate) fn cm_fd(channel: &soft::cm::EventChannel) -> BorrowedFd<'_> {
    borrow(channel.fd(), channel)
}

fn borrow<T>(fd: RawFd, _owner: &T) -> BorrowedFd<'_> {
    // SAFETY: all callers pass the object that owns the descriptor and keeps it open until it is dropped; the
    // result borrows that object.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
