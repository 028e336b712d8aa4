//! Unreliable datagrams.

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{self, QKEY, Side, attr, outcomes, pair, pattern, post_inline, wr};

cases![
    the_payload_starts_at_40_behind_an_ipv4_header,
    the_header_of_ipv6_is_whole,
    every_size_up_to_the_mtu,
    a_datagram_above_the_mtu_fails,
    a_wrong_qkey_or_number_is_not_received,
    a_qkey_with_its_top_bit_set_is_the_queue_pairs_own,
    a_receive_too_small_fails_alone,
    without_a_receive_nobody_is_told,
    one_to_many_and_many_to_one,
    immediate_data_and_solicited_events,
    inline_and_scattered,
    a_bad_receive_moves_the_receiver_to_err,
    the_header_can_lie_apart,
    receives_from_a_shared_queue,
    the_qkey_can_be_changed,
    datagrams_to_oneself,
];

fn path(from: &Side, to: Gid) -> Path {
    let sgid_index = from
        .context
        .gid_table(1)
        .iter()
        .find(|entry| entry.gid.is_ipv4() == to.is_ipv4())
        .map_or(0, |entry| entry.index as u8);
    let attr = AhAttr {
        dgid: to,
        is_global: true,
        port_num: 1,
        sgid_index,
        hop_limit: 7,
        traffic_class: 0x20,
        flow_label: 0x1_2345,
        ..AhAttr::default()
    };
    from.pd.create_ah(&attr).unwrap().path()
}

fn to(from: &Side, side: &Side, qp: &Qp, wr_id: u64) -> SendWr {
    let ud = Some(UdDest { path: path(from, side.gid()), qpn: qp.qpn(), qkey: QKEY });
    SendWr { ud, ..wr(wr_id, WrOpcode::Send) }
}

fn the_payload_starts_at_40_behind_an_ipv4_header(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    a.fill(0, b"datagram!");
    y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
    x.post_send(&to(&a, &b, &y, 2), Payload::Sges(&[a.sge(0, 9)])).unwrap();
    let wc = f.completion(&a);
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (2, WcStatus::Success, WcOpcode::Send));
    let wc = f.completion(&b);
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.qpn, wc.src_qpn), (49, y.qpn(), x.qpn()));
    assert_eq!((wc.flags, wc.pkey_index), (WcFlags::GRH, 0));
    assert_eq!(wc.sl, 0b1010, "UDP behind IPv4, as UCX 1.13 and older want to know");
    assert_eq!(b.read(40, 10), b"datagram!\0");
    let ip = b.read(20, 20);
    assert_eq!((ip[0], ip[9]), (0x45, 17), "IPv4 without options, UDP");
    // BTH, DETH, padded payload, ICRC behind 20 bytes of IP and 8 of UDP.
    assert_eq!(u16::from_be_bytes([ip[2], ip[3]]), 20 + 8 + 12 + 8 + 12 + 4);
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    assert_eq!((sum >> 16) + (sum & 0xffff), 0xffff, "the checksum is right");
    let address = |gid: Gid| gid.0[12..].to_vec();
    assert_eq!((ip[12..16].to_vec(), ip[16..].to_vec()), (address(a.gid()), address(b.gid())));
}

fn the_header_of_ipv6_is_whole(f: &Fabric) {
    let (a, b) = f.two();
    let v6 = |side: &Side| side.context.gid_table(1).into_iter().find(|entry| !entry.gid.is_ipv4());
    let (Some(from), Some(dest)) = (v6(&a), v6(&b)) else {
        assert!(f.network().is_none());
        return;
    };
    let (x, y) = pair(&a, &b, QpType::Ud);
    y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
    let request = SendWr {
        ud: Some(UdDest { path: path(&a, dest.gid), qpn: y.qpn(), qkey: QKEY }),
        ..wr(1, WrOpcode::Send)
    };
    a.fill(0, b"over IPv6");
    x.post_send(&request, Payload::Sges(&[a.sge(0, 9)])).unwrap();
    let wc = f.completion(&b);
    assert_eq!((wc.status, wc.byte_len, wc.flags), (WcStatus::Success, 49, WcFlags::GRH));
    assert_eq!(wc.sl, 0b1001, "UDP behind IPv6");
    let header = b.read(0, 40);
    assert_eq!((header[0] >> 4, header[6]), (6, 17));
    assert_eq!(u16::from_be_bytes([header[4], header[5]]), 8 + 12 + 8 + 12 + 4);
    assert_eq!(header[8..24], from.gid.0);
    assert_eq!(header[24..], dest.gid.0);
    assert_eq!(b.read(40, 9), b"over IPv6");
}

