//! The structures of `<infiniband/umad.h>` of libibumad 44.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_uint};

pub(crate) const CA_NAME_LEN: usize = 20;
pub(crate) const CA_MAX_PORTS: usize = 10;

#[repr(C)]
#[derive(Copy, Clone, Default)]
pub(crate) struct ib_mad_addr_t {
    /// Network order, as `qkey`, `lid`, and `flow_label`.
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) lid: u16,
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) grh_present: u8,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) pkey_index: u16,
    pub(crate) reserved: [u8; 6],
}

#[repr(C)]
#[derive(Copy, Clone, Default)]
pub(crate) struct ib_user_mad_t {
    pub(crate) agent_id: u32,
    pub(crate) status: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) retries: u32,
    pub(crate) length: u32,
    pub(crate) addr: ib_mad_addr_t,
}

#[repr(C)]
pub(crate) struct umad_port_t {
    pub(crate) ca_name: [c_char; CA_NAME_LEN],
    pub(crate) portnum: c_int,
    pub(crate) base_lid: c_uint,
    pub(crate) lmc: c_uint,
    pub(crate) sm_lid: c_uint,
    pub(crate) sm_sl: c_uint,
    pub(crate) state: c_uint,
    pub(crate) phys_state: c_uint,
    pub(crate) rate: c_uint,
    /// Network order, as the two below.
    pub(crate) capmask: u32,
    pub(crate) gid_prefix: u64,
    pub(crate) port_guid: u64,
    pub(crate) pkeys_size: c_uint,
    pub(crate) pkeys: *mut u16,
    pub(crate) link_layer: [c_char; CA_NAME_LEN],
}

#[repr(C)]
pub(crate) struct umad_ca_t {
    pub(crate) ca_name: [c_char; CA_NAME_LEN],
    pub(crate) node_type: c_uint,
    pub(crate) numports: c_int,
    pub(crate) fw_ver: [c_char; 20],
    pub(crate) ca_type: [c_char; 40],
    pub(crate) hw_ver: [c_char; 20],
    /// Network order.
    pub(crate) node_guid: u64,
    pub(crate) system_guid: u64,
    pub(crate) ports: [*mut umad_port_t; CA_MAX_PORTS],
}

#[repr(C)]
pub(crate) struct umad_device_node {
    pub(crate) next: *mut umad_device_node,
    pub(crate) ca_name: *const c_char,
}

#[repr(C)]
pub(crate) struct umad_reg_attr {
    pub(crate) mgmt_class: u8,
    pub(crate) mgmt_class_version: u8,
    pub(crate) flags: u32,
    pub(crate) method_mask: [u64; 2],
    pub(crate) oui: u32,
    pub(crate) rmpp_version: u8,
}

const _: () = {
    assert!(size_of::<ib_mad_addr_t>() == 44);
    assert!(size_of::<ib_user_mad_t>() == 64);
    assert!(size_of::<umad_port_t>() == 112);
    assert!(size_of::<umad_ca_t>() == 208);
    assert!(size_of::<umad_reg_attr>() == 32);
};
