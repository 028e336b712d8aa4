//! Shared receive queues.

use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, ENOMEM};

use crate::fabric::Fabric;
use crate::side::{Side, join, move_to, outcomes, pattern, wr};

cases![
    many_queue_pairs_take_from_one,
    the_limit_is_told_once_and_strictly_below,
    a_limit_can_be_taken_back,
    a_limit_above_the_size_is_refused,
    resizing_keeps_what_is_posted,
    a_full_queue_takes_no_more,
    an_empty_queue_makes_senders_wait,
    a_bad_receive_fails_only_who_takes_it,
    a_receive_too_small_fails_only_who_takes_it,
    unreliable_connections_have_none,
    writes_with_immediate_take_from_it,
];

fn srq(side: &Side, max_wr: u32) -> Arc<Srq> {
    side.pd.create_srq(SrqInit { max_wr, max_sge: 2 }).unwrap()
}

/// A pair whose second end takes its receives from `srq`.
fn pair_on(a: &Side, b: &Side, srq: &Arc<Srq>) -> (Arc<Qp>, Arc<Qp>) {
    let init = QpInit { srq: Some(srq.clone()), ..b.init(QpType::Rc) };
    let (x, y) = (a.qp(QpType::Rc), b.pd.create_qp(&init).unwrap());
    join(a, &x, b, &y, |_| {});
    assert!(y.srq().is_some_and(|found| Arc::ptr_eq(found, srq)));
    (x, y)
}

fn send(a: &Side, x: &Qp, wr_id: u64, len: u32) {
    x.post_send(&wr(wr_id, WrOpcode::Send), Payload::Sges(&[a.sge(0, len)])).unwrap();
}

fn many_queue_pairs_take_from_one(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 256);
    let pairs: Vec<_> = (0..8).map(|_| pair_on(&a, &b, &queue)).collect();
    let data = pattern(4000, 1);
    a.fill(0, &data);
    for i in 0..200 {
        queue.post_recv(i, &[b.sge(i * 4096, 100), b.sge(i * 4096 + 100, 3900)]).unwrap();
    }
    for round in 0..25 {
        for (n, (x, _)) in pairs.iter().enumerate() {
            send(&a, x, round, 1000 + 100 * n as u32 + round as u32);
        }
    }
    assert!(f.completions(&a, 200).iter().all(|wc| wc.status == WcStatus::Success));
    let found = f.completions(&b, 200);
    let mut ids: Vec<_> = found.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..200), "every receive served once");
    for (n, (_, y)) in pairs.iter().enumerate() {
        let mine: Vec<_> = found.iter().filter(|wc| wc.qpn == y.qpn()).collect();
        // Within one connection messages keep their order.
        let lengths = mine.iter().map(|wc| wc.byte_len);
        assert!(lengths.eq((0..25).map(|round| 1000 + 100 * n as u32 + round)));
        for wc in mine {
            let len = wc.byte_len as usize;
            assert!(b.read(wc.wr_id as usize * 4096, len) == data[..len]);
        }
    }
}

fn the_limit_is_told_once_and_strictly_below(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, _y) = pair_on(&a, &b, &queue);
    let mut next = 0;
    let mut message = || {
        next += 1;
        send(&a, &x, next, 8);
        f.completion(&a);
        f.completion(&b);
        b.next_event().inspect(AsyncEvent::ack)
    };
    for round in 0..3 {
        let posted = if round == 0 { 10 } else { 7 };
        for i in 0..posted {
            queue.post_recv(i, &[b.sge(0, 8)]).unwrap();
        }
        // Ten are posted.
        queue.modify(None, Some(5)).unwrap();
        assert_eq!(queue.query().limit, 5);
        for left in [9, 8, 7, 6, 5] {
            assert!(message().is_none(), "{left} left");
            assert_eq!(queue.query().limit, 5);
        }
        let event = message().expect("4 left");
        assert_eq!(event.kind, EventKind::SrqLimitReached);
        assert!(matches!(&event.source, EventSource::Srq(found) if Arc::ptr_eq(found, &queue)));
        assert_eq!(queue.query().limit, 0, "disarmed");
        assert!(message().is_none(), "once");
    }
}

fn a_limit_can_be_taken_back(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, _y) = pair_on(&a, &b, &queue);
    for i in 0..3 {
        queue.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    queue.modify(None, Some(3)).unwrap();
    queue.modify(None, Some(0)).unwrap();
    for i in 0..3 {
        send(&a, &x, i, 8);
        f.completion(&b);
    }
    assert!(b.next_event().is_none());
}

