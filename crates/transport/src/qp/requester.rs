//! The requester of RC, XRC and UC: which packet goes next (IBA 9.7.3, 9.8.2).

use std::collections::VecDeque;

use super::Qp;
use super::completion::local;
use super::direct::Switch;
use super::reference::References;
use super::send_queue::{Data, LOCAL, Progress, SendQueue, SendWqe};
use super::seq::Seq;
use super::sg;
use super::timers::Timers;
use super::window::Window;
use crate::device::{Device, Instant, Sink};
use crate::verbs::{QpAttr, QpState, QpType, SendFlags, VendorErr, WcStatus, WrOpcode};

/// Longest message (IBA 9.4.1: 2^31 bytes).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// Where the requester stands.
///
/// `una <= acked`, `una <= at`, `at <= next`, `una <= sent <= next`. What is under way lies from
/// `una` to `sent`. Going back means setting `at` to `una`; the packets then sent are those of
/// before, as each request keeps its PSNs.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// First PSN that no request has been given.
    pub(super) next: Seq,
    /// First PSN never sent.
    pub(super) sent: Seq,
    /// First PSN the responder has not acknowledged. Beyond `una` while READ or atomic responses
    /// from before are missing: those must come themselves (IBA 9.7.6.1).
    pub(super) acked: Seq,
    /// First PSN that is not done with.
    pub(super) una: Seq,
    /// Next packet to send, and the request it belongs to.
    pub(super) at: Seq,
    pub(super) cursor: u64,
    /// First request without PSNs.
    pub(super) started: u64,
    /// READs and atomics under way: the PSN after each. A long READ goes out as several, none
    /// larger than the window, so that the responses do not overrun us.
    pub(super) chunks: VecDeque<Seq>,
    pub(super) window: Window,
    pub(super) timers: Timers,
    pub(super) probe: Probe,
    /// Timeouts left until the request fails.
    pub(super) retries: u8,
    /// RNR NAKs left until the request fails.
    pub(super) rnr_retries: u8,
    /// The `una` of the last going back: once is enough until something arrives.
    pub(super) rewound: Option<Seq>,
    /// Losses before this PSN have had their effect on the window.
    pub(super) recovered: Seq,
    /// Packets sent since one asked for an acknowledgement.
    pub(super) unasked: u32,
    pub(super) references: References,
    pub(super) switch: Switch,
}

/// A repetition of the oldest packet that finds out what became of it.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum Probe {
    #[default]
    None,
    /// To be sent.
    Due,
    /// Sent: it repeated what is before `end`; at that time all before `sent` had been sent.
    Sent { end: Seq, sent: Seq, when: Instant },
}

impl Requester {
    pub(super) fn new(psn: u32, attr: &QpAttr, now: Instant) -> Requester {
        let start = Seq::start(psn);
        let mut requester = Requester {
            next: start,
            sent: start,
            acked: start,
            una: start,
            at: start,
            recovered: start,
            ..Requester::default()
        };
        requester.update(attr);
        requester.timers.restart(now);
        requester
    }

    /// Takes over changed attributes.
    pub(super) fn update(&mut self, attr: &QpAttr) {
        self.timers.set_timeout(attr.timeout);
        self.retries = attr.retry_cnt;
        self.rnr_retries = attr.rnr_retry;
    }

    /// Gives up what is under way. The PSNs not sent are free again.
    pub(super) fn stop(&mut self) {
        let end = self.sent;
        *self = Requester {
            next: end,
            sent: end,
            acked: end,
            una: end,
            at: end,
            recovered: end,
            cursor: self.cursor,
            started: self.started,
            ..Requester::default()
        };
    }

    /// Follows the queue after it was emptied.
    pub(super) fn skip_to_tail(&mut self, sends: &SendQueue) {
        self.cursor = sends.tail();
        self.started = sends.tail();
    }

