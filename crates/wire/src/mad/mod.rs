//! Management datagrams: the common header, and how they travel on QP1.
//!
//! A general management packet (GMP) is a UD SEND to QP1 whose payload is a MAD of 256 bytes: the
//! common header and 232 bytes that its class and attribute define (IBA 13.4.3). [`cm`] has those
//! of communication management.

pub mod cm;

use crate::headers::{Bth, Deth};
use crate::opcode::{Op, Opcode, Service};
use crate::packet::Packet;

/// Bytes of every MAD (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// QP number of the general services interface (IBA 3.9.3).
pub const GSI_QPN: u32 = 1;

/// The Q_Key of QP1, well known (IBA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// The management base version, in every MAD (IBA 13.4.3).
pub const BASE_VERSION: u8 = 1;

/// Bytes of a MAD after the common header.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// A whole MAD.
pub type Mad = [u8; MAD_LEN];

/// The header that all MADs begin with (IBA 13.4.3, table 110).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub struct MadHeader {
    /// Version of the common format, [`BASE_VERSION`].
    pub base_version: u8,
    /// Management class; [`cm::CLASS`] for communication management.
    pub class: u8,
    /// Version of the class's formats.
    pub class_version: u8,
    /// What is asked for, and in the top bit whether this is a response.
    pub method: u8,
    /// Status of a response, 0 in a request.
    pub status: u16,
    /// Of a meaning that the class defines.
    pub class_specific: u16,
    /// Transaction: a response repeats that of its request.
    pub tid: u64,
    /// Which attribute the body is.
    pub attribute: u16,
    /// Scope of the attribute.
    pub modifier: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// The header these bytes are. The reserved word after the attribute is ignored.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        let [
            base_version,
            class,
            class_version,
            method,
            s0,
            s1,
            c0,
            c1,
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            a0,
            a1,
            _,
            _,
            m0,
            m1,
            m2,
            m3,
        ] = *b;
        Self {
            base_version,
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            tid: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute: u16::from_be_bytes([a0, a1]),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&[self.base_version, self.class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.tid.to_be_bytes());
        b[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        b[20..].copy_from_slice(&self.modifier.to_be_bytes());
        b
    }
}

/// The packet that carries `mad` from QP1 to QP1.
///
/// `pkey` is the partition that both ports share, `psn` counts the packets of the sending QP1,
/// 24 bits.
pub fn gmp(pkey: u16, psn: u32, mad: &Mad) -> Packet<'_> {
    Packet {
        bth: Bth {
            opcode: Opcode::new(Service::Ud, Op::SendOnly),
            pkey,
            dest_qpn: GSI_QPN,
            psn,
            ..Bth::default()
        },
        op: Op::SendOnly,
        service: Service::Ud,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        deth: Some(Deth { qkey: GSI_QKEY, src_qpn: GSI_QPN }),
        xrceth: None,
        imm: None,
        ieth: None,
        payload: mad,
    }
}

/// The MAD in a packet that came to QP1.
pub fn mad_of<'a>(packet: &Packet<'a>) -> Result<&'a Mad, GmpError> {
    if packet.service != Service::Ud || packet.op != Op::SendOnly {
        return Err(GmpError::Opcode { opcode: packet.bth.opcode });
    }
    if packet.bth.dest_qpn != GSI_QPN {
        return Err(GmpError::DestQpn { qpn: packet.bth.dest_qpn });
    }
    let qkey = packet.deth.map_or(0, |deth| deth.qkey);
    if qkey != GSI_QKEY {
        return Err(GmpError::Qkey { qkey });
    }
    packet.payload.try_into().map_err(|_| GmpError::Length { len: packet.payload.len() })
}

/// Why a packet brings no MAD.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum GmpError {
    /// Not a UD SEND without immediate data.
    #[error("opcode {:#04x} brings no MAD", opcode.0)]
    Opcode {
        /// The opcode given.
        opcode: Opcode,
    },
    /// For another QP.
    #[error("for QP {qpn:#08x}, not QP1")]
    DestQpn {
        /// The destination given.
        qpn: u32,
    },
    /// Not the Q_Key of QP1.
    #[error("Q_Key {qkey:#010x}, not {GSI_QKEY:#010x}")]
    Qkey {
        /// The Q_Key given.
        qkey: u32,
    },
    /// Not 256 bytes.
    #[error("a MAD of {len} bytes, not {MAD_LEN}")]
    Length {
        /// Bytes there are.
        len: usize,
    },
}
