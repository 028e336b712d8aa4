//! Communication management messages (IBA 12.6 to 12.11), one value each.
//!
//! Field names are those of the specification; "local" is the sender. What does not fit its field
//! is cut to it, reserved bits are ignored when read and zero when written. A private data field
//! is always whole, zero-padded: the format has no length for it.

mod alternate;
mod connect;
mod disconnect;
mod fields;
mod ip;
mod reject;
mod sidr;

pub use alternate::{ApStatus, Apr, Lap};
pub use connect::{Ece, Mra, Rep, Req, ReqPath, Responded, Rtu, Transport};
pub use disconnect::{Drep, Dreq};
pub use ip::{IpHeader, IpHeaderError, PortSpace, ServiceId};
pub use reject::{Rej, RejReason};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use super::{BASE_VERSION, BODY_LEN, MAD_LEN, Mad, MadHeader};

/// Management class of communication management (IBA 13.4.4).
pub const CLASS: u8 = 0x07;

/// Version of the class (IBA 12.6.1).
pub const CLASS_VERSION: u8 = 2;

/// Every message of the class is sent with this method, ComMgtSend (IBA 16.7.2).
pub const METHOD_SEND: u8 = 0x03;

/// A message of communication management.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Message {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Reply to a request to disconnect.
    Drep(Drep),
    /// Service ID resolution request.
    SidrReq(SidrReq),
    /// Service ID resolution response.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

impl Message {
    /// The transaction and the message of a MAD.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Self), CmError> {
        let (header, body) = split(bytes)?;
        let message = match header.attribute {
            Req::ATTRIBUTE => Self::Req(Req::parse(header.modifier, body)),
            Mra::ATTRIBUTE => Self::Mra(Mra::parse(body)),
            Rej::ATTRIBUTE => Self::Rej(Rej::parse(body)),
            Rep::ATTRIBUTE => Self::Rep(Rep::parse(header.modifier, body)),
            Rtu::ATTRIBUTE => Self::Rtu(Rtu::parse(body)),
            Dreq::ATTRIBUTE => Self::Dreq(Dreq::parse(body)),
            Drep::ATTRIBUTE => Self::Drep(Drep::parse(body)),
            SidrReq::ATTRIBUTE => Self::SidrReq(SidrReq::parse(body)),
            SidrRep::ATTRIBUTE => Self::SidrRep(SidrRep::parse(body)),
            Lap::ATTRIBUTE => Self::Lap(Lap::parse(body)),
            Apr::ATTRIBUTE => Self::Apr(Apr::parse(body)),
            attribute => return Err(CmError::Attribute { attribute }),
        };
        Ok((header.tid, message))
    }

    /// The MAD of this message in the transaction `tid`.
    pub fn emit(&self, tid: u64) -> Mad {
        let (attribute, body) = match self {
            Self::Req(m) => (Req::ATTRIBUTE, m.emit()),
            Self::Mra(m) => (Mra::ATTRIBUTE, m.emit()),
            Self::Rej(m) => (Rej::ATTRIBUTE, m.emit()),
            Self::Rep(m) => (Rep::ATTRIBUTE, m.emit()),
            Self::Rtu(m) => (Rtu::ATTRIBUTE, m.emit()),
            Self::Dreq(m) => (Dreq::ATTRIBUTE, m.emit()),
            Self::Drep(m) => (Drep::ATTRIBUTE, m.emit()),
            Self::SidrReq(m) => (SidrReq::ATTRIBUTE, m.emit()),
            Self::SidrRep(m) => (SidrRep::ATTRIBUTE, m.emit()),
            Self::Lap(m) => (Lap::ATTRIBUTE, m.emit()),
            Self::Apr(m) => (Apr::ATTRIBUTE, m.emit()),
        };
        let modifier = match self {
            Self::Req(Req { ece, .. }) | Self::Rep(Rep { ece, .. }) => ece.options,
            _ => 0,
        };
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            tid,
            attribute,
            modifier,
            ..MadHeader::default()
        };
        let mut mad = [0; MAD_LEN];
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        mad[MadHeader::LEN..].copy_from_slice(&body);
        mad
    }
}

/// The header and the body of a MAD of this class.
fn split(bytes: &[u8]) -> Result<(MadHeader, &fields::Body), CmError> {
    let wrong_length = CmError::Length { len: bytes.len() };
    let (header, body) = bytes.split_first_chunk().ok_or(wrong_length)?;
    let body: &[u8; BODY_LEN] = body.try_into().map_err(|_| wrong_length)?;
    let header = MadHeader::parse(header);
    let MadHeader { base_version, class, class_version, method, .. } = header;
    if base_version != BASE_VERSION {
        return Err(CmError::BaseVersion { version: base_version });
    }
    if class != CLASS {
        return Err(CmError::Class { class });
    }
    if class_version != CLASS_VERSION {
        return Err(CmError::ClassVersion { version: class_version });
    }
    if method != METHOD_SEND {
        return Err(CmError::Method { method });
    }
    Ok((header, body))
}

/// Why bytes are no message of communication management.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum CmError {
    /// Not 256 bytes.
    #[error("a MAD of {len} bytes, not {MAD_LEN}")]
    Length {
        /// Bytes there are.
        len: usize,
    },
    /// Not the common format that is understood.
    #[error("MAD base version {version}, not {BASE_VERSION}")]
    BaseVersion {
        /// The version given.
        version: u8,
    },
    /// Of another management class.
    #[error("management class {class:#04x}, not {CLASS:#04x}")]
    Class {
        /// The class given.
        class: u8,
    },
    /// Not the formats that are understood.
    #[error("class version {version}, not {CLASS_VERSION}")]
    ClassVersion {
        /// The version given.
        version: u8,
    },
    /// Another method than sending.
    #[error("method {method:#04x}, not {METHOD_SEND:#04x}")]
    Method {
        /// The method given.
        method: u8,
    },
    /// No message of this class has that number.
    #[error("no message of communication management has attribute {attribute:#06x}")]
    Attribute {
        /// The attribute given.
        attribute: u16,
    },
}

/// Whom a MAD is for, among the processes that read one QP1.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Destination {
    /// Whoever listens on this service ID: a REQ or SIDR_REQ.
    ServiceId(ServiceId),
    /// Whoever gave out this communication ID: anything that answers.
    CommId(u32),
    /// Anyone: no message that is understood, or a REJ of one whose sender never learnt an ID.
    Unknown,
}

/// Whom a MAD is for, read off without a look at the rest.
pub fn destination(bytes: &[u8]) -> Destination {
    let Ok((header, body)) = split(bytes) else { return Destination::Unknown };
    let comm_id = |at| match fields::be32(body, at) {
        0 => Destination::Unknown,
        id => Destination::CommId(id),
    };
    match header.attribute {
        Req::ATTRIBUTE => Destination::ServiceId(ServiceId(fields::be64(body, Req::SERVICE_ID_AT))),
        SidrReq::ATTRIBUTE => {
            Destination::ServiceId(ServiceId(fields::be64(body, SidrReq::SERVICE_ID_AT)))
        }
        SidrRep::ATTRIBUTE => comm_id(0),
        Mra::ATTRIBUTE
        | Rej::ATTRIBUTE
        | Rep::ATTRIBUTE
        | Rtu::ATTRIBUTE
        | Dreq::ATTRIBUTE
        | Drep::ATTRIBUTE
        | Lap::ATTRIBUTE
        | Apr::ATTRIBUTE => comm_id(4),
        _ => Destination::Unknown,
    }
}
