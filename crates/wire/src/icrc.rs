//! The invariant CRC (IBA A17.3.3): what protects a packet, its addresses and ports from end to
//! end.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, the IP and UDP headers and the UDP
//! payload, where every field that a router may change is taken as ones: of IPv4 the TOS, TTL and
//! checksum, of IPv6 the traffic class, flow label and hop limit, the UDP checksum, and byte 4 of
//! the BTH. The IPv4 Identification is not among them, and a UDP socket neither chooses nor sees
//! it. Senders here know it all the same (see [`Prefix::compute`]), receivers recover it:
//!
//! The CRC is linear, so the CRC for Identification 0 and the received one differ by the
//! Identification alone, followed by zeros, if the packet is intact. Taking that difference back
//! over the bytes behind the field leaves the field, 16 bits, and 16 zero bits. The price is
//! strength: damage that looks like another Identification is not seen. See [`verify`].

use crate::Path;

/// Bytes of the UDP header.
const UDP_LEN: usize = 8;
/// Bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Bytes between the IPv4 Identification and the BTH.
const AFTER_IDENT: usize = IPV4_LEN - 6 + UDP_LEN;
/// Where the BTH has FECN and BECN, which routers set.
const BTH_CONGESTION: usize = 4;
/// Shortest UDP payload that has a BTH and an ICRC.
const SHORTEST: usize = 12 + 4;

/// The ICRC of a packet. It is sent as `to_le_bytes()`.
///
/// `body` is the UDP payload up to, and excluding, the ICRC. `ident` is the IPv4 Identification,
/// not looked at on IPv6. The length fields are those that follow from `body`, modulo 2^16: what
/// does not fit a packet has no ICRC.
pub fn compute(path: &Path, src_port: u16, dst_port: u16, ident: u16, body: &[u8]) -> u32 {
    Prefix::new(path, src_port, dst_port, body.len()).compute(ident, body)
}

/// The CRC so far, after IP and UDP header: all that the packets of a batch have in common if
/// they have one path, ports and length.
#[derive(Copy, Clone, Debug)]
pub struct Prefix {
    /// CRC of the masked headers with Identification 0.
    crc: u32,
    ipv4: bool,
}

impl Prefix {
    /// The prefix for packets whose UDP payload without ICRC has `body_len` bytes.
    pub fn new(path: &Path, src_port: u16, dst_port: u16, body_len: usize) -> Self {
        let ipv4 = path.is_ipv4();
        let udp_len = (UDP_LEN + body_len + crate::ICRC_LEN) as u16;
        let mut udp = [0xff; UDP_LEN];
        udp[0..2].copy_from_slice(&src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&dst_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());

        // The register after the eight bytes of ones.
        let mut crc = 0x2144_df1c;
        if ipv4 {
            let mut ip = [0xff; IPV4_LEN];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
            ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]); // Identification, don't fragment
            ip[9] = 17;
            ip[12..16].copy_from_slice(&path.src.low_ipv4().octets());
            ip[16..20].copy_from_slice(&path.dst.low_ipv4().octets());
            crc = extend(crc, &ip);
        } else {
            let mut ip = [0xff; 40];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6] = 17;
            ip[8..24].copy_from_slice(&path.src.0);
            ip[24..40].copy_from_slice(&path.dst.0);
            crc = extend(crc, &ip);
        }
        Self { crc: extend(crc, &udp), ipv4 }
    }

    /// The ICRC of the packet that has this Identification and this body, whose length must be
    /// that of the prefix. Of a batch cut by UDP_SEGMENT from a socket that sets DF and is not
    /// connected, Linux numbers the packets 0, 1, 2 and so on; a single one has 0.
    pub fn compute(&self, ident: u16, body: &[u8]) -> u32 {
        let mut crc = self.crc;
        if self.ipv4 {
            let [high, low] = ident.to_be_bytes();
            crc ^= IDENT_HIGH[usize::from(high)] ^ IDENT_LOW[usize::from(low)];
        }
        match body.split_at_checked(BTH_CONGESTION) {
            Some((head, [_, rest @ ..])) => {
                let &[a, b, c, d] = head else { return extend(crc, body) };
                extend(extend(crc, &[a, b, c, d, 0xff]), rest)
            }
            _ => extend(crc, body),
        }
    }
}

/// What [`verify`] finds.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Verdict {
    /// The packet is what its sender made it.
    Good {
        /// The IPv4 Identification it was sent with; 0 on IPv6.
        ident: u16,
    },
    /// It is not, or too short or long to be a packet.
    Bad,
}

