//! What a device changes for a peer that it reaches without a network.

use ironverbs_transport::device::{QpEvent, Queue};
use ironverbs_transport::qp::Dropped;
use ironverbs_transport::verbs::{QpState, QpType, SendWr, WcStatus, WrOpcode};
use ironverbs_wire::{Mtu, Op};

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const PACKET: usize = 16_384;
const LEN: usize = 10 * PACKET;

fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for (seed, host) in pair.hosts.iter_mut().enumerate() {
        host.dev.register(LEN, ALL);
        Rng(seed as u64 + 1).fill(&mut host.dev.regions[0].bytes);
    }
    pair
}

fn remote(pair: &Pair, opcode: WrOpcode) -> SendWr {
    let region = &pair.hosts[1].dev.regions[0];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(7, opcode) }
}

#[test]
fn packets_have_the_size_that_the_device_chose() {
    let mut pair = pair(Options { mtu: Mtu::M256, ..Options::default() });
    pair.hosts.iter_mut().for_each(|host| host.qp.set_packet_size(PACKET));
    let len = 3 * PACKET + 1;
    let sge = pair.hosts[0].dev.regions[0].sge(0, len as u32);
    for (opcode, requests) in [(WrOpcode::Write, 4), (WrOpcode::Read, 1)] {
        let before = pair.hosts.iter().map(|host| *host.qp.counters()).collect::<Vec<_>>();
        let request = remote(&pair, opcode);
        pair.send(0, &request, &[sge]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
        let sent =
            |side: usize| pair.hosts[side].qp.counters().tx_packets - before[side].tx_packets;
        assert_eq!(sent(0), requests, "{opcode:?}");
        assert_eq!(sent(0).max(sent(1)), 4, "{opcode:?}");
        let [a, b] = &pair.hosts;
        assert_eq!(a.dev.regions[0].bytes[..len], b.dev.regions[0].bytes[..len]);
    }
    assert_eq!(pair.hosts[0].qp.query().path_mtu, Mtu::M256);
}

#[test]
fn a_part_of_a_read_of_large_packets_is_asked_for_again() {
    let mut pair = pair(Options::default());
    pair.hosts.iter_mut().for_each(|host| host.qp.set_packet_size(PACKET));
    pair.net.filter = Some(|packet, number| !(packet.op == Op::ReadRespMiddle && number == 4));
    let sge = pair.hosts[0].dev.regions[0].sge(0, LEN as u32);
    let request = remote(&pair, WrOpcode::Read);
    pair.send(0, &request, &[sge]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    assert_eq!(pair.hosts[0].dev.regions[0].bytes, pair.hosts[1].dev.regions[0].bytes);
    assert!(pair.hosts[0].qp.counters().recoveries > 0);
}

#[test]
fn the_size_outlives_the_path_mtu_and_not_reset() {
    let mut pair = Pair::reset(Options { qp_type: QpType::Uc, ..Options::default() });
    for side in 0..2 {
        pair.enter_init(side);
        pair.hosts[side].qp.set_packet_size(PACKET);
        pair.enter_rtr(side);
        pair.enter_rts(side);
        pair.hosts[side].dev.register(LEN, ALL);
    }
    for packets in [1, 64] {
        let sges = [0, 1].map(|side| pair.hosts[side].dev.regions[0].sge(0, PACKET as u32));
        pair.recv(1, 1, &sges[1..]);
        let before = pair.hosts[0].qp.counters().tx_packets;
        pair.send(0, &wr(1, WrOpcode::Send), &sges[..1]);
        assert_eq!(pair.wait(1, Queue::Recv).byte_len as usize, PACKET);
        assert_eq!(pair.hosts[0].qp.counters().tx_packets - before, packets);
        for side in 0..2 {
            pair.enter(side, QpState::Reset);
            pair.connect_side(side);
        }
    }
}

#[test]
fn the_size_does_not_change_under_a_request() {
    let mut pair = pair(Options::default());
    let sge = pair.hosts[0].dev.regions[0].sge(0, 4 * 256);
    let request = remote(&pair, WrOpcode::Write);
    pair.send(0, &request, &[sge]);
    pair.transmit();
    pair.hosts[0].qp.set_packet_size(PACKET);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    assert_eq!(pair.hosts[0].qp.counters().tx_packets, 4);
}

#[test]
fn while_timeouts_are_held_silence_costs_neither_retries_nor_probes() {
    let mut pair = pair(Options { timeout: 10, retry_cnt: 0, ..Options::default() });
    pair.hosts[0].qp.hold_timeouts();
    // The peer does not hear, as if it were stopped.
    pair.net.filter = Some(|packet, _| packet.op != Op::WriteOnly);
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    let request = remote(&pair, WrOpcode::Write);
    pair.send(0, &request, &[sge]);
    pair.run_for(1_000_000_000);
    let counters = *pair.hosts[0].qp.counters();
    assert_eq!((counters.tx_packets, counters.timeouts, counters.probes), (1, 0, 0));
    assert_eq!(pair.poll(0, Queue::Send), None);

    let now = pair.net.now;
    pair.hosts[0].qp.release_timeouts(now);
    let wc = pair.wait(0, Queue::Send);
    assert_eq!(wc.status, WcStatus::RetryExcErr);
    assert_eq!(pair.hosts[0].qp.counters().timeouts, 1);
}

#[test]
fn held_timeouts_leave_the_pause_of_an_rnr_nak_alone() {
    let mut pair = pair(Options { rnr_retry: 1, ..Options::default() });
    pair.hosts[0].qp.hold_timeouts();
    pair.send(0, &wr(1, WrOpcode::Send), &[]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::RnrRetryExcErr);
}

#[test]
fn an_infinite_timeout_that_is_held_has_no_deadline() {
    let mut pair = pair(Options { timeout: 0, ..Options::default() });
    pair.hosts[0].qp.hold_timeouts();
    pair.net.filter = Some(|_, _| false);
    pair.send(0, &wr(1, WrOpcode::Send), &[]);
    pair.settle();
    assert_eq!(pair.hosts[0].qp.next_deadline(), None);
}

#[test]
fn dropped_packets_are_counted_together() {
    let dropped = Dropped {
        state: 1,
        service: 10,
        peer: 100,
        pkey: 1_000,
        qkey: 10_000,
        sequence: 100_000,
        message: 1_000_000,
        no_receive: 10_000_000,
        stale: 100_000_000,
    };
    assert_eq!(dropped.total(), 111_111_111);
}

#[test]
fn a_peer_that_was_killed_fails_the_oldest_request_and_flushes_what_follows() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = pair(Options { qp_type, ..Options::default() });
        pair.net.filter = Some(|_, _| false);
        pair.recv(0, 9, &[]);
        pair.send(0, &wr(1, WrOpcode::Send), &[]);
        pair.send(0, &wr(2, WrOpcode::Send), &[]);
        pair.transmit();
        let [host, _] = &mut pair.hosts;
        host.qp.lose_peer(&mut host.dev);
        let mut expected = vec![(1, WcStatus::Success), (2, WcStatus::Success)];
        if qp_type == QpType::Rc {
            expected = vec![(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)];
        }
        for expected in expected {
            let wc = pair.poll(0, Queue::Send).unwrap();
            assert_eq!((wc.wr_id, wc.status), expected);
        }
        assert_eq!(pair.poll(0, Queue::Recv).unwrap().status, WcStatus::WrFlushErr);
        assert_eq!(pair.hosts[0].qp.state(), QpState::Err);
        assert_eq!(pair.hosts[0].dev.events, [QpEvent::Fatal]);
        // Once is enough.
        let [host, _] = &mut pair.hosts;
        host.qp.lose_peer(&mut host.dev);
        assert_eq!(host.dev.events.len(), 1);
    }
}

