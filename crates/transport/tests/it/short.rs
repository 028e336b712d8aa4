//! Short messages do what the packets that they are would do.

use ironverbs_transport::device::{Device, Queue};
use ironverbs_transport::qp::Short;
use ironverbs_transport::verbs::{QpState, SendFlags, SendWr, Wc, WcStatus, WrOpcode};

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const LEN: usize = 4096;
const MOST: usize = 64;

fn pair() -> Pair {
    let mut pair = Pair::connected(Options { rnr_retry: 2, ..Options::default() });
    for (seed, host) in pair.hosts.iter_mut().enumerate() {
        host.qp.hold_timeouts();
        host.dev.register(LEN, ALL);
        Rng(seed as u64 + 1).fill(&mut host.dev.regions[0].bytes);
    }
    pair
}

/// Sends what waits at `side` as a short message if it may be one.
fn send_short(pair: &mut Pair, side: usize) -> bool {
    let host = &mut pair.hosts[side];
    let Some(candidate) = host.qp.next_short(MOST) else { return false };
    let (short, sges, len) = (candidate.short, candidate.sges.to_vec(), candidate.len);
    let mut data = short.payload.to_vec();
    for sge in &sges {
        let mut piece = vec![0; sge.len as usize];
        if host.dev.gather(sge, 0, &mut piece).is_err() {
            return false;
        }
        data.extend(piece);
    }
    assert_eq!(data.len(), len);
    let short = Short { payload: &[], ..short };
    host.qp.short_sent(len);
    take(pair, 1 - side, Short { payload: &data, ..short });
    true
}

fn take(pair: &mut Pair, side: usize, short: Short<'_>) {
    let (path, now) = (pair.path(1 - side), pair.net.now);
    let host = &mut pair.hosts[side];
    let taken = host.qp.take_short_ack(&short, &mut host.dev);
    if let (false, Some(packet)) = (taken, short.acknowledgement()) {
        host.qp.handle_packet(&packet, &path, 0, now, &mut host.dev);
    }
    if !host.qp.take_short(&short, &mut host.dev) {
        host.qp.handle_packet(&short.request(), &path, 0, now, &mut host.dev);
    }
}

/// What a program sees of both sides.
fn seen(pair: &mut Pair) -> Vec<Vec<Wc>> {
    let queues = [(0, Queue::Send), (0, Queue::Recv), (1, Queue::Send), (1, Queue::Recv)];
    let mut all = |(side, queue)| std::iter::from_fn(|| pair.poll(side, queue)).collect();
    queues.map(&mut all).to_vec()
}

fn request(rng: &mut Rng, wr_id: u64) -> SendWr {
    let opcode = match rng.below(8) {
        0 => WrOpcode::Write,
        1 => WrOpcode::Read,
        2 | 3 => WrOpcode::SendWithImm,
        _ => WrOpcode::Send,
    };
    let mut request = SendWr { imm: [1, 2, 3, wr_id as u8], ..wr(wr_id, opcode) };
    for flag in [SendFlags::SOLICITED, SendFlags::FENCE] {
        request.flags.set(flag, rng.below(4) == 0);
    }
    request
}

