//! The side that asks for a connection.

use ironverbs_wire::mad::cm::{
    Message, Mra, Rej, RejReason, Rep, Req, ReqPath, Responded, Rtu, Transport,
};

use super::conn::{Conn, Miss, RemoteKey, Resend, State};
use super::outbox::Route;
use super::{Cm, ConnId, Origin};
use crate::error::padded;
use crate::time::{MIN_TIMEOUT, of_peer};
use crate::{AnswerError, Connect, ConnectError, Event, Failure, Instant, Reply, exponential};

/// The permissive LID: a port on Ethernet has none.
const NO_LID: u16 = 0xffff;

impl Cm {
    /// Asks a peer for a connection. Ends in [`Event::Reply`], [`Event::Rejected`] or
    /// [`Event::Failed`].
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<ConnId, ConnectError> {
        let header = connect.ip.map(|ip| ip.emit());
        let header = header.as_ref().map_or(&[][..], |header| header);
        let mut private_data = padded(connect.private_data, header.len())?;
        private_data[..header.len()].copy_from_slice(header);
        if self.is_full() {
            return Err(ConnectError::Limit { max: self.config.max_connections });
        }
        let id = self.next_id();
        let tid = self.ids.tid(id);
        let mad = Message::Req(req(id, connect, private_data)).emit(tid);
        let route = Route { path: connect.path, pkey: connect.pkey };
        let timeout = exponential(connect.remote_cm_response_timeout)
            .saturating_add(2 * exponential(connect.packet_life_time))
            .max(MIN_TIMEOUT);
        let max_retries = connect.max_cm_retries.min(15);
        let mut conn = Conn {
            id,
            remote_id: 0,
            state: State::ReqSent(Resend::new(max_retries)),
            released: false,
            is_active: true,
            route,
            tid,
            transport: connect.transport,
            ca_guid: connect.ca_guid,
            remote_guid: 0,
            qpn: connect.qpn & 0xff_ffff,
            remote_qpn: 0,
            timeout,
            max_retries,
            timewait: of_peer(connect.ack_timeout),
            sent: Some(Box::new(mad)),
            counted: None,
            deadline: None,
        };
        conn.set_deadline(&mut self.deadlines, Some(now.after(timeout)));
        self.conns.insert(conn);
        self.out.push(route, mad);
        Ok(ConnId(id))
    }

    /// After [`Event::Reply`]: the local QP is ready, the connection established. At most 224
    /// bytes of private data, which the peer may never see.
    pub fn establish(&mut self, conn: ConnId, private_data: &[u8]) -> Result<(), AnswerError> {
        let private_data = padded(private_data, 0)?;
        let found = self.conns.get_mut(conn.0).filter(|conn| !conn.released);
        let found = found.ok_or(AnswerError::unknown(conn))?;
        if found.state != State::RepRcvd {
            return Err(AnswerError::State { call: "establish", state: found.state.name() });
        }
        let rtu = Rtu { local_comm_id: found.id, remote_comm_id: found.remote_id, private_data };
        let mad = Message::Rtu(rtu).emit(found.tid);
        found.state = State::Established;
        found.sent = Some(Box::new(mad));
        self.out.push(found.route, mad);
        self.bequeath(conn.0);
        Ok(())
    }

