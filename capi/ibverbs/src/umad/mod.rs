//! libibumad: management datagrams for C programs, over `soft`'s agents. Our libibumad.so.3 is stubs that jump here.
//!
//! Failures are negative errnos, and errno too, as in the original.

mod abi;
mod io;
mod kernel;
mod names;
mod strings;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) use abi::ib_user_mad_t;
pub(crate) use io::{
    close_port, done, get_fd, init, open_port, poll, recv, register, register_oui, register2, send,
    unregister,
};
pub(crate) use io::{
    debug, get_mad, get_mad_addr, get_pkey, set_addr, set_addr_net, set_grh, set_pkey, size, status,
};
pub(crate) use names::{
    free_ca_device_list, get_ca, get_ca_device_list, get_ca_portguids, get_cas_names,
    get_issm_path, get_port, release_ca, release_port, sort_ca_device_list,
};
pub(crate) use strings::{
    addr_dump, attribute_str, class_str, common_mad_status_str, dump, method_str, sa_mad_status_str,
};

use ironverbs_sys::cancel;

use crate::fail::Failure;

/// The answer, or the negative errno of why there is none.
///
/// A thread may not be cancelled (pthread_cancel(3)) in the middle of it: that unwinds, which Rust frames end with
/// an abort.
fn number(work: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    let _held = cancel::held();
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(libc::EIO));
    result.unwrap_or_else(failed)
}

fn failed(errno: c_int) -> c_int {
    // SAFETY: errno is a thread-local int that always exists.
    unsafe { *libc::__errno_location() = errno };
    -errno
}

fn errno(failure: impl Into<Failure>) -> c_int {
    failure.into().errno()
}
