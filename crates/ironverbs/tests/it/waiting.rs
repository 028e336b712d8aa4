//! Ways to wait: any executor, blocking, spinning, not at all.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ironverbs::{Rc, Uc};

use crate::support::{block_on, done, ok, pair, until};

#[test]
fn a_future_is_awaited_under_any_executor() {
    let (a, b) = pair::<Rc>();
    let echo = std::thread::spawn(move || {
        block_on(async {
            let mut input = b.slice(8);
            let mut recv = b.qp.recv(input).unwrap();
            for _ in 0..200 {
                let (received, slice) = recv.await;
                let data = received.unwrap().data(&slice);
                input = slice;
                recv = b.qp.recv(input).unwrap();
                let (sent, _) = b.qp.send(b.filled(&data)).post().unwrap().await;
                sent.unwrap();
            }
            drop(recv);
            // Until the peer has all it waits for.
            b
        })
    });
    block_on(async {
        for i in 0..200u8 {
            let recv = a.qp.recv(a.slice(8)).unwrap();
            let (sent, _) = a.qp.send(a.filled(&[i; 3])).post().unwrap().await;
            sent.unwrap();
            let (received, slice) = recv.await;
            assert_eq!(received.unwrap().data(&slice), [i; 3]);
        }
    });
    echo.join().unwrap();
}

/// Counts its calls.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Arc<Count>) -> Poll<F::Output> {
    let waker = Waker::from(waker.clone());
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[test]
fn a_sleeper_is_woken_without_anybody_polling() {
    let (a, b) = pair::<Rc>();
    let mut recv = b.qp.recv(b.slice(8)).unwrap();
    let count = Arc::new(Count::default());
    assert!(poll_once(&mut recv, &count).is_pending());
    let send = a.qp.send(a.filled(b"wake")).post().unwrap();
    until("the waker was called", || count.0.load(Ordering::SeqCst) == 1);
    let Poll::Ready((received, slice)) = poll_once(&mut recv, &count) else {
        panic!("woken for nothing")
    };
    assert_eq!(received.unwrap().data(&slice), b"wake");
    // A future that has ended stays quiet.
    assert!(poll_once(&mut recv, &count).is_pending());
    done(send).0.unwrap();
}

#[test]
fn the_latest_waker_counts() {
    let (a, b) = pair::<Rc>();
    let mut recv = b.qp.recv(b.slice(8)).unwrap();
    let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
    assert!(poll_once(&mut recv, &old).is_pending());
    assert!(poll_once(&mut recv, &new).is_pending());
    ok(a.qp.send(()).post().unwrap());
    until("the waker was called", || new.0.load(Ordering::SeqCst) == 1);
    assert_eq!(old.0.load(Ordering::SeqCst), 0);
}

#[test]
fn all_sleepers_of_a_queue_are_woken() {
    let (a, b) = pair::<Rc>();
    let count = Arc::new(Count::default());
    let mut recvs: Vec<_> = (0..32).map(|_| b.qp.recv(b.slice(8)).unwrap()).collect();
    for recv in &mut recvs {
        assert!(poll_once(recv, &count).is_pending());
    }
    for i in 0..32u8 {
        // One after the other, so that each event is followed by sleep.
        ok(a.qp.send(a.filled(&[i])).post().unwrap());
        until("one more was woken", || count.0.load(Ordering::SeqCst) > usize::from(i));
    }
    for recv in &mut recvs {
        assert!(poll_once(recv, &count).is_ready());
    }
}

#[test]
fn waiting_is_given_up_in_time_and_taken_up_again() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let recv = recv.wait_for(Duration::from_millis(5)).unwrap_err();
    let recv = recv.wait_for(Duration::ZERO).unwrap_err();
    let recv = recv.try_take().unwrap_err();
    ok(a.qp.send(a.filled(b"late")).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"late");
}

#[test]
fn a_spinner_needs_nobody() {
    let (a, b) = pair::<Uc>();
    for i in 0..100u8 {
        let recv = b.qp.recv(b.slice(8)).unwrap();
        a.qp.send(a.filled(&[i])).post().unwrap().spin().0.unwrap();
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), [i]);
    }
}

#[test]
fn polling_the_queue_takes_completions_to_their_requests() {
    let (a, b) = pair::<Rc>();
    let mut recv = b.qp.recv(b.slice(8)).unwrap();
    let send = a.qp.send(a.filled(b"poll")).post().unwrap();
    let mut delivered = 0;
    until("the queue brought the receive", || {
        delivered += b.cq.poll().unwrap();
        delivered == 1
    });
    assert!(poll_once(&mut recv, &Arc::default()).is_ready());
    ok(send);
}

#[test]
fn threads_wait_for_operations_of_one_queue() {
    let (a, b) = pair::<Rc>();
    let (a, b) = (&a, &b);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..50 {
                    let recv = b.qp.recv(b.slice(8)).unwrap();
                    ok(a.qp.send(a.slice(8)).post().unwrap());
                    ok(recv);
                }
            });
        }
    });
    assert_eq!(b.qp.counters().rx_messages, 200);
}
