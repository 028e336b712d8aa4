//! Messages about an alternate path: LAP, APR.

use super::BODY_LEN;
use super::fields::{Body, be16, be24, be32, bytes, low, put, put24};
use crate::Gid;

/// Load alternate path (IBA 12.8.1).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// The receiver's QP, 24 bits.
    pub remote_qpn: u32,
    /// Time within which the receiver is to answer, 4.096 us * 2^n, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// LID of the sender.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Rate as in `enum ibv_rate`, 6 bits.
    pub packet_rate: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout of the sender, 4.096 us * 2^n, 5 bits.
    pub ack_timeout: u8,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Lap {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0019;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 168;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be24(b, 12),
            remote_cm_response_timeout: b[15] >> 3,
            local_lid: be16(b, 20),
            remote_lid: be16(b, 22),
            local_gid: Gid(bytes(b, 24)),
            remote_gid: Gid(bytes(b, 40)),
            flow_label: be32(b, 56) >> 12,
            traffic_class: b[59],
            hop_limit: b[60],
            packet_rate: b[61] & 0x3f,
            sl: b[62] >> 4,
            subnet_local: b[62] & 8 != 0,
            ack_timeout: b[63] >> 3,
            private_data: bytes(b, 64),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        put24(&mut b, 12, self.remote_qpn, low(self.remote_cm_response_timeout, 5, 3));
        put(&mut b, 20, &self.local_lid.to_be_bytes());
        put(&mut b, 22, &self.remote_lid.to_be_bytes());
        put(&mut b, 24, &self.local_gid.0);
        put(&mut b, 40, &self.remote_gid.0);
        let label = self.flow_label << 12 | u32::from(self.traffic_class);
        put(&mut b, 56, &label.to_be_bytes());
        b[60] = self.hop_limit;
        b[61] = low(self.packet_rate, 6, 0);
        b[62] = low(self.sl, 4, 4) | u8::from(self.subnet_local) << 3;
        b[63] = low(self.ack_timeout, 5, 3);
        put(&mut b, 64, &self.private_data);
        b
    }
}

/// What became of an alternate path (IBA 12.8.2.1, table 118). Others than these say what was
/// wrong with a path.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct ApStatus(pub u8);

impl ApStatus {
    /// Loaded.
    pub const LOADED: Self = Self(0);
    /// No connection has this communication ID.
    pub const INVALID_COMM_ID: Self = Self(1);
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: Self = Self(2);
    /// Refused by the consumer.
    pub const REJECTED: Self = Self(3);
}

/// Alternate path response (IBA 12.8.2).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// What became of the path.
    pub status: ApStatus,
    /// Additional information, of a meaning that the status defines.
    pub info: [u8; Self::INFO],
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Apr {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x001a;
    /// Bytes of additional information.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 148;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            info_len: b[8],
            status: ApStatus(b[9]),
            info: bytes(b, 12),
            private_data: bytes(b, 84),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        b[8] = self.info_len;
        b[9] = self.status.0;
        put(&mut b, 12, &self.info);
        put(&mut b, 84, &self.private_data);
        b
    }
}
