//! The connection manager of the kernel's devices: the kernel's own, behind /dev/infiniband/rdma_cm.
//!
//! An id has a half here when it lives on a device of the kernel, or listens on all devices ([`super::worlds`]). Where that
//! is its only half, what a program asks of it comes here, by [`super::dispatch`].

mod connect;
mod devices;
mod event;
mod ids;
mod multicast;
mod objects;
mod qp;
mod reach;
mod srq;

pub(super) use connect::*;
pub(super) use devices::{get_devices, has_devices, opened};
pub(super) use event::*;
pub(super) use ids::*;
pub(super) use multicast::*;
pub(super) use objects::{Channel, Handle, Id, find, half, is_kernels};
pub(super) use qp::*;
pub(crate) use reach::gid_reachable;
pub(super) use srq::*;
