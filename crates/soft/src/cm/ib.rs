//! Addresses of InfiniBand (AF_IB): a port by its GID, a service by its ID. They stand for IP addresses and ports here, as a
//! GID is one or has one; only what goes over the wire and what programs see differs.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use ironverbs_wire::Gid;
use ironverbs_wire::mad::cm::ServiceId;

use super::address::{self, Found};
use super::id::{CmId, Phase, State};
use super::{CmError, CmEventKind, EventParam, PathRecord, PortSpace, Route};

/// Linux's number of it.
const EPROTONOSUPPORT: i32 = 93;

/// The bits of a service ID that say its port space; the others are the port.
const SPACE_MASK: u64 = !0xffff;

/// An address of InfiniBand (`struct sockaddr_ib`), in host order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct IbAddr {
    /// The port; the unspecified GID is a wildcard.
    pub gid: Gid,
    /// Its partition; not looked at.
    pub pkey: u16,
    /// Flow label and traffic class; not looked at.
    pub flowinfo: u32,
    /// The service ID: port space and port (IBA A11.3.2).
    pub sid: u64,
    /// Which bits of it are said: none of the port's, to get one that is free.
    pub sid_mask: u64,
    /// Kept for the program.
    pub scope_id: u64,
}

impl IbAddr {
    /// The port of the service; 0 for one that is not said.
    pub fn port(&self) -> u16 {
        (self.sid & self.sid_mask) as u16
    }

    /// The port space of the service, which must be one that ids of this space may have.
    fn space(&self, of_id: PortSpace) -> Result<PortSpace, CmError> {
        let mask = self.sid_mask & SPACE_MASK;
        let said = self.sid & mask;
        let fits = |space: &PortSpace| {
            let allowed = *space == of_id || of_id == PortSpace::Ib;
            allowed && said == (*space as u64) << 16 & mask
        };
        let spaces = [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp];
        let unknown = || io::Error::from_raw_os_error(EPROTONOSUPPORT).into();
        spaces.into_iter().find(fits).ok_or_else(unknown)
    }
}

/// The ends of an id with addresses of this kind, as the program gave them.
#[derive(Copy, Clone, Debug)]
pub(super) struct IbEnds {
    pub(super) local: IbAddr,
    pub(super) peer: Option<IbAddr>,
    /// The port space of its service, which is not always the id's.
    pub(super) space: PortSpace,
}

impl CmId {
    /// As [`CmId::bind`], to a port by its GID and a service by its ID.
    ///
    /// # Errors
    /// Besides those: EPROTONOSUPPORT for a service of another port space.
    pub fn bind_ib(&self, addr: IbAddr) -> Result<(), CmError> {
        self.check()?;
        let mut state = self.state.lock();
        if state.phase != Phase::Idle {
            return Err(state.phase.refuses("be bound"));
        }
        self.bind_ib_locked(&mut state, addr)
    }

    fn bind_ib_locked(&self, state: &mut State, addr: IbAddr) -> Result<(), CmError> {
        let space = addr.space(self.port_space())?;
        state.ib = Some(IbEnds { local: addr, peer: None, space });
        let bound = self.bind_locked(state, self.as_ip(&addr));
        if bound.is_err() {
            state.ib = None;
        }
        bound
    }

    /// As [`CmId::resolve_addr`], of a port by its GID.
    ///
    /// # Errors
    /// As [`CmId::resolve_addr`] and [`CmId::bind_ib`].
    pub fn resolve_addr_ib(
        &self,
        src: Option<IbAddr>,
        mut dst: IbAddr,
        timeout: Duration,
    ) -> Result<(), CmError> {
        self.check()?;
        if dst.gid == Gid::UNSPECIFIED {
            dst.gid = Gid::from_ip(Ipv6Addr::LOCALHOST.into());
        }
        let mut state = self.state.lock();
        match (state.phase, &state.ib) {
            (Phase::Idle, _) => {
                let anywhere = IbAddr { pkey: dst.pkey, ..IbAddr::default() };
                self.bind_ib_locked(&mut state, src.unwrap_or(anywhere))?;
            }
            (Phase::Bound, Some(_)) => {}
            (Phase::Bound, None) => {
                return Err(CmError::Invalid { what: "address", why: "the families differ" });
            }
            (phase, _) => return Err(phase.refuses("resolve an address")),
        }
        if let Some(ib) = &mut state.ib {
            ib.peer = Some(dst);
        }
        match self.stranger(&state, &dst) {
            Some(found) => {
                state.peer = Some(self.as_ip(&dst));
                self.resolved(&mut state, &found);
            }
            None => self.query(&mut state, self.as_ip(&dst), timeout),
        }
        Ok(())
    }

