//! Failing requests, and unreliable services, on a network with faults.

use ironverbs_transport::device::Queue;
use ironverbs_transport::verbs::{
    Access, QpState, QpType, SendWr, Sge, WcFlags, WcStatus, WrOpcode,
};

use crate::support::memory::ALL;
use crate::support::net::Faults;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const HARSH: Faults = Faults { loss: 10, duplication: 10, reordering: 10, corruption: 10 };

/// A request that is refused: how it ends here, and how the receive it used, if any, ends there.
#[derive(Copy, Clone, Debug)]
enum Failure {
    BadRkey(WrOpcode),
    NotEnabled,
    ReceiveTooSmall,
    ReceiveUnmapped,
}

const FAILURES: [Failure; 6] = [
    Failure::BadRkey(WrOpcode::Write),
    Failure::BadRkey(WrOpcode::Read),
    Failure::BadRkey(WrOpcode::FetchAdd),
    Failure::NotEnabled,
    Failure::ReceiveTooSmall,
    Failure::ReceiveUnmapped,
];

/// Whatever is lost, the requests before the failing one succeed, it tells why it failed, and those
/// after it are flushed.
#[test]
fn failures_are_told_exactly_over_a_bad_network() {
    for seed in 0..120 {
        let mut rng = Rng(seed);
        let failure = *rng.pick(&FAILURES);
        let mut access = ALL;
        access.set(Access::REMOTE_ATOMIC, !matches!(failure, Failure::NotEnabled));
        let options = Options { seed, access, faults: HARSH, ..Options::default() };
        let mut pair = Pair::connected(options);
        for host in &mut pair.hosts {
            host.dev.register(20_000, ALL);
        }
        let before = rng.below(12);
        for wr_id in 0..before {
            let len = rng.below(2_000) as u32;
            let opcode = *rng.pick(&[WrOpcode::Write, WrOpcode::Read, WrOpcode::Read]);
            request(&mut pair, wr_id, opcode, len);
        }
        let (status, received) = fail(&mut pair, before, failure);
        for wr_id in before + 1..before + 4 {
            request(&mut pair, wr_id, WrOpcode::Read, 500);
        }
        for wr_id in 0..before + 4 {
            let wc = pair.wait(0, Queue::Send);
            let expected = match wr_id {
                id if id < before => WcStatus::Success,
                id if id == before => status,
                _ => WcStatus::WrFlushErr,
            };
            assert_eq!((wc.wr_id, wc.status), (wr_id, expected), "seed {seed} {failure:?}");
        }
        assert_eq!(pair.poll(1, Queue::Recv).map(|wc| wc.status), received, "seed {seed}");
        assert_eq!(pair.hosts[0].qp.state(), QpState::Err);
        assert_eq!(pair.hosts[1].qp.state(), QpState::Err);
    }
}

fn request(pair: &mut Pair, wr_id: u64, opcode: WrOpcode, len: u32) {
    let region = &pair.hosts[1].dev.regions[0];
    let request = SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(wr_id, opcode) };
    let sge = pair.hosts[0].dev.regions[0].sge(0, len);
    pair.send(0, &request, &[sge]);
}

fn fail(pair: &mut Pair, wr_id: u64, failure: Failure) -> (WcStatus, Option<WcStatus>) {
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    let small = pair.hosts[1].dev.regions[0].sge(0, 7);
    match failure {
        Failure::BadRkey(opcode) => {
            pair.send(0, &SendWr { rkey: 1, ..wr(wr_id, opcode) }, &[sge]);
            (WcStatus::RemAccessErr, None)
        }
        Failure::NotEnabled => {
            request(pair, wr_id, WrOpcode::FetchAdd, 8);
            (WcStatus::RemInvReqErr, None)
        }
        Failure::ReceiveTooSmall => {
            pair.recv(1, 1, &[small]);
            pair.send(0, &wr(wr_id, WrOpcode::Send), &[sge]);
            (WcStatus::RemInvReqErr, Some(WcStatus::LocLenErr))
        }
        Failure::ReceiveUnmapped => {
            pair.recv(1, 1, &[Sge { len: 100, lkey: 0x66, ..small }]);
            pair.send(0, &wr(wr_id, WrOpcode::Send), &[sge]);
            (WcStatus::RemOpErr, Some(WcStatus::LocProtErr))
        }
    }
}

/// What an unreliable service delivers is whole, and what was sent.
#[test]
fn unreliable_services_deliver_whole_messages_or_none() {
    const MESSAGES: u64 = 60;
    const SLOT: u32 = 4096;
    for (qp_type, longest) in [(QpType::Uc, 1_500), (QpType::Ud, 256)] {
        let mut delivered = 0;
        for seed in 0..40 {
            let mut rng = Rng(seed);
            let options = Options { qp_type, seed, faults: HARSH, ..Options::default() };
            let mut pair = Pair::connected(options);
            for host in &mut pair.hosts {
                host.dev.register((SLOT as usize) * 128, ALL);
            }
            rng.fill(&mut pair.hosts[0].dev.regions[0].bytes);
            for slot in 0..64 {
                let sge = pair.hosts[1].dev.regions[0].sge(slot * SLOT, SLOT);
                pair.recv(1, slot.into(), &[sge]);
            }
            let mut lengths = Vec::new();
            for n in 0..MESSAGES {
                let len = rng.below(longest + 1) as u32;
                lengths.push(len);
                let sge = pair.hosts[0].dev.regions[0].sge(n as u32 * SLOT, len);
                let ud = (qp_type == QpType::Ud).then(|| pair.destination(0));
                let imm = (n as u32).to_be_bytes();
                pair.send(0, &SendWr { ud, imm, ..wr(n, WrOpcode::SendWithImm) }, &[sge]);
                assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
            }
            pair.settle();
            let header = if qp_type == QpType::Ud { 40 } else { 0 };
            let mut slot = 0;
            while let Some(wc) = pair.poll(1, Queue::Recv) {
                assert_eq!((wc.wr_id, wc.status), (slot, WcStatus::Success), "seed {seed}");
                assert!(wc.flags.contains(WcFlags::WITH_IMM));
                let n = u32::from_be_bytes(wc.imm);
                let len = lengths[n as usize];
                assert_eq!(wc.byte_len, len + header, "seed {seed}");
                let (from, to) = (n * SLOT, slot as u32 * SLOT + header);
                assert_eq!(
                    pair.hosts[0].dev.regions[0].bytes[from as usize..(from + len) as usize],
                    pair.hosts[1].dev.regions[0].bytes[to as usize..(to + len) as usize],
                    "seed {seed}"
                );
                slot += 1;
            }
            delivered += slot;
        }
        assert!(delivered > MESSAGES * 40 / 4, "{qp_type:?}: {delivered} delivered");
    }
}
