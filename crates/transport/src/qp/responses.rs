//! What a responder sends: READ data, atomic results, acknowledgements (IBA 9.7.5).

use ironverbs_wire::{Aeth, Bth, NakCode, Op, Packet, Syndrome};

use super::message::Refusal;
use super::resources::{Answer, Resource};
use super::responder::Nak;
use super::seq::Seq;
use super::{Qp, emit};
use crate::device::{Device, Sink};
use crate::verbs::{QpType, VendorErr};

/// An acknowledgement without credits: receives are not counted for the peer (IBA 9.7.7).
pub(super) const ACK: Syndrome = Syndrome::Ack { credits: 31 };

impl Qp {
    /// Whether there is more to send than acknowledgements.
    pub(super) fn owes_response(&self) -> bool {
        self.responder.nak.is_some() || self.responder.resources.is_pending()
    }

    /// Whether an acknowledgement is due.
    pub(super) fn owes_ack(&self) -> bool {
        self.responder.ack.is_some()
    }

    /// Sends what is owed, in PSN order, so that an acknowledgement never overtakes the data of a
    /// READ before it. False if the sink is full.
    pub(super) fn transmit_responses<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        while let Some(resource) = self.responder.resources.pending() {
            let sent = match resource.answer {
                Answer::Read { va, rkey, .. } => self.send_read(&resource, va, rkey, dev, sink),
                Answer::Atomic { value } => self.send_atomic(&resource, value, sink),
                Answer::Written => {
                    let header = self.response(resource.next, Op::ReadRespOnly, ACK, resource.msn);
                    Ok(self.send_bare(header, sink))
                }
            };
            match sent {
                Ok(true) => {
                    self.responder.resources.sent();
                    if self.watch.is_on() {
                        self.tell_answered(&resource, dev);
                    }
                    // A response acknowledges all up to itself.
                    self.responder.ack = self.responder.ack.filter(|&ack| ack > resource.next);
                }
                Ok(false) => return false,
                Err(refusal) => {
                    // The region was deregistered meanwhile: the rest of the READ is refused.
                    self.responder.resources.abandon();
                    if self.watch.is_on() && !resource.is_answered() {
                        self.tell_refused(Op::ReadRequest, refusal, dev);
                    }
                    let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
                    let reason = refusal.reason();
                    self.responder.nak = Some(Nak { seq: resource.next, syndrome, reason });
                    self.break_off(refusal, dev);
                }
            }
        }
        if let Some(nak) = self.responder.nak {
            if let Some(seq) = self.responder.ack.filter(|_| nak.is_of_sequence()) {
                if !self.send_ack(seq, ACK, sink) {
                    return false;
                }
                self.responder.ack = None;
            }
            if !self.send_nak(&nak, sink) {
                return false;
            }
            // It acknowledges what is before it.
            self.responder.nak = None;
            self.responder.ack = None;
        }
        if let Some(seq) = self.responder.ack {
            if !self.send_ack(seq, ACK, sink) {
                return false;
            }
            self.responder.ack = None;
        }
        true
    }

    fn send_read<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        resource: &Resource,
        va: u64,
        rkey: u32,
        dev: &mut D,
        sink: &mut S,
    ) -> Result<bool, Refusal> {
        let mtu = self.mtu.bytes() as u64;
        let seq = resource.next;
        let offset = u64::from(seq.since(resource.first)) * mtu;
        let len = resource.end_offset.saturating_sub(offset).min(mtu) as usize;
        if self.config.qp_type == QpType::XrcRecv && !dev.select_srq(resource.srqn) {
            return Err(Refusal::Queue);
        }
        let op = emit::response_op(seq == resource.start, seq.plus(1) == resource.end);
        let header = self.response(seq, op, ACK, resource.msn);
        let Some(room) = emit::begin(sink, &self.path, header, len) else { return Ok(false) };
        if !room.is_empty() {
            dev.read_remote(rkey, va.wrapping_add(offset), room).map_err(Refusal::Access)?;
        }
        sink.commit();
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        Ok(true)
    }

    fn send_atomic<S: Sink + ?Sized>(
        &mut self,
        resource: &Resource,
        value: u64,
        sink: &mut S,
    ) -> Result<bool, Refusal> {
        let mut header = self.response(resource.next, Op::AtomicAck, ACK, resource.msn);
        header.atomic_ack = Some(value);
        Ok(self.send_bare(header, sink))
    }

    fn send_ack<S: Sink + ?Sized>(&mut self, seq: Seq, syndrome: Syndrome, sink: &mut S) -> bool {
        let header = self.response(seq, Op::Ack, syndrome, self.responder.msn);
        self.send_bare(header, sink)
    }

    /// A requester on this host reads why where others are told a number of messages that nobody needs then.
    fn send_nak<S: Sink + ?Sized>(&mut self, nak: &Nak, sink: &mut S) -> bool {
        let msn = match nak.reason {
            VendorErr::None => self.responder.msn,
            _ if !self.mtu.fixed => self.responder.msn,
            reason => reason as u32,
        };
        let header = self.response(nak.seq, Op::Ack, nak.syndrome, msn);
        self.send_bare(header, sink)
    }

    fn send_bare<S: Sink + ?Sized>(&mut self, header: Packet<'_>, sink: &mut S) -> bool {
        let sent = emit::begin(sink, &self.path, header, 0).is_some();
        if sent {
            sink.commit();
            self.counters.tx_packets += 1;
        }
        sent
    }

    fn response(&self, seq: Seq, op: Op, syndrome: Syndrome, msn: u32) -> Packet<'static> {
        let bth =
            Bth { pkey: self.pkey, dest_qpn: self.attr.dest_qpn, psn: seq.psn(), ..Bth::default() };
        let mut header = emit::header(self.service(), op, bth);
        header.aeth =
            op.has_aeth().then_some(Aeth { syndrome: syndrome.to_u8(), msn: msn & 0xff_ffff });
        header
    }
}
