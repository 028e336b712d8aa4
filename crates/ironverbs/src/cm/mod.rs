//! Connections by address and port, as rdma_cm(7) makes them: with other programs of this crate, with those that use
//! librdmacm, and with kernels.
//!
//! ```
//! use std::time::Duration;
//! use ironverbs::cm::{self, Listener, Offer};
//! use ironverbs::{Access, Cq, Devices, Pd, Qp, Rc};
//!
//! # fn main() -> Result<(), ironverbs::Error> {
//! let devices = Devices::new()?;
//! let mut listener = Listener::<Rc>::bind(&devices, "127.0.0.1:0".parse().unwrap(), 0)?;
//! let to = listener.local_addr();
//!
//! // Elsewhere, the other side: an address becomes a route, and a route knows its device.
//! let client = std::thread::spawn(move || -> Result<(), ironverbs::Error> {
//!     let devices = Devices::new()?;
//!     let route = cm::resolve(&devices, None, to, Duration::from_secs(2))?.wait()?;
//!     let context = route.device().open()?;
//!     let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16)?);
//!     let qp = Qp::<Rc>::builder(&pd, &cq).build()?;
//!     let connection = route.connect(qp, &Offer::default().private_data(b"hello"))?.wait()?;
//!     let region = pd.region(64, Access::empty())?;
//!     let mut slice = region.slice(..)?;
//!     slice.write_at(0, b"over the wire")?;
//!     connection.qp().send(slice).post()?.wait().0?;
//!     Ok(())
//! });
//!
//! let request = listener.next()?.wait()?;
//! assert!(request.private_data().starts_with(b"hello\0"));
//! let context = request.device().open()?;
//! let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16)?);
//! let region = pd.region(64, Access::LOCAL_WRITE)?;
//! let qp = Qp::<Rc>::builder(&pd, &cq).build()?;
//! // Posted before the peer can send.
//! let recv = qp.recv(region.slice(..)?)?;
//! let mut connection = request.accept(qp, &Offer::default())?.wait()?;
//! let (received, slice) = recv.wait();
//! assert!(received?.data(&slice).starts_with(b"over the wire"));
//! connection.closed().wait()?;
//! client.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//! What takes time is a [`Pending`]: a future for any executor, which can also be waited for. No thread is needed for
//! it: the device's own wakes the task. Dropping it takes back what was begun. [`Listener`] and [`Connection`] have a
//! descriptor besides, readable while something has happened to them, for a program that polls.
//!
//! # Datagrams
//! A [`Service`] tells those that look for it by address and port which queue pair they are to send to; [`find`] and
//! [`Way::look_up`] ask. Nothing is connected by that, and nothing ends. A [`Group`] is sent to in the same way.
//!
//! ```
//! use std::time::Duration;
//! use ironverbs::cm::{self, Multicast, QKEY, Service};
//! use ironverbs::{Access, Cq, Devices, Inline, Pd, Qp, Ud};
//!
//! # fn main() -> Result<(), ironverbs::Error> {
//! let devices = Devices::new()?;
//! let mut service = Service::bind(&devices, "127.0.0.1:0".parse().unwrap(), 0)?;
//! let to = service.local_addr();
//!
//! let client = std::thread::spawn(move || -> Result<(), ironverbs::Error> {
//!     let devices = Devices::new()?;
//!     let way = cm::find(&devices, None, to, Duration::from_secs(2))?.wait()?;
//!     let context = way.device().open()?;
//!     let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16)?);
//!     let found = way.look_up(&pd, b"who are you?")?.wait()?;
//!     assert!(found.private_data().starts_with(b"a friend"));
//!     let qp = Qp::<Ud>::builder(&pd, &cq).qkey(QKEY).inline(64).build()?;
//!     qp.send(Inline(b"hello"), found.destination()).post()?.wait().0?;
//!     Ok(())
//! });
//!
//! let lookup = service.next()?.wait()?;
//! let context = lookup.device().open()?;
//! let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16)?);
//! let qp = Qp::<Ud>::builder(&pd, &cq).qkey(QKEY).inline(64).build()?;
//! let region = pd.region(128, Access::LOCAL_WRITE)?;
//! let recv = qp.recv(region.slice(..)?)?;
//! lookup.answer(&qp, b"a friend")?;
//! let (received, slice) = recv.wait();
//! assert_eq!(received?.data(&slice), b"hello");
//!
//! client.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! A queue pair in a group hears what it sends there itself, too:
//!
//! ```no_run
//! # use ironverbs::{Devices, Inline, Qp, Slice, Ud, cm::Multicast};
//! # fn f(devices: &Devices, qp: &Qp<Ud>, slice: Slice) -> Result<(), ironverbs::Error> {
//! let group = Multicast::bind(devices, "10.0.0.1".parse().unwrap())?;
//! let group = group.join(qp, "239.7.7.7".parse().unwrap())?.wait()?;
//! let recv = qp.recv(slice)?;
//! qp.send(Inline(b"all of you"), group.destination()).post()?.wait().0?;
//! let (received, slice) = recv.wait();
//! assert_eq!(received?.data(&slice), b"all of you");
//! # Ok(())
//! # }
//! ```
//!
//! # The end
//! A connection that is dropped disconnects; the peer's [`Connection::closed`] tells. So does the death of its process,
//! on this host at once, elsewhere by the silence of its queue pair.

mod connection;
mod datagram;
mod error;
mod group;
mod listener;
mod offer;
mod pending;
mod route;

pub use connection::{Accepting, Closed, Connecting, Connection};
pub use datagram::{FindAddress, Found, LookingUp, Lookup, NextLookup, QKEY, Service, Way, find};
pub use error::Error;
pub use group::{Group, Joining, Multicast};
pub use listener::{Listener, NextRequest, Request};
pub use offer::Offer;
pub use pending::{Operation, Pending};
pub use route::{ResolveAddress, Route, resolve};
