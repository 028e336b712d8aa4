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
mod endpoint;
mod event;
mod id;
mod multicast;
mod objects;
mod options;
mod present;
mod qp;
mod srq;
mod sync;

pub(crate) use addrinfo::{freeaddrinfo, getaddrinfo};
pub(crate) use channel::{create_event_channel, destroy_event_channel};
pub(crate) use connect::{
    accept, connect, disconnect, establish, get_remote_ece, notify, reject, reject_ece,
    set_local_ece,
};
pub(crate) use devices::{free_devices, get_devices};
pub(crate) use endpoint::{create_ep, destroy_ep, get_request};
pub(crate) use event::{ack_cm_event, event_str, get_cm_event};
pub(crate) use id::{
    bind_addr, create_id, destroy_id, get_dst_port, get_src_port, listen, migrate_id, resolve_addr,
    resolve_route,
};
pub(crate) use multicast::{join_multicast, join_multicast_ex, leave_multicast};
pub(crate) use options::set_option;
pub(crate) use present::{announce, warn_of_foreign};
pub(crate) use qp::{create_qp, create_qp_ex, destroy_qp, init_qp_attr};
pub(crate) use srq::{create_srq, create_srq_ex, destroy_srq};
