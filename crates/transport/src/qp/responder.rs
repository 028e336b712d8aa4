//! The responder of RC, XRC and UC: requests as they arrive (IBA 9.7.4, 9.8.2).

use ironverbs_wire::{NakCode, Op, Packet, Syndrome};

use super::Qp;
use super::message::{Message, Refusal};
use super::reference::Body;
use super::resources::{Again, Answer, Resources};
use super::seq::Seq;
use crate::device::{Atomic, Device, QpEvent};
use crate::verbs::{Access, Fault, QpState, QpType, VendorErr, WcStatus};

/// What the responder knows of its peer's requests.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// PSN of the next request.
    pub(super) expected: Seq,
    /// Messages completed (IBA 9.7.7), 24 bits on the wire.
    pub(super) msn: u32,
    pub(super) message: Message,
    /// The SRQ that the last request was for, on XRC.
    pub(super) srqn: u32,
    /// The last request to be acknowledged that is not yet.
    pub(super) ack: Option<Seq>,
    /// To be sent after the responses to what came before.
    pub(super) nak: Option<Nak>,
    /// The request that ended the connection. A repetition of it is refused again, since the NAK
    /// may have been lost.
    pub(super) refused: Option<Nak>,
    /// The gap before, or the want of a receive for, the expected packet has been told: IBA
    /// 9.7.5 has one NAK until it arrives.
    pub(super) nak_told: bool,
    pub(super) resources: Resources,
    /// A packet has arrived.
    pub(super) established: bool,
}

/// A NAK of the packet `seq`.
#[derive(Copy, Clone, Debug)]
pub(super) struct Nak {
    pub(super) seq: Seq,
    pub(super) syndrome: Syndrome,
    /// Why, for a requester of this host.
    pub(super) reason: VendorErr,
}

impl Nak {
    /// Whether packets are missing.
    pub(super) fn is_of_sequence(&self) -> bool {
        self.syndrome == Syndrome::Nak(NakCode::PsnSequence)
    }
}

impl Responder {
    /// `limit` is the number of READs and atomics to be kept.
    pub(super) fn new(psn: u32, limit: u8) -> Responder {
        Responder {
            expected: Seq::start(psn),
            resources: Resources::new(limit),
            ..Responder::default()
        }
    }

    /// Drops what it owes.
    pub(super) fn forget(&mut self) {
        let Responder { expected, srqn, .. } = *self;
        *self = Responder { expected, srqn, ..Responder::default() };
    }

    pub(super) fn message_done(&mut self) {
        self.msn = self.msn.wrapping_add(1);
    }
}

