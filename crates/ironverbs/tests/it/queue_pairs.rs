//! Making queue pairs, connecting and resetting them.

use ironverbs::{
    Access, CompletionError, ConnectOptions, Cq, Dropped, Error, EventKind, EventSource, Pd,
    PostError, Qp, QpBuilder, QpState, Rc, RequestError, Srq, Uc, Ud, connect_pair,
};

use crate::support::{context, done, event, ok, pair, pair_with, text};

#[test]
fn what_is_granted_is_what_was_asked_for_at_least() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let builder = Qp::<Ud>::builder(&pd, &cq).depth(33, 65).slices(3, 5).inline(77);
    let cap = builder.build().unwrap().cap();
    assert!(cap.max_send_wr >= 33 && cap.max_recv_wr >= 65 && cap.max_inline_data >= 77);
    assert!(cap.max_send_sge >= 3 && cap.max_recv_sge >= 5);
}

#[test]
fn more_than_the_device_can_is_refused_with_the_limit() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let max = context.attr();
    let builder = || Qp::<Rc>::builder(&pd, &cq);
    for (builder, what, max) in [
        (builder().depth(max.max_qp_wr + 1, 1), "max_send_wr", max.max_qp_wr),
        (builder().depth(1, max.max_qp_wr + 1), "max_recv_wr", max.max_qp_wr),
        (builder().slices(max.max_sge + 1, 1), "max_send_sge", max.max_sge),
        (builder().slices(1, max.max_sge + 1), "max_recv_sge", max.max_sge),
        (builder().inline(max.max_inline_data + 1), "max_inline_data", max.max_inline_data),
    ] {
        let error = text(builder.build().unwrap_err());
        assert_eq!(error, format!("{what} is {}, at most {max} is possible", max + 1));
    }
    builder().build().unwrap();
}

#[test]
fn receives_of_its_own_are_ignored_with_a_shared_queue() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let srq = Srq::new(&pd, 4, 1).unwrap();
    let qp = Qp::<Rc>::builder(&pd, &cq).depth(1, u32::MAX).slices(1, u32::MAX).srq(&srq);
    let qp = qp.build().unwrap();
    let rejected = qp.recv(()).unwrap_err();
    assert_eq!(rejected.error, PostError::SharedReceives.into());
    let error = Qp::<Uc>::builder(&pd, &cq).srq(&srq).build().unwrap_err();
    assert!(text(error).contains("not supported"));
}

#[test]
fn objects_of_another_context_are_refused() {
    let (one, other) = (context(), context());
    let (pd, cq) = (Pd::new(&one).unwrap(), Cq::new(&other, 1).unwrap());
    let error = Qp::<Rc>::builder(&pd, &cq).build().unwrap_err();
    assert_eq!(text(error), "the completion queue belongs to another context");
}

#[test]
fn a_wrong_value_leaves_the_queue_pair_as_it_was() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let peer = Qp::<Rc>::builder(&pd, &cq).build().unwrap();
    let mut qp = Qp::<Rc>::builder(&pd, &cq).build().unwrap();
    let region = pd.region(64, crate::support::all()).unwrap();
    let recv = qp.recv(region.slice(..).unwrap()).unwrap();
    let endpoint = peer.endpoint().unwrap();
    let good = ConnectOptions::default();
    for (options, why) in [
        (ConnectOptions { timeout: 32, ..good }, "timeout is 32, at most 31 is possible"),
        (ConnectOptions { retry_count: 8, ..good }, "retry_count is 8, at most 7 is possible"),
        (ConnectOptions { rnr_retry: 8, ..good }, "rnr_retry is 8, at most 7 is possible"),
        (
            ConnectOptions { min_rnr_timer: 32, ..good },
            "min_rnr_timer is 32, at most 31 is possible",
        ),
    ] {
        let refused = qp.connect(&endpoint, &options).unwrap_err();
        assert_eq!(refused.to_string(), why);
        qp = refused.qp;
    }
    let nobody = ironverbs::Endpoint { gid: Default::default(), ..endpoint };
    let refused = qp.connect(&nobody, &good).unwrap_err();
    assert!(refused.to_string().contains("all zeros"), "{refused}");
    let far = ironverbs::Endpoint { qpn: 1 << 24, ..endpoint };
    let refused = refused.qp.connect(&far, &good).unwrap_err();
    assert!(refused.to_string().starts_with("peer QPN is 16777216"), "{refused}");
    // The corrected call works, and the receive is still posted.
    let (qp, peer) = connect_pair(refused.qp, peer, &good).unwrap();
    ok(peer.send(()).post().unwrap());
    assert_eq!(ok(recv).0.len, 0);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn a_queue_pair_needs_a_gid_that_is_there() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let qp = Qp::<Rc>::builder(&pd, &cq).gid_index(120).build().unwrap();
    assert!(text(qp.endpoint().unwrap_err()).contains("the entry is empty"));
}

