//! Queue pairs on a simulated network: memory, clock and packets of a test.
#![allow(unreachable_pub)]

pub mod memory;
pub mod model;
pub mod net;
pub mod pair;
pub mod rng;

use ironverbs_transport::verbs::{SendFlags, SendWr, WrOpcode};

/// A signaled request that does `opcode` and nothing special.
pub fn wr(wr_id: u64, opcode: WrOpcode) -> SendWr {
    SendWr::new(wr_id, opcode, SendFlags::SIGNALED)
}
