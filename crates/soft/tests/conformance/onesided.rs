//! WRITEs, READs and atomics that the initiator may carry out by itself: where it does, nothing differs but that the
//! target takes no part; and what the target takes back is no longer touched when the call returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ironverbs_soft::*;

use crate::fabric::{Fabric, WATCHDOG};
use crate::side::{
    ALL, BIND, Side, attr, join, move_to, next_key, outcomes, pair, pair_with, pattern,
    post_inline, to_init, to_rtr, to_rts, wr,
};

cases![
    the_target_takes_no_part,
    every_length_arrives_whole,
    lists_are_gathered_and_scattered,
    inline_data_is_written,
    a_request_behind_another_waits_for_it,
    signaled_or_not_the_queue_has_its_places,
    unreliable_writes_keep_their_order,
    a_first_write_establishes_communication,
    nothing_is_done_in_a_drained_queue,
    a_connection_of_before_reaches_nothing,
    a_deregistered_region_is_left_alone,
    a_region_of_fewer_rights_is_left_alone,
    a_window_that_ends_is_left_alone,
    a_queue_pair_that_stops_is_left_alone,
    rights_taken_from_a_queue_pair_are_gone,
    atomics_of_everyone_add_up,
    regions_beyond_the_table_work,
    a_stream_of_requests_gets_to_go_without_packets,
];

const SHORT: Duration = Duration::from_millis(3);

/// Waits until requests of `x` are carried out without packets, where the path has that; then nothing is under way.
#[track_caller]
fn warm(f: &Fabric, a: &Side, x: &Qp, b: &Side) {
    let start = Instant::now();
    loop {
        let before = x.counters().direct.total().messages;
        let request = b.remote(0, WrOpcode::Write, (1 << 20) - 1);
        x.post_send(&request, Payload::Sges(&[a.sge((1 << 20) - 1, 1)])).unwrap();
        assert_eq!(outcomes(&f.completions(a, 1)), [(0, WcStatus::Success)]);
        if !f.is_direct() || x.counters().direct.total().messages > before {
            return;
        }
        // An unreliable one must find the lane empty.
        f.settle_for(100_000);
        assert!(start.elapsed() < WATCHDOG, "never without packets");
    }
}

fn warm_pair(f: &Fabric, a: &Side, b: &Side, qp_type: QpType) -> (Arc<Qp>, Arc<Qp>) {
    let (x, y) = pair(a, b, qp_type);
    warm(f, a, &x, b);
    (x, y)
}

/// Whether atomics are carried out, too: the kernel has none.
fn is_atomic(x: &Qp) -> bool {
    x.counters().direct.process.messages > 0
}

fn the_target_takes_no_part(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
    let (before, there) = (x.counters(), y.counters());
    let data = pattern(1000, 3);
    a.fill(0, &data);
    b.fill(8192, &7u64.to_ne_bytes());
    let requests = [
        (b.remote(1, WrOpcode::Write, 0), a.sge(0, 1000)),
        (b.remote(2, WrOpcode::Read, 0), a.sge(4096, 1000)),
        (SendWr { compare_add: 3, ..b.remote(3, WrOpcode::FetchAdd, 8192) }, a.sge(6000, 8)),
        (
            SendWr { compare_add: 10, swap: 99, ..b.remote(4, WrOpcode::CompareSwap, 8192) },
            a.sge(6008, 8),
        ),
    ];
    for (request, sge) in requests {
        x.post_send(&request, Payload::Sges(&[sge])).unwrap();
        if f.is_direct() && (request.wr_id < 3 || is_atomic(&x)) {
            // It is complete when the call returns.
            assert_eq!(outcomes(&a.poll()), [(request.wr_id, WcStatus::Success)]);
        } else {
            assert_eq!(outcomes(&f.completions(&a, 1)), [(request.wr_id, WcStatus::Success)]);
        }
    }
    assert!(b.read(0, 1000) == data && a.read(4096, 1000) == data);
    assert_eq!(
        (a.read(6000, 8), a.read(6008, 8)),
        (7u64.to_ne_bytes().into(), 10u64.to_ne_bytes().into())
    );
    assert_eq!(b.read(8192, 8), 99u64.to_ne_bytes());
    let direct = x.counters().direct.total().messages - before.direct.total().messages;
    let expected = if !f.is_direct() {
        0
    } else if is_atomic(&x) {
        4
    } else {
        2
    };
    assert_eq!(direct, expected);
    assert_eq!(x.counters().tx_messages - before.tx_messages, 4);
    assert_eq!(y.counters().rx_messages - there.rx_messages, 4 - expected);
    if expected == 4 {
        assert_eq!(x.counters().direct.total().bytes - before.direct.total().bytes, 2016);
        assert_eq!(x.counters().tx_packets, before.tx_packets);
    }
    // Packets find both ends where they were.
    y.post_recv(9, &[b.sge(0, 64)]).unwrap();
    x.post_send(&wr(5, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(5, WcStatus::Success)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(9, WcStatus::Success)]);
}

