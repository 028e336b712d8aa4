//! What plug-ins of version 34 and this library share: the structures of its `driver.h` and `cmd_ioctl.h`, under their C
//! names. Fields are the header's, in its order.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

use ironverbs_sys::uverbs::Attribute;

use crate::abi::*;

#[repr(C)]
pub(crate) struct list_node {
    pub(crate) next: *mut c_void,
    pub(crate) prev: *mut c_void,
}

/// An entry of a driver's table of the devices it knows; one of kind 0 ends the table.
#[repr(C)]
pub(crate) struct verbs_match_ent {
    pub(crate) driver_data: *mut c_void,
    /// A pattern, or the number of a driver.
    pub(crate) value: u64,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) kind: u8,
}

pub(crate) const VERBS_MATCH_PCI: u8 = 1;
pub(crate) const VERBS_MATCH_MODALIAS: u8 = 2;
pub(crate) const VERBS_MATCH_DRIVER_ID: u8 = 3;

/// A device as a driver is told of it.
#[repr(C)]
pub(crate) struct verbs_sysfs_dev {
    pub(crate) entry: list_node,
    pub(crate) provider_data: *mut c_void,
    pub(crate) match_: *const verbs_match_ent,
    pub(crate) flags: u32,
    pub(crate) sysfs_name: [c_char; 64],
    pub(crate) sysfs_cdev: libc::dev_t,
    pub(crate) ibdev_name: [c_char; 64],
    pub(crate) ibdev_path: [c_char; 256],
    pub(crate) modalias: [c_char; 512],
    pub(crate) node_guid: u64,
    pub(crate) driver_id: u32,
    pub(crate) node_type: c_int,
    pub(crate) ibdev_idx: c_int,
    pub(crate) num_ports: u32,
    pub(crate) abi_ver: u32,
    pub(crate) time_created: libc::timespec,
}

/// `modalias` and `node_guid` are there.
pub(crate) const VSYSFS_READ_MODALIAS: u32 = 1;
pub(crate) const VSYSFS_READ_NODE_GUID: u32 = 1 << 1;

