//! The one place where a verb goes either to a software device or to a kernel device's driver: by the context of the
//! object that is its first argument. Where no context of a driver is open, that costs one load.
//!
//! Verbs behind the header's inline functions do not come here: they go through the table of the object's context.

use std::ffi::{c_int, c_void};

use crate::abi::*;
use crate::driver;
use crate::{ah, cq, device, events, import, misc, mr, qp, qp_ex, query, srq};

macro_rules! dispatch {
    ($abi:literal: $(
        fn $name:ident($object:ident: $of:ty $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?, $module:ident;
    )*) => {$(
        /// The verb of that name.
        ///
        /// # Safety
        /// As for the software devices' function.
        pub(crate) unsafe extern $abi fn $name($object: $of, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's promise, which is the same for both.
            unsafe {
                match driver::of($object) {
                    None => $module::$name($object, $($arg),*),
                    Some(driven) => driver::verbs::$name(driven, $object, $($arg),*),
                }
            }
        }
    )*};
}

dispatch! { "C":
    fn ack_cq_events(cq: *mut ibv_cq, n: u32), cq;
    fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, mr;
    fn attach_mcast(qp: *mut ibv_qp, gid: *const c_void, lid: u16) -> c_int, qp;
    fn close_device(context: *mut ibv_context) -> c_int, device;
    fn create_ah(pd: *mut ibv_pd, attr: *const ibv_ah_attr) -> *mut ibv_ah, ah;
    fn create_ah_from_wc(pd: *mut ibv_pd, wc: *const ibv_wc, grh: *const ibv_grh, port: u8) -> *mut ibv_ah, ah;
    fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel, cq;
    fn create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq, cq;
    fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, qp;
    fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq, srq;
    fn dealloc_pd(pd: *mut ibv_pd) -> c_int, mr;
    fn dereg_mr(mr: *mut ibv_mr) -> c_int, mr;
    fn destroy_ah(ah: *mut ibv_ah) -> c_int, ah;
    fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, cq;
    fn destroy_cq(cq: *mut ibv_cq) -> c_int, cq;
    fn destroy_qp(qp: *mut ibv_qp) -> c_int, qp;
    fn destroy_srq(srq: *mut ibv_srq) -> c_int, srq;
    fn detach_mcast(qp: *mut ibv_qp, gid: *const c_void, lid: u16) -> c_int, qp;
    fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int, query;
    fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm, import;
    fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr, import;
    fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd, import;
    fn init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *const ibv_wc, grh: *const ibv_grh, attr: *mut ibv_ah_attr) -> c_int, ah;
    fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, qp;
    fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int, srq;
    fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, qp_ex;
    fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int, query;
    fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, qp;
    fn query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut [u8; 16]) -> c_int, query;
    fn query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize) -> c_int, query;
    fn query_gid_table(context: *mut ibv_context, entries: *mut u8, max: usize, flags: u32, size: usize) -> isize, query;
    fn query_gid_type(context: *mut ibv_context, port: u8, index: u32, out: *mut u32) -> c_int, query;
    fn query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int, query;
    fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int, query;
    fn query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int, qp;
    fn query_qp_data_in_order(qp: *mut ibv_qp, op: u32, flags: u32) -> c_int, qp;
    fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int, srq;
    fn reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr, mr;
    fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr, mr;
    fn reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr, mr;
    fn reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: u32) -> *mut ibv_mr, mr;
    fn rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int, mr;
    fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, cq;
    fn resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *const ibv_ah_attr, mac: *mut [u8; 6], vid: *mut u16) -> c_int, misc;
    fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, qp;
    fn unimport_dm(dm: *mut ibv_dm), import;
    fn unimport_mr(mr: *mut ibv_mr), import;
    fn unimport_pd(pd: *mut ibv_pd), import;
}

// A thread that waits in these may be cancelled, which unwinds it.
dispatch! { "C-unwind":
    fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, events;
    fn get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int, cq;
}

/// The verb of that name: the event says which object it is about.
///
/// # Safety
/// As for the software devices' function.
pub(crate) unsafe extern "C" fn ack_async_event(event: *const ibv_async_event) {
    // SAFETY: the caller's promise, which is the same for both.
    unsafe {
        let object =
            if event.is_null() { std::ptr::null_mut() } else { driver::event_object(event) };
        match driver::of(object) {
            None => events::ack_async_event(event),
            Some(driven) => driver::verbs::ack_async_event(driven, event),
        }
    }
}
