//! Seeds for the fuzzers: the packets of the kernel's captures.

use crate::process::{During, Outcome};
use crate::tree;
use std::fs;
use std::path::Path;

/// A RoCEv2 packet of a capture.
struct Captured {
    ipv6: bool,
    /// Source and destination address, an IPv4 one in the last four octets.
    addresses: [[u8; 16]; 2],
    /// Source and destination port.
    ports: [u8; 4],
    identification: [u8; 2],
    /// From the BTH on, with the ICRC.
    payload: Vec<u8>,
}

/// Writes seeds for `target` into `directory`.
pub(super) fn seeds(target: &str, directory: &Path) -> Outcome {
    fs::create_dir_all(directory)?;
    let data = tree::root().join("crates/wire/tests/data");
    let mut count = 0;
    for entry in fs::read_dir(&data).during(data.display())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "pcap") {
            continue;
        }
        let packets = read(&fs::read(&path)?);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let seeds: Vec<_> = match target {
            "icrc" => packets.iter().map(icrc).collect(),
            "responder" => vec![responder(&packets)],
            "cm" => vec![cm(&packets)],
            _ => packets.iter().map(|packet| body(packet).to_vec()).collect(),
        };
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(directory.join(format!("{name}-{number}")), seed)?;
            count += 1;
        }
    }
    if count == 0 { Err(format!("no captures in {}", data.display()).into()) } else { Ok(()) }
}

fn body(packet: &Captured) -> &[u8] {
    packet.payload.split_last_chunk::<4>().map(|(body, _)| body).unwrap_or_default()
}

/// As `fuzz/targets/icrc.rs` reads it.
fn icrc(packet: &Captured) -> Vec<u8> {
    let [source, destination] = packet.addresses;
    let family = [u8::from(packet.ipv6)];
    let head: [&[u8]; 5] = [&family, &source, &destination, &packet.ports, &packet.identification];
    [head.concat().as_slice(), &packet.payload].concat()
}

/// As `fuzz/src/script.rs` reads it: every packet of the capture for one RC QP, which has receives
/// and answers now and then.
fn responder(packets: &[Captured]) -> Vec<u8> {
    let mut script = vec![2];
    for packet in packets {
        let body = body(packet);
        let len = u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes();
        script.extend([10, 0, 0x20]);
        script.extend([16, 0, len[0], len[1]]);
        script.extend(body);
        script.extend([14, 8]);
    }
    script
}

/// As `fuzz/targets/cm.rs` reads it: the MADs of the capture, and a program that accepts.
fn cm(packets: &[Captured]) -> Vec<u8> {
    const MAD: std::ops::Range<usize> = 20..276;
    const ABOUT_THE_FIRST: [u8; 2] = [1, 0];
    const ACCEPT: [u8; 2] = [5, 0];
    let bodies = packets.iter().map(body).filter(|body| body.get(5..8) == Some(&[0, 0, 1]));
    let mads = bodies.filter_map(|body| body.get(MAD));
    mads.flat_map(|mad| [&ABOUT_THE_FIRST, mad, &ACCEPT].concat()).collect()
}

/// The RoCEv2 packets of a little-endian pcap file of Ethernet frames.
fn read(file: &[u8]) -> Vec<Captured> {
    const FILE_HEADER: usize = 24;
    let mut packets = Vec::new();
    let mut rest = file.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let [.., a, b, c, d, _, _, _, _] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let Some((frame, next)) = after.split_at_checked(len) else { break };
        packets.extend(dissect(frame));
        rest = next;
    }
    packets
}

fn dissect(frame: &[u8]) -> Option<Captured> {
    const ETHERNET: usize = 14;
    let ip = frame.get(ETHERNET..)?;
    let mut addresses = [[0; 16]; 2];
    let (header, fields, width, identification) = match ip.first()? >> 4 {
        4 => (20, 12, 4, [*ip.get(4)?, *ip.get(5)?]),
        6 => (40, 8, 16, [0; 2]),
        _ => return None,
    };
    for (number, address) in addresses.iter_mut().enumerate() {
        let from = fields + number * width;
        address.get_mut(16 - width..)?.copy_from_slice(ip.get(from..from + width)?);
    }
    let udp = ip.get(header..)?;
    let ports = *udp.first_chunk::<4>()?;
    let payload = udp.get(8..)?.to_vec();
    let ipv6 = width == 16;
    (ports[2..] == 4791u16.to_be_bytes()).then_some(Captured {
        ipv6,
        addresses,
        ports,
        identification,
        payload,
    })
}
