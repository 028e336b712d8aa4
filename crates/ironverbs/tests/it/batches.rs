//! Requests posted together.

use ironverbs::{CompletionError, ConnectOptions, Inline, PostError, Rc, RequestError};

use crate::support::{context, done, ok, pair, pair_with};

#[test]
fn a_batch_is_posted_in_order() {
    let (a, b) = pair::<Rc>();
    let target = b.region(8);
    let (first, second) = (b.qp.recv(b.slice(8)).unwrap(), b.qp.recv(b.slice(8)).unwrap());
    let mut batch = a.qp.batch();
    assert!(batch.is_empty());
    let write = a.qp.write(a.filled(b"written!"), &target.remote()).unsignaled();
    let write = write.add_to(&mut batch).unwrap();
    let send = a.qp.send(a.filled(b"one")).add_to(&mut batch).unwrap();
    let inline = a.qp.send(Inline(b"two")).add_to(&mut batch).unwrap();
    assert_eq!(batch.len(), 3);
    let first = first.try_take().unwrap_err();
    batch.submit().unwrap();
    let (received, slice) = ok(first);
    assert_eq!(received.data(&slice), b"one");
    assert_eq!(target.load_u64(0).unwrap(), u64::from_ne_bytes(*b"written!"));
    let (received, slice) = ok(second);
    assert_eq!(received.data(&slice), b"two");
    ok(inline);
    ok(send);
    ok(write);
}

#[test]
fn a_batch_holds_what_the_queue_holds() {
    let context = context();
    let (a, _b) = pair_with::<Rc>(
        [context.clone(), context],
        |builder| builder.depth(3, 3),
        &ConnectOptions::default(),
    );
    let mut batch = a.qp.batch();
    let ops: Vec<_> = (0..3).map(|_| a.qp.send(a.slice(1)).add_to(&mut batch).unwrap()).collect();
    let rejected = a.qp.send(a.slice(2)).add_to(&mut batch).unwrap_err();
    assert_eq!(rejected.error, PostError::QueueFull { max: 3 }.into());
    assert_eq!(rejected.buffer.len(), 2);
    drop((batch, ops));
}

#[test]
fn the_first_refusal_ends_a_batch() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let mut batch = a.qp.batch();
    let good = a.qp.send(a.filled(b"good")).add_to(&mut batch).unwrap();
    let long = a.qp.send(Inline(&[0; 257])).add_to(&mut batch).unwrap();
    let after = a.qp.send(a.filled(b"after")).add_to(&mut batch).unwrap();
    let error = batch.submit().unwrap_err();
    let why = RequestError::Queue(PostError::InlineTooLong { asked: 257, max: 256 });
    assert_eq!((error.posted, error.error), (1, why));
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"good");
    ok(good);
    assert_eq!(done(long).0, Err(CompletionError::NotPosted(why)));
    let (result, slice) = done(after);
    assert_eq!(result, Err(CompletionError::NotPosted(why)));
    assert_eq!(slice.to_vec(), b"after");
}

#[test]
fn a_batch_that_is_dropped_sends_nothing() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let mut batch = a.qp.batch();
    let send = a.qp.send(a.filled(b"never")).add_to(&mut batch).unwrap();
    drop(batch);
    let (result, slice) = done(send);
    assert_eq!(result, Err(CompletionError::NotPosted(RequestError::NotSubmitted)));
    ok(a.qp.send(slice).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"never");
    assert_eq!(b.qp.counters().rx_messages, 1);
}

#[test]
fn a_batch_is_of_one_queue_pair() {
    let (a, b) = pair::<Rc>();
    let mut batch = a.qp.batch();
    let rejected = b.qp.send(b.slice(1)).add_to(&mut batch).unwrap_err();
    assert_eq!(rejected.error, RequestError::OtherQueuePair);
}