/// Checks a UDP payload that ends in its ICRC.
///
/// On IPv4 an Identification up to `max_ident` is accepted: 63 for peers known to send in batches
/// from an unconnected socket as this stack does, 0xffff for any other. The smaller it is, the
/// more damage is seen:
///
/// | | IPv6 | IPv4, 63 | IPv4, 0xffff |
/// |---|---|---|---|
/// | every burst up to, in bits | 32 | 13 | 3 |
/// | arbitrary damage missed, one in | 2^32 | 2^26 | 2^16 |
///
/// (bits in the order of the wire, lowest of a byte first; payloads up to 4096 bytes).
pub fn verify(path: &Path, src_port: u16, dst_port: u16, packet: &[u8], max_ident: u16) -> Verdict {
    if packet.len() < SHORTEST || packet.len() + UDP_LEN + IPV4_LEN > usize::from(u16::MAX) {
        return Verdict::Bad;
    }
    let Some((body, trailer)) = packet.split_last_chunk() else { return Verdict::Bad };
    let difference = compute(path, src_port, dst_port, 0, body) ^ u32::from_le_bytes(*trailer);
    if difference == 0 {
        return Verdict::Good { ident: 0 };
    }
    if !path.is_ipv4() {
        return Verdict::Bad;
    }
    let residual = step_back(difference, 2 + AFTER_IDENT + body.len());
    // A register takes bytes in at its low end, so the first byte of the field is the lowest.
    match residual.to_le_bytes() {
        [high, low, 0, 0] if u16::from_be_bytes([high, low]) <= max_ident => {
            Verdict::Good { ident: u16::from_be_bytes([high, low]) }
        }
        _ => Verdict::Bad,
    }
}

fn extend(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

// CRC arithmetic: a register is a polynomial over GF(2) modulo the generator, its highest bit the
// coefficient of x^0. A zero byte multiplies it by x^8.

const GENERATOR: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

const fn times_x(a: u32) -> u32 {
    a >> 1 ^ if a & 1 == 0 { 0 } else { GENERATOR }
}

const fn over_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { (a ^ GENERATOR) << 1 | 1 }
}

const fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        sum ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = times_x(b);
    }
    sum
}

/// The register `bytes` zero bytes ago; `bytes` below 2^16.
fn step_back(register: u32, bytes: usize) -> u32 {
    let [high, low] = (bytes as u16).to_be_bytes();
    // In this order a processor works out the first product while the CRC is still under way.
    product(register, product(BACK_LOW[usize::from(low)], BACK_HIGH[usize::from(high)]))
}

/// `x^(-8 i)`: multiplying by it takes `i` zero bytes back.
static BACK_LOW: [u32; 256] = powers(over_8x(ONE));
/// `x^(-8 * 256 i)`.
static BACK_HIGH: [u32; 256] = powers(product(powers(over_8x(ONE))[255], over_8x(ONE)));

const fn over_8x(mut a: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        a = over_x(a);
        bit += 1;
    }
    a
}

const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = product(table[i - 1], base);
        i += 1;
    }
    table
}

/// What a first byte of the Identification adds to the CRC after the UDP header.
static IDENT_HIGH: [u32; 256] = byte_then_zeros(1 + AFTER_IDENT);
/// The same for the second byte.
static IDENT_LOW: [u32; 256] = byte_then_zeros(AFTER_IDENT);

const fn byte_then_zeros(zeros: usize) -> [u32; 256] {
    let mut shift = ONE;
    let mut bit = 0;
    while bit < 8 * (1 + zeros) {
        shift = times_x(shift);
        bit += 1;
    }
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = product(byte as u32, shift);
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest burst of wrong bits which, wherever it is in a packet of 4096 bytes of payload
    /// or less, never looks like a change of the Identification bits in `ident`, given as bits of
    /// the residual.
    fn longest_burst_seen(ident: u32) -> usize {
        // What a wrong bit leaves depends only on its distance from the Identification, the first
        // bit of which leaves 1.
        let field = 16;
        let end = 8 * (2 + AFTER_IDENT + 12 + 28 + 4096 + 4);
        let residuals: Vec<u32> =
            std::iter::successors(Some(1), |&r| Some(over_x(r))).take(end).collect();
        (field..end).fold(32, |longest, first| {
            // Bursts that begin here are the sums of residuals from here on. As long as these are
            // independent outside `ident`, no sum of them is within it.
            let mut basis = [0; 32];
            let independent = residuals[first..].iter().take(longest).take_while(|&&residual| {
                let mut rest = residual & !ident;
                while rest != 0 {
                    let lead = &mut basis[rest.ilog2() as usize];
                    if *lead == 0 {
                        *lead = rest;
                        return true;
                    }
                    rest ^= *lead;
                }
                false
            });
            let count = independent.count();
            if first + count == end { longest } else { count }
        })
    }

    #[test]
    fn bursts_seen_are_as_long_as_documented() {
        assert_eq!(longest_burst_seen(0), 32);
        assert_eq!(longest_burst_seen(u32::from_le_bytes([0, 63, 0, 0])), 13);
        assert_eq!(longest_burst_seen(0xffff), 3);
    }

    #[test]
    fn stepping_back_undoes_zero_bytes() {
        let mut register = 0x1234_5678;
        for bytes in 0..=0xffff {
            assert_eq!(step_back(register, bytes), 0x1234_5678, "{bytes}");
            register = (0..8).fold(register, |r, _| times_x(r));
        }
    }

    #[test]
    fn lengths_that_no_packet_has_are_bad() {
        let path = Path::default();
        for len in [0, 3, 4, 15, 65508, 65536, 70000] {
            assert_eq!(verify(&path, 1, 2, &vec![0; len], 0xffff), Verdict::Bad, "{len}");
        }
        for len in 0..SHORTEST {
            compute(&path, 1, 2, 3, &vec![0; len]);
        }
    }
}
