//! Peers that are not ready, not there, or too late.

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{
    self, Side, attr, move_to, outcomes, pair, pair_with, to_init, to_rtr, to_rts, wr,
};

cases![
    finite_rnr_retries_run_out,
    seven_rnr_retries_are_for_ever,
    rnr_timer_zero_is_the_longest,
    retries_run_out_when_nobody_answers,
    a_timeout_of_zero_never_runs_out,
    a_peer_that_is_ready_late_gets_everything,
    a_peer_in_error_answers_nobody,
    the_first_packet_in_rtr_is_told_once,
    reads_need_an_initiator_depth,
    a_message_above_the_limit_fails_here,
    the_connection_can_be_made_anew_after_an_error,
    errors_of_one_queue_pair_leave_others_alone,
];

fn send(side: &Side, qp: &Qp, wr_id: u64) {
    qp.post_send(&wr(wr_id, WrOpcode::Send), Payload::Sges(&[side.sge(0, 8)])).unwrap();
}

fn finite_rnr_retries_run_out(f: &Fabric) {
    let (a, b) = f.two();
    for rnr_retry in [0, 1, 6] {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| {
            (attr.rnr_retry, attr.min_rnr_timer) = (rnr_retry, 1);
        });
        send(&a, &x, 1);
        send(&a, &x, 2);
        let found = f.completions(&a, 2);
        assert_eq!(outcomes(&found), [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(found[0].vendor_err, VendorErr::RnrRetryExceeded as u32);
        // A probe on a slow machine brings one more.
        assert!(x.counters().rnr_naks_received > u64::from(rnr_retry));
        // The responder did nothing wrong.
        assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Rts));
        // WRITE with immediate needs a receive just as well, and writes nothing without.
        let (x, _y) = pair_with(&a, &b, QpType::Rc, |attr| {
            (attr.rnr_retry, attr.min_rnr_timer) = (rnr_retry, 1);
        });
        a.fill(0, b"unwanted");
        x.post_send(&b.remote(3, WrOpcode::WriteWithImm, 64), Payload::Sges(&[a.sge(0, 8)]))
            .unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(3, WcStatus::RnrRetryExcErr)]);
        assert_eq!(b.read(64, 8), [0; 8]);
    }
    f.nothing_more(&[&a, &b]);
    assert!(b.next_event().is_none());
}

fn seven_rnr_retries_are_for_ever(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for i in 0..3 {
        send(&a, &x, i);
    }
    f.until("many RNR NAKs", || x.counters().rnr_naks_received > 50);
    assert!(a.poll().is_empty());
    for i in 0..3 {
        y.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    let want = [0, 1, 2].map(|i| (i, WcStatus::Success));
    assert_eq!(outcomes(&f.completions(&a, 3)), want);
    assert_eq!(outcomes(&f.completions(&b, 3)), want);
}

fn rnr_timer_zero_is_the_longest(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| {
        (attr.rnr_retry, attr.min_rnr_timer) = (1, 0);
    });
    send(&a, &x, 1);
    f.until("the first RNR NAK", || x.counters().rnr_naks_received > 0);
    let (virtual_start, start) = (f.network().map(|n| n.now()), std::time::Instant::now());
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    let waited = match (virtual_start, f.network()) {
        (Some(start), Some(network)) => network.now() - start,
        _ => start.elapsed().as_nanos() as u64,
    };
    // Less a moment, between the packet and our look at the clock.
    assert!(waited > 600_000_000, "{waited} ns");
}

fn retries_run_out_when_nobody_answers(f: &Fabric) {
    let (a, b) = f.two();
    for (retry_cnt, request) in
        [(0, WrOpcode::Send), (1, WrOpcode::Write), (2, WrOpcode::Read), (3, WrOpcode::FetchAdd)]
    {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| {
            (attr.timeout, attr.retry_cnt) = (8, retry_cnt);
        });
        y.destroy().unwrap();
        x.post_send(&b.remote(1, request, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        send(&a, &x, 2);
        x.post_recv(3, &[a.sge(0, 8)]).unwrap();
        let found = f.completions(&a, 3);
        let flushed = [(2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&found), [&[(1, WcStatus::RetryExcErr)], &flushed[..]].concat());
        assert_eq!(found[0].vendor_err, VendorErr::RetryExceeded as u32);
        assert_eq!(x.counters().timeouts, u64::from(retry_cnt) + 1);
        assert_eq!(x.state(), QpState::Err);
    }
}

fn a_timeout_of_zero_never_runs_out(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    let forever = QpAttr { timeout: 0, retry_cnt: 0, ..attr(b.gid(), y.qpn()) };
    side::connect(&x, &forever);
    to_init(&y, &attr(a.gid(), x.qpn()));
    send(&a, &x, 1);
    if let Some(network) = f.network() {
        assert!(!network.run_until(100_000_000_000, || !a.poll().is_empty()));
    } else {
        f.settle();
        assert_eq!(a.poll(), []);
    }
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    to_rtr(&y, &attr(a.gid(), x.qpn()));
    assert_eq!(f.completion(&a).status, WcStatus::Success);
}

fn a_peer_that_is_ready_late_gets_everything(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    side::connect(&x, &attr(b.gid(), y.qpn()));
    for i in 0..10 {
        send(&a, &x, i);
    }
    f.settle_for(2_000_000);
    to_init(&y, &attr(a.gid(), x.qpn()));
    f.settle_for(2_000_000);
    for i in 0..10 {
        y.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    to_rtr(&y, &attr(a.gid(), x.qpn()));
    assert!(
        outcomes(&f.completions(&a, 10)).into_iter().eq((0..10).map(|i| (i, WcStatus::Success)))
    );
    assert!(
        outcomes(&f.completions(&b, 10)).into_iter().eq((0..10).map(|i| (i, WcStatus::Success)))
    );
}

fn a_peer_in_error_answers_nobody(f: &Fabric) {
    let (a, b) = f.two();
    for state in [QpState::Err, QpState::Reset] {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| (attr.timeout, attr.retry_cnt) = (8, 1));
        move_to(&y, state);
        x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::RetryExcErr)]);
        assert!(b.next_event().is_none());
    }
}

