//! Shared receive queues.

use ironverbs::{
    CompletionError, ConnectOptions, Cq, EventKind, EventSource, Pd, PostError, Qp, Rc, Slice, Srq,
    connect_pair,
};

use crate::support::{all, context, done, event, ok, pair};

/// Two connections from `a` to queue pairs that share receives.
struct Fan {
    context: ironverbs::Context,
    pd: Pd,
    srq: Srq,
    senders: Vec<Qp<Rc>>,
    receivers: Vec<Qp<Rc>>,
}

fn fan(depth: u32) -> Fan {
    let context = context();
    let pd = Pd::new(&context).unwrap();
    let srq = Srq::new(&pd, depth, 1).unwrap();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (cq, far) = (Cq::new(&context, 1).unwrap(), Cq::new(&context, 1).unwrap());
        let a = Qp::<Rc>::builder(&pd, &cq).build().unwrap();
        let b = Qp::<Rc>::builder(&pd, &far).srq(&srq).build().unwrap();
        let (a, b) = connect_pair(a, b, &ConnectOptions::default()).unwrap();
        senders.push(a);
        receivers.push(b);
    }
    Fan { context, pd, srq, senders, receivers }
}

impl Fan {
    fn slice(&self, len: usize) -> Slice {
        self.pd.region(len, all()).unwrap().slice(..).unwrap()
    }

    fn filled(&self, bytes: &[u8]) -> Slice {
        let mut slice = self.slice(bytes.len());
        slice.assign(bytes).unwrap();
        slice
    }
}

#[test]
fn receives_serve_whom_a_message_comes_to() {
    let fan = fan(8);
    let recvs: Vec<_> = (0..4).map(|_| fan.srq.recv(fan.slice(8)).unwrap()).collect();
    for i in 0..4u8 {
        let sender = &fan.senders[usize::from(i) % 2];
        ok(sender.send(fan.filled(&[i])).post().unwrap());
    }
    for (i, recv) in recvs.into_iter().enumerate() {
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), [i as u8]);
        assert_eq!(received.qpn, fan.receivers[i % 2].qpn());
    }
}

#[test]
fn a_shared_queue_has_a_depth() {
    let fan = fan(2);
    let _recvs = [fan.srq.recv(()).unwrap(), fan.srq.recv(()).unwrap()];
    let rejected = fan.srq.recv(fan.slice(3)).unwrap_err();
    assert_eq!(rejected.error, PostError::QueueFull { max: 2 }.into());
    let pd = &fan.pd;
    let max = fan.context.attr().max_srq_wr;
    let error = Srq::new(pd, max + 1, 1).unwrap_err().to_string();
    assert_eq!(error, format!("max_wr is {}, at most {max} is possible", max + 1));
}

#[test]
fn the_limit_event_comes_once_strictly_below() {
    let fan = fan(8);
    let recvs: Vec<_> = (0..4).map(|_| fan.srq.recv(fan.slice(8)).unwrap()).collect();
    fan.srq.set_limit(3).unwrap();
    assert_eq!(fan.srq.attr().limit, 3);
    ok(fan.senders[0].send(()).post().unwrap());
    // Three are left: not below three.
    assert_eq!(fan.srq.attr().limit, 3);
    ok(fan.senders[1].send(()).post().unwrap());
    event(&fan.context, EventKind::SrqLimitReached, EventSource::Srq(fan.srq.id()));
    assert_eq!(fan.srq.attr().limit, 0);
    ok(fan.senders[0].send(()).post().unwrap());
    let quiet = std::time::Duration::from_millis(50);
    while let Some(event) = fan.context.next_event().wait_for(quiet) {
        assert_ne!(event.kind, EventKind::SrqLimitReached);
    }
    drop(recvs);
}

#[test]
fn an_error_says_that_no_more_receives_are_taken() {
    let fan = fan(8);
    let recv = fan.srq.recv(fan.slice(8)).unwrap();
    fan.receivers[0].flush().unwrap();
    let source = EventSource::Qp(fan.receivers[0].qpn());
    event(&fan.context, EventKind::QpLastWqeReached, source);
    // The receive was not taken: it serves the other.
    ok(fan.senders[1].send(fan.filled(b"other")).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!((received.qpn, received.data(&slice)), (fan.receivers[1].qpn(), b"other".to_vec()));
}

#[test]
fn dropping_the_queue_returns_its_receives() {
    let fan = fan(8);
    let recv = fan.srq.recv(fan.slice(8)).unwrap();
    let Fan { srq, senders, receivers, .. } = fan;
    drop((senders, receivers));
    drop(srq);
    let (result, slice) = done(recv);
    assert!(matches!(result, Err(CompletionError::Dropped { .. })), "{result:?}");
    assert_eq!(slice.len(), 8);
}

#[test]
fn slices_of_another_domain_are_refused() {
    let fan = fan(2);
    let (a, _b) = pair::<Rc>();
    let rejected = fan.srq.recv(a.slice(8)).unwrap_err();
    assert!(rejected.to_string().contains("another protection domain"));
}
