//! Waiting for peers.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ironverbs_soft::cm::{
    CmEvent, CmEventKind, CmId, ConnParam, EventChannel, EventParam, PortSpace,
};

use super::connection::{Accepting, Ends};
use super::pending::sealed::{Operation, Step};
use super::{Error, Offer, Pending};
use crate::qp::Connected;
use crate::{Device, Devices, Unconnected, trusted};

/// Takes requests for connections of one service. Requests that nobody has read are refused when it is dropped.
pub struct Listener<T: Connected> {
    ends: Ends,
    transport: PhantomData<fn() -> T>,
}

impl<T: Connected> Listener<T> {
    /// Listens on an address, or on all by a wildcard; port 0 picks one. At most `backlog` requests wait to be read; 0
    /// stands for 1,024, the most that are possible.
    ///
    /// # Errors
    /// Refused: the address or port is in use, or no device has it.
    pub fn bind(devices: &Devices, addr: SocketAddr, backlog: u32) -> Result<Listener<T>, Error> {
        let channel = EventChannel::new(devices.host())?;
        let id = CmId::new(&channel, PortSpace::Tcp, Some(T::TYPE))?;
        id.bind(addr)?;
        id.listen(backlog)?;
        Ok(Listener { ends: Ends { channel, id }, transport: PhantomData })
    }

    /// Where it listens, with the port that was picked.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// Comes to the next request.
    ///
    /// # Errors
    /// Refused, in a fork of the process that made it.
    #[allow(clippy::should_implement_trait)] // it is no iterator
    pub fn next(&mut self) -> Result<Pending<NextRequest<'_, T>>, Error> {
        // Its events are its own: made before, so that a failure loses no request.
        let channel = EventChannel::new(self.ends.channel.host())?;
        Ok(Pending::new(NextRequest { listener: self, channel }))
    }
}

impl<T: Connected> AsFd for Listener<T> {
    /// Readable while a request waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        trusted::cm_fd(&self.ends.channel)
    }
}

impl<T: Connected> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener<{:?}>({})", T::TYPE, self.local_addr())
    }
}

/// Comes to a [`Request`].
pub struct NextRequest<'a, T: Connected> {
    listener: &'a mut Listener<T>,
    channel: Arc<EventChannel>,
}

impl<T: Connected> Operation for NextRequest<'_, T> {
    type Output = Request<T>;

    fn channel(&self) -> &EventChannel {
        &self.listener.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match (event.kind(), event.param()) {
            (CmEventKind::ConnectRequest, EventParam::Conn(param)) => {
                let (id, param) = (event.id().clone(), param.clone());
                drop(event);
                let ends = Ends { channel: self.channel, id };
                ends.id.migrate(&ends.channel)?;
                let device = ends.device()?;
                Ok(Step::Done(Request { ends, device, param, transport: PhantomData }))
            }
            (CmEventKind::DeviceRemoval, _) => Err(Error::DeviceGone),
            _ => Ok(Step::More(self)),
        }
    }

    fn name() -> &'static str {
        "NextRequest"
    }
}

/// A peer that asks for a connection. Dropping it refuses.
pub struct Request<T: Connected> {
    ends: Ends,
    device: Device,
    param: ConnParam,
    transport: PhantomData<fn() -> T>,
}

impl<T: Connected> Request<T> {
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

    /// What the peer's program said: the whole field of 56 bytes, zeros behind.
    pub fn private_data(&self) -> &[u8] {
        &self.param.private_data
    }

    /// READs and atomics that the peer would have in flight, and that it would take of this side.
    pub fn depth(&self) -> (u8, u8) {
        (self.param.responder_resources, self.param.initiator_depth)
    }

    /// Accepts it with this queue pair. Receives that are posted to that before are there when the peer's first message
    /// comes.
    ///
    /// # Errors
    /// Refused: more than 196 bytes of private data, a queue pair of another device.
    pub fn accept(self, qp: Unconnected<T>, offer: &Offer) -> Result<Pending<Accepting<T>>, Error> {
        Accepting::begin(self.ends, qp, offer)
    }

    /// Refuses it, with at most 148 bytes for the peer's program.
    ///
    /// # Errors
    /// Refused: more private data than that.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        Ok(self.ends.id.reject(private_data)?)
    }
}

impl<T: Connected> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request<{:?}>({} to {})", T::TYPE, self.peer_addr(), self.local_addr())
    }
}