fn the_first_packet_in_rtr_is_told_once(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    side::connect(&x, &attr(b.gid(), y.qpn()));
    let mine = attr(a.gid(), x.qpn());
    to_init(&y, &mine);
    for i in 0..3 {
        y.post_recv(i, &[b.sge(0, 8)]).unwrap();
    }
    to_rtr(&y, &mine);
    for i in 0..2 {
        send(&a, &x, i);
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(f.completion(&b).status, WcStatus::Success);
    }
    assert_eq!(f.event(&b).kind, EventKind::CommEst);
    assert!(b.next_event().is_none() && a.next_event().is_none());
    to_rts(&y, &mine);
    send(&a, &x, 3);
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    x.post_recv(1, &[a.sge(0, 8)]).unwrap();
    send(&b, &y, 4);
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    f.settle();
    assert!(b.next_event().is_none() && a.next_event().is_none());
}

fn reads_need_an_initiator_depth(f: &Fabric) {
    let (a, b) = f.two();
    for opcode in [WrOpcode::Read, WrOpcode::FetchAdd, WrOpcode::CompareSwap] {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.max_rd_atomic = 0);
        x.post_send(&b.remote(1, opcode, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::LocQpOpErr);
        assert_eq!(y.state(), QpState::Rts);
        // And the responder resources for it.
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.max_dest_rd_atomic = 0);
        x.post_send(&b.remote(1, opcode, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::RemInvReqErr);
        assert_eq!(f.event(&b).kind, EventKind::QpReqErr);
        assert_eq!(y.state(), QpState::Err);
    }
}

fn a_message_above_the_limit_fails_here(f: &Fabric) {
    let a = Side::new(&f.host(), (1 << 30) + 4096);
    let b = f.side();
    let max = b.context.port(1).unwrap().max_msg_sz;
    assert_eq!(max, 1 << 31);
    for opcode in [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read] {
        let (x, y) = pair(&a, &b, QpType::Rc);
        let half = a.sge(0, 1 << 30);
        let list = [half, half, a.sge(0, 1)];
        x.post_send(&b.remote(1, opcode, 0), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::LocLenErr, "{opcode:?}");
        assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Rts));
    }
}

fn the_connection_can_be_made_anew_after_an_error(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for round in 0..20 {
        y.post_recv(1, &[b.sge(0, 8)]).unwrap();
        let bad = SendWr { rkey: 0xbad, ..b.remote(1, WrOpcode::Write, 0) };
        send(&a, &x, 0);
        x.post_send(&bad, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        let want = [(0, WcStatus::Success), (1, WcStatus::RemAccessErr)];
        assert_eq!(outcomes(&f.completions(&a, 2)), want, "round {round}");
        assert_eq!(f.completion(&b).status, WcStatus::Success);
        f.event(&b);
        move_to(&x, QpState::Reset);
        move_to(&y, QpState::Reset);
        let psn = round * 0x10_0000;
        side::join(&a, &x, &b, &y, |attr| (attr.sq_psn, attr.rq_psn) = (psn, psn));
    }
    f.nothing_more(&[&a, &b]);
}

fn errors_of_one_queue_pair_leave_others_alone(f: &Fabric) {
    let (a, b) = f.two();
    let good: Vec<_> = (0..4).map(|_| pair(&a, &b, QpType::Rc)).collect();
    for i in 0..20 {
        let (x, _y) = pair(&a, &b, QpType::Rc);
        let bad = SendWr { rkey: 0xbad, ..b.remote(1000, WrOpcode::Write, 0) };
        x.post_send(&bad, Payload::Sges(&[a.sge(0, 4000)])).unwrap();
        for (x, y) in &good {
            y.post_recv(i, &[b.sge(0, 4000)]).unwrap();
            x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 4000)])).unwrap();
        }
        let found = f.completions(&a, 5);
        for wc in &found {
            let failed = wc.qpn == x.qpn();
            let want = if failed { WcStatus::RemAccessErr } else { WcStatus::Success };
            assert_eq!((wc.status, wc.wr_id), (want, if failed { 1000 } else { i }));
        }
        assert!(f.completions(&b, 4).iter().all(|wc| wc.status == WcStatus::Success));
    }
}
