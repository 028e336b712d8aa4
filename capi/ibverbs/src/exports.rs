//! Which function stands behind which exported name and version. Names and nodes are those of
//! `libibverbs.map`; a test compares what the linker made of both with `exports.txt`.

use crate::symver::{export_functions, export_object};
use crate::{
    cm, device, dispatch, driver, import, kern, misc, newer, old, rate, strings, subnet, sysfs,
    umad,
};

export_functions! { "IBVERBS_1.0", current:
    ibv_copy_path_rec_from_kern => kern::copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern => kern::copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern => kern::copy_qp_attr_from_kern,
    ibv_create_comp_channel => dispatch::create_comp_channel,
    ibv_destroy_comp_channel => dispatch::destroy_comp_channel,
    ibv_get_sysfs_path => sysfs::get_sysfs_path,
    ibv_rate_to_mult => rate::rate_to_mult,
    ibv_read_sysfs_file => sysfs::read_sysfs_file,
    mult_to_ibv_rate => rate::mult_to_rate,
}

export_functions! { "IBVERBS_1.0", old:
    ibv_ack_async_event => old::ack_async_event,
    ibv_ack_cq_events => old::ack_cq_events,
    ibv_alloc_pd => old::alloc_pd,
    ibv_attach_mcast => old::attach_mcast,
    ibv_close_device => old::close_device,
    ibv_create_ah => old::create_ah,
    ibv_create_cq => old::create_cq,
    ibv_create_qp => old::create_qp,
    ibv_create_srq => old::create_srq,
    ibv_dealloc_pd => old::dealloc_pd,
    ibv_dereg_mr => old::dereg_mr,
    ibv_destroy_ah => old::destroy_ah,
    ibv_destroy_cq => old::destroy_cq,
    ibv_destroy_qp => old::destroy_qp,
    ibv_destroy_srq => old::destroy_srq,
    ibv_detach_mcast => old::detach_mcast,
    ibv_free_device_list => old::free_device_list,
    ibv_get_async_event => old::get_async_event,
    ibv_get_cq_event => old::get_cq_event,
    ibv_get_device_guid => old::get_device_guid,
    ibv_get_device_list => old::get_device_list,
    ibv_get_device_name => old::get_device_name,
    ibv_modify_qp => old::modify_qp,
    ibv_modify_srq => old::modify_srq,
    ibv_open_device => old::open_device,
    ibv_query_device => old::query_device,
    ibv_query_gid => old::query_gid,
    ibv_query_pkey => old::query_pkey,
    ibv_query_port => old::query_port,
    ibv_query_qp => old::query_qp,
    ibv_query_srq => old::query_srq,
    ibv_reg_mr => old::reg_mr,
    ibv_resize_cq => old::resize_cq,
}

export_functions! { "IBVERBS_1.1", current:
    ibv_ack_async_event => dispatch::ack_async_event,
    ibv_ack_cq_events => dispatch::ack_cq_events,
    ibv_alloc_pd => dispatch::alloc_pd,
    ibv_attach_mcast => dispatch::attach_mcast,
    ibv_close_device => dispatch::close_device,
    ibv_copy_ah_attr_from_kern => kern::copy_ah_attr_from_kern,
    ibv_create_ah => dispatch::create_ah,
    ibv_create_ah_from_wc => dispatch::create_ah_from_wc,
    ibv_create_cq => dispatch::create_cq,
    ibv_create_qp => dispatch::create_qp,
    ibv_create_srq => dispatch::create_srq,
    ibv_dealloc_pd => dispatch::dealloc_pd,
    ibv_dereg_mr => dispatch::dereg_mr,
    ibv_destroy_ah => dispatch::destroy_ah,
    ibv_destroy_cq => dispatch::destroy_cq,
    ibv_destroy_qp => dispatch::destroy_qp,
    ibv_destroy_srq => dispatch::destroy_srq,
    ibv_detach_mcast => dispatch::detach_mcast,
    ibv_dofork_range => misc::fork_range,
    ibv_dontfork_range => misc::fork_range,
    ibv_event_type_str => strings::event_type_str,
    ibv_fork_init => misc::fork_init,
    ibv_free_device_list => device::free_device_list,
    ibv_get_async_event => dispatch::get_async_event,
    ibv_get_cq_event => dispatch::get_cq_event,
    ibv_get_device_guid => device::get_device_guid,
    ibv_get_device_list => device::get_device_list,
    ibv_get_device_name => device::get_device_name,
    ibv_init_ah_from_wc => dispatch::init_ah_from_wc,
    ibv_modify_qp => dispatch::modify_qp,
    ibv_modify_srq => dispatch::modify_srq,
    ibv_node_type_str => strings::node_type_str,
    ibv_open_device => device::open_device,
    ibv_port_state_str => strings::port_state_str,
    ibv_query_device => dispatch::query_device,
    ibv_query_gid => dispatch::query_gid,
    ibv_query_pkey => dispatch::query_pkey,
    ibv_query_port => dispatch::query_port,
    ibv_query_qp => dispatch::query_qp,
    ibv_query_srq => dispatch::query_srq,
    ibv_rate_to_mbps => rate::rate_to_mbps,
    ibv_reg_mr => dispatch::reg_mr,
    ibv_rereg_mr => dispatch::rereg_mr,
    ibv_resize_cq => dispatch::resize_cq,
    ibv_resolve_eth_l2_from_gid => dispatch::resolve_eth_l2_from_gid,
    ibv_wc_status_str => strings::wc_status_str,
    mbps_to_ibv_rate => rate::mbps_to_rate,
}

