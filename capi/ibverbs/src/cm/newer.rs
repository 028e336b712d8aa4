//! Names that librdmacm got after version 44, none of which is there yet: -1 and EOPNOTSUPP.

use std::ffi::{c_char, c_int, c_void};

use crate::fail::{self, Failure};

fn refused(verb: &'static str, what: &'static str) -> c_int {
    fail::number(verb, || Err(Failure::Unsupported { what }))
}

/// rdma_query_addrinfo(3).
pub(crate) extern "C" fn query_addrinfo(_: *mut c_void, _: *mut *mut c_void) -> c_int {
    refused("rdma_query_addrinfo", "resolving in the background (rdma_getaddrinfo resolves)")
}

/// rdma_resolve_addrinfo(3).
pub(crate) extern "C" fn resolve_addrinfo(
    _: *mut c_void,
    _: *const c_char,
    _: *const c_char,
    _: *const c_void,
) -> c_int {
    refused("rdma_resolve_addrinfo", "resolving in the background (rdma_getaddrinfo resolves)")
}

/// rdma_write_cm_event(3).
pub(crate) extern "C" fn write_cm_event(_: *mut c_void, _: u32, _: c_int, _: u64) -> c_int {
    refused("rdma_write_cm_event", "an event of the program's own")
}
