//! Ids: the ends of connections, and what listens for them.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_mad::{Cm, ConnId, ListenerId, LocalAddr, SidrId};
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::mad::cm::ServiceId;
use ironverbs_wire::{Gid, Mtu};
use parking_lot::Mutex;

use super::address::{self, Place};
use super::connect::Link;
use super::event::{Outstanding, Queued, Subject};
use super::ib::IbEnds;
use super::multicast::Joined;
use super::params::default_qp_type;
use super::resolve::Waiting;
use super::{CmError, CmEventKind, Ece, EventChannel, EventParam, PortSpace, Route};
use crate::host::Inner;
use crate::registry::{Claim, Tenancy};
use crate::{Device, Error, Host, Qp};

/// An id of the connection manager (rdma_create_id(3)).
#[derive(Debug)]
pub struct CmId {
    pub(super) me: Weak<CmId>,
    host: Host,
    number: u64,
    space: PortSpace,
    qp_type: QpType,
    cookie: AtomicUsize,
    destroyed: AtomicBool,
    channel: Mutex<Arc<EventChannel>>,
    pub(super) outstanding: Outstanding,
    pub(super) state: Mutex<State>,
}

/// Requests that wait at most, and where the program does not say: the kernel's.
const BACKLOG: u32 = 1024;

/// Options of an id (rdma_set_option(3)).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// Type of service: the traffic class of its packets.
    pub tos: u8,
    /// Its address may be shared with other ids that say so, unless one listens.
    pub reuse_addr: bool,
    /// IPv6's wildcard address does not stand for IPv4's.
    pub af_only: bool,
    /// Local ACK timeout of the queue pair: 4.096 us * 2^n, n below 32.
    pub ack_timeout: Option<u8>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// The same, where the program names ports by GIDs.
    pub(super) ib: Option<IbEnds>,
    /// Where it is bound to, or its peer is reached from.
    pub(super) place: Option<Place>,
    pub(super) dgid: Option<Gid>,
    /// What the kernel's route says.
    pub(super) mtu: Option<Mtu>,
    pub(super) route: Option<Route>,
    pub(super) waiting: Option<Waiting>,
    /// A port that is to be given back.
    pub(super) port: Option<u16>,
    pub(super) qp: Option<Arc<Qp>>,
    pub(super) ece: Ece,
    pub(super) peer_ece: Ece,
    /// What the protocol knows it by.
    pub(super) call: Option<Call>,
    pub(super) listener: Option<ListenerId>,
    pub(super) backlog: u32,
    pub(super) link: Option<Link>,
    /// The peer's process, if it is one of this host's.
    pub(super) process: Option<Tenancy>,
    pub(super) groups: Vec<Joined>,
    /// Joins so far.
    pub(super) joins: u64,
    /// It was told that its device is gone.
    pub(super) removed: bool,
    /// It was told that its address is another device's.
    pub(super) moved: bool,
}

impl State {
    fn new(options: Options) -> State {
        State {
            phase: Phase::Idle,
            options,
            local: None,
            peer: None,
            ib: None,
            place: None,
            dgid: None,
            mtu: None,
            route: None,
            waiting: None,
            port: None,
            qp: None,
            ece: Ece::default(),
            peer_ece: Ece::default(),
            call: None,
            listener: None,
            backlog: 0,
            link: None,
            process: None,
            groups: Vec::new(),
            joins: 0,
            removed: false,
            moved: false,
        }
    }
}

/// A connection or a resolution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Conn(ConnId),
    Sidr(SidrId),
}

/// What an id is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    AddrQuery,
    AddrResolved,
    /// The administrator is asked.
    RouteQuery,
    RouteResolved,
    /// A request is on its way.
    Connecting,
    /// The peer has accepted.
    Replied,
    /// A request that waits for an answer.
    Requested,
    /// Accepted; the peer is yet to say that it is ready.
    Accepted,
    Connected,
    Disconnecting,
    Disconnected,
    /// No connection, and there will be none.
    Over,
}

