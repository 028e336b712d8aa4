//! Every operation of the connected services moves its data, whatever its size and its pieces.

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{self, Side, attr, outcomes, pair, pair_with, pattern, post_inline, wr};

cases![
    every_size_of_send_write_and_read,
    every_path_mtu,
    gather_and_scatter,
    the_longest_lists,
    immediate_data_is_opaque,
    completions_tell_what_was_done,
    inline_data_is_free_at_return,
    inline_of_every_length_and_operation,
    compare_and_swap,
    fetch_and_add,
    atomics_of_many_queue_pairs_add_up,
    writes_with_immediate_take_a_receive,
    a_queue_pair_connected_to_itself,
    both_directions_at_once,
    unreliable_connections_carry_sends_and_writes,
    large_messages,
    over_ipv6,
    a_list_of_requests_goes_out_together,
    signaled_or_not,
    large_messages_whatever_their_lists,
    memory_that_is_the_programs_again_is_not_sent,
];

const HALF: u64 = 1 << 19;

fn every_size_of_send_write_and_read(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(1 << 19, 1);
    a.fill(0, &data);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let sizes = [1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 10_001];
    for len in sizes.into_iter().chain([65_535, 65_536, 65_537, 300_000]) {
        let want = &data[..len as usize];
        b.fill(0, &vec![0; HALF as usize]);
        y.post_recv(1, &[b.sge(64, len)]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, len)])).unwrap();
        let wc = f.completion(&b);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len));
        assert!(b.read(64, len as usize) == want, "SEND of {len}");
        assert_eq!(b.read(0, 64), [0; 64]);
        assert_eq!(b.read(64 + len as usize, 64), [0; 64]);

        b.fill(0, &vec![0; HALF as usize]);
        x.post_send(&b.remote(2, WrOpcode::Write, 65), Payload::Sges(&[a.sge(0, len)])).unwrap();
        assert_eq!(
            outcomes(&f.completions(&a, 2)),
            [(1, WcStatus::Success), (2, WcStatus::Success)]
        );
        assert!(b.read(65, len as usize) == want, "WRITE of {len}");
        assert_eq!(b.read(0, 65), [0; 65]);
        assert_eq!(b.read(65 + len as usize, 64), [0; 64]);

        a.fill(HALF as usize, &vec![0; HALF as usize]);
        let into = a.sge(HALF + 3, len);
        x.post_send(&b.remote(3, WrOpcode::Read, 65), Payload::Sges(&[into])).unwrap();
        let wc = f.completion(&a);
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::Read, len));
        assert!(a.read(HALF as usize + 3, len as usize) == want, "READ of {len}");
        assert_eq!(a.read(HALF as usize, 3), [0; 3]);
        assert_eq!(a.read(HALF as usize + 3 + len as usize, 64), [0; 64]);
    }
}

fn every_path_mtu(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(20_000, 2);
    a.fill(0, &data);
    for mtu in [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096] {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.path_mtu = mtu);
        assert_eq!(y.query().path_mtu, mtu);
        for len in [mtu.bytes() as u32 - 1, mtu.bytes() as u32, mtu.bytes() as u32 + 1, 20_000] {
            b.fill(0, &vec![0; 20_000]);
            a.fill(50_000, &vec![0; 20_000]);
            x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, len)])).unwrap();
            let back = a.sge(50_000, len);
            x.post_send(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&[back])).unwrap();
            assert!(f.completions(&a, 2).iter().all(|wc| wc.status == WcStatus::Success));
            assert!(a.read(50_000, len as usize) == data[..len as usize], "{mtu:?} {len}");
        }
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn gather_and_scatter(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(100_000, 3);
    a.fill(0, &data);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..40 {
        // Pieces anywhere, in any order, some of them empty.
        let mut pieces = |limit: u32| -> Vec<(u64, u32)> {
            (0..random.usize(1..=4))
                .map(|_| (random.u64(0..50_000), random.u32(0..limit)))
                .collect()
        };
        let from = pieces(6000);
        let len: u32 = from.iter().map(|piece| piece.1).sum();
        // The receiving pieces lie one behind the other in memory.
        let mut left = len;
        let mut into = Vec::new();
        for (_, piece) in pieces(9000).into_iter().take(3) {
            into.push(piece.min(left));
            left -= piece.min(left);
        }
        into.push(left);
        let mut at = 100;
        let sges: Vec<_> = into
            .iter()
            .map(|len| {
                let sge = b.sge(at, *len);
                at += u64::from(*len);
                sge
            })
            .collect();
        let list: Vec<_> = from.iter().map(|(at, len)| a.sge(*at, *len)).collect();
        let want: Vec<u8> = from
            .iter()
            .flat_map(|(at, len)| &data[*at as usize..*at as usize + *len as usize])
            .copied()
            .collect();
        b.fill(0, &vec![0; 60_000]);
        y.post_recv(1, &sges).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&b).byte_len, len);
        assert!(b.read(100, len as usize) == want, "{from:?} into {into:?}");
        // A READ scatters likewise.
        let into: Vec<_> = sges
            .iter()
            .map(|sge| Sge {
                addr: a.memory.addr() + HALF + (sge.addr - b.memory.addr()),
                lkey: a.mr.lkey(),
                ..*sge
            })
            .collect();
        x.post_send(&b.remote(2, WrOpcode::Read, 100), Payload::Sges(&into)).unwrap();
        assert!(f.completions(&a, 2).iter().all(|wc| wc.status == WcStatus::Success));
        assert!(a.read(HALF as usize + 100, len as usize) == want);
    }
}

