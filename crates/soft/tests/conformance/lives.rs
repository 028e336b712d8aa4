//! How objects come and go: parents in use, objects destroyed twice, numbers, and destruction in full traffic.

use std::collections::HashSet;
use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EBUSY, EINVAL};

use crate::fabric::Fabric;
use crate::side::{ALL, Side, attr, outcomes, pair, pair_with, wr};

cases![
    a_domain_in_use_is_busy,
    a_completion_queue_in_use_is_busy,
    a_shared_receive_queue_in_use_is_busy,
    a_channel_in_use_is_busy,
    what_is_destroyed_is_stale,
    a_queue_pair_can_be_destroyed_in_every_state,
    a_queue_pair_number_rests,
    destroying_queue_pairs_in_full_traffic,
    a_thousand_queue_pairs_of_one_process,
    objects_that_are_only_dropped_go,
    ten_thousand_regions_leave_nothing_behind,
    a_device_outlives_its_opener,
    address_handles_may_go_before_their_datagrams,
];

#[track_caller]
fn busy(done: Result<(), Error>, users: usize) {
    match done.unwrap_err() {
        error @ Error::Busy { users: found, .. } => {
            assert_eq!((error.errno(), found), (EBUSY, users));
        }
        other => panic!("{other}"),
    }
}

fn a_domain_in_use_is_busy(f: &Fabric) {
    let side = f.side();
    let pd = side.context.alloc_pd().unwrap();
    let address = AhAttr { dgid: side.gid(), is_global: true, port_num: 1, ..AhAttr::default() };

    let mr = crate::side::register(&pd, &side.memory, ALL);
    busy(pd.destroy(), 1);
    let ah = pd.create_ah(&address).unwrap();
    let srq = pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let qp = pd.create_qp(&side.init(QpType::Rc)).unwrap();
    busy(pd.destroy(), 4);
    // It still works.
    let other = pd.create_qp(&side.init(QpType::Ud)).unwrap();
    busy(pd.destroy(), 5);
    other.destroy().unwrap();
    mr.destroy().unwrap();
    busy(pd.destroy(), 3);
    ah.destroy().unwrap();
    busy(pd.destroy(), 2);
    srq.destroy().unwrap();
    busy(pd.destroy(), 1);
    qp.destroy().unwrap();
    pd.destroy().unwrap();
}

fn a_completion_queue_in_use_is_busy(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    // As send and as receive CQ.
    busy(a.cq.destroy(), 2);
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
    let other = a.context.create_cq(1, None, 0).unwrap();
    for (send, recv) in [(&other, &a.cq), (&a.cq, &other)] {
        let init = QpInit { send_cq: send.clone(), recv_cq: recv.clone(), ..a.init(QpType::Rc) };
        let qp = a.pd.create_qp(&init).unwrap();
        busy(other.destroy(), 1);
        qp.destroy().unwrap();
    }
    other.destroy().unwrap();
    x.destroy().unwrap();
    a.cq.destroy().unwrap();
    y.destroy().unwrap();
}

fn a_shared_receive_queue_in_use_is_busy(f: &Fabric) {
    let (a, b) = f.two();
    let srq = b.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    let init = QpInit { srq: Some(srq.clone()), ..b.init(QpType::Rc) };
    let (x, y) = (a.qp(QpType::Rc), b.pd.create_qp(&init).unwrap());
    crate::side::join(&a, &x, &b, &y, |_| {});
    busy(srq.destroy(), 1);
    srq.post_recv(1, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&b, 1)), [(1, WcStatus::Success)]);
    y.destroy().unwrap();
    srq.destroy().unwrap();
}

fn a_channel_in_use_is_busy(f: &Fabric) {
    let side = f.side();
    let channel = side.context.create_channel().unwrap();
    let one = side.context.create_cq(1, Some(&channel), 0).unwrap();
    let two = side.context.create_cq(1, Some(&channel), 0).unwrap();
    busy(channel.destroy(), 2);
    one.destroy().unwrap();
    busy(channel.destroy(), 1);
    two.request_notify(false).unwrap();
    two.destroy().unwrap();
    channel.destroy().unwrap();
}

