//! Checksums of the Internet protocols, and frames that are several in one.

use super::headers::{Headers, Ip, TCP, UDP, Version, word};

/// The sum of RFC 1071, not yet complemented.
fn sum(bytes: &[u8], from: u32) -> u32 {
    let mut sum = u64::from(from);
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(u16::from_be_bytes([*last, 0]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u32
}

/// The sum of the pseudo header.
fn pseudo(frame: &[u8], ip: &Ip, len: usize) -> u32 {
    let addresses = match ip.version {
        Version::V4 => ip.at + 12..ip.at + 20,
        Version::V6 => ip.at + 8..ip.at + 40,
    };
    let rest = u32::from(ip.protocol) + (len >> 16) as u32 + (len & 0xffff) as u32;
    sum(frame.get(addresses).unwrap_or_default(), rest)
}

/// Where the checksum stands in the header of the transport.
fn place(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(16),
        UDP => Some(6),
        _ => None,
    }
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    if let Some(to) = frame.get_mut(at..at + 2) {
        to.copy_from_slice(&value.to_be_bytes());
    }
}

/// Fills in the checksum of what starts at `start`, into which that of the pseudo header was put before.
pub(crate) fn complete(frame: &mut [u8], start: usize, at: usize) {
    let Some(covered) = frame.get(start..) else { return };
    let value = !(sum(covered, 0) as u16);
    let is_udp = at == start + 6;
    put(frame, at, if value == 0 && is_udp { 0xffff } else { value });
}

/// Fills in the checksums of an IPv4 header, and of TCP or UDP, of a frame that has them.
pub(crate) fn fill(frame: &mut [u8]) {
    let Some(ip) = Headers::of(frame, 0).and_then(|headers| headers.ip) else { return };
    if ip.version == Version::V4 {
        let header = ip.at..ip.at + usize::from(frame.get(ip.at).map_or(5, |b| b & 15)) * 4;
        put(frame, ip.at + 10, 0);
        let value = !(sum(frame.get(header).unwrap_or_default(), 0) as u16);
        put(frame, ip.at + 10, value);
    }
    let (Some(at), Some(place), false) = (ip.payload, place(ip.protocol), ip.is_fragment) else {
        return;
    };
    if at + place + 2 > ip.end {
        return;
    }
    put(frame, at + place, 0);
    let start = pseudo(frame, &ip, ip.end.saturating_sub(at));
    let value = !(sum(frame.get(at..ip.end).unwrap_or_default(), start) as u16);
    put(frame, at + place, if value == 0 && ip.protocol == UDP { 0xffff } else { value });
}

/// Whether the checksums of a frame over IP are there and right; `known` says that its transport's is.
pub(crate) fn right(frame: &[u8], headers: &Headers, known: bool) -> bool {
    let Some(ip) = headers.ip else { return false };
    if ip.version == Version::V4 {
        let header = ip.at..ip.at + usize::from(frame.get(ip.at).map_or(5, |b| b & 15)) * 4;
        if sum(frame.get(header).unwrap_or_default(), 0) != 0xffff {
            return false;
        }
    }
    let (Some(at), Some(place), false) = (ip.payload, place(ip.protocol), ip.is_fragment) else {
        return false;
    };
    // UDP over IPv4 may go without.
    let given = word(frame, at + place);
    if known || (ip.protocol == UDP && ip.version == Version::V4 && given == Some(0)) {
        return true;
    }
    let covered = frame.get(at..ip.end).unwrap_or_default();
    given.is_some() && sum(covered, pseudo(frame, &ip, covered.len())) == 0xffff
}

/// Cuts a frame of TCP or UDP over IP into frames of `size` bytes of payload each, with all their checksums, as an
/// adapter does; each is made in `scratch` and handed to `take`. False for what cannot be cut.
pub(crate) fn segments(
    frame: &[u8],
    size: usize,
    scratch: &mut Vec<u8>,
    mut take: impl FnMut(&mut [u8]),
) -> bool {
    const PUSH_AND_FIN: u8 = 0x09;
    let Some(ip) = Headers::of(frame, 0).and_then(|headers| headers.ip) else { return false };
    let Some(transport) = ip.payload.filter(|_| size > 0 && !ip.is_fragment) else { return false };
    let header = match ip.protocol {
        TCP => frame.get(transport + 12).map(|byte| usize::from(byte >> 4) * 4),
        UDP => Some(8),
        _ => None,
    };
    let Some(start) = header.map(|len| transport + len) else { return false };
    let (Some(head), Some(data)) = (frame.get(..start), frame.get(start..)) else { return false };
    if ip.protocol == TCP && start < transport + 20 {
        return false;
    }
    let count = data.len().div_ceil(size);
    for (i, part) in data.chunks(size).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(head);
        scratch.extend_from_slice(part);
        let len = scratch.len();
        match ip.version {
            Version::V4 => {
                put(scratch, ip.at + 2, (len - ip.at) as u16);
                let number = word(frame, ip.at + 4).unwrap_or(0).wrapping_add(i as u16);
                put(scratch, ip.at + 4, number);
            }
            Version::V6 => put(scratch, ip.at + 4, (len - ip.at - 40) as u16),
        }
        match ip.protocol {
            TCP => {
                let first =
                    super::headers::bytes(frame, transport + 4).map_or(0, u32::from_be_bytes);
                let sequence = first.wrapping_add((i * size) as u32);
                scratch[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
                if i + 1 < count {
                    scratch[transport + 13] &= !PUSH_AND_FIN;
                }
            }
            _ => put(scratch, transport + 4, (len - transport) as u16),
        }
        fill(scratch);
        take(scratch);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::headers::tests::udp;
    use super::*;

    fn is_right(frame: &[u8]) -> bool {
        right(frame, &Headers::of(frame, 0).unwrap(), false)
    }

    #[test]
    fn what_is_filled_in_is_right() {
        for payload in [b"".as_slice(), b"a", b"ab", &[7; 999]] {
            let mut frame = udp(None, [1, 2], payload);
            assert!(!is_right(&frame));
            fill(&mut frame);
            assert!(is_right(&frame));
            // RFC 1071 by hand: the sum over all, checksum included, is all ones.
            assert_eq!(sum(&frame[14..34], 0), 0xffff);
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert!(!is_right(&frame));
        }
    }

    #[test]
    fn a_datagram_without_a_checksum_is_right() {
        let mut frame = udp(None, [1, 2], b"abc");
        fill(&mut frame);
        frame[40..42].fill(0);
        assert!(is_right(&frame));
    }

    #[test]
    fn frames_are_cut() {
        let frame = udp(None, [1, 2], &(0..250).collect::<Vec<u8>>());
        let mut parts = Vec::new();
        assert!(segments(&frame, 100, &mut Vec::new(), |part| parts.push(part.to_vec())));
        assert_eq!(parts.iter().map(|part| part.len() - 42).collect::<Vec<_>>(), [100, 100, 50]);
        assert!(parts.iter().all(|part| is_right(part)));
        let data: Vec<u8> = parts.iter().flat_map(|part| part[42..].to_vec()).collect();
        assert_eq!(data, frame[42..]);
    }

    #[test]
    fn tcp_is_cut_as_by_an_adapter() {
        let mut frame = udp(None, [1, 2], &[]);
        frame.truncate(34);
        frame[23] = TCP;
        frame.extend([0, 1, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0x50, 0x19, 0, 0, 0, 0, 0, 0]);
        frame.extend([9; 25]);
        let mut parts = Vec::new();
        assert!(segments(&frame, 10, &mut Vec::new(), |part| parts.push(part.to_vec())));
        let numbers: Vec<_> = parts.iter().map(|part| word(part, 40).unwrap()).collect();
        assert_eq!(numbers, [0x100, 0x10a, 0x114]);
        let flags: Vec<_> = parts.iter().map(|part| part[47]).collect();
        assert_eq!(flags, [0x10, 0x10, 0x19]);
        assert!(parts.iter().all(|part| is_right(part)));
    }
}