fn every_length_arrives_whole(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    let data = pattern(1 << 20, 5);
    a.fill(0, &data);
    let lengths =
        (1..=40).chain([63, 64, 65, 255, 4095, 4096, 4097, 65_536, 262_143, 262_145, 600_000]);
    for (i, len) in lengths.enumerate() {
        let at = (i as u64 % 9) + 1;
        b.fill(0, &vec![0; len + 32]);
        x.post_send(&b.remote(1, WrOpcode::Write, at), Payload::Sges(&[a.sge(3, len as u32)]))
            .unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        let got = b.read(0, len + 32);
        let (before, rest) = got.split_at(at as usize);
        assert!(rest[..len] == data[3..3 + len], "{len} bytes at {at}");
        assert!(before.iter().chain(&rest[len..]).all(|&byte| byte == 0), "{len} bytes at {at}");
        let into = a.sge(700_000 + at, len.min(300_000) as u32);
        x.post_send(&b.remote(2, WrOpcode::Read, at), Payload::Sges(&[into])).unwrap();
        let wc = f.completion(&a);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, into.len));
        assert!(a.read(700_000 + at as usize, into.len as usize) == data[3..3 + into.len as usize]);
    }
}

fn lists_are_gathered_and_scattered(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    let data = pattern(1 << 19, 6);
    a.fill(0, &data);
    for cut in [1usize, 7, 4096, 150_000, 262_144] {
        let list = [
            a.sge(0, cut as u32),
            a.sge(9, 0),
            a.sge(cut as u64, 5),
            a.sge(cut as u64 + 5, 90_000),
        ];
        x.post_send(&b.remote(1, WrOpcode::Write, 40), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        let whole = cut + 90_005;
        assert!(b.read(40, whole) == data[..whole], "{cut}");
        let list = [a.sge(600_000, 3), a.sge(610_000, cut as u32), a.sge(0, 0), a.sge(900_000, 2)];
        x.post_send(&b.remote(2, WrOpcode::Read, 40), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        let got = [a.read(600_000, 3), a.read(610_000, cut), a.read(900_000, 2)].concat();
        assert!(got == data[..cut + 5], "{cut}");
    }
    // The result of an atomic may be scattered, too.
    b.fill(0, &0x0102_0304_0506_0708u64.to_ne_bytes());
    let list = [a.sge(0, 3), a.sge(100, 5)];
    x.post_send(&b.remote(3, WrOpcode::FetchAdd, 0), Payload::Sges(&list)).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!([a.read(0, 3), a.read(100, 5)].concat(), 0x0102_0304_0506_0708u64.to_ne_bytes());
}

fn inline_data_is_written(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    for len in [1, 2, 7, 8, 13, 64] {
        let data = pattern(len, len as u64);
        post_inline(&x, &b.remote(1, WrOpcode::Write, 24), &data).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(b.read(24, len), data);
    }
}

fn a_request_behind_another_waits_for_it(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
    for round in 0..200u32 {
        y.post_recv(u64::from(round), &[b.sge(0, 64)]).unwrap();
        a.fill(0, &round.to_ne_bytes());
        a.fill(64, &[0; 4]);
        {
            let mut batch = x.post_batch();
            batch.push(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 4)])).unwrap();
            // It reads what the SEND before it has put there.
            batch.push(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&[a.sge(64, 4)])).unwrap();
        }
        assert_eq!(
            outcomes(&f.completions(&a, 2)),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
        assert_eq!(a.read(64, 4), round.to_ne_bytes());
        // And what a WRITE put there the SEND behind it announces.
        y.post_recv(1000, &[]).unwrap();
        {
            let mut batch = x.post_batch();
            batch.push(&b.remote(3, WrOpcode::Write, 512), Payload::Sges(&[a.sge(0, 4)])).unwrap();
            batch.push(&wr(4, WrOpcode::Send), Payload::Sges(&[])).unwrap();
        }
        f.completions(&b, 2);
        assert_eq!(b.read(512, 4), round.to_ne_bytes());
        f.completions(&a, 2);
    }
}

