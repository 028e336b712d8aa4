//! A whole packet, from the BTH to the end of the payload.

use crate::headers::{Aeth, AtomicAck, AtomicEth, Bth, Deth, Ieth, Reth, XrcEth};
use crate::opcode::{Op, Opcode, Service};

/// Bytes of the immediate data header.
const IMM_LEN: usize = 4;

/// A packet: exactly the extended headers that [`Op`] and [`Service`] call for are `Some`.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The operation of `bth.opcode`.
    pub op: Op,
    /// The service of `bth.opcode`.
    pub service: Service,
    /// Remote memory, with [`Op::has_reth`].
    pub reth: Option<Reth>,
    /// Operands, with [`Op::has_atomic_eth`].
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement, with [`Op::has_aeth`].
    pub aeth: Option<Aeth>,
    /// Original value, in an [`Op::AtomicAck`].
    pub atomic_ack: Option<u64>,
    /// Datagram header, with [`Service::Ud`].
    pub deth: Option<Deth>,
    /// Shared receive queue, in the requests of [`Service::Xrc`].
    pub xrceth: Option<XrcEth>,
    /// Immediate data as it is on the wire, with [`Op::has_imm`].
    pub imm: Option<[u8; 4]>,
    /// The rkey to invalidate, with [`Op::has_ieth`].
    pub ieth: Option<u32>,
    /// Payload without its padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in `bytes`, a UDP payload without its last four bytes, the ICRC.
    ///
    /// Checks what can be wrong in a packet by itself. P_Key, PSN, the payload's length against
    /// the path MTU or `reth.len`, and whether a QP takes such a packet is for the transport.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut rest = bytes;
        let bth = Bth::parse(take(&mut rest, bytes.len(), Bth::LEN)?);
        if bth.tver != 0 {
            return Err(ParseError::Version { tver: bth.tver });
        }
        let (service, op) = bth.opcode.split().ok_or(ParseError::Opcode { opcode: bth.opcode })?;
        if !bytes.len().is_multiple_of(4) {
            return Err(ParseError::Unaligned { len: bytes.len() });
        }
        let need = Self::header_len(service, op);
        let mut packet = Self::without_headers(bth, service, op);
        if service == Service::Ud {
            packet.deth = Some(Deth::parse(take(&mut rest, bytes.len(), need)?));
        }
        if has_xrceth(service, op) {
            packet.xrceth = Some(XrcEth::parse(take(&mut rest, bytes.len(), need)?));
        }
        if op.has_reth() {
            packet.reth = Some(Reth::parse(take(&mut rest, bytes.len(), need)?));
        }
        if op.has_atomic_eth() {
            packet.atomic = Some(AtomicEth::parse(take(&mut rest, bytes.len(), need)?));
        }
        if op.has_aeth() {
            packet.aeth = Some(Aeth::parse(take(&mut rest, bytes.len(), need)?));
        }
        if op == Op::AtomicAck {
            packet.atomic_ack = Some(AtomicAck::parse(take(&mut rest, bytes.len(), need)?).0);
        }
        if op.has_imm() {
            packet.imm = Some(*take(&mut rest, bytes.len(), need)?);
        }
        if op.has_ieth() {
            packet.ieth = Some(Ieth::parse(take(&mut rest, bytes.len(), need)?).0);
        }
        if !op.has_payload() && !rest.is_empty() {
            return Err(ParseError::UnexpectedPayload { op, len: rest.len() });
        }
        packet.payload = rest
            .len()
            .checked_sub(bth.pad.into())
            .and_then(|len| rest.get(..len))
            .ok_or(ParseError::Pad { pad: bth.pad, len: rest.len() })?;
        Ok(packet)
    }

    /// Bytes of the BTH and the extended headers of such a packet, 12 to 44.
    pub const fn header_len(service: Service, op: Op) -> usize {
        let mut len = Bth::LEN;
        if matches!(service, Service::Ud) {
            len += Deth::LEN;
        }
        if has_xrceth(service, op) {
            len += XrcEth::LEN;
        }
        if op.has_reth() {
            len += Reth::LEN;
        }
        if op.has_atomic_eth() {
            len += AtomicEth::LEN;
        }
        if op.has_aeth() {
            len += Aeth::LEN;
        }
        if matches!(op, Op::AtomicAck) {
            len += AtomicAck::LEN;
        }
        if op.has_imm() {
            len += IMM_LEN;
        }
        if op.has_ieth() {
            len += Ieth::LEN;
        }
        len
    }

    /// Writes BTH and extended headers to the front of `out` and returns their length,
    /// [`Packet::header_len`]. The payload, its padding and the ICRC are the caller's to append.
    ///
    /// `service` and `op` decide the opcode, `bth.opcode` is not looked at; the other fields of
    /// `bth` are written as given. Returns 0, having written nothing useful, if `out` is too short
    /// or an extended header that the operation calls for is `None`.
    #[inline]
    pub fn emit_header(&self, out: &mut [u8]) -> usize {
        self.try_emit(out).unwrap_or(0)
    }

    #[inline]
    fn try_emit(&self, out: &mut [u8]) -> Option<usize> {
        let (service, op) = (self.service, self.op);
        let len = Self::header_len(service, op);
        let mut rest = out.get_mut(..len)?;
        put(&mut rest, Bth { opcode: Opcode::new(service, op), ..self.bth }.emit())?;
        if service == Service::Ud {
            put(&mut rest, self.deth?.emit())?;
        }
        if has_xrceth(service, op) {
            put(&mut rest, self.xrceth?.emit())?;
        }
        if op.has_reth() {
            put(&mut rest, self.reth?.emit())?;
        }
        if op.has_atomic_eth() {
            put(&mut rest, self.atomic?.emit())?;
        }
        if op.has_aeth() {
            put(&mut rest, self.aeth?.emit())?;
        }
        if op == Op::AtomicAck {
            put(&mut rest, AtomicAck(self.atomic_ack?).emit())?;
        }
        if op.has_imm() {
            put(&mut rest, self.imm?)?;
        }
        if op.has_ieth() {
            put(&mut rest, Ieth(self.ieth?).emit())?;
        }
        Some(len)
    }

    #[inline]
    fn without_headers(bth: Bth, service: Service, op: Op) -> Self {
        Self {
            bth,
            op,
            service,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            deth: None,
            xrceth: None,
            imm: None,
            ieth: None,
            payload: &[],
        }
    }
}