fn every_size_up_to_the_mtu(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    let mtu = a.context.port(1).unwrap().active_mtu.bytes() as u32;
    let data = pattern(mtu as usize, 1);
    a.fill(0, &data);
    for len in [0, 1, 2, 3, 4, 5, 255, 256, 1023, 1024, 1025, mtu - 1, mtu] {
        b.fill(0, &vec![0; 5000]);
        y.post_recv(1, &[b.sge(0, 40 + len)]).unwrap();
        x.post_send(&to(&a, &b, &y, 2), Payload::Sges(&[a.sge(0, len)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        let wc = f.completion(&b);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 40 + len));
        assert!(b.read(40, len as usize) == data[..len as usize]);
        assert_eq!(b.read(40 + len as usize, 8), [0; 8]);
    }
}

fn a_datagram_above_the_mtu_fails(f: &Fabric) {
    let (a, b) = f.two();
    let mtu = a.context.port(1).unwrap().active_mtu.bytes() as u32;
    for len in [mtu + 1, 2 * mtu, 1 << 20] {
        let (x, y) = pair(&a, &b, QpType::Ud);
        y.post_recv(1, &[b.sge(0, 1 << 20)]).unwrap();
        x.post_send(&to(&a, &b, &y, 2), Payload::Sges(&[a.sge(0, len)])).unwrap();
        let wc = f.completion(&a);
        assert_eq!((wc.status, wc.vendor_err), (WcStatus::LocLenErr, VendorErr::TooLong as u32));
        assert_eq!(x.state(), QpState::Sqe);
        f.nothing_more(&[&a, &b]);
    }
}

fn a_wrong_qkey_or_number_is_not_received(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    let (_rc, connected) = pair(&a, &b, QpType::Rc);
    let gone = b.qp(QpType::Ud);
    gone.destroy().unwrap();
    let not_ready = b.qp(QpType::Ud);
    side::to_init(&not_ready, &attr(a.gid(), 0));
    not_ready.post_recv(1, &[b.sge(0, 100)]).unwrap();
    connected.post_recv(1, &[b.sge(0, 100)]).unwrap();
    y.post_recv(1, &[b.sge(0, 100)]).unwrap();
    let good = UdDest { path: path(&a, b.gid()), qpn: y.qpn(), qkey: QKEY };
    let wrong = [
        UdDest { qkey: QKEY + 1, ..good },
        UdDest { qkey: 0, ..good },
        UdDest { qpn: gone.qpn(), ..good },
        UdDest { qpn: 0, ..good },
        UdDest { qpn: 2, ..good },
        UdDest { qpn: not_ready.qpn(), ..good },
        UdDest { qpn: connected.qpn(), ..good },
    ];
    for (i, dest) in wrong.into_iter().enumerate() {
        let request = SendWr { ud: Some(dest), ..wr(i as u64, WrOpcode::Send) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(i as u64, WcStatus::Success)]);
    }
    f.until("two drops", || y.counters().dropped.qkey == 2);
    f.nothing_more(&[&a, &b]);
    assert!(a.next_event().is_none() && b.next_event().is_none());
    // The receive is still there.
    x.post_send(&to(&a, &b, &y, 9), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&b, 1)), [(1, WcStatus::Success)]);
}

fn a_qkey_with_its_top_bit_set_is_the_queue_pairs_own(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    for qkey in [0x8000_0000, 0xffff_ffff, 0x8001_0000] {
        y.post_recv(1, &[b.sge(0, 100)]).unwrap();
        let dest = UdDest { path: path(&a, b.gid()), qpn: y.qpn(), qkey };
        let request = SendWr { ud: Some(dest), ..wr(1, WrOpcode::Send) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&b).status, WcStatus::Success, "{qkey:#x}");
    }
}

