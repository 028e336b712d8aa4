//! Resolution of datagram services, both sides.

use std::collections::HashMap;

use ironverbs_wire::Gid;
use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::{Message, ServiceId, SidrRep, SidrReq, SidrStatus};

use super::listeners::Asked;
use super::outbox::{Deadlines, Route, Timer};
use super::refusal::Refusal;
use super::{Cm, ListenerId, Origin, SidrId};
use crate::error::padded;
use crate::time::MIN_TIMEOUT;
use crate::{
    AnswerError, ConnectError, Event, Failure, Instant, Resolve, SidrAnswer, SidrReply, SidrRequest,
};

#[derive(Debug)]
pub(super) struct Resolution {
    id: u32,
    route: Route,
    tid: u64,
    deadline: Option<Instant>,
    pub(super) side: Side,
}

#[derive(Debug)]
pub(super) enum Side {
    /// Asked by us.
    Asking { mad: Box<Mad>, timeout: u64, left: u8, refusal: Option<Refusal> },
    /// Asked by a peer, and the program is yet to answer.
    Asked { request_id: u32, service_id: ServiceId, counted: Option<ListenerId> },
    /// Answered, and kept to answer again.
    Answered { request_id: u32, mad: Box<Mad> },
}

impl Resolution {
    pub(super) fn set_deadline(&mut self, deadlines: &mut Deadlines, at: Option<Instant>) {
        Timer::Sidr(self.id).set(deadlines, &mut self.deadline, at);
    }

    /// What a peer knows this by.
    fn peers_name(&self) -> Option<(Gid, u32)> {
        match &self.side {
            Side::Asking { .. } => None,
            Side::Asked { request_id, .. } | Side::Answered { request_id, .. } => {
                Some((self.route.path.dst, *request_id))
            }
        }
    }
}

/// All resolutions.
#[derive(Debug, Default)]
pub(super) struct Sidr {
    resolutions: HashMap<u32, Resolution>,
    by_peer: HashMap<(Gid, u32), u32>,
}

