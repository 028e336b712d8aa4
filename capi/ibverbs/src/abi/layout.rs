//! Sizes and offsets as gcc computes them from the header on x86-64. The tests ask gcc again.
#![cfg(target_arch = "x86_64")]

use std::mem::{offset_of, size_of};

use super::*;

macro_rules! layout {
    ($($name:ident $size:literal { $($field:ident $offset:literal)* })*) => {$(
        const _: () = assert!(size_of::<$name>() == $size);
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    )*};
}

layout! {
    ibv_device 664 {
        _ops 0 node_type 16 transport_type 20 name 24 dev_name 88 dev_path 152 ibdev_path 408
    }
    ibv_context_ops 256 {
        _compat 0 alloc_mw 56 bind_mw 64 dealloc_mw 72 _compat_create_cq 80 poll_cq 88
        req_notify_cq 96 _compat_cq_event 104 post_srq_recv 160 _compat_create_qp 168 post_send 200
        post_recv 208 _compat_create_ah 216
    }
    ibv_context 328 {
        device 0 ops 8 cmd_fd 264 async_fd 268 num_comp_vectors 272 mutex 280 abi_compat 320
    }
    verbs_context 648 {
        query_port 0 advise_mr 8 alloc_null_mr 16 read_counters 24 attach_counters_point_flow 32
        create_counters 40 destroy_counters 48 reg_dm_mr 56 alloc_dm 64 free_dm 72
        modify_flow_action_esp 80 destroy_flow_action 88 create_flow_action_esp 96
        modify_qp_rate_limit 104 alloc_parent_domain 112 dealloc_td 120 alloc_td 128 modify_cq 136
        post_srq_ops 144 destroy_rwq_ind_table 152 create_rwq_ind_table 160 destroy_wq 168
        modify_wq 176 create_wq 184 query_rt_values 192 create_cq_ex 200 priv_ 208
        query_device_ex 216 ibv_destroy_flow 224 abi_placeholder2 232 ibv_create_flow 240
        abi_placeholder1 248 open_qp 256 create_qp_ex 264 get_srq_num 272 create_srq_ex 280
        open_xrcd 288 close_xrcd 296 _abi_placeholder3 304 sz 312 context 320
    }
    ibv_pd 16 { context 0 handle 8 }
    ibv_mr 48 { context 0 pd 8 addr 16 length 24 handle 32 lkey 36 rkey 40 }
    ibv_mw 32 { context 0 pd 8 rkey 16 handle 20 type_ 24 }
    ibv_dm 32 { context 0 memcpy_to_dm 8 memcpy_from_dm 16 comp_mask 24 handle 28 }
    ibv_td 8 { context 0 }
    ibv_alloc_dm_attr 16 { length 0 log_align_req 8 comp_mask 12 }
    ibv_parent_domain_init_attr 48 { pd 0 td 8 comp_mask 16 alloc 24 free 32 pd_context 40 }
    ibv_values_ex 24 { comp_mask 0 raw_clock 8 }
    ibv_ah 24 { context 0 pd 8 handle 16 }
    ibv_comp_channel 16 { context 0 fd 8 refcnt 12 }
    ibv_cq 128 {
        context 0 channel 8 cq_context 16 handle 24 cqe 28 mutex 32 cond 72
        comp_events_completed 120 async_events_completed 124
    }
    ibv_cq_ex 288 {
        comp_mask 128 status 132 wr_id 136 start_poll 144 next_poll 152 end_poll 160 read_opcode 168
        read_vendor_err 176 read_byte_len 184 read_imm_data 192 read_qp_num 200 read_src_qp 208
        read_wc_flags 216 read_slid 224 read_sl 232 read_dlid_path_bits 240 read_completion_ts 248
        read_cvlan 256 read_flow_tag 264 read_tm_info 272 read_completion_wallclock_ns 280
    }
    ibv_srq 128 { context 0 srq_context 8 pd 16 handle 24 mutex 32 cond 72 events_completed 120 }
    ibv_qp 160 {
        context 0 qp_context 8 pd 16 send_cq 24 recv_cq 32 srq 40 handle 48 qp_num 52 state 56
        qp_type 60 mutex 64 cond 104 events_completed 152
    }
    ibv_qp_ex 352 {
        qp_base 0 comp_mask 160 wr_id 168 wr_flags 176 wr_atomic_cmp_swp 184 wr_atomic_fetch_add 192
        wr_bind_mw 200 wr_local_inv 208 wr_rdma_read 216 wr_rdma_write 224 wr_rdma_write_imm 232
        wr_send 240 wr_send_imm 248 wr_send_inv 256 wr_send_tso 264 wr_set_ud_addr 272
        wr_set_xrc_srqn 280 wr_set_inline_data 288 wr_set_inline_data_list 296 wr_set_sge 304
        wr_set_sge_list 312 wr_start 320 wr_complete 328 wr_abort 336 wr_atomic_write 344
    }
    ibv_xrcd 8 { context 0 }
    ibv_wq 152 {
        context 0 wq_context 8 pd 16 cq 24 wq_num 32 handle 36 state 40 wq_type 44 post_recv 48
        mutex 56 cond 96 events_completed 144 comp_mask 148
    }
    ibv_wq_init_attr 48 { max_wr 12 max_sge 16 pd 24 cq 32 comp_mask 40 create_flags 44 }
    ibv_wq_attr 20 { flags_mask 16 }
    ibv_rwq_ind_table 24 { ind_tbl_handle 8 ind_tbl_num 12 comp_mask 16 }
    ibv_rwq_ind_table_init_attr 24 { log_ind_tbl_size 0 ind_tbl 8 comp_mask 16 }
    ibv_flow_attr 20 { type_ 4 size 8 priority 10 num_of_specs 12 port 13 flags 16 }
    ibv_flow 24 { comp_mask 0 context 8 handle 16 }
    ibv_counters 8 { context 0 }
    ibv_counters_init_attr 4 {}
    ibv_counter_attach_attr 12 { counter_desc 0 index 4 comp_mask 8 }
    ib_user_path_rec 64 {}
    ib_uverbs_ah_attr 32 {}
    ib_uverbs_qp_attr 144 {}
    ibv_ah_attr 32 {}
    ibv_async_event 16 {}
    ibv_cq_init_attr_ex 56 {}
    ibv_data_buf 16 {}
    ibv_device_attr 232 {}
    ibv_device_attr_ex 400 { comp_mask 232 phys_port_cnt_ex 396 }
    ibv_ece 12 {}
    ibv_gid_entry 32 {}
    ibv_global_route 24 {}
    ibv_grh 40 {}
    ibv_mw_bind 48 { wr_id 0 send_flags 8 bind_info 16 }
    ibv_mw_bind_info 32 {}
    ibv_odp_caps 24 {}
    ibv_port_attr 52 {}
    ibv_qp_attr 144 { ah_attr 56 rate_limit 136 }
    ibv_qp_cap 20 {}
    ibv_qp_init_attr 64 {}
    ibv_qp_init_attr_ex 136 { comp_mask 60 pd 64 xrcd 72 send_ops_flags 128 }
    ibv_qp_open_attr 32 { xrcd 8 qp_context 16 qp_type 24 }
    ibv_recv_wr 32 {}
    ibv_rss_caps 32 {}
    ibv_rx_hash_conf 24 {}
    ibv_sa_path_rec 64 { pkey 54 }
    ibv_send_wr 128 { wr 40 remote_srqn 72 bind_mw 80 }
    ibv_sge 16 {}
    ibv_srq_attr 12 {}
    ibv_srq_init_attr 24 {}
    ibv_srq_init_attr_ex 64 { comp_mask 20 srq_type 24 pd 32 xrcd 40 cq 48 }
    ibv_xrcd_init_attr 12 { fd 4 oflags 8 }
    ibv_wc 48 { dlid_path_bits 45 }
    ibv_wc_tm_info 16 {}
    rdma_addr 296 { src_addr 0 dst_addr 128 addr 256 }
    rdma_addrinfo 96 {
        ai_flags 0 ai_family 4 ai_qp_type 8 ai_port_space 12 ai_src_len 16 ai_dst_len 20
        ai_src_addr 24 ai_dst_addr 32 ai_src_canonname 40 ai_dst_canonname 48 ai_route_len 56
        ai_route 64 ai_connect_len 72 ai_connect 80 ai_next 88
    }
    rdma_cm_event 80 { id 0 listen_id 8 event 16 status 20 param 24 }
    rdma_cm_id 416 {
        verbs 0 channel 8 context 16 qp 24 route 32 ps 344 port_num 348 event 352
        send_cq_channel 360 send_cq 368 recv_cq_channel 376 recv_cq 384 srq 392 pd 400 qp_type 408
    }
    rdma_cm_join_mc_attr_ex 16 { comp_mask 0 join_flags 4 addr 8 }
    rdma_conn_param 24 {
        private_data 0 private_data_len 8 responder_resources 9 initiator_depth 10 flow_control 11
        retry_count 12 rnr_retry_count 13 srq 14 qp_num 16
    }
    rdma_event_channel 4 { fd 0 }
    rdma_ib_addr 40 { sgid 0 dgid 16 pkey 32 }
    rdma_route 312 { addr 0 path_rec 296 num_paths 304 }
    rdma_ud_param 56 { private_data 0 private_data_len 8 ah_attr 16 qp_num 48 qkey 52 }
}