fn what_is_destroyed_is_stale(f: &Fabric) {
    let side = f.side();
    let stale = |done: Result<(), Error>| {
        let error = done.unwrap_err();
        assert!(matches!(error, Error::Stale { .. }), "{error}");
        assert_eq!(error.errno(), EINVAL);
    };
    let address = AhAttr { dgid: side.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
    let pd = side.context.alloc_pd().unwrap();
    let cq = side.context.create_cq(1, Some(&side.channel), 0).unwrap();
    let qp = side.qp(QpType::Rc);
    let (mr, ah) = (side.register(ALL), side.pd.create_ah(&address).unwrap());
    let srq = side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let channel = side.context.create_channel().unwrap();
    for _ in 0..2 {
        let done = [
            pd.destroy(),
            cq.destroy(),
            qp.destroy(),
            mr.destroy(),
            ah.destroy(),
            srq.destroy(),
            channel.destroy(),
        ];
        if done[0].is_err() {
            done.into_iter().for_each(stale);
        }
    }
    stale(pd.create_ah(&address).map(drop));
    stale(pd.create_qp(&side.init(QpType::Rc)).map(drop));
    stale(pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).map(drop));
    // SAFETY: refused.
    stale(unsafe { pd.reg_mr(side.memory.addr(), 8, 0, ALL) }.map(drop));
    // SAFETY: refused.
    stale(unsafe { mr.rereg(None, None, Some(ALL)) });
    stale(side.context.create_cq(1, Some(&channel), 0).map(drop));
    stale(cq.request_notify(false));
    stale(cq.resize(5));
    stale(srq.modify(None, Some(0)));
    stale(qp.modify(&QpAttr::default(), AttrMask::STATE));
    let init = side.init(QpType::Rc);
    stale(side.pd.create_qp(&QpInit { send_cq: cq.clone(), ..init.clone() }).map(drop));
    stale(side.pd.create_qp(&QpInit { recv_cq: cq, ..init.clone() }).map(drop));
    stale(side.pd.create_qp(&QpInit { srq: Some(srq), ..init }).map(drop));
    // None of that counts as a user.
    side.mr.destroy().unwrap();
    side.pd.destroy().unwrap();
}

fn a_queue_pair_can_be_destroyed_in_every_state(f: &Fabric) {
    let (a, b) = f.two();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for steps in 0..6 {
            let x = a.qp(qp_type);
            let attr = attr(b.gid(), 0x1234);
            let ways: [fn(&Qp, &QpAttr); 5] = [
                crate::side::to_init,
                crate::side::to_rtr,
                crate::side::to_rts,
                |qp, _| crate::side::move_to(qp, QpState::Sqd),
                |qp, _| crate::side::move_to(qp, QpState::Err),
            ];
            for way in ways.iter().take(steps) {
                way(&x, &attr);
                x.post_recv(1, &[a.sge(0, 8)]).unwrap();
            }
            if x.state() == QpState::Rts && qp_type != QpType::Ud {
                x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
            }
            x.destroy().unwrap();
            assert!(a.poll().is_empty(), "its completions go with it");
        }
    }
    a.cq.destroy().unwrap();
}

fn a_queue_pair_number_rests(f: &Fabric) {
    let side = f.side();
    let mut seen = HashSet::new();
    for _ in 0..3500 {
        let qp = side.qp(QpType::Rc);
        let qpn = qp.qpn();
        assert!(qpn > 1 && qpn < 0xff_ffff);
        assert!(seen.insert(qpn), "{qpn:#x} came twice");
        qp.destroy().unwrap();
    }
}

