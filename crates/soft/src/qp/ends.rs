//! The ends of connections: what a peer is owed, what it left, and what others are told meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ironverbs_transport::device::Instant;
use ironverbs_transport::qp::Output;
use ironverbs_transport::verbs::{AttrMask, QpAttr, QpState};
use parking_lot::Mutex;

use super::{Link, Qp, State};
use crate::context::limits;
use crate::direct::Thing;
use crate::direct::table::line_of_qp;
use crate::host::AT_EXIT;
use crate::local::{Departure, Outbound};
use crate::neighbours::LastSink;
use crate::status::{QpFacts, Testament};
use crate::surroundings::Surroundings;

/// How long after the kill of the peer's process its connections live on: a program that has had all it waited for,
/// and whose peer ended by _exit(2), has read its completions by then.
const GRACE: u64 = 150_000_000;

/// How long the removal of a device waits for peers that use its QPs by themselves at that moment.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// QPs that have counted what others have not been shown. To show it takes longer than a message: the background thread
/// does it, now and then.
#[derive(Debug)]
pub(crate) struct Unpublished {
    any: AtomicBool,
    /// Those that wait, and room for those that come while they are shown.
    lists: Mutex<[Vec<Weak<Qp>>; 2]>,
}

impl Default for Unpublished {
    fn default() -> Unpublished {
        // The data path adds to them, and is not to wait for memory.
        let lists = [Vec::with_capacity(Unpublished::MOST), Vec::with_capacity(Unpublished::MOST)];
        Unpublished { any: AtomicBool::new(false), lists: Mutex::new(lists) }
    }
}

impl Unpublished {
    /// The thread that empties the lists may sleep long, and each entry keeps the memory of a QP.
    const MOST: usize = 1024;

    /// False: there is no room.
    #[cold]
    fn add(&self, qp: Weak<Qp>) -> bool {
        let mut lists = self.lists.lock();
        let room = lists[0].len() < Unpublished::MOST;
        if room {
            lists[0].push(qp);
            self.any.store(true, Ordering::Release);
        }
        room
    }

    /// A QP that ends has nothing more to show.
    pub(super) fn forget(&self, qp: &Qp) {
        self.lists.lock()[0].retain(|other| !std::ptr::eq(other.as_ptr(), qp));
    }

    /// Shows it.
    pub(crate) fn publish(&self) {
        if !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut qps = {
            let mut lists = self.lists.lock();
            lists.swap(0, 1);
            std::mem::take(&mut lists[1])
        };
        qps.drain(..).filter_map(|qp| qp.upgrade()).for_each(|qp| qp.publish_now());
        self.lists.lock()[1] = qps;
    }
}

impl Qp {
    /// What others are told of it.
    pub(super) fn facts(&self, state: &State) -> QpFacts {
        let peer = state.transport.peer();
        QpFacts {
            qpn: self.qpn,
            qp_type: self.qp_type,
            state: state.transport.state(),
            srq: self.srq.is_some(),
            peer: peer.map(|(path, qpn)| (path.dst, qpn)),
            process: match &state.link {
                Link::Lane(lane) => Some((lane.peer().slot, lane.peer().tenure)),
                Link::Wire => None,
            },
        }
    }

    /// How packets go to its peer, if it is connected.
    pub(crate) fn peer_path(&self) -> Option<ironverbs_wire::Path> {
        self.state.lock().transport.peer().map(|(path, _)| *path)
    }

    /// Tells others all there is to tell.
    pub(super) fn publish(&self, state: &State) {
        if let Some(board) = self.host().board() {
            board.expects(self.qpn, state.transport.expected_psn());
            board.count(self.qpn, state.transport.counters());
            board.tell(&self.facts(state));
        }
    }

    /// Has others told of the last packets: of a new state at once, of what was counted soon.
    #[inline]
    pub(super) fn publish_later(&self, state: &mut State) {
        if state.transport.state() != state.shown_state {
            state.shown_state = state.transport.state();
            self.publish(state);
        } else if !state.unpublished {
            state.unpublished = self.host().unpublished.add(self.me.clone());
            if !state.unpublished {
                self.publish(state);
            }
        }
    }

    fn publish_now(&self) {
        let mut state = self.state.lock();
        state.unpublished = false;
        if !state.gone {
            self.publish(&state);
        }
    }

    /// The process in `slot` does not take packets to `qpn`.
    pub(crate) fn refused(&self, slot: u16, qpn: u32) {
        let mut state = self.state.lock();
        if state.is_connected(slot) && state.transport.peer().is_some_and(|(_, peer)| peer == qpn) {
            let now = self.host().now();
            self.read_testament(&mut state, now);
            state.transport.release_timeouts(now);
            self.set_timer(&mut state);
        }
    }

