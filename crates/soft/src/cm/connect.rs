//! Making and ending connections.

use ironverbs_mad::{Accept, Connect, ConnectError, Resolve, SidrAnswer};
use ironverbs_sys::errno;
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::mad::cm::{IpHeader, RejReason, SidrStatus, Transport};
use ironverbs_wire::{Mtu, Path};

use super::id::{Call, Phase, State};
use super::{CmError, CmId, ConnParam, private_data};
use crate::context::limits;
use crate::event::EventKind;
use crate::host::Inner;
use crate::{AttrMask, Error, QpAttr, QpState};

/// In `responder_resources` and `initiator_depth`: as many as the device can.
const MOST: u8 = 0xff;

/// The Q_Key of the queue pairs of UD ids and of multicast groups: `RDMA_UDP_QKEY`.
pub const UD_QKEY: u32 = 0x0123_4567;

/// Local ACK timeout where the program does not say: 1.07 s, the kernel's for RoCE.
const ACK_TIMEOUT: u8 = 18;

/// What is known of a connection and its peer, for the queue pair.
#[derive(Copy, Clone, Debug)]
pub(super) struct Link {
    pub(super) dest_qpn: u32,
    /// The PSN this side has asked the peer to start with.
    pub(super) rq_psn: u32,
    /// The PSN the peer has asked this side to start with.
    pub(super) sq_psn: u32,
    /// READs and atomics of the peer that are held.
    pub(super) responder_resources: u8,
    /// READs and atomics of this side.
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// What this side tells the peer to use as its `rnr_retry_count`.
    pub(super) rnr_retries_told: u8,
    pub(super) ack_timeout: u8,
    pub(super) mtu: Mtu,
    /// The peer is known: its queue pair, its PSN.
    pub(super) complete: bool,
}

impl CmId {
    /// Asks the peer for a connection, or looks a UD peer up (rdma_connect(3)): ESTABLISHED (CONNECT_RESPONSE where
    /// no queue pair is attached), REJECTED, UNREACHABLE or CONNECT_ERROR follows. 255 responder resources or
    /// initiator depth stand for as many as the device can.
    ///
    /// # Errors
    /// EINVAL unless the route was resolved; for too much private data; for depths above the device's.
    pub fn connect(&self, param: &ConnParam) -> Result<(), CmError> {
        self.check()?;
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        let (Phase::RouteResolved, Some(path)) = (state.phase, state.path(&host)) else {
            return Err(state.phase.refuses("connect"));
        };
        let local_port = state.local.map_or(0, |local| local.port());
        let service_id = state.asked_service(self.port_space());
        let (src, dst) = (host.ip_of(&path.src), host.ip_of(&path.dst));
        // Who names ports by GIDs has no IP addresses to tell, and more room for the program.
        let ip = state.ib.is_none().then_some(IpHeader { src_port: local_port, src, dst });
        let more = if ip.is_none() { IpHeader::LEN } else { 0 };
        let now = session.now();
        if self.qp_type() == QpType::Ud {
            check_len(&param.private_data, private_data::UD_CONNECT + more)?;
            let resolve = Resolve {
                ip,
                pkey: state.pkey(),
                private_data: &param.private_data,
                ..Resolve::new(path, service_id)
            };
            let sidr = session.cm().resolve(now, &resolve).map_err(refused)?;
            session.core.sidrs.insert(sidr, self.me.clone());
            state.call = Some(Call::Sidr(sidr));
        } else {
            check_len(&param.private_data, private_data::CONNECT + more)?;
            let link = self.first_link(&state, param, session.random_psn())?;
            let route = state.route.ok_or_else(|| state.phase.refuses("connect"))?;
            let (qpn, srq) = numbers(&state, Some(param));
            let guid = state.place.as_ref().map_or(0, |place| place.device.guid());
            let connect = Connect {
                ip,
                pkey: route.path.pkey,
                transport: transport(self.qp_type()),
                starting_psn: link.rq_psn,
                responder_resources: link.responder_resources,
                initiator_depth: link.initiator_depth,
                flow_control: param.flow_control,
                retry_count: link.retry_count,
                rnr_retry_count: link.rnr_retries_told,
                srq,
                mtu: link.mtu,
                packet_rate: route.path.rate,
                ack_timeout: link.ack_timeout,
                packet_life_time: route.path.packet_life_time,
                ece: state.ece,
                private_data: &param.private_data,
                ..Connect::new(path, service_id, guid, qpn)
            };
            let conn = session.cm().connect(now, &connect).map_err(refused)?;
            session.core.conns.insert(conn, self.me.clone());
            state.call = Some(Call::Conn(conn));
            state.link = Some(link);
        }
        state.phase = Phase::Connecting;
        drop(state);
        session.run();
        Ok(())
    }

