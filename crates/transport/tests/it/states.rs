//! States, attributes and what may be posted when (IBA 10.3.1, ibv_modify_qp(3)).

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::wr;
use ironverbs_transport::device::{QpEvent, Queue};
use ironverbs_transport::qp::{ModifyError, Output, Payload, PostError};
use ironverbs_transport::verbs::{
    AttrMask, QpAttr, QpState, QpType, VendorErr, WcStatus, WrOpcode,
};

const TYPES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

fn options(qp_type: QpType) -> Options {
    Options { qp_type, ..Options::default() }
}

/// A pair whose first side is in `state`; SQE cannot be entered by modify and is left out.
fn in_state(qp_type: QpType, state: QpState) -> Pair {
    let mut pair = Pair::reset(options(qp_type));
    let steps: [fn(&mut Pair, usize); 3] = [Pair::enter_init, Pair::enter_rtr, Pair::enter_rts];
    let count = match state {
        QpState::Reset | QpState::Err => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        _ => 3,
    };
    for step in &steps[..count] {
        step(&mut pair, 0);
    }
    if matches!(state, QpState::Sqd | QpState::Err) {
        pair.enter(0, state);
    }
    assert_eq!(pair.hosts[0].qp.state(), state);
    pair
}

#[test]
fn each_transition_needs_each_of_its_attributes_and_takes_no_others() {
    for qp_type in TYPES {
        for (from, given) in [
            (QpState::Reset, Pair::reset(options(qp_type)).init_attr()),
            (QpState::Init, Pair::reset(options(qp_type)).rtr_attr(0)),
            (QpState::Rtr, Pair::reset(options(qp_type)).rts_attr(0)),
        ] {
            let (attr, mask) = given;
            let mut pair = in_state(qp_type, from);
            let before = pair.hosts[0].qp.query();
            for bit in mask.iter().filter(|&bit| bit != AttrMask::STATE) {
                let error = pair.try_modify(0, attr, mask - bit).unwrap_err();
                assert_eq!(error, ModifyError::MissingAttr(bit), "{qp_type:?} {from:?}");
            }
            let error = pair.try_modify(0, attr, mask | AttrMask::RATE_LIMIT).unwrap_err();
            assert_eq!(error, ModifyError::ExtraAttr(AttrMask::RATE_LIMIT));
            assert_eq!(pair.hosts[0].qp.query(), before, "a refused modify changes nothing");
            pair.modify(0, attr, mask);
            assert_eq!(pair.hosts[0].qp.state(), attr.state);
        }
    }
}

#[test]
fn xrc_takes_the_masks_of_rc() {
    let whole = [
        (QpState::Init, AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER),
        (QpState::Rtr, AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY),
    ];
    for qp_type in [QpType::XrcSend, QpType::XrcRecv] {
        for (from, of_rc) in whole {
            let mut pair = in_state(qp_type, from);
            let (attr, mask) = match from {
                QpState::Init => pair.rtr_attr(0),
                _ => pair.rts_attr(0),
            };
            let before = pair.hosts[0].qp.query();
            let beyond = QpAttr { max_rd_atomic: 77, max_dest_rd_atomic: 77, ..attr };
            let own = mask & of_rc;
            let given = if own.is_empty() { beyond } else { attr };
            pair.modify(0, given, mask | of_rc);
            assert_eq!(pair.hosts[0].qp.state(), attr.state, "{qp_type:?} {from:?}");
            if own.is_empty() {
                let after = pair.hosts[0].qp.query();
                assert_eq!(after.max_rd_atomic, before.max_rd_atomic, "ignored");
                assert_eq!(after.max_dest_rd_atomic, before.max_dest_rd_atomic, "ignored");
            }
        }
    }
}

