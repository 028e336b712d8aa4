//! Payloads by reference, between two queue pairs whose devices can fetch from each other, or refuse to.

use ironverbs_transport::device::{ByReference, Instant, PIECES, Piece, Queue, Sink};
use ironverbs_transport::verbs::{QpCap, QpState, SendWr, WcStatus, WrOpcode};
use ironverbs_wire::{Packet, Path};

use crate::support::memory::{ALL, Memory};
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const PACKET: usize = 1024;
const LEN: usize = 40 * PACKET + 5;

/// A packet, or its headers and what they go with.
struct Parcel {
    bytes: Vec<u8>,
    pieces: Option<Vec<Piece>>,
}

/// Takes what is long by reference.
#[derive(Default)]
struct Lane {
    parcels: Vec<Parcel>,
    reserved: Option<Parcel>,
}

impl Sink for Lane {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        let parcel = self.reserved.insert(Parcel { bytes: vec![0; len], pieces: None });
        Some(&mut parcel.bytes)
    }

    fn commit(&mut self) {
        self.parcels.extend(self.reserved.take());
    }

    fn by_reference(&self) -> Option<ByReference> {
        Some(ByReference { least: 3 * PACKET as u64, most: 7 * PACKET as u32 })
    }

    fn reserve_reference(
        &mut self,
        _: &Path,
        _: u32,
        len: usize,
        pieces: &[Piece],
    ) -> Option<&mut [u8]> {
        assert!((1..=PIECES).contains(&pieces.len()));
        let parcel = Parcel { bytes: vec![0; len], pieces: Some(pieces.to_vec()) };
        Some(&mut self.reserved.insert(parcel).bytes)
    }
}

fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for (seed, host) in pair.hosts.iter_mut().enumerate() {
        host.qp.set_packet_size(PACKET);
        host.dev.register(LEN, ALL);
        Rng(seed as u64 + 1).fill(&mut host.dev.regions[0].bytes);
    }
    pair
}

/// The bytes that pieces name.
fn bytes(memory: &Memory, pieces: &[Piece]) -> Vec<u8> {
    let region = &memory.regions[0];
    let place = |piece: &Piece| {
        let start = (piece.addr - region.base) as usize;
        region.bytes[start..start + piece.len as usize].iter().copied()
    };
    pieces.iter().flat_map(place).collect()
}

/// What becomes of a parcel.
enum Fate {
    Arrives,
    IsLost,
    /// Its payload cannot be fetched.
    IsNotFetched,
}

/// Sends what one side has to send to the other; how many parcels by reference there were.
fn pass(pair: &mut Pair, from: usize, now: Instant, fate: &mut dyn FnMut() -> Fate) -> usize {
    let mut lane = Lane::default();
    let host = &mut pair.hosts[from];
    host.qp.transmit(now, &mut host.dev, &mut lane);
    let path = pair.path(from);
    let mut named = 0;
    for parcel in lane.parcels {
        let packet = Packet::parse(&parcel.bytes).unwrap();
        let fate = fate();
        if matches!(fate, Fate::IsLost) {
            continue;
        }
        let payload = parcel.pieces.map(|pieces| bytes(&pair.hosts[from].dev, &pieces));
        let peer = &mut pair.hosts[1 - from];
        match payload {
            None => peer.qp.handle_packet(&packet, &path, 0, now, &mut peer.dev),
            Some(payload) => {
                named += 1;
                let len = payload.len() as u32;
                peer.dev.payload = Some(payload).filter(|_| matches!(fate, Fate::Arrives));
                peer.qp.handle_reference(&packet, len, &path, now, &mut peer.dev);
                peer.dev.payload = None;
            }
        }
    }
    named
}

/// Lets both sides work until the sender has a completion; how many parcels went by reference.
fn run(pair: &mut Pair, fate: &mut dyn FnMut() -> Fate) -> (WcStatus, usize) {
    let (mut now, mut named) = (pair.net.now, 0);
    for _ in 0..100_000 {
        named += pass(pair, 0, now, fate);
        pass(pair, 1, now, fate);
        if let Some(wc) = pair.poll(0, Queue::Send) {
            pair.net.now = now;
            return (wc.status, named);
        }
        now = now.after(100_000);
        for host in &mut pair.hosts {
            host.qp.handle_timeout(now, &mut host.dev);
        }
    }
    panic!("nothing happens: {:?}", pair.hosts);
}

fn request(pair: &Pair, opcode: WrOpcode) -> SendWr {
    let region = &pair.hosts[1].dev.regions[0];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(7, opcode) }
}

fn post(pair: &mut Pair, opcode: WrOpcode) {
    let sge = |side: usize| pair.hosts[side].dev.regions[0].sge(0, LEN as u32);
    let (from, to, request) = (sge(0), sge(1), request(pair, opcode));
    if opcode != WrOpcode::Write {
        pair.recv(1, 1, &[to]);
    }
    pair.send(0, &request, &[from]);
}

#[track_caller]
fn assert_arrived(pair: &mut Pair, opcode: WrOpcode) {
    assert!(pair.hosts[0].dev.regions[0].bytes == pair.hosts[1].dev.regions[0].bytes);
    if opcode != WrOpcode::Write {
        let wc = pair.poll(1, Queue::Recv).unwrap();
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, LEN));
    }
}