    /// Begins to wait for the peer's process, unless that is waited for already. A clock for each message would cost as much
    /// as a good part of the rest, so one that runs goes on, and when it has run out the oldest packet tells.
    #[inline]
    pub(super) fn start_patience(&self, state: &mut State, now: impl FnOnce() -> Instant) {
        if state.patience.is_some() || !matches!(state.link, Link::Lane(_)) {
            return;
        }
        let waits = (state.transport.unacknowledged(), state.transport.ack_timeout());
        if let (Some(oldest), Some(timeout)) = waits {
            state.patience = Some((now().after(timeout), oldest));
        }
    }

    /// The lane to a process that has been silent for long enough to be looked at. Its being silent means nothing in itself.
    pub(super) fn silent_lane(&self, state: &mut State, now: Instant) -> Option<Arc<Outbound>> {
        let (_, oldest) = state.patience.take_if(|(until, _)| *until <= now)?;
        let silent = state.transport.unacknowledged() == Some(oldest);
        self.start_patience(state, || now);
        match &state.link {
            Link::Lane(lane) if silent && lane.is_alive() && lane.is_doubtful(now.0) => {
                Some(lane.clone())
            }
            _ => None,
        }
    }

    /// A process is gone. If it ended in good order, silence counts from now on as on a network: what waits for the peer
    /// runs out of retries, and who waits for its messages waits. If it was killed, the connection fails after a moment,
    /// whatever it waited for.
    pub(crate) fn lose_peer(&self, departure: &Departure, now: Instant) {
        let mut state = self.state.lock();
        let ours = matches!(&state.link, Link::Lane(lane) if *lane.peer() == departure.peer);
        if !ours || state.gone {
            return;
        }
        let testament = self.read_testament(&mut state, now);
        state.transport.release_timeouts(now);
        // One that was destroyed before says no more of its process than on a network.
        if departure.killed && !testament.is_some_and(|testament| testament.ended) {
            state.condemned = Some(now.after(self.host().clock.ticks(GRACE)));
        }
        self.set_timer(&mut state);
    }

    /// Moves to ERR and flushes if its device is gone; once.
    pub(crate) fn follow_device(&self, now: Instant) {
        if self.context().device().is_present() {
            return;
        }
        let mut state = self.state.lock();
        if state.gone || std::mem::replace(&mut state.removed, true) {
            return;
        }
        self.settle_debts(&mut state, now);
        {
            let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
            let mut surroundings = Surroundings::of(self);
            // There is a way to ERR from every state.
            let _ = state.transport.modify(
                &error,
                AttrMask::STATE,
                None,
                limits::PKEY,
                now,
                &mut surroundings,
            );
        }
        self.pump(&mut state, now);
        self.publish(&state);
        let took = self.tell(&mut state);
        drop(state);
        if took {
            // But the engine does not wait for a process that was stopped; deregistering does.
            self.host().wait_briefly(Thing::Qp(line_of_qp(self.qpn)), LAST_LOOK);
        }
    }

    /// Sends acknowledgements that were put off, at the end of the program.
    pub(crate) fn settle_at_exit(&self, now: Instant) {
        // A thread that holds the lock sends by itself what there is.
        if let Some(mut state) = self.state.try_lock_for(AT_EXIT)
            && state.transport.output() != Output::None
        {
            self.settle_debts(&mut state, now);
        }
    }

    /// Completes what the peer carried out without telling us, which now it cannot any more.
    fn read_testament(&self, state: &mut State, now: Instant) -> Option<Testament> {
        let State { transport, link: Link::Lane(lane), .. } = state else { return None };
        let process = (lane.peer().slot, lane.peer().tenure);
        let (_, peer) = transport.peer()?;
        let view = self.host().registry()?.view()?;
        let testament = view.testament(process, peer, self.qpn)?;
        let mut surroundings = Surroundings::of(self);
        transport.presume_received(testament.expected_psn, now, &mut surroundings);
        Some(testament)
    }

    /// Sends what the peer is owed before the state that knows of it goes: its last requests were carried out, and it is
    /// to know, also where the lane to it is full at the moment.
    pub(super) fn settle_debts(&self, state: &mut State, now: Instant) {
        let State { transport, link: Link::Lane(lane), .. } = state else {
            return self.pump(state, now);
        };
        if lane.is_alive() {
            let mut surroundings = Surroundings::of(self);
            let mut sink = LastSink::new(lane);
            transport.transmit_owed(&mut surroundings, &mut sink);
            sink.finish();
            self.host().see_to(lane);
        }
    }
}
