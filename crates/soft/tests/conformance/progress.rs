//! Who does the work when a program does not call: the device's own thread.

use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{outcomes, pair, pattern, wr};

cases![
    a_peer_that_never_calls_serves_everything,
    a_target_that_spins_on_its_memory_sees_the_data,
    a_sender_that_never_polls_still_sends,
    acknowledgements_leave_though_nobody_calls_any_more,
    retries_go_on_though_nobody_calls,
    atomics_of_the_cpu_and_of_peers_add_up,
];

fn a_peer_that_never_calls_serves_everything(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let data = pattern(100_000, 1);
    a.fill(0, &data);
    y.post_recv(9, &[b.sge(500_000, 100_000)]).unwrap();
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 100_000)])).unwrap();
    let back = a.sge(200_000, 100_000);
    x.post_send(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&[back])).unwrap();
    let add = SendWr { compare_add: 3, ..b.remote(3, WrOpcode::FetchAdd, 200_000) };
    x.post_send(&add, Payload::Sges(&[a.sge(400_000, 8)])).unwrap();
    x.post_send(&wr(4, WrOpcode::Send), Payload::Sges(&[a.sge(0, 100_000)])).unwrap();
    let mut found = Vec::new();
    f.sleep_until("four completions", || {
        found.extend(a.poll());
        found.len() == 4
    });
    assert!(outcomes(&found).into_iter().eq((1..=4).map(|i| (i, WcStatus::Success))));
    assert!(a.read(200_000, 100_000) == data && b.read(500_000, 100_000) == data);
    assert_eq!(b.read(200_000, 8), 3u64.to_ne_bytes());
    assert_eq!(outcomes(&b.poll()), [(9, WcStatus::Success)]);
}

fn a_target_that_spins_on_its_memory_sees_the_data(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    // Ping-pong by WRITEs alone: neither side polls a CQ, as long as the queue has places.
    for i in 1..=60u64 {
        a.fill(0, &i.to_ne_bytes());
        let quiet = |wr: SendWr| SendWr { flags: SendFlags::empty(), ..wr };
        let there = quiet(b.remote(i, WrOpcode::Write, 64));
        x.post_send(&there, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        f.sleep_until("the WRITE there", || b.read(64, 8) == i.to_ne_bytes());
        let back = quiet(a.remote(i, WrOpcode::Write, 128));
        y.post_send(&back, Payload::Sges(&[b.sge(64, 8)])).unwrap();
        f.sleep_until("the WRITE back", || a.read(128, 8) == i.to_ne_bytes());
    }
}

fn a_sender_that_never_polls_still_sends(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let data = pattern(500_000, 2);
    a.fill(0, &data);
    for i in 0..5 {
        y.post_recv(i, &[b.sge(i * 100_000, 100_000)]).unwrap();
        let from = a.sge(i * 100_000, 100_000);
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[from])).unwrap();
    }
    let mut found = Vec::new();
    f.sleep_until("five messages", || {
        found.extend(b.poll());
        found.len() == 5
    });
    assert!(b.read(0, 500_000) == data);
}

fn acknowledgements_leave_though_nobody_calls_any_more(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for i in 0..20 {
        y.post_recv(i, &[b.sge(0, 64)]).unwrap();
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(0, 64)])).unwrap();
        // The receiver sees its message, and then has other things to do.
        f.sleep_until("the message", || !b.poll().is_empty());
        let mut found = Vec::new();
        f.sleep_until("its acknowledgement", || {
            found.extend(a.poll());
            !found.is_empty()
        });
        assert_eq!(outcomes(&found), [(i, WcStatus::Success)]);
    }
}

fn retries_go_on_though_nobody_calls(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 64)])).unwrap();
    f.sleep_until("some RNR NAKs", || x.counters().rnr_naks_received > 3);
    y.post_recv(2, &[b.sge(0, 64)]).unwrap();
    f.sleep_until("the message", || y.counters().rx_messages == 1);
    f.sleep_until("its acknowledgement", || x.counters().tx_messages == 1);
    assert_eq!(outcomes(&a.poll()), [(1, WcStatus::Success)]);
}

fn atomics_of_the_cpu_and_of_peers_add_up(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    const COUNT: u64 = 500;
    std::thread::scope(|scope| {
        let addr = b.memory.addr();
        let mine = scope.spawn(move || {
            // SAFETY: aligned, within the mapping, and only accessed by atomics.
            let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
            for _ in 0..COUNT * 100 {
                word.fetch_add(1 << 32, Ordering::Relaxed);
            }
        });
        let mut done = 0;
        for i in 0..COUNT {
            let add = SendWr { compare_add: 1, ..b.remote(i, WrOpcode::FetchAdd, 0) };
            f.until("room", || {
                done += a.poll().len();
                x.post_send(&add, Payload::Sges(&[a.sge(i * 8, 8)])).is_ok()
            });
        }
        f.until("all atomics", || {
            done += a.poll().len();
            done == COUNT as usize
        });
        mine.join().unwrap();
    });
    let sum = u64::from_ne_bytes(b.read(0, 8).try_into().unwrap());
    assert_eq!(sum, ((COUNT * 100) << 32) | COUNT);
}