impl Sidr {
    pub(super) fn len(&self) -> usize {
        self.resolutions.len()
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.resolutions.contains_key(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Resolution> {
        self.resolutions.get_mut(&id)
    }

    /// Resolutions that wait for an answer from a host.
    pub(super) fn waiting_for(&self, dst: &Gid) -> Vec<u32> {
        let waits = |found: &&Resolution| {
            matches!(found.side, Side::Asking { .. }) && found.route.path.dst == *dst
        };
        self.resolutions.values().filter(waits).map(|found| found.id).collect()
    }

    fn insert(&mut self, resolution: Resolution) {
        if let Some(name) = resolution.peers_name() {
            self.by_peer.insert(name, resolution.id);
        }
        self.resolutions.insert(resolution.id, resolution);
    }
}

impl Cm {
    /// Asks a peer for the QP of a service. Ends in [`Event::SidrReply`] or
    /// [`Event::SidrFailed`].
    pub fn resolve(&mut self, now: Instant, resolve: &Resolve) -> Result<SidrId, ConnectError> {
        let header = resolve.ip.map(|ip| ip.emit());
        let header = header.as_ref().map_or(&[][..], |header| header);
        let mut private_data = padded(resolve.private_data, header.len())?;
        private_data[..header.len()].copy_from_slice(header);
        if self.is_full() {
            return Err(ConnectError::Limit { max: self.config.max_connections });
        }
        let id = self.next_id();
        let tid = self.ids.tid(id);
        let Resolve { path, pkey, service_id, max_retries, .. } = *resolve;
        let mad = Message::SidrReq(SidrReq { request_id: id, pkey, service_id, private_data });
        let mad = mad.emit(tid);
        let timeout = resolve.timeout.max(MIN_TIMEOUT);
        let route = Route { path, pkey };
        let side = Side::Asking { mad: Box::new(mad), timeout, left: max_retries, refusal: None };
        let mut resolution = Resolution { id, route, tid, deadline: None, side };
        resolution.set_deadline(&mut self.deadlines, Some(now.after(timeout)));
        self.sidr.insert(resolution);
        self.out.push(route, mad);
        Ok(SidrId(id))
    }

    /// After [`Event::SidrRequest`]: answers it. The resolution is gone for the program.
    pub fn sidr_answer(
        &mut self,
        now: Instant,
        sidr: SidrId,
        answer: &SidrAnswer,
    ) -> Result<(), AnswerError> {
        let private_data = padded(answer.private_data, 0)?;
        let unknown = AnswerError::Unknown { id: sidr.0 };
        let found = self.sidr.resolutions.get_mut(&sidr.0).ok_or(unknown)?;
        let Side::Asked { request_id, service_id, counted } = &mut found.side else {
            return Err(unknown);
        };
        let (request_id, service_id) = (*request_id, *service_id);
        let rep = SidrRep {
            request_id,
            status: answer.status,
            info_len: 0,
            qpn: answer.qpn,
            service_id,
            qkey: answer.qkey,
            info: [0; SidrRep::INFO],
            private_data,
        };
        if let Some(listener) = counted.take() {
            self.listeners.uncount(listener, Asked::Sidr(sidr.0));
        }
        self.unanswered.remove(found.route.path.dst);
        self.half_open.remove(found.route.path.dst);
        let mad = Message::SidrRep(rep).emit(found.tid);
        self.out.push(found.route, mad);
        found.side = Side::Answered { request_id, mad: Box::new(mad) };
        self.lingering += 1;
        if self.lingering > self.config.max_lingering {
            self.forget(sidr.0);
        } else {
            found.set_deadline(&mut self.deadlines, Some(now.after(self.config.linger)));
        }
        Ok(())
    }

    /// The program knows of this request, which counts no longer against the backlog.
    pub fn sidr_claim(&mut self, sidr: SidrId) {
        if let Some(Resolution { side: Side::Asked { counted, .. }, .. }) =
            self.sidr.resolutions.get_mut(&sidr.0)
            && let Some(listener) = counted.take()
        {
            self.listeners.uncount(listener, Asked::Sidr(sidr.0));
        }
    }

    /// The program wants to hear no more of a resolution. One that a peer waits for is refused.
    pub fn sidr_release(&mut self, now: Instant, sidr: SidrId) {
        match self.sidr.resolutions.get(&sidr.0).map(|found| &found.side) {
            Some(Side::Asking { .. }) => self.forget(sidr.0),
            Some(Side::Asked { .. }) => {
                let status = SidrStatus::REJECTED;
                let answer = SidrAnswer { status, qpn: 0, qkey: 0, private_data: &[] };
                // It fits, and is there.
                let _ = self.sidr_answer(now, sidr, &answer);
            }
            Some(Side::Answered { .. }) | None => {}
        }
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: &Origin, req: &SidrReq) {
        let name = (from.path.src, req.request_id);
        if let Some(known) =
            self.sidr.by_peer.get(&name).and_then(|id| self.sidr.resolutions.get(id))
            && known.tid == from.tid
            && known.route.is_from(&from.path)
        {
            self.counters.duplicates += 1;
            if let Side::Answered { mad, .. } = &known.side {
                self.out.push(known.route, **mad);
            }
            return;
        }
        let addr = super::passive::asked(from, req.service_id, &req.private_data);
        let Some(listener) = self.listeners.find(req.service_id, addr) else {
            return self.refuse_sidr(from, req, SidrStatus::UNSUPPORTED);
        };
        let Ok(ip) = super::passive::addresses(from, req.service_id, &req.private_data) else {
            return self.refuse_sidr(from, req, SidrStatus::REJECTED);
        };
        if !self.admit(now, from, listener) {
            return;
        }
        let id = self.next_id();
        let route = from.route();
        let SidrReq { request_id, service_id, .. } = *req;
        let side = Side::Asked { request_id, service_id, counted: Some(listener) };
        self.unanswered.add(from.path.src);
        self.half_open.add(from.path.src);
        self.listeners.count(listener, Asked::Sidr(id), from.path.src);
        self.sidr.insert(Resolution { id, route, tid: from.tid, deadline: None, side });
        self.events.push_back(Event::SidrRequest(Box::new(SidrRequest {
            sidr: SidrId(id),
            listener,
            service_id: req.service_id,
            ip,
            path: route.path,
            pkey: req.pkey,
            field: req.private_data,
        })));
    }

    /// A request has to make room for another. Its sender will ask again.
    pub(super) fn displace_sidr(&mut self, id: u32) {
        let is_it =
            |event: &Event| matches!(event, Event::SidrRequest(asked) if asked.sidr.0 == id);
        match self.events.iter().rposition(is_it) {
            Some(place) => {
                self.events.remove(place);
                self.sidr_abandon(SidrId(id));
            }
            None => self.events.push_back(Event::SidrDisplaced { sidr: SidrId(id) }),
        }
    }

    /// Forgets a request without an answer to who asks.
    pub fn sidr_abandon(&mut self, sidr: SidrId) {
        let Some(found) = self.sidr.resolutions.get_mut(&sidr.0) else { return };
        let Side::Asked { counted, .. } = &mut found.side else { return };
        if let Some(listener) = counted.take() {
            self.listeners.uncount(listener, Asked::Sidr(sidr.0));
        }
        self.unanswered.remove(found.route.path.dst);
        self.half_open.remove(found.route.path.dst);
        self.forget(sidr.0);
    }

    fn refuse_sidr(&mut self, from: &Origin, req: &SidrReq, status: SidrStatus) {
        self.counters.refused += 1;
        let rep = SidrRep {
            request_id: req.request_id,
            status,
            info_len: 0,
            qpn: 0,
            service_id: req.service_id,
            qkey: 0,
            info: [0; SidrRep::INFO],
            private_data: [0; SidrRep::PRIVATE_DATA],
        };
        self.out.push(from.route(), Message::SidrRep(rep).emit(from.tid));
    }

    pub(super) fn on_sidr_rep(&mut self, now: Instant, from: &Origin, rep: &SidrRep) {
        let id = rep.request_id;
        let known = self.sidr.resolutions.get(&id).map(|found| {
            let is_asking = matches!(found.side, Side::Asking { .. });
            is_asking && found.tid == from.tid && found.route.is_from(&from.path)
        });
        if known != Some(true) {
            if !self.takes_proof(now, from, rep) {
                match known {
                    Some(_) => self.counters.wrong_peer += 1,
                    None => self.counters.unknown_id += 1,
                }
            }
            return;
        }
        self.forget(id);
        self.events.push_back(Event::SidrReply(Box::new(SidrReply {
            sidr: SidrId(id),
            status: rep.status,
            qpn: rep.qpn,
            qkey: rep.qkey,
            private_data: rep.private_data,
        })));
    }

    pub(super) fn sidr_timeout(&mut self, now: Instant, id: u32) {
        let Some(found) = self.sidr.resolutions.get_mut(&id) else { return };
        found.deadline = None;
        if let Side::Asking { mad, timeout, left, refusal } = &mut found.side {
            let soon = refusal.as_mut().and_then(|refusal| refusal.next(now, *timeout));
            if soon.is_some() || *left > 0 {
                if soon.is_none() {
                    *refusal = None;
                    *left -= 1;
                }
                self.counters.retries += 1;
                self.out.push(found.route, **mad);
                let deadline = soon.unwrap_or(now.after(*timeout));
                found.set_deadline(&mut self.deadlines, Some(deadline));
                return;
            }
            self.events
                .push_back(Event::SidrFailed { sidr: SidrId(id), failure: Failure::NoReply });
        }
        self.forget(id);
    }

    pub(super) fn forget(&mut self, id: u32) {
        let Some(mut found) = self.sidr.resolutions.remove(&id) else { return };
        found.set_deadline(&mut self.deadlines, None);
        if let Some(name) = found.peers_name()
            && self.sidr.by_peer.get(&name) == Some(&id)
        {
            self.sidr.by_peer.remove(&name);
        }
        if matches!(found.side, Side::Answered { .. }) {
            self.lingering -= 1;
        }
    }
}
