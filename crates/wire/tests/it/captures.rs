//! What kernel rxe sent is understood, and would be sent alike.

use std::collections::BTreeSet;

use ironverbs_wire::icrc::{self, Prefix, Verdict};
use ironverbs_wire::{Opcode, Packet, ROCE_PORT, Service, Syndrome, grh, peek_dest_qpn};

use crate::pcap::{Captured, all};

#[test]
fn every_packet_parses_and_is_emitted_byte_for_byte() {
    let packets = all();
    assert_eq!(packets.len(), 299);
    for captured in &packets {
        let name = &captured.name;
        assert_eq!(captured.dst_port, ROCE_PORT, "{name}");
        let packet = Packet::parse(captured.body()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut out = vec![0xaa; captured.body().len()];
        let len = packet.emit_header(&mut out);
        assert_eq!(len, Packet::header_len(packet.service, packet.op), "{name}");
        out[len..][..packet.payload.len()].copy_from_slice(packet.payload);
        out[len + packet.payload.len()..].fill(0);
        assert_eq!(out, captured.body(), "{name}: {packet:?}");

        assert_eq!(peek_dest_qpn(&captured.payload), Some(packet.bth.dest_qpn), "{name}");
        assert_eq!(packet.bth.pkey, 0xffff, "{name}");
        if let Some(aeth) = packet.aeth {
            assert!(
                matches!(Syndrome::from_u8(aeth.syndrome), Some(Syndrome::Ack { .. })),
                "{name}"
            );
        }
        if packet.bth.dest_qpn == 1 {
            assert_eq!(packet.payload.len(), 256, "{name}: a MAD");
        }
    }
}

/// If captures are exchanged, the tests above must not lose what they stand for.
#[test]
fn the_captures_hold_every_kind_of_packet_that_rxe_was_made_to_send() {
    let packets = all();
    let kinds: BTreeSet<_> = packets
        .iter()
        .filter_map(|captured| captured.body().first().copied())
        .map(|opcode| format!("{:?}", Opcode(opcode)))
        .collect();
    let expected = [
        "RC_ACK",
        "RC_ATOMIC_ACK",
        "RC_COMPARE_SWAP",
        "RC_FETCH_ADD",
        "RC_READ_REQUEST",
        "RC_READ_RESP_FIRST",
        "RC_READ_RESP_LAST",
        "RC_READ_RESP_ONLY",
        "RC_SEND_FIRST",
        "RC_SEND_LAST",
        "RC_SEND_ONLY",
        "RC_WRITE_FIRST",
        "RC_WRITE_LAST",
        "RC_WRITE_ONLY",
        "UC_SEND_FIRST",
        "UC_SEND_LAST",
        "UC_WRITE_FIRST",
        "UC_WRITE_LAST",
        "UD_SEND_ONLY",
        "UD_SEND_ONLY_IMM",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    assert!(packets.iter().any(|captured| captured.path.is_ipv4()));
    assert!(packets.iter().any(|captured| !captured.path.is_ipv4()));
}

#[test]
fn every_icrc_is_right_and_tells_the_identification() {
    let mut above_63 = 0;
    for captured in all() {
        let Captured { name, path, src_port, dst_port, ident, payload, .. } = &captured;
        let body = captured.body();
        assert_eq!(
            icrc::compute(path, *src_port, *dst_port, *ident, body),
            captured.icrc(),
            "{name}"
        );
        let prefix = Prefix::new(path, *src_port, *dst_port, body.len());
        assert_eq!(prefix.compute(*ident, body), captured.icrc(), "{name}");

        let verify = |max_ident| icrc::verify(path, *src_port, *dst_port, payload, max_ident);
        assert_eq!(verify(0xffff), Verdict::Good { ident: *ident }, "{name}");
        assert_eq!(verify(*ident), Verdict::Good { ident: *ident }, "{name}");
        if let Some(less) = ident.checked_sub(1) {
            assert_eq!(verify(less), Verdict::Bad, "{name}");
        }
        if *ident > 63 {
            above_63 += 1;
            assert_eq!(verify(63), Verdict::Bad, "{name}");
        }
    }
    assert!(above_63 > 200, "{above_63} packets with an Identification above 63");
}

#[test]
fn the_ud_header_is_the_ip_header_of_the_packet() {
    for captured in all() {
        let packet = Packet::parse(captured.body()).unwrap();
        if packet.service != Service::Ud {
            continue;
        }
        let udp_len = (captured.payload.len() + 8) as u16;
        let header = grh::ud_header(&captured.path, udp_len);
        if captured.path.is_ipv4() {
            // The Identification is not known to a UDP socket, and the checksum covers it.
            let mut expected = captured.ip[..20].to_vec();
            let checksum = u16::from_be_bytes([expected[10], expected[11]]);
            let (sum, carry) = checksum.overflowing_add(captured.ident);
            expected[4..6].fill(0);
            expected[10..12].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
            assert_eq!(header[..20], [0; 20], "{}", captured.name);
            assert_eq!(header[20..], expected, "{}", captured.name);
        } else {
            assert_eq!(header, captured.ip[..40], "{}", captured.name);
        }
        assert_eq!(grh::path_of(&header), Some(captured.path), "{}", captured.name);
    }
}
