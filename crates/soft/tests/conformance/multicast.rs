//! Multicast groups of UD queue pairs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::{EBUSY, EINVAL, ENOMEM};

use crate::fabric::Fabric;
use crate::side::{QKEY, Side, attr, connect, outcomes, pattern, wr};

cases![
    every_member_gets_a_copy,
    the_sender_hears_itself_if_attached,
    once_detached_nothing_more_comes,
    what_is_no_member_hears_nothing,
    groups_are_told_apart,
    batches_reach_all_members_in_order,
    the_qkey_and_room_are_each_members_own,
    only_multicast_addresses_and_datagrams,
    an_attached_queue_pair_stays_until_detached,
    a_queue_pair_that_is_only_dropped_is_detached,
    the_limits_are_those_advertised,
];

const GROUP: u32 = 0xff_ffff;

fn group(n: u8) -> Gid {
    Gid::from_ipv4(Ipv4Addr::new(239, 1, 2, n))
}

/// A UD queue pair that is ready and has `receives` posted, of 4 KiB from `offset` on.
fn member(side: &Side, offset: u64, receives: u64) -> Arc<Qp> {
    let qp = side.qp(QpType::Ud);
    connect(&qp, &attr(side.gid(), 0));
    for i in 0..receives {
        qp.post_recv(i, &[side.sge(offset + i * 4096, 4096)]).unwrap();
    }
    qp
}

fn to(from: &Side, dgid: Gid, qpn: u32, wr_id: u64) -> SendWr {
    let attr = AhAttr { dgid, is_global: true, port_num: 1, hop_limit: 1, ..AhAttr::default() };
    let path = from.pd.create_ah(&attr).unwrap().path();
    SendWr { ud: Some(UdDest { path, qpn, qkey: QKEY }), ..wr(wr_id, WrOpcode::Send) }
}

fn send(f: &Fabric, from: &Side, x: &Qp, dgid: Gid, bytes: &[u8]) {
    from.fill(0, bytes);
    let len = bytes.len() as u32;
    x.post_send(&to(from, dgid, GROUP, 99), Payload::Sges(&[from.sge(0, len)])).unwrap();
    let mut done = false;
    f.until("the send completes", || {
        from.cq.poll(1, |wc| done |= (wc.wr_id, wc.status) == (99, WcStatus::Success)).unwrap();
        done
    });
}

fn every_member_gets_a_copy(f: &Fabric) {
    let (a, b) = f.two();
    let (c, d) = f.two();
    let x = member(&a, 8192, 2);
    let (y, z) = (member(&b, 0, 2), member(&b, 65_536, 2));
    let (u, v) = (member(&c, 0, 2), member(&d, 0, 2));
    for qp in [&y, &z, &u] {
        qp.attach_mcast(&group(1)).unwrap();
    }
    send(f, &a, &x, group(1), b"to all of you");
    let found = f.completions(&b, 2);
    let mut qpns: Vec<_> = found.iter().map(|wc| wc.qpn).collect();
    qpns.sort_unstable();
    let mut expected = [y.qpn(), z.qpn()];
    expected.sort_unstable();
    assert_eq!(qpns, expected);
    for wc in found.iter().chain([&f.completion(&c)]) {
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (0, WcStatus::Success, 53));
        assert_eq!((wc.src_qpn, wc.flags), (x.qpn(), WcFlags::GRH));
    }
    assert_eq!(b.read(40, 13), b"to all of you");
    assert_eq!(b.read(65_576, 13), b"to all of you");
    assert_eq!(c.read(40, 13), b"to all of you");
    assert_eq!(c.read(36, 4), [239, 1, 2, 1], "the header tells the group");
    f.nothing_more(&[&a, &b, &c, &d]);
    assert_eq!((u.counters().rx_messages, v.counters().rx_packets), (1, 0));
}

