//! What may be asked for, and what is granted.

use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, ENOMEM};

use crate::fabric::Fabric;
use crate::side::{self, Side, attr, outcomes, pair, post_inline, to_init, to_rtr, wr};

cases![
    a_capability_above_its_limit_is_refused,
    what_is_granted_is_never_less_than_asked,
    receive_capabilities_do_not_count_with_an_srq,
    queues_of_no_requests_are_legal,
    completion_queues_have_limits,
    shared_receive_queues_have_limits,
    there_are_as_many_objects_as_the_device_tells,
    objects_of_another_context_are_refused,
    a_full_queue_takes_no_more_and_keeps_what_it_has,
    a_send_keeps_its_place_until_its_completion_is_read,
    lists_longer_than_the_queue_takes_are_refused,
    posting_is_refused_before_its_state,
    operations_a_service_does_not_have_are_refused,
    inline_data_above_the_cap_is_refused,
    malformed_requests_are_refused,
];

/// One of the capabilities.
type Field = fn(&mut QpCap) -> &mut u32;

fn a_capability_above_its_limit_is_refused(f: &Fabric) {
    let side = f.side();
    let limit = side.context.attr();
    let caps: [(&str, u32, Field); 5] = [
        ("max_send_wr", limit.max_qp_wr, |cap| &mut cap.max_send_wr),
        ("max_recv_wr", limit.max_qp_wr, |cap| &mut cap.max_recv_wr),
        ("max_send_sge", limit.max_sge, |cap| &mut cap.max_send_sge),
        ("max_recv_sge", limit.max_sge, |cap| &mut cap.max_recv_sge),
        ("max_inline_data", limit.max_inline_data, |cap| &mut cap.max_inline_data),
    ];
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for (name, limit, field) in caps {
            let mut init = side.init(qp_type);
            for asked in [limit + 1, u32::MAX] {
                *field(&mut init.cap) = asked;
                let error = side.pd.create_qp(&init).unwrap_err();
                assert_eq!(error.errno(), EINVAL, "{name}");
                let text = error.to_string();
                let says = |n: u32| text.contains(&n.to_string());
                assert!(text.contains(name) && says(asked) && says(limit), "{text}");
            }
            *field(&mut init.cap) = limit;
            let qp = side.pd.create_qp(&init).unwrap();
            let mut cap = qp.cap();
            assert!(*field(&mut cap) >= limit);
            qp.destroy().unwrap();
        }
    }
    // What was refused left nothing behind.
    side.cq.destroy().unwrap();
    side.mr.destroy().unwrap();
    side.pd.destroy().unwrap();
}

fn what_is_granted_is_never_less_than_asked(f: &Fabric) {
    let side = f.side();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let cap = QpCap {
            max_send_wr: random.u32(1..500),
            max_recv_wr: random.u32(1..500),
            max_send_sge: random.u32(1..=32),
            max_recv_sge: random.u32(1..=32),
            max_inline_data: random.u32(0..=1024),
        };
        let qp = side.pd.create_qp(&QpInit { cap, ..side.init(QpType::Rc) }).unwrap();
        let got = qp.cap();
        assert!(got.max_send_wr >= cap.max_send_wr && got.max_recv_wr >= cap.max_recv_wr);
        assert!(got.max_send_sge >= cap.max_send_sge && got.max_recv_sge >= cap.max_recv_sge);
        assert!(got.max_inline_data >= cap.max_inline_data);
        assert_eq!(qp.query().cap, got);
        // As many as granted can be posted.
        to_init(&qp, &attr(side.gid(), 1));
        for i in 0..got.max_recv_wr {
            let sges = vec![side.sge(0, 1); got.max_recv_sge as usize];
            qp.post_recv(i.into(), &sges).unwrap();
        }
        let full = qp.post_recv(0, &[]).unwrap_err();
        assert_eq!(
            (full, post_errno(&full)),
            (PostError::QueueFull { max: got.max_recv_wr }, ENOMEM)
        );
        qp.destroy().unwrap();
    }
}

