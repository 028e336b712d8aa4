//! The commonest message on the shortest way: a small SEND between processes of one host.

use std::sync::atomic::Ordering;

use ironverbs_transport::qp::Short;

use super::{Left, Link, Qp, State};
use crate::direct::table::line_of_qp;
use crate::neighbours;
use crate::surroundings::Surroundings;

impl Qp {
    /// Sends the one request that waits to be sent, if it is of that kind. Then there is nothing more to do.
    #[inline]
    pub(super) fn send_short(&self, state: &mut State) -> bool {
        let State { transport, link: Link::Lane(lane), gone: false, .. } = state else {
            return false;
        };
        let Some(candidate) = transport.next_short(neighbours::SHORTEST) else { return false };
        if !lane.is_alive() {
            return false;
        }
        // The table of regions comes before the lock of a lane.
        let mut surroundings = match candidate.sges {
            [] => Surroundings::on_demand(self),
            _ => Surroundings::of(self),
        };
        // A lane that is full leaves it to those who wait for room.
        let sent = neighbours::send_short(lane, &candidate, &mut surroundings);
        if sent {
            let len = candidate.len;
            transport.short_sent(len);
            self.owes.store(false, Ordering::Relaxed);
            if state.patience.is_none() {
                self.start_patience(state, || self.host().now());
                self.set_timer(state);
            }
        }
        sent
    }

    /// Sends the acknowledgement that is due, if that is all there is to send.
    pub(super) fn send_short_ack(&self, state: &mut State) -> bool {
        let State { transport, link: Link::Lane(lane), gone: false, .. } = state else {
            return false;
        };
        let Some(short) = transport.next_short_ack().filter(|_| lane.is_alive()) else {
            return false;
        };
        let sent = neighbours::send_short_ack(lane, &short);
        if sent {
            transport.short_ack_sent();
            self.owes.store(false, Ordering::Relaxed);
        }
        sent
    }

    /// Whether it owes its peer acknowledgements, as far as can be told without its lock.
    pub(crate) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed)
    }

    /// Takes a short message that came by a lane from `slot`. None: it is to be taken as the packets that it is, but for its
    /// acknowledgement if `short` has none any more.
    #[inline]
    pub(crate) fn handle_short(
        &self,
        slot: u16,
        short: &mut Short<'_>,
        has_message: bool,
    ) -> Option<Left> {
        let mut state = self.state.lock();
        let State { transport, link: Link::Lane(lane), gone: false, told, .. } = &mut *state else {
            return None;
        };
        // Who the peer is, the slot says.
        if lane.slot() != slot {
            return None;
        }
        let mut surroundings = Surroundings::on_demand(self);
        if short.ack.is_some() {
            if !transport.take_short_ack(short, &mut surroundings) {
                return None;
            }
            short.ack = None;
        }
        let taken = !has_message || transport.take_short(short, &mut surroundings);
        drop(surroundings);
        if taken && has_message {
            let (host, expected) = (self.host(), transport.expected_psn());
            if let Some(board) = host.board() {
                board.expects(self.qpn, expected);
            }
            // Before any acknowledgement leaves: who has it may go on by itself. Nothing but the PSN has changed.
            if let (Some(told), Some(table)) = (told, host.table.get()) {
                told.psn = expected;
                table.set_psn(line_of_qp(self.qpn), expected);
            }
        }
        let left = match transport.owes_at_most_acks() {
            true if transport.owes_acks() => Left::Acks,
            true => Left::Nothing,
            false => Left::Unknown,
        };
        self.owes.store(left != Left::Nothing, Ordering::Relaxed);
        if left != Left::Unknown {
            self.publish_later(&mut state);
        }
        taken.then_some(left)
    }
}
