//! What members send to each other's mailboxes: datagrams of one byte that says what it is, and
//! the rest. Both ends are of the same version of the table, or they would not be in one group.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use ironverbs_sys::unix::{Datagrams, Name};
use ironverbs_wire::{Gid, Path};

const REWATCH: u8 = 1;
const PACKET: u8 = 2;
const OFFER: u8 = 3;
const REFUSAL: u8 = 4;
const DING: u8 = 5;

/// Kind, two addresses, traffic class, hop limit, flow label, source port.
const HEADER: usize = 1 + 16 + 16 + 1 + 1 + 4 + 2;

/// The longest mail: a UDP payload behind the header.
pub(super) const LONGEST: usize = HEADER + 65_535;

#[derive(Debug, Eq, PartialEq)]
pub(super) enum Mail<'a> {
    /// Somebody came or left next to you: see whose death you are to notice.
    Rewatch,
    /// A packet that came to the wrong process.
    Packet { path: Path, src_port: u16, bytes: &'a [u8] },
    /// A lane: the message carries its descriptor.
    Offer(Offer),
    /// The lane that the tenant of the slot was offered could not be taken.
    Refusal { slot: u16, tenure: u32 },
    /// Wake up: something is in a lane, or there is room in one, or one is closed.
    Ding,
}

/// Who offers a lane to whom.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    /// The sender's slot, and which of the slot's tenants it is.
    pub(super) slot: u16,
    pub(super) tenure: u32,
    /// Which of its slot's tenants the receiver is.
    pub(super) to: u32,
    /// Where the sender's table is, if it has one: its descriptor's number in the sender, and its name, which is
    /// never 0.
    pub(super) table: Option<(u32, u64)>,
}

impl Mail<'_> {
    pub(super) fn send(&self, from: &Datagrams, to: &Name) -> io::Result<()> {
        match self {
            Mail::Rewatch => from.send_to(to, &[IoSlice::new(&[REWATCH])]),
            Mail::Packet { path, src_port, bytes } => {
                let header = packet_header(path, *src_port);
                from.send_to(to, &[IoSlice::new(&header), IoSlice::new(bytes)])
            }
            Mail::Offer(offer) => from.send_to(to, &[IoSlice::new(&offer.bytes())]),
            Mail::Refusal { slot, tenure } => {
                let ([a, b], [c, d, e, f]) = (slot.to_le_bytes(), tenure.to_le_bytes());
                from.send_to(to, &[IoSlice::new(&[REFUSAL, a, b, c, d, e, f])])
            }
            Mail::Ding => from.send_to(to, &[IoSlice::new(&[DING])]),
        }
    }

    /// None: no mail of this version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Mail<'_>> {
        let (&kind, rest) = bytes.split_first()?;
        match kind {
            REWATCH => Some(Mail::Rewatch),
            PACKET => {
                let (src, rest) = rest.split_first_chunk()?;
                let (dst, rest) = rest.split_first_chunk()?;
                let (&[traffic_class, hop_limit], rest) = rest.split_first_chunk()?;
                let (label, rest) = rest.split_first_chunk()?;
                let (port, bytes) = rest.split_first_chunk()?;
                let path = Path {
                    src: Gid(*src),
                    dst: Gid(*dst),
                    traffic_class,
                    hop_limit,
                    flow_label: u32::from_le_bytes(*label) & 0xf_ffff,
                    ib: None,
                };
                Some(Mail::Packet { path, src_port: u16::from_le_bytes(*port), bytes })
            }
            OFFER => {
                let (slot, rest) = rest.split_first_chunk()?;
                let (tenure, rest) = rest.split_first_chunk()?;
                let (to, rest) = rest.split_first_chunk()?;
                let (fd, id) = rest.split_first_chunk()?;
                let id = u64::from_le_bytes(id.try_into().ok()?);
                Some(Mail::Offer(Offer {
                    slot: u16::from_le_bytes(*slot),
                    tenure: u32::from_le_bytes(*tenure),
                    to: u32::from_le_bytes(*to),
                    table: (id != 0).then_some((u32::from_le_bytes(*fd), id)),
                }))
            }
            REFUSAL => {
                let (slot, tenure) = rest.split_first_chunk()?;
                Some(Mail::Refusal {
                    slot: u16::from_le_bytes(*slot),
                    tenure: u32::from_le_bytes(tenure.try_into().ok()?),
                })
            }
            DING => Some(Mail::Ding),
            _ => None,
        }
    }
}

impl Offer {
    /// Sends it with the lane's descriptor.
    pub(super) fn send(&self, from: &Datagrams, to: &Name, lane: BorrowedFd<'_>) -> io::Result<()> {
        from.send_with(to, &[IoSlice::new(&self.bytes())], &[lane])
    }

    fn bytes(&self) -> [u8; 23] {
        let mut bytes = [0; 23];
        let (fd, id) = self.table.unwrap_or_default();
        bytes[0] = OFFER;
        bytes[1..3].copy_from_slice(&self.slot.to_le_bytes());
        bytes[3..7].copy_from_slice(&self.tenure.to_le_bytes());
        bytes[7..11].copy_from_slice(&self.to.to_le_bytes());
        bytes[11..15].copy_from_slice(&fd.to_le_bytes());
        bytes[15..].copy_from_slice(&id.to_le_bytes());
        bytes
    }
}

fn packet_header(path: &Path, src_port: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = PACKET;
    header[1..17].copy_from_slice(&path.src.0);
    header[17..33].copy_from_slice(&path.dst.0);
    header[33] = path.traffic_class;
    header[34] = path.hop_limit;
    header[35..39].copy_from_slice(&path.flow_label.to_le_bytes());
    header[39..].copy_from_slice(&src_port.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_comes_out_as_it_went_in() {
        let path = Path {
            src: Gid([1; 16]),
            dst: Gid([2; 16]),
            traffic_class: 3,
            hop_limit: 4,
            flow_label: 0x5_6789,
            ib: None,
        };
        let mut bytes = packet_header(&path, 4791).to_vec();
        bytes.extend(b"BTH");
        let expected = Mail::Packet { path, src_port: 4791, bytes: b"BTH" };
        assert_eq!(Mail::parse(&bytes), Some(expected));
        for len in 1..HEADER {
            assert_eq!(Mail::parse(&bytes[..len]), None);
        }
        assert_eq!(Mail::parse(&[REWATCH]), Some(Mail::Rewatch));
        for table in [None, Some((0x1112_1314, 0x2122_2324_2526_2728))] {
            let offer = Offer { slot: 0x102, tenure: 0x3040_5060, to: 0x7080_90a0, table };
            let bytes = offer.bytes();
            assert_eq!(Mail::parse(&bytes), Some(Mail::Offer(offer)));
            assert!((1..bytes.len()).all(|len| Mail::parse(&bytes[..len]).is_none()));
        }
        let refusal = [REFUSAL, 2, 1, 6, 5, 4, 3];
        let parsed = Mail::Refusal { slot: 0x102, tenure: 0x0304_0506 };
        assert_eq!(Mail::parse(&refusal), Some(parsed));
        assert_eq!(Mail::parse(&refusal[..6]), None);
        assert_eq!(Mail::parse(&[DING]), Some(Mail::Ding));
        assert_eq!(Mail::parse(&[77]), None);
        assert_eq!(Mail::parse(&[]), None);
    }
}
