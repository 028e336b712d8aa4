//! Connections, made and in the making.

use std::fmt;
use std::marker::PhantomData;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ironverbs_soft::cm::{CmEvent, CmEventKind, CmId, EventChannel, EventParam};

use super::pending::sealed::{Operation, Step};
use super::{Error, Offer, Pending};
use crate::qp::{Connected, Qp, QpShared};
use crate::{Device, Unconnected, trusted};

/// An id, and the channel that only its events come to.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) channel: Arc<EventChannel>,
    pub(super) id: Arc<CmId>,
}

impl Ends {
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or(NOWHERE)
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.id.peer_addr().unwrap_or(NOWHERE)
    }

    /// The device: there is one from the moment that the address is resolved or a request has come.
    pub(super) fn device(&self) -> Result<Device, Error> {
        self.id.device().map(Device::from_raw).ok_or(Error::DeviceGone)
    }
}

/// Of what has no address, which nothing here is.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

impl Drop for Ends {
    fn drop(&mut self) {
        // The queue pair goes its own way. The id goes with its last reference, which an event may have.
        let _ = self.id.attach_qp(None);
    }
}

/// A connection in the making.
struct Making<T: Connected> {
    // First: the id lets go of the queue pair before that ends.
    ends: Ends,
    qp: QpShared,
    transport: PhantomData<fn() -> T>,
}

impl<T: Connected> Making<T> {
    fn new(ends: Ends, qp: Unconnected<T>) -> Result<Making<T>, Error> {
        let qp = qp.into_shared();
        ends.id.attach_qp(Some(qp.raw()))?;
        Ok(Making { ends, qp, transport: PhantomData })
    }

    /// The connection, if the event is that it stands.
    fn event(self, event: &CmEvent) -> Result<Connection<T>, Error> {
        if event.kind() != CmEventKind::Established {
            return Err(Error::of(event));
        }
        let private_data = match event.param() {
            EventParam::Conn(param) => param.private_data.clone(),
            _ => Vec::new(),
        };
        let Making { ends, mut qp, .. } = self;
        if let Some((index, _)) = ends.id.gid() {
            // The table has 128 entries.
            qp.gid_index = index as u8;
        }
        let access = qp.access;
        let qp = Qp::new(qp);
        // What the builder said, instead of what the depths stand for.
        let _ = qp.set_access(access);
        Ok(Connection { ends, qp, private_data })
    }
}

/// Comes to a [`Connection`] when the peer has accepted.
pub struct Connecting<T: Connected>(Making<T>);

impl<T: Connected> Connecting<T> {
    pub(super) fn begin(
        ends: Ends,
        qp: Unconnected<T>,
        offer: &Offer,
    ) -> Result<Pending<Connecting<T>>, Error> {
        let making = Making::new(ends, qp)?;
        making.ends.id.connect(offer.param())?;
        Ok(Pending::new(Connecting(making)))
    }
}

impl<T: Connected> Operation for Connecting<T> {
    type Output = Connection<T>;

    fn channel(&self) -> &EventChannel {
        &self.0.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        self.0.event(&event).map(Step::Done)
    }

    fn name() -> &'static str {
        "Connecting"
    }
}

/// Comes to a [`Connection`] when the peer knows that it was accepted.
pub struct Accepting<T: Connected>(Making<T>);

impl<T: Connected> Accepting<T> {
    pub(super) fn begin(
        ends: Ends,
        qp: Unconnected<T>,
        offer: &Offer,
    ) -> Result<Pending<Accepting<T>>, Error> {
        let making = Making::new(ends, qp)?;
        making.ends.id.accept(Some(offer.param()))?;
        Ok(Pending::new(Accepting(making)))
    }
}

impl<T: Connected> Operation for Accepting<T> {
    type Output = Connection<T>;

    fn channel(&self) -> &EventChannel {
        &self.0.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        self.0.event(&event).map(Step::Done)
    }

    fn name() -> &'static str {
        "Accepting"
    }
}

/// A connection with its queue pair. Dropping it disconnects.
pub struct Connection<T: Connected> {
    // First: the id lets go of the queue pair before that ends.
    ends: Ends,
    qp: Qp<T>,
    private_data: Vec<u8>,
}

impl<T: Connected> Connection<T> {
    /// The queue pair, ready to send and receive.
    pub fn qp(&self) -> &Qp<T> {
        &self.qp
    }

    /// The address on this side.
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.peer_addr()
    }

    /// What the peer's program said when it accepted: the whole field, zeros behind. Who accepted heard it before, in the
    /// request.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Ends the connection (rdma_disconnect(3)): what is in flight is flushed, and both sides' [`Connection::closed`]
    /// come. Again is no error.
    ///
    /// # Errors
    /// Refused, in a fork of the process that made it.
    pub fn disconnect(&self) -> Result<(), Error> {
        Ok(self.ends.id.disconnect()?)
    }

    /// Comes when the connection has ended, by whichever side or the loss of the peer's process.
    pub fn closed(&mut self) -> Pending<Closed<'_, T>> {
        Pending::new(Closed(self))
    }
}

impl<T: Connected> AsFd for Connection<T> {
    /// Readable when [`Connection::closed`] has something to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        trusted::cm_fd(&self.ends.channel)
    }
}

impl<T: Connected> fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?}, {} to {})", self.qp, self.local_addr(), self.peer_addr())
    }
}

/// The end of a connection.
pub struct Closed<'a, T: Connected>(&'a mut Connection<T>);

impl<T: Connected> Operation for Closed<'_, T> {
    type Output = ();

    fn channel(&self) -> &EventChannel {
        &self.0.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match event.kind() {
            CmEventKind::Disconnected | CmEventKind::TimewaitExit => Ok(Step::Done(())),
            CmEventKind::DeviceRemoval => Err(Error::DeviceGone),
            _ => Ok(Step::More(self)),
        }
    }

    fn name() -> &'static str {
        "Closed"
    }
}
