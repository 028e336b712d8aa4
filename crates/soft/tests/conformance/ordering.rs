//! What comes before what: completions, data, fences, and how many READs are under way.

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{outcomes, pair, pair_with, pattern, post_inline, wr};

cases![
    completions_come_in_the_order_of_posting,
    a_read_sees_the_write_before_it,
    what_was_written_is_there_when_the_send_arrives,
    a_fenced_request_waits_for_the_read_before_it,
    a_fenced_request_waits_for_the_atomic_before_it,
    reads_are_throttled_to_the_depth,
    a_write_after_a_read_need_not_wait,
    messages_arrive_in_the_order_of_posting,
];

fn completions_come_in_the_order_of_posting(f: &Fabric) {
    let (a, b) = f.two();
    let mut random = fastrand::Rng::with_seed(1);
    let (x, y) = pair(&a, &b, QpType::Rc);
    for _ in 0..20 {
        for i in 0..60 {
            let len = random.u32(0..5000);
            let opcode = [
                WrOpcode::Send,
                WrOpcode::Write,
                WrOpcode::Read,
                WrOpcode::FetchAdd,
                WrOpcode::CompareSwap,
                WrOpcode::WriteWithImm,
            ][random.usize(0..6)];
            if matches!(opcode, WrOpcode::Send | WrOpcode::WriteWithImm) {
                y.post_recv(i, &[b.sge(0, 5000)]).unwrap();
            }
            let atomic = matches!(opcode, WrOpcode::FetchAdd | WrOpcode::CompareSwap);
            let len = if atomic { 8 } else { len };
            let request = b.remote(i, opcode, 8192);
            x.post_send(&request, Payload::Sges(&[a.sge(i * 8192, len)])).unwrap();
        }
        let found = f.completions(&a, 60);
        assert!(outcomes(&found).into_iter().eq((0..60).map(|i| (i, WcStatus::Success))));
        f.settle();
        let received = b.poll();
        assert!(received.is_sorted_by_key(|wc| wc.wr_id));
    }
}

fn a_read_sees_the_write_before_it(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    for round in 0..30 {
        let data = pattern(10_000, round);
        a.fill(0, &data);
        x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 10_000)])).unwrap();
        let into = a.sge(100_000, 10_000);
        x.post_send(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&[into])).unwrap();
        assert_eq!(f.completions(&a, 2)[1].status, WcStatus::Success);
        assert!(a.read(100_000, 10_000) == data, "round {round}");
    }
}

fn what_was_written_is_there_when_the_send_arrives(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for round in 0..30 {
        let data = pattern(10_000, round);
        a.fill(0, &data);
        y.post_recv(1, &[b.sge(50_000, 8)]).unwrap();
        let quiet = SendWr { flags: SendFlags::empty(), ..b.remote(1, WrOpcode::Write, 0) };
        x.post_send(&quiet, Payload::Sges(&[a.sge(0, 10_000)])).unwrap();
        post_inline(&x, &wr(2, WrOpcode::Send), b"written").unwrap();
        assert_eq!(f.completion(&b).status, WcStatus::Success);
        assert!(b.read(0, 10_000) == data, "round {round}");
        f.completion(&a);
    }
}

fn a_fenced_request_waits_for_the_read_before_it(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for round in 0..10 {
        let (old, new) = (pattern(100_000, round), pattern(100_000, round + 1000));
        b.fill(0, &old);
        a.fill(0, &new);
        // Fetch what is there, then overwrite it, then send what was fetched.
        let (here, fetched) = (a.sge(0, 100_000), a.sge(200_000, 100_000));
        x.post_send(&b.remote(1, WrOpcode::Read, 0), Payload::Sges(&[fetched])).unwrap();
        let fenced = |wr: SendWr| SendWr { flags: wr.flags | SendFlags::FENCE, ..wr };
        x.post_send(&fenced(b.remote(2, WrOpcode::Write, 0)), Payload::Sges(&[here])).unwrap();
        y.post_recv(9, &[b.sge(300_000, 100_000)]).unwrap();
        x.post_send(&fenced(wr(3, WrOpcode::Send)), Payload::Sges(&[fetched])).unwrap();
        assert!(f.completions(&a, 3).iter().all(|wc| wc.status == WcStatus::Success));
        f.completion(&b);
        assert!(a.read(200_000, 100_000) == old, "the READ came before the WRITE");
        assert!(b.read(0, 100_000) == new);
        assert!(b.read(300_000, 100_000) == old, "the SEND has what the READ brought");
    }
}

