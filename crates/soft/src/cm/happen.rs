//! What the protocol tells, as events of ids.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Weak};

use ironverbs_mad::{
    ConnId, Disconnect, Event, Failure, ListenerId, Reply, Request, SidrReply, SidrRequest,
};
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::mad::cm::{IpHeader, RejReason, SidrStatus, Transport};
use ironverbs_wire::{Gid, Path};

use super::address::{self, Place};
use super::connect::{Link, REFUSED, SILENT};
use super::event::{Queued, Subject};
use super::id::{Call, Phase};
use super::manager::Session;
use super::resolve::RATE;
use super::{CmEventKind, CmId, ConnParam, Ece, EventParam, PathRecord, Route, UdParam};
use crate::registry::{self, Tenancy};

impl Session<'_> {
    pub(super) fn happened(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.requested(&request),
            Event::SidrRequest(request) => self.sidr_requested(&request),
            Event::Displaced { conn } => {
                let id = self.core.conns.get(&conn).cloned();
                if self.takes_back(id.as_ref()) {
                    self.cm().abandon(conn);
                    self.core.conns.remove(&conn);
                }
            }
            Event::SidrDisplaced { sidr } => {
                let id = self.core.sidrs.get(&sidr).cloned();
                if self.takes_back(id.as_ref()) {
                    self.cm().sidr_abandon(sidr);
                    self.core.sidrs.remove(&sidr);
                }
            }
            Event::Reply(reply) => self.replied(&reply),
            Event::SidrReply(reply) => self.sidr_replied(&reply),
            Event::Established { conn, private_data } => {
                let param = conn_param(&private_data[..]);
                self.changed(conn, Phase::Connected, CmEventKind::Established, 0, param);
            }
            Event::Rejected { conn, rej } => {
                let (kind, status) = (CmEventKind::Rejected, rej.reason.to_u16().into());
                self.ended(conn, kind, status, conn_param(&rej.private_data));
            }
            Event::Failed { conn, failure } => {
                let (kind, status) = match failure {
                    Failure::NoReply | Failure::NotReady => (CmEventKind::Unreachable, SILENT),
                    Failure::Refused => (CmEventKind::Unreachable, REFUSED),
                    Failure::StaleReply => {
                        (CmEventKind::Rejected, RejReason::StaleConnection.to_u16().into())
                    }
                };
                self.ended(conn, kind, status, EventParam::None);
            }
            Event::Disconnected { conn, by } => {
                let (status, param) = match by {
                    Disconnect::Peer(data) => (0, conn_param(&data[..])),
                    Disconnect::Confirmed(data) => (0, conn_param(&data[..])),
                    Disconnect::NoAnswer => (SILENT, EventParam::None),
                    Disconnect::Rejected(_) | Disconnect::Lost => (0, EventParam::None),
                };
                let kind = CmEventKind::Disconnected;
                self.changed(conn, Phase::Disconnected, kind, status, param);
            }
            Event::TimewaitExit { conn } => {
                self.ended(conn, CmEventKind::TimewaitExit, 0, EventParam::None);
            }
            Event::SidrFailed { sidr, failure } => {
                let id = self.core.sidrs.remove(&sidr);
                if let Some(id) = self.upgrade(id.as_ref()) {
                    let status = if failure == Failure::Refused { REFUSED } else { SILENT };
                    id.over(CmEventKind::Unreachable, status, EventParam::None);
                }
            }
        }
    }

    /// Takes a request back that the program has not read; false if it has.
    fn takes_back(&mut self, id: Option<&Weak<CmId>>) -> bool {
        let Some(id) = self.upgrade(id) else { return false };
        let unread = id.channel().take_request(&id);
        !unread.is_empty()
    }

    /// A connection has moved on.
    fn changed(
        &mut self,
        conn: ConnId,
        phase: Phase,
        kind: CmEventKind,
        status: i32,
        param: EventParam,
    ) {
        let id = self.core.conns.get(&conn).cloned();
        let Some(id) = self.upgrade(id.as_ref()) else { return self.release(conn) };
        let before = std::mem::replace(&mut id.state.lock().phase, phase);
        if before != phase {
            id.raise(kind, status, param);
        }
    }

    /// A connection is no more.
    fn ended(&mut self, conn: ConnId, kind: CmEventKind, status: i32, param: EventParam) {
        let id = self.core.conns.remove(&conn);
        if let Some(id) = self.upgrade(id.as_ref()) {
            id.over(kind, status, param);
        }
    }

    fn release(&mut self, conn: ConnId) {
        let now = self.now();
        self.cm().release(now, conn);
        self.core.conns.remove(&conn);
    }

    fn requested(&mut self, request: &Request) {
        if let Err(reason) = self.admit(request) {
            let now = self.now();
            // It may have been taken back.
            let _ = self.cm().reject(now, request.conn, reason, &[], &[]);
        }
    }

    fn admit(&mut self, request: &Request) -> Result<(), RejReason> {
        let (listener, place) = self.listener(request.listener, &request.path)?;
        may_ask(&listener, request.ip.as_ref())?;
        let qp_type = match request.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Xrc => QpType::XrcRecv,
            _ => return Err(RejReason::InvalidTransportServiceType),
        };
        if listener.qp_type() != qp_type {
            return Err(RejReason::InvalidTransportServiceType);
        }
        if request.mtu > place.device.link().1 {
            return Err(RejReason::InvalidMtu);
        }
        let psn = self.random_psn();
        let process = self.process(&request.path.dst, request.remote_qpn);
        let ece = request.ece;
        let id = CmId::new_child(&listener, qp_type);
        {
            let mut state = id.state.lock();
            let path = PathRecord {
                dgid: request.path.dst,
                sgid: request.path.src,
                dlid: request.path.ib.map_or(0, |route| route.dlid),
                slid: request.path.ib.map_or(0, |route| route.slid),
                flow_label: request.path.flow_label,
                hop_limit: request.path.hop_limit.max(1),
                traffic_class: request.path.traffic_class,
                pkey: request.pkey,
                sl: request.sl,
                mtu: request.mtu,
                rate: if request.packet_rate == 0 { RATE } else { request.packet_rate },
                packet_life_time: request.ack_timeout.saturating_sub(1),
            };
            state.route = Some(Route { path, gid_index: place.gid_index, port_num: 1 });
            state.link = Some(Link {
                dest_qpn: request.remote_qpn,
                rq_psn: psn,
                sq_psn: request.starting_psn,
                responder_resources: request.responder_resources,
                initiator_depth: request.initiator_depth,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
                rnr_retries_told: request.rnr_retry_count,
                ack_timeout: state.options.ack_timeout.unwrap_or(request.ack_timeout),
                mtu: request.mtu,
                complete: true,
            });
            state.call = Some(Call::Conn(request.conn));
            state.process = process;
            state.peer_ece = ece;
        }
        id.name(&listener, place, &request.path, request.ip.as_ref());
        self.core.conns.insert(request.conn, id.me.clone());
        let param = ConnParam {
            private_data: request.private_data().to_vec(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
            qp_num: request.remote_qpn,
        };
        offer(&listener, id, EventParam::Conn(param), ece);
        Ok(())
    }

    /// The process of this host that a peer's queue pair belongs to; its death is noticed from here on.
    fn process(&self, gid: &Gid, qpn: u32) -> Option<Tenancy> {
        let registry = self.host.registry().filter(|_| self.host.is_local(gid))?;
        registry.watch(registry::slot_of(qpn))
    }

    /// Processes of this host are dead: so are the connections to them.
    pub(super) fn mourn(&mut self, dead: &[Tenancy]) {
        let all: Vec<_> = self.core.conns.iter().map(|(conn, id)| (*conn, id.clone())).collect();
        for (conn, id) in all {
            let Some(id) = self.upgrade(Some(&id)) else { continue };
            let (phase, process) = {
                let state = id.state.lock();
                (state.phase, state.process)
            };
            if !process.is_some_and(|process| dead.contains(&process)) {
                continue;
            }
            let now = self.now();
            // What is over already goes on resting.
            if phase == Phase::Disconnected || self.cm().lose(now, conn) {
                continue;
            }
            self.cm().abandon(conn);
            self.core.conns.remove(&conn);
            match phase {
                Phase::Connected | Phase::Replied | Phase::Disconnecting => {
                    id.over(CmEventKind::Disconnected, 0, EventParam::None);
                }
                _ => id.over(CmEventKind::Unreachable, SILENT, EventParam::None),
            }
        }
    }

    /// Who listens, if the request may come to it, and where it came to.
    fn listener(
        &mut self,
        listener: ListenerId,
        path: &Path,
    ) -> Result<(Arc<CmId>, Place), RejReason> {
        let weak = self.core.listeners.get(&listener).cloned();
        let listener = self.upgrade(weak.as_ref()).ok_or(RejReason::InvalidServiceId)?;
        // Who listens on a loopback address does not want to be found from elsewhere, although packets on this host
        // come from the addresses of devices.
        let only_here = listener.state.lock().local.is_some_and(|local| local.ip().is_loopback());
        if only_here && path.src != path.dst && !self.host.is_local(&path.dst) {
            return Err(RejReason::InvalidServiceId);
        }
        let place = address::known_place(self.host, &path.src);
        Ok((listener, place.ok_or(RejReason::PrimaryRemoteGid)?))
    }

    fn sidr_requested(&mut self, request: &SidrRequest) {
        let found = self.listener(request.listener, &request.path).and_then(|(listener, place)| {
            may_ask(&listener, request.ip.as_ref())?;
            Ok((listener, place))
        });
        let Some((listener, place)) = found.ok().filter(|(id, _)| id.qp_type() == QpType::Ud)
        else {
            let now = self.now();
            let status = SidrStatus::UNSUPPORTED;
            let answer = ironverbs_mad::SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
            let _ = self.cm().sidr_answer(now, request.sidr, &answer);
            return;
        };
        let id = CmId::new_child(&listener, QpType::Ud);
        id.name(&listener, place, &request.path, request.ip.as_ref());
        {
            let mut state = id.state.lock();
            state.call = Some(Call::Sidr(request.sidr));
            state.route = state.make_route();
        }
        self.core.sidrs.insert(request.sidr, id.me.clone());
        let private_data = request.private_data().to_vec();
        let param = UdParam { private_data, ..UdParam::default() };
        offer(&listener, id, EventParam::Ud(param), Ece::default());
    }

    fn replied(&mut self, reply: &Reply) {
        let id = self.core.conns.get(&reply.conn).cloned();
        let Some(id) = self.upgrade(id.as_ref()) else { return self.release(reply.conn) };
        let process = id.peer_gid().and_then(|gid| self.process(&gid, reply.remote_qpn));
        let ece = reply.ece;
        {
            let mut state = id.state.lock();
            state.phase = Phase::Replied;
            state.process = process;
            state.peer_ece = ece;
            if let Some(link) = &mut state.link {
                link.dest_qpn = reply.remote_qpn;
                link.sq_psn = reply.starting_psn;
                link.responder_resources = reply.responder_resources.min(link.responder_resources);
                link.initiator_depth = reply.initiator_depth.min(link.initiator_depth);
                link.rnr_retry_count = reply.rnr_retry_count;
                link.complete = true;
            }
        }
        let param = ConnParam {
            private_data: reply.private_data.to_vec(),
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            retry_count: 0,
            rnr_retry_count: reply.rnr_retry_count,
            srq: reply.srq,
            qp_num: reply.remote_qpn,
        };
        id.raise_with(CmEventKind::ConnectResponse, 0, EventParam::Conn(param), ece);
    }

    fn sidr_replied(&mut self, reply: &SidrReply) {
        let id = self.core.sidrs.remove(&reply.sidr);
        let Some(id) = self.upgrade(id.as_ref()) else { return };
        let ah_attr = id.route().map(|route| route.ah_attr()).unwrap_or_default();
        let param = UdParam {
            private_data: reply.private_data.to_vec(),
            ah_attr,
            qp_num: reply.qpn,
            qkey: reply.qkey,
            cookie: 0,
        };
        match reply.status {
            SidrStatus::VALID => id.over(CmEventKind::Established, 0, EventParam::Ud(param)),
            SidrStatus(status) => {
                id.over(CmEventKind::Unreachable, status.into(), EventParam::Ud(param));
            }
        }
    }
}