fn receive_capabilities_do_not_count_with_an_srq(f: &Fabric) {
    let side = f.side();
    let srq = side.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    for qp_type in [QpType::Rc, QpType::Ud] {
        let mut init = QpInit { srq: Some(srq.clone()), ..side.init(qp_type) };
        init.cap.max_recv_wr = u32::MAX;
        init.cap.max_recv_sge = u32::MAX;
        let qp = side.pd.create_qp(&init).unwrap();
        to_init(&qp, &attr(side.gid(), 1));
        let error = qp.post_recv(1, &[]).unwrap_err();
        assert_eq!((error, post_errno(&error)), (PostError::SharedReceives, EINVAL));
    }
}

fn queues_of_no_requests_are_legal(f: &Fabric) {
    let (a, b) = f.two();
    let none = QpCap::default();
    let sender =
        QpInit { cap: QpCap { max_send_wr: 1, max_send_sge: 1, ..none }, ..a.init(QpType::Rc) };
    let receiver = QpInit { cap: none, ..b.init(QpType::Rc) };
    let (x, y) = (a.pd.create_qp(&sender).unwrap(), b.pd.create_qp(&receiver).unwrap());
    side::join(&a, &x, &b, &y, |_| {});
    assert_eq!(post_errno(&y.post_recv(1, &[]).unwrap_err()), ENOMEM);
    let none = Payload::Sges(&[]);
    assert_eq!(post_errno(&y.post_send(&wr(1, WrOpcode::Write), none).unwrap_err()), ENOMEM);
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
}

fn completion_queues_have_limits(f: &Fabric) {
    let side = f.side();
    let context = &side.context;
    let limit = context.attr();
    for cqe in [0, limit.max_cqe + 1, u32::MAX] {
        assert_eq!(context.create_cq(cqe, None, 0).unwrap_err().errno(), EINVAL);
        assert_eq!(side.cq.resize(cqe).unwrap_err().errno(), EINVAL);
    }
    for vector in [limit.num_comp_vectors, u32::MAX] {
        assert_eq!(context.create_cq(1, None, vector).unwrap_err().errno(), EINVAL);
    }
    for cqe in [1, 2, 1000, limit.max_cqe] {
        let cq = context.create_cq(cqe, None, limit.num_comp_vectors - 1).unwrap();
        assert!(cq.cqe() >= cqe);
    }
}

fn shared_receive_queues_have_limits(f: &Fabric) {
    let side = f.side();
    let limit = side.context.attr();
    let fits = SrqInit { max_wr: limit.max_srq_wr, max_sge: limit.max_srq_sge };
    for init in [
        SrqInit { max_wr: 0, ..fits },
        SrqInit { max_wr: limit.max_srq_wr + 1, ..fits },
        SrqInit { max_wr: u32::MAX, ..fits },
        SrqInit { max_sge: limit.max_srq_sge + 1, ..fits },
        SrqInit { max_sge: u32::MAX, ..fits },
    ] {
        assert_eq!(side.pd.create_srq(init).unwrap_err().errno(), EINVAL, "{init:?}");
    }
    let srq = side.pd.create_srq(fits).unwrap();
    let got = srq.query();
    assert!(got.max_wr >= fits.max_wr && got.max_sge >= fits.max_sge && got.limit == 0);
}

