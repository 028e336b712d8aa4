//! The subnet manager and administrator of an InfiniBand subnet (IBA chapters 14 and 15), sans-I/O.
//!
//! A [`SubnetManager`] finds the nodes by directed-route packets, port by port, gives ports without one a LID, tells all
//! who manages them and brings them to ACTIVE. Of several managers one is the master: the one with the highest priority,
//! of those alike with the lowest GUID; the others stand by, ask four times a second whether the master lives, and one takes
//! over where it does not. The master is the administrator, too: it answers queries from what it has found, keeps multicast
//! groups, services and subscriptions, and reports ports and groups that come and go, until that is acknowledged.
//!
//! An [`SaClient`] asks the administrator, whosever it is, and a [`PathCache`] keeps what it has told.
//!
//! What is not done: forwarding tables, partition tables and virtual lanes are left as the nodes have them.

mod admin;
mod cache;
mod client;
mod db;
mod manager;
mod paths;
mod records;
mod reports;
mod sweep;
mod tables;

pub use cache::PathCache;
pub use client::{
    QueryId, SaClient, SaError, SaMember, SaPath, SaQuery, SaResult, notice, port_gid,
};
pub use db::{Node, NodeKind};
pub use manager::{Role, SmConfig, SmCounters, SubnetManager};

use ironverbs_wire::Gid;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

/// Classes (IBA 13.4.4).
pub(crate) const SUBN_LID: u8 = 0x01;
pub(crate) const SUBN_DIRECTED: u8 = 0x81;
pub(crate) const SUBN_ADM: u8 = 0x03;

/// Methods (IBA 13.4.5, 15.2.2).
pub(crate) mod method {
    pub(crate) const GET: u8 = 0x01;
    pub(crate) const SET: u8 = 0x02;
    pub(crate) const TRAP: u8 = 0x05;
    pub(crate) const REPORT: u8 = 0x06;
    pub(crate) const TRAP_REPRESS: u8 = 0x07;
    pub(crate) const GET_TABLE: u8 = 0x12;
    pub(crate) const GET_MULTI: u8 = 0x14;
    pub(crate) const DELETE: u8 = 0x15;
    pub(crate) const RESPONSE: u8 = 0x80;
}

/// Attributes of subnet management.
pub(crate) mod attribute {
    pub(crate) const NOTICE: u16 = 0x02;
    pub(crate) const INFORM_INFO: u16 = 0x03;
    pub(crate) const NODE_DESCRIPTION: u16 = 0x10;
    pub(crate) const NODE_INFO: u16 = 0x11;
    pub(crate) const SWITCH_INFO: u16 = 0x12;
    pub(crate) const GUID_INFO: u16 = 0x14;
    pub(crate) const PORT_INFO: u16 = 0x15;
    pub(crate) const PKEY_TABLE: u16 = 0x16;
    pub(crate) const LINEAR_FORWARDING: u16 = 0x19;
    pub(crate) const MULTICAST_FORWARDING: u16 = 0x1b;
    pub(crate) const SM_INFO: u16 = 0x20;
}

/// Where a MAD goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To QP0, by the ports that a directed route leaves by, one for each hop; it is in the MAD, too.
    Directed(Vec<u8>),
    /// To a QP of the port with a LID.
    Lid {
        /// Destination.
        lid: u16,
        /// 0 or 1.
        qpn: u32,
    },
}

/// A MAD to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom.
    pub way: Way,
    /// An answer is to come, which the lower half of the transaction ID names.
    pub asks: bool,
    /// The MAD.
    pub mad: Mad,
}

/// Where a MAD came from.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// LID of the sender; 0xffff of an answer by directed route.
    pub lid: u16,
    /// QPN that it came to.
    pub qpn: u32,
}

impl Origin {
    /// Whether a sender is known by its LID.
    pub(crate) fn has_lid(&self) -> bool {
        self.lid != 0xffff
    }
}

pub(crate) fn header(mad: &Mad) -> MadHeader {
    mad.first_chunk().map(MadHeader::parse).unwrap_or_default()
}

/// The attribute's bytes in a subnet management packet.
pub(crate) const SMP_DATA: std::ops::Range<usize> = 64..128;

/// A subnet management packet by directed route (IBA 14.2.1.2).
pub(crate) fn directed(path: &[u8], header: &MadHeader, m_key: u64, data: &[u8; 64]) -> Mad {
    let mut mad = [0; 256];
    let class = MadHeader {
        base_version: BASE_VERSION,
        class: SUBN_DIRECTED,
        class_version: 1,
        // Hop pointer and hop count.
        class_specific: path.len().min(63) as u16,
        ..*header
    };
    mad[..24].copy_from_slice(&class.emit());
    mad[24..32].copy_from_slice(&m_key.to_be_bytes());
    mad[32..36].fill(0xff);
    mad[SMP_DATA].copy_from_slice(data);
    for (to, port) in mad[129..192].iter_mut().zip(path) {
        *to = *port;
    }
    mad
}

/// One by LID.
pub(crate) fn lid_routed(header: &MadHeader, m_key: u64, data: &[u8; 64]) -> Mad {
    let mut mad = directed(&[], header, m_key, data);
    mad[6..8].copy_from_slice(&header.class_specific.to_be_bytes());
    mad[1] = SUBN_LID;
    mad[32..36].fill(0);
    mad
}

pub(crate) fn smp_data(mad: &Mad) -> [u8; 64] {
    let mut data = [0; 64];
    data.copy_from_slice(&mad[SMP_DATA]);
    data
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b))
}

pub(crate) fn gid(prefix: u64, guid: u64) -> Gid {
    Gid((u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes())
}
