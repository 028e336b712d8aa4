//! What happens beside a libibverbs.so.1 that is not ours, in the libraries of management datagrams: each has this file as a
//! module, and says in its root what it is called.

use std::ffi::c_int;
use std::io::Write;
use std::sync::Once;

use crate::{LIBRARY, SONAME};

fn complain() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Nobody is to be told when stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "ironverbs: {SONAME} is ironverbs', libibverbs.so.1 is not, so that no call of \
             {LIBRARY} can work: put both libraries of ironverbs on LD_LIBRARY_PATH, as \
             `ironverbs run` does"
        );
    });
    const ENOSYS: c_int = libc::ENOSYS;
    // SAFETY: errno is a thread-local int that always exists.
    unsafe { *libc::__errno_location() = ENOSYS };
}

/// In place of a function that returns a number: -ENOSYS.
pub(crate) extern "C" fn missing_number() -> isize {
    complain();
    -(libc::ENOSYS as isize)
}

/// In place of a function that returns a pointer: 0.
pub(crate) extern "C" fn missing_zero() -> usize {
    complain();
    0
}
