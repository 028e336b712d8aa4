//! Datagram services: found by address and port, and then sent to.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ironverbs_soft::cm::{
    CmError, CmEvent, CmEventKind, CmId, ConnParam, EventChannel, EventParam, PortSpace, UD_QKEY,
    UdParam,
};
use ironverbs_soft::{Error as SoftError, QpType};

use super::connection::Ends;
use super::pending::sealed::{Operation, Step};
use super::{Error, Pending};
use crate::{Ah, Destination, Device, Devices, Pd, Qp, Ud, trusted};

/// The Q_Key of the queue pairs that are found here: `RDMA_UDP_QKEY`, the same for all.
pub const QKEY: u32 = UD_QKEY;

/// A datagram service: peers ask for the queue pair to send to. Those that nobody has answered are refused when it is
/// dropped.
pub struct Service {
    ends: Ends,
}

impl Service {
    /// Offers a service on an address, or on all by a wildcard; port 0 picks one. At most `backlog` of those that ask wait
    /// to be read; 0 stands for 1,024, the most that are possible.
    ///
    /// # Errors
    /// Refused: the address or port is in use, or no device has it.
    pub fn bind(devices: &Devices, addr: SocketAddr, backlog: u32) -> Result<Service, Error> {
        let channel = EventChannel::new(devices.host())?;
        let id = CmId::new(&channel, PortSpace::Udp, Some(QpType::Ud))?;
        id.bind(addr)?;
        id.listen(backlog)?;
        Ok(Service { ends: Ends { channel, id } })
    }

    /// Where it is offered, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// Comes to the next one that asks.
    ///
    /// # Errors
    /// Refused, in a fork of the process that made it.
    #[allow(clippy::should_implement_trait)] // it is no iterator
    pub fn next(&mut self) -> Result<Pending<NextLookup<'_>>, Error> {
        let channel = EventChannel::new(self.ends.channel.host())?;
        Ok(Pending::new(NextLookup { service: self, channel }))
    }
}

impl AsFd for Service {
    /// Readable while somebody waits for an answer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        trusted::cm_fd(&self.ends.channel)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.local_addr())
    }
}

/// Comes to a [`Lookup`].
pub struct NextLookup<'a> {
    service: &'a mut Service,
    channel: Arc<EventChannel>,
}

impl Operation for NextLookup<'_> {
    type Output = Lookup;

    fn channel(&self) -> &EventChannel {
        &self.service.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match (event.kind(), event.param()) {
            (CmEventKind::ConnectRequest, EventParam::Ud(UdParam { private_data, .. })) => {
                let (id, private_data) = (event.id().clone(), private_data.clone());
                drop(event);
                let ends = Ends { channel: self.channel, id };
                ends.id.migrate(&ends.channel)?;
                let device = ends.device()?;
                Ok(Step::Done(Lookup { ends, device, private_data }))
            }
            (CmEventKind::DeviceRemoval, _) => Err(Error::DeviceGone),
            _ => Ok(Step::More(self)),
        }
    }

    fn name() -> &'static str {
        "NextLookup"
    }
}

/// A peer that asks for the queue pair of a service. Dropping it refuses.
pub struct Lookup {
    ends: Ends,
    device: Device,
    private_data: Vec<u8>,
}

impl Lookup {
    /// The device that it came to: the queue pair must be of a context of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address that was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// Who asks.
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.peer_addr()
    }

    /// What the peer's program said: the whole field of 180 bytes, zeros behind.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Names the queue pair to send to, which must have [`QKEY`], with at most 136 bytes for the peer's program. Nothing binds
    /// the two: one queue pair may be named to any number of peers.
    ///
    /// # Errors
    /// Refused: another Q_Key, a queue pair of another device, more private data than that.
    pub fn answer(self, qp: &Qp<Ud>, private_data: &[u8]) -> Result<(), Error> {
        fits(&self.ends.id, qp)?;
        let param = ConnParam {
            qp_num: qp.qpn(),
            private_data: private_data.to_vec(),
            ..ConnParam::default()
        };
        Ok(self.ends.id.accept(Some(&param))?)
    }

    /// Refuses, with at most 136 bytes for the peer's program.
    ///
    /// # Errors
    /// Refused: more private data than that.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        Ok(self.ends.id.reject(private_data)?)
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lookup({} for {})", self.peer_addr(), self.local_addr())
    }
}