    pub(super) fn on_rep(&mut self, now: Instant, from: &Origin, rep: &Rep) {
        let id = rep.remote_comm_id;
        let conn = match self.conns.find(&from.path, from.tid, id, rep.local_comm_id) {
            Ok(conn) => conn,
            Err(Miss::Unknown) => {
                // The peer waits for an RTU that nobody will send.
                self.counters.unknown_id += 1;
                self.refuse_rep(from, rep, RejReason::InvalidCommId);
                return;
            }
            Err(Miss::WrongPeer) => {
                self.counters.wrong_peer += 1;
                return;
            }
        };
        match conn.state {
            State::ReqSent(_) => self.on_first_rep(now, id, from, rep),
            State::RepRcvd => {
                self.counters.duplicates += 1;
                self.send_mra(id, Responded::Rep, self.config.mra_service_timeout);
            }
            State::Established if conn.is_active => {
                self.counters.duplicates += 1;
                if let Some(rtu) = &conn.sent {
                    self.out.push(conn.route, **rtu);
                }
            }
            State::DreqSent(_) | State::TimeWait if conn.is_active => self.counters.duplicates += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    fn on_first_rep(&mut self, now: Instant, id: u32, from: &Origin, rep: &Rep) {
        let is_xrc = self.conns.get_mut(id).is_some_and(|conn| conn.transport == Transport::Xrc);
        let remote_qpn = if is_xrc { rep.local_eecn } else { rep.local_qpn };
        if rep.local_comm_id == 0 || remote_qpn <= 1 {
            self.counters.malformed += 1;
            return;
        }
        let guid = rep.local_ca_guid;
        let key = |number| RemoteKey { gid: from.path.src, guid, number };
        if self.conns.by_remote_id(&key(rep.local_comm_id)).is_some() {
            self.counters.wrong_peer += 1;
            return;
        }
        if let Some(old) = self.conns.by_remote_qpn(&key(remote_qpn)) {
            self.counters.refused += 1;
            self.refuse_rep(from, rep, RejReason::StaleConnection);
            self.end_stale(now, old);
            if self.remove(id).is_some_and(|conn| !conn.released) {
                let failure = Failure::StaleReply;
                self.events.push_back(Event::Failed { conn: ConnId(id), failure });
            }
            return;
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.state = State::RepRcvd;
        conn.remote_id = rep.local_comm_id;
        conn.remote_guid = guid;
        conn.remote_qpn = remote_qpn;
        conn.sent = None;
        conn.set_deadline(&mut self.deadlines, None);
        self.conns.name(id);
        self.events.push_back(Event::Reply(Box::new(Reply {
            conn: ConnId(id),
            remote_ca_guid: guid,
            remote_qpn,
            starting_psn: rep.starting_psn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            target_ack_delay: rep.target_ack_delay,
            flow_control: rep.end_to_end_flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ece: rep.ece,
            private_data: rep.private_data,
        })));
    }

    fn refuse_rep(&mut self, from: &Origin, rep: &Rep, reason: RejReason) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            message: Responded::Rep,
            info_len: 0,
            reason,
            info: [0; Rej::INFO],
            private_data: [0; Rej::PRIVATE_DATA],
        };
        self.out.push(from.route(), Message::Rej(rej).emit(from.tid));
    }

    /// The peer needs more time for a REQ or a REP.
    pub(super) fn on_mra(&mut self, now: Instant, from: &Origin, mra: &Mra) {
        let found = self.conns.find(&from.path, from.tid, mra.remote_comm_id, mra.local_comm_id);
        let conn = match found {
            Ok(conn) => conn,
            Err(miss) => return self.count_miss(miss),
        };
        let resend = match (&mut conn.state, mra.message) {
            (State::ReqSent(resend), Responded::Req) | (State::RepSent(resend), Responded::Rep) => {
                resend
            }
            _ => {
                self.counters.unexpected += 1;
                return;
            }
        };
        if std::mem::replace(&mut resend.extended, true) {
            self.counters.duplicates += 1;
            return;
        }
        resend.refusal = None;
        let wait = exponential(mra.service_timeout).saturating_add(conn.timeout);
        conn.set_deadline(&mut self.deadlines, Some(now.after(wait)));
    }

    /// Tells the peer to wait longer for the answer to what it sent last.
    pub(super) fn send_mra(&mut self, id: u32, message: Responded, service_timeout: u8) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let mra = Mra {
            local_comm_id: conn.id,
            remote_comm_id: conn.remote_id,
            message,
            service_timeout,
            private_data: [0; Mra::PRIVATE_DATA],
        };
        self.out.push(conn.route, Message::Mra(mra).emit(conn.tid));
    }

    pub(super) fn count_miss(&mut self, miss: Miss) {
        match miss {
            Miss::Unknown => self.counters.unknown_id += 1,
            Miss::WrongPeer => self.counters.wrong_peer += 1,
        }
    }
}

fn req(id: u32, connect: &Connect, private_data: [u8; Req::PRIVATE_DATA]) -> Req {
    let for_peers_sending = |value: u8| {
        if connect.transport == Transport::Xrc { 0 } else { value }
    };
    Req {
        local_comm_id: id,
        service_id: connect.service_id,
        local_ca_guid: connect.ca_guid,
        local_qkey: 0,
        local_qpn: connect.qpn,
        responder_resources: for_peers_sending(connect.responder_resources),
        local_eecn: 0,
        initiator_depth: connect.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: connect.remote_cm_response_timeout.min(31),
        transport: connect.transport,
        end_to_end_flow_control: connect.flow_control,
        starting_psn: connect.starting_psn,
        local_cm_response_timeout: connect.local_cm_response_timeout.min(31),
        retry_count: for_peers_sending(connect.retry_count.min(7)),
        pkey: connect.pkey,
        mtu: connect.mtu as u8,
        rdc_exists: false,
        rnr_retry_count: for_peers_sending(connect.rnr_retry_count.min(7)),
        max_cm_retries: connect.max_cm_retries.min(15),
        srq: connect.srq && connect.transport != Transport::Xrc,
        ece: connect.ece,
        primary: ReqPath {
            local_lid: connect.path.ib.map_or(NO_LID, |route| route.slid),
            remote_lid: connect.path.ib.map_or(NO_LID, |route| route.dlid),
            local_gid: connect.path.src,
            remote_gid: connect.path.dst,
            flow_label: connect.path.flow_label,
            packet_rate: connect.packet_rate,
            traffic_class: connect.path.traffic_class,
            hop_limit: connect.path.hop_limit,
            sl: 0,
            subnet_local: connect.path.hop_limit <= 1,
            ack_timeout: connect.ack_timeout.min(31),
        },
        alternate: ReqPath::default(),
        private_data,
    }
}
