//! Requests out, packets in, timers.

use std::sync::atomic::Ordering;

use ironverbs_sys::moment::MutexGuard;
use ironverbs_transport::device::{Instant, Sink};
use ironverbs_transport::qp::{Output, Payload, PostError};
use ironverbs_transport::verbs::{QpState, QpType, SendWr, Sge};
use ironverbs_wire::{Packet, Path};

use super::{Left, Link, Qp, State};
use crate::neighbours::{DatagramSink, LaneSink};
use crate::progress::Now;
use crate::surroundings::{Pull, Surroundings};

impl Qp {
    /// Posts a send request (ibv_post_send(3)); it is sent at once if it may be.
    pub fn post_send(&self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        self.post_batch().push(wr, data)
    }

    /// Posts several send requests that are sent together when the guard is dropped.
    pub fn post_batch(&self) -> PostGuard<'_> {
        PostGuard { qp: self, state: self.own().map(|()| self.state.lock()) }
    }

    /// Posts a receive request (ibv_post_recv(3)).
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.own()?;
        let mut state = self.state.lock();
        state.takes_work()?;
        state.transport.post_recv(wr_id, sges)?;
        // In the error state it is flushed; otherwise nothing is to be sent.
        if state.transport.state() == QpState::Err {
            self.pump(&mut state, self.host().now());
        }
        Ok(())
    }

    /// Carries out what needs no packets. Whether that was all there was to do: then nobody needs to know the time,
    /// which costs as much as all the rest here.
    fn carry_out(&self, state: &mut State) -> bool {
        let State { transport, link: Link::Lane(lane), gone: false, aim, .. } = state else {
            return false;
        };
        if !lane.is_alive() || !transport.may_go_directly() {
            return false;
        }
        let mut surroundings = Surroundings::without_packets(self, lane, *aim);
        transport.transmit_directly(&mut surroundings);
        *aim = surroundings.aim;
        transport.output() == Output::None
    }

    /// Sends what may be sent now, and tells the timers. The lock is held until the packets have left, so that
    /// packets of one QP keep their order.
    pub(super) fn pump(&self, state: &mut State, now: Instant) {
        self.pump_at(state, || now);
    }

    /// The same, where the time may not be known yet.
    fn pump_at(&self, state: &mut State, now: impl FnOnce() -> Instant) {
        if state.gone {
            return;
        }
        if state.transport.output() != Output::None {
            let now = now();
            self.carry_out_locals(state);
            self.transmit(state, now);
            // What those held up may go now.
            while self.carry_out_locals(state) {
                self.transmit(state, now);
            }
            self.tell_psn(state);
            self.start_patience(state, || now);
        }
        self.publish_later(state);
        self.set_timer(state);
    }

    /// Carries out requests that send nothing, while no sender is locked: others may have to be waited for.
    #[inline]
    fn carry_out_locals(&self, state: &mut State) -> bool {
        state.transport.uses_locals()
            && state.transport.carry_out_locals(&mut Surroundings::of(self))
    }

    fn transmit(&self, state: &mut State, now: Instant) {
        let host = self.host();
        let State { transport, link, .. } = state;
        let link = &*link;
        let mut surroundings = match link {
            _ if transport.output() == Output::AcksOnly => Surroundings::on_demand(self),
            Link::Lane(lane) if lane.is_alive() => Surroundings::with_lane(self, lane),
            _ => Surroundings::of(self),
        };
        let sender = matches!(link, Link::Wire).then(|| host.sender()).flatten();
        let full = match (link, sender) {
            (Link::Lane(lane), _) if lane.is_alive() => {
                let mut sink = LaneSink::new(lane, &host.cookie);
                transport.transmit(now, &mut surroundings, &mut sink);
                sink.finish()
            }
            (Link::Wire, Some(sender)) if self.qp_type == QpType::Ud => {
                let mut sink = DatagramSink::new(host, sender);
                sink.begin(self.context().device().ifindex());
                transport.transmit(now, &mut surroundings, &mut sink);
                sink.finish()
            }
            (Link::Wire, Some(mut sender)) => {
                sender.begin(self.context().device().ifindex());
                transport.transmit(now, &mut surroundings, &mut *sender);
                sender.flush();
                false
            }
            (Link::Lane(_), _) | (Link::Wire, None) => {
                transport.transmit(now, &mut surroundings, &mut Nowhere::default());
                false
            }
        };
        self.owes.store(transport.owes_acks(), Ordering::Relaxed);
        if full {
            host.blocked.add(self.me());
            // A sleeper has told the receivers of the lanes that were full when it went to sleep, not of this one.
            host.kick.wake_sleeper();
        }
    }

    pub(super) fn set_timer(&self, state: &mut State) {
        let Some(deadline) = state.next_deadline() else { return };
        if state.timer.is_none_or(|known| deadline < known) {
            state.timer = Some(deadline);
            self.host().add_timer(deadline, self.qpn);
        }
    }

    /// The timer set for `deadline` is due.
    pub(crate) fn timer(&self, deadline: Instant, now: Instant) {
        let mut state = self.state.lock();
        if state.gone || state.timer != Some(deadline) {
            return;
        }
        state.timer = None;
        if state.transport.next_deadline().is_some_and(|d| d <= now) {
            let mut surroundings = Surroundings::of(self);
            state.transport.handle_timeout(now, &mut surroundings);
        }
        let silent = self.silent_lane(&mut state, now);
        if state.condemned.is_some_and(|at| at <= now) {
            state.condemned = None;
            let mut surroundings = Surroundings::of(self);
            state.transport.lose_peer(&mut surroundings);
        }
        self.tell(&mut state);
        self.pump(&mut state, now);
        self.publish(&state);
        drop(state);
        if let (Some(lane), Some(lanes)) = (silent, self.host().lanes()) {
            lanes.doubt(lane.peer());
        }
    }

    /// Takes a packet whose ICRC was right.
    pub(crate) fn handle_packet(
        &self,
        packet: &Packet<'_>,
        path: &Path,
        udp_len: u16,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        if !state.gone {
            let mut surroundings = Surroundings::of(self);
            state.transport.handle_packet(packet, path, udp_len, now, &mut surroundings);
            if let Some(board) = self.host().board() {
                board.expects(self.qpn, state.transport.expected_psn());
            }
        }
    }

    /// Takes a packet that came by a lane from `slot`, its payload to be fetched where there is a `pull`; false if there is
    /// nobody to take it.
    pub(crate) fn handle_record(
        &self,
        slot: u16,
        packet: &Packet<'_>,
        pull: Option<Pull>,
        now: &mut Now<'_>,
    ) -> bool {
        let mut state = self.state.lock();
        let State { transport, link: Link::Lane(lane), gone: false, .. } = &mut *state else {
            return false;
        };
        let Some((path, _)) = transport.peer() else { return false };
        // Who the peer is, the slot says.
        if lane.slot() != slot {
            return false;
        }
        let from = path.reversed();
        let dropped = transport.counters().dropped.unwanted();
        let mut surroundings = Surroundings::on_demand(self);
        if let Some(pull) = pull {
            let len = pull.source.len();
            surroundings.pull = Some(pull);
            surroundings.sender = lane.initiator.remote();
            transport.handle_reference(packet, len, &from, now.get(), &mut surroundings);
        } else {
            // Of no account but for datagrams.
            transport.handle_packet(packet, &from, 0, now.get(), &mut surroundings);
        }
        if let Some(board) = self.host().board() {
            board.expects(self.qpn, transport.expected_psn());
        }
        // It lives, and takes our packets if it answers them.
        if packet.op.is_response() {
            transport.hold_timeouts();
        }
        let taken = transport.counters().dropped.unwanted() == dropped;
        drop(surroundings);
        // Before any acknowledgement leaves: who has it may go on by itself.
        self.tell_psn(&mut state);
        taken
    }

    /// After the packets of a batch: sends what they call for, except acknowledgements where `defer` is set.
    pub(crate) fn settle(&self, defer: bool, now: &mut Now<'_>) -> Left {
        let mut state = self.state.lock();
        if defer && !state.gone && state.transport.output() == Output::AcksOnly {
            self.owes.store(true, Ordering::Relaxed);
            self.publish_later(&mut state);
            self.set_timer(&mut state);
            return Left::Acks;
        }
        if self.send_short_ack(&mut state) {
            self.publish_later(&mut state);
        } else {
            self.pump_at(&mut state, || now.get());
        }
        Left::Nothing
    }
}

