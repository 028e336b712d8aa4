//! Requests that the device may carry out without packets: when they are offered, and what is left of them.

use ironverbs_transport::device::Queue;
use ironverbs_transport::verbs::{QpState, QpType, SendFlags, SendWr, WcStatus, WrOpcode};

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::wr;

fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for host in &mut pair.hosts {
        host.dev.register(64 * 1024, ALL);
    }
    pair
}

fn post(pair: &mut Pair, wr_id: u64, opcode: WrOpcode, len: u32) {
    let region = &pair.hosts[1].dev.regions[0];
    let request = SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(wr_id, opcode) };
    let sge = pair.hosts[0].dev.regions[0].sge(0, len);
    pair.send(0, &request, &[sge]);
}

fn carried(pair: &Pair) -> usize {
    pair.hosts[0].dev.carried.len()
}

#[test]
fn with_nothing_before_them_they_leave_no_trace() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = pair(Options { qp_type, ..Options::default() });
        pair.hosts[0].dev.carries = true;
        let opcodes: &[WrOpcode] = match qp_type {
            QpType::Rc => {
                &[WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd, WrOpcode::CompareSwap]
            }
            _ => &[WrOpcode::Write],
        };
        let before = *pair.hosts[0].qp.counters();
        for (i, opcode) in opcodes.iter().enumerate() {
            post(&mut pair, i as u64, *opcode, 8);
            let host = &mut pair.hosts[0];
            host.qp.transmit_directly(&mut host.dev);
            let wc = pair.poll(0, Queue::Send).expect("complete at once");
            assert_eq!((wc.wr_id, wc.status), (i as u64, WcStatus::Success));
        }
        let psn = pair.options.psn;
        assert!(pair.hosts[0].dev.carried.iter().all(|&request| request == (psn, 8)));
        let after = *pair.hosts[0].qp.counters();
        assert_eq!(after.tx_packets, before.tx_packets);
        assert_eq!(after.tx_messages - before.tx_messages, opcodes.len() as u64);
        assert_eq!(after.direct.process.messages, opcodes.len() as u64);
        // The peer expects the PSN that it did.
        let into = pair.hosts[1].dev.regions[0].sge(0, 8);
        pair.recv(1, 70, &[into]);
        post(&mut pair, 9, WrOpcode::Send, 8);
        assert_eq!(pair.wait(1, Queue::Recv).status, WcStatus::Success);
        assert_eq!(pair.wait(0, Queue::Send).wr_id, 9);
    }
}

#[test]
fn what_is_no_such_request_is_not_offered() {
    let mut pair = pair(Options { max_rd_atomic: 0, ..Options::default() });
    pair.hosts[0].dev.carries = true;
    let sge = pair.hosts[1].dev.regions[0].sge(0, 8);
    (0..3).for_each(|i| pair.recv(1, i, &[sge]));
    for (opcode, len) in [(WrOpcode::Send, 8), (WrOpcode::WriteWithImm, 8), (WrOpcode::Write, 0)] {
        post(&mut pair, 1, opcode, len);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success, "{opcode:?}");
    }
    // Nor one that fails here.
    post(&mut pair, 2, WrOpcode::Read, 8);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::LocQpOpErr);
    assert_eq!(pair.hosts[0].dev.offered, 0);
}

#[test]
fn behind_a_message_a_short_one_goes_as_a_packet_and_a_long_one_waits() {
    let mut pair = pair(Options::default());
    pair.hosts[0].dev.carries = true;
    let sge = pair.hosts[1].dev.regions[0].sge(0, 8);
    (0..2).for_each(|i| pair.recv(1, i, &[sge]));
    post(&mut pair, 1, WrOpcode::Send, 8);
    post(&mut pair, 2, WrOpcode::Write, 8);
    let done: Vec<_> = (0..2).map(|_| pair.wait(0, Queue::Send).wr_id).collect();
    assert_eq!((done, carried(&pair)), (vec![1, 2], 0));
    post(&mut pair, 3, WrOpcode::Send, 8);
    post(&mut pair, 4, WrOpcode::Write, 60_000);
    pair.transmit();
    assert_eq!(carried(&pair), 0, "it overtook");
    let done: Vec<_> = (0..2).map(|_| pair.wait(0, Queue::Send).wr_id).collect();
    assert_eq!((done, carried(&pair)), (vec![3, 4], 1));
}

#[test]
fn those_under_way_are_waited_for_as_soon_as_the_device_can() {
    let mut pair = pair(Options::default());
    // The peer is not yet known: a stream of packets.
    (0..4).for_each(|i| post(&mut pair, i, WrOpcode::Write, 600));
    pair.transmit();
    assert_eq!(carried(&pair), 0);
    pair.hosts[0].dev.carries = true;
    for i in 4..60 {
        post(&mut pair, i, if i % 3 == 0 { WrOpcode::Read } else { WrOpcode::Write }, 600);
    }
    for i in 0..60 {
        let wc = pair.wait(0, Queue::Send);
        assert_eq!((wc.wr_id, wc.status), (i, WcStatus::Success));
    }
    assert!(carried(&pair) >= 40, "{} of 60", carried(&pair));
}

#[test]
fn a_device_that_promises_and_does_not_keep_slows_nobody_down_for_long() {
    let mut pair = pair(Options::default());
    // It could, it says once something is under way, and never does.
    let mut done = 0;
    for i in 0..600u64 {
        if i >= done + 40 {
            assert_eq!(pair.wait(0, Queue::Send).wr_id, done);
            done += 1;
        }
        post(&mut pair, i, WrOpcode::Write, 8);
        pair.hosts[0].dev.carries = true;
        pair.hosts[0].dev.breaks_word = true;
        pair.transmit();
    }
    while done < 600 {
        assert_eq!(pair.wait(0, Queue::Send).wr_id, done);
        done += 1;
    }
    // Each disappointment is an offer.
    assert!(pair.hosts[0].dev.offered < 20, "{} offers", pair.hosts[0].dev.offered);
    assert_eq!(carried(&pair), 0);
}

#[test]
fn nothing_is_begun_in_a_drained_queue_and_what_is_posted_in_error_is_flushed() {
    let mut pair = pair(Options::default());
    pair.hosts[0].dev.carries = true;
    pair.enter(0, QpState::Sqd);
    post(&mut pair, 1, WrOpcode::Write, 8);
    pair.settle();
    assert_eq!((carried(&pair), pair.poll(0, Queue::Send)), (0, None));
    pair.enter(0, QpState::Rts);
    assert_eq!(pair.wait(0, Queue::Send).wr_id, 1);
    assert_eq!(carried(&pair), 1);
    pair.enter(0, QpState::Err);
    post(&mut pair, 2, WrOpcode::Write, 8);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::WrFlushErr);
    assert_eq!(carried(&pair), 1);
}

#[test]
fn unsignaled_ones_complete_silently() {
    let mut pair = pair(Options::default());
    pair.hosts[0].dev.carries = true;
    let region = &pair.hosts[1].dev.regions[0];
    let quiet = SendWr {
        remote_addr: region.base,
        rkey: region.rkey,
        flags: SendFlags::empty(),
        ..wr(1, WrOpcode::Write)
    };
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    (0..200).for_each(|_| {
        pair.send(0, &quiet, &[sge]);
        pair.transmit();
    });
    assert_eq!((carried(&pair), pair.poll(0, Queue::Send)), (200, None));
}