    fn first_link(&self, state: &State, param: &ConnParam, psn: u32) -> Result<Link, CmError> {
        let route = state.route.ok_or_else(|| state.phase.refuses("connect"))?;
        Ok(Link {
            dest_qpn: 0,
            rq_psn: psn,
            sq_psn: 0,
            responder_resources: depth("responder_resources", param.responder_resources)?,
            initiator_depth: depth("initiator_depth", param.initiator_depth)?,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            rnr_retries_told: param.rnr_retry_count.min(7),
            ack_timeout: state.options.ack_timeout.unwrap_or(ACK_TIMEOUT),
            mtu: route.path.mtu,
            complete: false,
        })
    }

    /// Accepts a request (rdma_accept(3)): ESTABLISHED follows, save for UD. Without parameters those of the request
    /// hold. A queue pair that is attached goes to RTS first.
    ///
    /// # Errors
    /// EINVAL unless it is a request that waits; for too much private data. What the queue pair says.
    pub fn accept(&self, param: Option<&ConnParam>) -> Result<(), CmError> {
        self.check()?;
        let is_ud = self.qp_type() == QpType::Ud;
        let data = param.map_or(&[][..], |param| &param.private_data);
        check_len(data, if is_ud { private_data::UD_ACCEPT } else { private_data::ACCEPT })?;
        if is_ud { self.answer(SidrStatus::VALID, param, data) } else { self.reply(param, data) }
    }

    fn reply(&self, param: Option<&ConnParam>, data: &[u8]) -> Result<(), CmError> {
        let (qp, mut link, conn) = {
            let state = self.state.lock();
            let (Phase::Requested, Some(link), Some(Call::Conn(conn))) =
                (state.phase, state.link, state.call)
            else {
                return Err(state.phase.refuses("accept"));
            };
            (state.qp.clone(), link, conn)
        };
        let most = limits::RD_ATOMIC as u8;
        (link.responder_resources, link.initiator_depth) = match param {
            None => (link.responder_resources.min(most), link.initiator_depth.min(most)),
            Some(param) => (
                accepted(
                    "responder_resources",
                    param.responder_resources,
                    link.responder_resources,
                )?,
                accepted("initiator_depth", param.initiator_depth, link.initiator_depth)?,
            ),
        };
        if let Some(param) = param {
            link.rnr_retries_told = param.rnr_retry_count.min(7);
        }
        self.state.lock().link = Some(link);
        if let Some(qp) = &qp {
            self.make_ready(qp)?;
        }
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        if state.phase != Phase::Requested {
            return Err(state.phase.refuses("accept"));
        }
        let (qpn, srq) = numbers(&state, param);
        let guid = state.place.as_ref().map_or(0, |place| place.device.guid());
        let accept = Accept {
            starting_psn: link.rq_psn,
            responder_resources: link.responder_resources,
            initiator_depth: link.initiator_depth,
            flow_control: param.is_some_and(|param| param.flow_control),
            rnr_retry_count: link.rnr_retries_told,
            srq,
            ece: state.ece,
            private_data: data,
            ..Accept::new(guid, qpn)
        };
        let now = session.now();
        session.cm().accept(now, conn, &accept).map_err(|_| state.phase.refuses("accept"))?;
        state.phase = Phase::Accepted;
        let accepted = state.dgid.zip(state.local);
        drop(state);
        if let Some((peer, local)) = accepted {
            session.remember(peer, local.port());
        }
        session.run();
        Ok(())
    }

