//! Which function stands behind which exported name and version. Names and nodes are those of
//! `libibverbs.map`; a test compares what the linker made of both with `exports.txt`.

use crate::symver::{export_functions, export_object};
use crate::{
    ah, cm, cq, device, events, import, kern, misc, mr, newer, old, private, qp, qp_ex, query,
    rate, srq, strings, subnet, sysfs, umad,
};

export_functions! { "IBVERBS_1.0", current:
    ibv_copy_path_rec_from_kern => kern::copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern => kern::copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern => kern::copy_qp_attr_from_kern,
    ibv_create_comp_channel => cq::create_comp_channel,
    ibv_destroy_comp_channel => cq::destroy_comp_channel,
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
    ibv_ack_async_event => events::ack_async_event,
    ibv_ack_cq_events => cq::ack_cq_events,
    ibv_alloc_pd => mr::alloc_pd,
    ibv_attach_mcast => qp::attach_mcast,
    ibv_close_device => device::close_device,
    ibv_copy_ah_attr_from_kern => kern::copy_ah_attr_from_kern,
    ibv_create_ah => ah::create_ah,
    ibv_create_ah_from_wc => ah::create_ah_from_wc,
    ibv_create_cq => cq::create_cq,
    ibv_create_qp => qp::create_qp,
    ibv_create_srq => srq::create_srq,
    ibv_dealloc_pd => mr::dealloc_pd,
    ibv_dereg_mr => mr::dereg_mr,
    ibv_destroy_ah => ah::destroy_ah,
    ibv_destroy_cq => cq::destroy_cq,
    ibv_destroy_qp => qp::destroy_qp,
    ibv_destroy_srq => srq::destroy_srq,
    ibv_detach_mcast => qp::detach_mcast,
    ibv_dofork_range => misc::fork_range,
    ibv_dontfork_range => misc::fork_range,
    ibv_event_type_str => strings::event_type_str,
    ibv_fork_init => misc::fork_init,
    ibv_free_device_list => device::free_device_list,
    ibv_get_async_event => events::get_async_event,
    ibv_get_cq_event => cq::get_cq_event,
    ibv_get_device_guid => device::get_device_guid,
    ibv_get_device_list => device::get_device_list,
    ibv_get_device_name => device::get_device_name,
    ibv_init_ah_from_wc => ah::init_ah_from_wc,
    ibv_modify_qp => qp::modify_qp,
    ibv_modify_srq => srq::modify_srq,
    ibv_node_type_str => strings::node_type_str,
    ibv_open_device => device::open_device,
    ibv_port_state_str => strings::port_state_str,
    ibv_query_device => query::query_device,
    ibv_query_gid => query::query_gid,
    ibv_query_pkey => query::query_pkey,
    ibv_query_port => query::query_port,
    ibv_query_qp => qp::query_qp,
    ibv_query_srq => srq::query_srq,
    ibv_rate_to_mbps => rate::rate_to_mbps,
    ibv_reg_mr => mr::reg_mr,
    ibv_rereg_mr => mr::rereg_mr,
    ibv_resize_cq => cq::resize_cq,
    ibv_resolve_eth_l2_from_gid => misc::resolve_eth_l2_from_gid,
    ibv_wc_status_str => strings::wc_status_str,
    mbps_to_ibv_rate => rate::mbps_to_rate,
}

export_functions! { "IBVERBS_1.1", old:
    ibv_register_driver => misc::register_driver,
}

export_functions! { "IBVERBS_1.5", current:
    ibv_get_pkey_index => query::get_pkey_index,
}

export_functions! { "IBVERBS_1.6", current:
    ibv_qp_to_qp_ex => qp_ex::qp_to_qp_ex,
}

export_functions! { "IBVERBS_1.7", current:
    ibv_reg_mr_iova => mr::reg_mr_iova,
}

export_functions! { "IBVERBS_1.8", current:
    ibv_reg_mr_iova2 => mr::reg_mr_iova2,
}

export_functions! { "IBVERBS_1.9", current:
    ibv_get_device_index => device::get_device_index,
}

export_functions! { "IBVERBS_1.10", current:
    ibv_import_device => import::import_device,
    ibv_import_mr => import::import_mr,
    ibv_import_pd => import::import_pd,
    ibv_query_ece => qp::query_ece,
    ibv_set_ece => qp::set_ece,
    ibv_unimport_mr => import::unimport_mr,
    ibv_unimport_pd => import::unimport_pd,
}

export_functions! { "IBVERBS_1.11", current:
    _ibv_query_gid_ex => query::query_gid_ex,
    _ibv_query_gid_table => query::query_gid_table,
}

