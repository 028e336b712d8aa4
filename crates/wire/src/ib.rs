//! InfiniBand link packets, and how they travel inside UDP.
//!
//! On an InfiniBand link a packet begins with the local routing header (LRH, IBA 7.7), then has a
//! global routing header (GRH, IBA 8.3) where the LRH says so, then BTH and the rest as everywhere,
//! and ends in two CRCs: the invariant one, here over the LRH's and GRH's own fields and not over
//! an IP header (IBA 7.8.1), and the variant one over everything (IBA 7.8.2).
//!
//! Between hosts such a packet is the payload of a UDP datagram, behind [`ENCAPSULATION`] bytes
//! that are no packet of RoCEv2 (an opcode of the manufacturers' range and transport header version
//! 15) and have the destination QPN where a BTH has it: what steers by that finds the process.

use crate::{Gid, ICRC_LEN, IbRoute, Path};

/// Bytes before the LRH in a datagram.
pub const ENCAPSULATION: usize = 8;

/// Bytes of the variant CRC that ends every packet.
pub const VCRC_LEN: usize = 2;

/// Bytes behind the payload: both CRCs.
pub const TRAILER: usize = ICRC_LEN + VCRC_LEN;

/// The first LID that is a multicast group's (IBA 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;

/// The LID that every port takes for its own (IBA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;

/// The virtual lane of subnet management (IBA 3.5.7).
const MANAGEMENT_VL: u8 = 15;

const MAGIC: [u8; 4] = [0xf1, 0x0f, b'I', b'B'];
const BTH_CONGESTION: usize = 4;

/// Local routing header (IBA 7.7).
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Lrh {
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// A GRH follows; else a BTH.
    pub grh: bool,
    /// Destination LID.
    pub dlid: u16,
    /// Source LID.
    pub slid: u16,
    /// Length from the LRH to the end of the ICRC in words of four bytes, 11 bits.
    pub words: u16,
}

impl Lrh {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// The header these bytes are; `None` for another link version or a packet without transport
    /// header (raw).
    pub fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        let lnh = b[1] & 3;
        (b[0] & 0x0f == 0 && lnh & 2 != 0).then_some(Self {
            vl: b[0] >> 4,
            sl: b[1] >> 4,
            grh: lnh == 3,
            dlid: u16::from_be_bytes([b[2], b[3]]),
            words: u16::from_be_bytes([b[4], b[5]]) & 0x7ff,
            slid: u16::from_be_bytes([b[6], b[7]]),
        })
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [d0, d1] = self.dlid.to_be_bytes();
        let [w0, w1] = (self.words & 0x7ff).to_be_bytes();
        let [s0, s1] = self.slid.to_be_bytes();
        [self.vl << 4, self.sl << 4 | 2 | u8::from(self.grh), d0, d1, w0, w1, s0, s1]
    }
}

/// Global routing header (IBA 8.3).
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes from the end of the GRH to the end of the ICRC.
    pub payload: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// A transport header follows (IBA 8.3, NxtHdr).
    pub const NEXT_HEADER: u8 = 0x1b;

    /// The header these bytes are; `None` for another IP version or next header.
    pub fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        let (head, rest) = b.split_first_chunk::<8>()?;
        let (sgid, rest) = rest.split_first_chunk()?;
        let dgid = rest.first_chunk()?;
        let version = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        (version >> 28 == 6 && head[6] == Self::NEXT_HEADER).then_some(Self {
            traffic_class: (version >> 20) as u8,
            flow_label: version & 0xf_ffff,
            payload: u16::from_be_bytes([head[4], head[5]]),
            hop_limit: head[7],
            sgid: Gid(*sgid),
            dgid: Gid(*dgid),
        })
    }

    /// The bytes of this header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let version = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&version.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload.to_be_bytes());
        out[6] = Self::NEXT_HEADER;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.sgid.0);
        out[24..].copy_from_slice(&self.dgid.0);
        out
    }
}

/// Bytes before the BTH in a datagram.
pub const fn head_len(route: &IbRoute) -> usize {
    ENCAPSULATION + Lrh::LEN + if route.grh { Grh::LEN } else { 0 }
}

/// Makes `datagram` a whole one around its BTH and payload, which are in their place already:
/// behind [`head_len`] bytes and before the last [`TRAILER`].
///
/// False, with nothing useful written, if it is too short, longer than a packet can be or no
/// multiple of four bytes between the two, or `path` has no route.
pub fn seal(path: &Path, datagram: &mut [u8]) -> bool {
    try_seal(path, datagram).is_some()
}

fn try_seal(path: &Path, datagram: &mut [u8]) -> Option<()> {
    let route = path.ib?;
    let (encapsulation, packet) = datagram.split_at_mut_checked(ENCAPSULATION)?;
    let inner = packet.len().checked_sub(VCRC_LEN)?;
    let headers = head_len(&route) - ENCAPSULATION;
    let body = inner.checked_sub(headers + ICRC_LEN)?;
    if body < 12 || !inner.is_multiple_of(4) || inner / 4 > 0x7ff {
        return None;
    }
    let &[q0, q1, q2] = packet.get(headers + 5..headers + 8)? else { return None };
    encapsulation.copy_from_slice(&[MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], 0, q0, q1, q2]);
    let lrh = Lrh {
        vl: if [q0, q1, q2] == [0; 3] { MANAGEMENT_VL } else { 0 },
        sl: route.sl,
        grh: route.grh,
        dlid: route.dlid,
        slid: route.slid,
        words: (inner / 4) as u16,
    };
    packet.get_mut(..Lrh::LEN)?.copy_from_slice(&lrh.emit());
    if route.grh {
        let grh = Grh {
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            payload: (body + ICRC_LEN) as u16,
            hop_limit: path.hop_limit,
            sgid: path.src,
            dgid: path.dst,
        };
        packet.get_mut(Lrh::LEN..headers)?.copy_from_slice(&grh.emit());
    }
    let (covered, trailer) = packet.split_at_mut_checked(headers + body)?;
    let (icrc_room, vcrc_room) = trailer.split_at_mut_checked(ICRC_LEN)?;
    icrc_room.copy_from_slice(&icrc(covered, route.grh)?.to_le_bytes());
    let crc = vcrc_extend(vcrc_extend(0xffff, covered), icrc_room);
    vcrc_room.copy_from_slice(&(!crc).to_le_bytes());
    Some(())
}

