//! Safe RDMA verbs in Rust, with a software device that needs no adapter.
//!
//! ```
//! use ironverbs::{Access, ConnectOptions, Cq, Devices, Pd, Qp, Rc, connect_pair};
//!
//! # fn main() -> Result<(), ironverbs::Error> {
//! let context = Devices::new()?.first()?.open()?;
//! let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 64)?);
//! let a = Qp::<Rc>::builder(&pd, &cq).build()?;
//! let b = Qp::<Rc>::builder(&pd, &cq).build()?;
//! // Two processes would exchange `endpoint().to_bytes()` over a socket, and each call `connect`.
//! let (a, b) = connect_pair(a, b, &ConnectOptions::default())?;
//!
//! let region = pd.region(4096, Access::LOCAL_WRITE)?;
//! let recv = b.recv(region.slice(..1024)?)?;
//! let mut slice = region.slice(1024..2048)?;
//! slice.assign(b"hello")?;
//! let (sent, _slice) = a.send(slice).post()?.wait();
//! sent?;
//! let (received, slice) = recv.wait();
//! assert_eq!(received?.data(&slice), b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Memory
//! A [`Region`] is memory that the crate allocates and registers. Peers may write it at any time, so that it is never
//! seen as `&[u8]`: bytes are copied in and out, words are loaded and stored atomically. A [`Slice`] is a part of a
//! region that nobody else has. Requests take slices by value, and give them back with their result: what is in
//! flight cannot be touched, and is not freed.
//!
//! A [`Window`] gives peers part of a region, with a key of its own that a request ends again.
//!
//! # Operations
//! [`Qp::send`] and the others make a [`Request`]; [`post`](Request::post) makes it an [`Op`], which is a future
//! for any executor, and can be waited for ([`wait`](Op::wait), [`wait_for`](Op::wait_for)) or spun for
//! ([`spin`](Op::spin)). It comes to a pair: how it ended, and the buffers. What is in flight is kept by the queue:
//! dropping an `Op` only loses its result.
//!
//! # Services
//! [`Rc`], [`Uc`] and [`Ud`] are types: an operation that a service does not have does not compile. A connection is
//! made by [`Unconnected::connect`] from the peer's [`Endpoint`], or by address and port: see [`cm`].
//!
//! # Errors
//! What the caller did wrong shows when a request is posted ([`RequestError`]), with the buffers back at once; what
//! happened to it afterwards shows with its result ([`CompletionError`]). Errors carry what was asked and what is
//! allowed; all convert to [`Error`].
//!
//! # Progress
//! Whoever waits or polls drives the device; a thread of the device takes over when nobody does. Sleepers are woken by
//! a second thread, started with the first of them.
#![deny(unsafe_code)]

mod ah;
mod block;
mod buffer;
pub mod cm;
#[cfg(doctest)]
mod compile_fail;
mod completion;
mod connect;
mod cq;
mod device;
mod error;
mod events;
mod op;
mod pd;
mod qp;
mod queue;
mod reactor;
mod region;
mod remote;
mod request;
mod slice;
mod srq;
mod trusted;
mod window;

pub use ah::{Ah, Destination};
pub use buffer::{Inline, Returned, Source, Target};
pub use completion::{Before, Bound, Done, GRH_LEN, Kind, Message, Received, ReceivedKind, Value};
pub use connect::{ConnectError, ConnectOptions, QpBuilder, Unconnected, connect_pair};
pub use cq::Cq;
pub use device::{Context, Device, Devices, SmWatch};
pub use error::{Blame, CompletionError, Dropped, Error, Rejected, RequestError, Why};
pub use events::{Event, EventSource, NextEvent};
pub use op::{Op, Output};
pub use pd::Pd;
pub use qp::{Connected, Qp, Rc, Transport, Uc, Ud};
pub use region::{RangeError, Region};
pub use remote::{Endpoint, RemoteError, RemoteRegion};
pub use request::{Batch, BatchError, Request};
pub use slice::{SharedSlice, Slice};
pub use srq::Srq;
pub use window::{TypeOne, TypeTwo, Window, WindowType};

pub use ironverbs_soft::{
    Access, AhAttr, Config, Counters, DeviceAttr, EventKind, Gid, GidEntry, GidKind, LinkLayer,
    Mtu, PortAttr, PortState, PostError, QpAttr, QpCap, QpState, ReachError, SmEvents, SrqAttr,
    VendorErr, WcStatus, WrOpcode,
};

/// A network in one process under virtual time, whose Hosts are [`Devices`] like this machine's.
///
/// Nothing happens there unless [`Network::step`](sim::Network::step) is called, on a thread that does not wait.
pub mod sim {
    pub use ironverbs_soft::sim::*;
}

/// The device below this crate, as it is: for the C ABI and for tools.
///
/// Its objects are those of the verbs one by one, without this crate's guarantees: buffers are named by address and
/// key, and whoever posts a request has to keep them until it completes.
pub mod raw {
    pub use ironverbs_soft::*;
}