#[test]
fn a_full_queue_refuses_and_keeps_what_it_has() {
    let context = context();
    let (a, b) = pair_with::<Rc>(
        [context.clone(), context],
        |builder| builder.depth(4, 4),
        &ConnectOptions::default(),
    );
    let recvs: Vec<_> = (0..4).map(|_| b.qp.recv(b.slice(4)).unwrap()).collect();
    let rejected = b.qp.recv(b.filled(b"over")).unwrap_err();
    assert_eq!(rejected.error, RequestError::Queue(PostError::QueueFull { max: 4 }));
    assert_eq!(rejected.buffer.to_vec(), b"over");
    for i in 0..4 {
        ok(a.qp.send(a.filled(&[i])).post().unwrap());
    }
    for (i, recv) in recvs.into_iter().enumerate() {
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), [i as u8]);
    }
    ok({
        let recv = b.qp.recv(rejected.buffer).unwrap();
        ok(a.qp.send(()).post().unwrap());
        recv
    });
    // Sends that the peer is not ready for fill the queue of sends.
    let sends: Vec<_> = (0..4).map(|_| a.qp.send(()).post().unwrap()).collect();
    let rejected = a.qp.send(a.slice(1)).post().unwrap_err();
    assert_eq!(text(rejected), "the queue is full with 4 requests");
    let recvs: Vec<_> = (0..4).map(|_| b.qp.recv(()).unwrap()).collect();
    for send in sends {
        ok(send);
    }
    for recv in recvs {
        ok(recv);
    }
}

#[test]
fn lists_longer_than_asked_for_are_refused() {
    let (a, _b) = pair::<Rc>();
    let list: Vec<_> = (0..5).map(|_| a.slice(1)).collect();
    let rejected = a.qp.send(list).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::Queue(PostError::TooManySges { asked: 5, max: 4 }));
    assert_eq!(rejected.buffer.len(), 5);
    let list: Vec<_> = (0..33).map(|_| a.slice(1)).collect();
    let rejected = a.qp.recv(list).unwrap_err();
    assert!(matches!(
        rejected.error,
        RequestError::Queue(PostError::TooManySges { asked: 33, .. })
    ));
}

#[test]
fn flushing_ends_what_is_posted_in_order() {
    let (a, _b) = pair::<Rc>();
    let recvs: Vec<_> = (0..5).map(|_| a.qp.recv(a.slice(8)).unwrap()).collect();
    a.qp.flush().unwrap();
    assert_eq!(a.qp.state(), QpState::Err);
    for recv in recvs {
        let (result, slice) = done(recv);
        assert_eq!((result, slice.len()), (Err(CompletionError::Flushed), 8));
    }
}

#[test]
fn a_reset_queue_pair_connects_anew() {
    let (a, b) = pair::<Rc>();
    let old = a.qp.recv(a.slice(8)).unwrap();
    let (qp_a, qp_b) = (a.qp.reset().unwrap(), b.qp.reset().unwrap());
    let error = done(old).0.unwrap_err();
    let reset = CompletionError::Dropped { how: Dropped::Reset };
    assert!([CompletionError::Flushed, reset].contains(&error), "{error:?}");
    let region = b.pd.region(8, crate::support::all()).unwrap();
    let recv = qp_b.recv(region.slice(..).unwrap()).unwrap();
    let (qp_a, qp_b) = connect_pair(qp_a, qp_b, &ConnectOptions::default()).unwrap();
    let source = a.pd.region(5, crate::support::all()).unwrap();
    source.write_at(0, b"again").unwrap();
    ok(qp_a.send(source.slice(..).unwrap()).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"again");
    drop(qp_b);
}