/// Whether a UDP payload claims to be an InfiniBand packet.
pub fn is_datagram(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The packet in a datagram: its path, as its own headers tell it, and the bytes from the BTH to
/// the end of the payload. GIDs are zeros where it has no GRH.
///
/// Checks lengths and both CRCs.
pub fn open(datagram: &[u8]) -> Result<(Path, &[u8]), OpenError> {
    let malformed = OpenError::Malformed;
    let (encapsulation, packet) = datagram.split_first_chunk().ok_or(malformed)?;
    let encapsulation: &[u8; ENCAPSULATION] = encapsulation;
    if !encapsulation.starts_with(&MAGIC) || encapsulation[4] != 0 {
        return Err(malformed);
    }
    let (inner, trailer) = packet.split_last_chunk::<VCRC_LEN>().ok_or(malformed)?;
    let lrh = inner.first_chunk().and_then(Lrh::parse).ok_or(malformed)?;
    if inner.len() != usize::from(lrh.words) * 4 {
        return Err(malformed);
    }
    if !vcrc_extend(0xffff, inner) != u16::from_le_bytes(*trailer) {
        return Err(OpenError::Vcrc);
    }
    let (covered, trailer) = inner.split_last_chunk().ok_or(malformed)?;
    let route = IbRoute { slid: lrh.slid, dlid: lrh.dlid, sl: lrh.sl, grh: lrh.grh };
    let headers = head_len(&route) - ENCAPSULATION;
    let body = covered.get(headers..).filter(|body| body.len() >= 12).ok_or(malformed)?;
    if icrc(covered, lrh.grh) != Some(u32::from_le_bytes(*trailer)) {
        return Err(OpenError::Icrc);
    }
    if body.get(5..8) != encapsulation.get(5..8) {
        return Err(malformed);
    }
    let mut path = Path { ib: Some(route), ..Path::default() };
    if lrh.grh {
        let grh = covered.get(Lrh::LEN..).and_then(|rest| rest.first_chunk()).and_then(Grh::parse);
        let grh = grh.ok_or(malformed)?;
        if usize::from(grh.payload) != body.len() + ICRC_LEN {
            return Err(malformed);
        }
        path.src = grh.sgid;
        path.dst = grh.dgid;
        path.traffic_class = grh.traffic_class;
        path.hop_limit = grh.hop_limit;
        path.flow_label = grh.flow_label;
    }
    Ok((path, body))
}

/// Why a datagram brings no packet.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Lengths or headers are wrong.
    #[error("no InfiniBand packet")]
    Malformed,
    /// The variant CRC is wrong.
    #[error("wrong variant CRC")]
    Vcrc,
    /// The invariant CRC is wrong.
    #[error("wrong invariant CRC")]
    Icrc,
}

/// The invariant CRC of a packet from its LRH to the end of its payload; it is sent as
/// `to_le_bytes()`. None where it is shorter than its headers.
///
/// What a switch or router may change is taken as ones: of the LRH the VL, of the GRH traffic class,
/// flow label and hop limit, and byte 4 of the BTH.
pub fn icrc(packet: &[u8], grh: bool) -> Option<u32> {
    let mut head = [0; Lrh::LEN + Grh::LEN + BTH_CONGESTION + 1];
    let len = Lrh::LEN + if grh { Grh::LEN } else { 0 } + BTH_CONGESTION + 1;
    let masked = head.get_mut(..len)?;
    let (covered, rest) = packet.split_at_checked(len)?;
    masked.copy_from_slice(covered);
    masked[0] |= 0xf0;
    if grh {
        masked[8] |= 0x0f;
        masked[9..12].fill(0xff);
        masked[15] = 0xff;
    }
    *masked.last_mut()? = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(masked);
    crc.update(rest);
    Some(crc.finalize())
}

/// The variant CRC of a packet from its LRH to the end of its ICRC: x^16 + x^12 + x^3 + x + 1 from
/// ones, least significant bit first, complemented; it is sent as `to_le_bytes()`.
pub fn vcrc(packet: &[u8]) -> u16 {
    !vcrc_extend(0xffff, packet)
}

/// 0x100b with its bits turned round.
const VCRC_POLYNOMIAL: u16 = 0xd008;

/// Entry `[k][b]`: the register after byte `b` and `k` bytes of zeros.
static VCRC: [[u16; 256]; 8] = vcrc_tables();

const fn vcrc_tables() -> [[u16; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ VCRC_POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

fn vcrc_extend(mut crc: u16, bytes: &[u8]) -> u16 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in chunks {
        let [low, high] = crc.to_le_bytes();
        crc = VCRC[7][usize::from(a ^ low)]
            ^ VCRC[6][usize::from(b ^ high)]
            ^ VCRC[5][usize::from(c)]
            ^ VCRC[4][usize::from(d)]
            ^ VCRC[3][usize::from(e)]
            ^ VCRC[2][usize::from(f)]
            ^ VCRC[1][usize::from(g)]
            ^ VCRC[0][usize::from(h)];
    }
    for byte in rest {
        crc = crc >> 8 ^ VCRC[0][usize::from(crc as u8 ^ byte)];
    }
    crc
}
