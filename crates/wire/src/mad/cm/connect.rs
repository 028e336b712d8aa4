//! Messages that make a connection: REQ, MRA, REP, RTU.

use super::fields::{Body, be16, be24, be32, be64, bytes, low, put, put24};
use super::{BODY_LEN, ServiceId};
use crate::Gid;

/// The kind of connection that a REQ asks for (transport service type, and for XRC the extended
/// transport type, IBA 12.6.5 and A14.5).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// An extended transport that is reserved; its number, 3 bits, not 1.
    Extended(u8),
}

impl Transport {
    fn from_bits(service: u8, extended: u8) -> Self {
        match (service & 3, extended & 7) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, other) => Self::Extended(other),
        }
    }

    /// Transport service type and extended transport type.
    fn bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Extended(other) => (3, other & 7),
        }
    }
}

/// Enhanced connection establishment: options of a vendor that both QPs may take up (rdma_cm(7),
/// `rdma_set_local_ece`). The vendor lies in what older releases have reserved, the options in the
/// attribute modifier of the common header.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub struct Ece {
    /// Whose options these are, 24 bits; 0 for none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// Request for communication (IBA 12.6.5).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// What the sender wants to reach.
    pub service_id: ServiceId,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Q_Key, for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's QP, 24 bits.
    pub local_qpn: u32,
    /// READs and atomics that the sender's QP serves at a time.
    pub responder_resources: u8,
    /// End-to-end context, for reliable datagrams, 24 bits.
    pub local_eecn: u32,
    /// READs and atomics that the sender's QP issues at a time.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver, for reliable datagrams, 24 bits.
    pub remote_eecn: u32,
    /// Time within which the receiver is to answer, 4.096 us * 2^n, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// The kind of connection.
    pub transport: Transport,
    /// The sender's QP counts the receiver's receives.
    pub end_to_end_flow_control: bool,
    /// The PSN that the receiver of this message is to start with, 24 bits (IBA 12.6.5, 12.6.9).
    pub starting_psn: u32,
    /// Time within which the sender answers, 4.096 us * 2^n, 5 bits.
    pub local_cm_response_timeout: u8,
    /// Retries of the receiver's QP when acknowledgements stay away, 3 bits.
    pub retry_count: u8,
    /// Partition of the connection.
    pub pkey: u16,
    /// Path MTU as in [`Mtu`](crate::Mtu), 4 bits.
    pub mtu: u8,
    /// A reliable datagram channel exists.
    pub rdc_exists: bool,
    /// Retries of the receiver's QP when the sender's is not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Times that either side repeats a message, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP takes its receives from a shared receive queue.
    pub srq: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// The path to use.
    pub primary: ReqPath,
    /// The path to move to; all zero if none.
    pub alternate: ReqPath,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Req {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0010;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 92;
    pub(super) const SERVICE_ID_AT: usize = 8;

    pub(super) fn parse(modifier: u32, b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            ece: Ece { vendor_id: be32(b, 4) & 0xff_ffff, options: modifier },
            service_id: ServiceId(be64(b, Self::SERVICE_ID_AT)),
            local_ca_guid: be64(b, 16),
            local_qkey: be32(b, 28),
            local_qpn: be24(b, 32),
            responder_resources: b[35],
            local_eecn: be24(b, 36),
            initiator_depth: b[39],
            remote_eecn: be24(b, 40),
            remote_cm_response_timeout: b[43] >> 3,
            transport: Transport::from_bits(b[43] >> 1, b[51]),
            end_to_end_flow_control: b[43] & 1 != 0,
            starting_psn: be24(b, 44),
            local_cm_response_timeout: b[47] >> 3,
            retry_count: b[47] & 7,
            pkey: be16(b, 48),
            mtu: b[50] >> 4,
            rdc_exists: b[50] & 8 != 0,
            rnr_retry_count: b[50] & 7,
            max_cm_retries: b[51] >> 4,
            srq: b[51] & 8 != 0,
            primary: ReqPath::parse(b, 52),
            alternate: ReqPath::parse(b, 96),
            private_data: bytes(b, 140),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let (service, extended) = self.transport.bits();
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &(self.ece.vendor_id & 0xff_ffff).to_be_bytes());
        put(&mut b, Self::SERVICE_ID_AT, &self.service_id.0.to_be_bytes());
        put(&mut b, 16, &self.local_ca_guid.to_be_bytes());
        put(&mut b, 28, &self.local_qkey.to_be_bytes());
        put24(&mut b, 32, self.local_qpn, self.responder_resources);
        put24(&mut b, 36, self.local_eecn, self.initiator_depth);
        let timeout = low(self.remote_cm_response_timeout, 5, 3);
        let flow_control = u8::from(self.end_to_end_flow_control);
        put24(&mut b, 40, self.remote_eecn, timeout | service << 1 | flow_control);
        let timeout = low(self.local_cm_response_timeout, 5, 3);
        put24(&mut b, 44, self.starting_psn, timeout | low(self.retry_count, 3, 0));
        put(&mut b, 48, &self.pkey.to_be_bytes());
        b[50] =
            low(self.mtu, 4, 4) | u8::from(self.rdc_exists) << 3 | low(self.rnr_retry_count, 3, 0);
        b[51] = low(self.max_cm_retries, 4, 4) | u8::from(self.srq) << 3 | extended;
        self.primary.emit(&mut b, 52);
        self.alternate.emit(&mut b, 96);
        put(&mut b, 140, &self.private_data);
        b
    }
}

