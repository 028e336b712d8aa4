//! The captures of tests/data as RoCEv2 packets. Reads what those files are, little-endian
//! classic pcap of untagged Ethernet, and panics at anything else.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ironverbs_wire::{Gid, ICRC_LEN, Path};

pub(crate) struct Captured {
    /// File and number in it, for messages.
    pub(crate) name: String,
    pub(crate) path: Path,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    /// IPv4 Identification, 0 on IPv6.
    pub(crate) ident: u16,
    /// From the IP header on, to the end of the IP packet.
    pub(crate) ip: Vec<u8>,
    /// UDP payload, ICRC included.
    pub(crate) payload: Vec<u8>,
}

impl Captured {
    pub(crate) fn body(&self) -> &[u8] {
        &self.payload[..self.payload.len() - ICRC_LEN]
    }

    pub(crate) fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.payload.last_chunk().unwrap())
    }
}

pub(crate) fn all() -> Vec<Captured> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 12, "captures in {}", dir.display());
    files.iter().flat_map(|path| read(path)).collect()
}

fn read(file: &std::path::Path) -> Vec<Captured> {
    let bytes = std::fs::read(file).unwrap();
    let stem = file.file_stem().unwrap().to_string_lossy();
    let (header, mut rest) = bytes.split_at(24);
    assert_eq!(header[..4], [0xd4, 0xc3, 0xb2, 0xa1], "{stem}: magic");
    assert_eq!(header[20..], [1, 0, 0, 0], "{stem}: link type");
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let name = format!("{stem} {}", packets.len() + 1);
        let (record, after) = rest.split_at(16);
        let len = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(len(8), len(12), "{name}: cut short");
        let (frame, after) = after.split_at(len(8));
        rest = after;
        packets.push(decode(name, &frame[12..]));
    }
    packets
}

fn decode(name: String, frame: &[u8]) -> Captured {
    let (ether_type, ip) = frame.split_at(2);
    let be16 = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let (path, ident, protocol, udp_at, len) = match ether_type {
        [0x08, 0x00] => {
            assert_eq!(ip[0], 0x45, "{name}");
            let addr = |at: usize| {
                Gid::from_ipv4(Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()))
            };
            let path = Path {
                src: addr(12),
                dst: addr(16),
                traffic_class: ip[1],
                hop_limit: ip[8],
                flow_label: 0,
                ib: None,
            };
            (path, be16(4), ip[9], 20, usize::from(be16(2)))
        }
        [0x86, 0xdd] => {
            let addr = |at: usize| {
                Gid::from_ipv6(Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()))
            };
            let word = u32::from_be_bytes(ip[..4].try_into().unwrap());
            assert_eq!(word >> 28, 6, "{name}");
            let path = Path {
                src: addr(8),
                dst: addr(24),
                traffic_class: (word >> 20) as u8,
                hop_limit: ip[7],
                flow_label: word & 0xf_ffff,
                ib: None,
            };
            (path, 0, ip[6], 40, 40 + usize::from(be16(4)))
        }
        other => panic!("{name}: EtherType {other:02x?}"),
    };
    assert_eq!(protocol, 17, "{name}: not UDP");
    assert_eq!(udp_at + usize::from(be16(udp_at + 4)), len, "{name}: UDP length");
    Captured {
        path,
        src_port: be16(udp_at),
        dst_port: be16(udp_at + 2),
        ident,
        ip: ip[..len].to_vec(),
        payload: ip[udp_at + 8..len].to_vec(),
        name,
    }
}
