//! How a requester recovers what the network loses (IBA 9.7.5, 9.7.6).

use crate::support::memory::ALL;
use crate::support::net::Faults;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;
use ironverbs_transport::device::Queue;
use ironverbs_transport::verbs::{SendFlags, SendWr, WcStatus, WrOpcode};
use ironverbs_wire::{Mtu, Op};

const LEN: usize = 1 << 20;

fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for host in &mut pair.hosts {
        host.dev.register(LEN, ALL);
    }
    Rng(5).fill(&mut pair.hosts[1].dev.regions[0].bytes);
    pair
}

fn remote(pair: &Pair, wr_id: u64, opcode: WrOpcode) -> SendWr {
    let region = &pair.hosts[1].dev.regions[0];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(wr_id, opcode) }
}

/// Expects `count` sends to succeed in order.
fn succeed(pair: &mut Pair, count: u64) {
    for wr_id in 0..count {
        let wc = pair.wait(0, Queue::Send);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

#[test]
fn a_lost_last_packet_costs_a_probe_and_no_retry() {
    let mut pair = pair(Options { retry_cnt: 0, timeout: 14, ..Options::default() });
    pair.net.filter = Some(|packet, number| !(packet.op == Op::WriteOnly && number == 1));
    let (request, sge) =
        (remote(&pair, 0, WrOpcode::Write), pair.hosts[0].dev.regions[0].sge(0, 8));
    let start = pair.net.now;
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    let counters = pair.hosts[0].qp.counters();
    assert_eq!((counters.probes, counters.timeouts, counters.retransmits), (1, 0, 1));
    assert!(pair.net.now.since(start) < 4_096 << 14, "sooner than the timeout");
}

#[test]
fn a_lost_acknowledgement_costs_a_probe_and_the_message_arrives_once() {
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|packet, number| !(packet.op == Op::Ack && number == 2));
    pair.recv(1, 1, &[]);
    pair.recv(1, 2, &[]);
    pair.send(0, &wr(0, WrOpcode::Send), &[]);
    succeed(&mut pair, 1);
    pair.settle();
    assert_eq!(pair.poll(1, Queue::Recv).unwrap().wr_id, 1);
    assert_eq!(pair.poll(1, Queue::Recv), None);
    assert_eq!(pair.hosts[1].qp.counters().duplicates, 1);
}

#[test]
fn a_gap_is_closed_by_a_nak_at_once() {
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|_, number| number != 5);
    let sge = pair.hosts[0].dev.regions[0].sge(0, 12 * 256);
    let request = remote(&pair, 0, WrOpcode::Write);
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    let counters = pair.hosts[0].qp.counters();
    assert_eq!((counters.seq_naks_received, counters.probes), (1, 0));
    assert_eq!(counters.retransmits, 8, "the fifth of twelve and what came after");
}

#[test]
fn a_lost_nak_is_made_up_for_by_the_probe() {
    let mut pair = pair(Options::default());
    // The fifth packet, and every NAK of the first millisecond.
    pair.net.filter = Some(|packet, number| {
        let nak = packet.aeth.is_some_and(|aeth| aeth.syndrome & 0x60 == 0x60);
        number != 5 && !nak
    });
    let sge = pair.hosts[0].dev.regions[0].sge(0, 12 * 256);
    let request = remote(&pair, 0, WrOpcode::Write);
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    let counters = pair.hosts[0].qp.counters();
    assert_eq!(counters.timeouts, 0);
    assert!(counters.probes >= 1);
}

#[test]
fn the_answer_to_a_probe_tells_what_else_is_missing() {
    let mut pair = pair(Options::default());
    // Of twelve packets the last seven are lost, so that nobody notices.
    pair.net.filter = Some(|_, number| !(6..=12).contains(&number));
    let sge = pair.hosts[0].dev.regions[0].sge(0, 12 * 256);
    let request = remote(&pair, 0, WrOpcode::Write);
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    let counters = pair.hosts[0].qp.counters();
    assert_eq!((counters.probes, counters.timeouts), (1, 0));
    assert_eq!(counters.retransmits, 1 + 7);
}

