//! Kernel rxe on either side: what it sent is answered as its peer answered it, and asked as it
//! asked. The captures are those of the wire crate.

use std::collections::VecDeque;
use std::path::PathBuf;

use ironverbs_transport::device::{Instant, Queue};
use ironverbs_transport::qp::{Payload, Qp, QpConfig};
use ironverbs_transport::verbs::{
    AttrMask, QpAttr, QpCap, QpState, QpType, SendWr, Sge, UdDest, WcStatus, WrOpcode,
};
use ironverbs_wire::{Gid, ICRC_LEN, Mtu, Op, Packet, Path, Service};

use crate::support::memory::{ALL, Memory};
use crate::support::net::Outbox;
use crate::support::wr;

const NOW: Instant = Instant(1);

/// A packet of a capture: which way it went, and its bytes from the BTH on, without ICRC.
struct Captured {
    path: Path,
    body: Vec<u8>,
}

impl Captured {
    fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.body).unwrap()
    }
}

/// The packets of a capture that are not MADs.
fn capture(name: &str) -> Vec<Captured> {
    let file = format!("../wire/tests/data/{name}.pcap");
    let bytes = std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, after) = rest.split_at(16 + len);
        rest = after;
        let (ether_type, ip) = record[16 + 12..].split_at(2);
        let (src, dst, udp) = match ether_type {
            [0x08, 0x00] => {
                let gid = |at: usize| {
                    Gid::from_ipv4(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into())
                };
                (gid(12), gid(16), &ip[20..])
            }
            _ => {
                let gid = |at: usize| Gid(ip[at..at + 16].try_into().unwrap());
                (gid(8), gid(24), &ip[40..])
            }
        };
        let path = Path { src, dst, traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None };
        let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        let captured = Captured { path, body: udp[8..len - ICRC_LEN].to_vec() };
        if captured.packet().bth.dest_qpn != 1 {
            packets.push(captured);
        }
    }
    packets
}

