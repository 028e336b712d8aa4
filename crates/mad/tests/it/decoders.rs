//! Every message there is, as a packet for a decoder that is not ours.

use std::collections::BTreeSet;

use ironverbs_mad::{Accept, Event, LocalAddr, Resolve, SidrAnswer};
use ironverbs_wire::mad::cm::{Lap, Message, PortSpace, RejReason, ServiceId, SidrStatus};
use ironverbs_wire::mad::gmp;
use ironverbs_wire::{Packet, Path, ROCE_PORT, icrc};

use crate::support::{CLIENT, GUIDS, SERVER, World, gid, header, names, path, request};

const UDP: ServiceId = ServiceId::of_port(PortSpace::Udp, 7174);

/// The port that the packets come from.
const SRC_PORT: u16 = 0x8000;

/// A world in which each kind of message was sent.
fn everything() -> World {
    let mut world = World::listening();
    world.cms[SERVER].listen(UDP, LocalAddr::Any, 4).unwrap();
    let [client, server] = world.connected();
    // We ask for no alternate path, but are asked.
    let lap = Lap {
        local_comm_id: client.comm_id(),
        remote_comm_id: server.comm_id(),
        remote_qpn: 0x200,
        remote_cm_response_timeout: 20,
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid(CLIENT),
        remote_gid: gid(SERVER),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        packet_rate: 16,
        sl: 0,
        subnet_local: true,
        ack_timeout: 18,
        private_data: [0; Lap::PRIVATE_DATA],
    };
    world.trace.push((CLIENT, Message::Lap(lap)));
    world.inject(SERVER, 99, Message::Lap(lap));
    world.settle();
    world.cms[CLIENT].disconnect(world.now, client, b"bye").unwrap();
    world.settle();
    world.events(CLIENT);
    world.events(SERVER);

    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x101)).unwrap();
    world.settle();
    let asked = world.request_event().conn;
    world.cms[SERVER].ask_patience(asked, 20).unwrap();
    world.settle();
    world.cms[SERVER].reject(world.now, asked, RejReason::ConsumerReject, &[], b"no").unwrap();
    world.settle();
    world.events(CLIENT);

    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x102)).unwrap();
    world.settle();
    let asked = world.request_event().conn;
    let accept = Accept { private_data: b"welcome", ..Accept::new(GUIDS[SERVER], 0x202) };
    world.cms[SERVER].accept(world.now, asked, &accept).unwrap();
    world.settle();

    let resolve = Resolve { ip: Some(header(CLIENT)), ..Resolve::new(path(CLIENT), UDP) };
    world.cms[CLIENT].resolve(world.now, &resolve).unwrap();
    world.settle();
    let Event::SidrRequest(found) = world.event(SERVER) else { panic!() };
    let answer =
        SidrAnswer { status: SidrStatus::VALID, qpn: 0x300, qkey: 1, private_data: b"here" };
    world.cms[SERVER].sidr_answer(world.now, found.sidr, &answer).unwrap();
    world.settle();
    world
}

/// A frame as an interface shows it: Ethernet, IPv4, UDP, and the packet with its ICRC.
fn frame(path: &Path, packet: &Packet<'_>) -> Vec<u8> {
    let mut body = vec![0; Packet::header_len(packet.service, packet.op)];
    assert_eq!(packet.emit_header(&mut body), body.len());
    body.extend_from_slice(packet.payload);
    let crc = icrc::compute(path, SRC_PORT, ROCE_PORT, 0, &body);
    body.extend(crc.to_le_bytes());

    let mut udp = [SRC_PORT, ROCE_PORT, 8 + body.len() as u16, 0].map(u16::to_be_bytes).concat();
    udp.extend(body);
    // Version, traffic class, length; identification 0, not to be fragmented; hops, UDP, no checksum yet.
    let mut ip = vec![0x45, path.traffic_class];
    ip.extend((20 + udp.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, path.hop_limit, 17, 0, 0]);
    ip.extend_from_slice(&path.src.0[12..]);
    ip.extend_from_slice(&path.dst.0[12..]);
    let words = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &udp].concat()
}

/// As pcap(5) has it, Ethernet.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1_u32] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in (0_u32..).zip(frames) {
        let len = frame.len() as u32;
        for word in [number, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// `IRONVERBS_PCAP`: where to leave them for tshark.
#[test]
fn every_message_is_sent() {
    let world = everything();
    let kinds: BTreeSet<_> = names(&world).into_iter().map(|(_, name)| name).collect();
    let all =
        ["APR", "DREP", "DREQ", "LAP", "MRA", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"];
    // The last is established by nobody: its RTU is of the first.
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all);
    let frames: Vec<_> = (0..)
        .zip(&world.trace)
        .map(|(psn, (side, message))| {
            let mad = message.emit(0x1234_0000 + u64::from(psn));
            frame(&path(*side), &gmp(0xffff, psn, &mad))
        })
        .collect();
    if let Some(to) = std::env::var_os("IRONVERBS_PCAP") {
        std::fs::write(to, capture(&frames)).unwrap();
    }
}
