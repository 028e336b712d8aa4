//! Service ID resolution, which finds the QP of a datagram service: SIDR_REQ, SIDR_REP.

use super::fields::{Body, be16, be24, be32, be64, bytes, put, put24};
use super::{BODY_LEN, ServiceId};

/// Service ID resolution request (IBA 12.11.1).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SidrReq {
    /// The sender's name for the request.
    pub request_id: u32,
    /// Partition of the datagrams to come.
    pub pkey: u16,
    /// What the sender wants to reach.
    pub service_id: ServiceId,
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl SidrReq {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0017;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 216;
    pub(super) const SERVICE_ID_AT: usize = 8;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            request_id: be32(b, 0),
            pkey: be16(b, 4),
            service_id: ServiceId(be64(b, Self::SERVICE_ID_AT)),
            private_data: bytes(b, 16),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.request_id.to_be_bytes());
        put(&mut b, 4, &self.pkey.to_be_bytes());
        put(&mut b, Self::SERVICE_ID_AT, &self.service_id.0.to_be_bytes());
        put(&mut b, 16, &self.private_data);
        b
    }
}

/// The answer to a SIDR_REQ (IBA 12.11.2.1, table 121).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// QPN and Q_Key are valid.
    pub const VALID: Self = Self(0);
    /// Nobody listens on this service ID.
    pub const UNSUPPORTED: Self = Self(1);
    /// Refused by the consumer.
    pub const REJECTED: Self = Self(2);
    /// No QP is available.
    pub const NO_QP: Self = Self(3);
    /// The service is elsewhere.
    pub const REDIRECT: Self = Self(4);
    /// The version of the class is not supported.
    pub const UNSUPPORTED_VERSION: Self = Self(5);
}

/// Service ID resolution response (IBA 12.11.2).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct SidrRep {
    /// The receiver's name for the request.
    pub request_id: u32,
    /// The answer.
    pub status: SidrStatus,
    /// Bytes of `info` that mean something.
    pub info_len: u8,
    /// QP of the service, 24 bits.
    pub qpn: u32,
    /// The service that was asked for.
    pub service_id: ServiceId,
    /// Q_Key of the QP.
    pub qkey: u32,
    /// Additional information, of a meaning that the status defines.
    pub info: [u8; Self::INFO],
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl SidrRep {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0018;
    /// Bytes of additional information.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 136;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            request_id: be32(b, 0),
            status: SidrStatus(b[4]),
            info_len: b[5],
            qpn: be24(b, 8),
            service_id: ServiceId(be64(b, 12)),
            qkey: be32(b, 20),
            info: bytes(b, 24),
            private_data: bytes(b, 96),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.request_id.to_be_bytes());
        b[4] = self.status.0;
        b[5] = self.info_len;
        put24(&mut b, 8, self.qpn, 0);
        put(&mut b, 12, &self.service_id.0.to_be_bytes());
        put(&mut b, 20, &self.qkey.to_be_bytes());
        put(&mut b, 24, &self.info);
        put(&mut b, 96, &self.private_data);
        b
    }
}