fn a_fenced_request_waits_for_the_atomic_before_it(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    for round in 0..50u64 {
        let add = SendWr { compare_add: 1, ..b.remote(1, WrOpcode::FetchAdd, 0) };
        x.post_send(&add, Payload::Sges(&[a.sge(64, 8)])).unwrap();
        y.post_recv(9, &[b.sge(64, 8)]).unwrap();
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        let send = SendWr { flags, ..wr(2, WrOpcode::Send) };
        x.post_send(&send, Payload::Sges(&[a.sge(64, 8)])).unwrap();
        f.completions(&a, 2);
        f.completion(&b);
        assert_eq!(b.read(64, 8), round.to_ne_bytes());
    }
}

fn reads_are_throttled_to_the_depth(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(60 * 5000, 3);
    b.fill(0, &data);
    for depth in [1, 2, 16] {
        // The responder keeps no more than that: one too many would be refused.
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| {
            (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (depth, depth);
        });
        a.fill(0, &vec![0; 60 * 5000]);
        for i in 0..60 {
            let into = a.sge(i * 5000, 5000);
            x.post_send(&b.remote(i, WrOpcode::Read, i * 5000), Payload::Sges(&[into])).unwrap();
        }
        let found = f.completions(&a, 60);
        assert!(outcomes(&found).into_iter().eq((0..60).map(|i| (i, WcStatus::Success))));
        assert!(a.read(0, 60 * 5000) == data, "depth {depth}");
        for i in 0..60 {
            let add = SendWr { compare_add: 1, ..b.remote(i, WrOpcode::FetchAdd, 1 << 19) };
            x.post_send(&add, Payload::Sges(&[a.sge(i * 8, 8)])).unwrap();
        }
        assert!(f.completions(&a, 60).iter().all(|wc| wc.status == WcStatus::Success));
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn a_write_after_a_read_need_not_wait(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair_with(&a, &b, QpType::Rc, |attr| attr.max_rd_atomic = 1);
    let data = pattern(200_000, 4);
    b.fill(0, &data);
    for i in 0..10 {
        let into = a.sge(i * 20_000, 20_000);
        x.post_send(&b.remote(i, WrOpcode::Read, i * 20_000), Payload::Sges(&[into])).unwrap();
        let to = b.remote(100 + i, WrOpcode::Write, 500_000 + i * 8);
        x.post_send(&to, Payload::Sges(&[a.sge(900_000, 8)])).unwrap();
    }
    let found = f.completions(&a, 20);
    assert!(found.iter().map(|wc| wc.wr_id).eq((0..10).flat_map(|i| [i, 100 + i])));
    assert!(a.read(0, 200_000) == data);
}

fn messages_arrive_in_the_order_of_posting(f: &Fabric) {
    let (a, b) = f.two();
    let mut random = fastrand::Rng::with_seed(2);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mut sent = 0u32;
    let mut received = 0u32;
    while received < 1000 {
        while sent < 1000 && random.u8(0..4) > 0 {
            let len = if random.bool() { 8 } else { random.u32(8..4000) };
            let request =
                SendWr { imm: sent.to_be_bytes(), ..wr(sent.into(), WrOpcode::SendWithImm) };
            if x.post_send(&request, Payload::Sges(&[a.sge(0, len)])).is_err() {
                break;
            }
            sent += 1;
        }
        for _ in 0..random.u32(0..20) {
            let _ = y.post_recv(0, &[b.sge(0, 4000)]);
        }
        for _ in 0..random.u32(0..50) {
            f.progress();
        }
        for wc in b.poll() {
            assert_eq!((wc.status, wc.imm), (WcStatus::Success, received.to_be_bytes()));
            received += 1;
        }
        a.poll();
    }
}