impl Qp {
    pub(super) fn handle_request<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) {
        let seq = self.responder.expected.near(packet.bth.psn);
        if self.attr.state == QpState::Err && self.responder.refused.is_some() {
            return self.refuse_again(seq, packet);
        }
        if !self.receives_requests() {
            self.counters.dropped.state += 1;
            return;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += body.len() as u64;
        if self.attr.state == QpState::Rtr && !self.responder.established {
            self.responder.established = true;
            dev.event(QpEvent::CommunicationEstablished);
        }
        if self.config.qp_type == QpType::Uc {
            return self.handle_unreliable(seq, packet, dev);
        }
        let begins_before = seq < self.responder.expected;
        if begins_before && seq.plus(self.extent_of(body)) > self.responder.expected {
            // Sent again together with what is new: once more from there, please.
            self.counters.seq_naks_sent += 1;
            self.nak(Syndrome::Nak(NakCode::PsnSequence));
        } else if begins_before {
            self.handle_duplicate(seq, packet);
        } else if seq > self.responder.expected {
            self.counters.dropped.sequence += 1;
            if !self.responder.nak_told {
                self.counters.seq_naks_sent += 1;
                self.nak(Syndrome::Nak(NakCode::PsnSequence));
            }
        } else {
            self.responder.nak_told = false;
            self.responder.nak = None;
            match self.carry_out(packet, body, dev) {
                Ok(()) if packet.bth.ack_req => self.acknowledge_all(),
                Ok(()) => {}
                Err(refusal) => {
                    if self.watch.is_on() {
                        self.tell_refused(packet.op, refusal, dev);
                    }
                    self.refuse(refusal, dev);
                }
            }
        }
    }

    /// Carries out the request that is next.
    fn carry_out<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) -> Result<(), Refusal> {
        self.select_srq(packet, dev)?;
        let packets = match packet.op {
            Op::ReadRequest => self.accept_read(packet, dev)?,
            Op::CompareSwap | Op::FetchAdd => self.accept_atomic(packet, dev)?,
            Op::AtomicWrite => self.accept_atomic_write(packet, body, dev)?,
            _ => {
                if self.place(packet, body, dev)? {
                    self.responder.message_done();
                    self.counters.rx_messages += 1;
                }
                self.extent_of(body)
            }
        };
        self.responder.expected = self.responder.expected.plus(packets);
        Ok(())
    }

    /// On XRC every packet says which SRQ it is for, those of one message the same (IBA A14).
    fn select_srq<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        dev: &mut D,
    ) -> Result<(), Refusal> {
        if self.config.qp_type != QpType::XrcRecv {
            return Ok(());
        }
        let srqn = packet.xrceth.ok_or(Refusal::Invalid)?.srqn;
        let starts = packet.op.is_first() || packet.op.is_only();
        if !starts && srqn != self.responder.srqn {
            return Err(Refusal::Invalid);
        }
        if !dev.select_srq(srqn) {
            return Err(Refusal::Queue);
        }
        self.responder.srqn = srqn;
        Ok(())
    }

    fn accept_read<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        dev: &mut D,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth.ok_or(Refusal::Invalid)?;
        self.make_room(packet.op)?;
        self.check_reth(Access::REMOTE_READ, reth.rkey, reth.va, reth.len, dev)?;
        let packets = self.packets(reth.len.into());
        self.keep(Answer::Read { va: reth.va, rkey: reth.rkey, len: reth.len }, packets);
        Ok(packets)
    }

    fn accept_atomic<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        dev: &mut D,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic.ok_or(Refusal::Invalid)?;
        self.make_room(packet.op)?;
        if !self.attr.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal::Denied);
        }
        let op = match packet.op {
            Op::CompareSwap => Atomic::CompareSwap { compare: eth.compare, swap: eth.swap_add },
            _ => Atomic::FetchAdd { add: eth.swap_add },
        };
        let value = dev.atomic(eth.rkey, eth.va, op).map_err(|fault| match fault {
            // IBA 9.4.5: an address that is no multiple of 8 is an invalid request.
            Fault::Alignment => Refusal::Alignment,
            fault => Refusal::Access(fault),
        })?;
        self.keep(Answer::Atomic { value }, 1);
        Ok(1)
    }

    /// A WRITE of eight bytes whose address is a multiple of eight: one store.
    fn accept_atomic_write<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth.ok_or(Refusal::Invalid)?;
        self.make_room(packet.op)?;
        let (Body::Here(data), 8) = (body, reth.len) else { return Err(Refusal::Invalid) };
        if data.len() != 8 {
            return Err(Refusal::Invalid);
        }
        if !reth.va.is_multiple_of(8) {
            return Err(Refusal::Alignment);
        }
        self.check_reth(Access::REMOTE_WRITE, reth.rkey, reth.va, reth.len, dev)?;
        dev.write_remote(reth.rkey, reth.va, data).map_err(Refusal::Access)?;
        self.keep(Answer::Written, 1);
        Ok(1)
    }

    fn make_room(&mut self, op: Op) -> Result<(), Refusal> {
        match self.responder.message.admits(op) {
            false => Err(Refusal::Invalid),
            true if self.responder.resources.make_room() => Ok(()),
            true => Err(Refusal::Resources),
        }
    }

    fn keep(&mut self, answer: Answer, packets: u32) {
        self.responder.message_done();
        self.counters.rx_messages += 1;
        let Responder { expected, srqn, msn, .. } = self.responder;
        self.responder.resources.keep(answer, expected, packets, srqn, msn);
    }

    /// A request from before (IBA 9.7.5.1): nothing is carried out twice.
    fn handle_duplicate(&mut self, seq: Seq, packet: &Packet<'_>) {
        self.counters.duplicates += 1;
        if matches!(packet.op, Op::ReadRequest | Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite) {
            if !self.answer_again(seq, packet) {
                self.counters.dropped.stale += 1;
            }
        } else {
            self.acknowledge_all();
        }
    }

    /// Answers a READ or an atomic again. False if it is not one that was kept.
    fn answer_again(&mut self, seq: Seq, packet: &Packet<'_>) -> bool {
        let again = match (packet.op, packet.reth) {
            (Op::ReadRequest, Some(reth)) => Again::Read {
                va: reth.va,
                rkey: reth.rkey,
                len: reth.len,
                packets: self.packets(reth.len.into()),
            },
            (Op::CompareSwap | Op::FetchAdd, _) => Again::Atomic,
            (Op::AtomicWrite, _) => Again::Written,
            _ => return false,
        };
        self.responder.resources.again(seq, again, self.mtu.bytes() as u64)
    }

    /// Refuses what is next.
    fn refuse<D: Device + ?Sized>(&mut self, refusal: Refusal, dev: &mut D) {
        let code = match refusal {
            Refusal::NotReady => {
                self.counters.rnr_naks_sent += 1;
                return self.nak(Syndrome::Rnr { timer: self.attr.min_rnr_timer });
            }
            Refusal::Elsewhere => {
                self.counters.seq_naks_sent += 1;
                return self.nak(Syndrome::Nak(NakCode::PsnSequence));
            }
            Refusal::Invalid
            | Refusal::Denied
            | Refusal::Alignment
            | Refusal::Resources
            | Refusal::TooLong
            | Refusal::Queue => NakCode::InvalidRequest,
            Refusal::Access(_) | Refusal::Invalidate => NakCode::RemoteAccess,
            Refusal::Local(_) => NakCode::RemoteOperational,
        };
        self.nak(Syndrome::Nak(code));
        if let Some(nak) = &mut self.responder.nak {
            nak.reason = refusal.reason();
        }
        self.break_off(refusal, dev);
    }

    /// Ends the connection at the responder's side with the NAK that is due (IBA 9.9.3): an error
    /// that no completion tells of is told by an event.
    pub(super) fn break_off<D: Device + ?Sized>(&mut self, refusal: Refusal, dev: &mut D) {
        self.responder.refused = self.responder.nak;
        self.responder.message = Message::None;
        match (Self::receive_error(refusal), refusal) {
            (Some((status, why)), _) => self.fail_receive(status, why, dev),
            (None, Refusal::Access(_) | Refusal::Queue) => dev.event(QpEvent::AccessError),
            (None, _) => dev.event(QpEvent::RequestError),
        }
        self.enter_error(dev);
    }

    /// A requester that did not get the NAK asks again; what came before it can still be had.
    fn refuse_again(&mut self, seq: Seq, packet: &Packet<'_>) {
        self.counters.duplicates += 1;
        if self.responder.refused.is_some_and(|nak| seq < nak.seq) {
            self.answer_again(seq, packet);
        }
        self.responder.nak = self.responder.refused;
    }

    fn nak(&mut self, syndrome: Syndrome) {
        let responder = &mut self.responder;
        let reason = VendorErr::None;
        let nak = Nak { seq: responder.expected, syndrome, reason };
        responder.nak = Some(nak);
        responder.nak_told = true;
        if nak.is_of_sequence() {
            // It acknowledges what is before it. Where that is the whole of a SEND or WRITE kernel rxe (6.1) takes it for no
            // acknowledgement and repeats the message, empty, under the PSN of the next one, so that from there on its PSNs
            // are not ours: one of its own goes before. That of a READ or an atomic, though, it would take for an answer.
            let whole = matches!(responder.message, Message::None) && responder.msn > 0;
            if whole && !responder.resources.end_at(nak.seq) {
                responder.ack = Some(nak.seq.previous());
            }
        }
    }

    /// Acknowledges all there is: one acknowledgement will do for several requests.
    fn acknowledge_all(&mut self) {
        self.responder.ack = Some(self.responder.expected.previous());
    }

    /// A packet of an unreliable connection. After a gap the message in progress is gone, its
    /// receive serves the next one (IBA 9.8.2).
    fn handle_unreliable<D: Device + ?Sized>(
        &mut self,
        seq: Seq,
        packet: &Packet<'_>,
        dev: &mut D,
    ) {
        let starts = packet.op.is_first() || packet.op.is_only();
        if seq != self.responder.expected {
            self.counters.dropped.sequence += u64::from(!starts);
            self.drop_message();
        } else if starts {
            self.drop_message();
        }
        self.responder.expected = seq.plus(1);
        if !self.responder.message.admits(packet.op) {
            // The rest of a message whose beginning is lost, or was dropped.
            self.counters.dropped.message += 1;
            self.drop_message();
            return;
        }
        match self.place(packet, Body::Here(packet.payload), dev) {
            Ok(ends) => self.counters.rx_messages += u64::from(ends),
            Err(refusal) => {
                self.counters.dropped.message += 1;
                self.drop_message();
                match (refusal, Self::receive_error(refusal)) {
                    (Refusal::NotReady, _) => self.counters.dropped.no_receive += 1,
                    (_, Some((status @ WcStatus::LocProtErr, why))) => {
                        // IBA 9.9.3: an error on this side ends the QP on any service.
                        self.fail_receive(status, why, dev);
                        self.enter_error(dev);
                    }
                    _ => {}
                }
            }
        }
    }

    fn drop_message(&mut self) {
        self.responder.message = Message::None;
    }
}