export_functions! { "IBVERBS_1.1", old:
    ibv_register_driver => misc::register_driver,
}

export_functions! { "IBVERBS_1.5", current:
    ibv_get_pkey_index => dispatch::get_pkey_index,
}

export_functions! { "IBVERBS_1.6", current:
    ibv_qp_to_qp_ex => dispatch::qp_to_qp_ex,
}

export_functions! { "IBVERBS_1.7", current:
    ibv_reg_mr_iova => dispatch::reg_mr_iova,
}

export_functions! { "IBVERBS_1.8", current:
    ibv_reg_mr_iova2 => dispatch::reg_mr_iova2,
}

export_functions! { "IBVERBS_1.9", current:
    ibv_get_device_index => device::get_device_index,
}

export_functions! { "IBVERBS_1.10", current:
    ibv_import_device => import::import_device,
    ibv_import_mr => dispatch::import_mr,
    ibv_import_pd => dispatch::import_pd,
    ibv_query_ece => dispatch::query_ece,
    ibv_set_ece => dispatch::set_ece,
    ibv_unimport_mr => dispatch::unimport_mr,
    ibv_unimport_pd => dispatch::unimport_pd,
}

export_functions! { "IBVERBS_1.11", current:
    _ibv_query_gid_ex => dispatch::query_gid_ex,
    _ibv_query_gid_table => dispatch::query_gid_table,
}

export_functions! { "IBVERBS_1.12", current:
    ibv_reg_dmabuf_mr => dispatch::reg_dmabuf_mr,
}

export_functions! { "IBVERBS_1.13", current:
    ibv_import_dm => dispatch::import_dm,
    ibv_is_fork_initialized => misc::is_fork_initialized,
    ibv_unimport_dm => dispatch::unimport_dm,
}

export_functions! { "IBVERBS_1.14", current:
    ibv_query_qp_data_in_order => dispatch::query_qp_data_in_order,
}

export_functions! { "IRONVERBS_SUBNET_1.0", current:
    ibv_gid_reachable => subnet::gid_reachable,
    ibv_register_sm_events => subnet::register_sm_events,
    ibv_unregister_sm_events => subnet::unregister_sm_events,
}

export_functions! { "IBVERBS_1.15", current:
    ibv_alloc_dmah => newer::alloc_dmah,
    ibv_dealloc_dmah => newer::dealloc_dmah,
    ibv_reg_mr_ex => newer::reg_mr_ex,
}

export_functions! { "IBVERBS_1.16", current:
    ibv_dm_export_dmabuf_fd => newer::dm_export_dmabuf_fd,
    ibv_query_port_speed => newer::query_port_speed,
}

export_functions! { "IBVERBS_1.17", current:
    ibv_alloc_buf => newer::alloc_buf,
    ibv_free_buf => newer::free_buf,
    ibv_reg_buf_mr => newer::reg_buf_mr,
}

