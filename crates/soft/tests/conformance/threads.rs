//! Many threads at once, on objects of their own and on the same ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_soft::*;

use crate::fabric::{Fabric, WATCHDOG};
use crate::side::{ALL, Side, blocking, pair, pattern, register, wr};

cases![
    queue_pairs_of_their_own_and_one_cq,
    one_queue_pair_for_all,
    many_pollers_see_every_completion_once,
    regions_come_and_go_in_full_traffic,
    queue_pairs_come_and_go_in_full_traffic,
    one_shared_receive_queue_for_all,
    notify_then_poll_loses_no_completion,
    state_changes_race_with_posting,
];

const THREADS: u64 = 4;

/// Runs the workers on threads, and lets time pass until all are done.
fn together<'s>(f: &Fabric, workers: Vec<Box<dyn FnOnce() + Send + 's>>) {
    thread::scope(|scope| {
        let running: Vec<_> = workers.into_iter().map(|worker| scope.spawn(worker)).collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            if !f.progress() {
                thread::yield_now();
            }
        }
    });
}

/// Signals every eighth request: a queue has its places back when a completion is read.
fn some(i: u64) -> SendFlags {
    if i % 8 == 7 { SendFlags::SIGNALED } else { SendFlags::empty() }
}

/// Repeats until it is done; the watchdog of threads.
fn again<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(start.elapsed() < WATCHDOG, "{what}");
        thread::yield_now();
    }
}

fn queue_pairs_of_their_own_and_one_cq(f: &Fabric) {
    let (a, b) = f.two();
    const EACH: u64 = 300;
    let data = pattern(4000, 1);
    a.fill(0, &data);
    let pairs: Vec<_> = (0..THREADS).map(|_| pair(&a, &b, QpType::Rc)).collect();
    let seen = AtomicU64::new(0);
    let workers = pairs.iter().enumerate().map(|(n, (x, y))| -> Box<dyn FnOnce() + Send + '_> {
        let (a, b, seen) = (&a, &b, &seen);
        Box::new(move || {
            let place = n as u64 * 65_536;
            for i in 0..EACH {
                again("a receive", || y.post_recv(i, &[b.sge(place, 4000)]).ok());
                let flags = if i % 3 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
                let send = SendWr { flags, ..wr(i, WrOpcode::Send) };
                again("a send", || {
                    // Completions of all threads come here; whoever finds them counts them.
                    for wc in a.poll().into_iter().chain(b.poll()) {
                        assert_eq!(wc.status, WcStatus::Success);
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                    x.post_send(&send, Payload::Sges(&[a.sge(0, 4000)])).ok()
                });
            }
        })
    });
    together(f, workers.collect());
    let want = THREADS * (EACH + EACH.div_ceil(3));
    f.until("all completions", || {
        let found = a.poll().len() + b.poll().len();
        seen.fetch_add(found as u64, Ordering::Relaxed) + found as u64 >= want
    });
    f.nothing_more(&[&a, &b]);
    for n in 0..THREADS as usize {
        assert!(b.read(n * 65_536, 4000) == data);
    }
}

fn one_queue_pair_for_all(f: &Fabric) {
    let (a, b) = f.two();
    const EACH: u64 = 200;
    let (x, y) = pair(&a, &b, QpType::Rc);
    let stop = AtomicBool::new(false);
    let received = parking_lot::Mutex::new(Vec::new());
    let mut workers: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
    let posters = AtomicU64::new(THREADS);
    for n in 0..THREADS {
        let (x, posters) = (&x, &posters);
        let sge = a.sge(0, 1500);
        workers.push(Box::new(move || {
            for i in 0..EACH {
                let imm = ((n << 16 | i) as u32).to_be_bytes();
                let send = SendWr { imm, flags: some(i), ..wr(i, WrOpcode::SendWithImm) };
                again("a send", || x.post_send(&send, Payload::Sges(&[sge])).ok());
            }
            posters.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    workers.push(Box::new(|| {
        again("all messages", || {
            let _ = y.post_recv(0, &[b.sge(0, 1500)]);
            for wc in b.poll() {
                assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 1500));
                received.lock().push(u32::from_be_bytes(wc.imm));
            }
            assert!(a.poll().iter().all(|wc| wc.status == WcStatus::Success));
            (received.lock().len() as u64 == THREADS * EACH).then_some(())
        });
        stop.store(true, Ordering::SeqCst);
    }));
    together(f, workers);
    assert_eq!(posters.load(Ordering::SeqCst), 0);
    // Of each thread all, in its order.
    let mut next: HashMap<u32, u32> = HashMap::new();
    for message in received.into_inner() {
        let expected = next.entry(message >> 16).or_default();
        assert_eq!(message & 0xffff, *expected);
        *expected += 1;
    }
}

fn many_pollers_see_every_completion_once(f: &Fabric) {
    let (a, b) = f.two();
    const COUNT: u64 = 1000;
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let found = parking_lot::Mutex::new(Vec::new());
    let mut workers: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
    for n in 0..THREADS {
        let (a, found) = (&a, &found);
        workers.push(Box::new(move || {
            again("all completions", || {
                let mut mine = Vec::new();
                a.cq.poll(1 + n as usize, |wc| mine.push(wc.wr_id)).unwrap();
                let mut found = found.lock();
                found.extend(mine);
                (found.len() as u64 == COUNT).then_some(())
            });
        }));
    }
    workers.push(Box::new(|| {
        for i in 0..COUNT {
            let request = b.remote(i, WrOpcode::Write, 0);
            again("a send", || x.post_send(&request, Payload::Sges(&[a.sge(0, 100)])).ok());
        }
    }));
    together(f, workers);
    let mut found = found.into_inner();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..COUNT));
}