fn the_longest_lists(f: &Fabric) {
    let (a, b) = f.two();
    let max = a.context.attr().max_sge;
    let data = pattern(40_000, 4);
    a.fill(0, &data);
    let cap = |side: &Side| QpInit {
        cap: QpCap { max_send_sge: max, max_recv_sge: max, ..side.init(QpType::Rc).cap },
        ..side.init(QpType::Rc)
    };
    let (x, y) = (a.pd.create_qp(&cap(&a)).unwrap(), b.pd.create_qp(&cap(&b)).unwrap());
    side::join(&a, &x, &b, &y, |_| {});
    let pieces = |side: &Side, len: u32| -> Vec<Sge> {
        (0..max).map(|i| side.sge(u64::from(i * len), len)).collect()
    };
    y.post_recv(1, &pieces(&b, 1000)).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&pieces(&a, 999))).unwrap();
    assert_eq!(f.completion(&b).byte_len, max * 999);
    assert!(b.read(0, max as usize * 999) == data[..max as usize * 999]);
    x.post_send(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&pieces(&a, 7))).unwrap();
    assert!(f.completions(&a, 2).iter().all(|wc| wc.status == WcStatus::Success));
}

fn immediate_data_is_opaque(f: &Fabric) {
    let (a, b) = f.two();
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (x, y) = pair(&a, &b, qp_type);
        for imm in [[0; 4], [0xff; 4], [0x80, 0, 0, 0], [0, 0, 0, 0x80], [1, 2, 3, 4]] {
            for opcode in [WrOpcode::SendWithImm, WrOpcode::WriteWithImm] {
                for len in [0, 8, 3000] {
                    y.post_recv(1, &[b.sge(0, 4000)]).unwrap();
                    let request = SendWr { imm, ..b.remote(1, opcode, 0) };
                    x.post_send(&request, Payload::Sges(&[a.sge(0, len)])).unwrap();
                    let wc = f.completion(&b);
                    assert_eq!((wc.status, wc.imm, wc.byte_len), (WcStatus::Success, imm, len));
                    assert_eq!(wc.flags, WcFlags::WITH_IMM);
                }
            }
        }
        // Without it the completion does not claim any.
        y.post_recv(1, &[b.sge(0, 8)]).unwrap();
        let request = SendWr { imm: [9; 4], ..wr(1, WrOpcode::Send) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&b).flags, WcFlags::empty());
        f.settle();
        a.poll();
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn completions_tell_what_was_done(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let region = b.windowed();
    use WrOpcode::*;
    for (opcode, sent, received) in [
        (Send, WcOpcode::Send, Some(WcOpcode::Recv)),
        (SendWithImm, WcOpcode::Send, Some(WcOpcode::Recv)),
        (SendWithInv, WcOpcode::Send, Some(WcOpcode::Recv)),
        (Write, WcOpcode::Write, None),
        (WriteWithImm, WcOpcode::Write, Some(WcOpcode::RecvWriteWithImm)),
        (Read, WcOpcode::Read, None),
        (CompareSwap, WcOpcode::CompareSwap, None),
        (FetchAdd, WcOpcode::FetchAdd, None),
    ] {
        if received.is_some() {
            y.post_recv(u64::MAX, &[b.sge(0, 64)]).unwrap();
        }
        let mw = b.pd.alloc_mw(MwType::Two).unwrap();
        let key = b.bind(&y, &mw, &region, Access::REMOTE_READ);
        assert_eq!(f.completion(&b).opcode, WcOpcode::BindMw);
        let request = SendWr { invalidate_rkey: key, ..b.remote(1 << 63, opcode, 4096) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        let wc = f.completion(&a);
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode, wc.qpn),
            (1 << 63, WcStatus::Success, sent, x.qpn())
        );
        assert_eq!(wc.vendor_err, 0);
        if let Some(received) = received {
            let wc = f.completion(&b);
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (u64::MAX, WcStatus::Success, received));
            assert_eq!((wc.qpn, wc.src_qpn, wc.byte_len), (y.qpn(), x.qpn(), 8));
        }
    }
    f.nothing_more(&[&a, &b]);
}

