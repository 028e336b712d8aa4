//! Devices, ports, GIDs and P_Keys.

use std::sync::Arc;

use ironverbs_soft::*;
use ironverbs_sys::errno::EINVAL;

use crate::fabric::Fabric;

cases![
    a_device_is_the_same_while_it_is_present,
    every_device_has_a_guid_of_its_own,
    the_port_is_up_and_of_ethernet,
    ports_count_from_one,
    gids_are_roce_v2_and_the_first_is_ipv4,
    the_partition_is_the_default_one,
    a_context_opened_twice_is_two,
    a_closed_context_is_stale,
    handles_and_cookies,
    advertised_limits_can_be_used,
];

fn a_device_is_the_same_while_it_is_present(f: &Fabric) {
    let host = f.host();
    let first = host.devices().unwrap();
    for _ in 0..1000 {
        let again = host.devices().unwrap();
        assert!(first.iter().zip(&again).all(|(a, b)| Arc::ptr_eq(a, b)));
        assert_eq!(first.len(), again.len());
    }
    // A device outlives the list, and its context both.
    let device = first[0].clone();
    drop(first);
    let context = device.open().unwrap();
    let (name, attr) = (device.name().to_owned(), context.attr());
    drop(device);
    assert_eq!((context.device().name(), context.attr()), (&name[..], attr));
    assert!(context.device().is_present());
}

fn every_device_has_a_guid_of_its_own(f: &Fabric) {
    let host = f.host();
    let mut guids: Vec<_> = host.devices().unwrap().iter().map(|device| device.guid()).collect();
    for device in host.devices().unwrap() {
        let context = device.open().unwrap();
        assert_eq!(context.attr().node_guid, device.guid());
        assert_ne!(device.guid(), 0);
        assert!(!device.name().is_empty() && !device.interface().is_empty());
    }
    let count = guids.len();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), count);
    if f.network().is_some() {
        let other = f.host().devices().unwrap()[0].guid();
        assert!(!guids.contains(&other));
    }
}

fn the_port_is_up_and_of_ethernet(f: &Fabric) {
    let side = f.side();
    let port = side.context.port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.max_mtu, port.active_mtu), (Mtu::M4096, Mtu::M4096));
    assert_eq!((port.lid, port.pkey_tbl_len, port.phys_state, port.flags), (0, 1, 5, 1));
    assert_eq!(port.max_msg_sz, 1 << 31);
    assert!(port.gid_tbl_len > 0);
    assert_eq!(side.context.wire_problem(), None);
}

fn ports_count_from_one(f: &Fabric) {
    let side = f.side();
    assert_eq!(side.context.attr().phys_port_cnt, 1);
    for port in [0, 2, 255] {
        assert_eq!(side.context.port(port).unwrap_err().errno(), EINVAL);
        assert_eq!(side.context.gid(port, 0).unwrap_err().errno(), EINVAL);
        assert_eq!(side.context.pkey(port, 0).unwrap_err().errno(), EINVAL);
        assert_eq!(side.context.gid_table(port), []);
    }
}

fn gids_are_roce_v2_and_the_first_is_ipv4(f: &Fabric) {
    let side = f.side();
    let table = side.context.gid_table(1);
    let len = side.context.port(1).unwrap().gid_tbl_len;
    assert!(table[0].gid.is_ipv4() && !table.is_empty());
    for entry in &table {
        assert_eq!((entry.kind, entry.port), (GidKind::RoceV2, 1));
        assert_eq!(side.context.gid(1, entry.index).unwrap(), *entry);
        assert_eq!(entry.ifindex, side.context.device().ifindex());
        assert!(entry.index < len);
    }
    // An entry that is empty, and one that is not there.
    for index in [len - 1, len, u32::MAX] {
        assert_eq!(side.context.gid(1, index).unwrap_err().errno(), EINVAL);
    }
}

fn the_partition_is_the_default_one(f: &Fabric) {
    let side = f.side();
    assert_eq!(side.context.pkey(1, 0).unwrap(), 0xffff);
    for index in [1, u32::MAX] {
        assert_eq!(side.context.pkey(1, index).unwrap_err().errno(), EINVAL);
    }
}

fn a_context_opened_twice_is_two(f: &Fabric) {
    let side = f.side();
    let other = side.context.device().open().unwrap();
    assert!(!Arc::ptr_eq(&other, &side.context));
    assert_ne!(other.async_fd(), side.context.async_fd());
    other.destroy().unwrap();
    side.context.create_cq(1, None, 0).unwrap();
}

fn a_closed_context_is_stale(f: &Fabric) {
    let side = f.side();
    let other = side.context.device().open().unwrap();
    other.destroy().unwrap();
    assert!(matches!(other.destroy(), Err(Error::Stale { .. })));
    // The process still has another.
    assert_eq!(side.context.port(1).unwrap().state, PortState::Active);
}

fn handles_and_cookies(f: &Fabric) {
    let side = f.side();
    let mut handles = vec![side.pd.handle(), side.cq.handle(), side.mr.handle()];
    for qp in (0..50).map(|_| side.qp(QpType::Rc)) {
        handles.push(qp.handle());
        assert_eq!(qp.cookie(), 0);
        qp.set_cookie(usize::MAX);
        assert_eq!(qp.cookie(), usize::MAX);
        qp.destroy().unwrap();
    }
    let count = handles.len();
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), count);
}

fn advertised_limits_can_be_used(f: &Fabric) {
    let side = f.side();
    let limit = side.context.attr();
    let cap = QpCap {
        max_send_wr: limit.max_qp_wr,
        max_recv_wr: limit.max_qp_wr,
        max_send_sge: limit.max_sge,
        max_recv_sge: limit.max_sge,
        max_inline_data: limit.max_inline_data,
    };
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let qp = side.pd.create_qp(&QpInit { cap, ..side.init(qp_type) }).unwrap();
        let mut attr = crate::side::attr(side.gid(), qp.qpn());
        attr.max_rd_atomic = limit.max_qp_init_rd_atom as u8;
        attr.max_dest_rd_atomic = limit.max_qp_rd_atom as u8;
        crate::side::connect(&qp, &attr);
        for i in 0..limit.max_qp_wr {
            qp.post_recv(i.into(), &[side.sge(0, 8)]).unwrap();
        }
    }
    assert!(limit.max_mr_size >= 1 << 40 && limit.max_qp >= 10_000);
    assert!(!limit.fw_ver.is_empty() && limit.vendor_id != 0);
}