fn objects_of_another_context_are_refused(f: &Fabric) {
    let side = f.side();
    let other = side.context.device().open().unwrap();
    let foreign_cq = other.create_cq(1, None, 0).unwrap();
    let foreign_pd = other.alloc_pd().unwrap();
    let foreign_srq = foreign_pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let init = side.init(QpType::Rc);
    for bad in [
        QpInit { send_cq: foreign_cq.clone(), ..init.clone() },
        QpInit { recv_cq: foreign_cq.clone(), ..init.clone() },
        QpInit { srq: Some(foreign_srq), ..init.clone() },
    ] {
        assert_eq!(side.pd.create_qp(&bad).unwrap_err().errno(), EINVAL);
    }
    assert_eq!(foreign_pd.create_qp(&init).unwrap_err().errno(), EINVAL);
    let channel = other.create_channel().unwrap();
    assert_eq!(side.context.create_cq(1, Some(&channel), 0).unwrap_err().errno(), EINVAL);
    channel.destroy().unwrap();
    // SAFETY: nothing is registered anew, the call is refused.
    let moved = unsafe { side.mr.rereg(Some(&foreign_pd), None, None) };
    assert_eq!(moved.unwrap_err().errno(), EINVAL);
    side.pd.create_qp(&init).unwrap();
}

/// A QP in RTS whose peer takes nothing, so that its sends stay in the queue.
fn stuck(side: &Side, cap: QpCap) -> Arc<Qp> {
    let qp = side.pd.create_qp(&QpInit { cap, ..side.init(QpType::Rc) }).unwrap();
    // Its own number: a peer that is in RTS and has no receives.
    side::connect(&qp, &attr(side.gid(), qp.qpn()));
    qp
}

fn a_full_queue_takes_no_more_and_keeps_what_it_has(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let depth = u64::from(x.cap().max_send_wr);
    for i in 0..depth {
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    for _ in 0..2 {
        let full =
            x.post_send(&wr(999, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap_err();
        assert_eq!(post_errno(&full), ENOMEM);
    }
    // Where nothing arrives, or a receive may be used up before the queue is full.
    let (_other, idle) = pair(&a, &b, QpType::Rc);
    for i in 0..depth {
        idle.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    assert_eq!(post_errno(&idle.post_recv(999, &[b.sge(0, 8)]).unwrap_err()), ENOMEM);
    for i in 0..depth {
        y.post_recv(1000 + i, &[b.sge(0, 8)]).unwrap();
    }
    let sent = f.completions(&a, depth as usize);
    assert!(sent.iter().map(|wc| wc.wr_id).eq(0..depth), "{sent:?}");
    let received = f.completions(&b, depth as usize);
    assert!(received.iter().map(|wc| wc.wr_id).eq(1000..1000 + depth), "{received:?}");
    // A completion that was polled makes room.
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
}

fn a_send_keeps_its_place_until_its_completion_is_read(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let depth = u64::from(x.cap().max_send_wr);
    let post = |i, flags| {
        let request = SendWr { flags, ..b.remote(i, WrOpcode::Write, 0) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).map_err(|e| post_errno(&e))
    };
    for i in 0..depth {
        post(i, SendFlags::SIGNALED).unwrap();
    }
    f.until("all are acknowledged", || x.counters().tx_messages == depth);
    // IBA 10.8.5.1: it is outstanding until the program has read of its end.
    assert_eq!(post(99, SendFlags::SIGNALED), Err(ENOMEM));
    for _ in 0..10 {
        assert_eq!(a.cq.poll(1, |_| {}).unwrap(), 1);
        post(99, SendFlags::SIGNALED).unwrap();
        assert_eq!(post(99, SendFlags::SIGNALED), Err(ENOMEM));
    }
    f.until("ten more", || x.counters().tx_messages == depth + 10);
    assert_eq!(a.poll().len() as u64, depth);
    // Unsignaled ones with the next that is signaled.
    for i in 1..depth {
        post(i, SendFlags::empty()).unwrap();
    }
    post(100, SendFlags::SIGNALED).unwrap();
    f.until("all are acknowledged", || x.counters().tx_messages == 2 * depth + 10);
    assert_eq!(post(99, SendFlags::SIGNALED), Err(ENOMEM));
    assert_eq!(outcomes(&a.poll()), [(100, WcStatus::Success)]);
    for i in 0..depth {
        post(i, SendFlags::SIGNALED).unwrap();
    }
    assert_eq!(post(99, SendFlags::SIGNALED), Err(ENOMEM));
    // RESET gives all back.
    side::move_to(&x, QpState::Reset);
    side::connect(&x, &attr(b.gid(), 0x1234));
    for i in 0..depth {
        post(i, SendFlags::SIGNALED).unwrap();
    }
    assert_eq!(post(99, SendFlags::SIGNALED), Err(ENOMEM));
}

fn lists_longer_than_the_queue_takes_are_refused(f: &Fabric) {
    let side = f.side();
    let cap = QpCap {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_send_sge: 3,
        max_recv_sge: 2,
        max_inline_data: 0,
    };
    let qp = stuck(&side, cap);
    let long =
        qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[side.sge(0, 1); 4])).unwrap_err();
    assert_eq!(long, PostError::TooManySges { asked: 4, max: 3 });
    let long = qp.post_recv(1, &[side.sge(0, 1); 3]).unwrap_err();
    assert_eq!((long, post_errno(&long)), (PostError::TooManySges { asked: 3, max: 2 }, EINVAL));
    let srq = side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 2 }).unwrap();
    assert!(matches!(srq.post_recv(1, &[side.sge(0, 1); 3]), Err(PostError::TooManySges { .. })));
    srq.post_recv(1, &[side.sge(0, 1); 2]).unwrap();
    qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[side.sge(0, 1); 3])).unwrap();
    qp.post_recv(1, &[side.sge(0, 1); 2]).unwrap();
}

