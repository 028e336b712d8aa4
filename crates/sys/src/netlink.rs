//! Interfaces, their addresses and routes, by rtnetlink(7).
//!
//! Three questions and one subscription: too little for a netlink library, which would bring every
//! message and attribute there is.

pub(crate) mod frame;
mod interfaces;
mod monitor;
mod neighbour;
mod rdma;
mod route;

pub use interfaces::{Address, Interface, interfaces};
pub use monitor::Monitor;
pub use neighbour::{Neighbour, link_address, neighbour};
pub use rdma::{RdmaDevice, RdmaFile, rdma_devices, rdma_verbs_file};
pub use route::{Route, route_through, route_to};
