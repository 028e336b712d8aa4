//! A device of plain memory that records what it is told.

use std::collections::{BTreeMap, VecDeque};

use ironverbs_transport::device::{
    Atomic, Carrier, Device, OneSided, Operation, Piece, PullError, QpEvent, Queue, RecvWqe,
};
use ironverbs_transport::verbs::{Access, Fault, Sge, Wc};

/// A registered region, by its lkey and its rkey.
#[derive(Debug)]
pub struct Region {
    pub lkey: u32,
    pub rkey: u32,
    pub base: u64,
    pub bytes: Vec<u8>,
    pub access: Access,
    pub rkey_valid: bool,
    pub registered: bool,
    pub pd: u32,
}

/// A shared receive queue of an XRC domain.
#[derive(Debug, Default)]
pub struct XrcSrq {
    pub pd: u32,
    pub receives: VecDeque<RecvWqe>,
}

impl Region {
    pub fn sge(&self, offset: u32, len: u32) -> Sge {
        Sge { addr: self.base + u64::from(offset), len, lkey: self.lkey }
    }

    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let at = addr.checked_sub(self.base).ok_or(Fault::Range)? as usize;
        let end = at.checked_add(len).ok_or(Fault::Range)?;
        if end > self.bytes.len() {
            return Err(Fault::Range);
        }
        Ok(at..end)
    }
}

#[derive(Debug, Default)]
pub struct Memory {
    pub regions: Vec<Region>,
    pub completions: VecDeque<(Queue, Wc)>,
    pub events: Vec<QpEvent>,
    pub ended: Vec<(Operation, Option<u64>)>,
    pub srq: VecDeque<RecvWqe>,
    /// The SRQs of the XRC domain, and which one the call is about.
    pub xrc: BTreeMap<u32, XrcSrq>,
    pub selected: Option<u32>,
    /// The SRQ of each receive completed on XRC.
    pub received_on: Vec<u32>,
    /// Atomics carried out.
    pub atomics: u64,
    /// The payload of the packet in hand, where that is elsewhere and can be fetched.
    pub payload: Option<Vec<u8>>,
    /// How often what was named by reference was taken back.
    pub revoked: u64,
    /// Whether requests are carried out without packets (nothing is moved): their PSN and length.
    pub carries: bool,
    /// It says that it would, and does not.
    pub breaks_word: bool,
    pub carried: Vec<(u32, u64)>,
    /// Requests that were offered.
    pub offered: u64,
}

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

impl Memory {
    /// Registers `len` zero bytes and gives the region's index.
    pub fn register(&mut self, len: usize, access: Access) -> usize {
        let index = self.regions.len();
        self.regions.push(Region {
            lkey: 0x100 + index as u32,
            rkey: 0x8000_0100 + index as u32,
            base: 0x1_0000_0000 * (index as u64 + 1),
            bytes: vec![0; len],
            access,
            rkey_valid: true,
            registered: true,
            pd: 0,
        });
        index
    }

    /// The protection domain that the call is about.
    fn pd(&self) -> u32 {
        self.selected.and_then(|srqn| self.xrc.get(&srqn)).map_or(0, |srq| srq.pd)
    }

    pub fn take(&mut self, queue: Queue) -> Option<Wc> {
        let at = self.completions.iter().position(|(q, _)| *q == queue)?;
        self.completions.remove(at).map(|(_, wc)| wc)
    }

    fn local(&mut self, sge: &Sge, write: bool) -> Result<&mut Region, Fault> {
        let pd = self.pd();
        let region = self
            .regions
            .iter_mut()
            .find(|region| region.registered && region.lkey == sge.lkey)
            .ok_or(Fault::Key)?;
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        region.range(sge.addr, sge.len as usize)?;
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(Fault::Access);
        }
        Ok(region)
    }

    fn remote(&mut self, rkey: u32, va: u64, len: u64, need: Access) -> Result<&mut Region, Fault> {
        let pd = self.pd();
        let region = self
            .regions
            .iter_mut()
            .find(|region| region.registered && region.rkey_valid && region.rkey == rkey)
            .ok_or(Fault::Key)?;
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        region.range(va, len as usize)?;
        if !region.access.contains(need) {
            return Err(Fault::Access);
        }
        Ok(region)
    }
}

