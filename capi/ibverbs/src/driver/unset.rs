//! What stands for a function that a driver does not have.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::abi::*;
use crate::fail;

extern "C" fn refused() -> c_int {
    fail::set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

extern "C" fn nothing() -> *mut c_void {
    fail::set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

extern "C" fn zero() -> c_int {
    0
}

/// IBV_REREG_MR_ERR_INPUT.
extern "C" fn wrong_input() -> c_int {
    fail::set_errno(libc::EOPNOTSUPP);
    -1
}

/// All of them. Their arguments do not matter to them.
pub(super) fn all() -> verbs_context_ops {
    let (status, object) = (refused as *const c_void, nothing as *const c_void);
    let silent = zero as *const c_void;
    verbs_context_ops {
        advise_mr: status,
        alloc_dm: object,
        alloc_mw: object,
        alloc_null_mr: object,
        alloc_parent_domain: object,
        alloc_pd: object,
        alloc_td: object,
        async_event: silent,
        attach_counters_point_flow: status,
        attach_mcast: status,
        bind_mw: status,
        close_xrcd: status,
        cq_event: silent,
        create_ah: object,
        create_counters: object,
        create_cq: object,
        create_cq_ex: object,
        create_flow: object,
        create_flow_action_esp: object,
        create_qp: object,
        create_qp_ex: object,
        create_rwq_ind_table: object,
        create_srq: object,
        create_srq_ex: object,
        create_wq: object,
        dealloc_mw: status,
        dealloc_pd: status,
        dealloc_td: status,
        dereg_mr: status,
        destroy_ah: status,
        destroy_counters: status,
        destroy_cq: status,
        destroy_flow: status,
        destroy_flow_action: status,
        destroy_qp: status,
        destroy_rwq_ind_table: status,
        destroy_srq: status,
        destroy_wq: status,
        detach_mcast: status,
        free_context: silent,
        free_dm: status,
        get_srq_num: status,
        import_dm: object,
        import_mr: object,
        import_pd: object,
        modify_cq: status,
        modify_flow_action_esp: status,
        modify_qp: status,
        modify_qp_rate_limit: status,
        modify_srq: status,
        modify_wq: status,
        open_qp: object,
        open_xrcd: object,
        poll_cq: status,
        post_recv: status,
        post_send: status,
        post_srq_ops: status,
        post_srq_recv: status,
        query_device_ex: status,
        query_ece: status,
        query_port: status,
        query_qp: status,
        query_qp_data_in_order: silent,
        query_rt_values: status,
        query_srq: status,
        read_counters: status,
        reg_dm_mr: object,
        reg_dmabuf_mr: object,
        reg_mr: object,
        req_notify_cq: status,
        rereg_mr: wrong_input as *const c_void,
        resize_cq: status,
        set_ece: status,
        unimport_dm: silent,
        unimport_mr: silent,
        unimport_pd: silent,
    }
}