/// What a plug-in registers.
#[repr(C)]
pub(crate) struct verbs_device_ops {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const verbs_match_ent,
    pub(crate) static_providers: *const c_void,
    pub(crate) match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    pub(crate) alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context>,
    pub(crate) import_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut verbs_context>,
    pub(crate) alloc_device:
        Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    pub(crate) uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

/// The start of a driver's own structure for a device.
#[repr(C)]
pub(crate) struct verbs_device {
    pub(crate) device: ibv_device,
    pub(crate) ops: *const verbs_device_ops,
    pub(crate) refcount: c_int,
    pub(crate) entry: list_node,
    pub(crate) sysfs: *mut verbs_sysfs_dev,
    pub(crate) core_support: u64,
}

/// The kernel takes rights in the optional range, whether it knows them or not.
pub(crate) const CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;
pub(crate) const ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
pub(crate) const ACCESS_ON_DEMAND: u32 = 1 << 6;

#[repr(C)]
pub(crate) struct verbs_mr {
    pub(crate) ibv_mr: ibv_mr,
    pub(crate) mr_type: c_int,
    pub(crate) access: c_int,
}

pub(crate) const IBV_MR_TYPE_MR: c_int = 0;
pub(crate) const IBV_MR_TYPE_IMPORTED_MR: c_int = 2;
pub(crate) const IBV_MR_TYPE_DMABUF_MR: c_int = 3;

#[repr(C)]
pub(crate) struct verbs_xrcd {
    pub(crate) xrcd: ibv_xrcd,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

pub(crate) const VERBS_XRCD_HANDLE: u32 = 1;

#[repr(C)]
pub(crate) struct verbs_srq {
    pub(crate) srq: ibv_srq,
    pub(crate) srq_type: c_int,
    pub(crate) xrcd: *mut verbs_xrcd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) srq_num: u32,
}

#[repr(C)]
pub(crate) struct verbs_qp {
    pub(crate) qp_ex: ibv_qp_ex,
    pub(crate) comp_mask: u32,
    pub(crate) xrcd: *mut verbs_xrcd,
}

pub(crate) const VERBS_QP_XRCD: u32 = 1;
pub(crate) const VERBS_QP_EX: u32 = 1 << 1;

#[repr(C)]
pub(crate) struct verbs_dm {
    pub(crate) dm: ibv_dm,
    pub(crate) handle: u32,
}

/// Counters, and an action of flows: the public structure is a context.
#[repr(C)]
pub(crate) struct verbs_counters {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct verbs_flow_action {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
    pub(crate) type_: c_int,
}

pub(crate) const IBV_FLOW_ACTION_ESP: c_int = 1;

#[repr(C)]
pub(crate) struct driver_esp_attr {
    pub(crate) esp_attr: *const u8,
    pub(crate) keymat_proto: u32,
    pub(crate) keymat_len: u16,
    pub(crate) keymat_ptr: *const u8,
    pub(crate) replay_proto: u32,
    pub(crate) replay_len: u16,
    pub(crate) replay_ptr: *const u8,
    pub(crate) esp_encap: *const u8,
    pub(crate) comp_mask: u32,
    pub(crate) esn: u32,
}

/// A driver's attributes of an ioctl: those from `attrs` up to `next_attr` are there. `next` leads to more.
#[repr(C)]
pub(crate) struct ibv_command_buffer {
    pub(crate) next: *mut ibv_command_buffer,
    pub(crate) next_attr: *mut Attribute,
    pub(crate) last_attr: *mut Attribute,
    pub(crate) uhw_in_idx: u8,
    pub(crate) uhw_out_idx: u8,
    pub(crate) uhw_in_headroom_dwords: u8,
    pub(crate) uhw_out_headroom_dwords: u8,
    /// Bit 0: an attribute was too long.
    pub(crate) errors: u8,
    pub(crate) hdr: ib_uverbs_ioctl_hdr,
    pub(crate) attrs: [Attribute; 0],
}

#[repr(C)]
pub(crate) struct ib_uverbs_ioctl_hdr {
    pub(crate) length: u16,
    pub(crate) object_id: u16,
    pub(crate) method_id: u16,
    pub(crate) num_attrs: u16,
    pub(crate) reserved1: u64,
    pub(crate) driver_id: u32,
    pub(crate) reserved2: u32,
}

macro_rules! ops {
    ($($name:ident)*) => {
        /// What a driver can do, by the names of `struct verbs_context_ops`: pointers to functions, whose types the
        /// callers in `verbs` know.
        #[repr(C)]
        #[derive(Copy, Clone)]
        pub(crate) struct verbs_context_ops {
            $(pub(crate) $name: Unused,)*
        }

        impl verbs_context_ops {
            /// Puts what the other has in the place of what is here.
            pub(crate) fn update(&mut self, other: &verbs_context_ops) {
                $(if !other.$name.is_null() { self.$name = other.$name; })*
            }
        }
    };
}

ops! {
    advise_mr alloc_dm alloc_mw alloc_null_mr alloc_parent_domain alloc_pd alloc_td async_event
    attach_counters_point_flow attach_mcast bind_mw close_xrcd cq_event create_ah create_counters create_cq
    create_cq_ex create_flow create_flow_action_esp create_qp create_qp_ex create_rwq_ind_table create_srq
    create_srq_ex create_wq dealloc_mw dealloc_pd dealloc_td dereg_mr destroy_ah destroy_counters destroy_cq
    destroy_flow destroy_flow_action destroy_qp destroy_rwq_ind_table destroy_srq destroy_wq detach_mcast
    free_context free_dm get_srq_num import_dm import_mr import_pd modify_cq modify_flow_action_esp modify_qp
    modify_qp_rate_limit modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send post_srq_ops
    post_srq_recv query_device_ex query_ece query_port query_qp query_qp_data_in_order query_rt_values query_srq
    read_counters reg_dm_mr reg_dmabuf_mr reg_mr req_notify_cq rereg_mr resize_cq set_ece unimport_dm unimport_mr
    unimport_pd
}

#[cfg(target_arch = "x86_64")]
mod layout {
    use std::mem::{offset_of, size_of};

    use super::*;

    // As gcc computes them from the header of version 44.
    const _: () = assert!(size_of::<verbs_match_ent>() == 24);
    const _: () = assert!(size_of::<verbs_sysfs_dev>() == 992);
    const _: () = assert!(offset_of!(verbs_sysfs_dev, sysfs_cdev) == 104);
    const _: () = assert!(offset_of!(verbs_sysfs_dev, node_guid) == 944);
    const _: () = assert!(size_of::<verbs_device_ops>() == 72);
    const _: () = assert!(size_of::<verbs_device>() == 712);
    const _: () = assert!(size_of::<verbs_mr>() == 56);
    const _: () = assert!(size_of::<verbs_srq>() == 160);
    const _: () = assert!(size_of::<verbs_qp>() == 368);
    const _: () = assert!(size_of::<ibv_wq>() == 152);
    const _: () = assert!(size_of::<verbs_context_ops>() == 76 * 8);
    const _: () = assert!(offset_of!(ibv_command_buffer, hdr) == 32);
    const _: () = assert!(offset_of!(ibv_command_buffer, attrs) == 56);
}