fn the_sender_hears_itself_if_attached(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = (member(&a, 8192, 4), member(&b, 0, 4));
    x.attach_mcast(&group(1)).unwrap();
    y.attach_mcast(&group(1)).unwrap();
    send(f, &a, &x, group(1), b"echo");
    let wc = f.completion(&a);
    assert_eq!(
        (wc.opcode, wc.byte_len, wc.src_qpn, wc.qpn),
        (WcOpcode::Recv, 44, x.qpn(), x.qpn())
    );
    assert_eq!(a.read(8192 + 40, 4), b"echo");
    assert_eq!(f.completion(&b).src_qpn, x.qpn());
    f.nothing_more(&[&a, &b]);
}

fn once_detached_nothing_more_comes(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y) = (member(&a, 8192, 0), member(&b, 0, 4));
    for round in 1..3 {
        // Attaching twice is attaching once.
        y.attach_mcast(&group(1)).unwrap();
        y.attach_mcast(&group(1)).unwrap();
        send(f, &a, &x, group(1), b"one");
        f.completion(&b);
        y.detach_mcast(&group(1)).unwrap();
        assert_eq!(y.detach_mcast(&group(1)).unwrap_err().errno(), EINVAL);
        send(f, &a, &x, group(1), b"two");
        f.nothing_more(&[&a, &b]);
        assert_eq!(y.counters().rx_messages, round);
    }
}

fn what_is_no_member_hears_nothing(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y, z) = (member(&a, 8192, 0), member(&b, 0, 4), member(&b, 65_536, 4));
    y.attach_mcast(&group(1)).unwrap();
    // The group's address with another number, and a host's with the group's number.
    for (dgid, qpn) in [(group(1), y.qpn()), (group(1), z.qpn()), (b.gid(), GROUP)] {
        x.post_send(&to(&a, dgid, qpn, 1), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
    }
    f.nothing_more(&[&a, &b]);
    // Attached or not, a number is reached by the host's address.
    for qp in [&y, &z] {
        x.post_send(&to(&a, b.gid(), qp.qpn(), 1), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&b).qpn, qp.qpn());
    }
}

fn groups_are_told_apart(f: &Fabric) {
    let (a, b) = f.two();
    let (x, y, z) = (member(&a, 8192, 0), member(&b, 0, 4), member(&b, 65_536, 4));
    y.attach_mcast(&group(1)).unwrap();
    z.attach_mcast(&group(2)).unwrap();
    z.attach_mcast(&group(3)).unwrap();
    for (n, qpn) in [(1, y.qpn()), (2, z.qpn()), (3, z.qpn())] {
        send(f, &a, &x, group(n), b"which");
        assert_eq!(f.completion(&b).qpn, qpn);
    }
    send(f, &a, &x, group(4), b"none");
    f.nothing_more(&[&b]);
}

fn batches_reach_all_members_in_order(f: &Fabric) {
    let (a, b) = f.two();
    let c = f.side();
    let x = member(&a, 1 << 19, 0);
    let (y, z) = (member(&b, 0, 60), member(&c, 0, 60));
    y.attach_mcast(&group(7)).unwrap();
    z.attach_mcast(&group(7)).unwrap();
    let data = pattern(60 * 500, 4);
    a.fill(0, &data);
    let mut batch = x.post_batch();
    for i in 0..60 {
        batch.push(&to(&a, group(7), GROUP, i), Payload::Sges(&[a.sge(i * 500, 500)])).unwrap();
    }
    drop(batch);
    assert_eq!(f.completions(&a, 60).len(), 60);
    for side in [&b, &c] {
        let found = f.completions(side, 60);
        assert!(found.iter().map(|wc| wc.wr_id).eq(0..60));
        for i in 0..60 {
            assert_eq!(side.read(i * 4096 + 40, 500), data[i * 500..(i + 1) * 500]);
        }
    }
    f.nothing_more(&[&b, &c]);
}

