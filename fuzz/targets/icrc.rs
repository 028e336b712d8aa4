//! Any bytes as a packet with its ICRC: checking never panics; what is computed is found right, and
//! found wrong with one bit flipped.
//!
//! Input: an octet whose lowest bit chooses IPv6, source and destination address (16 octets each),
//! source port, destination port, Identification (2 each, big-endian), the UDP payload.
#![no_main]

use ironverbs_wire::icrc::{self, Verdict};
use ironverbs_wire::{Gid, Path};
use libfuzzer_sys::fuzz_target;
use std::net::Ipv4Addr;

const PREFIX: usize = 1 + 16 + 16 + 6;
/// FECN, BECN and reserved bits of the BTH, which the ICRC leaves out.
const MASKED_OCTET: usize = 4;

fuzz_target!(|data: &[u8]| {
    let Some((prefix, packet)) = data.split_first_chunk::<PREFIX>() else { return };
    let [family, fields @ ..] = prefix;
    let ipv4 = family & 1 == 0;
    let gid = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&fields[at..at + 16]);
        match octets {
            [.., a, b, c, d] if ipv4 => Gid::from_ipv4(Ipv4Addr::new(a, b, c, d)),
            _ => Gid(octets),
        }
    };
    let number = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
    let path = Path { src: gid(0), dst: gid(16), ..Path::default() };
    let (src_port, dst_port, ident) = (number(32), number(34), number(36));

    for max_ident in [0, 63, 0xffff] {
        let _ = icrc::verify(&path, src_port, dst_port, packet, max_ident);
    }

    if packet.len() < 12 || packet.len() > 9000 {
        return;
    }
    let crc = icrc::compute(&path, src_port, dst_port, ident, packet);
    let mut sealed = [packet, &crc.to_le_bytes()].concat();
    let ident = if path.is_ipv4() { ident } else { 0 };
    let verdict = icrc::verify(&path, src_port, dst_port, &sealed, 0xffff);
    assert_eq!(verdict, Verdict::Good { ident });

    let bit = usize::from(*family >> 1) * sealed.len() * 8 / 128;
    let octet = bit / 8;
    if octet != MASKED_OCTET {
        sealed[octet] ^= 1 << (bit % 8);
        let verdict = icrc::verify(&path, src_port, dst_port, &sealed, 0xffff);
        assert_eq!(verdict, Verdict::Bad, "bit {bit} flipped");
    }
});