export_functions! { "IBVERBS_PRIVATE_34", current:
    __ioctl_final_num_attrs => driver::ioctl_final_num_attrs,
    __verbs_log => driver::verbs_log,
    _verbs_init_and_alloc_context => driver::init_and_alloc_context,
    execute_ioctl => driver::execute_ioctl,
    ibv_cmd_advise_mr => driver::cmd_advise_mr,
    ibv_cmd_alloc_dm => driver::cmd_alloc_dm,
    ibv_cmd_alloc_mw => driver::cmd_alloc_mw,
    ibv_cmd_alloc_pd => driver::cmd_alloc_pd,
    ibv_cmd_attach_mcast => driver::cmd_attach_mcast,
    ibv_cmd_close_xrcd => driver::cmd_close_xrcd,
    ibv_cmd_create_ah => driver::cmd_create_ah,
    ibv_cmd_create_counters => driver::cmd_create_counters,
    ibv_cmd_create_cq => driver::cmd_create_cq,
    ibv_cmd_create_cq_ex => driver::cmd_create_cq_ex,
    ibv_cmd_create_flow => driver::cmd_create_flow,
    ibv_cmd_create_flow_action_esp => driver::cmd_create_flow_action_esp,
    ibv_cmd_create_qp => driver::cmd_create_qp,
    ibv_cmd_create_qp_ex => driver::cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2 => driver::cmd_create_qp_ex2,
    ibv_cmd_create_rwq_ind_table => driver::cmd_create_rwq_ind_table,
    ibv_cmd_create_srq => driver::cmd_create_srq,
    ibv_cmd_create_srq_ex => driver::cmd_create_srq_ex,
    ibv_cmd_create_wq => driver::cmd_create_wq,
    ibv_cmd_dealloc_mw => driver::cmd_dealloc_mw,
    ibv_cmd_dealloc_pd => driver::cmd_dealloc_pd,
    ibv_cmd_dereg_mr => driver::cmd_dereg_mr,
    ibv_cmd_destroy_ah => driver::cmd_destroy_ah,
    ibv_cmd_destroy_counters => driver::cmd_destroy_counters,
    ibv_cmd_destroy_cq => driver::cmd_destroy_cq,
    ibv_cmd_destroy_flow => driver::cmd_destroy_flow,
    ibv_cmd_destroy_flow_action => driver::cmd_destroy_flow_action,
    ibv_cmd_destroy_qp => driver::cmd_destroy_qp,
    ibv_cmd_destroy_rwq_ind_table => driver::cmd_destroy_rwq_ind_table,
    ibv_cmd_destroy_srq => driver::cmd_destroy_srq,
    ibv_cmd_destroy_wq => driver::cmd_destroy_wq,
    ibv_cmd_detach_mcast => driver::cmd_detach_mcast,
    ibv_cmd_free_dm => driver::cmd_free_dm,
    ibv_cmd_get_context => driver::cmd_get_context,
    ibv_cmd_modify_cq => driver::cmd_modify_cq,
    ibv_cmd_modify_flow_action_esp => driver::cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp => driver::cmd_modify_qp,
    ibv_cmd_modify_qp_ex => driver::cmd_modify_qp_ex,
    ibv_cmd_modify_srq => driver::cmd_modify_srq,
    ibv_cmd_modify_wq => driver::cmd_modify_wq,
    ibv_cmd_open_qp => driver::cmd_open_qp,
    ibv_cmd_open_xrcd => driver::cmd_open_xrcd,
    ibv_cmd_poll_cq => driver::cmd_poll_cq,
    ibv_cmd_post_recv => driver::cmd_post_recv,
    ibv_cmd_post_send => driver::cmd_post_send,
    ibv_cmd_post_srq_recv => driver::cmd_post_srq_recv,
    ibv_cmd_query_context => driver::cmd_query_context,
    ibv_cmd_query_device_any => driver::cmd_query_device_any,
    ibv_cmd_query_mr => driver::cmd_query_mr,
    ibv_cmd_query_port => driver::cmd_query_port,
    ibv_cmd_query_qp => driver::cmd_query_qp,
    ibv_cmd_query_srq => driver::cmd_query_srq,
    ibv_cmd_read_counters => driver::cmd_read_counters,
    ibv_cmd_reg_dm_mr => driver::cmd_reg_dm_mr,
    ibv_cmd_reg_dmabuf_mr => driver::cmd_reg_dmabuf_mr,
    ibv_cmd_reg_mr => driver::cmd_reg_mr,
    ibv_cmd_req_notify_cq => driver::cmd_req_notify_cq,
    ibv_cmd_rereg_mr => driver::cmd_rereg_mr,
    ibv_cmd_resize_cq => driver::cmd_resize_cq,
    ibv_query_gid_type => dispatch::query_gid_type,
    ibv_read_ibdev_sysfs_file => driver::read_ibdev_sysfs_file,
    verbs_init_cq => driver::verbs_init_cq,
    verbs_open_device => driver::verbs::open_device,
    verbs_register_driver_34 => driver::register_driver,
    verbs_set_ops => driver::set_ops,
    verbs_uninit_context => driver::uninit_context,
}

