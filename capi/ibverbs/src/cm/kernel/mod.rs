//! The connection manager of the kernel's devices: the kernel's own, behind /dev/infiniband/rdma_cm.
//!
//! Ids and channels are of one world for life. With `IRONVERBS_SOFT=off` they are the kernel's, else the software devices'.
//! What a program passes is looked up among these first, in one place ([`super::dispatch`]).

mod connect;
mod devices;
mod endpoint;
mod event;
mod ids;
mod multicast;
mod objects;
mod qp;

pub(super) use connect::*;
pub(super) use devices::get_devices;
pub(super) use endpoint::*;
pub(super) use event::*;
pub(super) use ids::*;
pub(super) use multicast::*;
pub(super) use objects::{is_kernels, wanted};
pub(super) use qp::*;
