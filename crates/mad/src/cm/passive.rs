//! The side that is asked for a connection.

use ironverbs_wire::mad::cm::{
    IpHeader, Message, Rej, RejReason, Rep, Req, Responded, Rtu, ServiceId, Transport,
};
use ironverbs_wire::{Gid, Mtu, Path};

use super::conn::{Conn, RemoteKey, Resend, State};
use super::listeners::Asked;
use super::{Cm, ConnId, ListenerId, Origin};
use crate::error::padded;
use crate::time::of_peer;
use crate::{Accept, AnswerError, Event, Instant, ListenError, LocalAddr, Request};

impl Cm {
    /// Takes requests for a service, REQs and SIDR_REQs. Up to `backlog` of them may wait for the
    /// program at a time; more are dropped, so that their senders try again. As many again are taken from
    /// senders that have proven to have the address they send from, an eighth of them from each.
    pub fn listen(
        &mut self,
        service_id: ServiceId,
        addr: LocalAddr,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        self.listeners.add(service_id, addr, backlog)
    }

    /// Takes no more requests. Those that wait for an answer go on waiting. False if there is no
    /// such listener.
    pub fn unlisten(&mut self, listener: ListenerId) -> bool {
        self.listeners.remove(listener)
    }

    /// The program knows of this request, which counts no longer against the backlog. Answering
    /// it has the same effect.
    pub fn claim(&mut self, conn: ConnId) {
        if let Some(conn) = self.conns.get_mut(conn.0)
            && let Some(listener) = conn.counted.take()
        {
            self.listeners.uncount(listener, Asked::Conn(conn.id));
        }
    }

    /// After [`Event::Request`]: the program needs longer. The peer waits another
    /// 4.096 us * 2^`service_timeout`, once. Without this call it is told to wait when it asks
    /// again.
    pub fn ask_patience(&mut self, conn: ConnId, service_timeout: u8) -> Result<(), AnswerError> {
        let found = self.conns.get_mut(conn.0).filter(|conn| !conn.released);
        let message = match found.ok_or(AnswerError::unknown(conn))?.state {
            State::ReqRcvd => Responded::Req,
            State::RepRcvd => Responded::Rep,
            state => return Err(AnswerError::State { call: "ask_patience", state: state.name() }),
        };
        self.send_mra(conn.0, message, service_timeout.min(31));
        Ok(())
    }

    /// After [`Event::Request`]: accepts the connection, whose QP must be able to receive.
    pub fn accept(
        &mut self,
        now: Instant,
        conn: ConnId,
        accept: &Accept,
    ) -> Result<(), AnswerError> {
        let private_data = padded(accept.private_data, 0)?;
        let found = self.conns.get_mut(conn.0).filter(|conn| !conn.released);
        let found = found.ok_or(AnswerError::unknown(conn))?;
        if found.state != State::ReqRcvd {
            return Err(AnswerError::State { call: "accept", state: found.state.name() });
        }
        let is_xrc = found.transport == Transport::Xrc;
        let rep = Rep {
            local_comm_id: found.id,
            remote_comm_id: found.remote_id,
            local_qkey: 0,
            local_qpn: if is_xrc { 0 } else { accept.qpn },
            local_eecn: if is_xrc { accept.qpn } else { 0 },
            starting_psn: accept.starting_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: if is_xrc { 0 } else { accept.initiator_depth },
            target_ack_delay: accept.target_ack_delay.min(31),
            failover_accepted: 0,
            end_to_end_flow_control: accept.flow_control && !is_xrc,
            rnr_retry_count: accept.rnr_retry_count.min(7),
            srq: accept.srq || is_xrc,
            ece: accept.ece,
            local_ca_guid: accept.ca_guid,
            private_data,
        };
        let mad = Message::Rep(rep).emit(found.tid);
        found.ca_guid = accept.ca_guid;
        found.qpn = accept.qpn & 0xff_ffff;
        found.sent = Some(Box::new(mad));
        found.set_deadline(&mut self.deadlines, Some(now.after(found.timeout)));
        self.out.push(found.route, mad);
        let resend = Resend::new(found.max_retries);
        self.leave_unanswered(conn.0, State::RepSent(resend));
        Ok(())
    }

    /// Data has arrived at the QP of a connection that waits for its peer to be ready: it is, and
    /// the message that says so is late or lost (IBA 12.9.7, IBV_EVENT_COMM_EST).
    pub fn communication_established(&mut self, conn: ConnId) {
        if let Some(found) = self.conns.get_mut(conn.0)
            && matches!(found.state, State::RepSent(_))
        {
            self.peer_is_ready(conn.0, [0; Rtu::PRIVATE_DATA]);
        }
    }