fn inline_data_is_free_at_return(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mut buffer = *b"memory that no region covers";
    for i in 0..20u64 {
        buffer[0] = i as u8;
        post_inline(&x, &wr(i, WrOpcode::Send), &buffer).unwrap();
        buffer = *b"overwritten after the call  ";
    }
    for i in 0..20 {
        y.post_recv(i, &[b.sge(i * 64, 64)]).unwrap();
    }
    f.completions(&a, 20);
    f.completions(&b, 20);
    for i in 0..20u8 {
        let got = b.read(usize::from(i) * 64, buffer.len());
        assert_eq!(got[0], i);
        let want = if i == 0 { &b"emory that no region covers"[..] } else { &buffer[1..] };
        assert_eq!(got[1..], *want);
    }
}

fn inline_of_every_length_and_operation(f: &Fabric) {
    let (a, b) = f.two();
    let max = a.context.attr().max_inline_data;
    let cap = QpCap { max_inline_data: max, ..a.init(QpType::Rc).cap };
    let x = a.pd.create_qp(&QpInit { cap, ..a.init(QpType::Rc) }).unwrap();
    let y = b.qp(QpType::Rc);
    // Shorter packets, so that inline data takes several.
    side::join(&a, &x, &b, &y, |attr| attr.path_mtu = Mtu::M256);
    let data = pattern(max as usize, 5);
    for len in [0, 1, 255, 256, 257, max] {
        let data = &data[..len as usize];
        for opcode in
            [WrOpcode::Send, WrOpcode::SendWithImm, WrOpcode::Write, WrOpcode::WriteWithImm]
        {
            b.fill(0, &vec![0; 5000]);
            y.post_recv(1, &[b.sge(0, max)]).unwrap();
            post_inline(&x, &b.remote(1, opcode, 0), data).unwrap();
            assert_eq!(f.completion(&a).status, WcStatus::Success);
            if opcode != WrOpcode::Write {
                assert_eq!(f.completion(&b).byte_len, len);
            } else {
                post_inline(&x, &wr(1, WrOpcode::Send), data).unwrap();
                f.completion(&a);
                f.completion(&b);
            }
            assert!(b.read(0, len as usize) == data, "{opcode:?} {len}");
        }
    }
}

fn word(side: &Side, offset: usize) -> u64 {
    u64::from_ne_bytes(side.read(offset, 8).try_into().unwrap())
}

fn compare_and_swap(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let high = 0x8000_0000_0000_0001;
    let mut now: u64 = 5;
    b.fill(64, &now.to_ne_bytes());
    for (compare, swap) in [(5, 7), (5, 9), (7, high), (high, 0), (0, u64::MAX), (0, 1)] {
        let request =
            SendWr { compare_add: compare, swap, ..b.remote(1, WrOpcode::CompareSwap, 64) };
        x.post_send(&request, Payload::Sges(&[a.sge(8, 8)])).unwrap();
        let wc = f.completion(&a);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 8));
        assert_eq!(word(&a, 8), now, "the value before comes back, in host order");
        now = if now == compare { swap } else { now };
        assert_eq!(word(&b, 64), now);
    }
}

