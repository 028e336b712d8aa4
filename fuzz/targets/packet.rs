//! Any bytes as a packet: parsing never panics, and what it accepts is written back as it was.
#![no_main]

use ironverbs_wire::{Packet, peek_dest_qpn};
use libfuzzer_sys::fuzz_target;

/// Octets of the BTH that carry no field of ours: reserved bits, which the parser may drop.
fn without_reserved(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (octet, mask) in [(4, 0b1100_0000), (8, 0b1000_0000)] {
        if let Some(byte) = bytes.get_mut(octet) {
            *byte &= mask;
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let qpn = peek_dest_qpn(data);
    let Ok(packet) = Packet::parse(data) else { return };
    assert_eq!(qpn, Some(packet.bth.dest_qpn));
    let len = Packet::header_len(packet.service, packet.op);
    assert_eq!(len + packet.payload.len() + usize::from(packet.bth.pad), data.len());
    let mut out = [0; 64];
    assert_eq!(packet.emit_header(&mut out), len);
    // Reserved octets of extended headers (AETH and DETH have some) are compared by meaning.
    let head = out.get(..len).unwrap_or_default();
    assert_eq!(without_reserved(&head[..12]), without_reserved(&data[..12]));
    let again = [head, data.get(len..).unwrap_or_default()].concat();
    assert_eq!(Packet::parse(&again), Ok(packet));
});