fn a_receive_too_small_fails_alone(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    for (i, room) in [0, 39, 40, 47].into_iter().enumerate() {
        y.post_recv(i as u64, &[b.sge(0, room)]).unwrap();
        x.post_send(&to(&a, &b, &y, 9), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        let wc = f.completion(&b);
        assert_eq!((wc.wr_id, wc.status), (i as u64, WcStatus::LocLenErr), "{room}");
        assert_eq!(f.completion(&a).status, WcStatus::Success);
    }
    y.post_recv(5, &[b.sge(0, 48)]).unwrap();
    x.post_send(&to(&a, &b, &y, 9), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&b, 1)), [(5, WcStatus::Success)]);
}

fn without_a_receive_nobody_is_told(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    for i in 0..10 {
        x.post_send(&to(&a, &b, &y, i), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    assert!(f.completions(&a, 10).iter().all(|wc| wc.status == WcStatus::Success));
    f.until("ten drops", || y.counters().dropped.no_receive == 10);
    y.post_recv(1, &[b.sge(0, 100)]).unwrap();
    f.nothing_more(&[&a, &b]);
}

fn one_to_many_and_many_to_one(f: &Fabric) {
    let (a, b) = f.two();
    let c = f.side();
    let center = a.qp(QpType::Ud);
    side::connect(&center, &attr(a.gid(), 0));
    let others: Vec<_> = (0..10)
        .map(|i| {
            let side = if i % 2 == 0 { &b } else { &c };
            let qp = side.qp(QpType::Ud);
            side::connect(&qp, &attr(a.gid(), 0));
            qp.post_recv(i, &[side.sge(i * 128, 128)]).unwrap();
            center.post_recv(100 + i, &[a.sge(i * 128, 128)]).unwrap();
            (side, qp)
        })
        .collect();
    for (i, (side, qp)) in others.iter().enumerate() {
        let data = (i as u64).to_ne_bytes();
        post_inline(&center, &to(&a, side, qp, i as u64), &data).unwrap();
        post_inline(qp, &to(side, &a, &center, i as u64), &data).unwrap();
    }
    for wc in f.completions(&a, 20) {
        assert_eq!(wc.status, WcStatus::Success);
        if wc.opcode == WcOpcode::Recv {
            let data = a.read((wc.wr_id as usize - 100) * 128 + 40, 8);
            let sender = u64::from_ne_bytes(data.try_into().unwrap()) as usize;
            assert_eq!(wc.src_qpn, others[sender].1.qpn());
        }
    }
    for side in [&b, &c] {
        for wc in f.completions(side, 10) {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.opcode == WcOpcode::Recv {
                let data = side.read(wc.wr_id as usize * 128 + 40, 8);
                assert_eq!(data, wc.wr_id.to_ne_bytes());
                assert_eq!(wc.src_qpn, center.qpn());
            }
        }
    }
}

fn immediate_data_and_solicited_events(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    b.cq.request_notify(true).unwrap();
    for (i, solicited) in [(0, false), (1, true)] {
        y.post_recv(i, &[b.sge(0, 100)]).unwrap();
        let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
        let imm = [0xff, 0, 0x80, i as u8];
        let request = SendWr { opcode: WrOpcode::SendWithImm, imm, flags, ..to(&a, &b, &y, 1) };
        x.post_send(&request, Payload::Sges(&[])).unwrap();
        let wc = f.completion(&b);
        assert_eq!((wc.imm, wc.byte_len), (imm, 40));
        assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
        if solicited {
            f.until("an event", || b.channel.next_event().is_ok());
        } else {
            assert!(b.channel.next_event().is_err());
        }
    }
    b.cq.ack_events(1);
}

fn inline_and_scattered(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    let data = pattern(3000, 2);
    a.fill(0, &data);
    y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
    let list = [a.sge(0, 1), a.sge(1, 0), a.sge(1, 1500), a.sge(1501, 1499)];
    x.post_send(&to(&a, &b, &y, 1), Payload::Sges(&list)).unwrap();
    assert_eq!(f.completion(&b).byte_len, 3040);
    assert!(b.read(40, 3000) == data);
    y.post_recv(2, &[b.sge(0, 4096)]).unwrap();
    post_inline(&x, &to(&a, &b, &y, 2), &data[..63]).unwrap();
    assert_eq!(f.completion(&b).byte_len, 103);
    assert!(b.read(40, 63) == data[..63]);
}

fn a_bad_receive_moves_the_receiver_to_err(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    y.post_recv(1, &[Sge { lkey: 0xbad, ..b.sge(0, 100) }]).unwrap();
    y.post_recv(2, &[b.sge(0, 100)]).unwrap();
    x.post_send(&to(&a, &b, &y, 1), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    let want = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(outcomes(&f.completions(&b, 2)), want);
    assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Err));
}

fn the_header_can_lie_apart(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    a.fill(0, b"payload");
    for split in [1, 20, 39, 40, 41] {
        b.fill(0, &[0; 4096]);
        y.post_recv(1, &[b.sge(0, split), b.sge(1024, 100)]).unwrap();
        x.post_send(&to(&a, &b, &y, 1), Payload::Sges(&[a.sge(0, 7)])).unwrap();
        assert_eq!(f.completion(&b).byte_len, 47);
        let split = split as usize;
        let whole = [b.read(0, split), b.read(1024, 47 - split)].concat();
        assert_eq!((whole[20], &whole[40..]), (0x45, &b"payload"[..]), "{split}");
    }
}

fn receives_from_a_shared_queue(f: &Fabric) {
    let (a, b) = f.two();
    let srq = b.pd.create_srq(SrqInit { max_wr: 8, max_sge: 1 }).unwrap();
    let init = QpInit { srq: Some(srq.clone()), ..b.init(QpType::Ud) };
    let targets: Vec<_> = (0..3).map(|_| b.pd.create_qp(&init).unwrap()).collect();
    let x = a.qp(QpType::Ud);
    side::connect(&x, &attr(b.gid(), 0));
    for qp in &targets {
        side::connect(qp, &attr(a.gid(), 0));
    }
    for i in 0..6 {
        srq.post_recv(i, &[b.sge(i * 128, 128)]).unwrap();
    }
    for i in 0..6 {
        x.post_send(&to(&a, &b, &targets[i % 3], i as u64), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    }
    let found = f.completions(&b, 6);
    assert!(found.iter().all(|wc| wc.status == WcStatus::Success && wc.byte_len == 48));
    for qp in &targets {
        assert_eq!(found.iter().filter(|wc| wc.qpn == qp.qpn()).count(), 2);
    }
}

fn the_qkey_can_be_changed(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Ud);
    let attr = QpAttr { state: QpState::Rts, qkey: 7, ..QpAttr::default() };
    y.modify(&attr, AttrMask::QKEY).unwrap();
    assert_eq!((y.query().qkey, y.state()), (7, QpState::Rts));
    y.post_recv(1, &[b.sge(0, 100)]).unwrap();
    x.post_send(&to(&a, &b, &y, 1), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    f.settle();
    assert_eq!(b.poll(), []);
    let ud = Some(UdDest { path: path(&a, b.gid()), qpn: y.qpn(), qkey: 7 });
    x.post_send(&SendWr { ud, ..wr(2, WrOpcode::Send) }, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
}

fn datagrams_to_oneself(f: &Fabric) {
    let a = f.side();
    let x = a.qp(QpType::Ud);
    side::connect(&x, &attr(a.gid(), 0));
    a.fill(0, b"echo");
    x.post_recv(1, &[a.sge(100, 100)]).unwrap();
    x.post_send(&to(&a, &a, &x, 2), Payload::Sges(&[a.sge(0, 4)])).unwrap();
    let mut found = f.completions(&a, 2);
    found.sort_by_key(|wc| wc.wr_id);
    assert_eq!(outcomes(&found), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!((found[0].src_qpn, a.read(140, 4)), (x.qpn(), b"echo".to_vec()));
}
