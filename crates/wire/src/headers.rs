//! The base transport header and the extended headers, one value each (IBA 9.2 and 9.3).
//!
//! `parse` and `emit` take the exact bytes of a header, so neither can fail. Reserved bits are
//! ignored when read and zero when written; what does not fit its field is cut to it.

use crate::opcode::Opcode;

/// QPNs, PSNs and MSNs have 24 bits.
const U24: u32 = 0xff_ffff;

fn u24(high: u8, mid: u8, low: u8) -> u32 {
    u32::from_be_bytes([0, high, mid, low])
}

/// Base transport header, the first 12 bytes of every packet.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion notifies those who asked for solicited only.
    pub solicited: bool,
    /// Migration state, MigReq.
    pub migrated: bool,
    /// Bytes that fill the payload up to a multiple of four, 0 to 3.
    pub pad: u8,
    /// Transport header version, 0, 4 bits.
    pub tver: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification; outside the ICRC.
    pub fecn: bool,
    /// Backward congestion notification; outside the ICRC.
    pub becn: bool,
    /// Destination QP, 24 bits.
    pub dest_qpn: u32,
    /// The requester wants an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            tver: b[1] & 0x0f,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: u24(b[5], b[6], b[7]),
            ack_req: b[8] & 0x80 != 0,
            psn: u24(b[9], b[10], b[11]),
        }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [pk0, pk1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qpn.to_be_bytes();
        let [_, p0, p1, p2] = self.psn.to_be_bytes();
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.migrated) << 6
            | (self.pad & 3) << 4
            | self.tver & 0x0f;
        let congestion = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        let ack_req = u8::from(self.ack_req) << 7;
        [self.opcode.0, flags, pk0, pk1, congestion, q0, q1, q2, ack_req, p0, p1, p2]
    }
}

/// RDMA extended transport header: the remote memory of a WRITE or READ.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Reth {
    /// Remote address.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        let bits = u128::from_be_bytes(*b);
        Self { va: (bits >> 64) as u64, rkey: (bits >> 32) as u32, len: bits as u32 }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let bits = u128::from(self.va) << 64 | u128::from(self.rkey) << 32 | u128::from(self.len);
        bits.to_be_bytes()
    }
}

/// Atomic extended transport header: operands of compare-and-swap and fetch-and-add.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct AtomicEth {
    /// Remote address, of eight bytes.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: u32,
    /// The value to store or to add.
    pub swap_add: u64,
    /// The value to compare with; no meaning in a fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, operands @ ..] = *b;
        let operands = u128::from_be_bytes(operands);
        Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            swap_add: (operands >> 64) as u64,
            compare: operands as u64,
        }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
        out
    }
}

/// ACK extended transport header.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Aeth {
    /// What is acknowledged or refused, see [`Syndrome::from_u8`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits: messages the responder has completed.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: b[0], msn: u24(b[1], b[2], b[3]) }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        (u32::from(self.syndrome) << 24 | self.msn & U24).to_be_bytes()
    }
}

/// An AETH syndrome in words (IBA 9.7.5.2.2, table 45).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Syndrome {
    /// Positive.
    Ack {
        /// Encoded count of receives at the responder, 5 bits; 31 says that it does not count.
        credits: u8,
    },
    /// Receiver not ready.
    Rnr {
        /// Encoded least time to wait, 5 bits.
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
}

impl Syndrome {
    /// The meaning of the byte; `None` where it is reserved.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        let value = byte & 0x1f;
        match byte & 0xe0 {
            0x00 => Some(Self::Ack { credits: value }),
            0x20 => Some(Self::Rnr { timer: value }),
            0x60 => match NakCode::from_u8(value) {
                Some(code) => Some(Self::Nak(code)),
                None => None,
            },
            _ => None,
        }
    }

    /// The byte; values above 5 bits are cut.
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::Rnr { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

/// Why a responder refuses (IBA 9.7.5.2.8, table 46).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence = 0,
    /// The request is malformed, or of a kind that the QP does not take.
    InvalidRequest = 1,
    /// The memory may not be accessed so.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
    /// Invalid request on a reliable datagram.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The code of the lower five bits of a NAK syndrome; `None` where reserved.
    pub const fn from_u8(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::PsnSequence),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }

    /// The lower five bits of a NAK syndrome.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }
}