#[test]
fn a_partial_read_goes_on_where_it_stopped() {
    let mut pair = pair(Options::default());
    // Request 1, responses 2 to 13: one in the middle is lost.
    pair.net.filter = Some(|_, number| number != 6);
    let sge = pair.hosts[0].dev.regions[0].sge(0, 12 * 256 - 1);
    let request = remote(&pair, 0, WrOpcode::Read);
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    pair.settle();
    let end = 12 * 256 - 1;
    assert_eq!(
        pair.hosts[0].dev.regions[0].bytes[..end],
        pair.hosts[1].dev.regions[0].bytes[..end]
    );
    assert_eq!(pair.hosts[0].qp.counters().retransmits, 1);
    // Twelve responses, and the eight from the lost one on once more.
    assert_eq!(pair.hosts[1].qp.counters().tx_packets, 20);
}

#[test]
fn an_acknowledgement_of_a_later_packet_does_not_complete_a_read() {
    let mut pair = pair(Options::default());
    // READ and WRITE are packets 1 and 2, the answers to the READ 3 to 5: lost. 6 acknowledges the
    // WRITE.
    pair.net.filter = Some(|packet, number| !(packet.op.is_read_response() && number < 7));
    let sge = pair.hosts[0].dev.regions[0].sge(0, 3 * 256);
    let target = pair.hosts[0].dev.regions[0].sge(4096, 8);
    let (read, write) = (remote(&pair, 0, WrOpcode::Read), remote(&pair, 1, WrOpcode::Write));
    let write = SendWr { remote_addr: write.remote_addr + 8192, ..write };
    pair.send(0, &read, &[sge]);
    pair.send(0, &write, &[target]);
    succeed(&mut pair, 2);
    assert_eq!(
        pair.hosts[0].dev.regions[0].bytes[..768],
        pair.hosts[1].dev.regions[0].bytes[..768]
    );
    let counters = pair.hosts[0].qp.counters();
    assert_eq!((counters.recoveries, counters.probes), (1, 0));
    assert_eq!(counters.retransmits, 1, "the READ, and not the WRITE, which was acknowledged");
    assert_eq!(pair.hosts[1].qp.counters().rx_messages, 2);
}

#[test]
fn a_lost_atomic_response_is_repeated_and_the_atomic_runs_once() {
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|packet, number| !(packet.op == Op::AtomicAck && number < 4));
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    let request = SendWr { compare_add: 1, ..remote(&pair, 0, WrOpcode::FetchAdd) };
    let before = pair.hosts[1].dev.regions[0].bytes[..8].to_vec();
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    assert_eq!(pair.hosts[1].dev.atomics, 1);
    assert_eq!(pair.hosts[0].dev.regions[0].bytes[..8], before);
}

#[test]
fn a_lost_answer_to_an_atomic_write_is_repeated_and_nothing_is_written_again() {
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|packet, number| !(packet.op == Op::ReadRespOnly && number < 4));
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    let request = remote(&pair, 0, WrOpcode::AtomicWrite);
    pair.hosts[0].dev.regions[0].bytes[..8].copy_from_slice(b"12345678");
    pair.send(0, &request, &[sge]);
    succeed(&mut pair, 1);
    assert_eq!(&pair.hosts[1].dev.regions[0].bytes[..8], b"12345678");
    assert_eq!(pair.hosts[1].qp.counters().rx_messages, 1);
    assert!(pair.hosts[0].qp.counters().retransmits > 0);
}

