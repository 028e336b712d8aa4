//! Messages that end a connection: DREQ, DREP.

use super::BODY_LEN;
use super::fields::{Body, be24, be32, bytes, put, put24};

/// Request to disconnect (IBA 12.6.10).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// The receiver's QP, 24 bits.
    pub remote_qpn: u32,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Dreq {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0015;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 220;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be24(b, 8),
            private_data: bytes(b, 12),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        put24(&mut b, 8, self.remote_qpn, 0);
        put(&mut b, 12, &self.private_data);
        b
    }
}

/// Reply to a request to disconnect (IBA 12.6.11).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for it.
    pub remote_comm_id: u32,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Drep {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0016;
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
