//! Where there is no copy of our own, the kernel copies; it is slower, and faults of atomics are not
//! survived beyond a look whether the memory is there.

/// False: part of it is not there.
///
/// # Safety
/// As [`super::copy`].
pub(super) unsafe fn copy(dst: u64, src: u64, len: usize) -> bool {
    // SAFETY: the caller's word is passed on.
    unsafe { super::kernel::copy(dst, src, len) }
}

/// Stores the first `size` bytes of a value in little-endian order.
///
/// # Safety
/// As [`super::write`] of what is mapped at `dst`.
pub(super) unsafe fn store(dst: u64, value: u64, size: usize) -> bool {
    let bytes = value.to_le_bytes();
    // SAFETY: passed on; no size is above that of the value.
    unsafe { super::kernel::copy(dst, bytes.as_ptr() as u64, size) }
}

/// # Safety
/// As [`super::compare_swap`]; aligned.
pub(super) unsafe fn compare_swap(addr: u64, compare: u64, swap: u64) -> Option<u64> {
    super::kernel::is_writable(addr).then(|| {
        use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: aligned and mapped, as just checked.
        let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
        word.compare_exchange(compare, swap, SeqCst, SeqCst).unwrap_or_else(|actual| actual)
    })
}

/// # Safety
/// As [`super::fetch_add`]; aligned.
pub(super) unsafe fn fetch_add(addr: u64, add: u64) -> Option<u64> {
    super::kernel::is_writable(addr).then(|| {
        use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: aligned and mapped, as just checked.
        unsafe { AtomicU64::from_ptr(addr as *mut u64) }.fetch_add(add, SeqCst)
    })
}

/// There are no instructions of ours that fault.
///
/// # Safety
/// None.
pub(super) unsafe fn recover(_: *mut libc::c_void) -> bool {
    false
}
