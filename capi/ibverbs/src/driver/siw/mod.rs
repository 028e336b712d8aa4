//! The kernel's software iWARP by a data path of our own: what a driver plug-in registers, but built in.
//!
//! Objects come from the kernel by the calls that plug-ins make, too; requests and completions go through queues that the
//! kernel shares (`ironverbs_kernel::siw`). Queue pairs are RC, and connected by the kernel's connection manager for iWARP alone.

mod cq;
mod post;
mod qp;
mod ring;
mod srq;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use ironverbs_kernel::siw;

use super::abi::*;
use super::cmd_reg_mr;
use super::own::{self, free_if, zeroed};
use crate::abi::*;

/// What this driver would register as a plug-in.
pub(super) fn registered() -> *const verbs_device_ops {
    static OPS: OnceLock<usize> = OnceLock::new();
    own::registered(&OPS, c"siw", siw::ABI, alloc_context)
}

unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    // The device's number, which is of no use.
    let mut response = [0_u8; 8 + siw::CONTEXT_RESPONSE];
    // SAFETY: the library's promise: a device of this driver, a descriptor to keep.
    unsafe { own::open(device, cmd_fd, siw::DRIVER, &mut response, &table()) }
}

/// What this driver can do; the rest is answered with EOPNOTSUPP.
fn table() -> verbs_context_ops {
    own::table! {
        alloc_pd: own::alloc_pd,
        create_cq: cq::create_cq,
        create_qp: qp::create_qp,
        create_srq: srq::create_srq,
        dealloc_pd: own::dealloc_pd,
        dereg_mr: own::dereg_mr,
        destroy_cq: cq::destroy_cq,
        destroy_qp: qp::destroy_qp,
        destroy_srq: srq::destroy_srq,
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
        reg_mr: reg_mr,
        req_notify_cq: cq::req_notify_cq,
    }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    /// Bytes of the command's header and fixed part, and of the answer's.
    const FIXED: (usize, usize) = (8 + 40, 12);
    // The kernel's part asks for the last byte of the key, of which there is no use: zeros.
    let mut command = [0_u8; FIXED.0 + siw::MR_RESPONSE];
    let mut response = [0_u8; FIXED.1 + siw::MR_RESPONSE];
    // SAFETY: the verb's promise.
    unsafe {
        let mr = zeroed::<verbs_mr>();
        if mr.is_null() {
            return ptr::null_mut();
        }
        let (cmd, cmd_len) = (command.as_mut_ptr().cast(), command.len());
        let (out, len) = (response.as_mut_ptr().cast(), response.len());
        if cmd_reg_mr(pd, addr, length, iova, access, mr, cmd, cmd_len, out, len) == 0 {
            return mr.cast();
        }
        libc::free(mr.cast());
        ptr::null_mut()
    }
}
