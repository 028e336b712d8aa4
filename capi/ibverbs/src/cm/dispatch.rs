//! The one place where a call of librdmacm goes to the connection manager of the software devices, or to the kernel's.

use std::ffi::{c_int, c_void};

use super::id as ids;
use super::kernel;
use super::{channel, connect as connections, endpoint, event, multicast, options, qp};
use crate::abi::*;

macro_rules! dispatch {
    ($(
        fn $name:ident($object:ident: $of:ty $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?, $module:ident;
    )*) => {$(
        /// The function of that name.
        ///
        /// # Safety
        /// As for the software devices' function.
        pub(crate) unsafe extern "C" fn $name($object: $of, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's promise, which is the same for both.
            unsafe {
                if kernel::is_kernels($object) {
                    kernel::$name($object, $($arg),*)
                } else {
                    $module::$name($object, $($arg),*)
                }
            }
        }
    )*};
}

dispatch! {
    fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int, connections;
    fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int, ids;
    fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int, connections;
    fn create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int, qp;
    fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int, qp;
    fn destroy_event_channel(c: *mut rdma_event_channel), channel;
    fn destroy_ep(id: *mut rdma_cm_id), endpoint;
    fn destroy_id(id: *mut rdma_cm_id) -> c_int, ids;
    fn destroy_qp(id: *mut rdma_cm_id), qp;
    fn disconnect(id: *mut rdma_cm_id) -> c_int, connections;
    fn establish(id: *mut rdma_cm_id) -> c_int, connections;
    fn get_cm_event(c: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int, event;
    fn get_dst_port(id: *mut rdma_cm_id) -> u16, ids;
    fn get_src_port(id: *mut rdma_cm_id) -> u16, ids;
    fn get_request(id: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int, endpoint;
    fn init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int, qp;
    fn join_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr, context: *mut c_void) -> c_int, multicast;
    fn join_multicast_ex(id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int, multicast;
    fn leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int, multicast;
    fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int, ids;
    fn migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int, ids;
    fn notify(id: *mut rdma_cm_id, event: u32) -> c_int, connections;
    fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int, connections;
    fn resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, timeout: c_int) -> c_int, ids;
    fn resolve_route(id: *mut rdma_cm_id, timeout: c_int) -> c_int, ids;
    fn set_option(id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int, options;
}

/// rdma_ack_cm_event(3).
///
/// # Safety
/// As for [`event::ack_cm_event`].
pub(crate) unsafe extern "C" fn ack_cm_event(of: *mut rdma_cm_event) -> c_int {
    match kernel::is_kernels(of) {
        // SAFETY: the caller's promise.
        true => unsafe { kernel::ack_cm_event(of) },
        false => event::ack_cm_event(of),
    }
}

/// rdma_create_event_channel(3).
pub(crate) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    match kernel::wanted() {
        true => kernel::create_event_channel(),
        false => channel::create_event_channel(),
    }
}

/// rdma_create_id(3): of the world of its channel, or of the one that is wanted.
///
/// # Safety
/// As for [`ids::create_id`].
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    let kernels = if channel.is_null() { kernel::wanted() } else { kernel::is_kernels(channel) };
    // SAFETY: the caller's promise, which is the same for both.
    unsafe {
        match kernels {
            true => kernel::create_id(channel, out, context, ps),
            false => ids::create_id(channel, out, context, ps),
        }
    }
}

/// rdma_create_ep(3).
///
/// # Safety
/// As for [`endpoint::create_ep`].
pub(crate) unsafe extern "C" fn create_ep(
    out: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's promise, which is the same for both.
    unsafe {
        match kernel::wanted() {
            true => kernel::create_ep(out, res, pd, init),
            false => endpoint::create_ep(out, res, pd, init),
        }
    }
}