impl Device for Memory {
    fn check_local(&mut self, sge: &Sge, write: bool) -> Result<(), Fault> {
        self.local(sge, write).map(|_| ())
    }

    fn gather(&mut self, sge: &Sge, offset: u32, dst: &mut [u8]) -> Result<(), Fault> {
        let region = self.local(sge, false)?;
        let range = region.range(sge.addr + u64::from(offset), dst.len())?;
        dst.copy_from_slice(&region.bytes[range]);
        Ok(())
    }

    fn scatter(&mut self, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), Fault> {
        assert!(offset as usize + src.len() <= sge.len as usize, "outside the element");
        let region = self.local(sge, true)?;
        let range = region.range(sge.addr + u64::from(offset), src.len())?;
        region.bytes[range].copy_from_slice(src);
        Ok(())
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, need: Access) -> Result<(), Fault> {
        self.remote(rkey, va, len, need).map(|_| ())
    }

    fn read_remote(&mut self, rkey: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let region = self.remote(rkey, va, dst.len() as u64, Access::REMOTE_READ)?;
        let range = region.range(va, dst.len())?;
        dst.copy_from_slice(&region.bytes[range]);
        Ok(())
    }

    fn write_remote(&mut self, rkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        let region = self.remote(rkey, va, src.len() as u64, Access::REMOTE_WRITE)?;
        let range = region.range(va, src.len())?;
        region.bytes[range].copy_from_slice(src);
        Ok(())
    }

    fn carry_out(&mut self, request: &OneSided<'_>) -> Option<Carrier> {
        self.offered += 1;
        (self.carries && !self.breaks_word).then(|| {
            self.carried.push((request.psn, request.len));
            Carrier::Process
        })
    }

    fn could_carry_out(&mut self, _: &OneSided<'_>) -> bool {
        self.carries
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault> {
        if !va.is_multiple_of(8) {
            return Err(Fault::Alignment);
        }
        let region = self.remote(rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let range = region.range(va, 8)?;
        let place = &mut region.bytes[range];
        let before = u64::from_ne_bytes(place.try_into().unwrap());
        let after = match op {
            Atomic::CompareSwap { compare, swap } if compare == before => swap,
            Atomic::CompareSwap { .. } => before,
            Atomic::FetchAdd { add } => before.wrapping_add(add),
        };
        place.copy_from_slice(&after.to_ne_bytes());
        self.atomics += 1;
        Ok(before)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        let region = self
            .regions
            .iter_mut()
            .find(|region| region.registered && region.rkey_valid && region.rkey == rkey)
            .ok_or(Fault::Key)?;
        region.rkey_valid = false;
        Ok(())
    }

    fn locate(&mut self, sge: &Sge, offset: u32, len: u32) -> Result<Piece, Fault> {
        let region = self.local(sge, false)?;
        let addr = sge.addr + u64::from(offset);
        region.range(addr, len as usize).map(|_| Piece { addr, len })
    }

    fn revoke(&mut self) {
        self.revoked += 1;
    }

    fn pull(&mut self, from: u64, sge: &Sge, offset: u32, len: u32) -> Result<(), PullError> {
        let payload = self.payload.clone().ok_or(PullError::Elsewhere)?;
        let bytes = &payload[from as usize..][..len as usize];
        self.scatter(sge, offset, bytes).map_err(PullError::Fault)
    }

    fn pull_remote(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), PullError> {
        let payload = self.payload.clone().ok_or(PullError::Elsewhere)?;
        assert_eq!(payload.len(), len as usize);
        self.write_remote(rkey, va, &payload).map_err(PullError::Fault)
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        self.selected = self.xrc.contains_key(&srqn).then_some(srqn);
        self.selected.is_some()
    }

    fn srq_take(&mut self, wqe: &mut RecvWqe) -> bool {
        let queue = match self.selected.and_then(|srqn| self.xrc.get_mut(&srqn)) {
            Some(srq) => &mut srq.receives,
            None => &mut self.srq,
        };
        match queue.pop_front() {
            Some(next) => {
                *wqe = next;
                true
            }
            None => false,
        }
    }

    fn complete(&mut self, queue: Queue, wc: Wc) {
        if queue == Queue::Recv {
            self.received_on.extend(self.selected);
        }
        self.completions.push_back((queue, wc));
    }

    fn ended(&mut self, operation: Operation, bytes: Option<u64>) {
        self.ended.push((operation, bytes));
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
}
