//! What a Host counts of the packets that no queue pair saw, and of what it sent.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Host;

/// Packets of a Host since it was started. What became of those that reached a queue pair, its own
/// [`counters`](crate::Qp::counters) tell.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Packets that came, good or not.
    pub rx_packets: u64,
    /// Dropped: too short for a packet, or cut by the kernel.
    pub truncated: u64,
    /// Dropped: damaged on the way, or changed by a NAT (the ICRC covers addresses and ports).
    pub bad_icrc: u64,
    /// Dropped: intact, and no RoCEv2 packet.
    pub malformed: u64,
    /// Dropped: for a queue pair that does not exist.
    pub unknown_qp: u64,
    /// Dropped: datagrams to an address that the queue pair's device does not have.
    pub wrong_address: u64,
    /// Handed on to the process of this host that they are for.
    pub forwarded: u64,
    /// Packets given to the network.
    pub tx_packets: u64,
    /// Calls that took them, each with one packet or many.
    pub tx_batches: u64,
    /// Packets that the kernel did not take.
    pub tx_refused: u64,
}

impl Host {
    /// What it counted.
    pub fn counters(&self) -> HostCounters {
        let (received, sent) = (&self.0.received, &self.0.sent);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HostCounters {
            rx_packets: read(&received.packets),
            truncated: read(&received.truncated),
            bad_icrc: read(&received.bad_icrc),
            malformed: read(&received.malformed),
            unknown_qp: read(&received.unknown_qp),
            wrong_address: read(&received.wrong_address),
            forwarded: read(&received.forwarded),
            tx_packets: read(&sent.packets),
            tx_batches: read(&sent.batches),
            tx_refused: read(&sent.refused),
        }
    }
}
