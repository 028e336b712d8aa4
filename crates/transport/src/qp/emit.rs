//! Packets into a sink.

use ironverbs_wire::{Bth, Op, Packet, Path, Service};

use crate::device::{Piece, Sink};
use crate::verbs::WrOpcode;

/// A packet without extended headers and payload.
pub(super) fn header(service: Service, op: Op, bth: Bth) -> Packet<'static> {
    Packet {
        bth,
        op,
        service,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        deth: None,
        imm: None,
        xrceth: None,
        ieth: None,
        payload: &[],
    }
}

/// Reserves a packet, writes all but its payload, and gives the room of the payload. None if the
/// sink is full.
pub(super) fn begin<'a, S: Sink + ?Sized>(
    sink: &'a mut S,
    path: &Path,
    mut header: Packet<'_>,
    payload: usize,
) -> Option<&'a mut [u8]> {
    let pad = payload.next_multiple_of(4) - payload;
    header.bth.pad = pad as u8;
    let at = Packet::header_len(header.service, header.op);
    let room = sink.reserve(path, header.bth.dest_qpn, at + payload + pad)?;
    if header.emit_header(room) != at {
        return None;
    }
    let (payload, pad) = room.get_mut(at..)?.split_at_mut_checked(payload)?;
    if !pad.is_empty() {
        pad.fill(0);
    }
    Some(payload)
}

/// Reserves a packet whose payload is elsewhere, and writes its headers. False if the sink is full.
pub(super) fn reference<S: Sink + ?Sized>(
    sink: &mut S,
    path: &Path,
    header: Packet<'_>,
    pieces: &[Piece],
) -> bool {
    let len = Packet::header_len(header.service, header.op);
    let room = sink.reserve_reference(path, header.bth.dest_qpn, len, pieces);
    room.is_some_and(|room| header.emit_header(room) == len)
}

/// The operation of a packet of a request by its place in the message (IBA 9.2, table 38).
pub(super) fn request_op(opcode: WrOpcode, first: bool, last: bool) -> Op {
    match (opcode, first, last) {
        (WrOpcode::Read, ..) => Op::ReadRequest,
        (WrOpcode::CompareSwap, ..) => Op::CompareSwap,
        (WrOpcode::FetchAdd, ..) => Op::FetchAdd,
        (WrOpcode::AtomicWrite, ..) => Op::AtomicWrite,
        (WrOpcode::Write | WrOpcode::WriteWithImm, true, false) => Op::WriteFirst,
        (WrOpcode::Write | WrOpcode::WriteWithImm, false, false) => Op::WriteMiddle,
        (WrOpcode::Write, false, true) => Op::WriteLast,
        (WrOpcode::Write, true, true) => Op::WriteOnly,
        (WrOpcode::WriteWithImm, false, true) => Op::WriteLastImm,
        (WrOpcode::WriteWithImm, true, true) => Op::WriteOnlyImm,
        (_, true, false) => Op::SendFirst,
        (_, false, false) => Op::SendMiddle,
        (WrOpcode::Send, false, true) => Op::SendLast,
        (WrOpcode::Send, true, true) => Op::SendOnly,
        (WrOpcode::SendWithImm, false, true) => Op::SendLastImm,
        (WrOpcode::SendWithImm, true, true) => Op::SendOnlyImm,
        // What is local sends nothing.
        (WrOpcode::SendWithInv | WrOpcode::LocalInv | WrOpcode::BindMw, false, true) => {
            Op::SendLastInv
        }
        (WrOpcode::SendWithInv | WrOpcode::LocalInv | WrOpcode::BindMw, true, true) => {
            Op::SendOnlyInv
        }
    }
}

/// The operation of a packet of a READ response by its place in it.
pub(super) fn response_op(first: bool, last: bool) -> Op {
    match (first, last) {
        (true, false) => Op::ReadRespFirst,
        (false, false) => Op::ReadRespMiddle,
        (false, true) => Op::ReadRespLast,
        (true, true) => Op::ReadRespOnly,
    }
}