fn fetch_and_add(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let mut now: u64 = u64::MAX - 1;
    b.fill(1000, &now.to_ne_bytes());
    for add in [1, 1, 1, u64::MAX, 0, 1 << 63, 0x0102_0304_0506_0708] {
        let request = SendWr { compare_add: add, ..b.remote(1, WrOpcode::FetchAdd, 1000) };
        // The result may go to two elements.
        x.post_send(&request, Payload::Sges(&[a.sge(8, 3), a.sge(11, 5)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(word(&a, 8), now);
        now = now.wrapping_add(add);
        assert_eq!(word(&b, 1000), now);
    }
}

fn atomics_of_many_queue_pairs_add_up(f: &Fabric) {
    let (a, b) = f.two();
    let c = f.side();
    let pairs: Vec<_> =
        (0..6).map(|i| pair(if i % 2 == 0 { &a } else { &c }, &b, QpType::Rc)).collect();
    const EACH: u64 = 50;
    for i in 0..EACH {
        for (n, (x, _)) in pairs.iter().enumerate() {
            let side = if n % 2 == 0 { &a } else { &c };
            let request = SendWr { compare_add: 1, ..b.remote(i, WrOpcode::FetchAdd, 0) };
            let into = side.sge(n as u64 * 1024 + i * 8, 8);
            x.post_send(&request, Payload::Sges(&[into])).unwrap();
        }
    }
    f.completions(&a, 3 * EACH as usize);
    f.completions(&c, 3 * EACH as usize);
    assert_eq!(word(&b, 0), 6 * EACH);
    let mut seen: Vec<u64> = (0..6)
        .flat_map(|n| {
            let side = if n % 2 == 0 { &a } else { &c };
            (0..EACH as usize).map(move |i| word(side, n * 1024 + i * 8)).collect::<Vec<_>>()
        })
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..6 * EACH), "every value was seen once");
}

fn writes_with_immediate_take_a_receive(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(5000, 6);
    a.fill(0, &data);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (x, y) = pair(&a, &b, qp_type);
        b.fill(0, &vec![0; 20_000]);
        // The data goes where the WRITE says, whatever the receive has.
        y.post_recv(3, &[b.sge(10_000, 8)]).unwrap();
        let request = SendWr { imm: [1; 4], ..b.remote(1, WrOpcode::WriteWithImm, 0) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 5000)])).unwrap();
        let wc = f.completion(&b);
        assert_eq!((wc.wr_id, wc.byte_len), (3, 5000));
        assert_eq!(wc.opcode, WcOpcode::RecvWriteWithImm);
        assert!(b.read(0, 5000) == data);
        assert_eq!(b.read(10_000, 8), [0; 8]);
        f.completion(&a);
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn a_queue_pair_connected_to_itself(f: &Fabric) {
    let a = f.side();
    let x = a.qp(QpType::Rc);
    side::connect(&x, &attr(a.gid(), x.qpn()));
    a.fill(0, b"to myself");
    x.post_recv(1, &[a.sge(100, 64)]).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 9)])).unwrap();
    x.post_send(&a.remote(3, WrOpcode::Read, 100), Payload::Sges(&[a.sge(200, 9)])).unwrap();
    let mut found = outcomes(&f.completions(&a, 3));
    found.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(found, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_eq!(a.read(200, 9), b"to myself");
}

fn both_directions_at_once(f: &Fabric) {
    let (a, b) = f.two();
    let (one, two) = (pattern(200_000, 7), pattern(200_000, 8));
    a.fill(0, &one);
    b.fill(0, &two);
    let (x, y) = pair(&a, &b, QpType::Rc);
    for (side, qp) in [(&a, &x), (&b, &y)] {
        for i in 0..20 {
            qp.post_recv(100 + i, &[side.sge(500_000 + i * 10_000, 10_000)]).unwrap();
        }
    }
    for i in 0..20 {
        x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(i * 10_000, 10_000)])).unwrap();
        y.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[b.sge(i * 10_000, 10_000)])).unwrap();
    }
    for side in [&a, &b] {
        let found = f.completions(side, 40);
        assert!(found.iter().all(|wc| wc.status == WcStatus::Success));
        let ids = |opcode| -> Vec<u64> {
            found.iter().filter(|wc| wc.opcode == opcode).map(|wc| wc.wr_id).collect()
        };
        assert!(ids(WcOpcode::Send).into_iter().eq(0..20));
        assert!(ids(WcOpcode::Recv).into_iter().eq(100..120));
    }
    assert!(b.read(500_000, 200_000) == one && a.read(500_000, 200_000) == two);
}

