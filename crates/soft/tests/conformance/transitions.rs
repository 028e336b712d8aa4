//! ibv_modify_qp(3): every transition with what it needs, what it may take and what it may not.

use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, EOPNOTSUPP};

use crate::fabric::Fabric;
use crate::side::{self, Side, attr, move_to, pair, to_init, to_rtr, wr};

cases![
    every_transition_takes_its_attributes_and_no_others,
    reset_to_reset_is_legal_and_forgets,
    a_wrong_current_state_is_refused,
    values_out_of_range_are_refused_and_change_nothing,
    an_address_without_grh_is_refused,
    query_tells_what_was_set,
    a_drained_queue_is_told_once,
    a_queue_that_drains_finishes_what_it_began,
    attributes_change_while_drained,
    unreliable_queues_recover_from_a_failed_send,
];

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

/// What this device refuses whenever it is named: it has no path migration, rate limits or resizing.
const UNSUPPORTED: AttrMask = AttrMask::ALT_PATH
    .union(AttrMask::PATH_MIG_STATE)
    .union(AttrMask::RATE_LIMIT)
    .union(AttrMask::CAP);

/// Required and optional attributes besides STATE, from the tables of ibv_modify_qp(3) and IBA 11.2.5.2; None where
/// there is no transition.
fn table(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use AttrMask as M;
    use QpState::*;
    let rc = qp_type == QpType::Rc;
    let ud = qp_type == QpType::Ud;
    let identity = if ud { M::QKEY } else { M::ACCESS_FLAGS };
    let none = M::empty();
    let only_rc = |mask: M| if rc { mask } else { none };
    let only_connected = |mask: M| if ud { none } else { mask };
    Some(match (from, to) {
        (_, Reset) | (_, Err) => (none, none),
        (Reset, Init) => (M::PKEY_INDEX | M::PORT | identity, none),
        (Init, Init) => (none, M::PKEY_INDEX | M::PORT | identity),
        (Init, Rtr) => (
            only_connected(M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN)
                | only_rc(M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
            M::PKEY_INDEX | identity,
        ),
        (Rtr, Rts) => (
            M::SQ_PSN | only_rc(M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
            M::CUR_STATE | identity | only_rc(M::MIN_RNR_TIMER),
        ),
        (Rts | Sqd, Rts) => (none, M::CUR_STATE | identity | only_rc(M::MIN_RNR_TIMER)),
        (Sqe, Rts) if !rc => (none, M::CUR_STATE | identity),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            none,
            M::PKEY_INDEX
                | identity
                | only_connected(M::AV)
                | only_rc(
                    M::PORT
                        | M::TIMEOUT
                        | M::RETRY_CNT
                        | M::RNR_RETRY
                        | M::MAX_QP_RD_ATOMIC
                        | M::MAX_DEST_RD_ATOMIC
                        | M::MIN_RNR_TIMER,
                ),
        ),
        _ => return None,
    })
}

/// A QP in a state; None if its type has no such state.
fn qp_in(f: &Fabric, side: &Side, qp_type: QpType, state: QpState) -> Option<Arc<Qp>> {
    let qp = side.qp(qp_type);
    let attr = attr(side.gid(), 0x1234);
    match state {
        QpState::Reset => {}
        QpState::Init => to_init(&qp, &attr),
        QpState::Rtr => {
            to_init(&qp, &attr);
            to_rtr(&qp, &attr);
        }
        QpState::Rts => side::connect(&qp, &attr),
        QpState::Sqd => {
            side::connect(&qp, &attr);
            move_to(&qp, QpState::Sqd);
        }
        QpState::Sqe if qp_type == QpType::Rc => return None,
        QpState::Sqe => {
            side::connect(&qp, &attr);
            post_bad_send(side, &qp);
            assert_eq!(f.completion(side).status, WcStatus::LocProtErr);
        }
        QpState::Err => move_to(&qp, QpState::Err),
    }
    assert_eq!(qp.state(), state);
    Some(qp)
}

/// A send whose lkey is nobody's.
fn post_bad_send(side: &Side, qp: &Qp) {
    let path = ah(side, side.gid()).path();
    let ud = Some(UdDest { path, qpn: 0x1234, qkey: side::QKEY });
    let bad = Sge { lkey: 0xdead_beef, ..side.sge(0, 8) };
    qp.post_send(&SendWr { ud, ..wr(9, WrOpcode::Send) }, Payload::Sges(&[bad])).unwrap();
}

fn ah(side: &Side, dgid: Gid) -> Arc<Ah> {
    let attr = AhAttr { dgid, is_global: true, port_num: 1, ..AhAttr::default() };
    side.pd.create_ah(&attr).unwrap()
}

fn every_transition_takes_its_attributes_and_no_others(f: &Fabric) {
    let side = f.side();
    let mut accepted = 0;
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            for to in STATES {
                let attr = QpAttr { state: to, cur_state: from, ..attr(side.gid(), 0x1234) };
                let Some(qp) = qp_in(f, &side, qp_type, from) else { continue };
                let Some((required, optional)) = table(qp_type, from, to) else {
                    for mask in [AttrMask::empty(), AttrMask::PKEY_INDEX, AttrMask::all()] {
                        refused(&qp, &attr, mask | AttrMask::STATE);
                    }
                    qp.destroy().unwrap();
                    continue;
                };
                for bit in AttrMask::all() - AttrMask::STATE {
                    let mask = required ^ bit | AttrMask::STATE;
                    let allowed = optional.contains(bit) && !UNSUPPORTED.contains(bit);
                    let what = format!("{qp_type:?} {from:?} to {to:?}, {mask:?}");
                    if allowed {
                        let other = qp_in(f, &side, qp_type, from).unwrap();
                        other.modify(&attr, mask).expect(&what);
                        assert_eq!(other.state(), to, "{what}");
                        other.destroy().unwrap();
                        accepted += 1;
                    } else {
                        refused(&qp, &attr, mask);
                    }
                }
                // After all that was refused, what is right works.
                qp.modify(&attr, required | AttrMask::STATE).unwrap();
                assert_eq!(qp.state(), to);
                qp.destroy().unwrap();
            }
        }
    }
    assert!(accepted > 30, "{accepted}");
}

