//! The device of a fuzzed queue pair: one region, counted completions, and a wire that judges.

use ironverbs_transport::device::{Atomic, Device, QpEvent, Queue, RecvWqe, Sink};
use ironverbs_transport::verbs::{Access, Fault, Sge, Wc};
use ironverbs_wire::{Packet, Path};

/// First address of the region.
pub const REGION: u64 = 0x7f00_0000_0000;
/// Its bytes; addresses that differ in the low 16 bits only reach past its end.
const LEN: usize = 0xc000;
/// Its keys.
pub const LKEY: u32 = 0x0a0b_0c0d;
/// For the peer.
pub const RKEY: u32 = 0x0d0c_0b0a;
/// The SRQ of the XRC domain.
pub const SRQN: u32 = 1;

/// Memory, completions and events.
pub struct Memory {
    bytes: Vec<u8>,
    invalidated: bool,
    selected: bool,
    /// Requests that were accepted.
    pub posted: u64,
    /// Completions that were raised.
    pub completed: u64,
    /// Bytes that were written although nothing was granted.
    refused: bool,
}

impl Memory {
    /// Zeros.
    pub fn new() -> Memory {
        Memory {
            bytes: vec![0; LEN],
            invalidated: false,
            selected: false,
            posted: 0,
            completed: 0,
            refused: false,
        }
    }

    /// Fails if a remote access was made that a check before it would have refused.
    pub fn check(&self) {
        assert!(!self.refused, "an access without the right to it");
    }

    fn at(&mut self, address: u64, len: usize) -> Result<&mut [u8], Fault> {
        let start = address.checked_sub(REGION).ok_or(Fault::Range)?;
        let start = usize::try_from(start).map_err(|_| Fault::Range)?;
        let end = start.checked_add(len).ok_or(Fault::Range)?;
        self.bytes.get_mut(start..end).ok_or(Fault::Range)
    }

    fn local(&mut self, sge: &Sge, offset: u32, len: usize) -> Result<&mut [u8], Fault> {
        if sge.lkey != LKEY {
            return Err(Fault::Key);
        }
        let within = u64::from(offset) + len as u64 <= u64::from(sge.len);
        self.refused |= !within;
        let address = sge.addr.checked_add(offset.into()).ok_or(Fault::Range)?;
        self.at(address, len)
    }

    fn remote(&mut self, rkey: u32, va: u64, len: usize) -> Result<&mut [u8], Fault> {
        if rkey != RKEY || self.invalidated {
            return Err(Fault::Key);
        }
        self.at(va, len)
    }
}

impl Device for Memory {
    fn check_local(&mut self, sge: &Sge, _write: bool) -> Result<(), Fault> {
        self.local(sge, 0, sge.len as usize).map(drop)
    }

    fn gather(&mut self, sge: &Sge, offset: u32, dst: &mut [u8]) -> Result<(), Fault> {
        dst.copy_from_slice(self.local(sge, offset, dst.len())?);
        Ok(())
    }

    fn scatter(&mut self, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), Fault> {
        self.local(sge, offset, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, _: Access) -> Result<(), Fault> {
        let len = usize::try_from(len).map_err(|_| Fault::Range)?;
        self.remote(rkey, va, len).map(drop)
    }

    fn read_remote(&mut self, rkey: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault> {
        dst.copy_from_slice(self.remote(rkey, va, dst.len())?);
        Ok(())
    }

    fn write_remote(&mut self, rkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        self.remote(rkey, va, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault> {
        if !va.is_multiple_of(8) {
            return Err(Fault::Alignment);
        }
        let place = self.remote(rkey, va, 8)?;
        let mut octets = [0; 8];
        octets.copy_from_slice(place);
        let before = u64::from_ne_bytes(octets);
        let after = match op {
            Atomic::CompareSwap { compare, swap } => {
                if before == compare {
                    swap
                } else {
                    before
                }
            }
            Atomic::FetchAdd { add } => before.wrapping_add(add),
        };
        place.copy_from_slice(&after.to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        if rkey != RKEY || self.invalidated {
            return Err(Fault::Key);
        }
        self.invalidated = true;
        Ok(())
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        self.selected = srqn == SRQN;
        self.selected
    }

    fn srq_take(&mut self, wqe: &mut RecvWqe) -> bool {
        assert!(self.selected, "a receive of no SRQ");
        if self.completed % 4 == 3 {
            return false;
        }
        wqe.sges.clear();
        wqe.sges.push(Sge { addr: REGION, len: 1024, lkey: LKEY });
        self.posted += 1;
        true
    }

    fn complete(&mut self, _queue: Queue, _wc: Wc) {
        self.completed += 1;
    }

    fn event(&mut self, _event: QpEvent) {}
}

/// Takes packets, as many as there is room for, and checks each.
pub struct Wire {
    mtu: usize,
    /// Packets it still takes.
    pub room: usize,
    packet: Vec<u8>,
}

impl Wire {
    /// With this path MTU in bytes.
    pub fn new(mtu: usize) -> Wire {
        Wire { mtu, room: 0, packet: Vec::new() }
    }
}

impl Sink for Wire {
    fn reserve(&mut self, _path: &Path, _dest_qpn: u32, len: usize) -> Option<&mut [u8]> {
        if self.room == 0 {
            return None;
        }
        self.packet.clear();
        self.packet.resize(len, 0xee);
        Some(&mut self.packet)
    }

    fn commit(&mut self) {
        self.room -= 1;
        let packet = Packet::parse(&self.packet).expect("we send well-formed packets only");
        assert!(packet.payload.len() <= self.mtu, "a packet longer than the path MTU");
    }
}