#[test]
fn a_requester_keeps_to_its_read_limit() {
    let mut pair = pair(Options { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..Options::default() });
    let sge = pair.hosts[0].dev.regions[0].sge(0, 256);
    for wr_id in 0..10 {
        let request = remote(&pair, wr_id, WrOpcode::Read);
        pair.send(0, &request, &[sge]);
    }
    pair.transmit();
    assert_eq!(pair.hosts[0].qp.counters().tx_packets, 2);
    succeed(&mut pair, 10);
}

#[test]
fn a_fenced_request_waits_for_reads_before_it() {
    let mut pair = pair(Options::default());
    let sge = pair.hosts[0].dev.regions[0].sge(0, 256);
    let read = remote(&pair, 0, WrOpcode::Read);
    pair.send(0, &read, &[sge]);
    let plain = remote(&pair, 1, WrOpcode::Write);
    pair.send(0, &plain, &[sge]);
    let fenced = SendWr { flags: SendFlags::FENCE | SendFlags::SIGNALED, wr_id: 2, ..plain };
    pair.send(0, &fenced, &[sge]);
    pair.transmit();
    assert_eq!(pair.hosts[0].qp.counters().tx_packets, 2);
    succeed(&mut pair, 3);
}

#[test]
fn the_window_bounds_what_is_under_way() {
    let mut pair = pair(Options::default());
    let sge = pair.hosts[0].dev.regions[0].sge(0, LEN as u32);
    let write = remote(&pair, 0, WrOpcode::Write);
    pair.send(0, &write, &[sge]);
    pair.transmit();
    assert_eq!(pair.hosts[0].qp.counters().tx_packets, 16, "the first window");
    pair.net.filter = Some(|packet, _| packet.op.is_request());
    // Without acknowledgements nothing but probes follows.
    pair.run_for(10_000_000);
    let counters = pair.hosts[0].qp.counters();
    assert_eq!(counters.tx_packets - counters.probes, 16);
    pair.net.filter = None;
    succeed(&mut pair, 1);
}

#[test]
fn the_responses_to_a_read_are_within_the_window_too() {
    let mut pair = pair(Options::default());
    let sge = pair.hosts[0].dev.regions[0].sge(0, LEN as u32);
    let read = remote(&pair, 0, WrOpcode::Read);
    pair.send(0, &read, &[sge]);
    pair.net.filter = Some(|packet, _| !packet.op.is_read_response());
    pair.run_for(100_000);
    assert_eq!(pair.hosts[1].qp.counters().tx_packets, 16);
    pair.net.filter = None;
    succeed(&mut pair, 1);
    assert_eq!(pair.hosts[0].dev.regions[0].bytes, pair.hosts[1].dev.regions[0].bytes);
}

/// Nanoseconds that 8 MiB take in messages of 64 KiB, at the usual timeout of 67 ms.
fn transfer_time(opcode: WrOpcode, loss: u64, seed: u64) -> u64 {
    let faults = Faults { loss, ..Faults::default() };
    let mut pair = pair(Options { mtu: Mtu::M1024, faults, seed, ..Options::default() });
    let sge = pair.hosts[0].dev.regions[0].sge(0, 65_536);
    let request = SendWr { flags: SendFlags::empty(), ..remote(&pair, 0, opcode) };
    let start = pair.net.now;
    for round in 0..2 {
        for id in 0..64 {
            let last = id == 63;
            let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
            pair.send(0, &SendWr { wr_id: round, flags, ..request }, &[sge]);
        }
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    }
    pair.net.now.since(start)
}

#[test]
fn one_percent_of_loss_leaves_more_than_a_third_of_the_goodput() {
    for opcode in [WrOpcode::Write, WrOpcode::Read] {
        for seed in 0..5 {
            let clean = transfer_time(opcode, 0, seed);
            let lossy = transfer_time(opcode, 1, seed);
            println!("{opcode:?}: {clean} ns clean, {lossy} ns with loss");
            assert!(lossy < 3 * clean, "{opcode:?} seed {seed}: {lossy} ns, {clean} ns clean");
        }
    }
}