fn a_limit_above_the_size_is_refused(f: &Fabric) {
    let b = f.side();
    let queue = srq(&b, 16);
    let max = queue.query().max_wr;
    queue.modify(None, Some(max)).unwrap();
    for limit in [max + 1, u32::MAX] {
        assert_eq!(queue.modify(None, Some(limit)).unwrap_err().errno(), EINVAL);
        assert_eq!(queue.query().limit, max);
    }
    // Both at once: the limit is against the size asked for, and nothing changes on an error.
    let errno = queue.modify(Some(32), Some(33)).unwrap_err().errno();
    assert_eq!((errno, queue.query().max_wr), (EINVAL, max));
    queue.modify(Some(32), Some(32)).unwrap();
    assert_eq!((queue.query().max_wr >= 32, queue.query().limit), (true, 32));
}

fn resizing_keeps_what_is_posted(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 8);
    let (x, _y) = pair_on(&a, &b, &queue);
    let mut posted = 0..;
    let mut taken = 0..;
    for _ in 0..5 {
        queue.post_recv(posted.next().unwrap(), &[b.sge(0, 8)]).unwrap();
    }
    for size in [6, 16, 5, 100, 7] {
        queue.modify(Some(size), None).unwrap();
        assert!(queue.query().max_wr >= size);
        for _ in 0..3 {
            send(&a, &x, 0, 8);
            assert_eq!(f.completion(&b).wr_id, taken.next().unwrap());
            queue.post_recv(posted.next().unwrap(), &[b.sge(0, 8)]).unwrap();
        }
    }
    for size in [0, 4, b.context.attr().max_srq_wr + 1] {
        let before = queue.query();
        assert_eq!(queue.modify(Some(size), None).unwrap_err().errno(), EINVAL);
        assert_eq!(queue.query(), before);
    }
}

fn a_full_queue_takes_no_more(f: &Fabric) {
    let b = f.side();
    let queue = srq(&b, 5);
    let max = queue.query().max_wr;
    for i in 0..max {
        queue.post_recv(i.into(), &[]).unwrap();
    }
    let error = queue.post_recv(9, &[]).unwrap_err();
    assert_eq!((error, post_errno(&error)), (PostError::QueueFull { max }, ENOMEM));
}

fn an_empty_queue_makes_senders_wait(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, _y) = pair_on(&a, &b, &queue);
    let (other, _z) = pair_on(&a, &b, &queue);
    send(&a, &x, 1, 3000);
    f.until("an RNR NAK", || x.counters().rnr_naks_received > 0);
    send(&a, &other, 2, 3000);
    for i in 0..2 {
        queue.post_recv(i, &[b.sge(0, 3000)]).unwrap();
    }
    assert!(f.completions(&a, 2).iter().all(|wc| wc.status == WcStatus::Success));
    assert!(f.completions(&b, 2).iter().all(|wc| wc.status == WcStatus::Success));
}

fn a_bad_receive_fails_only_who_takes_it(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, y) = pair_on(&a, &b, &queue);
    let (other, z) = pair_on(&a, &b, &queue);
    queue.post_recv(1, &[Sge { lkey: 0xbad, ..b.sge(0, 8) }]).unwrap();
    queue.post_recv(2, &[b.sge(0, 8)]).unwrap();
    send(&a, &x, 1, 8);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::RemOpErr)]);
    let wc = f.completion(&b);
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (1, WcStatus::LocProtErr, y.qpn()));
    send(&a, &other, 2, 8);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(2, WcStatus::Success)]);
    let wc = f.completion(&b);
    assert_eq!((wc.wr_id, wc.status, wc.qpn), (2, WcStatus::Success, z.qpn()));
    assert_eq!((y.state(), z.state()), (QpState::Err, QpState::Rts));
    assert_eq!(f.event(&b).kind, EventKind::QpLastWqeReached);
}

fn a_receive_too_small_fails_only_who_takes_it(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, y) = pair_on(&a, &b, &queue);
    let (other, _z) = pair_on(&a, &b, &queue);
    for i in 0..4 {
        queue.post_recv(i, &[b.sge(0, 1000)]).unwrap();
    }
    send(&a, &x, 1, 5000);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(0, WcStatus::LocLenErr)]);
    // The queue pair takes no more, the queue goes on.
    move_to(&y, QpState::Err);
    send(&a, &other, 2, 1000);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(1, WcStatus::Success)]);
}

fn unreliable_connections_have_none(f: &Fabric) {
    let b = f.side();
    let queue = srq(&b, 16);
    let init = QpInit { srq: Some(queue.clone()), ..b.init(QpType::Uc) };
    assert!(b.pd.create_qp(&init).is_err());
    queue.destroy().unwrap();
}

fn writes_with_immediate_take_from_it(f: &Fabric) {
    let (a, b) = f.two();
    let queue = srq(&b, 16);
    let (x, _y) = pair_on(&a, &b, &queue);
    queue.post_recv(5, &[]).unwrap();
    a.fill(0, b"in place");
    let request = SendWr { imm: [7; 4], ..b.remote(1, WrOpcode::WriteWithImm, 4096) };
    x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let wc = f.completion(&b);
    assert_eq!((wc.wr_id, wc.opcode, wc.imm), (5, WcOpcode::RecvWriteWithImm, [7; 4]));
    assert_eq!(b.read(4096, 8), b"in place");
}
