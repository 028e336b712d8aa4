//! The commonest message, a SEND of one packet on RC, without the detours that all others may need.
//!
//! What is here does what [`transmit`](Qp::transmit) and [`handle_packet`](Qp::handle_packet) would do, where nothing is
//! in the way: any doubt leaves the message to them, with nothing done. So the rules are theirs.

use ironverbs_wire::{Aeth, Bth, Op, Packet, Service};

use super::message::Message;
use super::requester::Probe;
use super::send_queue::{Data, Progress};
use super::{Qp, emit, responses, sg};
use crate::device::{Device, Instant};
use crate::verbs::{QpState, QpType, SendFlags, Sge, Wc, WcFlags, WrOpcode};

/// A SEND whose message is one packet, and an acknowledgement of the peer's requests beside it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Short<'a> {
    /// Number of the peer's QP, 24 bits.
    pub dest_qpn: u32,
    /// PSN of the SEND, 24 bits.
    pub psn: u32,
    /// Partition key.
    pub pkey: u16,
    /// PSN of the last request of the peer that is acknowledged with it.
    pub ack: Option<u32>,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// The receiver raises a solicited event.
    pub solicited: bool,
    /// The data.
    pub payload: &'a [u8],
}

impl<'a> Short<'a> {
    /// The SEND as the packet that it is.
    pub fn request(&self) -> Packet<'a> {
        let op = if self.imm.is_some() { Op::SendOnlyImm } else { Op::SendOnly };
        let bth = Bth { solicited: self.solicited, ack_req: true, ..self.bth(self.psn) };
        Packet { imm: self.imm, payload: self.payload, ..emit::header(Service::Rc, op, bth) }
    }

    /// The acknowledgement as the packet that it is.
    pub fn acknowledgement(&self) -> Option<Packet<'static>> {
        let bth = self.bth(self.ack?);
        let aeth = Aeth { syndrome: responses::ACK.to_u8(), msn: 0 };
        Some(Packet { aeth: Some(aeth), ..emit::header(Service::Rc, Op::Ack, bth) })
    }

    fn bth(&self, psn: u32) -> Bth {
        Bth { pkey: self.pkey, dest_qpn: self.dest_qpn, psn, ..Bth::default() }
    }
}

/// What may be sent as a [`Short`].
#[derive(Copy, Clone, Debug)]
pub struct Candidate<'a> {
    /// All but its data, if that is in registered memory.
    pub short: Short<'a>,
    /// Where the data is otherwise.
    pub sges: &'a [Sge],
    /// Bytes of the data.
    pub len: usize,
}

