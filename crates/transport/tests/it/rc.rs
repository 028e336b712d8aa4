//! Operations of a reliable connection on a network without faults.

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;
use ironverbs_transport::device::Queue;
use ironverbs_transport::verbs::{SendWr, WcOpcode, WcStatus, WrOpcode};

const LEN: usize = 100_000;

/// A pair with one region of random bytes at each side.
fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    let mut rng = Rng(7);
    for host in &mut pair.hosts {
        let region = host.dev.register(LEN, ALL);
        rng.fill(&mut host.dev.regions[region].bytes);
    }
    pair
}

fn remote(pair: &Pair, wr: SendWr) -> SendWr {
    let region = &pair.hosts[1].dev.regions[0];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..wr }
}

#[test]
fn send_arrives_whatever_its_length() {
    for len in [0, 1, 3, 255, 256, 257, 512, 513, 70_001] {
        let mut pair = pair(Options::default());
        let from = pair.hosts[0].dev.regions[0].sge(5, len);
        let to = pair.hosts[1].dev.regions[0].sge(9, 80_000);
        pair.recv(1, 2, &[to]);
        pair.send(0, &wr(1, WrOpcode::Send), &[from]);
        let sent = pair.wait(0, Queue::Send);
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (1, WcStatus::Success, WcOpcode::Send));
        let received = pair.wait(1, Queue::Recv);
        assert_eq!((received.wr_id, received.status), (2, WcStatus::Success));
        assert_eq!((received.byte_len, received.opcode), (len, WcOpcode::Recv));
        let end = len as usize;
        assert_eq!(
            pair.hosts[0].dev.regions[0].bytes[5..5 + end],
            pair.hosts[1].dev.regions[0].bytes[9..9 + end]
        );
        pair.settle();
        assert_eq!(pair.hosts[0].qp.counters().retransmits, 0);
    }
}

#[test]
fn write_read_and_atomics() {
    for len in [0, 1, 256, 1000, 70_001] {
        let mut pair = pair(Options::default());
        let local = pair.hosts[0].dev.regions[0].sge(0, len);
        let write = remote(&pair, wr(1, WrOpcode::Write));
        pair.send(0, &write, &[local]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
        let end = len as usize;
        let written = pair.hosts[1].dev.regions[0].bytes[..end].to_vec();
        assert_eq!(pair.hosts[0].dev.regions[0].bytes[..end], written);

        pair.hosts[0].dev.regions[0].bytes.fill(0);
        let read = remote(&pair, wr(2, WrOpcode::Read));
        pair.send(0, &read, &[local]);
        let wc = pair.wait(0, Queue::Send);
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::Read, len));
        assert_eq!(pair.hosts[0].dev.regions[0].bytes[..end], written);

        let add = SendWr { compare_add: 5, ..remote(&pair, wr(3, WrOpcode::FetchAdd)) };
        let result = pair.hosts[0].dev.regions[0].sge(80_000, 8);
        let before = pair.hosts[1].dev.regions[0].bytes[..8].to_vec();
        pair.send(0, &add, &[result]);
        assert_eq!(pair.wait(0, Queue::Send).opcode, WcOpcode::FetchAdd);
        assert_eq!(pair.hosts[0].dev.regions[0].bytes[80_000..80_008], before);
        pair.settle();
        assert_eq!(pair.hosts[0].qp.counters().retransmits, 0);
    }
}
