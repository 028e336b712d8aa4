//! What fails, on both sides.

use ironverbs::{
    Access, Blame, CompletionError, ConnectOptions, EventKind, EventSource, Pd, QpState, Rc,
    RemoteRegion, RequestError, VendorErr, WcStatus, WrOpcode,
};

use crate::support::{
    Side, all, context, done, event, impatient, impatient_pair, ok, pair, pair_with, text,
};

#[test]
fn a_receive_that_is_too_small_fails_on_both_sides() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(10)).unwrap();
    let (sent, slice) = done(a.qp.send(a.filled(&[7; 11])).post().unwrap());
    let error = sent.unwrap_err();
    assert_eq!(error.status(), Some(WcStatus::RemInvReqErr));
    assert!(matches!(
        error,
        CompletionError::RemoteInvalidRequest { opcode: WrOpcode::Send, len: 11, .. }
    ));
    assert_eq!((error.blame(), slice.to_vec()), (Blame::Peer, vec![7; 11]));
    let (received, _) = done(recv);
    let CompletionError::LocalLength { len: 10, why } = received.unwrap_err() else {
        panic!("{received:?}")
    };
    assert_eq!(why.code(), Some(VendorErr::RecvTooSmall));
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
}

/// WRITE, READ or atomic of `remote` is refused: the memory stays, and the responder hears of it.
fn refused(a: &Side<Rc>, b: &Side<Rc>, remote: RemoteRegion, write: bool) {
    let slice = a.filled(&[0xee; 8]);
    let op = match write {
        true => a.qp.write(slice, &remote).post().unwrap(),
        false => a.qp.read(slice, &remote).post().unwrap(),
    };
    let (result, slice) = done(op);
    let error = result.unwrap_err();
    let asked = RemoteRegion { len: 8, ..remote };
    let opcode = if write { WrOpcode::Write } else { WrOpcode::Read };
    match error {
        CompletionError::RemoteAccess { opcode: o, asked: at, why } => {
            assert_eq!((o, at), (opcode, asked));
            // On one host the peer says which check failed.
            let reasons = [
                VendorErr::NakRemoteAccess,
                VendorErr::PeerKey,
                VendorErr::PeerPd,
                VendorErr::PeerRange,
                VendorErr::PeerRegionAccess,
            ];
            assert!(why.code().is_some_and(|code| reasons.contains(&code)), "{why:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(slice.to_vec(), [0xee; 8]);
    event(&b.context, EventKind::QpAccessErr, EventSource::Qp(b.qp.qpn()));
}

#[test]
fn a_wrong_key_is_refused() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    refused(&a, &b, RemoteRegion { rkey: target.remote().rkey ^ 0x40, ..target.remote() }, true);
    assert_eq!(target.load_u64(0).unwrap(), 0);
}

#[test]
fn an_lkey_is_no_rkey() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    assert_ne!(target.lkey(), target.remote().rkey);
    refused(&a, &b, RemoteRegion { rkey: target.lkey(), ..target.remote() }, true);
    assert_eq!(target.load_u64(0).unwrap(), 0);
}

#[test]
fn the_key_of_a_region_that_is_gone_is_refused() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    let remote = target.remote();
    drop(target);
    refused(&a, &b, remote, false);
}

#[test]
fn beyond_the_region_is_refused() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    let remote = target.remote();
    refused(&a, &b, RemoteRegion { addr: remote.addr + 57, ..remote }, true);
    let mut end = [1; 7];
    target.read_at(57, &mut end).unwrap();
    assert_eq!(end, [0; 7]);
}

#[test]
fn before_the_region_is_refused() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    let remote = target.remote();
    refused(&a, &b, RemoteRegion { addr: remote.addr - 1, ..remote }, false);
}

#[test]
fn another_domain_is_refused() {
    let (a, b) = pair::<Rc>();
    let other = Pd::new(&b.context).unwrap().region(64, all()).unwrap();
    refused(&a, &b, other.remote(), true);
    assert_eq!(other.load_u64(0).unwrap(), 0);
}

#[test]
fn a_missing_right_is_refused() {
    for (access, write) in [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, true),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, false),
        (Access::LOCAL_WRITE, true),
        (Access::empty(), false),
    ] {
        let (a, b) = pair::<Rc>();
        let target = b.pd.region(64, access).unwrap();
        refused(&a, &b, target.remote(), write);
        assert_eq!(target.load_u64(0).unwrap(), 0);
    }
}

#[test]
fn the_queue_pair_narrows_what_the_region_grants() {
    let context = context();
    let (a, b) = pair_with::<Rc>(
        [context.clone(), context],
        |builder| builder.access(Access::REMOTE_WRITE),
        &ConnectOptions::default(),
    );
    let target = b.region(64);
    ok(a.qp.write(a.filled(&[1; 8]), &target.remote()).post().unwrap());
    // IBA 9.7.4.1.4: what the queue pair does not allow is an invalid request, whatever the region.
    let (result, _) = done(a.qp.read(a.slice(8), &target.remote()).post().unwrap());
    let error = result.unwrap_err();
    assert!(
        matches!(error, CompletionError::RemoteInvalidRequest { opcode: WrOpcode::Read, .. }),
        "{error:?}"
    );
    event(&b.context, EventKind::QpReqErr, EventSource::Qp(b.qp.qpn()));
}