fn refused(qp: &Qp, attr: &QpAttr, mask: AttrMask) {
    let before = qp.query();
    let error = qp.modify(attr, mask).expect_err(&format!("{:?} {mask:?}", qp.qp_type()));
    let unsupported = mask.intersects(UNSUPPORTED) && error.errno() == EOPNOTSUPP;
    assert!(error.errno() == EINVAL || unsupported, "{mask:?}: {error}");
    assert_eq!(qp.query(), before, "{mask:?}");
}

fn reset_to_reset_is_legal_and_forgets(f: &Fabric) {
    let side = f.side();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let qp = side.qp(qp_type);
        let fresh = qp.query();
        move_to(&qp, QpState::Reset);
        assert_eq!(qp.query(), fresh);
        side::connect(&qp, &attr(side.gid(), 0x1234));
        move_to(&qp, QpState::Reset);
        assert_eq!(qp.query(), fresh, "RESET forgets every attribute");
        side::connect(&qp, &attr(side.gid(), 0x1234));
        assert_eq!(qp.state(), QpState::Rts);
    }
}

fn a_wrong_current_state_is_refused(f: &Fabric) {
    let side = f.side();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let qp = qp_in(f, &side, qp_type, QpState::Rts).unwrap();
        for cur_state in STATES {
            let attr = QpAttr { state: QpState::Rts, cur_state, ..QpAttr::default() };
            let done = qp.modify(&attr, AttrMask::STATE | AttrMask::CUR_STATE);
            assert_eq!(done.is_ok(), cur_state == QpState::Rts, "{cur_state:?}");
        }
    }
}

/// A change of valid attributes into ones that are not.
type Spoil = fn(&mut QpAttr);

