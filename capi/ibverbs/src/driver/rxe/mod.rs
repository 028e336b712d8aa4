//! The kernel's soft-RoCE by a data path of our own: what a driver plug-in registers, but built in.
//!
//! Objects come from the kernel by the calls that plug-ins make, too; requests and completions go through queues that the
//! kernel shares (`ironverbs_kernel::rxe`). Mapping them and writing to them is here, with what lies in them checked there.

mod build;
mod cq;
mod memory;
mod objects;
mod post;
mod qp;
mod queue;
mod srq;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use ironverbs_kernel::command::{QUERY_DEVICE_EXTENDED_RESPONSE, Response};
use ironverbs_kernel::rxe;

use super::abi::*;
use super::{
    cmd_attach_mcast, cmd_detach_mcast, cmd_get_context, cmd_query_device_any, cmd_query_port,
    cmd_req_notify_cq, init_and_alloc_context, set_ops, uninit_context,
};
use crate::abi::*;
use crate::fail;

/// What this driver would register as a plug-in.
pub(super) fn registered() -> *const verbs_device_ops {
    static OPS: OnceLock<usize> = OnceLock::new();
    let made = OPS.get_or_init(|| {
        let ops = verbs_device_ops {
            name: c"rxe".as_ptr(),
            match_min_abi_version: *rxe::ABI.start(),
            match_max_abi_version: *rxe::ABI.end(),
            match_table: ptr::null(),
            static_providers: ptr::null(),
            match_device: None,
            alloc_context: Some(alloc_context),
            import_context: None,
            alloc_device: None,
            uninit_device: None,
        };
        // As long as the process, as a plug-in's.
        Box::into_raw(Box::new(ops)).expose_provenance()
    });
    ptr::with_exposed_provenance(*made)
}

/// Memory for an object of C, all zeros; null with ENOMEM.
///
/// # Safety
/// Zeros are a valid `T`.
unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: calloc has no requirements.
    let object = unsafe { libc::calloc(1, size_of::<T>()) }.cast::<T>();
    if object.is_null() {
        fail::set_errno(libc::ENOMEM);
    }
    object
}

/// Frees an object if what ended it worked.
///
/// # Safety
/// `object` came from [`zeroed`], and is used no more where `errno` is 0.
unsafe fn free_if<T>(errno: c_int, object: *mut T) -> c_int {
    if errno == 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::free(object.cast()) };
    }
    errno
}

unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: the library's promise: a device of this driver, a descriptor to keep.
    unsafe {
        let size = size_of::<verbs_context>();
        let memory = init_and_alloc_context(device, cmd_fd, size, ptr::null_mut(), rxe::DRIVER);
        let context = memory.cast::<verbs_context>();
        if context.is_null() {
            return context;
        }
        let (none, null) = (0, ptr::null_mut());
        let errno = cmd_get_context(context, null, none, null, none);
        if errno != 0 {
            uninit_context(context);
            libc::free(memory);
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        set_ops(context, &table());
        context
    }
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: the library's promise: a context of this driver, which it uses no more.
    unsafe {
        let whole = context.byte_sub(std::mem::offset_of!(verbs_context, context));
        uninit_context(whole.cast());
        libc::free(whole.cast());
    }
}

/// What this driver can do; the rest is answered with EOPNOTSUPP.
fn table() -> verbs_context_ops {
    macro_rules! table {
        ($($name:ident: $function:expr,)*) => {{
            // SAFETY: the structure is pointers, for which zeros are null.
            let mut ops: verbs_context_ops = unsafe { std::mem::zeroed() };
            $(ops.$name = $function as *const c_void;)*
            ops
        }};
    }
    table! {
        alloc_mw: memory::alloc_mw,
        alloc_pd: objects::alloc_pd,
        attach_mcast: cmd_attach_mcast,
        bind_mw: memory::bind_mw,
        create_ah: objects::create_ah,
        create_cq: cq::create_cq,
        create_cq_ex: cq::create_cq_ex,
        create_qp: qp::create_qp,
        create_qp_ex: qp::create_qp_ex,
        create_srq: srq::create_srq,
        create_srq_ex: srq::create_srq_ex,
        dealloc_mw: memory::dealloc_mw,
        dealloc_pd: objects::dealloc_pd,
        dereg_mr: memory::dereg_mr,
        destroy_ah: objects::destroy_ah,
        destroy_cq: cq::destroy_cq,
        destroy_qp: qp::destroy_qp,
        destroy_srq: srq::destroy_srq,
        detach_mcast: cmd_detach_mcast,
        free_context: free_context,
        modify_qp: qp::modify_qp,
        modify_srq: srq::modify_srq,
        poll_cq: cq::poll_cq,
        post_recv: post::post_recv,
        post_send: post::post_send,
        post_srq_recv: post::post_srq_recv,
        query_device_ex: query_device_ex,
        query_port: query_port,
        query_qp: qp::query_qp,
        query_srq: srq::query_srq,
        reg_mr: memory::reg_mr,
        req_notify_cq: cmd_req_notify_cq,
        resize_cq: cq::resize_cq,
    }
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let mut response = [0_u8; QUERY_DEVICE_EXTENDED_RESPONSE];
    let mut room = response.len();
    // SAFETY: the library's promise.
    unsafe {
        let told = response.as_mut_ptr().cast();
        let errno = cmd_query_device_any(context, input.cast(), attr, size, told, &raw mut room);
        if errno != 0 {
            return errno;
        }
        // Three numbers of 16 bits.
        let version = Response(&response).u64(0);
        let part = |shift: u32| version >> shift & 0xffff;
        let text = format!("{}.{}.{}", part(32), part(16), part(0));
        let field = &raw mut (*attr).orig_attr.fw_ver;
        super::device::put(&mut *field, &text);
    }
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the library's promise.
    unsafe { cmd_query_port(context, port, attr, ptr::null_mut(), 0) }
}
