//! Completion channels and asynchronous events as descriptors: what blocks, what does not, and what waits for an
//! acknowledgement.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use ironverbs_soft::*;
use ironverbs_sys::event::{Epoll, Event, Interest};

use crate::fabric::{Fabric, WATCHDOG};
use crate::side::{Side, blocking, move_to, pair, readable, wr};

cases![
    an_empty_channel_says_again,
    a_descriptor_is_readable_while_an_event_waits,
    epoll_finds_the_channel,
    a_blocked_reader_is_woken,
    a_sleeping_receiver_is_woken_by_the_device,
    destroying_a_cq_waits_for_its_events,
    several_events_are_acknowledged_at_once,
    destroying_takes_unread_events_away,
    destroying_a_queue_pair_waits_for_its_asynchronous_events,
    destroying_an_srq_waits_for_its_asynchronous_events,
    destroying_a_cq_waits_for_its_asynchronous_events,
    events_go_to_the_context_of_their_object,
];

/// Runs `work` on a thread; tells when it is done.
fn aside(work: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    is_done
}

#[track_caller]
fn not_yet(done: &Receiver<()>) {
    assert!(done.recv_timeout(Duration::from_millis(30)).is_err(), "it did not wait");
}

#[track_caller]
fn now(done: &Receiver<()>) {
    assert!(done.recv_timeout(WATCHDOG).is_ok(), "it waits for ever");
}

fn failed(side: &Side) -> Arc<Qp> {
    let qp = side.qp(QpType::Rc);
    move_to(&qp, QpState::Err);
    qp
}

