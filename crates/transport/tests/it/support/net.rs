//! The network: packets with an ICRC, on their way under a virtual clock, with seeded faults.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ironverbs_transport::device::{Instant, Sink};
use ironverbs_wire::{ICRC_LEN, Packet, Path, ROCE_PORT, icrc};

use super::rng::Rng;

const SOURCE_PORT: u16 = 0xc000;

/// Faults, in percent of packets.
#[derive(Copy, Clone, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    pub corruption: u64,
}

/// A packet with its ICRC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    pub path_src: [u8; 16],
    pub path_dst: [u8; 16],
    pub dest_qpn: u32,
    pub bytes: Vec<u8>,
}

impl Sent {
    pub fn path(&self) -> Path {
        Path {
            src: ironverbs_wire::Gid(self.path_src),
            dst: ironverbs_wire::Gid(self.path_dst),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ib: None,
        }
    }

    pub fn udp_len(&self) -> u16 {
        self.bytes.len() as u16 + 8
    }

    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes[..self.bytes.len() - ICRC_LEN]).expect("a packet of ours")
    }

    fn is_intact(&self) -> bool {
        let verdict = icrc::verify(&self.path(), SOURCE_PORT, ROCE_PORT, &self.bytes, 0);
        matches!(verdict, icrc::Verdict::Good { .. })
    }
}

/// A sink that takes up to `room` packets.
#[derive(Debug)]
pub struct Outbox {
    pub packets: Vec<Sent>,
    pub room: usize,
    open: Option<Sent>,
}

impl Outbox {
    pub fn new(room: usize) -> Outbox {
        Outbox { packets: Vec::new(), room, open: None }
    }
}

impl Sink for Outbox {
    fn reserve(&mut self, path: &Path, dest_qpn: u32, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= self.room {
            return None;
        }
        // What lay there before must not show.
        let bytes = vec![0xee; len];
        let open = Sent { path_src: path.src.0, path_dst: path.dst.0, dest_qpn, bytes };
        Some(&mut self.open.insert(open).bytes)
    }

    fn commit(&mut self) {
        let mut sent = self.open.take().expect("commit follows reserve");
        let value = icrc::compute(&sent.path(), SOURCE_PORT, ROCE_PORT, 0, &sent.bytes);
        sent.bytes.extend_from_slice(&value.to_le_bytes());
        self.packets.push(sent);
    }
}

/// Packets under way.
#[derive(Debug)]
pub struct Net {
    pub now: Instant,
    pub faults: Faults,
    /// One way, nanoseconds.
    pub delay: u64,
    pub rng: Rng,
    pub carried: u64,
    /// Called for each packet before faults: false drops it.
    pub filter: Option<fn(&Packet<'_>, u64) -> bool>,
    under_way: BinaryHeap<Reverse<(Instant, u64, Sent)>>,
    count: u64,
    /// When the link is free again.
    busy_until: Instant,
}

impl Net {
    /// Nanoseconds a packet occupies the link.
    const SERIALISATION: u64 = 800;

    pub fn new(seed: u64, faults: Faults) -> Net {
        Net {
            now: Instant(1_000_000),
            faults,
            delay: 10_000,
            rng: Rng(seed),
            carried: 0,
            filter: None,
            under_way: BinaryHeap::new(),
            count: 0,
            busy_until: Instant(0),
        }
    }

    pub fn send(&mut self, sent: Sent) {
        self.carried += 1;
        if let Some(filter) = self.filter
            && !filter(&sent.packet(), self.carried)
        {
            return;
        }
        let leaves = self.busy_until.max(self.now).after(Self::SERIALISATION);
        self.busy_until = leaves;
        if self.rng.percent(self.faults.loss) {
            return;
        }
        if self.rng.percent(self.faults.duplication) {
            let late = self.rng.below(200_000);
            self.schedule(leaves.after(late), sent.clone());
        }
        let mut sent = sent;
        if self.rng.percent(self.faults.corruption) {
            let bit = self.rng.below(sent.bytes.len() as u64 * 8);
            // Byte 4 is outside the ICRC, and a flip there is no harm.
            sent.bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        let extra =
            if self.rng.percent(self.faults.reordering) { self.rng.below(100_000) } else { 0 };
        self.schedule(leaves.after(extra), sent);
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse((at, ..))| *at)
    }

    /// A packet that has arrived intact.
    pub fn arrived(&mut self) -> Option<Sent> {
        while self.next_arrival().is_some_and(|at| at <= self.now) {
            let Reverse((_, _, sent)) = self.under_way.pop()?;
            if sent.is_intact() {
                return Some(sent);
            }
        }
        None
    }

    fn schedule(&mut self, leaves: Instant, sent: Sent) {
        self.count += 1;
        self.under_way.push(Reverse((leaves.after(self.delay), self.count, sent)));
    }
}
