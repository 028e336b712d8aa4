//! Loss, duplication, reordering, damage, and a wire that is cut.

use ironverbs_soft::sim::Impairments;
use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{self, Side, attr, move_to, outcomes, pair, pattern, wr};

/// Each kind of trouble alone, and all together.
fn troubles() -> [Impairments; 6] {
    let clean = Impairments::default();
    [
        Impairments { loss: 0.1, ..clean },
        Impairments { duplication: 0.3, ..clean },
        Impairments { reordering: 0.3, ..clean },
        Impairments { corruption: 0.1, ..clean },
        Impairments { loss: 0.1, duplication: 0.1, reordering: 0.1, corruption: 0.1, ..clean },
        Impairments { loss: 0.3, ..clean },
    ]
}

#[test]
fn nothing_is_lost_doubled_or_changed() {
    for (n, trouble) in troubles().into_iter().enumerate() {
        let f = Fabric::seeded(n as u64);
        let (a, b) = f.two();
        let (x, y) = pair(&a, &b, QpType::Rc);
        f.network().unwrap().impair(trouble);
        let data = pattern(500_000, n as u64);
        a.fill(0, &data);
        for i in 0..50 {
            y.post_recv(i, &[b.sge(i * 10_000, 10_000)]).unwrap();
            let from = a.sge(i * 10_000, 10_000);
            x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[from])).unwrap();
        }
        let want: Vec<_> = (0..50).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(outcomes(&f.completions(&b, 50)), want, "{trouble:?}");
        assert_eq!(outcomes(&f.completions(&a, 50)), want, "{trouble:?}");
        assert!(b.read(0, 500_000) == data, "{trouble:?}");
        // And back by READ.
        a.fill(500_000, &vec![0; 500_000]);
        for i in 0..50 {
            let into = a.sge(500_000 + i * 10_000, 10_000);
            x.post_send(&b.remote(i, WrOpcode::Read, i * 10_000), Payload::Sges(&[into])).unwrap();
        }
        assert_eq!(outcomes(&f.completions(&a, 50)), want, "{trouble:?}");
        assert!(a.read(500_000, 500_000) == data, "{trouble:?}");
        f.nothing_more(&[&a, &b]);
    }
}

