//! Numbers of the header's enumerations that no Rust enumeration below us already has.

use std::ffi::c_int;

pub(crate) const IBV_NODE_CA: c_int = 1;
pub(crate) const IBV_TRANSPORT_IB: c_int = 0;

pub(crate) const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// `enum ibv_gid_type_sysfs` of the private interface: RoCE v2 is 1 there.
pub(crate) const GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

pub(crate) const IBV_FORK_UNNEEDED: c_int = 2;

pub(crate) const IBV_QPT_RAW_PACKET: u32 = 8;
pub(crate) const IBV_QPT_XRC_SEND: u32 = 9;
pub(crate) const IBV_QPT_XRC_RECV: u32 = 10;
pub(crate) const IBV_QPT_DRIVER: u32 = 0xff;

pub(crate) const IBV_SRQ_MAX_WR: c_int = 1;
pub(crate) const IBV_SRQ_LIMIT: c_int = 2;

pub(crate) const IBV_SRQT_BASIC: c_int = 0;
pub(crate) const IBV_SRQT_XRC: c_int = 1;
pub(crate) const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
pub(crate) const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub(crate) const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub(crate) const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;

pub(crate) const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
pub(crate) const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

pub(crate) const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
pub(crate) const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub(crate) const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub(crate) const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;

pub(crate) const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub(crate) const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub(crate) const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub(crate) const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
pub(crate) const IBV_QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
pub(crate) const IBV_QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
pub(crate) const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub(crate) const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub(crate) const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub(crate) const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
pub(crate) const IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
pub(crate) const IBV_QP_EX_WITH_BIND_MW: u64 = 1 << 8;
pub(crate) const IBV_QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;
pub(crate) const IBV_QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;
/// Of `device_cap_flags_ex`: IB_UVERBS_DEVICE_ATOMIC_WRITE.
pub(crate) const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

pub(crate) const IBV_RX_HASH_FUNC_TOEPLITZ: u8 = 1;
pub(crate) const IBV_RAW_PACKET_CAP_IP_CSUM: u32 = 1 << 2;
pub(crate) const IBV_WQT_RQ: u32 = 0;
pub(crate) const IBV_WQ_INIT_ATTR_FLAGS: u32 = 1;
pub(crate) const IBV_WQ_ATTR_STATE: u32 = 1;
pub(crate) const IBV_WQ_ATTR_CURR_STATE: u32 = 1 << 1;
pub(crate) const IBV_WQ_ATTR_FLAGS: u32 = 1 << 2;
pub(crate) const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: u32 = 1 << 1;
pub(crate) const IBV_FLOW_ATTR_FLAGS_EGRESS: u32 = 1 << 2;
pub(crate) const IBV_FLOW_SPEC_INNER: u32 = 0x100;
pub(crate) const IBV_FLOW_SPEC_ACTION_TAG: u32 = 0x1000;
pub(crate) const IBV_FLOW_SPEC_ACTION_DROP: u32 = 0x1001;
pub(crate) const IBV_FLOW_SPEC_ACTION_HANDLE: u32 = 0x1002;
pub(crate) const IBV_FLOW_SPEC_ACTION_COUNT: u32 = 0x1003;
pub(crate) const IBV_READ_COUNTERS_ATTR_PREFER_CACHED: u32 = 1;

pub(crate) const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub(crate) const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub(crate) const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
pub(crate) const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
pub(crate) const IBV_CQ_ATTR_MODERATE: u32 = 1;
pub(crate) const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;
pub(crate) const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;

pub(crate) const IBV_DM_MASK_HANDLE: u32 = 1;

pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH: u32 = 0;
pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: u32 = 1;
pub(crate) const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: u32 = 2;
pub(crate) const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;

pub(crate) const IBV_ODP_SUPPORT: u64 = 1;
pub(crate) const IBV_ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;

pub(crate) const IBV_REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub(crate) const IBV_REREG_MR_CHANGE_PD: c_int = 1 << 1;
pub(crate) const IBV_REREG_MR_CHANGE_ACCESS: c_int = 1 << 2;
/// The region is as it was: the input was at fault.
pub(crate) const IBV_REREG_MR_ERR_INPUT: c_int = -1;

/// Access flags a device may ignore: bits 20 to 29.
pub(crate) const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;

/// `context.abi_compat` of a context with a `verbs_context` around it.
pub(crate) const VERBS_ABI_IS_EXTENDED: *mut std::ffi::c_void = usize::MAX as *mut _;
