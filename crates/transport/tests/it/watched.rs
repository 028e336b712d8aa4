//! What a device that counts completions is told.

use std::collections::BTreeMap;

use ironverbs_transport::device::{Operation, Queue};
use ironverbs_transport::verbs::{SendFlags, SendWr, WcStatus, WrOpcode};

use crate::support::memory::ALL;
use crate::support::net::Faults;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const HARSH: Faults = Faults { loss: 10, duplication: 10, reordering: 10, corruption: 10 };

const OPCODES: [WrOpcode; 6] = [
    WrOpcode::Send,
    WrOpcode::SendWithImm,
    WrOpcode::Write,
    WrOpcode::WriteWithImm,
    WrOpcode::Read,
    WrOpcode::FetchAdd,
];

fn watched(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for host in &mut pair.hosts {
        host.qp.watch();
        host.dev.register(20_000, ALL);
    }
    pair
}

/// Ends by operation, with success: how many, and bytes; with errors: how many.
fn ends(pair: &Pair, side: usize) -> BTreeMap<usize, (u64, u64, u64)> {
    let mut ends = BTreeMap::<usize, (u64, u64, u64)>::new();
    for &(operation, bytes) in &pair.hosts[side].dev.ended {
        let (good, moved, bad) = ends.entry(operation as usize).or_default();
        *good += u64::from(bytes.is_some());
        *moved += bytes.unwrap_or(0);
        *bad += u64::from(bytes.is_none());
    }
    ends
}

fn request(pair: &mut Pair, opcode: WrOpcode, len: u32) {
    let region = &pair.hosts[1].dev.regions[0];
    let visible = opcode == WrOpcode::FetchAdd;
    let flags = if visible { SendFlags::SIGNALED } else { SendFlags::empty() };
    let request = SendWr { remote_addr: region.base, rkey: region.rkey, flags, ..wr(7, opcode) };
    let sge = pair.hosts[0].dev.regions[0].sge(0, len);
    pair.send(0, &request, &[sge]);
}

/// Whatever is lost, repeated and answered again: each operation ends once, at either end.
#[test]
fn each_operation_ends_once_over_a_bad_network() {
    for seed in 0..80 {
        let mut rng = Rng(seed);
        let mut pair = watched(Options { seed, faults: HARSH, ..Options::default() });
        let (mut here, mut there) = (BTreeMap::new(), BTreeMap::new());
        let mut note = |side: usize, operation: Operation, len: u32| {
            let ends = if side == 0 { &mut here } else { &mut there };
            let (good, moved, _) = ends.entry(operation as usize).or_insert((0, 0, 0));
            *good += 1;
            *moved += u64::from(len);
        };
        for _ in 0..30 {
            let opcode = *rng.pick(&OPCODES);
            let len = if opcode == WrOpcode::FetchAdd { 8 } else { rng.below(2_000) as u32 };
            let room = pair.hosts[1].dev.regions[0].sge(0, 2_000);
            match opcode {
                WrOpcode::Send | WrOpcode::SendWithImm => {
                    pair.recv(1, 1, &[room]);
                    note(0, Operation::Send, len);
                    note(1, Operation::Recv, len);
                }
                WrOpcode::WriteWithImm => {
                    pair.recv(1, 1, &[]);
                    note(0, Operation::Write, len);
                    note(1, Operation::RemoteWrite, len);
                    note(1, Operation::Recv, len);
                }
                WrOpcode::Write => {
                    note(0, Operation::Write, len);
                    note(1, Operation::RemoteWrite, len);
                }
                WrOpcode::Read => {
                    note(0, Operation::Read, len);
                    note(1, Operation::RemoteRead, len);
                }
                _ => {}
            }
            request(&mut pair, opcode, len);
        }
        // Its completion is the last there is.
        request(&mut pair, WrOpcode::FetchAdd, 8);
        while pair.hosts[0].qp.ended_unseen(u64::MAX) != Some(31) {
            assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
        }
        assert_eq!(ends(&pair, 0), here, "seed {seed}");
        assert_eq!(ends(&pair, 1), there, "seed {seed}");
    }
}

#[test]
fn what_is_refused_and_flushed_ends_with_errors() {
    for (opcode, ours, theirs) in [
        (WrOpcode::Write, Operation::Write, Operation::RemoteWrite),
        (WrOpcode::Read, Operation::Read, Operation::RemoteRead),
    ] {
        let mut pair = watched(Options::default());
        pair.recv(1, 1, &[]);
        request(&mut pair, opcode, 100);
        let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
        pair.send(0, &SendWr { rkey: 1, ..wr(0, opcode) }, &[sge]);
        request(&mut pair, WrOpcode::Send, 8);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::RemAccessErr);
        pair.settle();
        let mut here = BTreeMap::from([(ours as usize, (1, 100, 1))]);
        here.insert(Operation::Send as usize, (0, 0, 1));
        assert_eq!(ends(&pair, 0), here);
        let mut there = BTreeMap::from([(theirs as usize, (1, 100, 1))]);
        there.insert(Operation::Recv as usize, (0, 0, 1));
        assert_eq!(ends(&pair, 1), there);
    }
}

/// Completions that the program can read say themselves what is done.
#[test]
fn places_are_free_once_nothing_visible_is_unread() {
    let mut pair = watched(Options::default());
    request(&mut pair, WrOpcode::Write, 8);
    pair.settle();
    assert_eq!(pair.hosts[0].qp.ended_unseen(0), Some(1));
    request(&mut pair, WrOpcode::FetchAdd, 8);
    request(&mut pair, WrOpcode::Write, 8);
    pair.settle();
    assert_eq!(pair.hosts[0].qp.ended_unseen(1), None);
    assert_eq!(pair.hosts[0].qp.ended_unseen(2), Some(3));
}

#[test]
fn nothing_is_told_where_nobody_watches() {
    let mut pair = Pair::connected(Options::default());
    for host in &mut pair.hosts {
        host.dev.register(20_000, ALL);
    }
    request(&mut pair, WrOpcode::Write, 8);
    request(&mut pair, WrOpcode::Read, 8);
    pair.settle();
    assert_eq!((ends(&pair, 0), ends(&pair, 1)), Default::default());
    assert_eq!(pair.hosts[0].qp.ended_unseen(2), None);
}