fn an_empty_channel_says_again(f: &Fabric) {
    let side = f.side();
    for _ in 0..3 {
        assert_eq!(side.channel.next_event().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(side.context.next_async_event().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    assert!(!readable(side.channel.fd()) && !readable(side.context.async_fd()));
}

fn a_descriptor_is_readable_while_an_event_waits(f: &Fabric) {
    let side = f.side();
    let qp = failed(&side);
    let other = side.context.create_cq(10, Some(&side.channel), 0).unwrap();
    let apart = side
        .pd
        .create_qp(&QpInit {
            send_cq: other.clone(),
            recv_cq: other.clone(),
            ..side.init(QpType::Rc)
        })
        .unwrap();
    move_to(&apart, QpState::Err);
    for cq in [&side.cq, &other] {
        cq.request_notify(false).unwrap();
    }
    qp.post_recv(1, &[]).unwrap();
    apart.post_recv(1, &[]).unwrap();
    for _ in 0..2 {
        assert!(readable(side.channel.fd()));
        side.channel.next_event().unwrap().ack_events(1);
    }
    assert!(!readable(side.channel.fd()));

    let cq = side.context.create_cq(1, None, 0).unwrap();
    let qp = side.pd.create_qp(&QpInit { recv_cq: cq.clone(), ..side.init(QpType::Rc) }).unwrap();
    move_to(&qp, QpState::Err);
    for i in 0..=cq.cqe() {
        qp.post_recv(i.into(), &[]).unwrap();
    }
    assert!(readable(side.context.async_fd()));
    f.event(&side);
    assert!(!readable(side.context.async_fd()));
}

fn epoll_finds_the_channel(f: &Fabric) {
    let side = f.side();
    let epoll = Epoll::new().unwrap();
    // SAFETY: the channel outlives the epoll instance.
    let fd = unsafe { BorrowedFd::borrow_raw(side.channel.fd()) };
    epoll.add(fd, 7, Interest::READ).unwrap();
    let mut events = [Event::EMPTY; 2];
    assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    side.cq.request_notify(false).unwrap();
    failed(&side).post_recv(1, &[]).unwrap();
    assert_eq!(epoll.wait(&mut events, Some(WATCHDOG)).unwrap(), 1);
    assert_eq!((events[0].token(), events[0].ready()), (7, Interest::READ));
    side.channel.next_event().unwrap().ack_events(1);
    assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
}

fn a_blocked_reader_is_woken(f: &Fabric) {
    let side = f.side();
    blocking(side.channel.fd());
    blocking(side.context.async_fd());
    let channel = side.channel.clone();
    let done = aside(move || channel.next_event().unwrap().ack_events(1));
    side.cq.request_notify(false).unwrap();
    not_yet(&done);
    let qp = failed(&side);
    qp.post_recv(1, &[]).unwrap();
    now(&done);

    let context = side.context.clone();
    let done = aside(move || context.next_async_event().unwrap().ack());
    not_yet(&done);
    let srq = side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let qp = side.pd.create_qp(&QpInit { srq: Some(srq), ..side.init(QpType::Rc) }).unwrap();
    move_to(&qp, QpState::Err);
    now(&done);
}

fn a_sleeping_receiver_is_woken_by_the_device(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for round in 0..20 {
        y.post_recv(round, &[b.sge(0, 8)]).unwrap();
        b.cq.request_notify(false).unwrap();
        x.post_send(&wr(round, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        // Nobody polls.
        f.sleep_until("an event", || readable(b.channel.fd()));
        b.channel.next_event().unwrap().ack_events(1);
        assert_eq!(b.poll().len(), 1);
        f.completion(&a);
    }
}

/// A CQ with `n` events handed out and not acknowledged.
fn cq_with_events(side: &Side, n: usize) -> Arc<Cq> {
    let cq = side.context.create_cq(100, Some(&side.channel), 0).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..side.init(QpType::Rc) };
    let qp = side.pd.create_qp(&init).unwrap();
    move_to(&qp, QpState::Err);
    for i in 0..n {
        cq.request_notify(false).unwrap();
        qp.post_recv(i as u64, &[]).unwrap();
        side.channel.next_event().unwrap();
    }
    qp.destroy().unwrap();
    cq
}

fn destroying_a_cq_waits_for_its_events(f: &Fabric) {
    let side = f.side();
    let cq = cq_with_events(&side, 1);
    let destroyed = cq.clone();
    let done = aside(move || destroyed.destroy().unwrap());
    not_yet(&done);
    cq.ack_events(1);
    now(&done);
}

fn several_events_are_acknowledged_at_once(f: &Fabric) {
    let side = f.side();
    let cq = cq_with_events(&side, 5);
    let destroyed = cq.clone();
    let done = aside(move || destroyed.destroy().unwrap());
    cq.ack_events(2);
    not_yet(&done);
    cq.ack_events(0);
    not_yet(&done);
    cq.ack_events(3);
    now(&done);
}

fn destroying_takes_unread_events_away(f: &Fabric) {
    let side = f.side();
    let cq = cq_with_events(&side, 0);
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..side.init(QpType::Rc) };
    let qp = side.pd.create_qp(&init).unwrap();
    move_to(&qp, QpState::Err);
    cq.request_notify(false).unwrap();
    qp.post_recv(1, &[]).unwrap();
    assert!(readable(side.channel.fd()));
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    assert!(!readable(side.channel.fd()));
    assert!(side.channel.next_event().is_err());

    let srq = side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let qp = side.pd.create_qp(&QpInit { srq: Some(srq), ..side.init(QpType::Rc) }).unwrap();
    move_to(&qp, QpState::Err);
    assert!(readable(side.context.async_fd()));
    qp.destroy().unwrap();
    assert!(!readable(side.context.async_fd()));
    assert!(side.next_event().is_none());
}

fn destroying_a_queue_pair_waits_for_its_asynchronous_events(f: &Fabric) {
    let side = f.side();
    let srq = side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let qp = side.pd.create_qp(&QpInit { srq: Some(srq), ..side.init(QpType::Rc) }).unwrap();
    move_to(&qp, QpState::Err);
    let event = side.next_event().unwrap();
    let destroyed = qp.clone();
    let done = aside(move || destroyed.destroy().unwrap());
    not_yet(&done);
    event.ack();
    now(&done);
}

fn destroying_an_srq_waits_for_its_asynchronous_events(f: &Fabric) {
    let (a, b) = f.two();
    let srq = b.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    let y = b.pd.create_qp(&QpInit { srq: Some(srq.clone()), ..b.init(QpType::Rc) }).unwrap();
    let x = a.qp(QpType::Rc);
    crate::side::join(&a, &x, &b, &y, |_| {});
    srq.post_recv(1, &[b.sge(0, 8)]).unwrap();
    srq.modify(None, Some(1)).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.completion(&b);
    let event = b.next_event().unwrap();
    assert_eq!(event.kind, EventKind::SrqLimitReached);
    y.destroy().unwrap();
    let destroyed = srq.clone();
    let done = aside(move || destroyed.destroy().unwrap());
    not_yet(&done);
    event.ack();
    now(&done);
}

fn destroying_a_cq_waits_for_its_asynchronous_events(f: &Fabric) {
    let side = f.side();
    let cq = side.context.create_cq(1, None, 0).unwrap();
    let qp = side.pd.create_qp(&QpInit { recv_cq: cq.clone(), ..side.init(QpType::Rc) }).unwrap();
    move_to(&qp, QpState::Err);
    for i in 0..=cq.cqe() {
        qp.post_recv(i.into(), &[]).unwrap();
    }
    let event = side.next_event().unwrap();
    assert_eq!(event.kind, EventKind::CqErr);
    qp.destroy().unwrap();
    let destroyed = cq.clone();
    let done = aside(move || destroyed.destroy().unwrap());
    not_yet(&done);
    event.ack();
    now(&done);
}

fn events_go_to_the_context_of_their_object(f: &Fabric) {
    let side = f.side();
    let other = side.context.device().open().unwrap();
    crate::side::nonblocking(other.async_fd());
    let pd = other.alloc_pd().unwrap();
    let cq = other.create_cq(10, None, 0).unwrap();
    let srq = pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq, srq: Some(srq), ..side.init(QpType::Rc) };
    let qp = pd.create_qp(&init).unwrap();
    move_to(&qp, QpState::Err);
    assert!(side.next_event().is_none());
    let event = other.next_async_event().unwrap();
    assert_eq!(event.kind, EventKind::QpLastWqeReached);
    event.ack();
}