impl CmId {
    /// Tells, once each, that its device is gone, and that its address is another device's by now.
    pub(super) fn look_at_device(&self) {
        let mut state = self.state.lock();
        let Some(place) = state.place.as_ref() else { return };
        let kind = if !place.device.is_present() {
            CmEventKind::DeviceRemoval
        } else if place.device.has_gid(&place.gid) {
            state.moved = false;
            return;
        } else if address::known_place(self.inner(), &place.gid).is_some() {
            CmEventKind::AddrChange
        } else {
            return;
        };
        let told = match kind {
            CmEventKind::DeviceRemoval => &mut state.removed,
            _ => &mut state.moved,
        };
        if !std::mem::replace(told, true) {
            drop(state);
            self.raise(kind, 0, EventParam::None);
        }
    }

    /// Its connection or resolution is no more.
    fn over(&self, kind: CmEventKind, status: i32, param: EventParam) {
        let mut state = self.state.lock();
        state.call = None;
        state.phase = Phase::Over;
        drop(state);
        self.raise(kind, status, param);
    }

    /// Says who the ends of a request are.
    fn name(&self, listener: &CmId, place: Place, path: &Path, ip: Option<&IpHeader>) {
        let bound = listener.local_addr();
        let ib = listener.state.lock().child_ends(&place, path.dst);
        let mut state = self.state.lock();
        state.ib = ib;
        let port = bound.map_or(0, |bound| bound.port());
        let peer_port = ip.map_or(0, |ip| ip.src_port);
        let ifindex = place.device.ifindex();
        let named = |gid: &Gid, port| match self.inner().ip_of(gid) {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddrV6::new(ip, port, 0, ifindex).into()
            }
            ip => SocketAddr::new(ip, port),
        };
        (state.local, state.peer) = match bound.filter(|bound| bound.ip().is_loopback()) {
            Some(bound) => (Some(bound), Some(SocketAddr::new(bound.ip(), peer_port))),
            None => (Some(named(&path.src, port)), Some(named(&path.dst, peer_port))),
        };
        state.dgid = Some(path.dst);
        state.place = Some(place);
        state.phase = Phase::Requested;
    }
}

/// A request of a service with ports that names no IP addresses is for who listens by GID.
fn may_ask(listener: &CmId, ip: Option<&IpHeader>) -> Result<(), RejReason> {
    match ip.is_some() || listener.state.lock().ib.is_some() {
        true => Ok(()),
        false => Err(RejReason::InvalidServiceId),
    }
}

/// Tells who listens of a request.
fn offer(listener: &Arc<CmId>, id: Arc<CmId>, param: EventParam, ece: Ece) {
    listener.channel().push(Queued {
        id: Subject::New(id),
        listen_id: Some(Arc::downgrade(listener)),
        kind: CmEventKind::ConnectRequest,
        status: 0,
        param,
        ece,
        tag: 0,
    });
}

fn conn_param(private_data: &[u8]) -> EventParam {
    EventParam::Conn(ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() })
}