    /// Whether requests that have begun are not yet complete.
    pub(super) fn is_busy(&self, sends: &SendQueue) -> bool {
        self.started > sends.head()
    }

    /// Whether packets wait for an acknowledgement.
    pub(super) fn is_waiting(&self) -> bool {
        self.una < self.sent
    }

    /// Packets under way or, after going back, to be taken for it.
    pub(super) fn in_flight(&self) -> u32 {
        self.at.since(self.una)
    }

    /// READs and atomics may not be more than `max`, and READs wait for half a window of room so
    /// as not to be cut into slivers.
    fn has_room_for_answer(&self, packets: u32, max: u8) -> bool {
        let room = self.window.size().saturating_sub(self.in_flight());
        self.chunks.len() < usize::from(max) && room >= packets.min(self.window.size() / 2)
    }
}

impl Qp {
    /// Whether a request packet, or a request's failure, is due.
    pub(super) fn can_send(&self) -> bool {
        if self.config.qp_type == QpType::Ud {
            return self.attr.state == QpState::Rts && !self.sends.is_empty();
        }
        self.has_next() || matches!(self.requester.probe, Probe::Due)
    }

    pub(super) fn transmit_requests<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        now: Instant,
        dev: &mut D,
        sink: &mut S,
    ) {
        if self.config.qp_type == QpType::Ud {
            return self.transmit_datagrams(dev, sink);
        }
        if !self.transmit_probe(now, dev, sink) {
            return;
        }
        while self.has_next() {
            if self.requester.cursor == self.requester.started {
                let one_sided = self.sends.wqe(self.requester.cursor).is_one_sided();
                if one_sided && self.carry_out_directly(dev) {
                    continue;
                }
                if one_sided && self.waits_to_go_directly(dev) || !self.start(dev) {
                    break;
                }
            }
            if !self.transmit_next(now, dev, sink) {
                break;
            }
        }
    }

    /// Whether the next request packet may go now.
    pub(super) fn has_next(&self) -> bool {
        let requester = &self.requester;
        if !self.sends_requests()
            || requester.timers.is_paused()
            || requester.cursor == self.sends.tail()
        {
            return false;
        }
        let wqe = self.sends.wqe(requester.cursor);
        let reliable = self.config.qp_type.is_reliable();
        if reliable && requester.in_flight() >= requester.window.size() {
            return false;
        }
        let max = self.attr.max_rd_atomic;
        match wqe.progress {
            Progress::Failed(..) => false,
            Progress::Started { first, packets, .. } => {
                let left = packets - requester.at.since(first);
                !wqe.is_answered()
                    || requester.at < requester.sent
                    || requester.has_room_for_answer(left, max)
            }
            Progress::Posted if requester.switch.waits() && requester.una < requester.next => false,
            // IBA 10.3.1: nothing is begun in SQD.
            Progress::Posted if self.attr.state != QpState::Rts => false,
            // IBA 10.8.3: a fenced request waits for READs and atomics before it.
            Progress::Posted
                if wqe.wr.flags.contains(SendFlags::FENCE)
                    && (!requester.chunks.is_empty()
                        || wqe.len == LOCAL && requester.una < requester.next) =>
            {
                false
            }
            Progress::Posted => {
                !wqe.is_answered()
                    || max == 0
                    || requester.has_room_for_answer(self.packets(wqe.len), max)
            }
        }
    }

    /// Gives the next request its PSNs. False if it cannot be sent: it fails after those before it.
    fn start<D: Device + ?Sized>(&mut self, dev: &mut D) -> bool {
        let index = self.requester.cursor;
        if let Err((status, why)) = self.check_request(index, dev) {
            // What sends nothing is carried out where nothing is sent.
            if self.sends.wqe(index).len != LOCAL {
                self.fail_request(index, status, why, dev);
            }
            return false;
        }
        let first = self.requester.next;
        let wqe = self.sends.wqe(index);
        let (packets, one_sided) = (self.packets(wqe.len), wqe.is_one_sided());
        self.sends.wqe_mut(index).progress = Progress::Started { first, packets, answered: 0 };
        self.requester.at = first;
        self.requester.next = first.plus(packets);
        self.requester.started = index + 1;
        self.requester.switch.started(index, one_sided);
        true
    }

    /// What can be known to be wrong before anything is sent (IBA 9.9.2.1).
    pub(super) fn check_request<D: Device + ?Sized>(
        &self,
        index: u64,
        dev: &mut D,
    ) -> Result<(), (WcStatus, VendorErr)> {
        let wqe = self.sends.wqe(index);
        if wqe.len > MAX_MESSAGE {
            return Err((WcStatus::LocLenErr, VendorErr::TooLong));
        }
        if wqe.is_answered() && self.attr.max_rd_atomic == 0 {
            return Err((WcStatus::LocQpOpErr, VendorErr::OpNotAllowed));
        }
        match self.sends.data(index) {
            Data::Sges(sges) => sg::check(dev, sges, wqe.fetches())
                .map_err(|fault| (WcStatus::LocProtErr, local(fault))),
            Data::Inline(_) => Ok(()),
        }
    }

    /// Lets a request fail once those before it are complete (IBA 10.8: completions are in
    /// order).
    pub(super) fn fail_request<D: Device + ?Sized>(
        &mut self,
        index: u64,
        status: WcStatus,
        why: VendorErr,
        dev: &mut D,
    ) {
        if index == self.sends.head() {
            self.fail_send(status, why, dev);
        } else {
            self.sends.wqe_mut(index).progress = Progress::Failed(status, why);
        }
    }

    /// Sends one packet and moves on. False if that was not possible.
    fn transmit_next<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        now: Instant,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        let (index, at) = (self.requester.cursor, self.requester.at);
        let wqe = self.sends.wqe(index);
        let Progress::Started { first, packets, .. } = wqe.progress else { return false };
        let answered = wqe.is_answered();
        let referable = self.referable(index, at, sink);
        let referable = referable.filter(|&count| self.is_somewhere(index, at, count, dev));
        let count = referable.unwrap_or_else(|| self.extent(wqe, at));
        let end = at.plus(count);
        let ends = end == first.plus(packets);
        let ack_req = self.config.qp_type.is_reliable() && self.asks_for_ack(answered || ends, end);
        let sent = match referable {
            Some(count) => self.emit_reference(index, at, count, ack_req, dev, sink),
            None => self.emit_request(index, at, count, ack_req, dev, sink),
        };
        if !sent {
            return false;
        }

        let requester = &mut self.requester;
        let again = at < requester.sent;
        if !self.held {
            requester.timers.sent(at, now, !requester.is_waiting(), ack_req && !again);
        }
        if again {
            self.counters.retransmits += 1;
        } else if answered {
            requester.chunks.push_back(end);
        }
        requester.unasked = if ack_req { 0 } else { requester.unasked + count };
        requester.sent = requester.sent.max(end);
        requester.at = end;
        if ends {
            requester.cursor += 1;
        }
        if self.config.qp_type == QpType::Uc {
            self.requester.una = end;
            self.requester.acked = end;
            if ends {
                // IBA 9.8.2: an unreliable send is complete when it has left.
                self.complete_send(dev);
                self.note_drained(dev);
            }
        } else {
            self.skip_acked();
        }
        true
    }

    /// How many PSNs the request packet at `at` stands for: of a READ as many as it asks for.
    fn extent(&self, wqe: &SendWqe, at: Seq) -> u32 {
        let requester = &self.requester;
        let (WrOpcode::Read, Progress::Started { first, packets, .. }) =
            (wqe.wr.opcode, wqe.progress)
        else {
            return 1;
        };
        let left = first.plus(packets).since(at);
        if at < requester.sent {
            // Asked for before: the same range again, or what is missing of it, since a
            // responder finds it by that (IBA 9.7.5.1).
            let end = requester.chunks.iter().copied().find(|&end| at < end);
            return end.map_or(1, |end| end.since(at)).min(left);
        }
        left.min(requester.window.size().saturating_sub(requester.in_flight())).max(1)
    }

    /// Whether the packet before `end` asks for an acknowledgement: at the end of a message, when
    /// the window closes with it, and twice per window.
    fn asks_for_ack(&self, ends: bool, end: Seq) -> bool {
        let size = self.requester.window.size();
        ends || end.since(self.requester.una) >= size || self.requester.unasked + 1 >= size / 2
    }

    /// Sends the probe if one is due. False if the sink is full.
    fn transmit_probe<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        now: Instant,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        if !matches!(self.requester.probe, Probe::Due) {
            return true;
        }
        let una = self.requester.una;
        let head = self.sends.head();
        if !self.sends_requests() || self.requester.at <= una || head == self.sends.tail() {
            // What it would repeat is complete, or about to be sent again anyway.
            self.requester.probe = Probe::None;
            return true;
        }
        let count = self.extent(self.sends.wqe(head), una);
        if !self.emit_request(head, una, count, true, dev, sink) {
            return false;
        }
        self.counters.retransmits += 1;
        self.counters.probes += 1;
        let requester = &mut self.requester;
        requester.timers.rewound(una);
        requester.probe = Probe::Sent { end: una.plus(count), sent: requester.sent, when: now };
        true
    }

    /// Goes back to the oldest packet.
    pub(super) fn rewind(&mut self) {
        let requester = &mut self.requester;
        requester.cursor = self.sends.head();
        requester.at = requester.una;
        requester.unasked = 0;
        requester.timers.rewound(requester.una);
        requester.probe = Probe::None;
        self.skip_acked();
    }

    /// Moves the next packet past those that the responder has acknowledged, which after going
    /// back to a missing response need not be sent again.
    fn skip_acked(&mut self) {
        let requester = &mut self.requester;
        while requester.cursor < requester.started {
            let wqe = self.sends.wqe(requester.cursor);
            let Progress::Started { first, packets, .. } = wqe.progress else { break };
            let end = first.plus(packets);
            requester.at = requester.at.max(first);
            if !wqe.is_answered() {
                requester.at = requester.at.max(requester.acked.min(end));
            }
            if requester.at < end {
                break;
            }
            requester.cursor += 1;
        }
    }

    pub(super) fn request_deadline(&self) -> Option<Instant> {
        if !self.config.qp_type.is_reliable() || !self.sends_requests() {
            return None;
        }
        self.requester.timers.deadline(self.requester.is_waiting(), self.held)
    }

    pub(super) fn handle_request_timeout<D: Device + ?Sized>(&mut self, now: Instant, dev: &mut D) {
        if !self.config.qp_type.is_reliable()
            || !self.sends_requests()
            || self.requester.timers.still_paused(now)
            || !self.requester.is_waiting()
        {
            return;
        }
        if self.held {
            return;
        }
        let requester = &mut self.requester;
        if requester.timers.timed_out(now) {
            self.counters.timeouts += 1;
            if requester.retries == 0 {
                // IBA 9.9.2
                return self.fail_send(WcStatus::RetryExcErr, VendorErr::RetryExceeded, dev);
            }
            requester.retries -= 1;
            requester.timers.restart(now);
            requester.window.timed_out();
            requester.recovered = requester.sent;
            requester.rewound = Some(requester.una);
            self.rewind();
        } else if requester.timers.wants_probe(now) {
            requester.timers.probe(now);
            requester.probe = Probe::Due;
        }
    }

    /// Packets of a message: at least one (IBA 9.7.3).
    pub(super) fn packets(&self, len: u64) -> u32 {
        len.div_ceil(self.mtu.bytes() as u64).clamp(1, u32::MAX.into()) as u32
    }
}
