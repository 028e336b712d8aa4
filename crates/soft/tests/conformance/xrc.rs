//! XRC: domains, queue pairs of either side, and the shared receive queues that requests name.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EAGAIN, EBUSY, EINVAL};

use crate::fabric::Fabric;
use crate::side::{Side, attr, connect, move_to, outcomes, pattern, to_init, to_rtr, wr};

cases![
    messages_go_to_the_srq_they_name,
    every_operation_works_and_memory_is_that_of_the_srq,
    an_srq_of_another_domain_is_refused,
    an_empty_srq_makes_senders_wait,
    one_sender_reaches_the_srqs_of_many_programs,
    a_queue_pair_can_be_opened_again,
    each_side_has_its_half,
    domains_are_shared_by_file,
    what_is_used_stays,
];

fn domain(side: &Side) -> Arc<Xrcd> {
    side.context.open_xrcd(None, true, false).unwrap()
}

fn srq(side: &Side, xrcd: &Arc<Xrcd>, cq: &Arc<Cq>) -> Arc<Srq> {
    let init = SrqInit { max_wr: 64, max_sge: 2 };
    side.pd.create_xrc_srq(init, xrcd, cq).unwrap()
}

/// A sender at `a` and its receiver in a domain of `b`.
fn pair(a: &Side, b: &Side, xrcd: &Arc<Xrcd>) -> (Arc<Qp>, Arc<Qp>) {
    let (x, y) = (a.qp(QpType::XrcSend), xrcd.create_qp().unwrap());
    connect(&x, &attr(b.gid(), y.qpn()));
    connect(&y, &attr(a.gid(), x.qpn()));
    (x, y)
}

fn to(srq: &Srq, request: SendWr) -> SendWr {
    SendWr { xrc_srqn: srq.number().unwrap(), ..request }
}

fn messages_go_to_the_srq_they_name(f: &Fabric) {
    let (a, b) = f.two();
    let xrcd = domain(&b);
    let other = b.context.create_cq(64, None, 0).unwrap();
    let (first, second) = (srq(&b, &xrcd, &b.cq), srq(&b, &xrcd, &other));
    assert_ne!(first.number(), second.number());
    let (x, y) = pair(&a, &b, &xrcd);
    let data = pattern(20_000, 1);
    a.fill(0, &data);
    first.post_recv(1, &[b.sge(0, 20_000)]).unwrap();
    second.post_recv(2, &[b.sge(100_000, 20_000)]).unwrap();
    let with_imm = SendWr { imm: [1, 2, 3, 4], ..wr(8, WrOpcode::SendWithImm) };
    x.post_send(&to(&second, wr(7, WrOpcode::Send)), Payload::Sges(&[a.sge(0, 20_000)])).unwrap();
    x.post_send(&to(&first, with_imm), Payload::Sges(&[a.sge(0, 5)])).unwrap();
    let sent = f.completions(&a, 2);
    assert_eq!(outcomes(&sent), [(7, WcStatus::Success), (8, WcStatus::Success)]);
    let found = f.completion(&b);
    assert_eq!((found.wr_id, found.byte_len, found.imm), (1, 5, [1, 2, 3, 4]));
    assert_eq!(found.qpn, y.qpn());
    let found = f.completions_of(&other, 1)[0];
    assert_eq!((found.wr_id, found.byte_len, found.qpn), (2, 20_000, y.qpn()));
    assert_eq!(b.read(100_000, 20_000), data);
}

