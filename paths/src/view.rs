//! Where the view is: `IRONVERBS_VIEW`, read once.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::rewrite::{Outcome, rewrite};

/// PATH_MAX of Linux: no longer path can name a file.
pub(crate) const MAX_PATH: usize = 4096;

unsafe extern "C" {
    static environ: *const *const c_char;
}

const UNREAD: u32 = 0;
const READING: u32 = 1;
const READ: u32 = 2;

/// A copy, because programs overwrite or replace their environment (setproctitle, clearenv).
struct View {
    state: AtomicU32,
    path: UnsafeCell<[u8; MAX_PATH]>,
    len: UnsafeCell<usize>,
}

// SAFETY: `path` and `len` are written by whoever moves `state` from UNREAD to READING, and read
// only after READ was seen.
unsafe impl Sync for View {}

static VIEW: View = View {
    state: AtomicU32::new(UNREAD),
    path: UnsafeCell::new([0; MAX_PATH]),
    len: UnsafeCell::new(0),
};

pub(crate) fn initialise() {
    // Before libc's own constructor (in a program's .preinit_array) there is no environment yet.
    // SAFETY: a pointer-sized variable of libc; nobody changes it at this time.
    if unsafe { environ }.is_null() {
        return;
    }
    if VIEW.state.compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let found = environment();
    // SAFETY: the exchange above made this thread the only one that touches the fields until READ.
    let (path, len) = unsafe { (&mut *VIEW.path.get(), &mut *VIEW.len.get()) };
    if let Some(place) = path.get_mut(..found.len()) {
        place.copy_from_slice(found);
        *len = found.len();
    }
    // SYNC POINT: pairs with the load in `view`.
    VIEW.state.store(READ, Ordering::Release);
}

/// The view's root; empty when there is none.
pub(crate) fn view() -> &'static [u8] {
    // SYNC POINT: pairs with the store in `initialise`.
    if VIEW.state.load(Ordering::Acquire) != READ {
        initialise();
        if VIEW.state.load(Ordering::Acquire) != READ {
            // A signal handler within `initialise`, or another constructor's thread beside it.
            return environment();
        }
    }
    // SAFETY: READ was seen; nobody writes from then on, and `len` is within `path`.
    unsafe { std::slice::from_raw_parts(VIEW.path.get().cast(), *VIEW.len.get()) }
}

/// The variable as it stands in the environment; empty unless it is an absolute path.
fn environment() -> &'static [u8] {
    // SAFETY: the name is a C string, and getenv allows that there is no environment; at this time, before `main`, nobody changes the environment.
    let value = unsafe { libc::getenv(c"IRONVERBS_VIEW".as_ptr()) };
    if value.is_null() {
        return b"";
    }
    // SAFETY: getenv gives a C string.
    let mut path = unsafe { CStr::from_ptr(value) }.to_bytes();
    while let [start @ .., b'/'] = path {
        path = start;
    }
    if path.first() == Some(&b'/') && path.len() < MAX_PATH { path } else { b"" }
}

/// Calls `call` with the path to use in place of `path`; `failed` is its result where that path is
/// too long.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub(crate) unsafe fn with_path<R>(
    path: *const c_char,
    failed: R,
    call: impl FnOnce(*const c_char, bool) -> R,
) -> R {
    if path.is_null() {
        return call(path, false);
    }
    // SAFETY: a C string, by the caller.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    // An empty buffer asks whether the path is ours: only then is room for one taken, for this may
    // be a signal handler on a small stack.
    if rewrite(bytes, b"", &mut []) == Outcome::Pass {
        return call(path, false);
    }
    redirected(path, bytes, failed, call)
}

#[cold]
#[inline(never)]
fn redirected<R>(
    path: *const c_char,
    bytes: &[u8],
    failed: R,
    call: impl FnOnce(*const c_char, bool) -> R,
) -> R {
    let view = view();
    if view.is_empty() {
        return call(path, false);
    }
    let mut buffer = [0_u8; MAX_PATH];
    match rewrite(bytes, view, &mut buffer) {
        Outcome::Pass => call(path, false),
        Outcome::Rewritten(_) => call(buffer.as_ptr().cast(), true),
        Outcome::TooLong => {
            // SAFETY: the pointer is this thread's errno.
            unsafe { *libc::__errno_location() = libc::ENAMETOOLONG };
            failed
        }
    }
}

/// Takes the view's root off a path that libc resolved, in place.
///
/// # Safety
/// `path` is null or a writable C string.
pub(crate) unsafe fn strip(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: a C string, by the caller; the slice ends before anything is written.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let total = bytes.len();
    let view = view();
    match bytes.strip_prefix(view) {
        Some([]) if !view.is_empty() => {
            // SAFETY: the string has at least one byte and its NUL.
            unsafe { path.copy_from_nonoverlapping(c"/".as_ptr(), 2) };
        }
        Some([b'/', ..]) => {
            // SAFETY: both ranges lie in the string with its NUL; `copy` allows their overlap.
            unsafe { path.copy_from(path.add(view.len()), total - view.len() + 1) };
        }
        _ => {}
    }
}