#[test]
fn requests_known_to_be_carried_out_complete_without_an_acknowledgement() {
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|packet, _| packet.op != Op::Ack);
    for wr_id in 1..4 {
        pair.recv(1, wr_id, &[]);
    }
    pair.send(0, &wr(1, WrOpcode::Send), &[]);
    pair.send(0, &wr(2, WrOpcode::Send), &[]);
    pair.run_for(100_000);
    assert_eq!(pair.poll(0, Queue::Send), None);
    let (now, expected) = (pair.net.now, pair.hosts[1].qp.expected_psn());
    let [host, _] = &mut pair.hosts;
    // What was never sent cannot have been carried out.
    host.qp.presume_received(expected.wrapping_add(1) & 0xff_ffff, now, &mut host.dev);
    host.qp.presume_received(expected.wrapping_sub(2) & 0xff_ffff, now, &mut host.dev);
    assert_eq!(pair.poll(0, Queue::Send), None);
    let [host, _] = &mut pair.hosts;
    host.qp.presume_received(expected, now, &mut host.dev);
    for wr_id in 1..3 {
        assert_eq!(
            pair.poll(0, Queue::Send).map(|wc| (wc.wr_id, wc.status)),
            Some((wr_id, WcStatus::Success))
        );
    }
    assert_eq!(pair.poll(0, Queue::Send), None);
}
