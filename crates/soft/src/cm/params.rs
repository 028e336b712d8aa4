//! What is said when connections are made: port spaces, parameters, routes.

use ironverbs_transport::verbs::{AhAttr, QpType};
use ironverbs_wire::{Gid, Mtu};

pub use ironverbs_wire::mad::cm::{Ece, PortSpace};

/// The type of queue pair that ids of a port space have where the program does not say.
pub(super) const fn default_qp_type(space: PortSpace) -> QpType {
    match space {
        PortSpace::Ipoib | PortSpace::Udp => QpType::Ud,
        PortSpace::Tcp | PortSpace::Ib => QpType::Rc,
    }
}

/// Bytes of private data: what a program may give, and what the peer's event then shows, zeros behind.
pub mod private_data {
    use ironverbs_wire::mad::cm::{IpHeader, Rej, Rep, Req, SidrRep, SidrReq};

    /// A REQ's, less the addresses (IBA A11): 56.
    pub const CONNECT: usize = Req::PRIVATE_DATA - IpHeader::LEN;
    /// A SIDR_REQ's, less the addresses: 180.
    pub const UD_CONNECT: usize = SidrReq::PRIVATE_DATA - IpHeader::LEN;
    /// A REP's: 196.
    pub const ACCEPT: usize = Rep::PRIVATE_DATA;
    /// A SIDR_REP's: 136.
    pub const UD_ACCEPT: usize = SidrRep::PRIVATE_DATA;
    /// A REJ's: 148.
    pub const REJECT: usize = Rej::PRIVATE_DATA;
}

/// What a connection is to be like (`struct rdma_conn_param`), as the side that holds it sees it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConnParam {
    /// Bytes for the program at the other end; at most as [`private_data`] says. In an event the whole field.
    pub private_data: Vec<u8>,
    /// READs and atomics of the peer that this side holds at once.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once.
    pub initiator_depth: u8,
    /// End-to-end flow control; only handed on.
    pub flow_control: bool,
    /// Retries of the queue pair that this side's peer is to use, 0 to 7. Not in what accepts.
    pub retry_count: u8,
    /// RNR retries, 0 to 7; 7 is for ever.
    pub rnr_retry_count: u8,
    /// A shared receive queue is used. Taken from the queue pair where one is attached.
    pub srq: bool,
    /// The queue pair's number, 24 bits. Taken from the queue pair where one is attached.
    pub qp_num: u32,
}

/// Where a UD peer is (`struct rdma_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UdParam {
    /// Bytes of the peer's program, zeros behind: the whole field.
    pub private_data: Vec<u8>,
    /// Its address.
    pub ah_attr: AhAttr,
    /// Its queue pair, or 0xffffff for a multicast group.
    pub qp_num: u32,
    /// The Q_Key to send with.
    pub qkey: u32,
    /// The caller's own word that [`CmId::join_multicast`](super::CmId::join_multicast) was given.
    pub cookie: usize,
}

/// How a multicast group is joined (`enum rdma_cm_mc_join_flags`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum McJoin {
    /// To send and to receive.
    #[default]
    Full,
    /// To send only: nothing is told to the network, and no queue pair is attached.
    SendOnly,
}

/// A path between two ports (`struct ibv_sa_path_rec`; IBA 15.2.5.16), derived from route and interface.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Destination.
    pub dgid: Gid,
    /// Source.
    pub sgid: Gid,
    /// LID of the destination; 0 on Ethernet, or where it is not known.
    pub dlid: u16,
    /// LID of the source; likewise.
    pub slid: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// P_Key, host order.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Rate, as `enum ibv_rate` has it.
    pub rate: u8,
    /// How long a packet lives in the network: 4.096 us * 2^n.
    pub packet_life_time: u8,
}

/// How an id's packets travel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path.
    pub path: PathRecord,
    /// The source GID's place in the table of the device.
    pub gid_index: u32,
    /// The port, from 1.
    pub port_num: u8,
}

impl Route {
    /// The address vector for it.
    pub fn ah_attr(&self) -> AhAttr {
        AhAttr {
            dgid: self.path.dgid,
            dlid: self.path.dlid,
            // LMC is at most 7: the device takes those bits of them that count.
            src_path_bits: (self.path.slid & 0x7f) as u8,
            flow_label: self.path.flow_label,
            // The table has 128 entries.
            sgid_index: self.gid_index as u8,
            hop_limit: self.path.hop_limit,
            traffic_class: self.path.traffic_class,
            sl: self.path.sl,
            is_global: true,
            port_num: self.port_num,
            ..AhAttr::default()
        }
    }
}