    pub(super) fn on_req(&mut self, now: Instant, from: &Origin, req: &Req) {
        let key = |number| RemoteKey { gid: from.path.src, guid: req.local_ca_guid, number };
        if let Some(id) = self.conns.by_remote_id(&key(req.local_comm_id)) {
            return self.on_known_req(now, id, from, req);
        }
        let Some(listener) =
            self.listeners.find(req.service_id, asked(from, req.service_id, &req.private_data))
        else {
            return self.refuse_req(from, req, RejReason::InvalidServiceId);
        };
        let (mtu, ip) = match checked(from, req) {
            Ok(checked) => checked,
            Err(reason) => return self.refuse_req(from, req, reason),
        };
        if let Some(old) = self.conns.by_remote_qpn(&key(req.local_qpn)) {
            self.refuse_req(from, req, RejReason::StaleConnection);
            return self.end_stale(now, old);
        }
        if !self.admit(now, from, listener) {
            return;
        }
        let id = self.next_id();
        let path = Path {
            traffic_class: req.primary.traffic_class,
            hop_limit: req.primary.hop_limit,
            flow_label: req.primary.flow_label,
            ..from.route().path
        };
        self.unanswered.add(from.path.src);
        self.half_open.add(from.path.src);
        self.conns.insert(Conn {
            id,
            remote_id: req.local_comm_id,
            state: State::ReqRcvd,
            released: false,
            is_active: false,
            route: from.route(),
            tid: from.tid,
            transport: req.transport,
            ca_guid: 0,
            remote_guid: req.local_ca_guid,
            qpn: 0,
            remote_qpn: req.local_qpn,
            timeout: of_peer(req.local_cm_response_timeout),
            max_retries: req.max_cm_retries,
            timewait: of_peer(req.primary.ack_timeout),
            sent: None,
            counted: Some(listener),
            deadline: None,
        });
        self.conns.name(id);
        self.listeners.count(listener, Asked::Conn(id), from.path.src);
        self.events.push_back(Event::Request(Box::new(Request {
            conn: ConnId(id),
            listener,
            service_id: req.service_id,
            ip,
            path,
            pkey: req.pkey,
            remote_ca_guid: req.local_ca_guid,
            transport: req.transport,
            remote_qpn: req.local_qpn,
            starting_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            ece: req.ece,
            mtu,
            packet_rate: req.primary.packet_rate,
            sl: req.primary.sl,
            ack_timeout: req.primary.ack_timeout,
            field: req.private_data,
        })));
    }

    /// A REQ from a peer with a communication ID that it has used already.
    fn on_known_req(&mut self, now: Instant, id: u32, from: &Origin, req: &Req) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.is_active || conn.tid != from.tid || conn.remote_qpn != req.local_qpn {
            // The peer has forgotten us and begun anew.
            self.refuse_req(from, req, RejReason::StaleConnection);
            return self.end_stale(now, id);
        }
        self.counters.duplicates += 1;
        match conn.state {
            State::ReqRcvd => {
                self.send_mra(id, Responded::Req, self.config.mra_service_timeout);
            }
            State::RepSent(_) | State::Rejected => {
                if let Some(answer) = &conn.sent {
                    self.out.push(conn.route, **answer);
                }
            }
            _ => {}
        }
    }

    fn refuse_req(&mut self, from: &Origin, req: &Req, reason: RejReason) {
        self.counters.refused += 1;
        let mut rej = Rej {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            message: Responded::Req,
            info_len: 0,
            reason,
            info: [0; Rej::INFO],
            private_data: [0; Rej::PRIVATE_DATA],
        };
        // What would do instead (IBA 12.6.7.2).
        let info: &[u8] = match reason {
            RejReason::PrimaryRemoteGid => &from.path.dst.0,
            RejReason::InvalidMtu => &[(Mtu::M4096 as u8) << 4],
            _ => &[],
        };
        rej.info[..info.len()].copy_from_slice(info);
        rej.info_len = info.len() as u8;
        self.out.push(from.route(), Message::Rej(rej).emit(from.tid));
    }

    pub(super) fn on_rtu(&mut self, from: &Origin, rtu: &Rtu) {
        let id = rtu.remote_comm_id;
        let conn = match self.conns.find(&from.path, from.tid, id, rtu.local_comm_id) {
            Ok(conn) => conn,
            Err(miss) => return self.count_miss(miss),
        };
        match conn.state {
            State::RepSent(_) => self.peer_is_ready(id, rtu.private_data),
            State::Rejected => {
                // The REP and the REJ that took it back have crossed this.
                if let Some(rej) = &conn.sent {
                    self.out.push(conn.route, **rej);
                }
            }
            State::Established | State::DreqSent(_) | State::TimeWait if !conn.is_active => {
                self.counters.duplicates += 1;
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// A connection that was accepted is established.
    pub(super) fn peer_is_ready(&mut self, id: u32, private_data: [u8; Rtu::PRIVATE_DATA]) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.state.is_half_open() {
            self.half_open.remove(conn.route.path.dst);
        }
        conn.state = State::Established;
        conn.sent = None;
        conn.set_deadline(&mut self.deadlines, None);
        if !conn.released {
            let private_data = Box::new(private_data);
            self.events.push_back(Event::Established { conn: ConnId(id), private_data });
        }
        self.bequeath(id);
    }

    /// Moves a connection on; one that was a request is none any more.
    pub(super) fn leave_unanswered(&mut self, id: u32, state: State) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.state == State::ReqRcvd {
            self.unanswered.remove(conn.route.path.dst);
            if let Some(listener) = conn.counted.take() {
                self.listeners.uncount(listener, Asked::Conn(conn.id));
            }
        }
        if conn.state.is_half_open() && !state.is_half_open() {
            self.half_open.remove(conn.route.path.dst);
        }
        conn.state = state;
    }

    /// The same for a connection that is out of the table.
    pub(super) fn left_unanswered(&mut self, conn: &mut Conn) {
        if conn.state == State::ReqRcvd {
            self.unanswered.remove(conn.route.path.dst);
            if let Some(listener) = conn.counted.take() {
                self.listeners.uncount(listener, Asked::Conn(conn.id));
            }
        }
        if conn.state.is_half_open() {
            self.half_open.remove(conn.route.path.dst);
        }
    }

    /// Whether there is room for one more request. If there is none, who asks is asked for a proof of its address; one
    /// that has given it takes the place of another.
    pub(super) fn admit(&mut self, now: Instant, from: &Origin, listener: ListenerId) -> bool {
        let proven = self.is_proven(now, &from.path.src).then_some(from.path.src);
        let has_room = !self.is_full()
            && self.unanswered.has_room(self.config.max_pending, proven)
            && self.half_open.has_room(self.config.max_half_open, proven);
        if has_room
            && (self.listeners.has_room(listener)
                || proven.is_some_and(|by| self.displace(now, listener, by)))
        {
            return true;
        }
        self.counters.over_limit += 1;
        self.ask_for_proof(now, from);
        false
    }

    /// Has a request make room that the program has not looked at. Its sender will ask again.
    fn displace(&mut self, now: Instant, listener: ListenerId, by: Gid) -> bool {
        let proven = &self.proven;
        let found = self.listeners.displaced(listener, by, |gid| proven.has(now, gid));
        let Some(asked) = found else { return false };
        self.listeners.uncount(listener, asked);
        self.counters.displaced += 1;
        match asked {
            Asked::Conn(id) if self.withdraw_request(id) => drop(self.remove(id)),
            Asked::Conn(id) => self.events.push_back(Event::Displaced { conn: ConnId(id) }),
            Asked::Sidr(id) => self.displace_sidr(id),
        }
        true
    }
}