#[test]
fn transitions_are_those_of_the_specification() {
    let legal = |from, to| match (from, to) {
        (_, QpState::Reset | QpState::Err) => true,
        (QpState::Rts | QpState::Sqd, QpState::Rts) => true,
        (QpState::Rts | QpState::Sqd, QpState::Sqd) => from == QpState::Rts || from == to,
        (QpState::Init, QpState::Init) => true,
        _ => false,
    };
    for qp_type in TYPES {
        for from in STATES.into_iter().filter(|&state| state != QpState::Sqe) {
            for to in STATES {
                // With STATE alone: what needs more is refused for that.
                let mut pair = in_state(qp_type, from);
                let attr = QpAttr { state: to, ..QpAttr::default() };
                let needs_more = matches!(
                    (from, to),
                    (QpState::Reset, QpState::Init) | (QpState::Rtr, QpState::Rts)
                ) || (from, to) == (QpState::Init, QpState::Rtr)
                    && qp_type != QpType::Ud;
                let ud_rtr = (from, to) == (QpState::Init, QpState::Rtr) && !needs_more;
                match pair.try_modify(0, attr, AttrMask::STATE) {
                    Ok(()) => assert!(legal(from, to) || ud_rtr, "{qp_type:?} {from:?} {to:?}"),
                    Err(ModifyError::MissingAttr(_)) => assert!(needs_more),
                    Err(ModifyError::Transition { .. }) => {
                        assert!(!legal(from, to) && !needs_more, "{qp_type:?} {from:?} {to:?}");
                        assert_eq!(pair.hosts[0].qp.state(), from);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn values_out_of_range_are_refused_with_both_values() {
    let mut pair = in_state(QpType::Rc, QpState::Rtr);
    let (attr, mask) = pair.rts_attr(0);
    let error = pair.try_modify(0, QpAttr { retry_cnt: 8, ..attr }, mask).unwrap_err();
    assert_eq!(error, ModifyError::Value { what: "retry_cnt", asked: 8, max: 7 });
    let error = pair.try_modify(0, QpAttr { timeout: 32, ..attr }, mask).unwrap_err();
    assert_eq!(error, ModifyError::Value { what: "timeout", asked: 32, max: 31 });
    pair.modify(0, attr, mask);
}

#[test]
fn cur_state_must_be_right() {
    let mut pair = in_state(QpType::Rc, QpState::Rts);
    let attr = QpAttr {
        cur_state: QpState::Sqd,
        min_rnr_timer: 3,
        state: QpState::Rts,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::CUR_STATE | AttrMask::MIN_RNR_TIMER;
    let error = pair.try_modify(0, attr, mask).unwrap_err();
    assert_eq!(error, ModifyError::CurState { asked: QpState::Sqd, actual: QpState::Rts });
    assert_ne!(pair.hosts[0].qp.query().min_rnr_timer, 3);
    pair.modify(0, QpAttr { cur_state: QpState::Rts, ..attr }, mask);
    assert_eq!(pair.hosts[0].qp.query().min_rnr_timer, 3);
}

#[test]
fn query_gives_what_was_set() {
    let pair = in_state(QpType::Rc, QpState::Rts);
    let attr = pair.hosts[0].qp.query();
    let options = pair.options;
    assert_eq!(attr.cap, options.cap);
    assert_eq!((attr.rq_psn, attr.sq_psn), (options.psn, options.psn));
    assert_eq!((attr.timeout, attr.retry_cnt), (options.timeout, options.retry_cnt));
    assert_eq!((attr.dest_qpn, attr.path_mtu), (0x12, options.mtu));
    assert_eq!((attr.access, attr.port_num), (options.access, 1));
}

#[test]
fn sends_are_refused_before_rts_and_receives_before_init() {
    for (state, send, recv) in [
        (QpState::Reset, false, false),
        (QpState::Init, false, true),
        (QpState::Rtr, false, true),
        (QpState::Rts, true, true),
        (QpState::Sqd, true, true),
        (QpState::Err, true, true),
    ] {
        let mut pair = in_state(QpType::Rc, state);
        let qp = &mut pair.hosts[0].qp;
        let sent = qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[]));
        assert_eq!(sent, if send { Ok(()) } else { Err(PostError::State(state)) });
        let received = qp.post_recv(2, &[]);
        assert_eq!(received, if recv { Ok(()) } else { Err(PostError::State(state)) });
    }
}

#[test]
fn posts_beyond_the_capabilities_are_refused_and_leave_the_queue_as_it_was() {
    let mut pair = Pair::connected(options(QpType::Rc));
    let qp = &mut pair.hosts[0].qp;
    let sge = Default::default();
    let send = wr(1, WrOpcode::Send);
    assert_eq!(
        qp.post_send(&send, Payload::Sges(&[sge; 5])),
        Err(PostError::TooManySges { asked: 5, max: 4 })
    );
    let copy = &mut |_: &mut [u8]| panic!("not to be copied");
    assert_eq!(
        qp.post_send(&send, Payload::Inline { len: 257, copy }),
        Err(PostError::InlineTooLong { asked: 257, max: 256 })
    );
    assert_eq!(
        qp.post_send(&wr(1, WrOpcode::Read), Payload::Inline { len: 8, copy }),
        Err(PostError::ReadInline(WrOpcode::Read))
    );
    assert_eq!(
        qp.post_send(&wr(1, WrOpcode::FetchAdd), Payload::Sges(&[])),
        Err(PostError::AtomicLength { asked: 0 })
    );
    assert_eq!(qp.output(), Output::None);
    for _ in 0..64 {
        qp.post_send(&send, Payload::Sges(&[])).unwrap();
        qp.post_recv(1, &[]).unwrap();
    }
    assert_eq!(qp.post_send(&send, Payload::Sges(&[])), Err(PostError::QueueFull { max: 64 }));
    assert_eq!(qp.post_recv(1, &[]), Err(PostError::QueueFull { max: 64 }));

    let mut shared = Pair::connected(Options { srq: true, ..options(QpType::Rc) });
    assert_eq!(shared.hosts[0].qp.post_recv(1, &[]), Err(PostError::SharedReceives));
}

#[test]
fn services_have_the_operations_of_the_specification() {
    let all = [
        WrOpcode::Send,
        WrOpcode::SendWithImm,
        WrOpcode::SendWithInv,
        WrOpcode::Write,
        WrOpcode::WriteWithImm,
        WrOpcode::Read,
        WrOpcode::CompareSwap,
        WrOpcode::FetchAdd,
    ];
    for (qp_type, allowed) in [(QpType::Rc, 8), (QpType::Uc, 4), (QpType::Ud, 2)] {
        let mut pair = Pair::connected(options(qp_type));
        let destination = pair.destination(0);
        let region = pair.hosts[0].dev.register(8, ALL);
        let sge = pair.hosts[0].dev.regions[region].sge(0, 8);
        let mut taken = 0;
        for opcode in all {
            let mut request = wr(1, opcode);
            request.ud = (qp_type == QpType::Ud).then_some(destination);
            match pair.hosts[0].qp.post_send(&request, Payload::Sges(&[sge])) {
                Ok(()) => taken += 1,
                Err(error) => assert_eq!(error, PostError::OpNotAllowed { opcode, qp_type }),
            }
        }
        assert_eq!(taken, allowed, "{qp_type:?}");
    }
    let mut pair = Pair::connected(options(QpType::Ud));
    let posted = pair.hosts[0].qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[]));
    assert_eq!(posted, Err(PostError::NoDestination));
}

#[test]
fn err_flushes_in_order_and_reset_drops() {
    for qp_type in TYPES.into_iter().filter(|qp_type| qp_type.has_responder()) {
        let mut pair = Pair::connected(options(qp_type));
        let destination = pair.destination(0);
        for wr_id in 0..3 {
            pair.recv(0, 100 + wr_id, &[]);
            let mut request = wr(wr_id, WrOpcode::Send);
            request.flags = Default::default();
            request.ud = Some(destination);
            pair.send(0, &request, &[]);
        }
        pair.enter(0, QpState::Err);
        let flushed = |pair: &mut Pair, queue| {
            let mut ids = Vec::new();
            while let Some(wc) = pair.poll(0, queue) {
                assert_eq!(wc.status, WcStatus::WrFlushErr);
                assert_eq!(wc.vendor_err, VendorErr::Flushed as u32);
                assert_eq!(wc.qpn, 0x11);
                ids.push(wc.wr_id);
            }
            ids
        };
        assert!(
            pair.hosts[0].dev.completions.iter().position(|(queue, _)| *queue == Queue::Recv)
                == Some(3),
            "sends come first"
        );
        assert_eq!(flushed(&mut pair, Queue::Send), [0, 1, 2]);
        assert_eq!(flushed(&mut pair, Queue::Recv), [100, 101, 102]);

        // Posted later, flushed with the next call.
        pair.recv(0, 7, &[]);
        pair.send(
            0,
            &{
                let mut w = wr(8, WrOpcode::Send);
                w.ud = Some(destination);
                w
            },
            &[],
        );
        assert_eq!(pair.hosts[0].qp.output(), Output::Data);
        pair.transmit();
        assert_eq!(flushed(&mut pair, Queue::Send), [8]);
        assert_eq!(flushed(&mut pair, Queue::Recv), [7]);
        assert_eq!(pair.hosts[0].qp.output(), Output::None);

        pair.recv(0, 9, &[]);
        pair.enter(0, QpState::Reset);
        pair.enter(0, QpState::Reset);
        pair.transmit();
        assert!(pair.hosts[0].dev.completions.is_empty());
        pair.connect_side(0);
        assert_eq!(pair.hosts[0].qp.state(), QpState::Rts);
    }
}

#[test]
fn err_with_a_shared_receive_queue_raises_last_wqe_reached_once() {
    let mut pair = Pair::connected(Options { srq: true, ..options(QpType::Rc) });
    pair.enter(0, QpState::Err);
    pair.enter(0, QpState::Err);
    assert_eq!(pair.hosts[0].dev.events, [QpEvent::LastWqeReached]);
}

#[test]
fn sqd_finishes_what_has_begun_and_holds_the_rest() {
    let mut pair = Pair::connected(options(QpType::Rc));
    let region = pair.hosts[0].dev.register(20_000, ALL);
    let sge = pair.hosts[0].dev.regions[region].sge(0, 20_000);
    let target = pair.hosts[1].dev.register(20_000, ALL);
    let to = pair.hosts[1].dev.regions[target].sge(0, 20_000);
    pair.recv(1, 1, &[to]);
    pair.recv(1, 2, &[to]);
    // 79 packets: more than the first window.
    pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
    pair.transmit();
    pair.send(0, &wr(2, WrOpcode::Send), &[sge]);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    pair.modify(0, attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
    assert!(pair.hosts[0].qp.query().sq_draining);
    assert_eq!(pair.hosts[0].dev.events, []);
    pair.settle();
    assert_eq!(pair.hosts[0].dev.events, [QpEvent::SendQueueDrained]);
    assert!(!pair.hosts[0].qp.query().sq_draining);
    assert_eq!(pair.poll(0, Queue::Send).unwrap().wr_id, 1);
    assert_eq!(pair.poll(0, Queue::Send), None);
    // In SQD the timers may be changed.
    pair.modify(0, QpAttr { timeout: 9, ..QpAttr::default() }, AttrMask::TIMEOUT);
    assert_eq!(pair.hosts[0].qp.state(), QpState::Sqd);
    pair.enter(0, QpState::Rts);
    assert_eq!(pair.wait(0, Queue::Send).wr_id, 2);
    assert_eq!(pair.hosts[0].dev.events.len(), 1);
}

#[test]
fn first_packet_in_rtr_tells_that_communication_is_established() {
    let mut pair = Pair::reset(options(QpType::Rc));
    pair.connect_side(0);
    pair.enter_init(1);
    pair.enter_rtr(1);
    pair.recv(1, 1, &[]);
    pair.recv(1, 2, &[]);
    pair.send(0, &wr(1, WrOpcode::Send), &[]);
    pair.send(0, &wr(2, WrOpcode::Send), &[]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    assert_eq!(pair.hosts[1].dev.events, [QpEvent::CommunicationEstablished]);
}