    /// A GID of the subnet that is not known here: a port of ours reaches it, if it is there. The administrator knows.
    fn stranger(&self, state: &State, dst: &IbAddr) -> Option<Found> {
        let host = self.inner();
        let subnet = host.subnet.as_ref()?;
        let of_subnet = dst.gid.0.first_chunk() == Some(&subnet.prefix().to_be_bytes());
        if !of_subnet || subnet.of_gid(&dst.gid).is_some() {
            return None;
        }
        let any = || address::any_place(host, true).or_else(|| address::any_place(host, false));
        let place = state.place.clone().or_else(any)?;
        let src = SocketAddr::new(host.ip_of(&place.gid), 0);
        Some(Found { place, src, dgid: dst.gid, next_hop: None, mtu: None })
    }

    /// Local and peer's address, of an id that was bound or resolved by such, or was asked for by such.
    pub fn ib_addrs(&self) -> Option<(IbAddr, Option<IbAddr>)> {
        let state = self.state.lock();
        let IbEnds { mut local, peer, space } = state.ib?;
        if let Some(place) = &state.place {
            local.gid = place.gid;
            local.pkey = if local.pkey == 0 { state.pkey() } else { local.pkey };
        }
        if let Some(bound) = state.local {
            local.sid = ServiceId::of_port(space, bound.port()).0;
            local.sid_mask = !0;
        }
        Some((local, peer))
    }

    /// The IP address that a GID is or has.
    fn as_ip(&self, addr: &IbAddr) -> SocketAddr {
        let host = self.inner();
        let port = addr.port();
        match host.ip_of(&addr.gid) {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                // A GID names no interface; its own, or else the first, is as good as any.
                let devices = host.present_devices();
                let own = devices.iter().find(|device| device.has_gid(&addr.gid));
                let ifindex = own.or(devices.first()).map_or(0, |device| device.ifindex());
                SocketAddrV6::new(ip, port, 0, ifindex).into()
            }
            ip => SocketAddr::new(ip, port),
        }
    }

    /// Takes the program's word for the path to the peer (`RDMA_OPTION_IB_PATH` of rdma_set_option(3)), instead of
    /// [`CmId::resolve_route`]: ROUTE_RESOLVED follows.
    ///
    /// # Errors
    /// EINVAL unless the address was resolved and the path is between its GIDs.
    pub fn set_path(&self, path: PathRecord) -> Result<(), CmError> {
        self.check()?;
        let mut state = self.state.lock();
        let (Phase::AddrResolved, Some(place)) = (state.phase, &state.place) else {
            return Err(state.phase.refuses("be given a path"));
        };
        if path.sgid != place.gid || state.dgid != Some(path.dgid) {
            return Err(CmError::Invalid { what: "path", why: "its GIDs are not the id's" });
        }
        state.route = Some(Route { path, gid_index: place.gid_index, port_num: 1 });
        state.phase = Phase::RouteResolved;
        self.raise(CmEventKind::RouteResolved, 0, EventParam::None);
        Ok(())
    }
}

impl State {
    /// The port space of its service.
    pub(super) fn service_space(&self, of_id: PortSpace) -> PortSpace {
        self.ib.map_or(of_id, |ib| ib.space)
    }

    /// What a request to the peer names.
    pub(super) fn asked_service(&self, of_id: PortSpace) -> ServiceId {
        match self.ib.and_then(|ib| ib.peer) {
            Some(peer) => ServiceId(peer.sid),
            None => ServiceId::of_port(of_id, self.peer.map_or(0, |peer| peer.port())),
        }
    }

    /// The GID that a listener by such an address wants to be asked by, if it wants one.
    pub(super) fn bound_gid(&self) -> Option<Gid> {
        let ib = self.ib.filter(|ib| ib.local.gid != Gid::UNSPECIFIED)?;
        Some(self.place.as_ref().map_or(ib.local.gid, |place| place.gid))
    }

    /// Of a request to a listener of this state: its ends, where those are addresses of this kind.
    pub(super) fn child_ends(&self, place: &address::Place, peer: Gid) -> Option<IbEnds> {
        let ib = self.ib?;
        let local = IbAddr { gid: place.gid, ..ib.local };
        let peer = IbAddr { gid: peer, pkey: local.pkey, ..IbAddr::default() };
        Some(IbEnds { local, peer: Some(peer), space: ib.space })
    }
}
