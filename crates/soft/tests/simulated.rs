//! Whole Hosts under virtual time.

mod common;

use common::*;
use ironverbs_soft::sim::Impairments;
use ironverbs_soft::*;

#[test]
fn every_operation_of_rc_moves_its_data() {
    let (network, a, b) = two(1, 1 << 20);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    a.fill(0, &data);

    y.post_recv(10, &[b.sge(0, 200_000)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 100_000)])).unwrap();
    let wc = completions(&network, &b, 1)[0];
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode, wc.byte_len),
        (10, WcStatus::Success, WcOpcode::Recv, 100_000)
    );
    assert_eq!(b.read(0, 100_000), data);
    let wc = completions(&network, &a, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Send));

    let to = SendWr {
        remote_addr: b.memory.addr() + 300_000,
        rkey: b.mr.rkey(),
        ..wr(2, WrOpcode::Write)
    };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 50_000), a.sge(50_000, 50_000)])).unwrap();
    assert_eq!(completions(&network, &a, 1)[0].status, WcStatus::Success);
    assert_eq!(b.read(300_000, 100_000), data);

    let from = SendWr { opcode: WrOpcode::Read, wr_id: 3, ..to };
    x.post_send(&from, Payload::Sges(&[a.sge(500_000, 100_000)])).unwrap();
    let wc = completions(&network, &a, 1)[0];
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::Read, 100_000));
    assert_eq!(a.read(500_000, 100_000), data);

    b.fill(800_000, &5u64.to_ne_bytes());
    let add = SendWr {
        remote_addr: b.memory.addr() + 800_000,
        rkey: b.mr.rkey(),
        compare_add: 7,
        ..wr(4, WrOpcode::FetchAdd)
    };
    x.post_send(&add, Payload::Sges(&[a.sge(700_000, 8)])).unwrap();
    let swap = SendWr { opcode: WrOpcode::CompareSwap, compare_add: 12, swap: 99, ..add };
    x.post_send(&swap, Payload::Sges(&[a.sge(700_008, 8)])).unwrap();
    assert_eq!(completions(&network, &a, 2).len(), 2);
    assert_eq!(a.read(700_000, 16), [5u64.to_ne_bytes(), 12u64.to_ne_bytes()].concat());
    assert_eq!(b.read(800_000, 8), 99u64.to_ne_bytes());
}

#[test]
fn a_lossy_network_loses_nothing() {
    for seed in 0..20 {
        let (network, a, b) = two(seed, 1 << 20);
        let (x, y) = pair(&a, &b, QpType::Rc);
        network.impair(Impairments {
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            corruption: 0.1,
            ..Impairments::default()
        });
        let data: Vec<u8> = (0..500_000u32).map(|i| (i * 31 >> 3) as u8).collect();
        a.fill(0, &data);
        for i in 0..50 {
            y.post_recv(i, &[b.sge(i * 10_000, 10_000)]).unwrap();
            x.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[a.sge(i * 10_000, 10_000)]))
                .unwrap();
        }
        let received = completions(&network, &b, 50);
        let sent = completions(&network, &a, 50);
        for (i, wc) in received.iter().chain(&sent).enumerate() {
            assert_eq!((wc.wr_id, wc.status), (i as u64 % 50, WcStatus::Success), "seed {seed}");
        }
        assert_eq!(b.read(0, 500_000), data, "seed {seed}");
        assert!(network.traffic().lost > 0 && network.traffic().corrupted > 0);
    }
}

#[test]
fn ud_delivers_a_header_and_the_datagram() {
    let (network, a, b) = two(3, 1 << 16);
    let (x, y) = pair(&a, &b, QpType::Ud);
    a.fill(0, b"datagram");
    y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
    let ah = a
        .pd
        .create_ah(&AhAttr { dgid: b.gid(), is_global: true, port_num: 1, ..AhAttr::default() })
        .unwrap();
    let to = SendWr {
        ud: Some(UdDest { path: ah.path(), qpn: y.qpn(), qkey: 0x1111_1111 }),
        imm: [1, 2, 3, 4],
        ..wr(2, WrOpcode::SendWithImm)
    };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let wc = completions(&network, &b, 1)[0];
    assert_eq!((wc.byte_len, wc.src_qpn, wc.imm), (48, x.qpn(), [1, 2, 3, 4]));
    assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(b.read(40, 8), b"datagram");
    assert_eq!(b.read(32, 8), [10, 1, 0, 1, 10, 1, 0, 2], "the IPv4 addresses end the header");
}

#[test]
fn a_peer_that_is_gone_is_noticed() {
    let (network, a, b) = two(4, 1 << 16);
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.destroy().unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let found: Vec<_> =
        completions(&network, &a, 2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(found, [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(x.state(), QpState::Err);
}
