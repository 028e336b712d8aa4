//! What libibmad says on stderr, and how much of it (`ibdebug`, madrpc_show_errors()).

use std::ffi::{c_int, c_void};
use std::fmt::Arguments;
use std::io::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A line in libibmad's form, which scripts look for.
pub(super) fn warn(function: &str, text: Arguments<'_>) {
    let line = format!("ibwarn: [{}] {function}: {text}\n", std::process::id());
    // Nobody is to be told when stderr is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The same, if the program wants to see why requests fail.
pub(super) fn explain(function: &str, text: Arguments<'_>) {
    if SHOW_ERRORS.load(Relaxed) || debug() != 0 {
        warn(function, text);
    }
}

/// The same, if the program debugs.
pub(super) fn trace(function: &str, text: Arguments<'_>) {
    if debug() != 0 {
        warn(function, text);
    }
}

static SHOW_ERRORS: AtomicBool = AtomicBool::new(false);

pub(crate) extern "C" fn madrpc_show_errors(set: c_int) {
    SHOW_ERRORS.store(set != 0, Relaxed);
}

/// The variable that programs set to be told more. It is in libibmad.so.5, or in the program that took a copy of it
/// (a copy relocation), which the dynamic linker finds first.
fn debug() -> c_int {
    struct Variable(*const c_int);
    // SAFETY: an int that is there as long as the process is, and which no more than read here.
    unsafe impl Send for Variable {}
    // SAFETY: as above.
    unsafe impl Sync for Variable {}
    static VARIABLE: LazyLock<Variable> = LazyLock::new(|| {
        // SAFETY: both are strings.
        let found =
            unsafe { libc::dlvsym(libc::RTLD_DEFAULT, c"ibdebug".as_ptr(), c"IBMAD_1.3".as_ptr()) };
        Variable(found.cast::<c_void>().cast())
    });
    let variable = VARIABLE.0;
    // SAFETY: null, or the int.
    if variable.is_null() { 0 } else { unsafe { variable.read_volatile() } }
}
