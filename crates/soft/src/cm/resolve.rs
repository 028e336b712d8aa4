//! Resolving addresses and routes.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ironverbs_mad::subnet::{SaError, SaPath};
use ironverbs_sys::errno;
use ironverbs_sys::netlink::{self, Neighbour};
use ironverbs_transport::device::Instant;
use ironverbs_wire::Mtu;

use super::address::{self, Found};
use super::id::{CmId, Phase, State};
use super::{CmError, CmEventKind, EventParam, PathRecord, Route};
use crate::context::limits;
use crate::fabric::record;

/// How soon a neighbour is looked for again, at first.
const FIRST_LOOK: u64 = 1_000_000;

/// The longest time between two looks.
const LAST_LOOK: u64 = 50_000_000;

/// A port at which nobody minds what comes ("discard", RFC 863).
const DISCARD: u16 = 9;

/// `IBV_RATE_100_GBPS`, what the port's width and speed come to.
pub(crate) const RATE: u8 = 16;

/// 268 ms, as the kernel has it for RoCE.
pub(crate) const PACKET_LIFE_TIME: u8 = 16;

/// `TOS` of packets is their traffic class.
const HOP_LIMIT: u8 = 64;

/// A wait for a neighbour.
#[derive(Debug)]
pub(super) struct Waiting {
    found: Found,
    deadline: Instant,
    pause: u64,
}

impl CmId {
    /// Resolves a destination address, and a source address if none is bound (rdma_resolve_addr(3)): ADDR_RESOLVED
    /// or ADDR_ERROR follows. `src` binds the id first.
    ///
    /// # Errors
    /// EINVAL: the id is in another state, the families differ, a link-local address is without its scope. What bind
    /// says of `src`.
    pub fn resolve_addr(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        timeout: Duration,
    ) -> Result<(), CmError> {
        self.check()?;
        let families = |src: &SocketAddr| src.is_ipv4() == dst.is_ipv4();
        if src.is_some_and(|src| !families(&src)) {
            return Err(CmError::Invalid { what: "address", why: "the families differ" });
        }
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle => {
                let bound = src.unwrap_or_else(|| wildcard(&dst));
                address::check(with_scope_of(dst, &bound))?;
                self.bind_locked(&mut state, bound)?;
            }
            Phase::Bound => {
                let local = state.local.filter(families).filter(|_| state.ib.is_none());
                let local = local
                    .ok_or(CmError::Invalid { what: "address", why: "the families differ" })?;
                address::check(with_scope_of(dst, &local))?;
            }
            phase => return Err(phase.refuses("resolve an address")),
        }
        self.query(&mut state, dst, timeout);
        Ok(())
    }

    /// Begins to resolve the address of the peer, for an id that is bound.
    pub(super) fn query(&self, state: &mut State, dst: SocketAddr, timeout: Duration) {
        state.phase = Phase::AddrQuery;
        state.peer = Some(dst);
        let host = self.inner();
        let now = host.now();
        match address::route(host, state.local, dst) {
            Err(status) => self.unresolved(state, status),
            Ok(found) => {
                let deadline = now.after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
                self.settle(state, Waiting { found, deadline, pause: FIRST_LOOK }, now);
            }
        }
    }

    /// Looks once more whether the neighbour is known.
    pub(super) fn look_again(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.phase != Phase::AddrQuery {
            return;
        }
        if let Some(waiting) = state.waiting.take() {
            self.settle(&mut state, waiting, now);
        }
    }

    fn settle(&self, state: &mut State, mut waiting: Waiting, now: Instant) {
        let known = waiting.found.next_hop.is_none_or(|(ip, ifindex)| reach(ip, ifindex));
        if known {
            self.resolved(state, &waiting.found);
        } else if now >= waiting.deadline {
            self.unresolved(state, -errno::ETIMEDOUT);
        } else {
            let next = now.after(waiting.pause).min(waiting.deadline);
            waiting.pause = (waiting.pause * 2).min(LAST_LOOK);
            state.waiting = Some(waiting);
            self.inner().cm.resolve_later(self.inner(), self.me.clone(), next);
        }
    }

    pub(super) fn resolved(&self, state: &mut State, found: &Found) {
        let port = state.local.map_or(0, |local| local.port());
        let mut src = found.src;
        src.set_port(port);
        state.local = Some(src);
        state.mtu = found.mtu.and_then(Mtu::from_interface);
        state.dgid = Some(found.dgid);
        state.place = Some(found.place.clone());
        state.phase = Phase::AddrResolved;
        self.raise(CmEventKind::AddrResolved, 0, EventParam::None);
    }

    fn unresolved(&self, state: &mut State, status: i32) {
        state.phase = Phase::Bound;
        self.raise(CmEventKind::AddrError, status, EventParam::None);
    }

    /// Resolves the route to the destination (rdma_resolve_route(3)): ROUTE_RESOLVED follows. On RoCE the path is
    /// what the address, the interface and the options say, so nobody is asked and `timeout` never passes. On an
    /// InfiniBand link it is what the subnet's administrator says, who is asked unless it is known: ROUTE_ERROR follows
    /// with ETIMEDOUT where none answers, with EINVAL where it knows none.
    ///
    /// # Errors
    /// EINVAL unless the address was resolved.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), CmError> {
        self.check()?;
        let mut state = self.state.lock();
        if state.phase != Phase::AddrResolved {
            return Err(state.phase.refuses("resolve a route"));
        }
        state.route = state.make_route();
        let host = self.inner();
        let ends = state.route.as_ref().map(|route| [route.path.sgid, route.path.dgid]);
        if let (Some(ends), true) = (ends, host.subnet.is_some() && host.has_wire()) {
            let [source, target] = ends;
            if let Some(path) = host.fabric.sa.known(host, &source, &target) {
                state.follow(&path);
            } else {
                state.phase = Phase::RouteQuery;
                // The answer may come within the call.
                drop(state);
                let time = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                host.fabric.sa.route(host, self.me.clone(), ends, time);
                return Ok(());
            }
        }
        state.phase = Phase::RouteResolved;
        self.raise(CmEventKind::RouteResolved, 0, EventParam::None);
        Ok(())
    }

    /// The administrator has answered, or has not.
    pub(crate) fn routed(&self, result: Result<SaPath, SaError>) {
        let mut state = self.state.lock();
        if state.phase != Phase::RouteQuery {
            return;
        }
        match result {
            Ok(path) => {
                state.follow(&path);
                state.phase = Phase::RouteResolved;
                self.raise(CmEventKind::RouteResolved, 0, EventParam::None);
            }
            Err(e) => {
                state.route = None;
                state.phase = Phase::AddrResolved;
                let status = if e == SaError::Silent { errno::ETIMEDOUT } else { errno::EINVAL };
                self.raise(CmEventKind::RouteError, -status, EventParam::None);
            }
        }
    }
}

