//! From an address to a route.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use ironverbs_soft::cm::{CmEvent, CmEventKind, CmId, EventChannel, PathRecord, PortSpace};

use super::connection::{Connecting, Ends};
use super::pending::sealed::{Operation, Step};
use super::{Error, Offer, Pending};
use crate::qp::Connected;
use crate::{Device, Devices, Unconnected};

/// Finds the route to an address, from a local one if it is given; at most for `timeout`, which a silent host on the
/// link needs.
///
/// # Errors
/// Refused: the families differ, a link-local address is without its scope, the local address is not this host's.
pub fn resolve<T: Connected>(
    devices: &Devices,
    from: Option<SocketAddr>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Pending<ResolveAddress<T>>, Error> {
    let channel = EventChannel::new(devices.host())?;
    let id = CmId::new(&channel, PortSpace::Tcp, Some(T::TYPE))?;
    id.resolve_addr(from, to, timeout)?;
    Ok(Pending::new(ResolveAddress(Ends { channel, id }, PhantomData)))
}

/// Comes to a [`Route`].
pub struct ResolveAddress<T: Connected>(Ends, PhantomData<fn() -> T>);

impl<T: Connected> Operation for ResolveAddress<T> {
    type Output = Route<T>;

    fn channel(&self) -> &EventChannel {
        &self.0.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match event.kind() {
            CmEventKind::AddrResolved => {
                // On RoCE nobody is asked.
                self.0.id.resolve_route(Duration::ZERO)?;
                Ok(Step::More(self))
            }
            CmEventKind::RouteResolved => {
                let device = self.0.device()?;
                Ok(Step::Done(Route { ends: self.0, device, transport: PhantomData }))
            }
            _ => Err(Error::of(&event)),
        }
    }

    fn name() -> &'static str {
        "ResolveAddress"
    }
}

/// A way to a peer that has not been asked yet.
pub struct Route<T: Connected> {
    ends: Ends,
    device: Device,
    transport: PhantomData<fn() -> T>,
}

impl<T: Connected> Route<T> {
    /// The device that it leaves from: the queue pair must be of a context of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The address on this side, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.peer_addr()
    }

    /// The path: GIDs, MTU, and what packets carry.
    pub fn path(&self) -> Option<PathRecord> {
        self.ends.id.route().map(|route| route.path)
    }

    /// Asks the peer for a connection of this queue pair.
    ///
    /// # Errors
    /// Refused: more than 56 bytes of private data, a queue pair of another device.
    pub fn connect(
        self,
        qp: Unconnected<T>,
        offer: &Offer,
    ) -> Result<Pending<Connecting<T>>, Error> {
        Connecting::begin(self.ends, qp, offer)
    }
}

impl<T: Connected> fmt::Debug for Route<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route<{:?}>({} to {})", T::TYPE, self.local_addr(), self.peer_addr())
    }
}
