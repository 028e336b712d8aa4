//! The tables that inline functions jump through.

use std::ffi::c_int;
use std::ptr;

use crate::abi::*;
use crate::{cq, cq_ex, dm, domain, mr, mw, post, qp, query, raw, srq, xrcd};

const NONE: Unused = ptr::null();

/// A context with every table in place. Empty entries are operations that this device lacks: the
/// inline functions then answer EOPNOTSUPP themselves.
pub(crate) fn table(
    device: *mut ibv_device,
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port_ex),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        read_counters: Some(raw::counters::read_counters),
        attach_counters_point_flow: Some(raw::counters::attach_counters_point_flow),
        create_counters: Some(raw::counters::create_counters),
        destroy_counters: Some(raw::counters::destroy_counters),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: NONE,
        destroy_flow_action: NONE,
        create_flow_action_esp: NONE,
        modify_qp_rate_limit: NONE,
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: NONE,
        destroy_rwq_ind_table: Some(raw::wq::destroy_rwq_ind_table),
        create_rwq_ind_table: Some(raw::wq::create_rwq_ind_table),
        destroy_wq: Some(raw::wq::destroy_wq),
        modify_wq: Some(raw::wq::modify_wq),
        create_wq: Some(raw::wq::create_wq),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        priv_: NONE,
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: Some(raw::flow::destroy_flow),
        abi_placeholder2: NONE,
        ibv_create_flow: Some(raw::flow::create_flow),
        abi_placeholder1: NONE,
        open_qp: Some(xrcd::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        _abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: ibv_context_ops {
                _compat: [NONE; 7],
                alloc_mw: Some(mw::alloc_mw),
                bind_mw: Some(mw::bind_mw),
                dealloc_mw: Some(mw::dealloc_mw),
                _compat_create_cq: NONE,
                poll_cq: Some(cq::poll_cq),
                req_notify_cq: Some(cq::req_notify_cq),
                _compat_cq_event: [NONE; 7],
                post_srq_recv: Some(post::post_srq_recv),
                _compat_create_qp: [NONE; 4],
                post_send: Some(post::post_send),
                post_recv: Some(post::post_recv),
                _compat_create_ah: [NONE; 5],
            },
            cmd_fd,
            async_fd,
            num_comp_vectors,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: VERBS_ABI_IS_EXTENDED,
        },
    }
}
