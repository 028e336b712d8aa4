//! Completion queues: order, size, overrun, and when they raise an event.

use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, EIO};

use crate::fabric::Fabric;
use crate::side::{Side, move_to, outcomes, pair, wr};

cases![
    an_overrun_is_told_and_loses_only_what_did_not_fit,
    queue_pairs_of_a_queue_that_overran_go_to_err,
    a_full_queue_is_not_overrun,
    resizing_keeps_what_is_there,
    polling_takes_no_more_than_asked,
    one_event_for_each_arming,
    entries_from_before_raise_no_event,
    the_next_completion_of_any_kind,
    solicited_only,
    errors_count_as_solicited,
    a_request_for_any_outlives_one_for_solicited,
    without_a_channel_arming_does_nothing,
    two_queues_one_channel,
];

/// A queue pair of which every receive that is posted completes at once.
fn flushing(side: &Side, cq: &Arc<Cq>) -> Arc<Qp> {
    let init = QpInit { recv_cq: cq.clone(), send_cq: cq.clone(), ..side.init(QpType::Rc) };
    let qp = side.pd.create_qp(&init).unwrap();
    move_to(&qp, QpState::Err);
    qp
}

fn complete(qp: &Qp, wr_id: u64) {
    qp.post_recv(wr_id, &[]).unwrap();
}

fn take(cq: &Cq, max: usize) -> Vec<u64> {
    let mut found = Vec::new();
    cq.poll(max, |wc| found.push(wc.wr_id)).unwrap();
    found
}

fn an_overrun_is_told_and_loses_only_what_did_not_fit(f: &Fabric) {
    let side = f.side();
    for cqe in [1, 2, 7] {
        let cq = side.context.create_cq(cqe, None, 0).unwrap();
        let cqe = u64::from(cq.cqe());
        let qp = flushing(&side, &cq);
        for i in 0..cqe {
            complete(&qp, i);
        }
        assert!(side.next_event().is_none());
        for i in cqe..cqe + 3 {
            complete(&qp, i);
        }
        let event = f.event(&side);
        assert_eq!(event.kind, EventKind::CqErr);
        assert!(matches!(&event.source, EventSource::Cq(other) if Arc::ptr_eq(other, &cq)));
        assert!(side.next_event().is_none(), "once");
        assert!(take(&cq, 100).into_iter().eq(0..cqe));
        assert_eq!(cq.poll(100, |_| {}).unwrap_err().errno(), EIO);
        qp.destroy().unwrap();
        cq.destroy().unwrap();
    }
    // Others are not concerned.
    let qp = flushing(&side, &side.cq);
    complete(&qp, 5);
    assert_eq!(take(&side.cq, 9), [5]);
}

fn queue_pairs_of_a_queue_that_overran_go_to_err(f: &Fabric) {
    let (a, b) = f.two();
    let small = a.context.create_cq(2, None, 0).unwrap();
    let cqe = small.cqe() as u64;
    let init = QpInit { send_cq: small.clone(), ..a.init(QpType::Rc) };
    let qp = || a.pd.create_qp(&init).unwrap();
    let (x, other, y, z) = (qp(), qp(), b.qp(QpType::Rc), b.qp(QpType::Rc));
    crate::side::join(&a, &x, &b, &y, |_| {});
    crate::side::join(&a, &other, &b, &z, |_| {});
    let (apart, _w) = pair(&a, &b, QpType::Rc);
    other.post_recv(1, &[a.sge(0, 8)]).unwrap();
    for i in 0..=cqe {
        x.post_send(&b.remote(i, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    assert_eq!(f.event(&a).kind, EventKind::CqErr);
    // All that complete there, and no others.
    f.until("their end", || x.state() == QpState::Err && other.state() == QpState::Err);
    assert_eq!(apart.state(), QpState::Rts);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::WrFlushErr)]);
    assert!(take(&small, 9).into_iter().eq(0..cqe));
    apart.post_send(&b.remote(5, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(5, WcStatus::Success)]);
}

