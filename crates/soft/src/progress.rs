//! Progress: packets in, timers, and the thread that works when nobody polls.

mod background;
mod receive;

pub(crate) use self::background::{Background, Kick};
pub(crate) use self::receive::ReceiveCounters;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;

use ironverbs_sys::cancel;
use ironverbs_sys::udp::RxBatch;
use ironverbs_transport::device::Instant;
use ironverbs_wire::Path;

use self::receive::{Receiver, count};
use crate::Qp;
use crate::cm;
use crate::cq::moderation;
use crate::fabric;
use crate::host::{AT_EXIT, Clock, Inner};
use crate::management::{self, steward};
use crate::neighbours::{Arrival, HEAD};
use crate::registry::Registry;

/// Datagrams taken in one round; each may hold many packets.
const DATAGRAMS: usize = 8;

/// Rounds for which the socket is looked at in each after packets came by it.
const WARM: u32 = 256;

/// Rounds that may pass without a look at the socket while lanes are all there is: a look costs a system call.
const SKIP: u32 = 32;

/// What polls that found nothing may cost before the core is offered to others: one that looked at the socket counts
/// as `SKIP`. On a machine whose cores are all busy the peer may be waiting for this very core.
const IDLE_COST: u32 = 64;

/// Rounds in which what came before a queue pair fails is looked for.
const LAST_ROUNDS: u32 = 64;

/// The receiving side. Whoever holds its lock makes progress.
#[derive(Debug)]
pub(crate) struct Engine {
    batch: RxBatch,
    /// QPs that owe acknowledgements from the round before.
    owing: Vec<Arc<Qp>>,
    /// Rounds for which the socket is looked at in each: packets came by it lately.
    warm: u32,
    /// Rounds since the socket was looked at.
    skipped: u32,
    idle: u32,
    /// Room for the beginning of a record.
    head: [u8; HEAD],
    /// The QP that was looked up last.
    last: Weak<Qp>,
}

impl Engine {
    pub(crate) fn new() -> Engine {
        Engine {
            batch: RxBatch::new(DATAGRAMS),
            owing: Vec::new(),
            warm: 0,
            skipped: 0,
            idle: 0,
            head: [0; HEAD],
            last: Weak::new(),
        }
    }

    fn looks_at_socket(&mut self) -> bool {
        self.warm = self.warm.saturating_sub(1);
        self.skipped += 1;
        let looks = self.warm > 0 || self.skipped >= SKIP;
        if looks {
            self.skipped = 0;
        }
        looks
    }
}

impl Inner {
    /// Progress on the thread of a program that polls.
    pub(crate) fn poll_inline(&self) {
        // Polls are counted to be seen to rise: two threads that overwrite each other's count do no harm.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.progress_inline();
    }

    /// Sends what was put off.
    pub(crate) fn flush(&self) {
        let Some(qps) = self.qps.try_read_for(AT_EXIT) else { return };
        let qps: Vec<_> = qps.all().collect();
        let now = self.clock.now();
        for qp in qps {
            qp.settle_at_exit(now);
        }
    }