fn posting_is_refused_before_its_state(f: &Fabric) {
    let side = f.side();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let qp = side.qp(qp_type);
        let attr = attr(side.gid(), qp.qpn());
        let ah = AhAttr { dgid: side.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
        let path = side.pd.create_ah(&ah).unwrap().path();
        let ud = Some(UdDest { path, qpn: qp.qpn(), qkey: side::QKEY });
        let send = || {
            qp.post_send(&SendWr { ud, ..wr(1, WrOpcode::Send) }, Payload::Sges(&[side.sge(0, 8)]))
        };
        let refused = |done: Result<(), PostError>| {
            let error = done.unwrap_err();
            assert_eq!((error, post_errno(&error)), (PostError::State(qp.state()), EINVAL));
        };
        refused(send());
        refused(qp.post_recv(1, &[]));
        to_init(&qp, &attr);
        refused(send());
        qp.post_recv(1, &[side.sge(0, 1024)]).unwrap();
        to_rtr(&qp, &attr);
        refused(send());
        qp.post_recv(2, &[side.sge(0, 1024)]).unwrap();
        side::to_rts(&qp, &attr);
        send().unwrap();
        assert!(f.completions(&side, 2).iter().all(|wc| wc.status == WcStatus::Success));
        side::move_to(&qp, QpState::Reset);
        refused(send());
        refused(qp.post_recv(1, &[]));
        qp.destroy().unwrap();
        refused(send());
        refused(qp.post_recv(1, &[]));
    }
}

