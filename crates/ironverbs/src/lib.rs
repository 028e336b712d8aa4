//! Safe RDMA verbs in Rust, with a software device that needs no adapter.
#![deny(unsafe_code)]

mod ah;
mod block;
mod buffer;
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

pub use ah::{Ah, Destination};
pub use buffer::{Inline, Source, Target};
pub use completion::{Before, Done, GRH_LEN, Kind, Message, Received, ReceivedKind};
pub use connect::{ConnectError, ConnectOptions, QpBuilder, Unconnected, connect_pair};
pub use cq::Cq;
pub use device::{Context, Device, Devices};
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

pub use ironverbs_soft::{
    Access, AhAttr, Config, Counters, DeviceAttr, EventKind, Gid, GidEntry, GidKind, LinkLayer,
    Mtu, PortAttr, PortState, PostError, QpAttr, QpCap, QpState, SrqAttr, VendorErr, WcStatus,
    WrOpcode,
};

/// The device below this crate, as it is: for the C ABI and for tools.
///
/// Its objects are those of the verbs one by one, without this crate's guarantees: buffers are named by address and
/// key, and whoever posts a request has to keep them until it completes.
pub mod raw {
    pub use ironverbs_soft::*;
}
