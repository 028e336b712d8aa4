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
    Host::start(config).map_err(|error| {
        eprintln!("ironverbs: {error}");
        libc::ENOSYS
    })
}

/// Whether failing verbs say why: the setting `explain`.
pub(crate) fn explains() -> bool {
    match HOST.get() {
        Some(Ok(host)) => host.config().explain.value,
        _ => std::env::var_os("IRONVERBS_EXPLAIN").is_some_and(|value| value == "1"),
    }
}