fn the_qkey_and_room_are_each_members_own(f: &Fabric) {
    let (a, b) = f.two();
    let x = member(&a, 8192, 0);
    let other = b.qp(QpType::Ud);
    connect(&other, &QpAttr { qkey: QKEY + 1, ..attr(b.gid(), 0) });
    other.post_recv(5, &[b.sge(0, 4096)]).unwrap();
    let (without, small, good) = (member(&b, 0, 0), member(&b, 0, 0), member(&b, 65_536, 1));
    small.post_recv(6, &[b.sge(0, 41)]).unwrap();
    for qp in [&other, &without, &small, &good] {
        qp.attach_mcast(&group(1)).unwrap();
    }
    send(f, &a, &x, group(1), b"good");
    let mut found = outcomes(&f.completions(&b, 2));
    found.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(found, [(0, WcStatus::Success), (6, WcStatus::LocLenErr)]);
    f.nothing_more(&[&b]);
    assert_eq!(other.counters().dropped.qkey, 1);
    assert_eq!(without.counters().dropped.no_receive, 1);
}

fn only_multicast_addresses_and_datagrams(f: &Fabric) {
    let side = f.side();
    let qp = side.qp(QpType::Ud);
    for no_group in ["10.0.0.1", "::", "fe80::1", "240.0.0.1", "::239.1.2.3"] {
        let gid = no_group.parse().unwrap();
        assert_eq!(qp.attach_mcast(&gid).unwrap_err().errno(), EINVAL, "{no_group}");
        assert_eq!(qp.detach_mcast(&gid).unwrap_err().errno(), EINVAL, "{no_group}");
    }
    for qp_type in [QpType::Rc, QpType::Uc, QpType::XrcSend] {
        let qp = side.qp(qp_type);
        assert_eq!(qp.attach_mcast(&group(1)).unwrap_err().errno(), EINVAL);
    }
    // In any state.
    qp.attach_mcast(&group(1)).unwrap();
    qp.detach_mcast(&group(1)).unwrap();
}

fn an_attached_queue_pair_stays_until_detached(f: &Fabric) {
    let side = f.side();
    let qp = member(&side, 0, 0);
    qp.attach_mcast(&group(1)).unwrap();
    qp.attach_mcast(&group(2)).unwrap();
    qp.detach_mcast(&group(1)).unwrap();
    assert_eq!(qp.destroy().unwrap_err().errno(), EBUSY);
    assert_eq!(qp.state(), QpState::Rts);
    qp.detach_mcast(&group(2)).unwrap();
    qp.destroy().unwrap();
    assert_eq!(qp.attach_mcast(&group(1)).unwrap_err().errno(), EINVAL);
}

fn a_queue_pair_that_is_only_dropped_is_detached(f: &Fabric) {
    let (a, b) = f.two();
    let x = member(&a, 8192, 0);
    let max = b.context.attr().max_mcast_grp;
    for _ in 0..3 {
        let y = member(&b, 0, 1);
        for n in 0..max {
            y.attach_mcast(&group(n as u8)).unwrap();
        }
        send(f, &a, &x, group(1), b"once");
        f.completion(&b);
    }
    send(f, &a, &x, group(1), b"nobody");
    f.nothing_more(&[&b]);
}

fn the_limits_are_those_advertised(f: &Fabric) {
    let side = f.side();
    let limits = side.context.attr();
    let qp = side.qp(QpType::Ud);
    for n in 0..limits.max_mcast_grp {
        qp.attach_mcast(&group(n as u8)).unwrap();
    }
    let one_more = group(limits.max_mcast_grp as u8);
    assert_eq!(qp.attach_mcast(&one_more).unwrap_err().errno(), ENOMEM);
    let qps: Vec<_> = (1..limits.max_mcast_qp_attach).map(|_| side.qp(QpType::Ud)).collect();
    for qp in &qps {
        qp.attach_mcast(&group(0)).unwrap();
    }
    let last = side.qp(QpType::Ud);
    assert_eq!(last.attach_mcast(&group(0)).unwrap_err().errno(), ENOMEM);
    qps[0].detach_mcast(&group(0)).unwrap();
    last.attach_mcast(&group(0)).unwrap();
    qp.detach_mcast(&group(1)).unwrap();
    qp.attach_mcast(&one_more).unwrap();
    assert!(limits.max_total_mcast_qp_attach >= limits.max_mcast_qp_attach);
}