/// Send requests that go out together.
#[derive(Debug)]
pub struct PostGuard<'a> {
    qp: &'a Qp,
    /// Why nothing can be posted, in a fork.
    state: Result<MutexGuard<'a, State>, PostError>,
}

impl PostGuard<'_> {
    /// How many more can be posted now.
    pub fn room(&self) -> usize {
        let room =
            |state: &MutexGuard<'_, State>| self.qp.room(state).min(state.transport.send_room());
        self.state.as_ref().map_or(0, room)
    }

    /// Posts one more.
    pub fn push(&mut self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        let state = self.state.as_mut().map_err(|e| *e)?;
        state.takes_work()?;
        // A request keeps its place until the program has read its completion, or a later one (IBA 10.8.5.1): that
        // is what keeps a program that does not poll from overrunning its CQ.
        if self.qp.room(state) == 0 {
            return Err(PostError::QueueFull { max: self.qp.cap.max_send_wr });
        }
        state.transport.post_send(wr, data)?;
        state.posted += 1;
        Ok(())
    }
}

impl Drop for PostGuard<'_> {
    fn drop(&mut self) {
        let Ok(state) = &mut self.state else { return };
        if self.qp.carry_out(state) || self.qp.send_short(state) {
            self.qp.publish_later(state);
        } else {
            let now = self.qp.host().now();
            self.qp.pump(state, now);
        }
    }
}

/// The sink of a device without a wire: what it sends is lost.
#[derive(Debug, Default)]
struct Nowhere(Vec<u8>);

impl Sink for Nowhere {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        self.0.resize(len, 0);
        Some(&mut self.0)
    }

    fn commit(&mut self) {}
}