/// A queue pair in the place of one in the capture, that hears what came on `path` from `psn` on.
fn stand_in(first: &Captured, path: &Path, psn: u32) -> (Qp, Memory) {
    let packet = first.packet();
    let qp_type = match packet.service {
        Service::Rc => QpType::Rc,
        Service::Uc => QpType::Uc,
        _ => QpType::Ud,
    };
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 256,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    // The two QPs of each capture have the same number.
    let qpn = packet.bth.dest_qpn;
    let mut qp = Qp::new(QpConfig { qpn, qp_type, cap, sq_sig_all: true, srq: false });
    qp.set_ud_mtu(Mtu::M4096);
    let mut dev = Memory::default();
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let attr = QpAttr {
        port_num: 1,
        access: ALL,
        qkey: packet.deth.map_or(0, |deth| deth.qkey),
        path_mtu: Mtu::M4096,
        dest_qpn: qpn,
        rq_psn: psn,
        sq_psn: psn,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let (identity, to_rtr, to_rts) = match qp_type {
        QpType::Ud => (AttrMask::QKEY, AttrMask::empty(), AttrMask::empty()),
        QpType::Uc => (AttrMask::ACCESS_FLAGS, connected, AttrMask::empty()),
        QpType::Rc => (
            AttrMask::ACCESS_FLAGS,
            connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
            AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC,
        ),
        QpType::XrcSend | QpType::XrcRecv => panic!("no capture has XRC"),
    };
    for (state, mask) in [
        (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | identity),
        (QpState::Rtr, to_rtr),
        (QpState::Rts, AttrMask::SQ_PSN | to_rts),
    ] {
        let attr = QpAttr { state, ..attr };
        let back = Path { src: path.dst, dst: path.src, ..*path };
        let resolved = mask.contains(AttrMask::AV).then_some(back);
        qp.modify(&attr, AttrMask::STATE | mask, resolved, 0xffff, NOW, &mut dev).unwrap();
    }
    (qp, dev)
}

/// Registers what the requests of a capture access remotely, as their peer had it.
fn register(dev: &mut Memory, packets: &[Captured], requests_on: &Path) {
    let keys = packets.iter().filter(|captured| captured.path == *requests_on).filter_map(|c| {
        let packet = c.packet();
        let reth = packet.reth.map(|reth| (reth.va, reth.rkey));
        reth.or(packet.atomic.map(|atomic| (atomic.va, atomic.rkey)))
    });
    for (va, rkey) in keys {
        if dev.regions.iter().all(|region| region.rkey != rkey) {
            let index = dev.register(16_384, ALL);
            dev.regions[index].rkey = rkey;
            dev.regions[index].base = va;
        }
    }
}

/// Puts where atomics go what they found there first.
fn remember(dev: &mut Memory, packets: &[Captured]) {
    let mut known = Vec::new();
    for request in packets {
        let request = request.packet();
        let Some(atomic) = request.atomic else { continue };
        let answered = |captured: &Captured| {
            let packet = captured.packet();
            packet.atomic_ack.filter(|_| packet.bth.psn == request.bth.psn)
        };
        let value = packets.iter().find_map(answered).unwrap();
        if !known.contains(&atomic.va) {
            known.push(atomic.va);
            let at = (atomic.va - dev.regions[0].base) as usize;
            dev.regions[0].bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

const RELIABLE: [&str; 8] = [
    "ib_send_bw_rc",
    "ib_write_bw_rc",
    "ib_read_bw_rc",
    "ib_atomic_bw_rc",
    "ib_atomic_fa_rc",
    "rping_rc_rdmacm",
    "rping_ipv6",
    "ucmatose_rc_rdmacm",
];

#[test]
fn requests_of_rxe_are_answered_as_rxe_answered_them() {
    let mut compared = 0;
    for name in RELIABLE {
        let packets = capture(name);
        let mut ways: Vec<Path> = Vec::new();
        for captured in packets.iter().filter(|captured| captured.packet().op.is_request()) {
            if !ways.contains(&captured.path) {
                ways.push(captured.path);
            }
        }
        for way in ways {
            compared += answer_again(name, &packets, &way);
        }
    }
    assert!(compared > 90, "{compared} answers compared");
}

/// Gives the requests that went one way to a responder, and compares its answers. How many.
fn answer_again(name: &str, packets: &[Captured], way: &Path) -> usize {
    let is_request =
        |captured: &&Captured| captured.path == *way && captured.packet().op.is_request();
    let first = packets.iter().find(is_request).unwrap();
    let (mut qp, mut dev) = stand_in(first, way, first.packet().bth.psn);
    register(&mut dev, packets, way);
    let buffer = dev.register(16_384, ALL);
    let sge = dev.regions[buffer].sge(0, 16_384);
    for id in 0..200 {
        qp.post_recv(id, &[sge]).unwrap();
    }
    remember(&mut dev, packets);
    let mut answers = VecDeque::new();
    let mut compared = 0;
    for captured in packets {
        let packet = captured.packet();
        if captured.path == *way && packet.op.is_request() {
            qp.handle_packet(&packet, way, 0, NOW, &mut dev);
            let mut outbox = Outbox::new(100);
            qp.transmit(NOW, &mut dev, &mut outbox);
            answers.extend(outbox.packets);
        } else if captured.path != *way && packet.op.is_response() {
            let ours = answers.pop_front().unwrap_or_else(|| panic!("{name}: no {packet:?}"));
            let ours = ours.packet();
            // What was in memory is not known.
            let ours = Packet { payload: packet.payload, ..ours };
            assert_eq!(ours, packet, "{name}");
            compared += 1;
        }
    }
    assert!(answers.is_empty(), "{name}");
    assert_eq!(qp.state(), QpState::Rts, "{name}");
    compared
}

#[test]
fn requests_are_those_that_rxe_sends_byte_for_byte() {
    for name in [
        "ib_send_bw_rc",
        "ib_write_bw_rc",
        "ib_read_bw_rc",
        "ib_atomic_bw_rc",
        "ib_atomic_fa_rc",
        "ib_send_bw_uc",
        "ib_write_bw_uc",
        "ib_send_bw_ud",
    ] {
        ask_again(name, &capture(name));
    }
}

/// Posts what the capture shows to have been posted, and compares every packet.
fn ask_again(name: &str, packets: &[Captured]) {
    let first = &packets[0];
    let way = first.path;
    let back = Path { src: way.dst, dst: way.src, ..way };
    let (mut qp, mut dev) = stand_in(first, &back, first.packet().bth.psn);
    let buffer = dev.register(1 << 20, ALL);
    let mut posted = 0;
    let mut at = 0;
    let mut start = 0;
    let mut request: Option<SendWr> = None;
    for captured in packets.iter().filter(|captured| captured.path == way) {
        let packet = captured.packet();
        let region = &mut dev.regions[buffer];
        region.bytes[at..at + packet.payload.len()].copy_from_slice(packet.payload);
        at += packet.payload.len();
        let request_now = request.get_or_insert_with(|| beginning(&packet, &way));
        if packet.op.is_last() {
            let len = match packet.op {
                Op::ReadRequest => packet.reth.unwrap().len as usize,
                Op::CompareSwap | Op::FetchAdd => 8,
                _ => at - start,
            };
            let sge: Sge = region.sge(start as u32, len as u32);
            qp.post_send(request_now, Payload::Sges(&[sge])).unwrap();
            posted += 1;
            request = None;
            start = at;
        }
    }
    let mut sent = VecDeque::new();
    for captured in packets {
        if captured.path != way {
            qp.handle_packet(&captured.packet(), &captured.path, 0, NOW, &mut dev);
            continue;
        }
        if sent.is_empty() {
            let mut outbox = Outbox::new(100);
            qp.transmit(NOW, &mut dev, &mut outbox);
            sent.extend(outbox.packets);
        }
        let ours = sent.pop_front().unwrap_or_else(|| panic!("{name}: not sent"));
        let mut body = ours.bytes[..ours.bytes.len() - ICRC_LEN].to_vec();
        if captured.packet().service != Service::Rc {
            // rxe asks for acknowledgements also where there are none (IBA 9.2).
            body[8] = captured.body[8];
        }
        assert_eq!(body, captured.body, "{name}: {:?}", ours.packet().bth);
    }
    for _ in 0..posted {
        assert_eq!(dev.take(Queue::Send).map(|wc| wc.status), Some(WcStatus::Success), "{name}");
    }
    assert!(posted >= 5, "{name}");
}

/// The request whose first packet this is.
fn beginning(packet: &Packet<'_>, way: &Path) -> SendWr {
    let opcode = match packet.op {
        Op::WriteFirst | Op::WriteOnly => WrOpcode::Write,
        Op::ReadRequest => WrOpcode::Read,
        Op::CompareSwap => WrOpcode::CompareSwap,
        Op::FetchAdd => WrOpcode::FetchAdd,
        _ => WrOpcode::Send,
    };
    let mut request = wr(1, opcode);
    if let Some(reth) = packet.reth {
        request.remote_addr = reth.va;
        request.rkey = reth.rkey;
    }
    if let Some(atomic) = packet.atomic {
        request.remote_addr = atomic.va;
        request.rkey = atomic.rkey;
        let swap = opcode == WrOpcode::CompareSwap;
        request.compare_add = if swap { atomic.compare } else { atomic.swap_add };
        request.swap = atomic.swap_add;
    }
    request.ud =
        packet.deth.map(|deth| UdDest { path: *way, qpn: packet.bth.dest_qpn, qkey: deth.qkey });
    request
}