/// Atomic ACK extended transport header: the value before the operation.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct AtomicAck(pub u64);

impl AtomicAck {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self(u64::from_be_bytes(*b))
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

/// Datagram extended transport header.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Deth {
    /// Queue key, which the receiving QP compares with its own.
    pub qkey: u32,
    /// Sending QP, 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { qkey: u32::from_be_bytes([b[0], b[1], b[2], b[3]]), src_qpn: u24(b[5], b[6], b[7]) }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        (u64::from(self.qkey) << 32 | u64::from(self.src_qpn & U24)).to_be_bytes()
    }
}

/// XRC extended transport header, in every request of an extended reliable connection (IBA A14).
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct XrcEth {
    /// The shared receive queue that the request is for, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { srqn: u24(b[1], b[2], b[3]) }
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        (self.srqn & U24).to_be_bytes()
    }
}

/// Invalidate extended transport header: the rkey to invalidate.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Ieth(pub u32);

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// The header these bytes are.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*b))
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syndrome_byte_has_one_meaning_or_none() {
        let mut meanings = 0;
        for byte in 0..=255 {
            if let Some(syndrome) = Syndrome::from_u8(byte) {
                assert_eq!(syndrome.to_u8(), byte);
                meanings += 1;
            }
        }
        assert_eq!(meanings, 32 + 32 + 5);
        assert_eq!(Syndrome::from_u8(0x1f), Some(Syndrome::Ack { credits: 31 }));
        assert_eq!(Syndrome::from_u8(0x2e), Some(Syndrome::Rnr { timer: 14 }));
        assert_eq!(Syndrome::from_u8(0x62), Some(Syndrome::Nak(NakCode::RemoteAccess)));
        assert_eq!(Syndrome::from_u8(0x65), None);
        assert_eq!(Syndrome::from_u8(0x40), None);
        assert_eq!(Syndrome::from_u8(0x80), None);
    }

    #[test]
    fn what_does_not_fit_is_cut_and_leaves_its_neighbours() {
        let bth = Bth { pad: 7, tver: 0xff, dest_qpn: u32::MAX, psn: u32::MAX, ..Bth::default() };
        let cut = Bth { pad: 3, tver: 15, dest_qpn: 0xff_ffff, psn: 0xff_ffff, ..bth };
        assert_eq!(Bth::parse(&bth.emit()), cut);
        let aeth = Aeth { syndrome: 0, msn: u32::MAX };
        assert_eq!(Aeth::parse(&aeth.emit()), Aeth { msn: 0xff_ffff, ..aeth });
        let deth = Deth { qkey: 0, src_qpn: u32::MAX };
        assert_eq!(Deth::parse(&deth.emit()), Deth { src_qpn: 0xff_ffff, ..deth });
        let xrc = XrcEth { srqn: u32::MAX };
        assert_eq!(XrcEth::parse(&xrc.emit()), XrcEth { srqn: 0xff_ffff });
        assert_eq!(Syndrome::Ack { credits: 0xff }.to_u8(), 0x1f);
        assert_eq!(Syndrome::Rnr { timer: 0xff }.to_u8(), 0x3f);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let clear = [0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 7];
        let mut set = clear;
        set[4] = 0x3f;
        set[8] = 0x7f;
        assert_eq!(Bth::parse(&set), Bth::parse(&clear));
        assert_eq!(
            Deth::parse(&[1, 2, 3, 4, 0xff, 0, 0, 1]),
            Deth { qkey: 0x0102_0304, src_qpn: 1 }
        );
        assert_eq!(XrcEth::parse(&[0xff, 1, 2, 3]), XrcEth { srqn: 0x01_0203 });
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(
            AtomicEth::parse(&bytes),
            AtomicEth {
                va: 0x0001_0203_0405_0607,
                rkey: 0x0809_0a0b,
                swap_add: 0x0c0d_0e0f_1011_1213,
                compare: 0x1415_1617_1819_1a1b,
            }
        );
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(
            Reth::parse(&bytes),
            Reth { va: 0x0001_0203_0405_0607, rkey: 0x0809_0a0b, len: 0x0c0d_0e0f }
        );
    }
}