/// A transition and what may be wrong with its attributes.
type Step<'a> = (QpState, AttrMask, &'a [(&'a str, Spoil)]);

fn values_out_of_range_are_refused_and_change_nothing(f: &Fabric) {
    let side = f.side();
    let good = attr(side.gid(), 0x1234);
    let to_init_mask = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let (to_rtr_mask, _) = table(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
    let (to_rts_mask, _) = table(QpType::Rc, QpState::Rtr, QpState::Rts).unwrap();
    let steps: [Step<'_>; 3] = [
        (
            QpState::Init,
            to_init_mask,
            &[
                ("port 0", |a| a.port_num = 0),
                ("port 2", |a| a.port_num = 2),
                ("pkey_index", |a| a.pkey_index = 1),
            ],
        ),
        (
            QpState::Rtr,
            to_rtr_mask,
            &[
                ("dest_qp_num", |a| a.dest_qpn = 0x100_0000),
                ("min_rnr_timer", |a| a.min_rnr_timer = 32),
                ("max_dest_rd_atomic", |a| a.max_dest_rd_atomic = 129),
                ("is_global", |a| a.ah.is_global = false),
                ("port of the address", |a| a.ah.port_num = 0),
                ("port of the address", |a| a.ah.port_num = 2),
                ("sgid_index without entry", |a| a.ah.sgid_index = 77),
                ("sgid_index above the table", |a| a.ah.sgid_index = 200),
                ("dgid", |a| a.ah.dgid = Gid::UNSPECIFIED),
                ("family", |a| a.ah.dgid = "fd00::99".parse().unwrap()),
            ],
        ),
        (
            QpState::Rts,
            to_rts_mask,
            &[
                ("timeout", |a| a.timeout = 32),
                ("retry_cnt", |a| a.retry_cnt = 8),
                ("rnr_retry", |a| a.rnr_retry = 8),
                ("max_rd_atomic", |a| a.max_rd_atomic = 129),
            ],
        ),
    ];
    let qp = side.qp(QpType::Rc);
    for (state, mask, bad) in steps {
        for (what, spoil) in bad {
            let mut attr = QpAttr { state, ..good };
            spoil(&mut attr);
            let before = qp.query();
            let done = qp.modify(&attr, mask | AttrMask::STATE);
            let errno = done.expect_err(what).errno();
            assert_eq!(errno, EINVAL, "{what}");
            assert_eq!(qp.query(), before, "{what}");
        }
        qp.modify(&QpAttr { state, ..good }, mask | AttrMask::STATE).unwrap();
        assert_eq!(qp.state(), state);
    }
}

fn an_address_without_grh_is_refused(f: &Fabric) {
    let side = f.side();
    let attr = AhAttr { dgid: side.gid(), port_num: 1, ..AhAttr::default() };
    let error = side.pd.create_ah(&attr).unwrap_err();
    assert_eq!(error.errno(), EINVAL);
    assert!(error.to_string().contains("GRH"), "{error}");
    side.pd.create_ah(&AhAttr { is_global: true, ..attr }).unwrap();
}

fn query_tells_what_was_set(f: &Fabric) {
    let side = f.side();
    let qp = side.qp(QpType::Rc);
    let set = QpAttr {
        path_mtu: Mtu::M512,
        dest_qpn: 0x12_3456,
        rq_psn: 0xab_cdef,
        sq_psn: 0x12_abcd,
        max_rd_atomic: 3,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 17,
        timeout: 18,
        retry_cnt: 4,
        rnr_retry: 6,
        ah: AhAttr { sl: 3, traffic_class: 7, flow_label: 9, ..attr(side.gid(), 0).ah },
        ..attr(side.gid(), 0x12_3456)
    };
    side::connect(&qp, &set);
    let want = QpAttr {
        state: QpState::Rts,
        cur_state: QpState::Rts,
        cap: qp.cap(),
        // A Q_Key is an attribute of datagram QPs.
        qkey: 0,
        ..set
    };
    assert_eq!(qp.query(), want);
    assert_eq!(qp.cap(), side.init(QpType::Rc).cap);

    // PSNs have 24 bits.
    let qp = side.qp(QpType::Rc);
    side::connect(&qp, &QpAttr { rq_psn: 0xff00_0001, sq_psn: 0x0100_0002, ..set });
    assert_eq!((qp.query().rq_psn, qp.query().sq_psn), (1, 2));
}

fn drain(qp: &Qp, en_sqd_async_notify: bool) {
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
}

fn a_drained_queue_is_told_once(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    drain(&x, true);
    let event = f.event(&a);
    assert_eq!(event.kind, EventKind::SqDrained);
    assert!(matches!(&event.source, EventSource::Qp(qp) if Arc::ptr_eq(qp, &x)));
    assert!(!x.query().sq_draining);
    f.settle();
    assert!(a.next_event().is_none());

    // Without being asked for it is not told.
    drain(&y, false);
    f.settle();
    assert!(b.next_event().is_none());
}

fn a_queue_that_drains_finishes_what_it_began(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    // No receive yet: the first SEND is under way until there is one.
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 5000)])).unwrap();
    drain(&x, true);
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert!(x.query().sq_draining);
    y.post_recv(11, &[b.sge(0, 5000)]).unwrap();
    y.post_recv(12, &[b.sge(0, 5000)]).unwrap();
    assert_eq!(side::outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
    assert_eq!(f.event(&a).kind, EventKind::SqDrained);
    assert_eq!(f.completion(&b).wr_id, 11);
    f.nothing_more(&[&a, &b]);

    // What was posted meanwhile goes when the queue runs again.
    x.modify(&QpAttr { state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert_eq!(side::outcomes(&f.completions(&a, 1)), [(2, WcStatus::Success)]);
    assert_eq!(f.completion(&b).wr_id, 12);
}

fn attributes_change_while_drained(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    drain(&y, false);
    // The peer may not write any more.
    let attr = QpAttr { state: QpState::Sqd, access: Access::LOCAL_WRITE, ..QpAttr::default() };
    y.modify(&attr, AttrMask::STATE | AttrMask::ACCESS_FLAGS).unwrap();
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemInvReqErr);
    assert_eq!(y.state(), QpState::Err);
}

fn unreliable_queues_recover_from_a_failed_send(f: &Fabric) {
    let (a, b) = f.two();
    for qp_type in [QpType::Uc, QpType::Ud] {
        let (x, y) = pair(&a, &b, qp_type);
        let ud = Some(UdDest { path: ah(&a, b.gid()).path(), qpn: y.qpn(), qkey: side::QKEY });
        let send = |wr_id| SendWr { ud, ..wr(wr_id, WrOpcode::Send) };
        y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
        post_bad_send(&a, &x);
        x.post_send(&send(2), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(
            side::outcomes(&f.completions(&a, 2)),
            [(9, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]
        );
        assert_eq!(x.state(), QpState::Sqe);
        // In SQE sends are flushed and receives go on (IBA 10.3.1.6).
        x.post_send(&send(3), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(side::outcomes(&f.completions(&a, 1)), [(3, WcStatus::WrFlushErr)]);
        x.post_recv(4, &[a.sge(0, 4096)]).unwrap();
        let back = Some(UdDest { path: ah(&b, a.gid()).path(), qpn: x.qpn(), qkey: side::QKEY });
        let back = SendWr { ud: back, ..wr(5, WrOpcode::Send) };
        y.post_send(&back, Payload::Sges(&[b.sge(0, 8)])).unwrap();
        assert_eq!(side::outcomes(&f.completions(&a, 1)), [(4, WcStatus::Success)]);
        assert_eq!(side::outcomes(&f.completions(&b, 1)), [(5, WcStatus::Success)]);

        x.modify(&QpAttr { state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        x.post_send(&send(6), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(side::outcomes(&f.completions(&a, 1)), [(6, WcStatus::Success)]);
        assert_eq!(side::outcomes(&f.completions(&b, 1)), [(1, WcStatus::Success)]);
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}