fn signaled_or_not_the_queue_has_its_places(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    for round in 0..10u64 {
        for i in 0..64 {
            let flags = if i == 63 { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.fill(0, &(round * 64 + i).to_ne_bytes());
            let request = SendWr { flags, ..b.remote(i, WrOpcode::Write, 8 * i) };
            x.post_send(&request, Payload::Sges(&[a.sge(8 * i, 8)])).unwrap();
        }
        // Until the completion is read the places are not the program's.
        let full = x.post_send(&b.remote(99, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)]));
        assert_eq!(full, Err(PostError::QueueFull { max: 64 }));
        assert_eq!(outcomes(&f.completions(&a, 1)), [(63, WcStatus::Success)]);
    }
    f.nothing_more(&[&a]);
}

fn unreliable_writes_keep_their_order(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = warm_pair(f, &a, &b, QpType::Uc);
    let before = x.counters().direct.total().messages;
    for round in 1..=300u64 {
        // A large one by packets, as it brings immediate data, and a small one behind it on the same bytes.
        y.post_recv(round, &[]).unwrap();
        a.fill(0, &vec![round as u8; 60_000]);
        a.fill(60_000, &round.to_ne_bytes());
        {
            let mut batch = x.post_batch();
            let large = b.remote(1, WrOpcode::WriteWithImm, 0);
            batch.push(&large, Payload::Sges(&[a.sge(0, 60_000)])).unwrap();
            let small = b.remote(2, WrOpcode::Write, 59_992);
            batch.push(&small, Payload::Sges(&[a.sge(60_000, 8)])).unwrap();
        }
        f.completions(&a, 2);
        f.completions(&b, 1);
        f.until("the WRITE behind it", || b.read(59_992, 8) == round.to_ne_bytes());
        assert_eq!(b.read(59_991, 1), [round as u8]);
        // Alone it need not go as a packet.
        f.settle_for(1000);
        x.post_send(&b.remote(3, WrOpcode::Write, 128), Payload::Sges(&[a.sge(60_000, 8)]))
            .unwrap();
        f.completions(&a, 1);
        f.until("the WRITE alone", || b.read(128, 8) == round.to_ne_bytes());
    }
    assert_eq!(x.counters().direct.total().messages > before, f.is_direct());
}

fn a_first_write_establishes_communication(f: &Fabric) {
    let (a, b) = f.two();
    // So that the lanes are there.
    let (first, _) = warm_pair(f, &a, &b, QpType::Rc);
    let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    let (to_y, to_x) = (attr(b.gid(), y.qpn()), attr(a.gid(), x.qpn()));
    to_init(&y, &to_x);
    to_rtr(&y, &to_x);
    to_init(&x, &to_y);
    to_rtr(&x, &to_y);
    to_rts(&x, &to_y);
    for i in 0..3 {
        x.post_send(&b.remote(i, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(i, WcStatus::Success)]);
    }
    assert_eq!(f.event(&b).kind, EventKind::CommEst);
    let expected = if f.is_direct() { 2 } else { 0 };
    assert_eq!(x.counters().direct.total().messages, expected);
    assert_eq!(first.state(), QpState::Rts);
}

fn nothing_is_done_in_a_drained_queue(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    a.fill(0, &[1; 8]);
    move_to(&x, QpState::Sqd);
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.nothing_more(&[&a]);
    assert_eq!(b.read(0, 8), [0; 8]);
    move_to(&x, QpState::Rts);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
    assert_eq!(b.read(0, 8), [1; 8]);
}

fn a_connection_of_before_reaches_nothing(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| {
        attr.timeout = 10;
        attr.retry_cnt = 1;
    });
    warm(f, &a, &x, &b);
    // The target begins anew, with the same peer but at another PSN.
    move_to(&y, QpState::Reset);
    let again = QpAttr { rq_psn: 77, ..attr(a.gid(), x.qpn()) };
    to_init(&y, &again);
    to_rtr(&y, &again);
    to_rts(&y, &again);
    a.fill(0, &[1; 8]);
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.settle_for(20_000_000);
    assert_eq!(b.read(0, 8), [0; 8]);
    x.destroy().unwrap();
    f.settle();
    a.poll();
    // Nor does another QP of the same process.
    let (other, partner) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
    join(&a, &other, &b, &partner, |_| {});
    warm(f, &a, &other, &b);
    let stray = a.qp(QpType::Rc);
    let to_y = QpAttr { timeout: 10, retry_cnt: 1, sq_psn: 77, ..attr(b.gid(), y.qpn()) };
    to_init(&stray, &to_y);
    to_rtr(&stray, &to_y);
    to_rts(&stray, &to_y);
    let direct = stray.counters().direct.total().messages;
    stray.post_send(&b.remote(2, WrOpcode::Write, 16), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.settle_for(20_000_000);
    assert_eq!(stray.counters().direct.total().messages, direct);
}

