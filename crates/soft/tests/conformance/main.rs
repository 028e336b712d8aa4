//! What a device of ours does, whatever the way between the peers: every case runs over each path of [`fabric`].
//!
//! Cases are grouped by what they are about. Those that need a network which can be told to misbehave are in
//! `simulated`, and run there only.

#[macro_use]
mod fabric;
mod side;

mod access;
mod channels;
mod completions;
mod connected;
mod connections;
mod datagrams;
mod devices;
mod failures;
mod flushing;
mod limits;
mod lives;
mod memory;
mod model;
mod multicast;
mod onesided;
mod ordering;
mod progress;
mod real;
mod shared_receives;
mod simulated;
mod threads;
mod transitions;
mod vanished;
mod xrc;
