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
use std::sync::OnceLock;

use ironverbs_kernel::rxe;

use super::abi::*;
use super::own::{self, free_if, zeroed};
use super::{cmd_attach_mcast, cmd_detach_mcast, cmd_req_notify_cq};
use crate::abi::*;

/// What this driver would register as a plug-in.
pub(super) fn registered() -> *const verbs_device_ops {
    static OPS: OnceLock<usize> = OnceLock::new();
    own::registered(&OPS, c"rxe", rxe::ABI, alloc_context)
}

unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: the library's promise: a device of this driver, a descriptor to keep.
    unsafe { own::open(device, cmd_fd, rxe::DRIVER, &mut [], &table()) }
}

/// What this driver can do; the rest is answered with EOPNOTSUPP.
fn table() -> verbs_context_ops {
    own::table! {
        alloc_mw: memory::alloc_mw,
        alloc_pd: own::alloc_pd,
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
        dealloc_pd: own::dealloc_pd,
        dereg_mr: own::dereg_mr,
        destroy_ah: objects::destroy_ah,
        destroy_cq: cq::destroy_cq,
        destroy_qp: qp::destroy_qp,
        destroy_srq: srq::destroy_srq,
        detach_mcast: cmd_detach_mcast,
        free_context: own::free_context,
        modify_qp: own::modify_qp,
        modify_srq: srq::modify_srq,
        poll_cq: cq::poll_cq,
        post_recv: post::post_recv,
        post_send: post::post_send,
        post_srq_recv: post::post_srq_recv,
        query_device_ex: own::query_device_ex,
        query_port: own::query_port,
        query_qp: own::query_qp,
        query_srq: own::query_srq,
        reg_mr: memory::reg_mr,
        req_notify_cq: cmd_req_notify_cq,
        resize_cq: cq::resize_cq,
    }
}