fn every_operation_works_and_memory_is_that_of_the_srq(f: &Fabric) {
    let (a, b) = f.two();
    let xrcd = domain(&b);
    let queue = srq(&b, &xrcd, &b.cq);
    let (x, _y) = pair(&a, &b, &xrcd);
    let data = pattern(9000, 2);
    a.fill(0, &data);
    queue.post_recv(1, &[]).unwrap();
    let requests = [
        (b.remote(1, WrOpcode::Write, 0), a.sge(0, 9000)),
        (b.remote(2, WrOpcode::WriteWithImm, 10_000), a.sge(0, 3000)),
        (b.remote(3, WrOpcode::Read, 0), a.sge(20_000, 9000)),
        (SendWr { compare_add: 5, ..b.remote(4, WrOpcode::FetchAdd, 65_536) }, a.sge(40_000, 8)),
        (SendWr { swap: 9, ..b.remote(5, WrOpcode::CompareSwap, 65_544) }, a.sge(40_008, 8)),
    ];
    for (request, sge) in requests {
        x.post_send(&to(&queue, request), Payload::Sges(&[sge])).unwrap();
    }
    assert!(f.completions(&a, 5).iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(f.completion(&b).opcode, WcOpcode::RecvWriteWithImm);
    assert_eq!(b.read(0, 9000), data);
    assert_eq!(a.read(20_000, 9000), data);
    assert_eq!(b.read(65_536, 16), [5u64.to_ne_bytes(), 9u64.to_ne_bytes()].concat());

    // A region of another protection domain than the SRQ's.
    let (_pd, mr) = b.other_domain();
    let request = SendWr { rkey: mr.rkey(), ..b.remote(6, WrOpcode::Write, 0) };
    x.post_send(&to(&queue, request), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
    assert_eq!(f.event(&b).kind, EventKind::QpAccessErr);
}

fn an_srq_of_another_domain_is_refused(f: &Fabric) {
    let (a, b) = f.two();
    let (ours, other) = (domain(&b), domain(&b));
    let foreign = srq(&b, &other, &b.cq);
    foreign.post_recv(1, &[b.sge(0, 100)]).unwrap();
    let gone = srq(&b, &ours, &b.cq);
    let number = gone.number().unwrap();
    gone.destroy().unwrap();
    for srqn in [foreign.number().unwrap(), number, 0xff_ffff] {
        let (x, y) = pair(&a, &b, &ours);
        let request = SendWr { xrc_srqn: srqn, ..wr(1, WrOpcode::Send) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::RemInvReqErr);
        assert_eq!(f.event(&b).kind, EventKind::QpAccessErr);
        assert_eq!(y.state(), QpState::Err);
    }
    f.nothing_more(&[&a, &b]);
}

fn an_empty_srq_makes_senders_wait(f: &Fabric) {
    let (a, b) = f.two();
    let xrcd = domain(&b);
    let queue = srq(&b, &xrcd, &b.cq);
    let (x, y) = pair(&a, &b, &xrcd);
    x.post_send(&to(&queue, wr(1, WrOpcode::Send)), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.until("a NAK for want of a receive", || y.counters().rnr_naks_sent > 0);
    queue.post_recv(9, &[b.sge(0, 8)]).unwrap();
    assert_eq!(outcomes(&f.completions(&b, 1)), [(9, WcStatus::Success)]);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
}

fn one_sender_reaches_the_srqs_of_many_programs(f: &Fabric) {
    let (a, b) = f.two();
    let xrcd = domain(&b);
    let cqs: Vec<_> = (0..4).map(|_| b.context.create_cq(64, None, 0).unwrap()).collect();
    let queues: Vec<_> = cqs.iter().map(|cq| srq(&b, &xrcd, cq)).collect();
    for (n, queue) in (0u64..).zip(&queues) {
        for i in 0..16 {
            queue.post_recv(i, &[b.sge(n * 65_536 + i * 4096, 4096)]).unwrap();
        }
    }
    let (x, _y) = pair(&a, &b, &xrcd);
    for i in 0..16u32 {
        for (n, queue) in (0u32..).zip(&queues) {
            let len = 1000 + 700 * n + i;
            let sge = a.sge(0, len);
            x.post_send(&to(queue, wr(u64::from(n), WrOpcode::Send)), Payload::Sges(&[sge]))
                .unwrap();
        }
    }
    assert!(f.completions(&a, 64).iter().all(|wc| wc.status == WcStatus::Success));
    for (n, cq) in (0u32..).zip(&cqs) {
        let found = f.completions_of(cq, 16);
        let expected: Vec<_> = (0..16u32).map(|i| (u64::from(i), 1000 + 700 * n + i)).collect();
        assert!(found.iter().map(|wc| (wc.wr_id, wc.byte_len)).eq(expected));
    }
}

fn a_queue_pair_can_be_opened_again(f: &Fabric) {
    let (a, b) = f.two();
    let xrcd = domain(&b);
    let queue = srq(&b, &xrcd, &b.cq);
    let (x, y) = pair(&a, &b, &xrcd);
    let again = xrcd.open_qp(y.qpn()).unwrap();
    assert_eq!(again.qpn(), y.qpn());
    assert_eq!(again.state(), QpState::Rts);
    for qpn in [0, 0xff_fffe, b.qp(QpType::Rc).qpn()] {
        assert_eq!(xrcd.open_qp(qpn).unwrap_err().errno(), EINVAL);
    }
    assert_eq!(domain(&b).open_qp(y.qpn()).unwrap_err().errno(), EINVAL);
    // It goes with the last of those who have it.
    y.destroy().unwrap();
    drop(y);
    queue.post_recv(1, &[b.sge(0, 8)]).unwrap();
    x.post_send(&to(&queue, wr(1, WrOpcode::Send)), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    again.destroy().unwrap();
    assert_eq!(again.destroy().unwrap_err().errno(), EINVAL);
    assert_eq!(xrcd.open_qp(again.qpn()).unwrap_err().errno(), EINVAL);
}

fn each_side_has_its_half(f: &Fabric) {
    let side = f.side();
    let xrcd = domain(&side);
    let (x, y) = (side.qp(QpType::XrcSend), xrcd.create_qp().unwrap());
    assert_eq!((x.cap().max_recv_wr, x.cap().max_recv_sge), (0, 0));
    assert_eq!((y.cap().max_send_wr, y.cap().max_recv_wr), (0, 0));
    assert_eq!(side.pd.create_qp(&side.init(QpType::XrcRecv)).unwrap_err().errno(), EINVAL);
    for qp in [&x, &y] {
        to_init(qp, &attr(side.gid(), 5));
        assert_eq!(post_errno(&qp.post_recv(1, &[]).unwrap_err()), EINVAL);
    }
    let init = SrqInit { max_wr: 4, max_sge: 1 };
    let ordinary = side.pd.create_srq(init).unwrap();
    assert_eq!(ordinary.number(), None);
    // What a sender does not have is refused.
    let with_srq = QpInit { srq: Some(ordinary), ..side.init(QpType::XrcSend) };
    assert!(side.pd.create_qp(&with_srq).is_err());
    to_rtr(&y, &attr(side.gid(), 5));
    move_to(&y, QpState::Err);
    assert!(side.next_event().is_none(), "no last WQE of a shared queue that is not the QP's");
}

fn domains_are_shared_by_file(f: &Fabric) {
    let side = f.side();
    let path = std::env::temp_dir().join(format!("ironverbs-xrc-{}-{f:p}", std::process::id()));
    let file = File::create(&path).unwrap();
    let again = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let open = |file: &File, create, exclusive| {
        side.context.open_xrcd(Some(file.as_fd()), create, exclusive)
    };
    assert_eq!(open(&file, false, false).unwrap_err().errno(), EAGAIN);
    let first = open(&file, true, true).unwrap();
    assert_eq!(open(&again, true, true).unwrap_err().errno(), EINVAL);
    let second = open(&again, false, false).unwrap();
    assert!(first.is_same_domain(&second));
    assert!(!first.is_same_domain(&domain(&side)));
    let qp = first.create_qp().unwrap();
    assert!(second.open_qp(qp.qpn()).is_ok());
    qp.destroy().unwrap();
    qp.destroy().unwrap();

    // The domain goes with the last that refers to it, whatever handles are kept.
    first.destroy().unwrap();
    assert!(open(&again, false, false).is_ok_and(|third| third.is_same_domain(&second)));
    second.destroy().unwrap();
    assert_eq!(open(&file, false, false).unwrap_err().errno(), EAGAIN);
    assert_eq!(first.destroy().unwrap_err().errno(), EINVAL);
}

fn what_is_used_stays(f: &Fabric) {
    let side = f.side();
    let (xrcd, cq) = (domain(&side), side.context.create_cq(4, None, 0).unwrap());
    let queue = srq(&side, &xrcd, &cq);
    assert_eq!(xrcd.destroy().unwrap_err().errno(), EBUSY);
    assert_eq!(cq.destroy().unwrap_err().errno(), EBUSY);
    let qp = xrcd.create_qp().unwrap();
    queue.destroy().unwrap();
    assert_eq!(xrcd.destroy().unwrap_err().errno(), EBUSY);
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    xrcd.destroy().unwrap();
    assert_eq!(xrcd.create_qp().unwrap_err().errno(), EINVAL);

    let other = f.side();
    let (theirs, init) = (domain(&other), SrqInit { max_wr: 4, max_sge: 1 });
    assert_eq!(side.pd.create_xrc_srq(init, &theirs, &side.cq).unwrap_err().errno(), EINVAL);
}
