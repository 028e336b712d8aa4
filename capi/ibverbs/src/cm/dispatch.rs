//! The one place where a call of librdmacm goes to the connection manager of the software devices, or to the kernel's.

use std::ffi::{c_int, c_void};

use ironverbs::raw::config::Soft;

use super::id as ids;
use super::{connect as connections, event, multicast, options, qp, srq};
use super::{kernel, objects, worlds};
use crate::abi::*;
use crate::host::host;

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
    fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int, connections;
    fn create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int, qp;
    fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int, qp;
    fn create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> c_int, srq;
    fn create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int, srq;
    fn destroy_qp(id: *mut rdma_cm_id), qp;
    fn destroy_srq(id: *mut rdma_cm_id), srq;
    fn disconnect(id: *mut rdma_cm_id) -> c_int, connections;
    fn establish(id: *mut rdma_cm_id) -> c_int, connections;
    fn get_dst_port(id: *mut rdma_cm_id) -> u16, ids;
    fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, connections;
    fn get_src_port(id: *mut rdma_cm_id) -> u16, ids;
    fn init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int, qp;
    fn join_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr, context: *mut c_void) -> c_int, multicast;
    fn join_multicast_ex(id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int, multicast;
    fn leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int, multicast;
    fn notify(id: *mut rdma_cm_id, event: u32) -> c_int, connections;
    fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int, connections;
    fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int, connections;
    fn resolve_route(id: *mut rdma_cm_id, timeout: c_int) -> c_int, ids;
    fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, connections;
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

/// Calls by which an id whose place is still open is given one, or that concern both of its halves.
macro_rules! placed {
    ($(
        fn $name:ident(id: *mut rdma_cm_id $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?, $module:ident;
    )*) => {$(
        /// The function of that name.
        ///
        /// # Safety
        /// As for the software devices' function.
        pub(crate) unsafe extern "C" fn $name(id: *mut rdma_cm_id, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's promise, which is the same for all.
            unsafe {
                if let Some(open) = worlds::open(id) {
                    open.$name($($arg),*)
                } else if kernel::is_kernels(id) {
                    kernel::$name(id, $($arg),*)
                } else {
                    $module::$name(id, $($arg),*)
                }
            }
        }
    )*};
}

placed! {
    fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int, ids;
    fn destroy_id(id: *mut rdma_cm_id) -> c_int, ids;
    fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int, ids;
    fn resolve_addr(id: *mut rdma_cm_id, src: *mut libc::sockaddr, dst: *mut libc::sockaddr, timeout: c_int) -> c_int, ids;
    fn set_option(id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int, options;
}

/// rdma_create_id(3): of a software device, or of none yet, where the channel allows that.
///
/// # Safety
/// As for [`ids::create_id`].
pub(crate) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    // SAFETY: the caller's promise, which is the same for both.
    unsafe {
        match is_only_kernels(channel) {
            true => kernel::create_id(channel, out, context, ps),
            false => ids::create_id(channel, out, context, ps),
        }
    }
}

/// Whether a channel, or one that was made now for none, has no part of the software devices'.
///
/// # Safety
/// As for [`objects::channel`].
pub(super) unsafe fn is_only_kernels(channel: *mut rdma_event_channel) -> bool {
    if channel.is_null() {
        return host().is_ok_and(|host| host.config().soft.value == Soft::Off);
    }
    // SAFETY: the caller's promise.
    unsafe { objects::channel(channel) }.is_ok_and(|channel| channel.soft().is_none())
}