impl Qp {
    /// The one request that waits to be sent, if it is a SEND of at most `most` bytes that may be sent as a [`Short`] now.
    /// The acknowledgement that is due goes with it. Once the device has sent it, it says so by
    /// [`short_sent`](Qp::short_sent).
    pub fn next_short(&self, most: usize) -> Option<Candidate<'_>> {
        let (requester, responder) = (&self.requester, &self.responder);
        let index = requester.cursor;
        let alone = index == requester.started
            && index + 1 == self.sends.tail()
            && self.attr.state == QpState::Rts
            && self.config.qp_type == QpType::Rc
            // Nobody needs to know when it was sent.
            && self.held
            && !requester.timers.is_paused()
            && !requester.switch.waits()
            && matches!(requester.probe, Probe::None)
            && requester.in_flight() < requester.window.size()
            && responder.nak.is_none()
            && !responder.resources.is_pending();
        if !alone {
            return None;
        }
        let wqe = self.sends.wqe(index);
        let imm = match wqe.wr.opcode {
            WrOpcode::Send => None,
            WrOpcode::SendWithImm => Some(wqe.wr.imm),
            _ => return None,
        };
        if wqe.progress != Progress::Posted
            || wqe.len > most.min(self.mtu.bytes()) as u64
            || wqe.wr.flags.contains(SendFlags::FENCE)
        {
            return None;
        }
        let (sges, payload) = match self.sends.data(index) {
            Data::Sges(sges) => (sges, &[][..]),
            Data::Inline(bytes) => (&[][..], bytes),
        };
        let short = Short {
            dest_qpn: self.attr.dest_qpn,
            psn: requester.next.psn(),
            pkey: self.pkey,
            ack: responder.ack.map(|seq| seq.psn()),
            imm,
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED),
            payload,
        };
        Some(Candidate { short, sges, len: wqe.len as usize })
    }

    /// The device has sent what [`next_short`](Qp::next_short) gave, whose data was `len` bytes.
    pub fn short_sent(&mut self, len: usize) {
        let requester = &mut self.requester;
        let (index, first) = (requester.cursor, requester.next);
        let end = first.plus(1);
        requester.next = end;
        requester.sent = requester.sent.max(end);
        requester.at = end;
        requester.cursor = index + 1;
        requester.started = index + 1;
        requester.unasked = 0;
        requester.switch.started(index, false);
        self.sends.wqe_mut(index).progress = Progress::Started { first, packets: 1, answered: 0 };
        self.counters.tx_packets += 1 + u64::from(self.responder.ack.take().is_some());
        self.counters.tx_bytes += len as u64;
    }

    /// The acknowledgement that is due, if nothing else is to be sent and it may go by itself as a [`Short`] without a SEND.
    /// Once the device has sent it, it says so by [`short_ack_sent`](Qp::short_ack_sent).
    pub fn next_short_ack(&self) -> Option<Short<'static>> {
        let usual = self.config.qp_type == QpType::Rc && self.held && self.owes_at_most_acks();
        let ack = self.responder.ack.filter(|_| usual)?;
        let (dest_qpn, pkey) = (self.attr.dest_qpn, self.pkey);
        Some(Short { dest_qpn, pkey, ack: Some(ack.psn()), ..Short::default() })
    }

    /// The device has sent what [`next_short_ack`](Qp::next_short_ack) gave.
    pub fn short_ack_sent(&mut self) {
        self.responder.ack = None;
        self.counters.tx_packets += 1;
    }

    /// Takes the acknowledgement of a message, of that request of ours and of those before it. False: there is none, or it
    /// is to be taken as the packet that it is.
    pub fn take_short_ack<D: Device + ?Sized>(&mut self, short: &Short<'_>, dev: &mut D) -> bool {
        let Some(psn) = short.ack else { return false };
        let requester = &self.requester;
        let seq = requester.una.near(psn);
        let usual = self.config.qp_type == QpType::Rc
            && short.pkey == 0xffff
            && self.pkey == 0xffff
            && self.held
            && self.sends_requests()
            && requester.chunks.is_empty()
            && matches!(requester.probe, Probe::None)
            && requester.una <= seq
            && seq < requester.sent;
        if usual {
            self.counters.rx_packets += 1;
            // Of what is held nobody needs to know when it was acknowledged.
            self.acknowledge(seq.plus(1), Instant::default(), dev);
        }
        usual
    }

    /// Takes a message, apart from its acknowledgement. False: it is to be taken as the packet that it is.
    pub fn take_short<D: Device + ?Sized>(&mut self, short: &Short<'_>, dev: &mut D) -> bool {
        let responder = &self.responder;
        let usual = self.config.qp_type == QpType::Rc
            && short.pkey == 0xffff
            && self.pkey == 0xffff
            && short.psn == responder.expected.psn()
            && matches!(responder.message, Message::None)
            && match self.attr.state {
                QpState::Rts | QpState::Sqd => true,
                QpState::Rtr => responder.established,
                _ => false,
            }
            && short.payload.len() <= self.mtu.bytes()
            && self.receives.acquire(dev);
        if !usual {
            return false;
        }
        let Some((_, sges)) = self.receives.current() else { return false };
        let len = short.payload.len();
        let placed = match sges {
            _ if len == 0 => true,
            [sge] => len <= sge.len as usize && dev.scatter(sge, 0, short.payload).is_ok(),
            _ => len as u64 <= sg::length(sges) && sg::scatter(dev, sges, 0, short.payload).is_ok(),
        };
        if !placed {
            return false;
        }
        let wc = Wc {
            byte_len: len as u32,
            flags: if short.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() },
            imm: short.imm.unwrap_or_default(),
            solicited: short.solicited,
            ..self.receive_wc()
        };
        self.complete_receive(wc, dev);
        let responder = &mut self.responder;
        responder.nak_told = false;
        responder.nak = None;
        responder.ack = Some(responder.expected);
        responder.expected = responder.expected.plus(1);
        responder.message_done();
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += len as u64;
        self.counters.rx_messages += 1;
        true
    }

    /// Whether there is nothing to send but, perhaps, an acknowledgement: a quick look, whose no is
    /// [`output`](Qp::output)'s to judge.
    pub fn owes_at_most_acks(&self) -> bool {
        let (requester, responder) = (&self.requester, &self.responder);
        matches!(self.attr.state, QpState::Rts | QpState::Rtr)
            && requester.cursor == self.sends.tail()
            && matches!(requester.probe, Probe::None)
            && responder.nak.is_none()
            && !responder.resources.is_pending()
    }

    /// Whether an acknowledgement is due.
    pub fn owes_acks(&self) -> bool {
        self.owes_ack()
    }
}