// Our librdmacm.so.1 is stubs that jump here: a process has one device stack.
export_functions! { "IRONVERBS_1", current:
    ironverbs_rdma_accept => cm::accept,
    ironverbs_rdma_ack_cm_event => cm::ack_cm_event,
    ironverbs_rdma_bind_addr => cm::bind_addr,
    ironverbs_rdma_connect => cm::connect,
    ironverbs_rdma_create_ep => cm::create_ep,
    ironverbs_rdma_create_event_channel => cm::create_event_channel,
    ironverbs_rdma_create_id => cm::create_id,
    ironverbs_rdma_create_qp => cm::create_qp,
    ironverbs_rdma_create_qp_ex => cm::create_qp_ex,
    ironverbs_rdma_create_srq => cm::create_srq,
    ironverbs_rdma_create_srq_ex => cm::create_srq_ex,
    ironverbs_rdma_destroy_ep => cm::destroy_ep,
    ironverbs_rdma_destroy_event_channel => cm::destroy_event_channel,
    ironverbs_rdma_destroy_id => cm::destroy_id,
    ironverbs_rdma_destroy_qp => cm::destroy_qp,
    ironverbs_rdma_destroy_srq => cm::destroy_srq,
    ironverbs_rdma_disconnect => cm::disconnect,
    ironverbs_rdma_establish => cm::establish,
    ironverbs_rdma_event_str => cm::event_str,
    ironverbs_rdma_free_devices => cm::free_devices,
    ironverbs_rdma_freeaddrinfo => cm::freeaddrinfo,
    ironverbs_rdma_get_cm_event => cm::get_cm_event,
    ironverbs_rdma_get_devices => cm::get_devices,
    ironverbs_rdma_get_dst_port => cm::get_dst_port,
    ironverbs_rdma_get_remote_ece => cm::get_remote_ece,
    ironverbs_rdma_get_request => cm::get_request,
    ironverbs_rdma_get_src_port => cm::get_src_port,
    ironverbs_rdma_getaddrinfo => cm::getaddrinfo,
    ironverbs_rdma_init_qp_attr => cm::init_qp_attr,
    ironverbs_rdma_join_multicast => cm::join_multicast,
    ironverbs_rdma_join_multicast_ex => cm::join_multicast_ex,
    ironverbs_rdma_leave_multicast => cm::leave_multicast,
    ironverbs_rdma_listen => cm::listen,
    ironverbs_rdma_migrate_id => cm::migrate_id,
    ironverbs_rdma_notify => cm::notify,
    ironverbs_rdma_reject => cm::reject,
    ironverbs_rdma_reject_ece => cm::reject_ece,
    ironverbs_rdma_resolve_addr => cm::resolve_addr,
    ironverbs_rdma_resolve_route => cm::resolve_route,
    ironverbs_rdma_set_local_ece => cm::set_local_ece,
    ironverbs_rdma_set_option => cm::set_option,
    ironverbs_rdmacm_announce => cm::announce,
}

// Drivers read it to decide whether objects may outlive a device; it stays zero.
export_object! { "IBVERBS_PRIVATE_34", current:
    verbs_allow_disassociate_destroy: 1
}

// The same for our libibumad.so.3.
export_functions! { "IRONVERBS_1", current:
    ironverbs_umad_addr_dump => umad::addr_dump,
    ironverbs_umad_attribute_str => umad::attribute_str,
    ironverbs_umad_class_str => umad::class_str,
    ironverbs_umad_close_port => umad::close_port,
    ironverbs_umad_common_mad_status_str => umad::common_mad_status_str,
    ironverbs_umad_debug => umad::debug,
    ironverbs_umad_done => umad::done,
    ironverbs_umad_dump => umad::dump,
    ironverbs_umad_free_ca_device_list => umad::free_ca_device_list,
    ironverbs_umad_get_ca => umad::get_ca,
    ironverbs_umad_get_ca_device_list => umad::get_ca_device_list,
    ironverbs_umad_get_ca_portguids => umad::get_ca_portguids,
    ironverbs_umad_get_cas_names => umad::get_cas_names,
    ironverbs_umad_get_fd => umad::get_fd,
    ironverbs_umad_get_issm_path => umad::get_issm_path,
    ironverbs_umad_get_mad => umad::get_mad,
    ironverbs_umad_get_mad_addr => umad::get_mad_addr,
    ironverbs_umad_get_pkey => umad::get_pkey,
    ironverbs_umad_get_port => umad::get_port,
    ironverbs_umad_init => umad::init,
    ironverbs_umad_method_str => umad::method_str,
    ironverbs_umad_open_port => umad::open_port,
    ironverbs_umad_poll => umad::poll,
    ironverbs_umad_recv => umad::recv,
    ironverbs_umad_register => umad::register,
    ironverbs_umad_register2 => umad::register2,
    ironverbs_umad_register_oui => umad::register_oui,
    ironverbs_umad_release_ca => umad::release_ca,
    ironverbs_umad_release_port => umad::release_port,
    ironverbs_umad_sa_mad_status_str => umad::sa_mad_status_str,
    ironverbs_umad_send => umad::send,
    ironverbs_umad_set_addr => umad::set_addr,
    ironverbs_umad_set_addr_net => umad::set_addr_net,
    ironverbs_umad_set_grh => umad::set_grh,
    ironverbs_umad_set_pkey => umad::set_pkey,
    ironverbs_umad_size => umad::size,
    ironverbs_umad_sort_ca_device_list => umad::sort_ca_device_list,
    ironverbs_umad_status => umad::status,
    ironverbs_umad_unregister => umad::unregister,
}