#[test]
fn numbers_are_not_used_again_soon() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        let qp = Qp::<Ud>::builder(&pd, &cq).depth(1, 1).build().unwrap();
        assert!(seen.insert(qp.qpn()), "{:#x} came twice", qp.qpn());
    }
}

#[test]
fn a_completion_queue_grows_with_its_queue_pairs() {
    let (a, b) = pair_with::<Rc>(
        [context(), context()],
        |builder| builder.depth(500, 500),
        &ConnectOptions::default(),
    );
    assert!(a.cq.cqe() >= 1_000);
    // More completions wait than the queue was made for, and none is lost.
    let recvs: Vec<_> = (0..500).map(|_| b.qp.recv(()).unwrap()).collect();
    let sends: Vec<_> = (0..500).map(|_| a.qp.send(()).post().unwrap()).collect();
    for send in sends {
        ok(send);
    }
    for recv in recvs {
        ok(recv);
    }
}

#[test]
fn two_hosts_of_one_process_are_as_two_processes() {
    let other = ironverbs::Devices::with(ironverbs::Config::default()).unwrap();
    let other = other.first().unwrap().open().unwrap();
    let (a, b) = pair_with::<Rc>([context(), other], |builder| builder, &ConnectOptions::default());
    let recv = b.qp.recv(b.slice(100_000)).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 31 / 8) as u8).collect();
    ok(a.qp.send(a.filled(&bytes)).post().unwrap());
    let (received, slice) = ok(recv);
    assert!(received.data(&slice) == bytes);
}

#[test]
fn errors_of_all_kinds_become_one() -> Result<(), Error> {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(4))?;
    let (sent, _) = done(a.qp.send(a.filled(b"easy")).post()?);
    sent?;
    let (received, slice) = done(recv);
    assert_eq!(received?.data(&slice), b"easy");
    Ok(())
}

#[test]
fn a_paused_queue_holds_sends_back() {
    let (a, b) = pair::<Rc>();
    a.qp.pause().unwrap();
    event(&a.context, EventKind::SqDrained, EventSource::Qp(a.qp.qpn()));
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let send = a.qp.send(a.filled(b"held")).post().unwrap();
    let send = send.wait_for(std::time::Duration::from_millis(20)).unwrap_err();
    assert_eq!(a.qp.state(), QpState::Sqd);
    a.qp.resume().unwrap();
    ok(send);
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"held");
}

#[test]
fn rights_are_given_and_taken_while_connected() {
    let (a, b) = pair::<Rc>();
    let target = b.region(8);
    ok(a.qp.write(a.filled(b"granted!"), &target.remote()).post().unwrap());
    b.qp.set_access(Access::REMOTE_READ).unwrap();
    assert_eq!(b.qp.attr().access, Access::REMOTE_READ);
    ok(a.qp.read(a.slice(8), &target.remote()).post().unwrap());
    assert!(done(a.qp.write(a.filled(b"refused!"), &target.remote()).post().unwrap()).0.is_err());
    assert_eq!(target.load_u64(0).unwrap(), u64::from_ne_bytes(*b"granted!"));
    let error = text(b.qp.resume().unwrap_err());
    assert!(error.contains("cannot go from Err to Rts"), "{error}");
}

#[test]
fn every_gid_of_the_port_connects() {
    let context = context();
    for entry in context.gids() {
        let contexts = [context.clone(), context.clone()];
        let index = u8::try_from(entry.index).unwrap();
        let build = |builder: QpBuilder<Rc>| builder.gid_index(index);
        let (a, b) = pair_with(contexts, build, &ConnectOptions::default());
        assert_eq!(a.qp.endpoint().unwrap().gid, entry.gid);
        let recv = b.qp.recv(b.slice(10_000)).unwrap();
        ok(a.qp.send(a.filled(&[7; 10_000])).post().unwrap());
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), [7; 10_000], "{}", entry.gid);
    }
}
