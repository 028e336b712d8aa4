//! The API over the device of this machine, by topic.

mod batches;
mod connections;
mod datagrams;
mod devices;
mod errors;
mod lifetime;
mod memory;
mod operations;
mod queue_pairs;
mod shared_receives;
mod simulated;
mod support;
mod waiting;
mod windows;