fn regions_come_and_go_in_full_traffic(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let stop = AtomicBool::new(false);
    let mut workers: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
    for side in [&a, &b] {
        let stop = &stop;
        workers.push(Box::new(move || {
            let other = ironverbs_sys::mem::Mapping::anonymous(1 << 16).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let region = register(&side.pd, &other, ALL);
                assert_ne!(region.lkey(), side.mr.lkey());
                region.destroy().unwrap();
            }
        }));
    }
    workers.push(Box::new(|| {
        let mut done = 0;
        for i in 0..500 {
            let request = b.remote(i, WrOpcode::Write, 0);
            again("a send", || {
                for wc in a.poll() {
                    assert_eq!(wc.status, WcStatus::Success);
                    done += 1;
                }
                x.post_send(&request, Payload::Sges(&[a.sge(0, 3000)])).ok()
            });
        }
        again("all completions", || {
            done += a.poll().len();
            (done == 500).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
    }));
    together(f, workers);
}

fn queue_pairs_come_and_go_in_full_traffic(f: &Fabric) {
    let (a, b) = f.two();
    let workers = (0..THREADS).map(|n| -> Box<dyn FnOnce() + Send + '_> {
        let (a, b) = (&a, &b);
        Box::new(move || {
            let cq = a.context.create_cq(256, None, 0).unwrap();
            let own = |side: &Side| QpInit {
                send_cq: if Arc::ptr_eq(side.context.device(), a.context.device()) {
                    cq.clone()
                } else {
                    side.cq.clone()
                },
                ..side.init(QpType::Rc)
            };
            for round in 0..30 {
                let x = a.pd.create_qp(&own(a)).unwrap();
                let y = b.qp(QpType::Rc);
                crate::side::join(a, &x, b, &y, |_| {});
                let place = n * 65_536;
                for i in 0..10 {
                    let request = b.remote(i, WrOpcode::Write, place);
                    x.post_send(&request, Payload::Sges(&[a.sge(place, 5000)])).unwrap();
                }
                // Every other round leaves in the middle.
                if round % 2 == 0 {
                    let mut found = 0;
                    again("completions", || {
                        found +=
                            cq.poll(16, |wc| assert_eq!(wc.status, WcStatus::Success)).unwrap();
                        (found == 10).then_some(())
                    });
                }
                y.destroy().unwrap();
                x.destroy().unwrap();
            }
        })
    });
    together(f, workers.collect());
}

