//! Shows programs a view of `/sys/class/infiniband` and `/dev/infiniband`, preloaded by
//! `ironverbs run`.
//!
//! Programs read these directories behind the library's back, and without a kernel driver they
//! are not there. This library stands before libc's path functions and sends the paths of
//! [`rewrite::PREFIXES`] to the tree that `IRONVERBS_VIEW` names; every other path reaches the
//! next definition unchanged. It runs inside any program, at any moment: it takes no lock,
//! allocates nothing, is async-signal-safe once loaded, and keeps errno.
//!
//! What a preloaded library cannot see: system calls that a program makes without libc (static
//! programs, Go), and paths that libc opens for itself (glob, ftw).

mod real;
mod rewrite;
mod symbols;
mod view;

/// Resolves everything while the process still has one thread, so that no call does later, where
/// it could be a signal handler's.
#[used]
#[unsafe(link_section = ".init_array")]
static INITIALISE: extern "C" fn() = initialise;

extern "C" fn initialise() {
    // SAFETY: the pointer is this thread's errno, valid for its life.
    let errno = unsafe { *libc::__errno_location() };
    view::initialise();
    real::initialise();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
