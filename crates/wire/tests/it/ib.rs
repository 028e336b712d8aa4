//! InfiniBand packets in UDP: formats, both CRCs, damage.

use ironverbs_wire::ib::{
    self, ENCAPSULATION, Grh, Lrh, OpenError, TRAILER, head_len, is_datagram, open, seal,
};
use ironverbs_wire::{Gid, IbRoute, Path};
use proptest::prelude::*;

/// An RC acknowledgement on a local path; its CRCs were worked out by another program, bit by bit.
const ACK: [u8; 30] = [
    0x00, 0x02, 0x00, 0x01, 0x00, 0x07, 0x00, 0x02, 0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x18, 0x71,
    0x00, 0xe5, 0x5c, 0x94, 0x1f, 0x00, 0x00, 0x01, 0xe7, 0x14, 0xe9, 0x7b, 0x29, 0xd6,
];

#[test]
fn a_known_packet() {
    let route = IbRoute { slid: 2, dlid: 1, sl: 0, grh: false };
    let path = Path { ib: Some(route), ..Path::default() };
    let mut datagram = vec![0; ENCAPSULATION + ACK.len()];
    let body = head_len(&route)..ENCAPSULATION + ACK.len() - TRAILER;
    datagram[body.clone()].copy_from_slice(&ACK[8..24]);
    assert!(seal(&path, &mut datagram));
    assert_eq!(datagram[ENCAPSULATION..], ACK);
    assert_eq!(datagram[5..8], ACK[13..16], "the QPN is where a BTH has it");
    assert_eq!(open(&datagram), Ok((path, &ACK[8..24])));
}

/// The CRCs as IBA 7.8 has them, one bit at a time, of a packet from the LRH on.
fn plain(packet: &[u8], grh: bool) -> (u32, u16) {
    let mut masked = packet.to_vec();
    masked[0] |= 0xf0;
    let bth = if grh { 48 } else { 8 };
    if grh {
        masked[8] |= 0x0f;
        masked[9..12].fill(0xff);
        masked[15] = 0xff;
    }
    masked[bth + 4] = 0xff;
    let crc = |bytes: &[u8], polynomial: u32, width: u32| {
        let reflected = polynomial.reverse_bits() >> (32 - width);
        let ones = u32::MAX >> (32 - width);
        let mut register = ones;
        for bit in bytes.iter().flat_map(|byte| (0..8).map(move |i| u32::from(byte >> i & 1))) {
            let feed = (register ^ bit) & 1 != 0;
            register = register >> 1 ^ if feed { reflected } else { 0 };
        }
        register ^ ones
    };
    let icrc = crc(&masked, 0x04c1_1db7, 32);
    let whole = [packet, &icrc.to_le_bytes()].concat();
    (icrc, crc(&whole, 0x100b, 16) as u16)
}

fn path() -> impl Strategy<Value = Path> {
    let gids = any::<([u8; 16], [u8; 16])>();
    let lids = any::<(u16, u16, bool)>();
    (gids, lids, 0..16_u8, any::<(u8, u8)>(), 0..=0xf_ffff_u32).prop_map(
        |((src, dst), (slid, dlid, grh), sl, (traffic_class, hop_limit), flow_label)| {
            let ib = Some(IbRoute { slid, dlid, sl, grh });
            match grh {
                true => {
                    Path { src: Gid(src), dst: Gid(dst), traffic_class, hop_limit, flow_label, ib }
                }
                false => Path { ib, ..Path::default() },
            }
        },
    )
}

fn sealed(path: &Path, body: &[u8]) -> Vec<u8> {
    let head = head_len(&path.ib.unwrap());
    let mut datagram = vec![0; head + body.len() + TRAILER];
    datagram[head..head + body.len()].copy_from_slice(body);
    assert!(seal(path, &mut datagram));
    datagram
}

proptest! {
    #[test]
    fn what_was_sealed_opens(path in path(), words in proptest::collection::vec(any::<[u8; 4]>(), 3..200)) {
        let body = words.concat();
        let datagram = sealed(&path, &body);
        prop_assert!(is_datagram(&datagram));
        prop_assert_eq!(open(&datagram), Ok((path, &body[..])));
        let packet = &datagram[ENCAPSULATION..];
        let (covered, trailer) = packet.split_at(packet.len() - TRAILER);
        let grh = path.ib.unwrap().grh;
        let (icrc, vcrc) = plain(covered, grh);
        prop_assert_eq!(trailer, [&icrc.to_le_bytes()[..], &vcrc.to_le_bytes()].concat());
        prop_assert_eq!(ib::vcrc(&packet[..packet.len() - 2]), vcrc);
    }

    #[test]
    fn any_damage_is_seen(path in path(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut datagram = sealed(&path, &[7; 64]);
        let at = at.index(datagram.len());
        datagram[at] ^= 1 << bit;
        prop_assert!(open(&datagram).is_err());
    }

    #[test]
    fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let claimed = [&[0xf1, 0x0f, b'I', b'B', 0, 0, 0, 0], &bytes[..]].concat();
        let _ = (open(&bytes), open(&claimed));
    }
}

#[test]
fn headers_come_out_as_they_went_in() {
    let lrh = Lrh { vl: 15, sl: 9, grh: true, dlid: 0xc001, slid: 7, words: 0x7ff };
    assert_eq!(lrh.emit(), [0xf0, 0x93, 0xc0, 0x01, 0x07, 0xff, 0x00, 0x07]);
    assert_eq!(Lrh::parse(&lrh.emit()), Some(lrh));
    assert_eq!(Lrh::parse(&[0x01, 2, 0, 1, 0, 7, 0, 2]), None, "link version");
    assert_eq!(Lrh::parse(&[0, 1, 0, 1, 0, 7, 0, 2]), None, "raw");
    let grh = Grh { traffic_class: 0xab, flow_label: 0x1_2345, payload: 0x0102, ..Grh::default() };
    assert_eq!(grh.emit()[..8], [0x6a, 0xb1, 0x23, 0x45, 1, 2, 0x1b, 0]);
    assert_eq!(Grh::parse(&grh.emit()), Some(grh));
    assert_eq!(Grh::parse(&[0x60; 40]), None, "next header");
}

#[test]
fn what_is_no_packet_is_not_sealed_or_opened() {
    let path = Path { ib: Some(IbRoute::default()), ..Path::default() };
    assert!(!seal(&path, &mut [0; 33]), "shorter than a BTH");
    assert!(!seal(&path, &mut [0; 35]), "no multiple of four");
    assert!(!seal(&path, &mut vec![0; 9000]), "longer than the length field can say");
    assert!(!seal(&Path::default(), &mut [0; 64]), "no route");
    let good = sealed(&path, &[1; 16]);
    for len in 0..good.len() {
        assert_eq!(open(&good[..len]), Err(OpenError::Malformed), "{len}");
    }
    let last = good.len() - 1;
    let mut vcrc = good.clone();
    vcrc[last] ^= 1;
    assert_eq!(open(&vcrc), Err(OpenError::Vcrc));
    let mut icrc = good.clone();
    icrc[last - 2] ^= 1;
    let fixed = ib::vcrc(&icrc[ENCAPSULATION..last - 1]).to_le_bytes();
    icrc[last - 1..].copy_from_slice(&fixed);
    assert_eq!(open(&icrc), Err(OpenError::Icrc));
}