impl State {
    /// The path is the administrator's.
    fn follow(&mut self, path: &SaPath) {
        if let Some(route) = &mut self.route {
            let traffic_class = route.path.traffic_class;
            route.path = PathRecord { traffic_class, ..record(path) };
            self.mtu = Some(self.mtu.map_or(route.path.mtu, |mtu| mtu.min(route.path.mtu)));
        }
    }

    /// The path that addresses, interface and options make.
    pub(super) fn make_route(&self) -> Option<Route> {
        let (place, dgid) = (self.place.as_ref()?, self.dgid?);
        let mtu = place.device.link().1;
        let path = PathRecord {
            dgid,
            sgid: place.gid,
            dlid: 0,
            slid: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: self.options.tos,
            pkey: limits::PKEY,
            sl: 0,
            mtu: self.mtu.map_or(mtu, |of_route| of_route.min(mtu)),
            rate: RATE,
            packet_life_time: PACKET_LIFE_TIME,
        };
        Some(Route { path, gid_index: place.gid_index, port_num: 1 })
    }
}

/// Whether the kernel can send to a host on the link. If it does not know yet, it is made to ask.
fn reach(ip: IpAddr, ifindex: u32) -> bool {
    let known = || match netlink::neighbour(ip, ifindex) {
        Ok(neighbour) => neighbour == Neighbour::Known,
        // A kernel or sandbox that does not tell: the connection's own timeouts will.
        Err(_) => true,
    };
    if known() {
        return true;
    }
    knock(ip, ifindex);
    // An interface without address resolution knows at once.
    known()
}

/// Sends an empty datagram, for which the kernel has to look for the neighbour.
fn knock(ip: IpAddr, ifindex: u32) {
    let from = match ip {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let to = match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            std::net::SocketAddrV6::new(ip, DISCARD, 0, ifindex).into()
        }
        ip => SocketAddr::new(ip, DISCARD),
    };
    // What cannot be sent finds no neighbour either.
    let _ = UdpSocket::bind((from, 0)).and_then(|socket| socket.send_to(&[], to));
}

fn wildcard(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    }
}

/// A destination without a scope is on the link of the source address.
fn with_scope_of(mut dst: SocketAddr, src: &SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut dst
        && v6.scope_id() == 0
    {
        v6.set_scope_id(address::scope(src));
    }
    dst
}
