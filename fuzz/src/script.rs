//! Fuzzer input as the things that can happen to a queue pair.
//!
//! Each step is a tag, its lowest four bits the kind, and what belongs to it:
//!
//! | kind | step | then |
//! |---|---|---|
//! | 0 to 6 | a packet for this QP: number and P_Key are put in; bit 4 of the tag: keys and addresses too | PSN, signed, past the expected one (1 octet); length (2, little-endian); octets from the BTH on |
//! | 7 | a packet as it is | length (2); octets |
//! | 8, 9 | time passes | microseconds (2) |
//! | 10, 11 | a receive is posted | its length (2) |
//! | 12, 13 | a send is posted | opcode (1); length (2) |
//! | 14, 15 | transmit | most packets (1) |

use crate::memory::{REGION, RKEY};
use ironverbs_wire::{Op, Packet};

/// Something that happens.
pub enum Step<'a> {
    /// A packet arrives.
    Packet {
        /// From the BTH on.
        bytes: &'a [u8],
        /// Where given: the PSN, relative to the one expected.
        psn_delta: Option<i8>,
        /// Put in the rkey and an address of the region.
        adapt: bool,
    },
    /// Time passes.
    Wait {
        /// How much.
        nanoseconds: u64,
    },
    /// A receive request.
    Receive {
        /// Bytes.
        len: u16,
    },
    /// A send request.
    Send {
        /// Which operation, modulo their number.
        opcode: u8,
        /// Bytes.
        len: u16,
    },
    /// The device asks for packets.
    Transmit {
        /// Most that it takes.
        packets: u8,
    },
}

/// The steps of an input.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Script<'a> {
        Script(bytes)
    }

    fn octet(&mut self) -> Option<u8> {
        let (&octet, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(octet)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.octet()?, self.octet()?]))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.number()?).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for Script<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        let tag = self.octet()?;
        Some(match tag & 15 {
            0..=6 => Step::Packet {
                psn_delta: Some(self.octet()?.cast_signed()),
                bytes: self.bytes()?,
                adapt: tag & 16 != 0,
            },
            7 => Step::Packet { psn_delta: None, bytes: self.bytes()?, adapt: false },
            8 | 9 => Step::Wait { nanoseconds: u64::from(self.number()?) * 1000 },
            10 | 11 => Step::Receive { len: self.number()? },
            12 | 13 => Step::Send { opcode: self.octet()?, len: self.number()? },
            _ => Step::Transmit { packets: self.octet()? },
        })
    }
}

/// Makes a packet one for our QP: its number, PSN and P_Key, and with `keys` also the region's
/// rkey and an address within it.
pub fn adapt(bytes: &mut [u8], qpn: u32, psn: u32, pkey: u16, keys: bool) {
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    put(2, &pkey.to_be_bytes());
    put(5, &qpn.to_be_bytes()[1..]);
    put(9, &psn.to_be_bytes()[1..]);
    let op = Packet::parse(bytes).map(|packet| packet.op);
    if keys && op.is_ok_and(|op| op.has_reth() || op.has_atomic_eth()) {
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        // RETH and AtomicETH both begin with address and rkey. The low bits stay the input's.
        put(12, &REGION.to_be_bytes()[..6]);
        put(20, &RKEY.to_be_bytes());
    }
}

/// How many PSNs a request takes: a READ one for each packet of its response.
pub fn psns(packet: &Packet<'_>, mtu: u32) -> u32 {
    match (packet.op, packet.reth) {
        (Op::ReadRequest, Some(reth)) => reth.len.div_ceil(mtu).max(1),
        _ => 1,
    }
}