/// One path of a REQ, as its sender sees it.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ReqPath {
    /// LID of the sender; 0xffff, the permissive LID, on Ethernet.
    pub local_lid: u16,
    /// LID of the receiver; 0xffff on Ethernet.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Rate as in `enum ibv_rate`, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout of the sender, 4.096 us * 2^n, 5 bits.
    pub ack_timeout: u8,
}

impl ReqPath {
    fn parse(b: &Body, at: usize) -> Self {
        Self {
            local_lid: be16(b, at),
            remote_lid: be16(b, at + 2),
            local_gid: Gid(bytes(b, at + 4)),
            remote_gid: Gid(bytes(b, at + 20)),
            flow_label: be32(b, at + 36) >> 12,
            packet_rate: b[at + 39] & 0x3f,
            traffic_class: b[at + 40],
            hop_limit: b[at + 41],
            sl: b[at + 42] >> 4,
            subnet_local: b[at + 42] & 8 != 0,
            ack_timeout: b[at + 43] >> 3,
        }
    }

    fn emit(&self, b: &mut Body, at: usize) {
        put(b, at, &self.local_lid.to_be_bytes());
        put(b, at + 2, &self.remote_lid.to_be_bytes());
        put(b, at + 4, &self.local_gid.0);
        put(b, at + 20, &self.remote_gid.0);
        let rate = u32::from(low(self.packet_rate, 6, 0));
        put(b, at + 36, &(self.flow_label << 12 | rate).to_be_bytes());
        b[at + 40] = self.traffic_class;
        b[at + 41] = self.hop_limit;
        b[at + 42] = low(self.sl, 4, 4) | u8::from(self.subnet_local) << 3;
        b[at + 43] = low(self.ack_timeout, 5, 3);
    }
}

/// Which message an MRA or a REJ answers.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum Responded {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// In an MRA a LAP, in a REJ no message in particular.
    Other = 2,
    /// Reserved.
    Reserved = 3,
}

impl Responded {
    pub(super) fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }
}

/// Message receipt acknowledgement: the answer takes longer (IBA 12.6.6).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// What was received.
    pub message: Responded,
    /// Time to wait for the answer, 4.096 us * 2^n, 5 bits.
    pub service_timeout: u8,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Mra {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0011;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 222;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            message: Responded::from_bits(b[8] >> 6),
            service_timeout: b[9] >> 3,
            private_data: bytes(b, 10),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        b[8] = (self.message as u8) << 6;
        b[9] = low(self.service_timeout, 5, 3);
        put(&mut b, 10, &self.private_data);
        b
    }
}

/// Reply to a request for communication (IBA 12.6.8).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// Q_Key, for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's QP, 24 bits; 0 for an extended reliable connection.
    pub local_qpn: u32,
    /// End-to-end context, 24 bits; for an extended reliable connection the sender's QP.
    pub local_eecn: u32,
    /// The PSN that the receiver of this message is to start with, 24 bits (IBA 12.6.5, 12.6.9).
    pub starting_psn: u32,
    /// READs and atomics that the sender's QP serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender's QP issues at a time.
    pub initiator_depth: u8,
    /// Longest time from a packet to its acknowledgement, 4.096 us * 2^n, 5 bits.
    pub target_ack_delay: u8,
    /// What became of the alternate path, 2 bits; 0 if there is none or it is taken.
    pub failover_accepted: u8,
    /// The sender's QP counts the receiver's receives.
    pub end_to_end_flow_control: bool,
    /// Retries of the receiver's QP when the sender's is not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's QP takes its receives from a shared receive queue.
    pub srq: bool,
    /// Options of a vendor.
    pub ece: Ece,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Rep {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0013;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 196;

    pub(super) fn parse(modifier: u32, b: &Body) -> Self {
        let vendor_id = u32::from_be_bytes([0, b[15], b[19], b[23]]);
        Self {
            ece: Ece { vendor_id, options: modifier },
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            local_qkey: be32(b, 8),
            local_qpn: be24(b, 12),
            local_eecn: be24(b, 16),
            starting_psn: be24(b, 20),
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: b[26] >> 3,
            failover_accepted: b[26] >> 1 & 3,
            end_to_end_flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            local_ca_guid: be64(b, 28),
            private_data: bytes(b, 36),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        put(&mut b, 8, &self.local_qkey.to_be_bytes());
        let [_, high, mid, low_byte] = self.ece.vendor_id.to_be_bytes();
        put24(&mut b, 12, self.local_qpn, high);
        put24(&mut b, 16, self.local_eecn, mid);
        put24(&mut b, 20, self.starting_psn, low_byte);
        b[24] = self.responder_resources;
        b[25] = self.initiator_depth;
        b[26] = low(self.target_ack_delay, 5, 3)
            | low(self.failover_accepted, 2, 1)
            | u8::from(self.end_to_end_flow_control);
        b[27] = low(self.rnr_retry_count, 3, 5) | u8::from(self.srq) << 4;
        put(&mut b, 28, &self.local_ca_guid.to_be_bytes());
        put(&mut b, 36, &self.private_data);
        b
    }
}

/// Ready to use: the reply has arrived (IBA 12.6.9).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Rtu {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0014;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 224;

    pub(super) fn parse(b: &Body) -> Self {
        Self { local_comm_id: be32(b, 0), remote_comm_id: be32(b, 4), private_data: bytes(b, 8) }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        put(&mut b, 8, &self.private_data);
        b
    }
}
