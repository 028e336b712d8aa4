//! The objects that programs hold pointers to.

use std::ffi::{c_char, c_int, c_void};

use super::{ibv_context, ibv_data_buf, ibv_mw_bind_info, ibv_sge};

#[repr(C)]
pub(crate) struct ibv_device {
    pub(crate) _ops: [*const c_void; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) type_: c_int,
}

/// Device memory; the program copies through the pointers.
#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm:
        Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
    pub(crate) memcpy_from_dm:
        Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_wc_tm_info {
    pub(crate) tag: u64,
    pub(crate) priv_: u32,
}

type ReadU64 = unsafe extern "C" fn(*mut ibv_cq_ex) -> u64;
type ReadU32 = unsafe extern "C" fn(*mut ibv_cq_ex) -> u32;
type ReadU16 = unsafe extern "C" fn(*mut ibv_cq_ex) -> u16;
type ReadU8 = unsafe extern "C" fn(*mut ibv_cq_ex) -> u8;

/// The first fields are those of [`ibv_cq`]; the header promises that one may be cast to the other.
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub(crate) read_opcode: Option<ReadU32>,
    pub(crate) read_vendor_err: Option<ReadU32>,
    pub(crate) read_byte_len: Option<ReadU32>,
    pub(crate) read_imm_data: Option<ReadU32>,
    pub(crate) read_qp_num: Option<ReadU32>,
    pub(crate) read_src_qp: Option<ReadU32>,
    pub(crate) read_wc_flags: Option<ReadU32>,
    pub(crate) read_slid: Option<ReadU32>,
    pub(crate) read_sl: Option<ReadU8>,
    pub(crate) read_dlid_path_bits: Option<ReadU8>,
    pub(crate) read_completion_ts: Option<ReadU64>,
    pub(crate) read_cvlan: Option<ReadU16>,
    pub(crate) read_flow_tag: Option<ReadU32>,
    pub(crate) read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub(crate) read_completion_wallclock_ns: Option<ReadU64>,
}

#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

type Wr<A> = Option<A>;

#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) qp_base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    pub(crate) wr_atomic_cmp_swp: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub(crate) wr_atomic_fetch_add: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub(crate) wr_bind_mw:
        Wr<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub(crate) wr_local_inv: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_rdma_read: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub(crate) wr_rdma_write_imm: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_send: Wr<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_send_imm: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_inv: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_send_tso: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
    pub(crate) wr_set_ud_addr: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub(crate) wr_set_xrc_srqn: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub(crate) wr_set_inline_data: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub(crate) wr_set_inline_data_list:
        Wr<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub(crate) wr_set_sge: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub(crate) wr_set_sge_list: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub(crate) wr_start: Wr<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_complete: Wr<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub(crate) wr_abort: Wr<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub(crate) wr_atomic_write: Wr<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
}