fn one_shared_receive_queue_for_all(f: &Fabric) {
    let (a, b) = f.two();
    const EACH: u64 = 200;
    let srq = b.pd.create_srq(SrqInit { max_wr: 64, max_sge: 1 }).unwrap();
    let init = QpInit { srq: Some(srq.clone()), ..b.init(QpType::Rc) };
    let pairs: Vec<_> = (0..THREADS)
        .map(|_| {
            let (x, y) = (a.qp(QpType::Rc), b.pd.create_qp(&init).unwrap());
            crate::side::join(&a, &x, &b, &y, |_| {});
            (x, y)
        })
        .collect();
    let received = AtomicU64::new(0);
    let mut workers: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
    for (x, _) in &pairs {
        let a = &a;
        workers.push(Box::new(move || {
            for i in 0..EACH {
                let send = SendWr { flags: some(i), ..wr(i, WrOpcode::Send) };
                again("a send", || {
                    assert!(a.poll().iter().all(|wc| wc.status == WcStatus::Success));
                    x.post_send(&send, Payload::Sges(&[a.sge(0, 2000)])).ok()
                });
            }
        }));
    }
    for _ in 0..2 {
        let (b, srq, received) = (&b, &srq, &received);
        workers.push(Box::new(move || {
            again("all messages", || {
                let _ = srq.post_recv(0, &[b.sge(0, 2000)]);
                for wc in b.poll() {
                    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 2000));
                    received.fetch_add(1, Ordering::SeqCst);
                }
                (received.load(Ordering::SeqCst) == THREADS * EACH).then_some(())
            });
        }));
    }
    together(f, workers);
}

fn notify_then_poll_loses_no_completion(f: &Fabric) {
    let (a, b) = f.two();
    // Sends complete elsewhere, so that only messages wake their receivers.
    let qp = |side: &Side| {
        let send_cq = side.context.create_cq(64, None, 0).unwrap();
        side.pd.create_qp(&QpInit { send_cq, ..side.init(QpType::Rc) }).unwrap()
    };
    let (x, y) = (qp(&a), qp(&b));
    crate::side::join(&a, &x, &b, &y, |_| {});
    const ROUNDS: u64 = 300;
    // Ping-pong of two threads that sleep: each arms, polls once more, then waits (ibv_get_cq_event(3)).
    let player = |side: &Side, qp: &Qp, serves: bool| {
        blocking(side.channel.fd());
        let mut events = 0;
        qp.post_recv(0, &[side.sge(0, 8)]).unwrap();
        let post = |i| {
            let ok = |wc: &Wc| assert_eq!(wc.status, WcStatus::Success);
            qp.send_cq().poll(64, ok).unwrap();
            let send = wr(i, WrOpcode::Send);
            qp.post_send(&send, Payload::Sges(&[side.sge(64, 8)])).unwrap();
        };
        let mut receive = |i: u64| {
            loop {
                if let [wc] = side.poll()[..] {
                    assert_eq!(wc.status, WcStatus::Success);
                    break;
                }
                side.cq.request_notify(false).unwrap();
                if let [wc] = side.poll()[..] {
                    assert_eq!(wc.status, WcStatus::Success);
                    break;
                }
                side.channel.next_event().unwrap();
                events += 1;
            }
            if i + 1 < ROUNDS {
                qp.post_recv(0, &[side.sge(0, 8)]).unwrap();
            }
        };
        for i in 0..ROUNDS {
            if serves {
                post(i);
                receive(i);
            } else {
                receive(i);
                post(i);
            }
        }
        side.cq.ack_events(events);
    };
    // Both receives are posted before the first message: the peers need no retry.
    thread::scope(|scope| {
        let (a, b, x, y) = (&a, &b, &x, &y);
        let one = scope.spawn(move || player(b, y, false));
        let two = scope.spawn(move || player(a, x, true));
        let start = Instant::now();
        while !(one.is_finished() && two.is_finished()) {
            // Nobody but the threads and the device's own drives a real path.
            if f.network().is_none() || !f.progress() {
                thread::sleep(Duration::from_micros(50));
            }
            if start.elapsed() > WATCHDOG {
                eprintln!("a completion was lost: both sleep");
                std::process::abort();
            }
        }
    });
}

fn state_changes_race_with_posting(f: &Fabric) {
    let (a, b) = f.two();
    for _ in 0..20 {
        let (x, y) = pair(&a, &b, QpType::Rc);
        let posted = AtomicU64::new(0);
        let mut workers: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
        for _ in 0..2 {
            let (x, posted, a) = (&x, &posted, &a);
            workers.push(Box::new(move || {
                for i in 0..100 {
                    let sent = x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)]));
                    let received = x.post_recv(i, &[]);
                    let count = u64::from(sent.is_ok()) + u64::from(received.is_ok());
                    posted.fetch_add(count, Ordering::SeqCst);
                }
            }));
        }
        workers.push(Box::new(|| crate::side::move_to(&x, QpState::Err)));
        together(f, workers);
        let want = posted.load(Ordering::SeqCst) as usize;
        let found = f.completions(&a, want);
        assert!(found.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
        f.nothing_more(&[&a]);
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}
