//! The software RDMA device: objects, progress, wire path, host registry.
//!
//! A [`Host`] is a value over a clock and links. The objects of the verbs (protection domains, regions, queue
//! pairs, …) hang below it and are shared by reference count; each can be destroyed explicitly, with the errors
//! the verbs define, or simply dropped. Whoever polls a completion queue drives the Host inline; a background
//! thread takes over when nobody polls.

mod ah;
mod channel;
pub mod cm;
mod comp_cntr;
pub mod config;
mod context;
mod counters;
mod cq;
mod device;
pub mod direct;
mod dm;
mod error;
mod event;
mod fabric;
mod host;
mod link;
pub mod local;
mod management;
mod memory;
mod mr;
mod multicast;
mod neighbours;
mod object;
mod pd;
mod progress;
mod qp;
mod qpn;
pub mod raw;
mod reference;
pub mod registry;
mod reporting;
pub mod sim;
mod srq;
mod status;
mod subnet;
mod surroundings;
mod timers;
mod window;
mod xrcd;

pub use ah::Ah;
pub use channel::Channel;
pub use comp_cntr::{CompCntr, CompCntrCaps, CompCntrUnit};
pub use config::{Config, ConfigError};
pub use context::{Context, DeviceAttr, GidEntry, GidKind, LinkLayer, PortAttr, PortState};
pub use counters::HostCounters;
pub use cq::{Cq, CqOptions, Lent, Stamp};
pub use device::Device;
pub use direct::Memory;
pub use dm::Dm;
pub use error::{Error, HostError, post_errno};
pub use event::{AsyncEvent, EventKind, EventSource};
pub use fabric::{Neighbourhood, ReachError, SmEvents, SmRegistration};
pub use host::Host;
pub use management::{MadAddress, MadPort, ReceivedMad};
pub use mr::Mr;
pub use pd::{Hold, Kind, Pd, QpInit, SrqInit};
pub use qp::{PostGuard, Qp};
pub use registry::Member;
pub use srq::{Srq, SrqAttr};
pub use status::{ProcessStatus, QpStatus, ServiceStatus, WaitStatus};
pub use window::{Mw, MwType};
pub use xrcd::Xrcd;

pub use ironverbs_slots::{Given, Giver};
pub use ironverbs_transport::qp::{Carried, Counters, Direct, ModifyError, Payload, PostError};
pub use ironverbs_transport::verbs::*;
pub use ironverbs_wire::{Gid, Mtu, Path};