const fn has_xrceth(service: Service, op: Op) -> bool {
    matches!(service, Service::Xrc) && op.is_request()
}

#[inline]
fn take<'a, const N: usize>(
    rest: &mut &'a [u8],
    len: usize,
    need: usize,
) -> Result<&'a [u8; N], ParseError> {
    let (head, tail) = rest.split_first_chunk().ok_or(ParseError::Truncated { len, need })?;
    *rest = tail;
    Ok(head)
}

fn put<const N: usize>(rest: &mut &mut [u8], header: [u8; N]) -> Option<()> {
    let (head, tail) = std::mem::take(rest).split_first_chunk_mut()?;
    *head = header;
    *rest = tail;
    Some(())
}

/// The destination QP of a UDP payload, read without a look at the rest; `None` if shorter than
/// 8 bytes. Enough to find the process that a packet is for.
pub fn peek_dest_qpn(udp_payload: &[u8]) -> Option<u32> {
    match udp_payload {
        [_, _, _, _, _, a, b, c, ..] => Some(u32::from_be_bytes([0, *a, *b, *c])),
        _ => None,
    }
}

/// Why bytes are no packet.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum ParseError {
    /// Shorter than the headers that the opcode calls for.
    #[error("packet of {len} bytes, its headers are {need}")]
    Truncated {
        /// Bytes there are.
        len: usize,
        /// Bytes of the headers.
        need: usize,
    },
    /// The transport header version is not 0.
    #[error("transport header version {tver}, not 0")]
    Version {
        /// The version given.
        tver: u8,
    },
    /// The opcode is reserved, or of a service that is not understood, or CNP.
    #[error("no operation has opcode {:#04x}", opcode.0)]
    Opcode {
        /// The opcode given.
        opcode: Opcode,
    },
    /// The length is no multiple of four.
    #[error("packet of {len} bytes, not a multiple of 4")]
    Unaligned {
        /// Bytes there are.
        len: usize,
    },
    /// More padding than bytes after the headers.
    #[error("{pad} bytes of padding in a payload of {len}")]
    Pad {
        /// The pad count given.
        pad: u8,
        /// Bytes after the headers.
        len: usize,
    },
    /// Bytes after the headers of a packet that has no payload.
    #[error("{len} bytes of payload in a {op:?}")]
    UnexpectedPayload {
        /// The operation.
        op: Op,
        /// Bytes after the headers.
        len: usize,
    },
}