/// Lets `x` WRITE and READ all the time while `take_back` ends what it may do; from then on the target's memory must not change.
/// On a path where packets do it, that was always so.
#[track_caller]
fn while_writing(
    f: &Fabric,
    a: &Side,
    x: &Arc<Qp>,
    b: &Side,
    key: (u64, u32),
    take_back: impl FnOnce(),
) {
    let done = AtomicBool::new(false);
    let posted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut fill = 0u8;
            let start = Instant::now();
            while !done.load(Ordering::Acquire) && start.elapsed() < WATCHDOG {
                fill = fill.wrapping_add(1);
                a.fill(0, &vec![fill; 300_000]);
                let request = SendWr { remote_addr: key.0, rkey: key.1, ..wr(1, WrOpcode::Write) };
                if x.post_send(&request, Payload::Sges(&[a.sge(0, 300_000)])).is_err() {
                    break;
                }
                posted.fetch_add(1, Ordering::AcqRel);
                a.poll();
            }
        });
        let start = Instant::now();
        while posted.load(Ordering::Acquire) < 5 && start.elapsed() < WATCHDOG {
            f.progress();
        }
        std::thread::sleep(SHORT / 3);
        take_back();
        let then = b.read(0, 300_000);
        let until = Instant::now() + SHORT;
        while Instant::now() < until {
            f.progress();
        }
        assert!(b.read(0, 300_000) == then, "touched after it was taken back");
        done.store(true, Ordering::Release);
        writer.join().unwrap();
    });
}

fn a_deregistered_region_is_left_alone(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    for _ in 0..20 {
        let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
        let mr = b.register(ALL);
        while_writing(f, &a, &x, &b, (mr.iova(), mr.rkey()), || mr.destroy().unwrap());
        x.destroy().unwrap();
        y.destroy().unwrap();
        f.settle();
        a.poll();
        while b.next_event().inspect(AsyncEvent::ack).is_some() {}
    }
}

fn a_region_of_fewer_rights_is_left_alone(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    for _ in 0..10 {
        let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
        let mr = b.register(ALL);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        // SAFETY: the memory stays.
        let take_back = || unsafe { mr.rereg(None, None, Some(access)) }.unwrap();
        while_writing(f, &a, &x, &b, (mr.iova(), mr.rkey()), take_back);
        mr.destroy().unwrap();
        x.destroy().unwrap();
        y.destroy().unwrap();
        f.settle();
        a.poll();
        while b.next_event().inspect(AsyncEvent::ack).is_some() {}
    }
}

fn a_window_that_ends_is_left_alone(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    let region = b.windowed();
    for round in 0..12 {
        let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
        let kind = if round % 3 == 0 { MwType::One } else { MwType::Two };
        let mw = b.pd.alloc_mw(kind).unwrap();
        let rkey = b.bind(&y, &mw, &region, Access::REMOTE_WRITE);
        f.until("the binding", || b.poll().iter().any(|wc| wc.wr_id == BIND));
        let ends = |request: &SendWr| {
            y.post_send(request, Payload::Sges(&[])).unwrap();
            f.until("its end", || b.poll().iter().any(|wc| wc.wr_id == 55));
        };
        let take_back = || match round % 3 {
            0 => {
                let nothing = Bind {
                    rkey: next_key(rkey),
                    lkey: 0,
                    addr: 0,
                    len: 0,
                    access: Access::empty(),
                };
                ends(&SendWr::bind(55, SendFlags::SIGNALED, &nothing));
            }
            1 => ends(&SendWr { invalidate_rkey: rkey, ..wr(55, WrOpcode::LocalInv) }),
            _ => mw.destroy().unwrap(),
        };
        while_writing(f, &a, &x, &b, (region.iova(), rkey), take_back);
        if f.is_direct() {
            assert!(x.counters().direct.total().messages > 1, "the window is none for others");
        }
        for qp in [x, y] {
            qp.destroy().unwrap();
        }
        f.settle();
        a.poll();
        b.poll();
        while b.next_event().inspect(AsyncEvent::ack).is_some() {}
    }
    region.destroy().unwrap();
}