fn unreliable_connections_carry_sends_and_writes(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(30_000, 9);
    a.fill(0, &data);
    let (x, y) = pair(&a, &b, QpType::Uc);
    for len in [0, 1, 1024, 1025, 30_000] {
        b.fill(0, &vec![0; 30_000]);
        y.post_recv(1, &[b.sge(0, 30_000)]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, len)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(f.completion(&b).byte_len, len);
        assert!(b.read(0, len as usize) == data[..len as usize]);
        b.fill(0, &vec![0; 30_000]);
        x.post_send(&b.remote(2, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, len)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        f.until("the WRITE", || b.read(0, len as usize) == data[..len as usize]);
    }
    // Without a receive a SEND is lost, and nobody is told.
    x.post_send(&wr(3, WrOpcode::Send), Payload::Sges(&[a.sge(0, 3000)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    f.nothing_more(&[&a, &b]);
    assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Rts));
    // What a peer may not write it does not write; the connection goes on.
    let before = b.read(0, 30_000);
    let bad = SendWr { rkey: 0xbad, ..b.remote(4, WrOpcode::Write, 0) };
    x.post_send(&bad, Payload::Sges(&[a.sge(7, 3000)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    y.post_recv(5, &[b.sge(100_000, 64)]).unwrap();
    x.post_send(&wr(5, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    assert!(b.read(0, 30_000) == before);
}

fn large_messages(f: &Fabric) {
    let len: u32 = 24 << 20;
    let a = Side::new(&f.host(), len as usize);
    let b = Side::new(&f.host(), len as usize);
    let data = pattern(len as usize, 10);
    a.fill(0, &data);
    let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.path_mtu = Mtu::M4096);
    y.post_recv(1, &[b.sge(0, len)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, len)])).unwrap();
    assert_eq!(f.completion(&b).byte_len, len);
    assert!(b.read(0, len as usize) == data);
    a.fill(0, &vec![0; len as usize]);
    x.post_send(&b.remote(2, WrOpcode::Read, 0), Payload::Sges(&[a.sge(0, len)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 2)), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert!(a.read(0, len as usize) == data);
}

fn over_ipv6(f: &Fabric) {
    let (a, b) = f.two();
    let v6 = |side: &Side| side.context.gid_table(1).into_iter().find(|entry| !entry.gid.is_ipv4());
    let (Some(from), Some(to)) = (v6(&a), v6(&b)) else {
        // A machine whose loopback has no ::1; the simulated network always has.
        assert!(f.network().is_none());
        return;
    };
    let data = pattern(50_000, 11);
    a.fill(0, &data);
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (x, y) = (a.qp(qp_type), b.qp(qp_type));
        for (qp, own, peer, qpn) in [(&x, from, to, y.qpn()), (&y, to, from, x.qpn())] {
            let mut attr = attr(peer.gid, qpn);
            attr.ah.sgid_index = own.index as u8;
            attr.ah.flow_label = 0xf_1234;
            attr.ah.traffic_class = 3;
            side::connect(qp, &attr);
        }
        y.post_recv(1, &[b.sge(0, 50_000)]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 50_000)])).unwrap();
        assert_eq!(f.completion(&b).byte_len, 50_000);
        assert!(b.read(0, 50_000) == data);
        f.completion(&a);
    }
}

fn a_list_of_requests_goes_out_together(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let depth = u64::from(x.cap().max_send_wr);
    for i in 0..depth {
        y.post_recv(i, &[b.sge(i * 8, 8)]).unwrap();
        a.fill(i as usize * 8, &i.to_ne_bytes());
    }
    let mut batch = x.post_batch();
    for i in 0..depth {
        batch.push(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(i * 8, 8)])).unwrap();
    }
    // The one too many is told; those before it go all the same.
    let error = batch.push(&wr(99, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap_err();
    assert!(matches!(error, PostError::QueueFull { .. }));
    drop(batch);
    assert!(f.completions(&a, depth as usize).iter().map(|wc| wc.wr_id).eq(0..depth));
    assert!(f.completions(&b, depth as usize).iter().map(|wc| wc.wr_id).eq(0..depth));
    assert_eq!(a.read(0, depth as usize * 8), b.read(0, depth as usize * 8));
}

fn signaled_or_not(f: &Fabric) {
    let (a, b) = f.two();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let post = |qp: &Qp, wr_id, flags| {
        let request = SendWr { flags, ..b.remote(wr_id, WrOpcode::Write, 0) };
        qp.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    };
    // More than the queue holds: what completed unseen makes room.
    for round in 0..10 {
        for i in 0..15 {
            post(&x, i, SendFlags::empty());
        }
        post(&x, 100 + round, SendFlags::SIGNALED);
        assert_eq!(f.completion(&a).wr_id, 100 + round);
    }
    f.nothing_more(&[&a]);
    // sq_sig_all signals everything.
    let x = a.pd.create_qp(&QpInit { sq_sig_all: true, ..a.init(QpType::Rc) }).unwrap();
    let y = b.qp(QpType::Rc);
    side::join(&a, &x, &b, &y, |_| {});
    for i in 0..5 {
        post(&x, i, SendFlags::empty());
    }
    assert!(f.completions(&a, 5).iter().map(|wc| wc.wr_id).eq(0..5));
}

fn large_messages_whatever_their_lists(f: &Fabric) {
    let (a, b) = f.two();
    let data = pattern(1 << 20, 3);
    a.fill(0, &data);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mut posted = 0;
    for (offset, len) in [(0, 1 << 20), (16, 65_536), (64, 32_768), (1, 100_003), (0, 32_767)] {
        for opcode in [WrOpcode::Send, WrOpcode::Write, WrOpcode::WriteWithImm] {
            for parts in 1..=4u32 {
                // The pieces of either side have nothing to do with those of the other.
                let cut = |side: &Side, parts: u32| -> Vec<Sge> {
                    let part = len / parts;
                    (0..parts)
                        .map(|i| {
                            let start = u64::from(i * part);
                            let len = if i + 1 == parts { len - i * part } else { part };
                            side.sge(if len == 1 << 20 { 0 } else { offset } + start, len)
                        })
                        .collect()
                };
                b.fill(0, &[0; 1 << 20]);
                posted += 1;
                if opcode == WrOpcode::Send {
                    y.post_recv(posted, &cut(&b, 5 - parts)).unwrap();
                } else if opcode == WrOpcode::WriteWithImm {
                    y.post_recv(posted, &[]).unwrap();
                }
                let request = b.remote(posted, opcode, offset);
                x.post_send(&request, Payload::Sges(&cut(&a, parts))).unwrap();
                let what = format!("{opcode:?} of {len} at {offset} in {parts}");
                assert_eq!(f.completion(&a).status, WcStatus::Success, "{what}");
                if opcode != WrOpcode::Write {
                    assert_eq!(f.completion(&b).byte_len, len, "{what}");
                }
                let place = offset as usize..offset as usize + len as usize;
                assert!(b.read(place.start, len as usize) == data[place], "{what}");
            }
        }
    }
    // Between processes of one host their payload is fetched, elsewhere it is sent.
    assert_eq!(x.counters().tx_references > 0, x.is_local());
    // The kernel may drop what comes by its sockets, on a machine that has other work.
    assert!(!x.is_local() || x.counters().recoveries == 0);
}

fn memory_that_is_the_programs_again_is_not_sent(f: &Fabric) {
    let (a, b) = f.two();
    const LEN: usize = 1 << 19;
    let data = pattern(LEN, 5);
    for round in 0..30 {
        let (x, y) = pair(&a, &b, QpType::Rc);
        a.fill(0, &data);
        b.fill(0, &vec![0; LEN]);
        y.post_recv(1, &[b.sge(0, LEN as u32)]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, LEN as u32)])).unwrap();
        for _ in 0..round % 4 {
            f.progress();
        }
        match round % 3 {
            0 => x.destroy().unwrap(),
            1 => side::move_to(&x, QpState::Err),
            _ => side::move_to(&x, QpState::Reset),
        }
        a.fill(0, &vec![0xee; LEN]);
        f.settle();
        a.poll();
        for wc in b.poll() {
            // All of it had been taken before, or nothing came of it.
            let whole = b.read(0, LEN) == data;
            assert!(wc.status != WcStatus::Success || whole, "round {round}");
        }
        y.destroy().unwrap();
    }
}
