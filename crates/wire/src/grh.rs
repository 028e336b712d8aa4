//! The 40 bytes that a UD receiver finds before its data.
//!
//! On InfiniBand they are the global routing header. On RoCEv2 they are the IPv6 header, or 20
//! bytes without meaning and the IPv4 header (IBA A17.4.5.1); here the former are zero.

use std::net::Ipv4Addr;

use crate::ib::Grh;
use crate::{Gid, Path};

/// Bytes before the data in every UD receive buffer.
pub const LEN: usize = 40;

const IPV4_OFFSET: usize = 20;
const UDP: u8 = 17;
const UDP_LEN: u16 = 8;

/// The bytes for a packet that came this way. `udp_len` is the length of UDP header and payload,
/// ICRC included.
///
/// On InfiniBand the bytes are the GRH if the packet had one, else zeros.
pub fn ud_header(path: &Path, udp_len: u16) -> [u8; LEN] {
    let mut out = [0; LEN];
    if let Some(route) = path.ib {
        return if route.grh { global(path, udp_len.saturating_sub(UDP_LEN)).emit() } else { out };
    }
    if path.is_ipv4() {
        let ip = &mut out[IPV4_OFFSET..];
        ip[0] = 0x45;
        ip[1] = path.traffic_class;
        ip[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
        ip[6] = 0x40; // don't fragment
        ip[8] = path.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&path.src.low_ipv4().octets());
        ip[16..20].copy_from_slice(&path.dst.low_ipv4().octets());
        let checksum = !ones_complement_sum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let version = 6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
        out[0..4].copy_from_slice(&version.to_be_bytes());
        out[4..6].copy_from_slice(&udp_len.to_be_bytes());
        out[6] = UDP;
        out[7] = path.hop_limit;
        out[8..24].copy_from_slice(&path.src.0);
        out[24..40].copy_from_slice(&path.dst.0);
    }
    out
}

fn global(path: &Path, payload: u16) -> Grh {
    Grh {
        traffic_class: path.traffic_class,
        flow_label: path.flow_label,
        payload,
        hop_limit: path.hop_limit,
        sgid: path.src,
        dgid: path.dst,
    }
}

/// What the completion of a datagram says in its service level, which a RoCE link has none of: the kind of header that
/// [`ud_header`] is (IBA A17.4.5.1 asks for a flag, ConnectX adapters give this value). 8 stands for UDP, 1 for
/// IPv6, 2 for IPv4. UCX 1.13 and older know by it where the destination's address is, and drop the datagram without.
pub fn packet_type(path: &Path) -> u8 {
    if path.is_ipv4() { 0b1010 } else { 0b1001 }
}

/// The path that such bytes tell of, whoever wrote them; `None` if they are no IP header.
///
/// The 20 bytes before an IPv4 header may be anything, even look like IPv6, so that a right IPv4
/// header is looked for first; its checksum tells it from the addresses of an IPv6 header. Where they
/// do not, it may be wrong: kernel rxe computes none for a datagram to its own host.
pub fn path_of(bytes: &[u8; LEN]) -> Option<Path> {
    let ip = &bytes[IPV4_OFFSET..];
    let like_ipv6 = bytes[0] >> 4 == 6;
    if ip[0] == 0x45 && (!like_ipv6 || ones_complement_sum(ip) == 0xffff) {
        let &[_, tos, _, _, _, _, _, _, ttl, _, _, _, a, b, c, d, e, f, g, h] = ip else {
            return None;
        };
        return Some(Path {
            src: Gid::from_ipv4(Ipv4Addr::new(a, b, c, d)),
            dst: Gid::from_ipv4(Ipv4Addr::new(e, f, g, h)),
            traffic_class: tos,
            hop_limit: ttl,
            flow_label: 0,
            ib: None,
        });
    }
    let (version, rest) = bytes.split_first_chunk()?;
    let version = u32::from_be_bytes(*version);
    if version >> 28 != 6 {
        return None;
    }
    let (src, rest) = rest.get(4..)?.split_first_chunk()?;
    let dst = rest.first_chunk()?;
    Some(Path {
        src: Gid(*src),
        dst: Gid(*dst),
        traffic_class: (version >> 20) as u8,
        hop_limit: bytes[7],
        flow_label: version & 0xf_ffff,
        ib: None,
    })
}

/// The sum of RFC 1071, 0xffff over a header whose checksum is right.
fn ones_complement_sum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) as u16 + (folded >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4() -> Path {
        Path {
            src: "192.168.0.1".parse().unwrap(),
            dst: "192.168.0.199".parse().unwrap(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ib: None,
        }
    }

    /// The bytes are worked out by hand in many texts on the IPv4 checksum.
    #[test]
    fn a_known_ipv4_header() {
        let expected = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(ud_header(&ipv4(), 95)[20..], expected);
    }

    #[test]
    fn the_kind_of_header_is_told() {
        let ipv6 =
            Path { src: "fe80::1".parse().unwrap(), dst: "fe80::2".parse().unwrap(), ..ipv4() };
        assert_eq!((packet_type(&ipv4()), packet_type(&ipv6)), (10, 9));
    }

    #[test]
    fn bytes_before_an_ipv4_header_do_not_matter() {
        for filler in [0x00, 0x45, 0x60, 0xff] {
            let mut bytes = ud_header(&ipv4(), 95);
            bytes[..20].fill(filler);
            assert_eq!(path_of(&bytes), Some(ipv4()), "{filler:#x}");
        }
    }

    #[test]
    fn no_header_is_no_path() {
        assert_eq!(path_of(&[0; LEN]), None);
        assert_eq!(path_of(&[0xff; LEN]), None);
    }

    #[test]
    fn a_wrong_checksum_counts_where_it_could_be_ipv6() {
        let mut bytes = ud_header(&ipv4(), 95);
        bytes[30] ^= 1;
        assert_eq!(path_of(&bytes), Some(ipv4()));
        bytes[..20].fill(0x60);
        assert!(path_of(&bytes).is_some_and(|path| !path.is_ipv4()));
    }
}
