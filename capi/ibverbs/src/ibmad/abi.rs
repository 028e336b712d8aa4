//! The structures of `<infiniband/mad.h>` of libibmad 44.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uint};

/// Bytes of a datagram.
pub(super) const MAD_SIZE: usize = 256;
/// Hops of a directed route.
pub(super) const HOPS_MAX: usize = 64;
/// The Q_Key of every QP1.
pub(super) const QP1_QKEY: u32 = 0x8001_0000;
/// A LID that stands for none on a directed route.
pub(super) const PERMISSIVE_LID: u16 = 0xffff;

pub(super) const SMI: u8 = 0x01;
pub(super) const SMI_DIRECT: u8 = 0x81;
pub(super) const SA: u8 = 0x03;
pub(super) const PERFORMANCE: u8 = 0x04;
pub(super) const BOARD: u8 = 0x05;
pub(super) const DEVICE: u8 = 0x06;
pub(super) const CONGESTION: u8 = 0x21;

pub(super) const GET: c_int = 0x01;
pub(super) const SET: c_int = 0x02;
pub(super) const SEND: c_int = 0x03;
pub(super) const RESPONSE: c_int = 0x80;

/// Whether the class is one of vendors without an OUI.
pub(super) fn is_vendor_range1(class: u8) -> bool {
    (0x09..=0x0f).contains(&class)
}

/// Whether the class is one of vendors with an OUI.
pub(super) fn is_vendor_range2(class: u8) -> bool {
    (0x30..=0x4f).contains(&class)
}

/// Bit 8 of `mgtclass` says that there is `error`; class 0x21 that there is `cckey`.
#[repr(C)]
#[derive(Clone, Default)]
pub(crate) struct ib_rpc_t {
    pub(super) mgtclass: c_int,
    pub(super) method: c_int,
    pub(super) attr_id: c_uint,
    pub(super) attr_mod: c_uint,
    pub(super) rstatus: u32,
    pub(super) dataoffs: c_int,
    pub(super) datasz: c_int,
    pub(super) mkey: u64,
    pub(super) trid: u64,
    pub(super) mask: u64,
    pub(super) recsz: c_uint,
    pub(super) timeout: c_int,
    pub(super) oui: u32,
    pub(super) error: c_int,
}

impl ib_rpc_t {
    pub(super) fn class(&self) -> u8 {
        self.mgtclass as u8
    }
}

#[repr(C)]
#[derive(Default)]
pub(crate) struct ib_rpc_cc_t {
    pub(super) rpc: ib_rpc_t,
    pub(super) cckey: u64,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ib_dr_path_t {
    pub(super) cnt: c_int,
    pub(super) p: [u8; HOPS_MAX],
    pub(super) drslid: u16,
    pub(super) drdlid: u16,
}

#[repr(C)]
#[derive(Copy, Clone)]
pub(crate) struct ib_portid_t {
    pub(super) lid: c_int,
    pub(super) drpath: ib_dr_path_t,
    pub(super) grh_present: c_int,
    pub(super) gid: [u8; 16],
    pub(super) qp: u32,
    pub(super) qkey: u32,
    pub(super) sl: u8,
    pub(super) pkey_idx: c_uint,
}

impl ib_portid_t {
    /// The port of the caller: a directed route without a hop.
    pub(super) const SELF: Self = Self {
        lid: 0,
        drpath: ib_dr_path_t { cnt: 0, p: [0; HOPS_MAX], drslid: 0, drdlid: 0 },
        grh_present: 0,
        gid: [0; 16],
        qp: 0,
        qkey: 0,
        sl: 0,
        pkey_idx: 0,
    };

    /// As ib_portid_set() of the header.
    pub(super) fn set(&mut self, lid: c_int, qp: u32, qkey: u32) {
        (self.lid, self.qp, self.qkey, self.grh_present) = (lid, qp, qkey, 0);
    }

    /// Makes it QP1's, where the caller has not said more.
    pub(super) fn of_qp1(&mut self) {
        self.qp = 1;
        if self.qkey == 0 {
            self.qkey = QP1_QKEY;
        }
    }
}

#[repr(C)]
pub(crate) struct ib_rmpp_hdr_t {
    pub(super) kind: c_int,
    pub(super) flags: c_int,
    pub(super) status: c_int,
    pub(super) d1: u32,
    pub(super) d2: u32,
}

#[repr(C)]
pub(crate) struct ib_sa_call_t {
    pub(super) attrid: c_uint,
    pub(super) attrmod: c_uint,
    pub(super) mask: u64,
    pub(super) method: c_uint,
    pub(super) trid: u64,
    pub(super) recsz: c_uint,
    pub(super) rmpp: ib_rmpp_hdr_t,
}

#[repr(C)]
pub(crate) struct ib_vendor_call_t {
    pub(super) method: c_uint,
    pub(super) mgmt_class: c_uint,
    pub(super) attrid: c_uint,
    pub(super) attrmod: c_uint,
    pub(super) oui: u32,
    pub(super) timeout: c_uint,
    pub(super) rmpp: ib_rmpp_hdr_t,
}

#[repr(C)]
pub(crate) struct ib_bm_call_t {
    pub(super) method: c_uint,
    pub(super) attrid: c_uint,
    pub(super) attrmod: c_uint,
    pub(super) timeout: c_uint,
    pub(super) bkey: u64,
}

const _: () = {
    assert!(size_of::<ib_rpc_t>() == 72);
    assert!(size_of::<ib_rpc_cc_t>() == 80);
    assert!(size_of::<ib_portid_t>() == 112);
    assert!(size_of::<ib_sa_call_t>() == 56);
    assert!(size_of::<ib_vendor_call_t>() == 44);
    assert!(size_of::<ib_bm_call_t>() == 24);
};
