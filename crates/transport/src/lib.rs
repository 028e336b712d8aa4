//! The IBA transport of RC, UC and UD queue pairs as sans-I/O state machines.
//!
//! A [`Qp`](qp::Qp) takes work requests, packets and time, and gives packets, completions, memory accesses and
//! its next deadline. It has no clock, socket or thread; whoever owns it supplies those as a
//! [`Device`](device::Device) and a [`Sink`](device::Sink).
#![forbid(unsafe_code)]

pub mod device;
pub mod qp;
pub mod verbs;