fn a_queue_pair_that_stops_is_left_alone(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    for round in 0..18 {
        let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
        while_writing(f, &a, &x, &b, (b.mr.iova(), b.mr.rkey()), || match round % 3 {
            0 => move_to(&y, QpState::Err),
            1 => move_to(&y, QpState::Reset),
            _ => y.destroy().unwrap(),
        });
        x.destroy().unwrap();
        if round % 3 < 2 {
            y.destroy().unwrap();
        }
        f.settle();
        a.poll();
        b.poll();
    }
}

fn rights_taken_from_a_queue_pair_are_gone(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    for _ in 0..10 {
        let (x, y) = warm_pair(f, &a, &b, QpType::Rc);
        let read_only = QpAttr { access: Access::REMOTE_READ, ..QpAttr::default() };
        let take_back = || y.modify(&read_only, AttrMask::ACCESS_FLAGS).unwrap();
        while_writing(f, &a, &x, &b, (b.mr.iova(), b.mr.rkey()), take_back);
        x.destroy().unwrap();
        y.destroy().unwrap();
        f.settle();
        a.poll();
        b.poll();
        while b.next_event().inspect(AsyncEvent::ack).is_some() {}
    }
}

fn atomics_of_everyone_add_up(f: &Fabric) {
    let (a, b) = f.two();
    let c = f.side();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    let (z, ear) = pair(&c, &b, QpType::Rc);
    b.fill(0, &[0; 8]);
    for _ in 0..300 {
        let add = SendWr { compare_add: 1, ..b.remote(1, WrOpcode::FetchAdd, 0) };
        x.post_send(&add, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        // Behind a SEND, the target's engine does it.
        ear.post_recv(5, &[]).unwrap();
        {
            let mut batch = z.post_batch();
            batch.push(&wr(2, WrOpcode::Send), Payload::Sges(&[])).unwrap();
            batch.push(&SendWr { wr_id: 3, ..add }, Payload::Sges(&[c.sge(0, 8)])).unwrap();
        }
        f.completions(&a, 1);
        f.completions(&c, 2);
        f.completions(&b, 1);
    }
    assert_eq!(b.read(0, 8), 600u64.to_ne_bytes());
}

fn regions_beyond_the_table_work(f: &Fabric) {
    if f.network().is_some() {
        return;
    }
    let (a, b) = f.two();
    let (x, _y) = warm_pair(f, &a, &b, QpType::Rc);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let small = ironverbs_sys::mem::Mapping::anonymous(64).unwrap();
    let many: Vec<_> = (0..66_000).map(|_| crate::side::register(&b.pd, &small, access)).collect();
    for mr in [&many[10], &many[65_990]] {
        let request =
            SendWr { remote_addr: small.addr(), rkey: mr.rkey(), ..wr(1, WrOpcode::Write) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
    }
}

/// Who always has requests under way would never find nothing before one.
fn a_stream_of_requests_gets_to_go_without_packets(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let total = if f.is_direct() { 100_000 } else { 2000 };
    let (mut posted, mut done) = (0u64, 0);
    let start = Instant::now();
    while done < total && (!f.is_direct() || x.counters().direct.total().messages < 1000) {
        assert!(start.elapsed() < WATCHDOG, "{done} done");
        // The queue never runs empty.
        while posted < done + 60 {
            let opcode = if posted % 2 == 0 { WrOpcode::Read } else { WrOpcode::Write };
            let request = b.remote(posted, opcode, 0);
            x.post_send(&request, Payload::Sges(&[a.sge(0, 64)])).unwrap();
            posted += 1;
        }
        for wc in f.completions(&a, 1) {
            assert_eq!((wc.wr_id, wc.status), (done, WcStatus::Success));
            done += 1;
        }
    }
    assert_eq!(x.counters().direct.total().messages >= 1000, f.is_direct());
    // A message between does not change that, nor is it overtaken.
    y.post_recv(7, &[]).unwrap();
    x.post_send(&wr(posted, WrOpcode::Send), Payload::Sges(&[])).unwrap();
    let large = a.sge(0, 200_000);
    x.post_send(&b.remote(posted + 1, WrOpcode::Write, 0), Payload::Sges(&[large])).unwrap();
    let rest = f.completions(&a, (posted + 2 - done) as usize);
    assert!(outcomes(&rest).into_iter().eq((done..posted + 2).map(|i| (i, WcStatus::Success))));
    assert_eq!(outcomes(&f.completions(&b, 1)), [(7, WcStatus::Success)]);
}
