//! The structures of `<rdma/rdma_cma.h>`.

use std::ffi::{c_char, c_int, c_void};

use super::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_sa_path_rec, ibv_srq,
};

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

#[repr(C)]
pub(crate) struct rdma_ib_addr {
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
    /// The header's GID is a union with 64-bit members, which aligns the whole to 8.
    pub(crate) _align: [u64; 0],
    /// Network order.
    pub(crate) pkey: u16,
}

/// Room for a socket address of either family.
#[repr(C, align(8))]
#[derive(Copy, Clone)]
pub(crate) struct sockaddr_storage {
    pub(crate) bytes: [u8; 128],
}

/// Of `<infiniband/ib.h>`; network order, save the family and `sib_scope_id`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct sockaddr_ib {
    pub(crate) sib_family: u16,
    pub(crate) sib_pkey: u16,
    pub(crate) sib_flowinfo: u32,
    pub(crate) sib_addr: [u8; 16],
    pub(crate) sib_sid: u64,
    pub(crate) sib_sid_mask: u64,
    pub(crate) sib_scope_id: u64,
}

pub(crate) const AF_IB: c_int = 27;

/// Of `<infiniband/sa.h>`: a path and what it is for. The path is a PathRecord as the subnet's administrator sends it.
#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ibv_path_data {
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) path: [u8; 64],
}

/// A path for everything: management datagrams and data, both ways.
pub(crate) const PATH_FOR_ALL: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

#[repr(C)]
pub(crate) struct rdma_addr {
    pub(crate) src_addr: sockaddr_storage,
    pub(crate) dst_addr: sockaddr_storage,
    pub(crate) addr: rdma_ib_addr,
}

#[repr(C)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: *mut ibv_sa_path_rec,
    pub(crate) num_paths: c_int,
}

#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: rdma_route,
    pub(crate) ps: u32,
    pub(crate) port_num: u8,
    pub(crate) event: *mut rdma_cm_event,
    pub(crate) send_cq_channel: *mut ibv_comp_channel,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq_channel: *mut ibv_comp_channel,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) qp_type: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct rdma_ud_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

#[repr(C)]
pub(crate) union rdma_cm_event_param {
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
}

#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: u32,
    pub(crate) status: c_int,
    pub(crate) param: rdma_cm_event_param,
}

#[repr(C)]
pub(crate) struct rdma_addrinfo {
    pub(crate) ai_flags: c_int,
    pub(crate) ai_family: c_int,
    pub(crate) ai_qp_type: c_int,
    pub(crate) ai_port_space: c_int,
    pub(crate) ai_src_len: libc::socklen_t,
    pub(crate) ai_dst_len: libc::socklen_t,
    pub(crate) ai_src_addr: *mut libc::sockaddr,
    pub(crate) ai_dst_addr: *mut libc::sockaddr,
    pub(crate) ai_src_canonname: *mut c_char,
    pub(crate) ai_dst_canonname: *mut c_char,
    pub(crate) ai_route_len: usize,
    pub(crate) ai_route: *mut c_void,
    pub(crate) ai_connect_len: usize,
    pub(crate) ai_connect: *mut c_void,
    pub(crate) ai_next: *mut rdma_addrinfo,
}

#[repr(C)]
pub(crate) struct rdma_cm_join_mc_attr_ex {
    pub(crate) comp_mask: u32,
    pub(crate) join_flags: u32,
    pub(crate) addr: *mut libc::sockaddr,
}

pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 1 << 1;
pub(crate) const RAI_NOROUTE: c_int = 1 << 2;
pub(crate) const RAI_FAMILY: c_int = 1 << 3;

pub(crate) const RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 1 << 1;
pub(crate) const RDMA_MC_JOIN_FLAG_FULLMEMBER: u32 = 0;
pub(crate) const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u32 = 1;

pub(crate) const RDMA_OPTION_ID: c_int = 0;
pub(crate) const RDMA_OPTION_IB: c_int = 1;
pub(crate) const RDMA_OPTION_IB_PATH: c_int = 1;
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub(crate) const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