#[test]
fn long_messages_go_by_reference() {
    for opcode in [WrOpcode::Send, WrOpcode::Write, WrOpcode::WriteWithImm] {
        let mut pair = pair(Options::default());
        post(&mut pair, opcode);
        let (status, named) = run(&mut pair, &mut || Fate::Arrives);
        assert_eq!(status, WcStatus::Success);
        assert!((6..12).contains(&named), "{named}");
        assert_arrived(&mut pair, opcode);
        let counters = pair.hosts[0].qp.counters();
        assert_eq!(counters.tx_references, named as u64);
        assert_eq!((counters.recoveries, counters.retransmits), (0, 0));
    }
}

#[test]
fn what_cannot_be_fetched_comes_by_value() {
    let mut pair = pair(Options::default());
    for round in 0..8 {
        post(&mut pair, WrOpcode::Send);
        let (status, named) = run(&mut pair, &mut || Fate::IsNotFetched);
        assert_eq!(status, WcStatus::Success);
        // Soon nobody tries any more.
        assert_eq!(named > 0, round < 4, "round {round}");
        assert_arrived(&mut pair, WrOpcode::Send);
        pair.hosts[1].dev.regions[0].bytes.fill(0);
    }
}

#[test]
fn a_receive_that_comes_late_or_is_too_small() {
    let mut late = pair(Options::default());
    let (from, request) = (late.hosts[0].dev.regions[0].sge(0, LEN as u32), wr(7, WrOpcode::Send));
    late.send(0, &request, &[from]);
    let now = late.net.now;
    pass(&mut late, 0, now, &mut || Fate::Arrives);
    pass(&mut late, 1, now, &mut || Fate::Arrives);
    assert_eq!(late.hosts[0].qp.counters().rnr_naks_received, 1);
    let to = late.hosts[1].dev.regions[0].sge(0, LEN as u32);
    late.recv(1, 1, &[to]);
    assert_eq!(run(&mut late, &mut || Fate::Arrives).0, WcStatus::Success);
    assert_arrived(&mut late, WrOpcode::Send);

    let mut small = pair(Options::default());
    let to = small.hosts[1].dev.regions[0].sge(0, LEN as u32 - 1);
    small.recv(1, 1, &[to]);
    small.send(0, &request, &[from]);
    assert_eq!(run(&mut small, &mut || Fate::Arrives).0, WcStatus::RemInvReqErr);
    assert_eq!(small.poll(1, Queue::Recv).unwrap().status, WcStatus::LocLenErr);
}

#[test]
fn lists_of_many_elements_go_by_value_where_they_must() {
    let mut pair = pair(Options {
        cap: QpCap { max_send_sge: 64, ..Options::default().cap },
        ..Options::default()
    });
    let region = &pair.hosts[0].dev.regions[0];
    // Five and more in a row are too many for a packet.
    let mut sges: Vec<_> = (0..30).map(|i| region.sge(i * 500, 500)).collect();
    sges.push(region.sge(15_000, LEN as u32 - 15_000));
    let to = pair.hosts[1].dev.regions[0].sge(0, LEN as u32);
    pair.recv(1, 1, &[to]);
    pair.send(0, &wr(7, WrOpcode::Send), &sges);
    let (status, named) = run(&mut pair, &mut || Fate::Arrives);
    assert_eq!(status, WcStatus::Success);
    assert!(named > 0);
    assert_arrived(&mut pair, WrOpcode::Send);
}

#[test]
fn what_was_named_is_taken_back_before_the_program_has_its_memory_again() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = pair(Options::default());
        post(&mut pair, WrOpcode::Send);
        assert_eq!(run(&mut pair, &mut || Fate::Arrives).0, WcStatus::Success);
        pair.enter(0, state);
        assert_eq!(pair.hosts[0].dev.revoked, 0, "all of it was acknowledged");
    }
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = pair(Options::default());
        post(&mut pair, WrOpcode::Send);
        let now = pair.net.now;
        pass(&mut pair, 0, now, &mut || Fate::IsLost);
        pair.enter(0, state);
        assert_eq!(pair.hosts[0].dev.revoked, 1);
    }
    let mut failed = pair(Options { retry_cnt: 0, timeout: 1, ..Options::default() });
    post(&mut failed, WrOpcode::Send);
    assert_eq!(run(&mut failed, &mut || Fate::IsLost).0, WcStatus::RetryExcErr);
    assert_eq!(failed.hosts[0].dev.revoked, 1);
}

#[test]
fn whatever_is_lost_or_not_fetched_all_of_it_arrives_once() {
    for seed in 1..400 {
        let mut rng = Rng(seed);
        let mut pair = pair(Options::default());
        let opcode = [WrOpcode::Send, WrOpcode::Write, WrOpcode::WriteWithImm][seed as usize % 3];
        for round in 0..3 {
            Rng(seed * 10 + round).fill(&mut pair.hosts[0].dev.regions[0].bytes);
            post(&mut pair, opcode);
            let mut fate = || match rng.below(10) {
                0 | 1 => Fate::IsLost,
                2 => Fate::IsNotFetched,
                _ => Fate::Arrives,
            };
            assert_eq!(run(&mut pair, &mut fate).0, WcStatus::Success, "seed {seed}");
            assert_arrived(&mut pair, opcode);
        }
        assert_eq!(pair.hosts[1].qp.counters().rx_messages, 3, "seed {seed}");
    }
}
