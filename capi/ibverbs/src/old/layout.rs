//! The structures of version 1.0.
//!
//! Fields that programs use come first; the pointer to the object of today takes the place of what
//! only the library used.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_void};

use crate::abi::*;

#[repr(C)]
pub(crate) struct ibv_device_1_0 {
    pub(crate) sysfs: [*const c_void; 2],
    pub(crate) real: *mut ibv_device,
    pub(crate) _ops: [*const c_void; 2],
}

#[repr(C)]
pub(crate) struct ibv_context_ops_1_0 {
    pub(crate) query_device: [Unused; 7],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq_1_0, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq_1_0, c_int) -> c_int>,
    pub(crate) cq_event: [Unused; 7],
    pub(crate) post_srq_recv: Option<
        unsafe extern "C" fn(
            *mut ibv_srq_1_0,
            *mut ibv_recv_wr_1_0,
            *mut *mut ibv_recv_wr_1_0,
        ) -> c_int,
    >,
    pub(crate) create_qp: [Unused; 4],
    pub(crate) post_send: Option<
        unsafe extern "C" fn(
            *mut ibv_qp_1_0,
            *mut ibv_send_wr_1_0,
            *mut *mut ibv_send_wr_1_0,
        ) -> c_int,
    >,
    pub(crate) post_recv: Option<
        unsafe extern "C" fn(
            *mut ibv_qp_1_0,
            *mut ibv_recv_wr_1_0,
            *mut *mut ibv_recv_wr_1_0,
        ) -> c_int,
    >,
    pub(crate) create_ah: [Unused; 4],
}

#[repr(C)]
pub(crate) struct ibv_context_1_0 {
    pub(crate) device: *mut ibv_device_1_0,
    pub(crate) ops: ibv_context_ops_1_0,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) real: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_pd_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) handle: u32,
    pub(crate) real: *mut ibv_pd,
}

#[repr(C)]
pub(crate) struct ibv_mr_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) pd: *mut ibv_pd_1_0,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) real: *mut ibv_mr,
}

#[repr(C)]
pub(crate) struct ibv_ah_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) pd: *mut ibv_pd_1_0,
    pub(crate) handle: u32,
    pub(crate) real: *mut ibv_ah,
}

#[repr(C)]
pub(crate) struct ibv_cq_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
    pub(crate) real: *mut ibv_cq,
}

#[repr(C)]
pub(crate) struct ibv_srq_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd_1_0,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
    pub(crate) real: *mut ibv_srq,
}

#[repr(C)]
pub(crate) struct ibv_qp_1_0 {
    pub(crate) context: *mut ibv_context_1_0,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd_1_0,
    pub(crate) send_cq: *mut ibv_cq_1_0,
    pub(crate) recv_cq: *mut ibv_cq_1_0,
    pub(crate) srq: *mut ibv_srq_1_0,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
    pub(crate) real: *mut ibv_qp,
}

/// As today's, but for the types behind its pointers.
#[repr(C)]
pub(crate) struct ibv_qp_init_attr_1_0 {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq_1_0,
    pub(crate) recv_cq: *mut ibv_cq_1_0,
    pub(crate) srq: *mut ibv_srq_1_0,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}

/// `next` before `wr_id`, and nothing after the union.
#[repr(C)]
pub(crate) struct ibv_send_wr_1_0 {
    pub(crate) next: *mut ibv_send_wr_1_0,
    pub(crate) wr_id: u64,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    pub(crate) imm_data: u32,
    /// The address handle of a datagram is one of 1.0.
    pub(crate) wr: wr_union,
}

#[repr(C)]
pub(crate) struct ibv_recv_wr_1_0 {
    pub(crate) next: *mut ibv_recv_wr_1_0,
    pub(crate) wr_id: u64,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[cfg(target_arch = "x86_64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(ibv_device_1_0, real) == 16);
    assert!(offset_of!(ibv_context_1_0, ops) + offset_of!(ibv_context_ops_1_0, poll_cq) == 64);
    assert!(offset_of!(ibv_context_1_0, ops) + offset_of!(ibv_context_ops_1_0, post_send) == 176);
    assert!(offset_of!(ibv_context_1_0, async_fd) == 228);
    assert!(offset_of!(ibv_context_1_0, real) == 240);
    assert!(size_of::<ibv_pd_1_0>() == 24);
    assert!(size_of::<ibv_mr_1_0>() == 40);
    assert!(offset_of!(ibv_mr_1_0, lkey) == 20);
    assert!(offset_of!(ibv_qp_1_0, qp_num) == 52);
    assert!(offset_of!(ibv_qp_1_0, real) == 160);
    assert!(offset_of!(ibv_cq_1_0, cqe) == 20);
    assert!(offset_of!(ibv_cq_1_0, real) == 120);
    assert!(offset_of!(ibv_send_wr_1_0, wr) == 40);
    assert!(size_of::<ibv_send_wr_1_0>() == 72);
    assert!(size_of::<ibv_recv_wr_1_0>() == 32);
};