fn destroying_queue_pairs_in_full_traffic(f: &Fabric) {
    let (a, b) = f.two();
    let mut random = fastrand::Rng::with_seed(5);
    let short = |attr: &mut QpAttr| (attr.timeout, attr.retry_cnt) = (8, 3);
    let mut pairs: Vec<_> = (0..20).map(|_| pair_with(&a, &b, QpType::Rc, short)).collect();
    let mut gone = HashSet::new();
    for round in 0..60u64 {
        for (x, y) in &pairs {
            let _ = y.post_recv(round, &[b.sge(0, 4000)]);
            let _ = x.post_send(&wr(round, WrOpcode::Send), Payload::Sges(&[a.sge(0, 4000)]));
            let read = b.remote(round, WrOpcode::Read, 0);
            let _ = x.post_send(&read, Payload::Sges(&[a.sge(8192, 4000)]));
        }
        for _ in 0..random.usize(0..40) {
            f.progress();
        }
        let n = random.usize(0..pairs.len());
        // One end, the other, or both.
        let ends = random.u8(1..4);
        let (x, y) = &pairs[n];
        if ends & 1 != 0 {
            gone.insert(x.qpn());
            x.destroy().unwrap();
        }
        if ends & 2 != 0 {
            y.destroy().unwrap();
        }
        let known = |wc: &Wc| {
            let dead = matches!(wc.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            dead || wc.status == WcStatus::Success
        };
        let found = a.poll();
        assert!(found.iter().all(known), "{found:?}");
        assert!(found.iter().all(|wc| !gone.contains(&wc.qpn)), "a completion from the grave");
        b.poll();
        let x = if ends & 1 != 0 { a.qp(QpType::Rc) } else { pairs[n].0.clone() };
        if ends == 2 {
            // Its requester is left alone with its error.
            x.destroy().unwrap();
            gone.insert(x.qpn());
        } else if ends == 1 {
            pairs[n].1.destroy().unwrap();
            x.destroy().unwrap();
        } else {
            x.destroy().unwrap();
        }
        pairs[n] = pair_with(&a, &b, QpType::Rc, short);
    }
    // Those that live still work.
    for (x, y) in &pairs {
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
    f.settle();
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(7, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(8, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(8, WcStatus::Success)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(7, WcStatus::Success)]);
}

fn a_thousand_queue_pairs_of_one_process(f: &Fabric) {
    let (a, b) = f.two();
    const COUNT: usize = 1000;
    let big = |side: &Side| side.context.create_cq(4 * COUNT as u32, None, 0).unwrap();
    let (at_a, at_b) = (big(&a), big(&b));
    let small = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let make = |side: &Side, cq: &Arc<Cq>| {
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        side.pd
            .create_qp(&QpInit { cap: small, send_cq, recv_cq, ..side.init(QpType::Rc) })
            .unwrap()
    };
    let pairs: Vec<_> = (0..COUNT)
        .map(|_| {
            let (x, y) = (make(&a, &at_a), make(&b, &at_b));
            crate::side::join(&a, &x, &b, &y, |_| {});
            (x, y)
        })
        .collect();
    for (i, (x, y)) in pairs.iter().enumerate() {
        a.fill(i * 8, &(i as u64).to_ne_bytes());
        y.post_recv(i as u64, &[b.sge(i as u64 * 8, 8)]).unwrap();
        x.post_send(&wr(i as u64, WrOpcode::Send), Payload::Sges(&[a.sge(i as u64 * 8, 8)]))
            .unwrap();
        if i % 50 == 0 {
            f.progress();
        }
    }
    for cq in [&at_a, &at_b] {
        let mut ids: Vec<_> = outcomes(&f.completions_of(cq, COUNT));
        ids.sort_by_key(|(wr_id, _)| *wr_id);
        assert!(ids.into_iter().eq((0..COUNT as u64).map(|i| (i, WcStatus::Success))));
    }
    assert_eq!(b.read(0, COUNT * 8), a.read(0, COUNT * 8));
    for (x, y) in pairs {
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
    at_a.destroy().unwrap();
}

fn objects_that_are_only_dropped_go(f: &Fabric) {
    let side = f.side();
    let pd = side.context.alloc_pd().unwrap();
    let address = AhAttr { dgid: side.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
    let mr = crate::side::register(&pd, &side.memory, ALL);
    let ah = pd.create_ah(&address).unwrap();
    let srq = pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    busy(pd.destroy(), 3);
    drop((mr, ah, srq));
    pd.destroy().unwrap();
    let channel = side.context.create_channel().unwrap();
    let cq = side.context.create_cq(1, Some(&channel), 0).unwrap();
    cq.request_notify(false).unwrap();
    busy(channel.destroy(), 1);
    drop(cq);
    channel.destroy().unwrap();
}

fn ten_thousand_regions_leave_nothing_behind(f: &Fabric) {
    let side = f.side();
    for _ in 0..10_000 {
        let region = side.register(ALL);
        region.destroy().unwrap();
    }
    side.mr.destroy().unwrap();
    side.pd.destroy().unwrap();
}

fn a_device_outlives_its_opener(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    // Closing the context leaves what was made from it.
    a.context.destroy().unwrap();
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(f.completion(&b).status, WcStatus::Success);
}

fn address_handles_may_go_before_their_datagrams(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    y.post_recv(1, &[b.sge(0, 64)]).unwrap();
    let address = AhAttr { dgid: b.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
    let ah = a.pd.create_ah(&address).unwrap();
    assert_eq!(ah.attr(), address);
    let ud = Some(UdDest { path: ah.path(), qpn: y.qpn(), qkey: crate::side::QKEY });
    x.post_send(&SendWr { ud, ..wr(1, WrOpcode::Send) }, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    ah.destroy().unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
}