#[test]
fn a_misaligned_atomic_is_refused() {
    let (a, b) = pair::<Rc>();
    let target = b.region(64);
    let remote = target.remote().part(4, 8).unwrap();
    let (result, _) = done(a.qp.fetch_add(a.slice(8), &remote, 1).post().unwrap());
    let status = result.unwrap_err().status();
    assert!(matches!(status, Some(WcStatus::RemInvReqErr | WcStatus::RemAccessErr)), "{status:?}");
    assert_eq!(target.load_u64(0).unwrap(), 0);
}

#[test]
fn after_an_error_the_rest_is_flushed_in_order() {
    let (a, b) = pair::<Rc>();
    let good = b.region(64).remote();
    let bad = RemoteRegion { rkey: 0x600, ..good };
    let recv = a.qp.recv(a.slice(8)).unwrap();
    // The first one fails; so that the others are posted by then, they wait behind it.
    let first = a.qp.read(a.slice(8), &bad).post().unwrap();
    let rest: Vec<_> = (0..5).map(|_| a.qp.send(a.slice(8)).fence().post().unwrap()).collect();
    assert_eq!(done(first).0.unwrap_err().status(), Some(WcStatus::RemAccessErr));
    for op in rest {
        let (result, slice) = done(op);
        assert_eq!((result, slice.len()), (Err(CompletionError::Flushed), 8));
    }
    assert_eq!(done(recv).0, Err(CompletionError::Flushed));
    // What is posted now is flushed, too.
    let (result, _) = done(a.qp.send(a.slice(8)).post().unwrap());
    assert_eq!(result.unwrap_err().blame(), Blame::Consequence);
    assert_eq!(done(a.qp.recv(a.slice(8)).unwrap()).0, Err(CompletionError::Flushed));
}

#[test]
fn an_unsignaled_request_that_fails_says_so() {
    let (a, b) = pair::<Rc>();
    let bad = RemoteRegion { rkey: 0x600, ..b.region(64).remote() };
    let (result, _) = done(a.qp.write(a.slice(8), &bad).unsignaled().post().unwrap());
    assert_eq!(result.unwrap_err().status(), Some(WcStatus::RemAccessErr));
}

#[test]
fn a_peer_without_receives_is_waited_for_as_long_as_asked() {
    let (a, b) = impatient_pair();
    let (result, _) = done(a.qp.send(a.slice(8)).post().unwrap());
    let error = result.unwrap_err();
    assert_eq!(error.status(), Some(WcStatus::RnrRetryExcErr));
    assert_eq!(
        text(error),
        "the peer stayed not ready: no receive was posted within the RNR retries"
    );
    assert!(b.qp.counters().rnr_naks_sent >= 2);
}

#[test]
fn for_ever_is_longer_than_the_finite_retries() {
    let context = context();
    let options = ConnectOptions { rnr_retry: 7, min_rnr_timer: 1, ..ConnectOptions::default() };
    let (a, b) = pair_with::<Rc>([context.clone(), context], |builder| builder, &options);
    let send = a.qp.send(a.filled(b"late")).post().unwrap();
    crate::support::until("the peer was found not ready ten times", || {
        a.cq.poll().unwrap();
        a.qp.counters().rnr_naks_received >= 10
    });
    let (received, slice) = ok(b.qp.recv(b.slice(8)).unwrap());
    assert_eq!(received.data(&slice), b"late");
    ok(send);
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let (a, b) = impatient_pair();
    drop(b);
    let (result, slice) = done(a.qp.send(a.filled(b"anybody?")).post().unwrap());
    let error = result.unwrap_err();
    assert_eq!((error.status(), error.blame()), (Some(WcStatus::RetryExcErr), Blame::Network));
    assert_eq!(slice.to_vec(), b"anybody?");
}

#[test]
fn slices_of_another_domain_are_not_posted() {
    let (a, b) = pair::<Rc>();
    let slice = b.slice(8);
    let lkey = slice.region().lkey();
    let rejected = a.qp.send(slice).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::OtherDomain { lkey });
    let rejected = a.qp.recv(rejected.buffer).unwrap_err();
    assert_eq!(rejected.error, RequestError::OtherDomain { lkey });
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn nothing_is_received_into_memory_that_may_not_be_written() {
    let (a, b) = pair::<Rc>();
    let region = a.pd.region(8, Access::REMOTE_READ).unwrap();
    let error = RequestError::NotWritable { lkey: region.lkey(), access: Access::REMOTE_READ };
    let rejected = a.qp.recv(region.slice(..).unwrap()).unwrap_err();
    assert_eq!(rejected.error, error);
    let remote = b.region(8).remote();
    let rejected = a.qp.read(rejected.buffer, &remote).post().unwrap_err();
    assert_eq!(rejected.error, error);
    let rejected = a.qp.fetch_add(rejected.buffer, &remote, 1).post().unwrap_err();
    assert_eq!(rejected.error, error);
    // Sending it is another matter.
    let recv = b.qp.recv(b.slice(8)).unwrap();
    ok(a.qp.send(rejected.buffer).post().unwrap());
    ok(recv);
}

#[test]
fn reads_of_a_peer_that_holds_none_are_refused() {
    let context = context();
    let options = ConnectOptions { responder_resources: 0, ..impatient() };
    let (a, b) = pair_with::<Rc>([context.clone(), context], |builder| builder, &options);
    let (result, _) = done(a.qp.read(a.slice(8), &b.region(8).remote()).post().unwrap());
    assert_eq!(result.unwrap_err().status(), Some(WcStatus::RemInvReqErr));
}
