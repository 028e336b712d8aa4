//! Raw packets: work queues, tables of them, flows, counters.

use std::ffi::{c_int, c_void};

use super::*;

/// A raw packet queue pair: to programs as any other, in a pool of its own.
#[repr(C)]
pub(crate) struct raw_qp {
    pub(crate) ex: ibv_qp_ex,
}

#[repr(C)]
pub(crate) struct ibv_wq {
    pub(crate) context: *mut ibv_context,
    pub(crate) wq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) wq_num: u32,
    pub(crate) handle: u32,
    pub(crate) state: u32,
    pub(crate) wq_type: u32,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_wq_init_attr {
    pub(crate) wq_context: *mut c_void,
    pub(crate) wq_type: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) create_flags: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_wq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) wq_state: u32,
    pub(crate) curr_wq_state: u32,
    pub(crate) flags: u32,
    pub(crate) flags_mask: u32,
}

#[repr(C)]
pub(crate) struct ibv_rwq_ind_table {
    pub(crate) context: *mut ibv_context,
    pub(crate) ind_tbl_handle: u32,
    pub(crate) ind_tbl_num: u32,
    pub(crate) comp_mask: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_rwq_ind_table_init_attr {
    pub(crate) log_ind_tbl_size: u32,
    pub(crate) ind_tbl: *mut *mut ibv_wq,
    pub(crate) comp_mask: u32,
}

/// The specifications follow it.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_flow_attr {
    pub(crate) comp_mask: u32,
    pub(crate) type_: u32,
    pub(crate) size: u16,
    pub(crate) priority: u16,
    pub(crate) num_of_specs: u8,
    pub(crate) port: u8,
    pub(crate) flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_flow {
    pub(crate) comp_mask: u32,
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_counters {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_counters_init_attr {
    pub(crate) comp_mask: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_counter_attach_attr {
    pub(crate) counter_desc: u32,
    pub(crate) index: u32,
    pub(crate) comp_mask: u32,
}