/// What a REQ must have right before a program is asked.
fn checked(from: &Origin, req: &Req) -> Result<(Mtu, Option<IpHeader>), RejReason> {
    if matches!(req.transport, Transport::Rd | Transport::Extended(_)) {
        return Err(RejReason::InvalidTransportServiceType);
    }
    // QP0 and QP1 are no one's to connect, and 0 as an ID means none.
    if req.local_qpn <= 1 || req.local_comm_id == 0 {
        return Err(RejReason::Unsupported);
    }
    // On RoCE a GID is an IP address, so a path that is not the packet's would connect a QP to a
    // third party or give a program a wrong idea of who its peer is.
    if req.primary.remote_gid != from.path.dst || req.primary.local_gid != from.path.src {
        return Err(RejReason::PrimaryRemoteGid);
    }
    let mtu = Mtu::try_from(req.mtu).map_err(|_| RejReason::InvalidMtu)?;
    Ok((mtu, addresses(from, req.service_id, &req.private_data)?))
}

/// The addresses in front of the private data, if the service has them; they must be the packet's.
pub(super) fn addresses(
    from: &Origin,
    service_id: ServiceId,
    private_data: &[u8],
) -> Result<Option<IpHeader>, RejReason> {
    if service_id.port().is_none() {
        return Ok(None);
    }
    let header = private_data.first_chunk().ok_or(RejReason::Unsupported)?;
    // Who names ports by GIDs (AF_IB) has the program's data there.
    let Ok(header) = IpHeader::parse(header) else { return Ok(None) };
    // On InfiniBand nothing in the packet tells IP addresses; whose they are the device knows.
    if from.path.ib.is_some() {
        return Ok(Some(header));
    }
    if header.src != from.path.src.to_ip() || header.dst != from.path.dst.to_ip() {
        return Err(RejReason::PrimaryRemoteGid);
    }
    Ok(Some(header))
}

/// The address that a request is for, as listeners have it: the packet's, or on InfiniBand, where that is no IP address,
/// the one that it names.
pub(super) fn asked(from: &Origin, service_id: ServiceId, private_data: &[u8]) -> Gid {
    let named = || {
        let header = service_id.port().and_then(|_| private_data.first_chunk())?;
        IpHeader::parse(header).ok().map(|header| Gid::from_ip(header.dst))
    };
    from.path.ib.and_then(|_| named()).unwrap_or(from.path.dst)
}
