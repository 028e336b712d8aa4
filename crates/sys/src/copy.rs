//! Copies and atomics on memory that may not be there: a program may unmap, protect or truncate what
//! it has registered, at any moment, and gets an error instead of a signal.
//!
//! The instructions that may fault are known (x86-64). A handler of SIGSEGV and SIGBUS lets a copy
//! that faults return an error, and passes every other fault on to the handler there was before, with
//! its mask, stack and flags; without one the process ends as ever, at the instruction that faulted.
//! [`arm`] puts that handler in place, and again where the program has installed one of its own
//! later, so it is called now and then; until then such a handler gets our faults. What it does not
//! know it usually passes on to the one before, which is ours.
//!
//! Two things differ for a program that looks closely: sigaction(2) shows our handler, and where
//! SIGSEGV was ignored, a program started by exec inherits SIG_DFL.
//!
//! A thread that blocks these signals is killed by the kernel when it faults. For programs that do so
//! there is [`use_kernel`]: the kernel copies, which reports what is not there: 1.6 us a call and 9 us
//! per 64 KiB, instead of 10 ns and 3 us.
//!
//! Above 128 bytes, copies are vector loops: memcpy(3), where it uses `rep movsb`, falls behind by an
//! order of magnitude when the destination is a little ahead of the source modulo 4096, as it is where
//! one of two page-aligned buffers has a header.

mod handler;
mod kernel;
#[cfg(not(target_arch = "x86_64"))]
#[path = "copy/elsewhere.rs"]
mod own;
#[cfg(target_arch = "x86_64")]
#[path = "copy/x86_64.rs"]
mod own;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::mem::Misaligned;

/// Part of the memory is not mapped, not with the right that the access needs, or beyond the end of
/// the file that is mapped there. The copy may have been done in part.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the memory is not there, or may not be accessed that way")]
pub struct Unmapped;

/// Why an atomic was not carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AtomicError {
    /// Its address is no multiple of 8.
    #[error(transparent)]
    Misaligned(#[from] Misaligned),
    /// The memory is not there.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
}

/// Makes copies that fault return an error from now on. To be called before the first copy, and again
/// from time to time: it finds out whether the program has put a handler of its own before ours, and
/// costs two short system calls otherwise. Safe in a child of fork(2).
///
/// # Errors
/// As sigaction(2).
pub fn arm() -> io::Result<()> {
    handler::arm()
}

static BY_KERNEL: AtomicBool = AtomicBool::new(false);

/// Has the kernel copy from now on, in the whole process: safe also in threads that block SIGSEGV and
/// SIGBUS, and slower.
///
/// # Errors
/// As process_vm_writev(2), where a sandbox forbids it.
pub fn use_kernel() -> io::Result<()> {
    kernel::is_allowed()?;
    BY_KERNEL.store(true, Ordering::Relaxed);
    Ok(())
}

/// Copies `dst.len()` bytes from the address `src`. A concurrent writer may tear the result.
///
/// # Safety
/// What is mapped of `src .. src + dst.len()` does not overlap `dst`.
#[inline]
pub unsafe fn read(src: u64, dst: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: `dst` is ours to write, and does not overlap the source by the caller's word.
    unsafe { copy(src, dst.as_mut_ptr() as u64, dst.len()) }
}

/// Copies `src` to the address `dst`. A concurrent reader may see part of it.
///
/// # Safety
/// What is mapped of `dst .. dst + src.len()` is memory that may change: no Rust reference to it is
/// live, and it does not overlap `src`.
#[inline]
pub unsafe fn write(dst: u64, src: &[u8]) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for the destination.
    unsafe { copy(src.as_ptr() as u64, dst, src.len()) }
}

/// Copies `len` bytes from one address to another. The ranges may overlap, except where the kernel
/// copies ([`use_kernel`]), which may then mix them up.
///
/// # Safety
/// As for [`write`] of what is mapped at `dst`.
#[inline]
pub unsafe fn copy(src: u64, dst: u64, len: usize) -> Result<(), Unmapped> {
    // SAFETY: passed on.
    let done = unsafe {
        match BY_KERNEL.load(Ordering::Relaxed) {
            false => own::copy(dst, src, len),
            true => kernel::copy(dst, src, len),
        }
    };
    if done { Ok(()) } else { Err(Unmapped) }
}

/// Copies `len` bytes from `src` to `dst`, which others watch: the last byte is seen last, and with it
/// all that was stored before. 1, 2, 4 and 8 bytes to an address that is a multiple of their number
/// are one store, and so are the last eight of more that end at one. The ranges may overlap, as for
/// [`copy`].
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn put(src: u64, dst: u64, len: usize) -> Result<(), Unmapped> {
    let end = dst.wrapping_add(len as u64);
    let last = match len {
        0 => return Ok(()),
        1 | 2 | 4 | 8 if dst.is_multiple_of(len as u64) => len,
        9.. if end.is_multiple_of(8) => 8,
        _ => 1,
    };
    let head = len - last;
    let mut word = [0u8; 8];
    // SAFETY: the caller vouches for the ranges; the word is ours, and read before anything that it may overlap is
    // written.
    unsafe {
        copy(src.wrapping_add(head as u64), word.as_mut_ptr() as u64, last)?;
        if head > 0 {
            copy(src, dst, head)?;
        }
    }
    // SYNC POINT: with whoever waits for the last word or byte.
    fence(Ordering::Release);
    let to = dst.wrapping_add(head as u64);
    // SAFETY: the caller vouches for what is mapped there.
    let done = unsafe {
        match BY_KERNEL.load(Ordering::Relaxed) {
            false => own::store(to, u64::from_le_bytes(word), last),
            true => kernel::copy(to, word.as_ptr() as u64, last),
        }
    };
    if done { Ok(()) } else { Err(Unmapped) }
}

/// Atomically replaces the native-endian u64 at `addr` by `swap` if it equals `compare`; returns the
/// value before, as the AtomicETH's CmpSwap does (IBA 9.4.5). Sequentially consistent, and atomic also
/// towards the program's own CPU atomics.
///
/// # Safety
/// If the eight bytes at `addr` are mapped, they are memory that may change.
pub unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, AtomicError> {
    // SAFETY: passed on.
    atomic(addr, || unsafe { own::compare_swap(addr, compare, swap) })
}

/// Atomically adds `add` (wrapping) to the native-endian u64 at `addr`; returns the value before.
/// Sequentially consistent, and atomic also towards the program's own CPU atomics.
///
/// # Safety
/// As for [`compare_swap`].
pub unsafe fn fetch_add(addr: u64, add: u64) -> Result<u64, AtomicError> {
    // SAFETY: passed on.
    atomic(addr, || unsafe { own::fetch_add(addr, add) })
}

fn atomic(addr: u64, run: impl FnOnce() -> Option<u64>) -> Result<u64, AtomicError> {
    if addr == 0 || !addr.is_multiple_of(8) {
        return Err(Misaligned(addr).into());
    }
    // The kernel has no atomics of 64 bits for us: there our own are safe while the signals are not
    // blocked.
    let before = match BY_KERNEL.load(Ordering::Relaxed) {
        false => run(),
        true => handler::unblocked(run),
    };
    before.ok_or(AtomicError::Unmapped(Unmapped))
}

#[cfg(test)]
mod tests;
