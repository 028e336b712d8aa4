//! Damage in what the ICRC covers is found.

use std::collections::HashSet;

use ironverbs_wire::icrc::{self, Verdict};
use ironverbs_wire::{Gid, Path};

use crate::pcap::{Captured, all};

/// BTH byte with FECN and BECN, outside the ICRC.
const UNCOVERED: usize = 4;

/// One packet of every opcode, length and address family.
fn sample() -> Vec<Captured> {
    let mut seen = HashSet::new();
    let mut packets = all();
    packets.retain(|captured| {
        seen.insert((captured.payload[0], captured.payload.len(), captured.path.is_ipv4()))
    });
    assert!(packets.len() >= 25, "{} kinds", packets.len());
    packets
}

fn verify(captured: &Captured, payload: &[u8], max_ident: u16) -> Verdict {
    icrc::verify(&captured.path, captured.src_port, captured.dst_port, payload, max_ident)
}

/// The packet as if sent with another Identification.
fn renumbered(captured: &Captured, ident: u16) -> Vec<u8> {
    let Captured { path, src_port, dst_port, .. } = captured;
    let body = captured.body();
    let icrc = icrc::compute(path, *src_port, *dst_port, ident, body);
    [body, &icrc.to_le_bytes()].concat()
}

#[test]
fn any_wrong_bit_of_the_udp_payload() {
    for captured in sample() {
        let mut payload = captured.payload.clone();
        let good = Verdict::Good { ident: captured.ident };
        for bit in 0..payload.len() * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            let expected = if bit / 8 == UNCOVERED { good } else { Verdict::Bad };
            assert_eq!(verify(&captured, &payload, 0xffff), expected, "{} {bit}", captured.name);
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(verify(&captured, &payload, 0xffff), good);
    }
}

#[test]
fn any_wrong_bit_of_addresses_and_ports() {
    for captured in sample() {
        let Captured { name, path, src_port, dst_port, payload, .. } = &captured;
        let verify = |path: &Path, src_port, dst_port| {
            icrc::verify(path, src_port, dst_port, payload, 0xffff)
        };
        // A flip in the first 96 bits of a mapped address would make it IPv6.
        for bit in if path.is_ipv4() { 96..128 } else { 0..128 } {
            let flip =
                |gid: Gid| Gid((u128::from_be_bytes(gid.0) ^ 1 << (127 - bit)).to_be_bytes());
            let src = Path { src: flip(path.src), ..*path };
            assert_eq!(verify(&src, *src_port, *dst_port), Verdict::Bad, "{name} source {bit}");
            let dst = Path { dst: flip(path.dst), ..*path };
            assert_eq!(verify(&dst, *src_port, *dst_port), Verdict::Bad, "{name} dest. {bit}");
        }
        for bit in 0..16 {
            let flip = 1 << bit;
            assert_eq!(verify(path, src_port ^ flip, *dst_port), Verdict::Bad, "{name} {bit}");
            assert_eq!(verify(path, *src_port, dst_port ^ flip), Verdict::Bad, "{name} {bit}");
        }
        let family = if path.is_ipv4() {
            Path { src: "fe80::1".parse().unwrap(), dst: "fe80::2".parse().unwrap(), ..*path }
        } else {
            Path { dst: "192.0.2.1".parse().unwrap(), ..*path }
        };
        assert_eq!(verify(&family, *src_port, *dst_port), Verdict::Bad, "{name}");
    }
}

#[test]
fn what_routers_change_is_not_covered() {
    for captured in sample() {
        let path = Path { traffic_class: 0xa5, hop_limit: 1, flow_label: 0xabcde, ..captured.path };
        let Captured { src_port, dst_port, payload, ident, .. } = &captured;
        assert_eq!(
            icrc::verify(&path, *src_port, *dst_port, payload, 0xffff),
            Verdict::Good { ident: *ident }
        );
    }
}

#[test]
fn a_wrong_length() {
    for captured in sample() {
        let payload = &captured.payload;
        assert_eq!(verify(&captured, &payload[..payload.len() - 4], 0xffff), Verdict::Bad);
        assert_eq!(verify(&captured, &payload[4..], 0xffff), Verdict::Bad);
        let longer = [payload.as_slice(), &[0; 4]].concat();
        assert_eq!(verify(&captured, &longer, 0xffff), Verdict::Bad);
    }
}

/// Bursts of 2 to 32 bits at every place, a few patterns of each length. Over IPv6 every one must
/// be found. Over IPv4 some look like another Identification, as many as the strength left says.
#[test]
fn bursts() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for captured in sample() {
        let long = captured.payload.len() > 1024;
        let payload = renumbered(&captured, 0);
        let (mut bursts, mut missed, mut missed_63) = (0u32, 0u32, 0u32);
        for first in 0..payload.len() * 8 - 32 {
            // All lengths everywhere would take minutes in the 4 KiB packets.
            for len in (2..=32).filter(|len| !long || (first + len) % 8 == 0) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let inner = random & ((1 << (len - 1)) - 1);
                let burst = 1 << (len - 1) | inner | 1;
                let mut damaged = payload.clone();
                let at = first / 8;
                let end = (at + 8).min(damaged.len());
                for (byte, wrong) in
                    damaged[at..end].iter_mut().zip((burst << (first % 8)).to_le_bytes())
                {
                    *byte ^= wrong;
                }
                damaged[UNCOVERED] = payload[UNCOVERED];
                if damaged == payload {
                    continue;
                }
                bursts += 1;
                match verify(&captured, &damaged, 0xffff) {
                    Verdict::Bad => {}
                    Verdict::Good { ident: 0 } => panic!("{} bit {first}: unseen", captured.name),
                    Verdict::Good { ident } => {
                        missed += 1;
                        missed_63 += u32::from(ident <= 63);
                    }
                }
            }
        }
        assert!(captured.path.is_ipv4() || missed == 0, "{}: {missed} missed", captured.name);
        assert!(missed <= 8 + bursts / 8192, "{}: {missed} of {bursts} missed", captured.name);
        assert!(missed_63 <= 1, "{}: {missed_63} of {bursts} missed", captured.name);
    }
}
