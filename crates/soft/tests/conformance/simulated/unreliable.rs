//! UC and UD on a bad network: messages may be lost, never changed or mixed.

use ironverbs_soft::sim::Impairments;
use ironverbs_soft::*;

use super::seeds;
use crate::fabric::Fabric;
use crate::side::{QKEY, outcomes, pair, pattern, wr};

fn weather(random: &mut fastrand::Rng) -> Impairments {
    Impairments {
        loss: random.f64() * 0.2,
        duplication: random.f64() * 0.1,
        reordering: random.f64() * 0.2,
        corruption: random.f64() * 0.1,
        ..Impairments::default()
    }
}

/// The contents of message `n`: its length and every byte follow from the number.
fn message(n: u64, longest: usize) -> Vec<u8> {
    let mut data = n.to_be_bytes().to_vec();
    data.extend(pattern(fastrand::Rng::with_seed(n).usize(0..longest - 8), n));
    data
}

#[test]
fn connections_deliver_whole_messages() {
    for seed in seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let f = Fabric::seeded(seed);
        let (a, b) = f.two();
        let (x, y) = pair(&a, &b, QpType::Uc);
        let orderly = random.bool();
        let mut weather = weather(&mut random);
        if orderly {
            (weather.duplication, weather.reordering) = (0.0, 0.0);
        }
        f.network().unwrap().impair(weather);
        let mut last = None;
        for n in 0..40 {
            let data = message(n, 10_000);
            a.fill(n as usize * 10_000, &data);
            let _ = y.post_recv(n, &[b.sge(n * 10_000, 10_000)]);
            let from = a.sge(n * 10_000, data.len() as u32);
            x.post_send(&wr(n, WrOpcode::Send), Payload::Sges(&[from])).unwrap();
            if random.bool() {
                f.settle();
            }
            for wc in b.poll() {
                assert_eq!(wc.status, WcStatus::Success, "seed {seed}");
                let got = b.read(wc.wr_id as usize * 10_000, wc.byte_len as usize);
                let number = u64::from_be_bytes(got[..8].try_into().unwrap());
                assert!(got == message(number, 10_000), "seed {seed}: message {number} changed");
                if orderly {
                    assert!(last < Some(number), "seed {seed}: {number} after {last:?}");
                    last = Some(number);
                }
            }
        }
        // The sender never learns of it.
        let sent = outcomes(&a.poll());
        assert!(sent.into_iter().eq((0..40).map(|n| (n, WcStatus::Success))), "seed {seed}");
        assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Rts), "seed {seed}");
        // On a clean wire it goes on as if nothing had been.
        f.settle();
        b.poll();
        f.network().unwrap().impair(Impairments::default());
        let _ = y.post_recv(1000, &[b.sge(0, 10_000)]);
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
        f.settle();
        assert!(b.poll().iter().any(|wc| wc.status == WcStatus::Success && wc.byte_len == 5000));
    }
}

#[test]
fn unreliable_writes_stay_where_they_belong() {
    for seed in seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let f = Fabric::seeded(seed);
        let (a, b) = f.two();
        let (x, y) = pair(&a, &b, QpType::Uc);
        f.network().unwrap().impair(weather(&mut random));
        let data = pattern(500_000, seed);
        a.fill(0, &data);
        for n in 0..40 {
            // Each byte has one place: whatever arrives is right there, or not at all.
            let offset = random.u64(0..400_000);
            let len = random.u32(1..20_000);
            let _ = y.post_recv(n, &[]);
            let opcode = if random.bool() { WrOpcode::Write } else { WrOpcode::WriteWithImm };
            let request = b.remote(n, opcode, offset);
            x.post_send(&request, Payload::Sges(&[a.sge(offset, len)])).unwrap();
            if random.bool() {
                f.settle();
            }
        }
        f.settle();
        let got = b.read(0, 1 << 20);
        let wrong = got.iter().zip(&data).filter(|(got, want)| **got != 0 && got != want).count();
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(got[500_000..].iter().all(|byte| *byte == 0), "seed {seed}");
        assert_eq!(y.state(), QpState::Rts);
    }
}

#[test]
fn datagrams_arrive_whole_or_not() {
    for seed in seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let f = Fabric::seeded(seed);
        let (a, b) = f.two();
        let (x, y) = pair(&a, &b, QpType::Ud);
        f.network().unwrap().impair(weather(&mut random));
        let address = AhAttr { dgid: b.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
        let path = a.pd.create_ah(&address).unwrap().path();
        let ud = Some(UdDest { path, qpn: y.qpn(), qkey: QKEY });
        for n in 0..60 {
            let data = message(n, 4096);
            a.fill(n as usize * 5000, &data);
            let _ = y.post_recv(n, &[b.sge(n * 5000, 5000)]);
            let request = SendWr { ud, ..wr(n, WrOpcode::Send) };
            let from = a.sge(n * 5000, data.len() as u32);
            x.post_send(&request, Payload::Sges(&[from])).unwrap();
        }
        f.settle();
        for wc in b.poll() {
            assert_eq!((wc.status, wc.src_qpn), (WcStatus::Success, x.qpn()), "seed {seed}");
            let got = b.read(wc.wr_id as usize * 5000 + 40, wc.byte_len as usize - 40);
            let number = u64::from_be_bytes(got[..8].try_into().unwrap());
            assert!(got == message(number, 4096), "seed {seed}: datagram {number} changed");
        }
        let sent = outcomes(&a.poll());
        assert!(sent.into_iter().eq((0..60).map(|n| (n, WcStatus::Success))), "seed {seed}");
    }
}
