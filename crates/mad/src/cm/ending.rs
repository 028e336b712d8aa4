//! How connections end, and what never becomes of them.

use ironverbs_wire::mad::cm::{ApStatus, Apr, Drep, Dreq, Lap, Message, Rej, RejReason, Rtu};

use super::conn::{Miss, RemoteKey, Resend, State};
use super::{Cm, ConnId, Origin};
use crate::error::padded;
use crate::{AnswerError, Disconnect, Event, Instant};

impl Cm {
    /// After [`Event::Request`] or [`Event::Reply`]: refuses the connection, which is gone for the
    /// program. A consumer's reason is [`RejReason::ConsumerReject`]. At most 72 bytes of
    /// additional information and 148 of private data.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: ConnId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        let private_data = padded(private_data, 0)?;
        let field = padded(info, 0)?;
        let found = self.conns.get_mut(conn.0).filter(|conn| !conn.released);
        let found = found.ok_or(AnswerError::unknown(conn))?;
        if !matches!(found.state, State::ReqRcvd | State::RepRcvd) {
            return Err(AnswerError::State { call: "reject", state: found.state.name() });
        }
        let rej =
            Rej { info: field, info_len: info.len() as u8, private_data, ..found.rej(reason) };
        self.refuse(now, conn.0, rej);
        Ok(())
    }

    /// Ends an established connection: [`Event::Disconnected`] follows when the peer has agreed or
    /// cannot be reached. Of one that has ended or is ending nothing is asked. At most 220 bytes
    /// of private data.
    pub fn disconnect(
        &mut self,
        now: Instant,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), AnswerError> {
        let private_data = padded(private_data, 0)?;
        let found = self.conns.get_mut(conn.0).filter(|conn| !conn.released);
        match found.ok_or(AnswerError::unknown(conn))?.state {
            State::Established => {
                self.send_dreq(now, conn.0, private_data);
                Ok(())
            }
            State::DreqSent(_) | State::TimeWait => Ok(()),
            state => Err(AnswerError::State { call: "disconnect", state: state.name() }),
        }
    }

    /// The program wants to hear no more of this connection. What has begun is taken back, what is
    /// established is disconnected, what has ended goes on resting. An unknown one is no error:
    /// it may have ended a moment ago. Events that wait already are not taken back.
    pub fn release(&mut self, now: Instant, conn: ConnId) {
        let Some(found) = self.conns.get_mut(conn.0) else { return };
        if std::mem::replace(&mut found.released, true) {
            return;
        }
        match found.state {
            State::ReqSent(_) => {
                let mad = found.timeout_rej().emit(found.tid);
                self.out.push(found.route, mad);
                self.remove(conn.0);
            }
            State::ReqRcvd | State::RepRcvd | State::RepSent(_) => {
                let rej = found.rej(RejReason::ConsumerReject);
                self.refuse(now, conn.0, rej);
            }
            State::Established => self.send_dreq(now, conn.0, [0; Dreq::PRIVATE_DATA]),
            State::DreqSent(_) | State::TimeWait | State::Rejected => {}
        }
    }

    /// The peer is known to be gone, by other signs than its silence: forgets the connection, without a word to
    /// anybody.
    pub fn abandon(&mut self, conn: ConnId) {
        self.remove(conn.0);
    }

    /// The peer of an established connection is known to be gone, by other signs than its silence: the connection has ended
    /// and rests, without a word to anybody. False: it was not established, or rests already.
    pub fn lose(&mut self, now: Instant, conn: ConnId) -> bool {
        let found = self.conns.get_mut(conn.0);
        let lost =
            found.is_some_and(|conn| matches!(conn.state, State::Established | State::DreqSent(_)));
        if lost {
            self.enter_timewait(now, conn.0, Disconnect::Lost);
        }
        lost
    }

    /// Sends a REJ, and if the peer may yet ask again, keeps it for then.
    fn refuse(&mut self, now: Instant, id: u32, rej: Rej) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let mad = Message::Rej(rej).emit(conn.tid);
        self.out.push(conn.route, mad);
        // To a REP that comes again the answer is that there is no such connection.
        if conn.is_active || self.lingering >= self.config.max_lingering {
            self.remove(id);
            return;
        }
        conn.released = true;
        conn.sent = Some(Box::new(mad));
        conn.set_deadline(&mut self.deadlines, Some(now.after(self.config.linger)));
        self.lingering += 1;
        self.leave_unanswered(id, State::Rejected);
    }

    pub(super) fn on_rej(&mut self, now: Instant, from: &Origin, rej: &Rej) {
        let mut id = rej.remote_comm_id;
        if id == 0 && rej.reason == RejReason::Timeout {
            // The peer gives up a REQ whose answer it never saw, and so has no ID of ours.
            let guid = rej.info().first_chunk().map(|guid| u64::from_be_bytes(*guid));
            let gid = from.path.src;
            let found = guid.and_then(|guid| {
                self.conns.by_remote_id(&RemoteKey { gid, guid, number: rej.local_comm_id })
            });
            match found {
                Some(found) => id = found,
                None => return self.count_miss(Miss::Unknown),
            }
        }
        let conn = match self.conns.find(&from.path, from.tid, id, rej.local_comm_id) {
            Ok(conn) => conn,
            Err(miss) => return self.count_miss(miss),
        };
        match conn.state {
            State::ReqSent(_) | State::RepRcvd | State::ReqRcvd | State::RepSent(_) => {
                let (is_asked, released) = (conn.state == State::ReqRcvd, conn.released);
                // What the program has not heard of it need not hear the end of.
                let unheard = released || (is_asked && self.withdraw_request(id));
                if !unheard {
                    let rej = Box::new(*rej);
                    self.events.push_back(Event::Rejected { conn: ConnId(id), rej });
                }
                self.remove(id);
            }
            State::Established | State::DreqSent(_) => {
                self.enter_timewait(now, id, Disconnect::Rejected(rej.reason));
            }
            State::TimeWait | State::Rejected => self.counters.duplicates += 1,
        }
    }

    /// Takes back the event of a request. Without this a peer that asks and withdraws for ever would
    /// fill the queue of a program that is slow to look, backlog or not.
    pub(super) fn withdraw_request(&mut self, id: u32) -> bool {
        let is_it = |event: &Event| matches!(event, Event::Request(asked) if asked.conn.0 == id);
        // Requests are of late, so from the end.
        let place = self.events.iter().rposition(is_it);
        place.and_then(|place| self.events.remove(place)).is_some()
    }

    pub(super) fn on_dreq(&mut self, now: Instant, from: &Origin, dreq: &Dreq) {
        let id = dreq.remote_comm_id;
        let conn = match self.conns.find(&from.path, from.tid, id, dreq.local_comm_id) {
            Ok(conn) => conn,
            Err(Miss::Unknown) => {
                // What does not exist is disconnected; the peer need not ask again.
                self.counters.unknown_id += 1;
                let mad = drep(dreq.remote_comm_id, dreq.local_comm_id).emit(from.tid);
                self.out.push(from.route(), mad);
                return;
            }
            Err(miss) => return self.count_miss(miss),
        };
        if dreq.remote_qpn != conn.qpn {
            self.counters.wrong_peer += 1;
            return;
        }
        match conn.state {
            State::RepSent(_) | State::Established | State::DreqSent(_) => {}
            State::TimeWait | State::Rejected => self.counters.duplicates += 1,
            State::ReqSent(_) | State::RepRcvd | State::ReqRcvd => {
                self.counters.unexpected += 1;
                return;
            }
        }
        let was_ready = !matches!(conn.state, State::RepSent(_));
        let mad = drep(conn.id, conn.remote_id).emit(from.tid);
        self.out.push(conn.route, mad);
        if !was_ready {
            // Who disconnects was connected: an RTU has been sent and lost.
            self.peer_is_ready(id, [0; Rtu::PRIVATE_DATA]);
        }
        let by = Disconnect::Peer(Box::new(dreq.private_data));
        self.enter_timewait(now, id, by);
    }

    pub(super) fn on_drep(&mut self, now: Instant, from: &Origin, drep: &Drep) {
        let id = drep.remote_comm_id;
        let conn = match self.conns.find(&from.path, from.tid, id, drep.local_comm_id) {
            Ok(conn) => conn,
            Err(miss) => return self.count_miss(miss),
        };
        match conn.state {
            State::DreqSent(_) => {
                let by = Disconnect::Confirmed(Box::new(drep.private_data));
                self.enter_timewait(now, id, by);
            }
            State::TimeWait => self.counters.duplicates += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    /// Alternate paths are not supported, which is an answer (IBA 12.8).
    pub(super) fn on_lap(&mut self, from: &Origin, lap: &Lap) {
        let found = self.conns.find(&from.path, from.tid, lap.remote_comm_id, lap.local_comm_id);
        let status = match found.map(|conn| conn.state) {
            Ok(State::Established) => ApStatus::UNSUPPORTED,
            Ok(_) => {
                self.counters.unexpected += 1;
                return;
            }
            Err(Miss::Unknown) => {
                self.counters.unknown_id += 1;
                ApStatus::INVALID_COMM_ID
            }
            Err(miss) => return self.count_miss(miss),
        };
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            info_len: 0,
            status,
            info: [0; Apr::INFO],
            private_data: [0; Apr::PRIVATE_DATA],
        };
        self.out.push(from.route(), Message::Apr(apr).emit(from.tid));
    }

    /// Ends what a peer has forgotten.
    pub(super) fn end_stale(&mut self, now: Instant, id: u32) {
        if self.conns.get_mut(id).is_some_and(|conn| conn.state == State::Established) {
            self.send_dreq(now, id, [0; Dreq::PRIVATE_DATA]);
        }
    }

    fn send_dreq(&mut self, now: Instant, id: u32, private_data: [u8; Dreq::PRIVATE_DATA]) {
        let tid = self.ids.tid(id);
        self.disinherit(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let dreq = Dreq {
            local_comm_id: conn.id,
            remote_comm_id: conn.remote_id,
            remote_qpn: conn.remote_qpn,
            private_data,
        };
        let mad = Message::Dreq(dreq).emit(tid);
        conn.state = State::DreqSent(Resend::new(conn.max_retries));
        conn.sent = Some(Box::new(mad));
        conn.set_deadline(&mut self.deadlines, Some(now.after(conn.timeout)));
        self.out.push(conn.route, mad);
    }

    /// The connection is over, and rests, unless it does or was never made.
    pub(super) fn enter_timewait(&mut self, now: Instant, id: u32, by: Disconnect) {
        self.disinherit(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        if matches!(conn.state, State::TimeWait | State::Rejected) {
            return;
        }
        conn.state = State::TimeWait;
        conn.sent = None;
        conn.set_deadline(&mut self.deadlines, Some(now.after(conn.timewait)));
        if !conn.released {
            self.events.push_back(Event::Disconnected { conn: ConnId(id), by });
        }
    }
}

fn drep(id: u32, remote_id: u32) -> Message {
    Message::Drep(Drep {
        local_comm_id: id,
        remote_comm_id: remote_id,
        private_data: [0; Drep::PRIVATE_DATA],
    })
}