#[test]
fn atomics_run_once() {
    for (n, trouble) in troubles().into_iter().enumerate() {
        let f = Fabric::seeded(n as u64);
        let (a, b) = f.two();
        let (x, _y) = pair(&a, &b, QpType::Rc);
        f.network().unwrap().impair(trouble);
        for round in 0..10 {
            for i in 0..50 {
                let add = SendWr { compare_add: 1, ..b.remote(i, WrOpcode::FetchAdd, 0) };
                x.post_send(&add, Payload::Sges(&[a.sge(i * 8, 8)])).unwrap();
            }
            f.completions(&a, 50);
            for i in 0..50u64 {
                let seen = a.read(i as usize * 8, 8);
                assert_eq!(seen, (round * 50 + i).to_ne_bytes(), "{trouble:?}");
            }
        }
        assert_eq!(b.read(0, 8), 500u64.to_ne_bytes(), "{trouble:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let f = Fabric::seeded(seed);
        let (a, b) = f.two();
        let (x, _y) = pair(&a, &b, QpType::Rc);
        f.network().unwrap().impair(troubles()[4]);
        for i in 0..20 {
            let request = b.remote(i, WrOpcode::Write, 0);
            x.post_send(&request, Payload::Sges(&[a.sge(0, 20_000)])).unwrap();
        }
        f.completions(&a, 20);
        let network = f.network().unwrap();
        (network.now(), network.traffic(), x.counters())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn a_wire_that_is_cut_ends_in_errors_and_can_be_mended() {
    let f = Fabric::seeded(1);
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let network = f.network().unwrap();
    network.impair(Impairments { loss: 1.0, ..Impairments::default() });
    for (side, other, qp) in [(&a, &b, &x), (&b, &a, &y)] {
        qp.post_recv(1, &[side.sge(0, 8)]).unwrap();
        let request = other.remote(2, WrOpcode::Write, 0);
        qp.post_send(&request, Payload::Sges(&[side.sge(0, 5000)])).unwrap();
    }
    for (side, qp) in [(&a, &x), (&b, &y)] {
        let want = [(2, WcStatus::RetryExcErr), (1, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&f.completions(side, 2)), want);
        assert_eq!(qp.state(), QpState::Err);
    }
    network.impair(Impairments::default());
    move_to(&x, QpState::Reset);
    move_to(&y, QpState::Reset);
    side::join(&a, &x, &b, &y, |_| {});
    x.post_send(&b.remote(3, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(3, WcStatus::Success)]);
}

#[test]
fn a_short_cut_is_not_noticed() {
    let f = Fabric::seeded(2);
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let network = f.network().unwrap();
    for round in 0..10 {
        y.post_recv(round, &[b.sge(0, 50_000)]).unwrap();
        x.post_send(&wr(round, WrOpcode::Send), Payload::Sges(&[a.sge(0, 50_000)])).unwrap();
        network.run_until(20_000 * round, || false);
        network.impair(Impairments { loss: 1.0, ..Impairments::default() });
        // Three times the timeout of 268 ms, of which there are eight.
        network.run_until(900_000_000, || false);
        network.impair(Impairments::default());
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(f.completion(&b).status, WcStatus::Success);
    }
}

#[test]
fn late_packets_of_a_queue_pair_that_is_gone_are_dropped_and_counted() {
    let f = Fabric::seeded(3);
    let hosts = [f.host(), f.host()];
    let (a, b) = (Side::new(&hosts[0], 1 << 20), Side::new(&hosts[1], 1 << 20));
    let (x, y) = pair(&a, &b, QpType::Rc);
    let network = f.network().unwrap();
    network.impair(Impairments { delay: 1_000_000, ..Impairments::default() });
    for i in 0..10 {
        x.post_send(&b.remote(i, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 1000)])).unwrap();
    }
    y.destroy().unwrap();
    x.destroy().unwrap();
    let before = hosts[1].counters();
    f.settle();
    let after = hosts[1].counters();
    assert_eq!(after.rx_packets - before.rx_packets, 10);
    assert_eq!(after.unknown_qp - before.unknown_qp, 10);
    f.nothing_more(&[&a, &b]);
}

#[test]
fn damage_is_found_and_counted() {
    let f = Fabric::seeded(4);
    let hosts = [f.host(), f.host()];
    let (a, b) = (Side::new(&hosts[0], 1 << 20), Side::new(&hosts[1], 1 << 20));
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let network = f.network().unwrap();
    network.impair(Impairments { corruption: 0.2, ..Impairments::default() });
    let data = pattern(1 << 20, 1);
    a.fill(0, &data);
    for i in 0..50 {
        let request = b.remote(i, WrOpcode::Write, i * 20_000);
        x.post_send(&request, Payload::Sges(&[a.sge(i * 20_000, 20_000)])).unwrap();
    }
    f.completions(&a, 50);
    assert!(b.read(0, 1_000_000) == data[..1_000_000]);
    let damaged = network.traffic().corrupted;
    let dropped: u64 = hosts
        .iter()
        .map(|host| {
            let counters = host.counters();
            counters.bad_icrc + counters.unknown_qp
        })
        .sum();
    // A flip of the eight bits that routers may change does no damage.
    assert!(dropped <= damaged && dropped > damaged * 9 / 10, "{dropped} of {damaged}");
}

#[test]
fn a_thousand_seconds_of_silence_cost_nothing() {
    let f = Fabric::seeded(5);
    let (a, b) = f.two();
    let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    side::connect(&x, &attr(b.gid(), y.qpn()));
    side::connect(&y, &attr(a.gid(), x.qpn()));
    let network = f.network().unwrap();
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.completion(&a);
    f.completion(&b);
    f.settle();
    let sent = network.traffic().sent;
    assert!(!network.run_until(1_000_000_000_000, || false));
    assert_eq!(network.traffic().sent, sent, "an idle connection sends nothing");
}
