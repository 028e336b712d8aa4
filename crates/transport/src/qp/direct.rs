//! Requests that the device carries out at the peer by itself: no packet, no PSN, and so no trace in
//! the state of either end. What is true of a request with nothing before it is true of this one.

use super::Qp;
use super::requester::{MAX_MESSAGE, Requester};
use super::send_queue::{Data, Progress};
use crate::device::{Action, Atomic, Device, OneSided};
use crate::verbs::{Access, QpState, QpType, WrOpcode};

/// What a peer of this QP may do to memory by itself, and must know to do it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// Remote operations that the responder takes: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC.
    pub access: Access,
    /// The peer's QPN.
    pub peer: u32,
    /// PSN of the next request: a requester that would use another is not the one that this QP is
    /// connected to.
    pub psn: u32,
}

impl Qp {
    /// What the peer may do by itself; None if its requests are not taken, or are to come as packets
    /// for what else the first of them does (IBV_EVENT_COMM_EST), or on this type of QP.
    pub fn accepts(&self) -> Option<Accepts> {
        let responder = &self.responder;
        let ready =
            self.receives_requests() && (self.attr.state != QpState::Rtr || responder.established);
        let possible = match self.config.qp_type {
            // None can be kept, none is taken.
            QpType::Rc if self.attr.max_dest_rd_atomic == 0 => Access::REMOTE_WRITE,
            QpType::Rc => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            QpType::Uc => Access::REMOTE_WRITE,
            QpType::Ud | QpType::XrcSend | QpType::XrcRecv => return None,
        };
        (ready && self.shares_default_partition()).then(|| Accepts {
            access: self.attr.access & possible,
            peer: self.attr.dest_qpn,
            psn: responder.expected.psn(),
        })
    }

    /// Whether it is a full member of the default partition. Who is not hears from the packets which requests
    /// are of its partition (IBA 9.6.1); two that are full members of it need no look.
    fn shares_default_partition(&self) -> bool {
        self.pkey == 0xffff
    }

    /// Whether the next request is one that may need no packets.
    pub fn may_go_directly(&self) -> bool {
        let Requester { cursor, started, .. } = self.requester;
        cursor == started && cursor != self.sends.tail() && self.sends.wqe(cursor).is_one_sided()
    }

    /// Has the device carry out what it can without packets, and no more than that: what
    /// [`transmit`](Qp::transmit) would do first, without the time of day.
    pub fn transmit_directly<D: Device + ?Sized>(&mut self, dev: &mut D) {
        while self.has_next()
            && self.requester.cursor == self.requester.started
            && self.carry_out_directly(dev)
        {}
    }

    /// Offers the next request to the device. True: it is complete.
    pub(super) fn carry_out_directly<D: Device + ?Sized>(&mut self, dev: &mut D) -> bool {
        let index = self.requester.cursor;
        // Nothing is under way that it could overtake, which also satisfies a fence.
        let requester = &self.requester;
        let idle = index == self.sends.head()
            && requester.una == requester.next
            && requester.chunks.is_empty();
        if !idle || requester.switch.has_failed(index) {
            return false;
        }
        let Some(request) = self.one_sided(index) else { return false };
        let (bytes, carrier) = (request.len, dev.carry_out(&request));
        let Some(carrier) = carrier else {
            self.requester.switch.failed(index);
            return false;
        };
        self.counters.direct.count(carrier, bytes);
        self.requester.switch.succeeded();
        self.requester.cursor = index + 1;
        self.requester.started = index + 1;
        self.complete_send(dev);
        true
    }

    /// Whether the next request had better wait until nothing is under way and it can go without packets.
    /// Who keeps requests under way all the time would never get there otherwise.
    pub(super) fn waits_to_go_directly<D: Device + ?Sized>(&mut self, dev: &mut D) -> bool {
        let index = self.requester.cursor;
        let requester = &self.requester;
        // Of an unreliable connection nothing is under way that is heard of.
        if self.config.qp_type != QpType::Rc
            || requester.una == requester.next
            || !requester.switch.may_wait()
        {
            return false;
        }
        let Some(request) = self.one_sided(index) else { return false };
        let wanted = request.len >= LONG || !requester.switch.needed_packets(self.sends.head());
        let waits = wanted && dev.could_carry_out(&request);
        if waits {
            self.requester.switch.wait();
        }
        waits
    }

    /// The request as the device takes it, if its form allows that.
    fn one_sided(&self, index: u64) -> Option<OneSided<'_>> {
        let connected = matches!(self.config.qp_type, QpType::Rc | QpType::Uc);
        let wqe = self.sends.wqe(index);
        let sound = wqe.progress == Progress::Posted && (1..=MAX_MESSAGE).contains(&wqe.len);
        let allowed = !wqe.is_answered() || self.attr.max_rd_atomic > 0;
        let sound = sound && self.shares_default_partition();
        if !(connected && sound && allowed) || self.attr.state != QpState::Rts {
            return None;
        }
        let wr = &wqe.wr;
        let action = match (wr.opcode, self.sends.data(index)) {
            (WrOpcode::Write, Data::Sges(sges)) => Action::Write(sges),
            (WrOpcode::Write, Data::Inline(bytes)) => Action::WriteInline(bytes),
            (WrOpcode::Read, Data::Sges(sges)) => Action::Read(sges),
            (WrOpcode::CompareSwap, Data::Sges(sges)) => {
                let op = Atomic::CompareSwap { compare: wr.compare_add, swap: wr.swap };
                Action::Atomic(op, sges)
            }
            (WrOpcode::FetchAdd, Data::Sges(sges)) => {
                Action::Atomic(Atomic::FetchAdd { add: wr.compare_add }, sges)
            }
            _ => return None,
        };
        Some(OneSided {
            action,
            va: wr.remote_addr,
            rkey: wr.rkey,
            len: wqe.len,
            dest_qpn: self.attr.dest_qpn,
            psn: self.requester.next.psn(),
        })
    }
}

/// From this length on a request waits behind messages, too: packets would take longer.
const LONG: u64 = 32 * 1024;

/// When to wait for what is under way, so that what follows goes without packets.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Switch {
    waits: bool,
    /// The number after that of the last request begun that can only go as packets.
    packets: u64,
    /// The number after that of the last request that the device did not carry out.
    failed: u64,
    /// Requests to be begun before it is waited again: more with each disappointment.
    rest: u32,
    penalty: u32,
}

impl Switch {
    const PENALTY: std::ops::RangeInclusive<u32> = 16..=4096;

    /// Whether the next request waits for those under way.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    fn may_wait(&self) -> bool {
        self.rest == 0
    }

    fn wait(&mut self) {
        self.waits = true;
    }

    /// Whether of the requests from `head` on one can only go as packets.
    fn needed_packets(&self, head: u64) -> bool {
        self.packets > head
    }

    /// A request was given its PSNs.
    #[inline]
    pub(super) fn started(&mut self, index: u64, one_sided: bool) {
        self.rest = self.rest.saturating_sub(1);
        if !one_sided {
            self.packets = index + 1;
        }
    }

    fn succeeded(&mut self) {
        (self.waits, self.rest, self.penalty) = (false, 0, 0);
    }

    /// Whether the request has been tried: what it is, packets find out.
    fn has_failed(&self, index: u64) -> bool {
        self.failed == index + 1
    }

    fn failed(&mut self, index: u64) {
        self.waits = false;
        self.failed = index + 1;
        self.penalty = (self.penalty * 2).clamp(*Self::PENALTY.start(), *Self::PENALTY.end());
        self.rest = self.penalty;
    }
}