    /// Answers who looks for this datagram service.
    fn answer(
        &self,
        status: SidrStatus,
        param: Option<&ConnParam>,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        let (Phase::Requested, Some(Call::Sidr(sidr))) = (state.phase, state.call) else {
            return Err(state.phase.refuses("answer"));
        };
        let (qpn, _) = numbers(&state, param);
        let now = session.now();
        let answer = SidrAnswer { status, qpn, qkey: UD_QKEY, private_data };
        session.cm().sidr_answer(now, sidr, &answer).map_err(|_| state.phase.refuses("answer"))?;
        session.core.sidrs.remove(&sidr);
        state.call = None;
        state.phase = Phase::Over;
        drop(state);
        session.run();
        Ok(())
    }

    /// Refuses a request, or the peer's response (rdma_reject(3)).
    ///
    /// # Errors
    /// EINVAL unless there is one that waits; for too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), CmError> {
        self.reject_because(RejReason::ConsumerReject, private_data)
    }

    /// Refuses a request because of the peer's options (rdma_reject_ece(3)).
    ///
    /// # Errors
    /// As [`CmId::reject`].
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<(), CmError> {
        /// "Vendor option is not supported" (IBA 12.6.7.2).
        const REASON: u16 = 35;
        self.reject_because(RejReason::from_u16(REASON), private_data)
    }

    fn reject_because(&self, reason: RejReason, data: &[u8]) -> Result<(), CmError> {
        self.check()?;
        if self.qp_type() == QpType::Ud {
            check_len(data, private_data::UD_ACCEPT)?;
            return self.answer(SidrStatus::REJECTED, None, data);
        }
        check_len(data, private_data::REJECT)?;
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        let (Phase::Requested | Phase::Replied, Some(Call::Conn(conn))) = (state.phase, state.call)
        else {
            return Err(state.phase.refuses("reject"));
        };
        let now = session.now();
        session
            .cm()
            .reject(now, conn, reason, &[], data)
            .map_err(|_| state.phase.refuses("reject"))?;
        session.core.conns.remove(&conn);
        state.call = None;
        state.phase = Phase::Over;
        drop(state);
        session.run();
        Ok(())
    }

    /// Completes the connection after CONNECT_RESPONSE (rdma_establish(3)).
    ///
    /// # Errors
    /// EINVAL without such a response.
    pub fn establish(&self) -> Result<(), CmError> {
        self.check()?;
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        let (Phase::Replied, Some(Call::Conn(conn))) = (state.phase, state.call) else {
            return Err(state.phase.refuses("establish"));
        };
        session.cm().establish(conn, &[]).map_err(|_| state.phase.refuses("establish"))?;
        state.phase = Phase::Connected;
        drop(state);
        session.run();
        Ok(())
    }

    /// Ends the connection (rdma_disconnect(3)): DISCONNECTED follows on both sides, once. A queue pair that is
    /// attached goes to the error state first. Again is no error.
    ///
    /// # Errors
    /// EINVAL when it never was connected.
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.check()?;
        let (phase, qp) = {
            let state = self.state.lock();
            (state.phase, state.qp.clone())
        };
        let ended = matches!(phase, Phase::Disconnecting | Phase::Disconnected | Phase::Over);
        if !ended && !matches!(phase, Phase::Connected | Phase::Accepted | Phase::Replied) {
            return Err(phase.refuses("disconnect"));
        }
        if let Some(qp) = qp {
            fail(&qp);
        }
        if ended {
            return Ok(());
        }
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        let Some(Call::Conn(conn)) = state.call else { return Ok(()) };
        let now = session.now();
        if session.cm().disconnect(now, conn, &[]).is_ok() {
            state.phase = Phase::Disconnecting;
        } else {
            // Not established yet: it is taken back, and there will be no other event.
            session.cm().release(now, conn);
            session.core.conns.remove(&conn);
            state.call = None;
            state.phase = Phase::Disconnected;
            self.raise(super::CmEventKind::Disconnected, 0, super::EventParam::None);
        }
        drop(state);
        session.run();
        Ok(())
    }

    /// Tells of an asynchronous event of the queue pair (rdma_notify(3)); COMM_EST establishes the connection.
    ///
    /// # Errors
    /// EISCONN: it is established already. EINVAL without a connection.
    pub fn notify(&self, event: EventKind) -> Result<(), CmError> {
        self.check()?;
        if event != EventKind::CommEst {
            return Ok(());
        }
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let (phase, call) = {
            let state = self.state.lock();
            (state.phase, state.call)
        };
        match (phase, call) {
            (Phase::Accepted, Some(Call::Conn(conn))) => {
                session.cm().communication_established(conn);
                session.run();
                Ok(())
            }
            (Phase::Connected, _) => Err(CmError::Connected),
            (phase, _) => Err(phase.refuses("be notified")),
        }
    }
}

