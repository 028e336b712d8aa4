//! What is in flight when something is dropped.

use ironverbs::{
    Access, CompletionError, ConnectOptions, Cq, Dropped, Pd, Qp, RangeError, Rc, RequestError,
    Srq, connect_pair,
};

use crate::support::{all, context, done, ok, pair, until};

#[test]
fn a_dropped_future_abandons_its_receive_until_it_completes() {
    let (a, b) = pair::<Rc>();
    let region = b.region(16);
    drop(b.qp.recv(region.slice(..8).unwrap()).unwrap());
    // The queue owns the slice still.
    let taken = RangeError::Taken { offset: 0, len: 8, start: 0, end: 8 };
    assert_eq!(region.slice(..8).unwrap_err(), taken);
    let recv = b.qp.recv(region.slice(8..).unwrap()).unwrap();
    ok(a.qp.send(a.filled(b"dropped!")).post().unwrap());
    ok(a.qp.send(a.filled(b"received")).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"received");
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"dropped!");
    region.slice(..8).unwrap();
}

#[test]
fn a_dropped_future_of_a_send_still_sends() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let region = a.region(4);
    region.write_at(0, b"sent").unwrap();
    drop(a.qp.send(region.slice(..).unwrap()).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"sent");
    until("the slice came back", || {
        a.cq.poll().unwrap();
        region.slice(..).is_ok()
    });
}

#[test]
fn a_leaked_future_leaks_no_more_than_its_place() {
    let (a, b) = pair::<Rc>();
    std::mem::forget(b.qp.recv(b.slice(8)).unwrap());
    ok(a.qp.send(a.slice(8)).post().unwrap());
    let recv = b.qp.recv(b.slice(8)).unwrap();
    ok(a.qp.send(a.slice(8)).post().unwrap());
    ok(recv);
}

#[test]
fn dropping_the_queue_pair_returns_what_is_in_flight() {
    let (a, b) = pair::<Rc>();
    let region = b.region(8);
    let recv = b.qp.recv(region.slice(..).unwrap()).unwrap();
    drop(b.qp.recv(b.slice(8)).unwrap());
    let ironverbs_side = b;
    drop(ironverbs_side.qp);
    let (result, slice) = done(recv);
    let destroyed = CompletionError::Dropped { how: Dropped::Destroyed };
    assert!([Err(CompletionError::Flushed), Err(destroyed)].contains(&result), "{result:?}");
    drop(slice);
    region.slice(..).unwrap();
    drop(a);
}

#[test]
fn a_sleeper_is_woken_when_the_queue_pair_is_dropped() {
    let (_a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(8)).unwrap();
    let qp = b.qp;
    let sleeper = std::thread::spawn(move || done(recv).0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(qp);
    assert!(sleeper.join().unwrap().is_err());
}

#[test]
fn what_a_queue_pair_uses_outlives_the_handles() {
    let context = context();
    let (a, b) = {
        let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
        let srq = Srq::new(&pd, 4, 1).unwrap();
        let a = Qp::<Rc>::builder(&pd, &cq).build().unwrap();
        let b = Qp::<Rc>::builder(&pd, &cq).srq(&srq).build().unwrap();
        let region = pd.region(8, all()).unwrap();
        let recv = srq.recv(region.slice(..).unwrap()).unwrap();
        let (a, b) = connect_pair(a, b, &ConnectOptions::default()).unwrap();
        ((a, pd.region(8, Access::empty()).unwrap()), (b, recv))
    };
    drop(context);
    ok(a.0.send(a.1.slice(..).unwrap()).post().unwrap());
    assert_eq!(ok(b.1).0.len, 8);
    assert!(b.0.srq().is_some());
}

#[test]
fn queue_pairs_are_dropped_in_the_middle_of_traffic() {
    for round in 0..20 {
        let (a, b) = pair::<Rc>();
        let target = b.region(1 << 20);
        let source = a.slice(1 << 20).share();
        let sends: Vec<_> =
            (0..8).map(|_| a.qp.write(source.clone(), &target.remote()).post().unwrap()).collect();
        // Sometimes the one, sometimes the other; packets are on their way.
        if round % 2 == 0 {
            drop(b.qp);
            drop(a.qp);
        } else {
            drop(a.qp);
            drop(b.qp);
        }
        for send in sends {
            // It succeeded or not: it ended.
            let _ = done(send);
        }
        source.into_slice().unwrap();
    }
}

#[test]
fn a_region_is_dropped_while_a_peer_writes_it() {
    let (a, b) = pair::<Rc>();
    let target = b.region(1 << 20);
    let remote = target.remote();
    let writes: Vec<_> =
        (0..8).map(|_| a.qp.write(a.slice(1 << 20), &remote).post().unwrap()).collect();
    drop(target);
    let mut failed = false;
    for write in writes {
        let (result, slice) = done(write);
        failed |= result.is_err();
        assert!(result.is_ok() || failed, "nothing succeeds after a failure");
        assert_eq!(slice.len(), 1 << 20);
    }
}

#[test]
fn a_thousand_rounds_leave_nothing_behind() {
    let context = context();
    let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
    let size = |name: &str| -> usize {
        std::fs::read_dir(format!("/proc/self/{name}")).map_or(0, Iterator::count)
    };
    let round = || {
        let qp = Qp::<Rc>::builder(&pd, &cq).depth(4, 4).build().unwrap();
        let region = pd.region(4096, all()).unwrap();
        drop(qp.recv(region.slice(..).unwrap()).unwrap());
    };
    round();
    // Other tests come and go meanwhile: what counts is that a thousand rounds are not a thousand descriptors.
    let before = (size("fd"), cq.cqe());
    (0..1_000).for_each(|_| round());
    assert!(size("fd") < before.0 + 500);
    assert_eq!(cq.cqe(), before.1);
}

#[test]
fn a_fork_neither_hangs_nor_disturbs_its_parent() {
    let (a, b) = pair::<Rc>();
    let (near, far) = (a.region(8), b.region(8));
    let mut sides = Some((a, b.qp.recv(far.slice(..).unwrap()).unwrap()));
    let child = || {
        // Should it hang, it ends, and so does the parent's wait.
        std::thread::spawn(|| {
            std::thread::sleep(crate::support::LIMIT);
            std::process::abort();
        });
        // The child's copies, which it also drops.
        let Some((a, recv)) = sides.take() else { return 1 };
        let Ok(slice) = near.slice(..) else { return 2 };
        match a.qp.send(slice).post() {
            Err(rejected) if rejected.error == RequestError::Forked => {}
            _ => return 3,
        }
        match recv.wait() {
            (Err(CompletionError::Dropped { how: Dropped::Forked }), _) => {}
            _ => return 4,
        }
        if Pd::new(&a.context).is_ok() || a.cq.poll().is_ok() {
            return 5;
        }
        drop(a);
        0
    };
    // SAFETY: no lock of this crate is held by a thread of this test, and the objects are left alone in a child.
    let code = unsafe { ironverbs_sys::process::exit_code_of_fork(child) };
    assert_eq!(code.unwrap(), 0);
    let (a, recv) = sides.unwrap();
    ok(a.qp.send(near.slice(..).unwrap()).post().unwrap());
    assert_eq!(ok(recv).0.len, 8);
}
