//! What holds of any packet.

use ironverbs_wire::icrc::{self, Prefix, Verdict};
use ironverbs_wire::{
    Aeth, AtomicEth, Bth, Deth, Gid, Op, Opcode, Packet, ParseError, Path, Reth, Service, XrcEth,
    grh, peek_dest_qpn, psn,
};
use proptest::prelude::*;

const U24: std::ops::RangeInclusive<u32> = 0..=0xff_ffff;

fn kind() -> impl Strategy<Value = (Service, Op)> {
    let valid: Vec<_> = (0..=255).filter_map(|opcode| Opcode(opcode).split()).collect();
    prop::sample::select(valid)
}

prop_compose! {
    fn bth(service: Service, op: Op, payload_len: usize)(
        (solicited, migrated, fecn, becn, ack_req) in any::<(bool, bool, bool, bool, bool)>(),
        pkey in any::<u16>(),
        dest_qpn in U24,
        psn in U24,
    ) -> Bth {
        Bth {
            opcode: Opcode::new(service, op),
            solicited, migrated, fecn, becn, ack_req, pkey, dest_qpn, psn,
            pad: (payload_len.wrapping_neg() % 4) as u8,
            tver: 0,
        }
    }
}

prop_compose! {
    fn extended(service: Service, op: Op, payload: &'static [u8])(
        bth in bth(service, op, payload.len()),
        (va, rkey, len) in any::<(u64, u32, u32)>(),
        (swap_add, compare, original) in any::<(u64, u64, u64)>(),
        (syndrome, qkey, imm, ieth) in any::<(u8, u32, [u8; 4], u32)>(),
        (msn, src_qpn, srqn) in (U24, U24, U24),
    ) -> Packet<'static> {
        Packet {
            bth,
            op,
            service,
            reth: op.has_reth().then_some(Reth { va, rkey, len }),
            atomic: op.has_atomic_eth().then_some(AtomicEth { va, rkey, swap_add, compare }),
            aeth: op.has_aeth().then_some(Aeth { syndrome, msn }),
            atomic_ack: (op == Op::AtomicAck).then_some(original),
            deth: (service == Service::Ud).then_some(Deth { qkey, src_qpn }),
            xrceth: (service == Service::Xrc && op.is_request()).then_some(XrcEth { srqn }),
            imm: op.has_imm().then_some(imm),
            ieth: op.has_ieth().then_some(ieth),
            payload,
        }
    }
}

fn packet() -> impl Strategy<Value = Packet<'static>> {
    static PAYLOAD: [u8; 300] = [0x5a; 300];
    (kind(), 0..=PAYLOAD.len()).prop_flat_map(|((service, op), len)| {
        extended(service, op, if op.has_payload() { &PAYLOAD[..len] } else { &[] })
    })
}

fn emit(packet: &Packet) -> Vec<u8> {
    let mut out = vec![0; 64];
    let len = packet.emit_header(&mut out);
    out.truncate(len);
    out.extend_from_slice(packet.payload);
    out.resize(out.len() + usize::from(packet.bth.pad), 0);
    out
}

fn path() -> impl Strategy<Value = Path> {
    let v4 = any::<([u8; 4], [u8; 4])>()
        .prop_map(|(src, dst)| (Gid::from_ipv4(src.into()), Gid::from_ipv4(dst.into()), true));
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| (Gid(src), Gid(dst), false));
    let label = 0..=0xf_ffff_u32;
    (prop_oneof![v4, v6], any::<(u8, u8)>(), label).prop_map(
        |((src, dst, v4), (traffic_class, hop_limit), label)| Path {
            src,
            dst,
            traffic_class,
            hop_limit,
            flow_label: if v4 { 0 } else { label },
            ib: None,
        },
    )
}