impl Phase {
    pub(super) fn refuses(self, what: &'static str) -> CmError {
        let state = match self {
            Phase::Idle => "new",
            Phase::Bound => "bound",
            Phase::Listening => "listening",
            Phase::AddrQuery => "resolving its address",
            Phase::AddrResolved => "resolved as to its address",
            Phase::RouteQuery => "resolving its route",
            Phase::RouteResolved => "resolved as to its route",
            Phase::Connecting => "connecting",
            Phase::Replied => "accepted by its peer",
            Phase::Requested => "a request",
            Phase::Accepted => "about to be connected",
            Phase::Connected => "connected",
            Phase::Disconnecting => "disconnecting",
            Phase::Disconnected => "disconnected",
            Phase::Over => "not connected any more",
        };
        CmError::State { what, state }
    }
}

impl CmId {
    /// A new id, whose events go to `channel`. The type of queue pair matters for [`PortSpace::Ib`]; elsewhere it is
    /// the port space's own, if none is given.
    pub fn new(
        channel: &Arc<EventChannel>,
        space: PortSpace,
        qp_type: Option<QpType>,
    ) -> Result<Arc<CmId>, CmError> {
        let host = channel.host().clone();
        host.0.check()?;
        host.join()?;
        let qp_type = qp_type.unwrap_or(default_qp_type(space));
        Ok(CmId::with_state(channel, space, qp_type, State::new(Options::default())))
    }

    /// A request to an id that listens. Its options are the listener's.
    pub(super) fn new_child(listener: &CmId, qp_type: QpType) -> Arc<CmId> {
        let state = State::new(listener.options());
        CmId::with_state(&listener.channel(), listener.space, qp_type, state)
    }

    fn with_state(
        channel: &Arc<EventChannel>,
        space: PortSpace,
        qp_type: QpType,
        state: State,
    ) -> Arc<CmId> {
        let host = channel.host().clone();
        let number = host.0.cm.number();
        let id = Arc::new_cyclic(|me| CmId {
            me: me.clone(),
            host,
            number,
            space,
            qp_type,
            cookie: AtomicUsize::new(0),
            destroyed: AtomicBool::new(false),
            channel: Mutex::new(channel.clone()),
            outstanding: Outstanding::default(),
            state: Mutex::new(state),
        });
        id.inner().cm.remember(&id);
        id
    }

    /// Its number among the ids of this Host, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The caller's own word; 0 at first.
    pub fn cookie(&self) -> usize {
        self.cookie.load(Ordering::Acquire)
    }

