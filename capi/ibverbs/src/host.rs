//! The one Host of the process.

use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use ironverbs::raw::{Config, Host};

use crate::fail::{Failure, Outcome};

/// A Host and the process that it serves. In a fork the parent's objects fail, and the first list
/// of devices starts another Host.
struct Process {
    id: u32,
    host: OnceLock<Result<Host, i32>>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// No lock: a fork may have copied one that another thread held.
    fn current() -> &'static Process {
        let id = process::id();
        loop {
            let current = CURRENT.load(Ordering::Acquire);
            // SAFETY: null or leaked by this function.
            if let Some(process) = unsafe { current.as_ref() }
                && process.id == id
            {
                return process;
            }
            let new = Box::into_raw(Box::new(Process { id, host: OnceLock::new() }));
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            if CURRENT.compare_exchange(current, new, success, failure).is_err() {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

/// The Host, started by the first call. Why it does not start is said once, on stderr.
pub(crate) fn host() -> Outcome<&'static Host> {
    let host = Process::current().host.get_or_init(start).as_ref();
    host.map_err(|&errno| Failure::NoHost { errno })
}

fn start() -> Result<Host, i32> {
    crate::cm::warn_of_foreign();
    let config = Config::load().map_err(|error| {
        eprintln!("ironverbs: configuration: {error}");
        libc::EINVAL
    })?;
    let _ = EXPLAINS.set(config.explain.value);
    Host::start(config).map_err(|error| {
        eprintln!("ironverbs: {error}");
        libc::ENOSYS
    })
}

/// The setting `explain`, once it was read; failures on the data path ask for it often.
static EXPLAINS: OnceLock<bool> = OnceLock::new();

/// Whether failing verbs say why.
pub(crate) fn explains() -> bool {
    match EXPLAINS.get() {
        Some(&explains) => explains,
        None => std::env::var_os("IRONVERBS_EXPLAIN").is_some_and(|value| value == "1"),
    }
}