#[test]
fn whatever_is_sent_short_ends_as_by_packets() {
    let mut shorts = 0;
    for seed in 0..200 {
        let mut rng = Rng(seed + 1);
        let mut pairs = [pair(), pair()];
        for wr_id in 0..60 {
            let side = rng.below(2) as usize;
            let (from, to, len) = (rng.below(1000), 2000 + rng.below(1000), 1 + rng.below(100));
            let receives = rng.below(3);
            let breaks = rng.below(300) == 0;
            let mut request = request(&mut rng, wr_id);
            for (pair, short) in pairs.iter_mut().zip([true, false]) {
                let region = &pair.hosts[1 - side].dev.regions[0];
                let mut into = region.sge(to as u32, 100);
                request.remote_addr = region.base + to;
                request.rkey = region.rkey;
                let mut sge = pair.hosts[side].dev.regions[0].sge(from as u32, len as u32);
                if breaks {
                    sge.lkey ^= 0x10;
                    into.lkey ^= u32::from(wr_id % 2 == 0);
                }
                let [a, b] = &mut pair.hosts;
                let (host, peer) = if side == 0 { (a, b) } else { (b, a) };
                for _ in 0..receives {
                    let _ = peer.qp.post_recv(wr_id, &[into]);
                }
                let _ = host.qp.post_send(&request, ironverbs_transport::qp::Payload::Sges(&[sge]));
                if short && send_short(pair, side) {
                    shorts += 1;
                }
                // Acknowledgements are left to the next message.
                if !short || !pair.hosts.iter().all(|host| host.qp.owes_at_most_acks()) {
                    pair.settle();
                }
            }
        }
        pairs.iter_mut().for_each(Pair::settle);
        let [one, other] = &mut pairs;
        assert_eq!(seen(one), seen(other), "seed {seed}");
        for (one, other) in one.hosts.iter().zip(&other.hosts) {
            assert_eq!(one.qp.state(), other.qp.state());
            assert_eq!(one.qp.expected_psn(), other.qp.expected_psn());
            assert_eq!(one.qp.accepts(), other.qp.accepts());
            assert_eq!(one.dev.regions[0].bytes, other.dev.regions[0].bytes);
            assert_eq!(one.dev.events, other.dev.events);
            let counted = |host: &crate::support::pair::Host| {
                let counters = host.qp.counters();
                (counters.tx_messages, counters.rx_messages)
            };
            assert_eq!(counted(one), counted(other));
        }
    }
    assert!(shorts > 1000, "{shorts}");
}

#[test]
fn what_is_not_as_usual_is_left_to_packets() {
    let mut pair = pair();
    let sge = pair.hosts[0].dev.regions[0].sge(0, 8);
    let into = pair.hosts[1].dev.regions[0].sge(0, 8);
    let refuses = |pair: &mut Pair, short: &Short<'_>| {
        let host = &mut pair.hosts[1];
        let before = *host.qp.counters();
        assert!(!host.qp.take_short(short, &mut host.dev));
        assert_eq!(*host.qp.counters(), before);
    };
    pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
    let short = Short { payload: &[7; 8], ..pair.hosts[0].qp.next_short(MOST).unwrap().short };
    // No receive.
    refuses(&mut pair, &short);
    pair.recv(1, 1, &[into]);
    refuses(&mut pair, &Short { psn: short.psn.wrapping_add(1) & 0xff_ffff, ..short });
    refuses(&mut pair, &Short { pkey: 0x1234, ..short });
    refuses(&mut pair, &Short { payload: &[0; 9], ..short });
    let host = &mut pair.hosts[1];
    // Nothing was sent that could be acknowledged.
    assert!(!host.qp.take_short_ack(&Short { ack: Some(short.psn), ..short }, &mut host.dev));
    assert!(host.qp.take_short(&short, &mut host.dev));
    assert_eq!(pair.poll(1, Queue::Recv).map(|wc| wc.status), Some(WcStatus::Success));
    // A second time it is a duplicate.
    refuses(&mut pair, &short);
    let ack = pair.hosts[1].qp.next_short_ack().unwrap();
    assert_eq!(ack.ack, Some(short.psn));
    pair.hosts[1].qp.short_ack_sent();
    assert_eq!(pair.hosts[1].qp.next_short_ack(), None);
    pair.hosts[0].qp.short_sent(8);
    let host = &mut pair.hosts[0];
    assert!(!host.qp.take_short_ack(&Short { pkey: 0x1234, ..ack }, &mut host.dev));
    assert!(host.qp.take_short_ack(&ack, &mut host.dev));
    assert_eq!(pair.poll(0, Queue::Send).map(|wc| wc.status), Some(WcStatus::Success));
    // Two that wait are sent together.
    for wr_id in [2, 3] {
        pair.send(0, &wr(wr_id, WrOpcode::Send), &[sge]);
    }
    assert!(pair.hosts[0].qp.next_short(MOST).is_none());
    pair.settle();
    pair.enter(0, QpState::Err);
    assert!(pair.hosts[0].qp.next_short(MOST).is_none());
}