fn operations_a_service_does_not_have_are_refused(f: &Fabric) {
    let (a, b) = f.two();
    use WrOpcode::*;
    let all = [Write, WriteWithImm, Send, SendWithImm, Read, CompareSwap, FetchAdd, SendWithInv];
    for (qp_type, has) in [
        (QpType::Rc, &all[..]),
        (QpType::Uc, &[Write, WriteWithImm, Send, SendWithImm]),
        (QpType::Ud, &[Send, SendWithImm]),
    ] {
        let (x, y) = pair(&a, &b, qp_type);
        for opcode in all {
            let ah = AhAttr { dgid: b.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
            let path = a.pd.create_ah(&ah).unwrap().path();
            let (region, mw) = (b.windowed(), b.pd.alloc_mw(MwType::Two).unwrap());
            let mut key = 0;
            if opcode == SendWithInv && qp_type == QpType::Rc {
                key = b.bind(&y, &mw, &region, Access::REMOTE_READ);
                assert_eq!(f.completion(&b).status, WcStatus::Success);
            }
            y.post_recv(7, &[b.sge(512, 100)]).unwrap();
            let request = SendWr {
                ud: Some(UdDest { path, qpn: y.qpn(), qkey: side::QKEY }),
                invalidate_rkey: key,
                ..b.remote(1, opcode, 0)
            };
            let done = x.post_send(&request, Payload::Sges(&[a.sge(0, 8)]));
            if has.contains(&opcode) {
                done.unwrap();
                assert_eq!(f.completion(&a).status, WcStatus::Success, "{qp_type:?} {opcode:?}");
            } else {
                let error = done.unwrap_err();
                assert_eq!(error, PostError::OpNotAllowed { opcode, qp_type });
                assert_eq!(post_errno(&error), EINVAL);
            }
        }
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn inline_data_above_the_cap_is_refused(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let max = x.cap().max_inline_data as usize;
    y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
    let error = post_inline(&x, &wr(1, WrOpcode::Send), &vec![1; max + 1]).unwrap_err();
    assert_eq!(error, PostError::InlineTooLong { asked: max + 1, max: max as u32 });
    assert_eq!(post_errno(&error), EINVAL);
    f.nothing_more(&[&a, &b]);
    post_inline(&x, &wr(2, WrOpcode::Send), &vec![2; max]).unwrap();
    assert_eq!(f.completion(&a).wr_id, 2);
    assert_eq!(f.completion(&b).byte_len, max as u32);
}

fn malformed_requests_are_refused(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    for len in [0, 4, 7, 9, 16] {
        for opcode in [WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
            let request = b.remote(1, opcode, 0);
            let error = x.post_send(&request, Payload::Sges(&[a.sge(0, len)])).unwrap_err();
            assert_eq!(error, PostError::AtomicLength { asked: len.into() });
        }
    }
    for opcode in [WrOpcode::Read, WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
        let error = post_inline(&x, &b.remote(1, opcode, 0), &[0; 8]).unwrap_err();
        assert_eq!((error, post_errno(&error)), (PostError::ReadInline(opcode), EINVAL));
    }
    let (x, _y) = pair(&a, &b, QpType::Ud);
    let error = x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap_err();
    assert_eq!(error, PostError::NoDestination);
    f.nothing_more(&[&a, &b]);
}

fn there_are_as_many_objects_as_the_device_tells(f: &Fabric) {
    let side = f.side();
    let limit = side.context.attr();
    let pds = until_refused(limit.max_pd, || side.context.alloc_pd());
    let cqs = until_refused(limit.max_cq, || side.context.create_cq(1, None, 0));
    let init = SrqInit { max_wr: 1, max_sge: 1 };
    let srqs = until_refused(limit.max_srq, || side.pd.create_srq(init));
    // One that ends makes room for one, destroyed or dropped.
    pds[0].destroy().unwrap();
    cqs[0].destroy().unwrap();
    srqs[0].destroy().unwrap();
    side.context.alloc_pd().unwrap().destroy().unwrap();
    let pd = side.context.alloc_pd().unwrap();
    assert_eq!(side.context.alloc_pd().unwrap_err().errno(), ENOMEM);
    drop(pd);
    side.context.alloc_pd().unwrap();
    side.context.create_cq(1, None, 0).unwrap();
    side.pd.create_srq(init).unwrap();
}

/// Makes objects of which the device says that there are at most `max`, until there are no more.
fn until_refused<T>(max: u32, make: impl Fn() -> Result<T, Error>) -> Vec<T> {
    let mut made = Vec::new();
    let error = loop {
        match make() {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
        assert!(made.len() <= max as usize);
    };
    assert_eq!(error.errno(), ENOMEM, "{error}");
    // The side has one of each kind itself, and the device may use some.
    assert!(made.len() + 8 >= max as usize, "{} of {max}", made.len());
    made
}
