//! The IBA transport of RC, UC, UD and XRC queue pairs as sans-I/O state machines.
//!
//! A [`Qp`](qp::Qp) takes work requests, packets and time, and gives packets, completions, memory
//! accesses and its next deadline. It has no clock, socket or thread; whoever owns it supplies
//! those as a [`Device`](device::Device) and a [`Sink`](device::Sink):
//!
//! - [`post_send`](qp::Qp::post_send), [`post_recv`](qp::Qp::post_recv): requests of the program;
//! - [`handle_packet`](qp::Qp::handle_packet): what the network brings;
//! - [`transmit`](qp::Qp::transmit), whenever [`output`](qp::Qp::output) says so;
//! - [`handle_timeout`](qp::Qp::handle_timeout), at [`next_deadline`](qp::Qp::next_deadline).
//!
//! Clauses cited as "IBA" are those of the InfiniBand Architecture Specification, volume 1,
//! release 1.4.
#![forbid(unsafe_code)]

pub mod device;
pub mod qp;
pub mod verbs;