export_functions! { "IBVERBS_1.12", current:
    ibv_reg_dmabuf_mr => mr::reg_dmabuf_mr,
}

export_functions! { "IBVERBS_1.13", current:
    ibv_import_dm => import::import_dm,
    ibv_is_fork_initialized => misc::is_fork_initialized,
    ibv_unimport_dm => import::unimport_dm,
}

export_functions! { "IBVERBS_1.14", current:
    ibv_query_qp_data_in_order => qp::query_qp_data_in_order,
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
    __ioctl_final_num_attrs => private::ioctl_final_num_attrs,
    __verbs_log => private::unsupported_silent,
    _verbs_init_and_alloc_context => private::unsupported_object,
    execute_ioctl => private::unsupported,
    ibv_cmd_advise_mr => private::unsupported,
    ibv_cmd_alloc_dm => private::unsupported,
    ibv_cmd_alloc_mw => private::unsupported,
    ibv_cmd_alloc_pd => private::unsupported,
    ibv_cmd_attach_mcast => private::unsupported,
    ibv_cmd_close_xrcd => private::unsupported,
    ibv_cmd_create_ah => private::unsupported,
    ibv_cmd_create_counters => private::unsupported,
    ibv_cmd_create_cq => private::unsupported,
    ibv_cmd_create_cq_ex => private::unsupported,
    ibv_cmd_create_flow => private::unsupported,
    ibv_cmd_create_flow_action_esp => private::unsupported,
    ibv_cmd_create_qp => private::unsupported,
    ibv_cmd_create_qp_ex => private::unsupported,
    ibv_cmd_create_qp_ex2 => private::unsupported,
    ibv_cmd_create_rwq_ind_table => private::unsupported,
    ibv_cmd_create_srq => private::unsupported,
    ibv_cmd_create_srq_ex => private::unsupported,
    ibv_cmd_create_wq => private::unsupported,
    ibv_cmd_dealloc_mw => private::unsupported,
    ibv_cmd_dealloc_pd => private::unsupported,
    ibv_cmd_dereg_mr => private::unsupported,
    ibv_cmd_destroy_ah => private::unsupported,
    ibv_cmd_destroy_counters => private::unsupported,
    ibv_cmd_destroy_cq => private::unsupported,
    ibv_cmd_destroy_flow => private::unsupported,
    ibv_cmd_destroy_flow_action => private::unsupported,
    ibv_cmd_destroy_qp => private::unsupported,
    ibv_cmd_destroy_rwq_ind_table => private::unsupported,
    ibv_cmd_destroy_srq => private::unsupported,
    ibv_cmd_destroy_wq => private::unsupported,
    ibv_cmd_detach_mcast => private::unsupported,
    ibv_cmd_free_dm => private::unsupported,
    ibv_cmd_get_context => private::unsupported,
    ibv_cmd_modify_cq => private::unsupported,
    ibv_cmd_modify_flow_action_esp => private::unsupported,
    ibv_cmd_modify_qp => private::unsupported,
    ibv_cmd_modify_qp_ex => private::unsupported,
    ibv_cmd_modify_srq => private::unsupported,
    ibv_cmd_modify_wq => private::unsupported,
    ibv_cmd_open_qp => private::unsupported,
    ibv_cmd_open_xrcd => private::unsupported,
    ibv_cmd_poll_cq => private::unsupported_count,
    ibv_cmd_post_recv => private::unsupported,
    ibv_cmd_post_send => private::unsupported,
    ibv_cmd_post_srq_recv => private::unsupported,
    ibv_cmd_query_context => private::unsupported,
    ibv_cmd_query_device_any => private::unsupported,
    ibv_cmd_query_mr => private::unsupported,
    ibv_cmd_query_port => private::unsupported,
    ibv_cmd_query_qp => private::unsupported,
    ibv_cmd_query_srq => private::unsupported,
    ibv_cmd_read_counters => private::unsupported,
    ibv_cmd_reg_dm_mr => private::unsupported,
    ibv_cmd_reg_dmabuf_mr => private::unsupported,
    ibv_cmd_reg_mr => private::unsupported,
    ibv_cmd_req_notify_cq => private::unsupported,
    ibv_cmd_rereg_mr => private::unsupported,
    ibv_cmd_resize_cq => private::unsupported,
    ibv_query_gid_type => query::query_gid_type,
    ibv_read_ibdev_sysfs_file => private::unsupported_count,
    verbs_init_cq => private::unsupported_silent,
    verbs_open_device => private::open_device,
    verbs_register_driver_34 => private::register_driver,
    verbs_set_ops => private::unsupported_silent,
    verbs_uninit_context => private::unsupported_silent,
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