impl CmId {
    /// The program has read the request: it counts against the backlog no longer.
    pub(super) fn claim(&self) {
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let call = self.state.lock().call;
        match call {
            Some(Call::Conn(conn)) => session.cm().claim(conn),
            Some(Call::Sidr(sidr)) => session.cm().sidr_claim(sidr),
            None => {}
        }
    }
}

impl State {
    /// The partition that it is in.
    pub(super) fn pkey(&self) -> u16 {
        self.route.map_or(limits::PKEY, |route| route.path.pkey)
    }

    /// The path of MADs.
    fn path(&self, host: &Inner) -> Option<Path> {
        let route = self.route?;
        let path = route.path;
        if let Some(subnet) = &host.subnet {
            return subnet.resolve(&subnet.of_gid(&path.sgid)?, &route.ah_attr()).ok();
        }
        Some(Path {
            src: path.sgid,
            dst: path.dgid,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            flow_label: path.flow_label,
            ib: None,
        })
    }
}

/// Number of the queue pair, and whether it has a shared receive queue.
fn numbers(state: &State, param: Option<&ConnParam>) -> (u32, bool) {
    match (&state.qp, param) {
        (Some(qp), _) => (qp.qpn(), qp.srq().is_some()),
        (None, Some(param)) => (param.qp_num, param.srq),
        (None, None) => (0, false),
    }
}

fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Uc => Transport::Uc,
        QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
        QpType::Rc | QpType::Ud => Transport::Rc,
    }
}

fn check_len(data: &[u8], max: usize) -> Result<(), CmError> {
    if data.len() > max { Err(CmError::PrivateData { len: data.len(), max }) } else { Ok(()) }
}

fn depth(what: &'static str, asked: u8) -> Result<u8, CmError> {
    let most = limits::RD_ATOMIC as u8;
    match asked {
        MOST => Ok(most),
        asked if asked > most => {
            let (asked, max) = (asked.into(), most.into());
            Err(CmError::Device(Error::Limit { what, asked, max }))
        }
        asked => Ok(asked),
    }
}

/// What a side accepts: what it says, or what the peer offered.
fn accepted(what: &'static str, asked: u8, offered: u8) -> Result<u8, CmError> {
    if asked == MOST { Ok(offered.min(limits::RD_ATOMIC as u8)) } else { depth(what, asked) }
}

fn refused(error: ConnectError) -> CmError {
    match error {
        ConnectError::PrivateData(e) => CmError::PrivateData { len: e.len, max: e.max },
        ConnectError::Limit { .. } => CmError::Device(Error::NoMemory { what: "connection" }),
    }
}

/// Moves a queue pair to the error state; one that is reset has nothing to fail.
pub(super) fn fail(qp: &crate::Qp) {
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = qp.modify(&error, AttrMask::STATE);
}

/// The status of a peer that is silent.
pub(super) const SILENT: i32 = -errno::ETIMEDOUT;

/// The status of what was given up because the peer's host goes on saying that nobody there has the port.
pub(super) const REFUSED: i32 = -errno::ECONNREFUSED;