    /// Sets the caller's own word.
    pub fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Release);
    }

    /// Its port space.
    pub fn port_space(&self) -> PortSpace {
        self.space
    }

    /// The type of its queue pair.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The channel its events go to.
    pub fn channel(&self) -> Arc<EventChannel> {
        self.channel.lock().clone()
    }

    /// The address it is bound to, or has as source once its destination is resolved.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.state.lock().local
    }

    /// The address of its peer.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state.lock().peer
    }

    /// The device it is bound to: known once it is bound to an address, resolved, or made by a request.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.state.lock().place.as_ref().map(|place| place.device.clone())
    }

    /// Its port on the device; 0 before there is one.
    pub fn port_num(&self) -> u8 {
        u8::from(self.state.lock().place.is_some())
    }

    /// The source GID and its place in the table of the device.
    pub fn gid(&self) -> Option<(u32, Gid)> {
        self.state.lock().place.as_ref().map(|place| (place.gid_index, place.gid))
    }

    /// The destination GID, once resolved.
    pub fn peer_gid(&self) -> Option<Gid> {
        self.state.lock().dgid
    }

    /// The path to the peer, once the route is resolved or a request has come.
    pub fn route(&self) -> Option<Route> {
        self.state.lock().route
    }

    /// Its options.
    pub fn options(&self) -> Options {
        self.state.lock().options
    }

    /// Changes its options (rdma_set_option(3)).
    ///
    /// # Errors
    /// EINVAL: an ack timeout of 32 or more; REUSEADDR or AFONLY once it is bound.
    pub fn set_options(&self, options: Options) -> Result<(), CmError> {
        self.check()?;
        if options.ack_timeout.is_some_and(|timeout| timeout > 31) {
            return Err(CmError::Invalid { what: "ack timeout", why: "it has five bits" });
        }
        let mut state = self.state.lock();
        let old = state.options;
        if state.phase != Phase::Idle && options.af_only != old.af_only {
            return Err(state.phase.refuses("change AFONLY"));
        }
        state.options = options;
        Ok(())
    }

    /// Binds it to a local address, or to all by a wildcard; port 0 picks one (rdma_bind_addr(3)).
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL; ENODEV where no device has the address; EINVAL when it is bound already, or a
    /// link-local address is without its scope.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), CmError> {
        self.check()?;
        let mut state = self.state.lock();
        if state.phase != Phase::Idle {
            return Err(state.phase.refuses("be bound"));
        }
        self.bind_locked(&mut state, addr)
    }

    pub(super) fn bind_locked(
        &self,
        state: &mut State,
        mut addr: SocketAddr,
    ) -> Result<(), CmError> {
        let place = address::bind(self.inner(), addr)?;
        let claim = Claim {
            id: self.claim_id(),
            service: 0,
            ip: addr.ip(),
            reuse: state.options.reuse_addr,
            family_only: state.options.af_only,
            listens: false,
        };
        let host = self.inner();
        let space = state.service_space(self.space);
        let port = host.cm.ports.claim(host.registry(), space, addr, claim)?;
        addr.set_port(port);
        state.port = Some(port);
        state.local = Some(addr);
        state.place = place;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Listens for requests (rdma_listen(3)); one that is not bound gets a port on every address. At most `backlog`
    /// requests wait for [`CmId::accept`]; 0 stands for the most that are possible.
    pub fn listen(&self, backlog: u32) -> Result<(), CmError> {
        self.check()?;
        let host = self.inner().clone();
        let mut session = host.cm.session(&host);
        let mut state = self.state.lock();
        if state.phase == Phase::Idle {
            self.bind_locked(&mut state, SocketAddr::from(([0; 16], 0)))?;
        }
        let (Phase::Bound, Some(addr)) = (state.phase, state.local) else {
            return Err(state.phase.refuses("listen"));
        };
        let space = state.service_space(self.space);
        host.cm.ports.listen(host.registry(), space, addr, self.claim_id())?;
        state.backlog = if backlog == 0 { BACKLOG } else { backlog.min(BACKLOG) };
        // The protocol is locked first, then the id: `cm` may look at all that listen.
        drop(state);
        session.cm();
        let mut state = self.state.lock();
        let listener = self.listen_with(&state, session.cm());
        let listener = listener.ok_or(CmError::AddrInUse { addr })?;
        session.core.listeners.insert(listener, self.me.clone());
        state.listener = Some(listener);
        state.phase = Phase::Listening;
        drop(state);
        session.look_for_listeners();
        Ok(())
    }

    /// Tells the protocol what is listened for.
    fn listen_with(&self, state: &State, cm: &mut Cm) -> Option<ListenerId> {
        let bound = state.local?;
        let addr = match bound.ip() {
            _ if state.bound_gid().is_some() => LocalAddr::Gid(state.bound_gid()?),
            IpAddr::V4(ip) if ip.is_unspecified() => LocalAddr::AnyIpv4,
            IpAddr::V6(ip) if ip.is_unspecified() && state.options.af_only => LocalAddr::AnyIpv6,
            IpAddr::V6(ip) if ip.is_unspecified() => LocalAddr::Any,
            ip => {
                let place = state.place.clone();
                let place = place.or_else(|| address::any_place(self.inner(), ip.is_ipv4()));
                let ip = place.map_or(ip, |place| self.inner().ip_of(&place.gid));
                LocalAddr::Gid(Gid::from_ip(ip))
            }
        };
        let service = ServiceId::of_port(state.service_space(self.space), bound.port());
        cm.listen(service, addr, state.backlog as usize).ok()
    }

    /// The protocol has begun anew.
    pub(super) fn listen_again(
        &self,
        cm: &mut Cm,
        listeners: &mut HashMap<ListenerId, Weak<CmId>>,
    ) {
        let mut state = self.state.lock();
        state.listener = self.listen_with(&state, cm);
        if let Some(listener) = state.listener {
            listeners.insert(listener, self.me.clone());
        }
    }

    /// The queue pair attached.
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.state.lock().qp.clone()
    }

    /// Options of this side for the next connect or accept (rdma_set_local_ece(3)).
    pub fn set_ece(&self, ece: Ece) {
        self.state.lock().ece = ece;
    }

    /// The peer's options, after a request or response (rdma_get_remote_ece(3)).
    pub fn peer_ece(&self) -> Ece {
        self.state.lock().peer_ece
    }

    /// Moves it, with its unread events, to another channel (rdma_migrate_id(3)). Waits until the events read from
    /// the old one are acknowledged.
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), CmError> {
        self.check()?;
        if !Arc::ptr_eq(&channel.host().0, &self.host.0) {
            return Err(CmError::Device(Error::Foreign { what: "event channel" }));
        }
        let mut current = self.channel.lock();
        let old = std::mem::replace(&mut *current, channel.clone());
        for event in old.take(self) {
            // Who asks goes with the request: what becomes of it is told where the request is read.
            let mut later = Vec::new();
            if let Subject::New(child) = &event.id {
                *child.channel.lock() = channel.clone();
                // The request itself has been taken out already.
                later = old.take(child);
            }
            channel.push(event);
            later.into_iter().for_each(|event| channel.push(event));
        }
        drop(current);
        self.outstanding.wait(None, self.explains(), "rdma_migrate_id", self);
        Ok(())
    }

    /// Destroys it (rdma_destroy_id(3)): what is unread of it is dropped, a connection ends. Waits until the events
    /// that were read are acknowledged.
    pub fn destroy(&self) -> Result<(), CmError> {
        self.check()?;
        self.release();
        self.outstanding.wait(None, self.explains(), "rdma_destroy_id", self);
        Ok(())
    }

    fn release(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) || self.inner().check().is_err() {
            return;
        }
        let host = self.inner().clone();
        self.leave_groups();
        let mut session = host.cm.session(&host);
        let (call, listener, port, space) = {
            let mut state = self.state.lock();
            let space = state.service_space(self.space);
            (state.call.take(), state.listener.take(), state.port.take(), space)
        };
        let now = session.now();
        match call {
            Some(Call::Conn(conn)) => {
                session.cm().release(now, conn);
                session.core.conns.remove(&conn);
            }
            Some(Call::Sidr(sidr)) => {
                session.cm().sidr_release(now, sidr);
                session.core.sidrs.remove(&sidr);
            }
            None => {}
        }
        if let Some(listener) = listener {
            session.cm().unlisten(listener);
            session.core.listeners.remove(&listener);
        }
        if call.is_some() {
            session.run();
        }
        if let Some(port) = port {
            host.cm.ports.release(host.registry(), space, port, self.claim_id());
        }
        drop(session);
        host.cm.forget(self.number);
        let unread = self.channel.lock().take(self);
        drop(unread);
    }

    /// What its port is known by. Numbers are given out one by one, so these 32 bits are enough.
    fn claim_id(&self) -> u32 {
        self.number as u32
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.host.0
    }

    pub(super) fn check(&self) -> Result<(), CmError> {
        self.inner().check()?;
        match self.destroyed.load(Ordering::Acquire) {
            true => Err(CmError::Device(Error::Stale { what: "connection manager id" })),
            false => Ok(()),
        }
    }

    pub(super) fn explains(&self) -> bool {
        self.inner().config.explain.value
    }

    pub(super) fn raise(&self, kind: CmEventKind, status: i32, param: EventParam) {
        self.raise_with(kind, status, param, Ece::default());
    }

    /// Raises an event that tells of the peer's options.
    pub(super) fn raise_with(&self, kind: CmEventKind, status: i32, param: EventParam, ece: Ece) {
        let id = Subject::Known(self.me.clone());
        self.channel.lock().push(Queued { id, listen_id: None, kind, status, param, ece, tag: 0 });
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Display for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = {
            let state = self.state.lock();
            (state.local, state.peer)
        };
        write!(f, "id {} ({:?}", self.number, self.space)?;
        if let Some(local) = local {
            write!(f, " {local}")?;
        }
        if let Some(peer) = peer {
            write!(f, " to {peer}")?;
        }
        f.write_str(")")
    }
}
