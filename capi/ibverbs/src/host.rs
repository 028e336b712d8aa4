//! The one Host of the process.

use std::sync::OnceLock;

use ironverbs_soft::{Config, Host};

use crate::fail::{Failure, Outcome};

static HOST: OnceLock<Result<Host, i32>> = OnceLock::new();

/// The Host, started by the first call. Why it does not start is said once, on stderr.
pub(crate) fn host() -> Outcome<&'static Host> {
    HOST.get_or_init(start).as_ref().map_err(|&errno| Failure::NoHost { errno })
}

fn start() -> Result<Host, i32> {
    let config = Config::load().map_err(|error| {
        eprintln!("ironverbs: configuration: {error}");
        libc::EINVAL
    })?;
    let host = Host::start(config).map_err(|error| {
        eprintln!("ironverbs: {error}");
        libc::ENOSYS
    })?;
    // SAFETY: the handler takes nothing, unwinds nothing, and is never unloaded (-z nodelete).
    unsafe { libc::atexit(at_exit) };
    Ok(host)
}

/// Programs end right after their last completion, and their peers wait for what acknowledges it.
extern "C" fn at_exit() {
    let _ = std::panic::catch_unwind(|| {
        if let Some(Ok(host)) = HOST.get() {
            host.flush();
        }
    });
}

/// Whether failing verbs say why: the setting `explain`.
pub(crate) fn explains() -> bool {
    match HOST.get() {
        Some(Ok(host)) => host.config().explain.value,
        _ => std::env::var_os("IRONVERBS_EXPLAIN").is_some_and(|value| value == "1"),
    }
}
