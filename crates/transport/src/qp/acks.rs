//! What comes back to the requester of a reliable queue pair (IBA 9.7.5).

use ironverbs_wire::{NakCode, Op, Packet, Syndrome};

use super::Qp;
use super::completion::local;
use super::requester::Probe;
use super::send_queue::{Data, Progress};
use super::seq::Seq;
use super::sg;
use crate::device::{Device, Instant};
use crate::verbs::{VendorErr, WcStatus, WrOpcode};

impl Qp {
    pub(super) fn handle_response<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        dev: &mut D,
    ) {
        if !self.config.qp_type.is_reliable() || !self.sends_requests() {
            self.counters.dropped.state += 1;
            return;
        }
        let requester = &self.requester;
        let seq = requester.una.near(packet.bth.psn);
        // What is done with is answered again when it was asked again; what was never sent is
        // answered by nobody (IBA 9.7.6.1, ghost acknowledgements).
        if seq < requester.una || seq >= requester.sent {
            self.counters.dropped.stale += 1;
            return;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += packet.payload.len() as u64;
        match packet.op {
            Op::Ack => {
                let syndrome = packet.aeth.and_then(|aeth| Syndrome::from_u8(aeth.syndrome));
                match syndrome {
                    Some(Syndrome::Ack { .. }) => self.handle_ack(seq, now, dev),
                    Some(Syndrome::Rnr { timer }) => self.handle_rnr(seq, timer, now, dev),
                    Some(Syndrome::Nak(code)) => {
                        let word = packet.aeth.map_or(0, |aeth| aeth.msn);
                        self.handle_nak(seq, code, word, now, dev);
                    }
                    None => self.counters.dropped.stale += 1,
                }
            }
            Op::AtomicAck => self.handle_atomic_response(seq, packet, now, dev),
            _ => self.handle_read_response(seq, packet, now, dev),
        }
    }

    /// Everything up to `seq` has been received.
    fn handle_ack<D: Device + ?Sized>(&mut self, seq: Seq, now: Instant, dev: &mut D) {
        self.acknowledge(seq.plus(1), now, dev);
        if self.requester.una <= seq {
            // IBA 9.7.6.1: responses to a READ or atomic from before were lost.
            self.recover();
        }
    }

    fn handle_rnr<D: Device + ?Sized>(&mut self, seq: Seq, timer: u8, now: Instant, dev: &mut D) {
        self.counters.rnr_naks_received += 1;
        if !self.reach(seq, now, dev) {
            return;
        }
        // A repeated NAK of a packet that has not been sent since says nothing new.
        if self.requester.at <= seq {
            return;
        }
        // The responder lives, and has heard the packet.
        self.requester.retries = self.attr.retry_cnt;
        match self.requester.rnr_retries {
            0 => {
                // IBA 9.9.2
                let why = VendorErr::RnrRetryExceeded;
                return self.fail_send(WcStatus::RnrRetryExcErr, why, dev);
            }
            // ibv_modify_qp(3): 7 is for ever.
            7 => {}
            _ => self.requester.rnr_retries -= 1,
        }
        self.requester.timers.pause(timer, now);
        self.rewind();
    }

    fn handle_nak<D: Device + ?Sized>(
        &mut self,
        seq: Seq,
        code: NakCode,
        word: u32,
        now: Instant,
        dev: &mut D,
    ) {
        if code == NakCode::PsnSequence {
            self.counters.seq_naks_received += 1;
        }
        if !self.reach(seq, now, dev) {
            return;
        }
        let (status, why) = match code {
            NakCode::PsnSequence => {
                self.references_refused(seq);
                return self.recover();
            }
            NakCode::InvalidRequest => (WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest),
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, VendorErr::NakRemoteAccess),
            NakCode::RemoteOperational => (WcStatus::RemOpErr, VendorErr::NakRemoteOperational),
            NakCode::InvalidRdRequest => (WcStatus::RemInvRdReqErr, VendorErr::NakInvalidRdRequest),
        };
        // A peer on this host says more.
        let reason = VendorErr::of_peer(word).filter(|_| self.mtu.fixed);
        self.fail_send(status, reason.unwrap_or(why), dev);
    }

    fn handle_read_response<D: Device + ?Sized>(
        &mut self,
        seq: Seq,
        packet: &Packet<'_>,
        now: Instant,
        dev: &mut D,
    ) {
        if !self.reach(seq, now, dev) {
            return;
        }
        let head = self.sends.head();
        let wqe = self.sends.wqe(head);
        let Progress::Started { first, .. } = wqe.progress else { return };
        if wqe.wr.opcode == WrOpcode::AtomicWrite {
            if !packet.payload.is_empty() || packet.op != Op::ReadRespOnly {
                return self.fail_send(WcStatus::BadRespErr, VendorErr::BadResponse, dev);
            }
            return self.answered(seq, now, dev);
        }
        let offset = u64::from(seq.since(first)) * self.mtu.bytes() as u64;
        let expected = wqe.len.saturating_sub(offset).min(self.mtu.bytes() as u64);
        let ends = self.requester.chunks.front() == Some(&seq.plus(1));
        // IBA 9.9.2: a response that is not the answer to the request.
        if wqe.wr.opcode != WrOpcode::Read
            || packet.payload.len() as u64 != expected
            || packet.op.is_last() != ends
        {
            return self.fail_send(WcStatus::BadRespErr, VendorErr::BadResponse, dev);
        }
        if let Data::Sges(sges) = self.sends.data(head)
            && let Err(fault) = sg::scatter(dev, sges, offset, packet.payload)
        {
            return self.fail_send(WcStatus::LocProtErr, local(fault), dev);
        }
        self.answered(seq, now, dev);
    }

    fn handle_atomic_response<D: Device + ?Sized>(
        &mut self,
        seq: Seq,
        packet: &Packet<'_>,
        now: Instant,
        dev: &mut D,
    ) {
        if !self.reach(seq, now, dev) {
            return;
        }
        let head = self.sends.head();
        let atomic =
            matches!(self.sends.wqe(head).wr.opcode, WrOpcode::CompareSwap | WrOpcode::FetchAdd);
        let (true, Some(value)) = (atomic, packet.atomic_ack) else {
            return self.fail_send(WcStatus::BadRespErr, VendorErr::BadResponse, dev);
        };
        // The value goes to memory in the byte order of the host (IBA 9.4.5).
        if let Data::Sges(sges) = self.sends.data(head)
            && let Err(fault) = sg::scatter(dev, sges, 0, &value.to_ne_bytes())
        {
            return self.fail_send(WcStatus::LocProtErr, local(fault), dev);
        }
        self.answered(seq, now, dev);
    }

    /// The response `seq` of the oldest request has been carried out.
    fn answered<D: Device + ?Sized>(&mut self, seq: Seq, now: Instant, dev: &mut D) {
        let head = self.sends.head();
        if let Progress::Started { answered, .. } = &mut self.sends.wqe_mut(head).progress {
            *answered += 1;
        }
        self.acknowledge(seq.plus(1), now, dev);
    }

    /// Takes all before `seq` for received, as the responder works in order. False if responses
    /// from before are missing, which are then asked for, or if the QP is in error.
    fn reach<D: Device + ?Sized>(&mut self, seq: Seq, now: Instant, dev: &mut D) -> bool {
        self.acknowledge(seq, now, dev);
        if !self.sends_requests() {
            return false;
        }
        if self.requester.una < seq {
            self.recover();
        }
        // It may also lie before: acknowledged by a later packet that came first.
        self.requester.una == seq
    }

    /// All before `bound` has been received by the responder: completes what that completes.
    pub(super) fn acknowledge<D: Device + ?Sized>(
        &mut self,
        bound: Seq,
        now: Instant,
        dev: &mut D,
    ) {
        let before = self.requester.una;
        let in_use = self.requester.at.since(before) >= self.requester.window.size() / 2;
        self.requester.acked = self.requester.acked.max(bound);
        loop {
            let head = self.sends.head();
            if head == self.sends.tail() {
                self.requester.una = self.requester.acked;
                break;
            }
            let wqe = self.sends.wqe(head);
            let acked = self.requester.acked;
            match wqe.progress {
                Progress::Failed(status, why) => return self.fail_send(status, why, dev),
                Progress::Posted => {
                    self.requester.una = acked;
                    break;
                }
                Progress::Started { first, packets, answered } => {
                    let end = first.plus(packets);
                    let done =
                        if wqe.is_answered() { first.plus(answered) } else { acked.min(end) };
                    self.requester.una = self.requester.una.max(done);
                    if done < end {
                        break;
                    }
                    self.complete_send(dev);
                }
            }
        }
        let una = self.requester.una;
        let progress = una.since(before);
        if progress > 0 {
            self.note_progress(progress, in_use, now);
            self.note_drained(dev);
        }
    }

    fn note_progress(&mut self, packets: u32, in_use: bool, now: Instant) {
        let requester = &mut self.requester;
        let una = requester.una;
        if !self.held {
            requester.timers.progress(una, now);
        }
        requester.retries = self.attr.retry_cnt;
        requester.rnr_retries = self.attr.rnr_retry;
        if in_use {
            requester.window.acked(packets);
        }
        while requester.chunks.front().is_some_and(|&end| end <= una) {
            requester.chunks.pop_front();
        }
        if requester.at < una {
            // Going back was not needed that far.
            requester.at = una;
            requester.cursor = self.sends.head();
        }
        if let Probe::Sent { end, sent, when } = requester.probe
            && una >= end
        {
            requester.probe = Probe::None;
            // Had what was sent before the probe arrived, the answer to the probe would cover it;
            // unless it is the answer to the original, which is quicker than a round trip.
            if una < sent && now.since(when) >= requester.timers.round_trip() / 2 {
                self.recover();
            }
        }
    }

    /// Goes back to the oldest packet, once per packet: what is on the way meanwhile will complain
    /// too.
    fn recover(&mut self) {
        let requester = &mut self.requester;
        if requester.rewound == Some(requester.una) {
            return;
        }
        requester.rewound = Some(requester.una);
        self.counters.recoveries += 1;
        if requester.una >= requester.recovered {
            requester.recovered = requester.sent;
            requester.window.lost();
        }
        self.rewind();
    }
}
