//! libibmad: fields of management datagrams and requests over libibumad, for C programs. Our libibmad.so.5 is stubs that
//! jump here.

mod abi;
mod clients;
mod dump;
mod fields;
mod packet;
mod portid;
mod query;
mod resolve;
mod rpc;
mod table;
mod text;
mod warn;
mod xdump;

use std::ffi::c_int;

pub(crate) use clients::*;
pub(crate) use dump::*;
pub(crate) use fields::*;
pub(crate) use packet::*;
pub(crate) use portid::*;
pub(crate) use query::*;
pub(crate) use resolve::*;
pub(crate) use rpc::*;
pub(crate) use warn::madrpc_show_errors;
pub(crate) use xdump::xdump;

fn errno() -> c_int {
    // SAFETY: errno is a thread-local int that always exists.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// As strerror(3) has it.
fn error_text(errno: c_int) -> String {
    // SAFETY: the string is the thread's until its next call.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::strerror(errno)) };
    text.to_string_lossy().into_owned()
}
