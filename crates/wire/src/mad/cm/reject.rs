//! REJ, and why a connection is refused.

use super::fields::{Body, be16, be32, bytes, low, put};
use super::{BODY_LEN, Responded};

/// Reject (IBA 12.6.7).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Rej {
    /// The sender's name for the connection, 0 if it gave it none.
    pub local_comm_id: u32,
    /// The receiver's name for it, 0 if the sender never learnt it.
    pub remote_comm_id: u32,
    /// The message that is refused.
    pub message: Responded,
    /// Bytes of `info` that mean something, 7 bits; above 72 in no correct message.
    pub info_len: u8,
    /// Why.
    pub reason: RejReason,
    /// Additional reject information, of a meaning that the reason defines.
    pub info: [u8; Self::INFO],
    /// Bytes of the consumer.
    pub private_data: [u8; Self::PRIVATE_DATA],
}

impl Rej {
    /// Attribute ID.
    pub const ATTRIBUTE: u16 = 0x0012;
    /// Bytes of additional reject information.
    pub const INFO: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_DATA: usize = 148;

    pub(super) fn parse(b: &Body) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            message: Responded::from_bits(b[8] >> 6),
            info_len: b[9] >> 1,
            reason: RejReason::from_u16(be16(b, 10)),
            info: bytes(b, 12),
            private_data: bytes(b, 84),
        }
    }

    pub(super) fn emit(&self) -> Body {
        let mut b = [0; BODY_LEN];
        put(&mut b, 0, &self.local_comm_id.to_be_bytes());
        put(&mut b, 4, &self.remote_comm_id.to_be_bytes());
        b[8] = (self.message as u8) << 6;
        b[9] = low(self.info_len, 7, 1);
        put(&mut b, 10, &self.reason.to_u16().to_be_bytes());
        put(&mut b, 12, &self.info);
        put(&mut b, 84, &self.private_data);
        b
    }

    /// The additional reject information that means something.
    pub fn info(&self) -> &[u8] {
        self.info.get(..self.info_len.into()).unwrap_or(&self.info)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why a message is refused (IBA 12.6.7.2, table 107). The numbers are those that
        /// librdmacm gives a program as the status of `RDMA_CM_EVENT_REJECTED`.
        #[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
        pub enum RejReason {
            $($(#[$doc])* $name,)*
            /// A code that the table does not have.
            Unknown(u16),
        }

        impl RejReason {
            /// Every reason that has a name.
            pub const NAMED: &[Self] = &[$(Self::$name,)*];

            /// The reason of this code. Never `Unknown` with the code of a named one.
            pub const fn from_u16(code: u16) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::Unknown(code),
                }
            }

            /// The code on the wire.
            pub const fn to_u16(self) -> u16 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(code) => code,
                }
            }
        }
    };
}

reasons! {
    /// No QP is available.
    NoQp = 1,
    /// No end-to-end context is available.
    NoEec = 2,
    /// No other resources are available.
    NoResources = 3,
    /// An answer stayed away for too long.
    Timeout = 4,
    /// Not supported.
    Unsupported = 5,
    /// No connection has this communication ID.
    InvalidCommId = 6,
    /// The communication IDs and QPNs do not belong together.
    InvalidCommInstance = 7,
    /// Nobody listens on this service ID.
    InvalidServiceId = 8,
    /// Not this kind of connection.
    InvalidTransportServiceType = 9,
    /// The receiver holds a connection that this contradicts; it is being ended.
    StaleConnection = 10,
    /// The reliable datagram channel does not exist.
    RdcDoesNotExist = 11,
    /// The primary path's remote GID is none of the receiver's.
    PrimaryRemoteGid = 12,
    /// The primary path's remote LID is none of the receiver's.
    PrimaryRemoteLid = 13,
    /// The primary path's service level.
    PrimarySl = 14,
    /// The primary path's traffic class.
    PrimaryTrafficClass = 15,
    /// The primary path's hop limit.
    PrimaryHopLimit = 16,
    /// The primary path's packet rate.
    PrimaryPacketRate = 17,
    /// The alternate path's remote GID is none of the receiver's.
    AlternateRemoteGid = 18,
    /// The alternate path's remote LID is none of the receiver's.
    AlternateRemoteLid = 19,
    /// The alternate path's service level.
    AlternateSl = 20,
    /// The alternate path's traffic class.
    AlternateTrafficClass = 21,
    /// The alternate path's hop limit.
    AlternateHopLimit = 22,
    /// The alternate path's packet rate.
    AlternatePacketRate = 23,
    /// Communication management of the port is elsewhere.
    PortAndCmRedirection = 24,
    /// The port is elsewhere.
    PortRedirection = 25,
    /// The path MTU.
    InvalidMtu = 26,
    /// Too few responder resources.
    InsufficientResponderResources = 27,
    /// The consumer refused.
    ConsumerReject = 28,
    /// The RNR retry count.
    RnrRetryCount = 29,
    /// The sender uses this communication ID already.
    DuplicateLocalCommId = 30,
    /// The version of the class.
    InvalidClassVersion = 31,
    /// The primary path's flow label.
    PrimaryFlowLabel = 32,
    /// The alternate path's flow label.
    AlternateFlowLabel = 33,
    /// A vendor's option is not supported.
    VendorOption = 35,
}