    pub(crate) fn progress_inline(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            // Somebody else is at it.
            std::hint::spin_loop();
            return false;
        };
        let did = self.round(&mut engine, true);
        let cost = if engine.skipped == 0 { SKIP } else { 1 };
        engine.idle = if did { 0 } else { engine.idle + cost };
        let spare = engine.idle >= IDLE_COST;
        if spare {
            engine.idle = 0;
        }
        drop(engine);
        if spare {
            thread::yield_now();
        }
        did
    }

    /// Takes all that has come by now, for who is about to forget what it is for.
    pub(crate) fn take_what_came(&self) {
        if self.registry().is_none() {
            return;
        }
        // Somebody who sends without end must not keep us.
        for _ in 0..LAST_ROUNDS {
            // A thread that is at it has what came before, or leaves it to us.
            let Some(mut engine) = self.engine.try_lock_for(AT_EXIT) else { return };
            engine.warm = engine.warm.max(2);
            if !self.round(&mut engine, false) {
                return;
            }
            drop(engine);
            // Who has the lanes meanwhile may need this very core.
            thread::yield_now();
        }
    }

    /// One round: acknowledgements owed, packets, timers. Whether anything was done.
    ///
    /// A program that polls gets its completions before acknowledgements are sent: those wait for its next
    /// request, to leave with it in one call, or for the next round.
    fn round(&self, engine: &mut Engine, defer: bool) -> bool {
        let registry = self.wire.get().and_then(|wire| wire.registry.as_ref());
        let Some(registry) = registry else { return self.run_timers(self.clock.now()) };
        let mut did = false;
        let mut now = Now::of(&self.clock);
        if !engine.owing.is_empty() {
            // Most have left with a request meanwhile.
            for qp in engine.owing.drain(..).filter(|qp| qp.owes()) {
                qp.settle(false, &mut now);
            }
            did = true;
        }
        did |= self.fail_overrun() | self.fail_removed() | self.blocked.retry(&mut now);
        did |= self.lanes().is_some_and(|lanes| lanes.pay());
        let looks = engine.looks_at_socket();
        // What comes by the network may lead to anything, as timers may.
        let _held = looks.then(cancel::held);
        let Engine { batch, owing, head, last, .. } = engine;
        let mut receiver = Receiver::new(self, Some(registry), last, owing);
        (receiver.now, receiver.defer) = (now, defer);
        did |= self.take_records(head, |arrival| match arrival {
            Arrival::Short(slot, Some(short), has_message) => {
                receiver.short(slot, short, has_message);
            }
            Arrival::Short(_, None, _) => count(&self.received.malformed),
            Arrival::Record(record) => receiver.record(record),
        });
        self.mourn();
        // Silence counts only up to a moment before which everything that came has been taken: a thread that was off the
        // processor finds the answers it waited for in the socket.
        let mut heard = None;
        if looks {
            let before = self.clock.now();
            // An error is the network's (ICMP) or the descriptor's; the retries of the transport deal with both.
            let received = registry.socket().recv_some(batch, DATAGRAMS).unwrap_or(0);
            if received > 0 {
                receiver.now = Now::of(&self.clock);
                batch.messages().for_each(|datagram| receiver.datagram(&datagram));
                engine.warm = WARM;
                did = true;
            }
            heard = (received < DATAGRAMS).then_some(before);
        }
        receiver.finish();
        if !engine.owing.is_empty() {
            // SYNC POINT: the background thread says that it is about to sleep, then looks under this lock whether
            // anything is owed. One of the two sees the other: a program that polls may stop to.
            self.kick.wake_sleeper();
        }
        heard.is_some_and(|heard| self.run_timers(heard)) || did
    }

    /// Takes what has come to QP1's socket, which all processes of the group read.
    pub(crate) fn take_management(&self, batch: &mut RxBatch) {
        let Some(registry) = self.registry() else { return };
        let (mut last, mut owing) = (Weak::new(), Vec::new());
        let mut receiver = Receiver::new(self, Some(registry), &mut last, &mut owing);
        // Whoever sends without end must not keep us: what is left makes the descriptor readable again.
        for _ in 0..DATAGRAMS {
            let received = registry.management_socket().recv_some(batch, DATAGRAMS).unwrap_or(0);
            batch.messages().for_each(|datagram| receiver.datagram(&datagram));
            if received < DATAGRAMS {
                break;
            }
        }
        receiver.finish();
    }

    /// Does what the dead have left to be done.
    fn inherit(self: &Arc<Self>, registry: &Registry) {
        let estates = registry.take_estates();
        if !estates.is_empty() {
            // Which addresses are this host's decides what is done; one that only stays has not looked yet.
            let _ = self.follow_interfaces();
        }
        for (slot, wills) in estates {
            self.cm.execute(self, slot, &wills);
        }
    }

    /// Takes a packet that did not come from the socket.
    pub(crate) fn take_packet(&self, path: &Path, src_port: u16, packet: &[u8]) {
        let (mut last, mut owing) = (Weak::new(), Vec::new());
        let mut receiver = Receiver::new(self, None, &mut last, &mut owing);
        receiver.packet(path, src_port, packet);
        receiver.finish();
    }

    pub(crate) fn run_timers(&self, now: Instant) -> bool {
        let mut did = self.fail_overrun() | self.fail_removed();
        while let Some((deadline, qpn)) = self.timers.pop(now) {
            if qpn == cm::TIMER {
                self.cm.timeout(self, now);
                continue;
            }
            if qpn == fabric::TIMER {
                self.fabric.timeout(self, now);
                continue;
            }
            if qpn == management::TIMER {
                management::timeout(self, now);
                continue;
            }
            if qpn == steward::TIMER {
                self.steward.timeout(self);
                continue;
            }
            if qpn == fabric::sa::TIMER {
                self.fabric.sa.timeout(self, now);
                continue;
            }
            if qpn == moderation::TIMER {
                self.moderated.timeout(self, now);
                continue;
            }
            let qp = self.qps.read().get(qpn);
            if let Some(qp) = qp {
                qp.timer(deadline, now);
                did = true;
            }
        }
        did
    }

    /// Sets a timer for a QP, and sees that somebody is awake when it is due.
    pub(crate) fn add_timer(&self, deadline: Instant, qpn: u32) {
        self.timers.add(deadline, qpn);
        self.kick.wake_before(deadline);
    }

    /// A CQ was armed: a program is about to sleep, and only the background thread can wake it.
    pub(crate) fn armed(&self) {
        if self.armed.fetch_add(1, Ordering::SeqCst) == 0 {
            self.kick.wake_if_napping();
        }
    }

    /// An armed CQ fired or went.
    pub(crate) fn disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The time, read when it is first asked for.
pub(crate) struct Now<'a> {
    clock: &'a Clock,
    read: Option<Instant>,
}

impl Now<'_> {
    pub(crate) fn of(clock: &Clock) -> Now<'_> {
        Now { clock, read: None }
    }

    pub(crate) fn get(&mut self) -> Instant {
        *self.read.get_or_insert_with(|| self.clock.now())
    }
}
