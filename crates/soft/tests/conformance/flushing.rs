//! What becomes of posted requests when a queue pair goes to ERR or RESET.

use std::sync::Arc;

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{self, Side, move_to, outcomes, pair, post_inline, wr};

cases![
    entering_err_flushes_in_order,
    posting_in_err_is_flushed,
    entering_reset_drops_everything,
    reset_takes_away_only_its_own_completions,
    completions_from_before_stay_before_the_flushed,
    a_queue_pair_with_an_srq_tells_its_last_request,
    unreliable_queue_pairs_flush_too,
    a_request_half_received_is_flushed,
    send_and_receive_queues_of_their_own,
    what_is_acknowledged_is_not_flushed,
];

/// The peer has done, and its acknowledgement is here, though nobody has looked.
fn what_is_acknowledged_is_not_flushed(f: &Fabric) {
    if f.network().is_some() {
        // There it comes when time passes.
        return;
    }
    let (a, b) = f.two();
    // The first message has the two get to know each other, which takes its time.
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(0, &[b.sge(0, 5000)]).unwrap();
    x.post_send(&wr(0, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
    f.completions(&b, 1);
    f.completions(&a, 1);
    for i in 0..100 {
        let (x, y) = pair(&a, &b, QpType::Rc);
        y.post_recv(i, &[b.sge(0, 5000)]).unwrap();
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
        assert_eq!(outcomes(&f.completions(&b, 1)), [(i, WcStatus::Success)]);
        move_to(&y, QpState::Err);
        move_to(&x, QpState::Err);
        assert_eq!(outcomes(&f.completions(&a, 1)), [(i, WcStatus::Success)]);
    }
}

/// A queue pair whose sends wait for receives of the peer.
fn with_requests(f: &Fabric, a: &Side, b: &Side, count: u64) -> (Arc<Qp>, Arc<Qp>) {
    let (x, y) = pair(a, b, QpType::Rc);
    for i in 0..count {
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
        x.post_recv(100 + i, &[a.sge(0, 5000)]).unwrap();
    }
    f.until("an RNR NAK", || x.counters().rnr_naks_received > 0);
    (x, y)
}

fn entering_err_flushes_in_order(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = with_requests(f, &a, &b, 30);
    move_to(&x, QpState::Err);
    let found = f.completions(&a, 60);
    assert!(found.iter().all(|wc| wc.status == WcStatus::WrFlushErr && wc.qpn == x.qpn()));
    assert!(found.iter().all(|wc| wc.vendor_err == VendorErr::Flushed as u32));
    let sends = found.iter().filter(|wc| wc.opcode == WcOpcode::Send).map(|wc| wc.wr_id);
    assert!(sends.eq(0..30));
    let receives = found.iter().filter(|wc| wc.opcode == WcOpcode::Recv).map(|wc| wc.wr_id);
    assert!(receives.eq(100..130));
    // A second time there is nothing left.
    move_to(&x, QpState::Err);
    // What had left before does not arrive any more.
    f.settle();
    y.post_recv(1, &[b.sge(0, 5000)]).unwrap();
    f.nothing_more(&[&a, &b]);
    assert_eq!(y.state(), QpState::Rts);
}

fn posting_in_err_is_flushed(f: &Fabric) {
    let side = f.side();
    for qp_type in [QpType::Rc, QpType::Uc] {
        // Reached from every state.
        for steps in 0..4 {
            let qp = side.qp(qp_type);
            let attr = side::attr(side.gid(), 0x1234);
            let ways = [side::to_init, side::to_rtr, side::to_rts];
            ways.iter().take(steps).for_each(|step| step(&qp, &attr));
            move_to(&qp, QpState::Err);
            // A list of another's key: nothing is looked at any more.
            let bad = Sge { lkey: 0xbad, ..side.sge(0, 8) };
            for i in 0..100 {
                qp.post_send(&wr(i, WrOpcode::Write), Payload::Sges(&[bad])).unwrap();
                post_inline(&qp, &wr(1000 + i, WrOpcode::Send), b"inline").unwrap();
                qp.post_recv(2000 + i, &[bad]).unwrap();
                let ids = [i, 1000 + i, 2000 + i].map(|id| (id, WcStatus::WrFlushErr));
                assert_eq!(outcomes(&f.completions(&side, 3)), ids);
            }
            qp.destroy().unwrap();
        }
    }
}

fn entering_reset_drops_everything(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = with_requests(f, &a, &b, 10);
    move_to(&x, QpState::Reset);
    f.nothing_more(&[&a, &b]);
    y.post_recv(1, &[b.sge(0, 5000)]).unwrap();
    f.nothing_more(&[&a, &b]);
    // Connected again it starts afresh.
    move_to(&y, QpState::Reset);
    side::join(&a, &x, &b, &y, |_| {});
    y.post_recv(2, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(3, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(3, WcStatus::Success)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(2, WcStatus::Success)]);
    f.nothing_more(&[&a, &b]);
}

fn reset_takes_away_only_its_own_completions(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let (other, _peer) = pair(&a, &b, QpType::Rc);
    let keep = a.context.create_cq(16, None, 0).unwrap();
    let apart = a.pd.create_qp(&QpInit { recv_cq: keep.clone(), ..a.init(QpType::Rc) }).unwrap();
    for i in 0..5 {
        x.post_send(&b.remote(i, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        let request = b.remote(100 + i, WrOpcode::Write, 0);
        other.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    let done = |qp: &Qp| qp.counters().tx_messages == 5;
    f.until("ten requests", || done(&x) && done(&other));
    move_to(&x, QpState::Reset);
    assert!(a.poll().iter().map(|wc| wc.wr_id).eq(100..105));
    // Completions of a receive queue lie in another CQ, and go from there.
    move_to(&apart, QpState::Err);
    apart.post_recv(1, &[]).unwrap();
    move_to(&apart, QpState::Reset);
    assert_eq!(keep.poll(16, |_| {}).unwrap(), 0);
    // Destroying takes them away as well.
    move_to(&y, QpState::Err);
    for i in 0..5 {
        y.post_recv(i, &[]).unwrap();
    }
    y.destroy().unwrap();
    assert_eq!(b.poll(), []);
}

fn completions_from_before_stay_before_the_flushed(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for i in 0..5 {
        y.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    for i in 0..10 {
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    f.until("five sends", || x.counters().tx_messages == 5);
    move_to(&x, QpState::Err);
    let want = (0..10).map(|i| (i, if i < 5 { WcStatus::Success } else { WcStatus::WrFlushErr }));
    assert!(outcomes(&f.completions(&a, 10)).into_iter().eq(want));
    f.nothing_more(&[&a]);
}

fn a_queue_pair_with_an_srq_tells_its_last_request(f: &Fabric) {
    let (a, b) = f.two();
    let srq = b.pd.create_srq(SrqInit { max_wr: 16, max_sge: 1 }).unwrap();
    for i in 0..4 {
        srq.post_recv(i, &[b.sge(0, 64)]).unwrap();
    }
    let y = b.pd.create_qp(&QpInit { srq: Some(srq), ..b.init(QpType::Rc) }).unwrap();
    let x = a.qp(QpType::Rc);
    side::join(&a, &x, &b, &y, |_| {});
    move_to(&y, QpState::Err);
    let event = f.event(&b);
    assert_eq!(event.kind, EventKind::QpLastWqeReached);
    assert!(matches!(&event.source, EventSource::Qp(qp) if Arc::ptr_eq(qp, &y)));
    move_to(&y, QpState::Err);
    f.settle();
    assert!(b.next_event().is_none(), "once");
    // Receives of the SRQ are not the QP's to flush.
    assert_eq!(b.poll(), []);
    // Also when a peer's request moves it there.
    move_to(&y, QpState::Reset);
    move_to(&x, QpState::Reset);
    side::join(&a, &x, &b, &y, |_| {});
    let bad = SendWr { rkey: 0xbad, ..b.remote(1, WrOpcode::Write, 0) };
    x.post_send(&bad, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
    let mut kinds = [f.event(&b).kind, f.event(&b).kind];
    kinds.sort_by_key(|kind| *kind as u32);
    assert_eq!(kinds, [EventKind::QpAccessErr, EventKind::QpLastWqeReached]);
}

fn unreliable_queue_pairs_flush_too(f: &Fabric) {
    let side = f.side();
    for qp_type in [QpType::Uc, QpType::Ud] {
        let qp = side.qp(qp_type);
        side::connect(&qp, &side::attr(side.gid(), 0x1234));
        for i in 0..10 {
            qp.post_recv(i, &[side.sge(0, 64)]).unwrap();
        }
        move_to(&qp, QpState::Err);
        let want = (0..10).map(|i| (i, WcStatus::WrFlushErr));
        assert!(outcomes(&f.completions(&side, 10)).into_iter().eq(want));
        qp.destroy().unwrap();
    }
}

fn a_request_half_received_is_flushed(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(1, &[b.sge(0, 1 << 20)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 1 << 20)])).unwrap();
    f.until("some packets", || y.counters().rx_bytes >= 10_240);
    if b.poll().is_empty() {
        move_to(&y, QpState::Err);
        let received = outcomes(&f.completions(&b, 1));
        // On a real path the rest may have come meanwhile, which is taken first.
        let whole = received == [(1, WcStatus::Success)];
        assert!(whole && f.network().is_none() || received == [(1, WcStatus::WrFlushErr)]);
        move_to(&x, QpState::Err);
        let sent = outcomes(&f.completions(&a, 1));
        let acknowledged = sent == [(1, WcStatus::Success)];
        assert!(whole && acknowledged || sent == [(1, WcStatus::WrFlushErr)]);
        f.nothing_more(&[&a, &b]);
    } else {
        // On a real path all of it may come at once.
        assert!(f.network().is_none());
    }
}

fn send_and_receive_queues_of_their_own(f: &Fabric) {
    let (a, b) = f.two();
    let receives = a.context.create_cq(64, None, 0).unwrap();
    let init = QpInit { recv_cq: receives.clone(), ..a.init(QpType::Rc) };
    let x = a.pd.create_qp(&init).unwrap();
    let y = b.qp(QpType::Rc);
    side::join(&a, &x, &b, &y, |_| {});
    x.post_recv(1, &[a.sge(0, 8)]).unwrap();
    x.post_recv(2, &[a.sge(0, 8)]).unwrap();
    y.post_send(&wr(3, WrOpcode::Send), Payload::Sges(&[b.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions_of(&receives, 1)), [(1, WcStatus::Success)]);
    x.post_send(&wr(4, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.until("an RNR NAK", || x.counters().rnr_naks_received > 0);
    move_to(&x, QpState::Err);
    assert_eq!(outcomes(&f.completions_of(&receives, 1)), [(2, WcStatus::WrFlushErr)]);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(4, WcStatus::WrFlushErr)]);
    assert!(receives.destroy().is_err());
    x.destroy().unwrap();
    receives.destroy().unwrap();
}
