//! librdmacm: the functions behind the stubs of librdmacm.so.1.
//!
//! They live here, since a process has one device stack: that library finds them in the node
//! `IRONVERBS_1` of this one. As elsewhere these are shims: an `rdma_cm_id` is a view of a
//! `CmId` of the device, an `rdma_cm_event` one of a `CmEvent`. What is added is what is C's own:
//! structures that programs read, and ids that work synchronously.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod dispatch;
mod endpoint;
mod event;
mod id;
mod kernel;
mod multicast;
mod newer;
mod objects;
mod options;
mod present;
mod qp;
mod srq;
mod sync;
mod worlds;

pub(crate) use addrinfo::{freeaddrinfo, getaddrinfo};
pub(crate) use channel::{create_event_channel, destroy_event_channel, get_cm_event, migrate_id};
pub(crate) use devices::{free_devices, get_devices};
pub(crate) use dispatch::*;
pub(crate) use endpoint::{create_ep, destroy_ep, get_request};
pub(crate) use event::event_str;
pub(crate) use kernel::gid_reachable;
pub(crate) use newer::{query_addrinfo, resolve_addrinfo, write_cm_event};
pub(crate) use present::{announce, warn_of_foreign};