fn a_full_queue_is_not_overrun(f: &Fabric) {
    let side = f.side();
    let cq = side.context.create_cq(4, None, 0).unwrap();
    let qp = flushing(&side, &cq);
    let cqe = u64::from(cq.cqe());
    for round in 0..100 {
        for i in 0..cqe {
            complete(&qp, round * 100 + i);
        }
        assert!(take(&cq, 100).into_iter().eq(round * 100..round * 100 + cqe));
    }
    assert!(side.next_event().is_none());
}

fn resizing_keeps_what_is_there(f: &Fabric) {
    let side = f.side();
    let cq = side.context.create_cq(4, None, 0).unwrap();
    let qp = flushing(&side, &cq);
    for i in 0..4 {
        complete(&qp, i);
    }
    for cqe in [0, 1, 3] {
        let before = cq.cqe();
        assert_eq!(cq.resize(cqe).unwrap_err().errno(), EINVAL);
        assert_eq!(cq.cqe(), before);
    }
    cq.resize(60).unwrap();
    assert!(cq.cqe() >= 60);
    for i in 4..60 {
        complete(&qp, i);
    }
    assert!(take(&cq, 50).into_iter().eq(0..50));
    cq.resize(10).unwrap();
    assert!(take(&cq, 50).into_iter().eq(50..60));
    assert!(side.next_event().is_none());
    // In the middle of traffic.
    let (a, b) = (side, f.side());
    let (x, _y) = pair(&a, &b, QpType::Rc);
    for i in 0..50 {
        x.post_send(&b.remote(i, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        a.cq.resize(64 + i as u32).unwrap();
        f.progress();
    }
    assert!(f.completions(&a, 50).iter().map(|wc| wc.wr_id).eq(0..50));
}

fn polling_takes_no_more_than_asked(f: &Fabric) {
    let side = f.side();
    let qp = flushing(&side, &side.cq);
    for i in 0..10 {
        complete(&qp, i);
    }
    assert_eq!(take(&side.cq, 0), []);
    assert_eq!(take(&side.cq, 1), [0]);
    assert_eq!(take(&side.cq, 3), [1, 2, 3]);
    assert_eq!(take(&side.cq, 100), [4, 5, 6, 7, 8, 9]);
    assert_eq!(take(&side.cq, 100), []);
}

/// Whether the channel has an event of this CQ, which is acknowledged.
fn notified(side: &Side) -> bool {
    match side.channel.next_event() {
        Ok(cq) => {
            assert!(Arc::ptr_eq(&cq, &side.cq));
            cq.ack_events(1);
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
            false
        }
    }
}

/// Waits for an event of this CQ: it comes after the completion, from whichever thread had the packet.
#[track_caller]
fn told(f: &Fabric, side: &Side) {
    f.until("an event", || notified(side));
}

/// One message, solicited or not, through to the receiver's CQ, whose events are looked at.
fn message(
    f: &Fabric,
    (a, x): (&Side, &Qp),
    (b, y): (&Side, &Qp),
    opcode: WrOpcode,
    solicited: bool,
) {
    y.post_recv(1, &[b.sge(0, 4000)]).unwrap();
    let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
    let request = SendWr { flags, ..b.remote(1, opcode, 0) };
    let before = y.counters().rx_messages;
    x.post_send(&request, Payload::Sges(&[a.sge(0, 4000)])).unwrap();
    f.until("the message", || y.counters().rx_messages > before);
}

fn one_event_for_each_arming(f: &Fabric) {
    let side = f.side();
    let qp = flushing(&side, &side.cq);
    complete(&qp, 0);
    assert!(!notified(&side), "nobody asked");
    for i in 0..100 {
        side.cq.request_notify(false).unwrap();
        side.cq.request_notify(false).unwrap();
        assert!(!notified(&side));
        complete(&qp, i);
        complete(&qp, i);
        complete(&qp, i);
        told(f, &side);
        assert!(!notified(&side), "one event for one arming");
    }
    assert_eq!(side.poll().len(), 301);
}

fn entries_from_before_raise_no_event(f: &Fabric) {
    let side = f.side();
    let qp = flushing(&side, &side.cq);
    complete(&qp, 1);
    side.cq.request_notify(false).unwrap();
    assert!(!notified(&side));
    assert_eq!(side.poll().len(), 1);
    assert!(!notified(&side));
    complete(&qp, 2);
    told(f, &side);
}

fn the_next_completion_of_any_kind(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for opcode in [WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::WriteWithImm] {
        for solicited in [false, true] {
            b.cq.request_notify(false).unwrap();
            message(f, (&a, &x), (&b, &y), opcode, solicited);
            told(f, &b);
            assert_eq!(b.poll().len(), 1);
        }
    }
    // And of sends.
    a.cq.request_notify(false).unwrap();
    x.post_send(&b.remote(1, WrOpcode::Read, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.completion(&a);
    told(f, &a);
}

fn solicited_only(f: &Fabric) {
    let (a, b) = f.two();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (x, y) = pair(&a, &b, qp_type);
        for opcode in [WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::WriteWithImm] {
            b.cq.request_notify(true).unwrap();
            for _ in 0..3 {
                message(f, (&a, &x), (&b, &y), opcode, false);
                assert!(!notified(&b), "{opcode:?}");
            }
            message(f, (&a, &x), (&b, &y), opcode, true);
            told(f, &b);
            message(f, (&a, &x), (&b, &y), opcode, true);
            assert!(!notified(&b), "{opcode:?}");
            assert_eq!(b.poll().len(), 5);
        }
        // A send's own completion is not solicited.
        a.cq.request_notify(true).unwrap();
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        y.post_recv(1, &[b.sge(0, 8)]).unwrap();
        let request = SendWr { flags, ..wr(1, WrOpcode::Send) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        f.completion(&a);
        assert!(!notified(&a));
        f.completion(&b);
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn errors_count_as_solicited(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    a.cq.request_notify(true).unwrap();
    b.cq.request_notify(true).unwrap();
    y.post_recv(1, &[b.sge(0, 4)]).unwrap();
    let quiet = SendWr { flags: SendFlags::empty(), ..wr(1, WrOpcode::Send) };
    x.post_send(&quiet, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(1, WcStatus::LocLenErr)]);
    told(f, &a);
    told(f, &b);
}

fn a_request_for_any_outlives_one_for_solicited(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for order in [[false, true], [true, false]] {
        for solicited_only in order {
            b.cq.request_notify(solicited_only).unwrap();
        }
        message(f, (&a, &x), (&b, &y), WrOpcode::Send, false);
        told(f, &b);
        assert!(!notified(&b));
    }
}

fn without_a_channel_arming_does_nothing(f: &Fabric) {
    let side = f.side();
    let cq = side.context.create_cq(10, None, 0).unwrap();
    assert!(cq.channel().is_none());
    cq.request_notify(false).unwrap();
    let qp = flushing(&side, &cq);
    complete(&qp, 1);
    assert_eq!(take(&cq, 1), [1]);
    qp.destroy().unwrap();
    cq.destroy().unwrap();
}

fn two_queues_one_channel(f: &Fabric) {
    let side = f.side();
    let queues: Vec<_> =
        (0..5).map(|_| side.context.create_cq(10, Some(&side.channel), 0).unwrap()).collect();
    let qps: Vec<_> = queues.iter().map(|cq| flushing(&side, cq)).collect();
    queues.iter().for_each(|cq| cq.request_notify(false).unwrap());
    for n in [3, 0, 4, 2] {
        complete(&qps[n], 1);
    }
    for n in [3, 0, 4, 2] {
        let cq = side.channel.next_event().unwrap();
        assert!(Arc::ptr_eq(&cq, &queues[n]), "in the order of the completions");
        cq.ack_events(1);
    }
    assert!(side.channel.next_event().is_err());
}