/// Whether a queue pair can be named to peers of this id.
pub(super) fn fits(id: &CmId, qp: &Qp<Ud>) -> Result<(), Error> {
    let device = id.device().ok_or(Error::DeviceGone)?;
    if !Arc::ptr_eq(&device, qp.raw().context().device()) {
        return Err(CmError::Device(SoftError::Foreign { what: "queue pair" }).into());
    }
    match qp.attr().qkey {
        QKEY => Ok(()),
        _ => Err(CmError::Invalid { what: "queue pair", why: "its Q_Key is not QKEY" }.into()),
    }
}

/// Finds the way to an address, from a local one if it is given; at most for `timeout`, which a silent host on the link
/// needs.
///
/// # Errors
/// Refused: the families differ, a link-local address is without its scope, the local address is not this host's.
pub fn find(
    devices: &Devices,
    from: Option<SocketAddr>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Pending<FindAddress>, Error> {
    let channel = EventChannel::new(devices.host())?;
    let id = CmId::new(&channel, PortSpace::Udp, Some(QpType::Ud))?;
    id.resolve_addr(from, to, timeout)?;
    Ok(Pending::new(FindAddress(Ends { channel, id })))
}

/// Comes to a [`Way`].
pub struct FindAddress(Ends);

impl Operation for FindAddress {
    type Output = Way;

    fn channel(&self) -> &EventChannel {
        &self.0.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match event.kind() {
            CmEventKind::AddrResolved => {
                self.0.id.resolve_route(ROUTE_TIME)?;
                Ok(Step::More(self))
            }
            CmEventKind::RouteResolved => {
                let device = self.0.device()?;
                Ok(Step::Done(Way { ends: self.0, device }))
            }
            _ => Err(Error::of(&event)),
        }
    }

    fn name() -> &'static str {
        "FindAddress"
    }
}

/// How long a route may take, where somebody is asked for it.
const ROUTE_TIME: Duration = Duration::from_secs(2);

/// A way to a datagram service that has not been asked for yet.
pub struct Way {
    ends: Ends,
    device: Device,
}

impl Way {
    /// The device that it leaves from: the protection domain must be of a context of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address on this side, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// The service's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.peer_addr()
    }

    /// Asks for the service, with at most 180 bytes for its program. The address handle is made in `pd`.
    ///
    /// # Errors
    /// Refused: a domain of another device, more private data than that.
    pub fn look_up(self, pd: &Pd, private_data: &[u8]) -> Result<Pending<LookingUp>, Error> {
        if !Arc::ptr_eq(self.device.raw(), pd.0.context.raw.device()) {
            return Err(CmError::Device(SoftError::Foreign { what: "PD" }).into());
        }
        let param = ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() };
        self.ends.id.connect(&param)?;
        Ok(Pending::new(LookingUp { ends: self.ends, pd: pd.clone() }))
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Way({} to {})", self.local_addr(), self.peer_addr())
    }
}

/// Comes to a [`Found`].
pub struct LookingUp {
    ends: Ends,
    pd: Pd,
}

impl Operation for LookingUp {
    type Output = Found;

    fn channel(&self) -> &EventChannel {
        &self.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match (event.kind(), event.param()) {
            (CmEventKind::Established, EventParam::Ud(param)) => {
                let destination = destination(&self.pd, param)?;
                let private_data = param.private_data.clone();
                Ok(Step::Done(Found { destination, private_data }))
            }
            _ => Err(Error::of(&event)),
        }
    }

    fn name() -> &'static str {
        "LookingUp"
    }
}

/// Where an event says that datagrams go.
pub(super) fn destination(pd: &Pd, param: &UdParam) -> Result<Destination, Error> {
    let ah = Ah::with(pd, &param.ah_attr).map_err(|error| match error {
        crate::Error::Object(error) => Error::from(CmError::Device(error)),
        _ => Error::DeviceGone,
    })?;
    Ok(Destination { ah, qpn: param.qp_num, qkey: param.qkey })
}

/// A service that was found.
#[derive(Clone, Debug)]
pub struct Found {
    destination: Destination,
    private_data: Vec<u8>,
}

impl Found {
    /// Where to send to, from a queue pair of the same protection domain.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// What the service's program said: the whole field of 136 bytes, zeros behind.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
}
