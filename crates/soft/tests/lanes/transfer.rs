//! Streams of records that tell what is lost, doubled, late or torn.

use std::sync::Arc;
use std::time::Instant;

use ironverbs_soft::local::{Inbound, MAX_RECORD, Outbound};
use ironverbs_soft::registry::Registry;
use ironverbs_sys::unix::wait_readable;

use super::process::WATCHDOG;

fn kind(number: u32) -> u8 {
    (number % 251) as u8
}

/// Mostly small, now and then as long as can be.
fn len(number: u32) -> usize {
    match number % 32 {
        31 => MAX_RECORD - (number / 32 % 128) as usize,
        n => 4 + (n * 7) as usize,
    }
}

fn fill(number: u32, bytes: &mut [u8]) {
    // With the bit of a header in each word: old payload must never pass for one.
    let word = (number.wrapping_mul(0x9e37_79b9) | 1 << 31).to_le_bytes();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = word[at % 4];
    }
    bytes[..4].copy_from_slice(&number.to_le_bytes());
}

/// The sending half.
pub(crate) struct Source {
    pub(crate) lane: Arc<Outbound>,
    pub(crate) next: u32,
    bytes: Vec<u8>,
}

impl Source {
    pub(crate) fn to(registry: &Registry, slot: u16) -> Source {
        let lane = registry.lanes().to(slot).unwrap();
        Source { lane, next: 0, bytes: vec![0; MAX_RECORD] }
    }

    /// Sends up to `most`, and wakes the receiver if it sleeps. How many.
    pub(crate) fn send(&mut self, most: u32) -> u32 {
        let mut producer = self.lane.producer.lock();
        let mut sent = 0;
        while sent < most {
            let bytes = &mut self.bytes[..len(self.next)];
            fill(self.next, bytes);
            if !producer.push(kind(self.next), bytes) {
                break;
            }
            self.next = self.next.wrapping_add(1);
            sent += 1;
        }
        let wake = sent > 0 && producer.needs_wake();
        drop(producer);
        if wake {
            self.lane.wake();
        }
        sent
    }
}

/// The receiving half: panics on anything but the next record, whole.
#[derive(Default)]
pub(crate) struct Drain {
    pub(crate) next: u32,
}

impl Drain {
    /// Takes up to `most` records from a lane. How many.
    pub(crate) fn take(&mut self, lane: &mut Inbound, most: u32) -> u32 {
        let mut got = [0; MAX_RECORD];
        let mut expected = [0; MAX_RECORD];
        let mut taken = 0;
        while taken < most {
            let Some(record) = lane.consumer.next().expect("a sound lane") else { break };
            assert_eq!((record.kind, record.len), (kind(self.next), len(self.next)));
            let len = record.copy_prefix(&mut got);
            fill(self.next, &mut expected[..len]);
            assert!(got[..len] == expected[..len], "record {} is torn", self.next);
            lane.consumer.release();
            self.next = self.next.wrapping_add(1);
            taken += 1;
        }
        taken
    }
}

/// Sends `count` records to the process in `slot` and takes as many from it, asleep when there is
/// nothing to do: so a wake that is lost is a stall.
pub(crate) fn exchange(registry: &Registry, slot: u16, count: u32) {
    let mut source = Source::to(registry, slot);
    let mut drain = Drain::default();
    let lanes = registry.lanes();
    let mut idle = 0;
    let start = Instant::now();
    while source.next < count || drain.next < count {
        let mut worked = source.send((count - source.next).min(50));
        lanes.for_each_inbound(&mut |lane| worked += drain.take(lane, 50));
        assert!(lanes.deaths().is_empty(), "the peer is gone");
        assert!(start.elapsed() < WATCHDOG, "at {} and {}", source.next, drain.next);
        idle = if worked > 0 { 0 } else { idle + 1 };
        if idle < 20 {
            continue;
        }
        if lanes.prepare_sleep() {
            let woken = wait_readable(&[registry.service_fd()], WATCHDOG / 2).unwrap();
            assert!(woken, "asleep at {} and {}, nobody woke us", source.next, drain.next);
        }
        lanes.awake();
        registry.service(&mut |_, _, _| {});
    }
}