/// The ICRC written down as the annex has it: the packet with ones, one bit at a time.
fn plain_icrc(path: &Path, src_port: u16, dst_port: u16, ident: u16, body: &[u8]) -> u32 {
    let udp_len = (8 + body.len() + 4) as u16;
    let mut bytes = vec![0xff; 8];
    if path.is_ipv4() {
        bytes.extend([0x45, 0xff]);
        bytes.extend((20 + udp_len).to_be_bytes());
        bytes.extend(ident.to_be_bytes());
        bytes.extend([0x40, 0x00, 0xff, 17, 0xff, 0xff]);
        bytes.extend(&path.src.0[12..]);
        bytes.extend(&path.dst.0[12..]);
    } else {
        bytes.extend([0x6f, 0xff, 0xff, 0xff]);
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([17, 0xff]);
        bytes.extend(path.src.0);
        bytes.extend(path.dst.0);
    }
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(dst_port.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    bytes.extend(&body[..4]);
    bytes.push(0xff);
    bytes.extend(&body[5..]);
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

proptest! {
    #[test]
    fn parse_undoes_emit(packet in packet()) {
        let bytes = emit(&packet);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
        prop_assert_eq!(peek_dest_qpn(&bytes), Some(packet.bth.dest_qpn));
    }

    #[test]
    fn a_cut_packet_is_shorter_or_an_error(packet in packet(), cut in 1usize..340) {
        let bytes = emit(&packet);
        let left = &bytes[..bytes.len().saturating_sub(cut)];
        match Packet::parse(left) {
            Ok(shorter) => prop_assert!(shorter.payload.len() < packet.payload.len()),
            Err(ParseError::Truncated { len, need }) => {
                prop_assert_eq!(len, left.len());
                prop_assert!(len < need);
            }
            Err(_) => {}
        }
    }

    /// With a room too small nothing is written, with an extended header missing likewise.
    #[test]
    fn emit_refuses_what_it_cannot_write(packet in packet()) {
        let need = Packet::header_len(packet.service, packet.op);
        prop_assert_eq!(packet.emit_header(&mut vec![0; need - 1]), 0);
        prop_assert_eq!(packet.emit_header(&mut vec![0; need]), need);
        let bare = Packet {
            reth: None, atomic: None, aeth: None, atomic_ack: None, deth: None, imm: None,
            xrceth: None, ieth: None, ..packet
        };
        let len = bare.emit_header(&mut [0; 64]);
        prop_assert_eq!(len, if need == Bth::LEN { need } else { 0 });
    }

    #[test]
    fn parse_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            // Reserved bits and the bytes of the padding are not kept.
            let mut again = emit(&packet);
            let mut bytes = bytes.clone();
            bytes[4] &= 0xc0;
            bytes[8] &= 0x80;
            if packet.service == Service::Ud {
                bytes[16] = 0;
            }
            if packet.xrceth.is_some() {
                bytes[12] = 0;
            }
            let pad = bytes.len() - usize::from(packet.bth.pad);
            bytes[pad..].fill(0);
            again[pad..].fill(0);
            prop_assert_eq!(again, bytes);
        }
    }

    /// Random bytes seldom begin like a packet.
    #[test]
    fn parse_takes_anything_after_an_opcode(
        (service, op) in kind(),
        bytes in prop::collection::vec(any::<u8>(), 2..80),
    ) {
        let mut bytes = bytes;
        bytes[0] = Opcode::new(service, op).0;
        bytes[1] &= 0xf0;
        bytes.truncate(bytes.len() / 4 * 4);
        match Packet::parse(&bytes) {
            Ok(packet) => prop_assert_eq!((packet.service, packet.op), (service, op)),
            Err(ParseError::Truncated { need, .. }) => prop_assert!(bytes.len() < need),
            Err(ParseError::Pad { pad, len }) => prop_assert!(usize::from(pad) > len),
            Err(ParseError::UnexpectedPayload { .. }) => prop_assert!(!op.has_payload()),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn the_icrc_is_that_of_the_annex(
        path in path(),
        ports in any::<(u16, u16)>(),
        ident in any::<u16>(),
        body in prop::collection::vec(any::<u8>(), 12..600),
    ) {
        let expected = plain_icrc(&path, ports.0, ports.1, ident, &body);
        prop_assert_eq!(icrc::compute(&path, ports.0, ports.1, ident, &body), expected);
        let prefix = Prefix::new(&path, ports.0, ports.1, body.len());
        prop_assert_eq!(prefix.compute(ident, &body), expected);

        let packet = [body.as_slice(), &expected.to_le_bytes()].concat();
        let verify = |max_ident| icrc::verify(&path, ports.0, ports.1, &packet, max_ident);
        let ident = if path.is_ipv4() { ident } else { 0 };
        prop_assert_eq!(verify(0xffff), Verdict::Good { ident });
        prop_assert_eq!(verify(ident), Verdict::Good { ident });
        prop_assert_eq!(verify(63) == Verdict::Bad, ident > 63);
    }

    #[test]
    fn verify_takes_anything(
        path in path(),
        packet in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        prop_assert_eq!(icrc::verify(&path, 1, 4791, &packet, 0), Verdict::Bad);
    }

    #[test]
    fn a_ud_header_tells_its_path(path in path(), udp_len in any::<u16>()) {
        prop_assert_eq!(grh::path_of(&grh::ud_header(&path, udp_len)), Some(path));
    }

    #[test]
    fn path_of_takes_anything(bytes in any::<[u8; 40]>()) {
        if let Some(path) = grh::path_of(&bytes) {
            prop_assert!(path.is_ipv4() || bytes[0] >> 4 == 6);
        }
    }

    #[test]
    fn gids_survive_text_and_addresses(bytes in any::<[u8; 16]>(), v4 in any::<[u8; 4]>()) {
        for gid in [Gid(bytes), Gid::from_ipv4(v4.into())] {
            prop_assert_eq!(gid.to_string().len(), 39);
            prop_assert_eq!(gid.to_string().parse(), Ok(gid));
            prop_assert_eq!(Gid::from_ip(gid.to_ip()), gid);
        }
    }

    #[test]
    fn psn_distance_undoes_addition(a in U24, n in U24) {
        prop_assert_eq!(psn::sub(psn::add(a, n), a), n);
        prop_assert_eq!(psn::add(a, psn::diff(n, a) as u32), n);
        prop_assert_eq!(psn::lt(a, n), psn::diff(n, a) > 0 || psn::diff(a, n) == -0x80_0000);
    }
}
