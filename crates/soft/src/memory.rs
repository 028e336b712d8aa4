//! The table of memory regions, which every access is checked against.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ironverbs_sys::copy::{self, AtomicError, Unmapped};
use ironverbs_transport::device::Atomic;
use ironverbs_transport::verbs::{Access, Fault};

use crate::Error;
use crate::direct::Table;
use crate::direct::table::RegionLine;

/// A region as the data path sees it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Region {
    pub(crate) pd: u32,
    /// Where the memory is in this process; nowhere, of a null region.
    pub(crate) addr: u64,
    /// Bytes; 0 of a null region, so that nothing lies within it and what it is is looked at only then.
    pub(crate) len: u64,
    /// Where it starts for those who name it by key; [`NOWHERE`] of a null region.
    pub(crate) iova: u64,
    pub(crate) access: Access,
}

/// See [`Region::iova`].
pub(crate) const NOWHERE: u64 = u64::MAX;

impl Region {
    /// The address in this process of `len` bytes at `va`, if they lie within the region.
    fn locate(&self, va: u64, len: u64) -> Result<u64, Fault> {
        let offset = va.checked_sub(self.iova).ok_or(Fault::Range)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.addr.wrapping_add(offset)),
            _ => Err(Fault::Range),
        }
    }
}

/// The program has taken the memory away, or the right to it, and left the region as it was.
fn gone(_: Unmapped) -> Fault {
    Fault::Memory
}

/// Bits of a key: the slot from bit 9 up, bit 8 set in rkeys, the low byte changes with every use of the slot.
const SLOT_SHIFT: u32 = 9;
pub(crate) const REMOTE_BIT: u32 = 1 << 8;
const MAX_SLOTS: usize = 1 << (32 - SLOT_SHIFT);

/// Rights of peers.
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The slot that a key names.
pub(crate) fn slot_of_key(key: u32) -> usize {
    (key >> SLOT_SHIFT) as usize
}

#[derive(Debug, Default)]
struct Slot {
    tag: u8,
    region: Option<Region>,
    /// Set once a peer has invalidated the rkey.
    invalidated: AtomicBool,
}

/// All regions of a Host. Readers hold the lock while they copy, so that a deregistration, which writes,
/// returns only when no copy is under way.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    /// Freed slots, oldest first: a stale key stays unknown for as long as possible.
    free: std::collections::VecDeque<u32>,
    /// Where peers read of them.
    table: Option<Arc<Table>>,
}

impl Regions {
    /// Peers are told of the regions from now on. There are none yet, or those there are stay untold.
    pub(crate) fn tell(&mut self, table: Arc<Table>) {
        self.table = Some(table);
    }

    /// Tells peers what is in a slot.
    fn announce(&self, slot: usize) {
        let (Some(table), Some(entry)) = (&self.table, self.slots.get(slot)) else { return };
        let rkey = (slot as u32) << SLOT_SHIFT | REMOTE_BIT | u32::from(entry.tag);
        let line = entry.region.as_ref().map(|region| RegionLine {
            rkey,
            pd: region.pd,
            access: region.access,
            addr: region.addr,
            len: region.len,
            iova: region.iova,
        });
        let reachable = line.filter(|line| line.access.intersects(REMOTE));
        table.set_region(slot, reachable.as_ref());
    }

    pub(crate) fn insert(&mut self, region: Region) -> Result<u32, Error> {
        // A few slots are kept resting before the first is used again.
        let slot = match self.free.len() {
            n if n > 1024 || self.slots.len() >= MAX_SLOTS => self.free.pop_front(),
            _ => None,
        };
        let slot = match slot {
            Some(slot) => slot as usize,
            None if self.slots.len() < MAX_SLOTS => {
                // Slot 0 stays empty, so that no key is 0.
                if self.slots.is_empty() {
                    self.slots.push(Slot::default());
                }
                self.slots.push(Slot {
                    tag: (self.slots.len() as u8).wrapping_mul(37),
                    ..Slot::default()
                });
                self.slots.len() - 1
            }
            None => return Err(Error::NoMemory { what: "memory region" }),
        };
        let entry = &mut self.slots[slot];
        entry.tag = entry.tag.wrapping_add(1);
        entry.region = Some(region);
        *entry.invalidated.get_mut() = false;
        let lkey = (slot as u32) << SLOT_SHIFT | u32::from(entry.tag);
        self.announce(slot);
        Ok(lkey)
    }

    /// Changes the region of a slot in use; its keys stay. Peers may still be using what it was.
    pub(crate) fn replace(&mut self, lkey: u32, region: Region) {
        if let Some(slot) = self.slots.get_mut(slot_of_key(lkey)) {
            slot.region = Some(region);
            *slot.invalidated.get_mut() = false;
            self.announce(slot_of_key(lkey));
        }
    }

    /// Takes a region away; its slot rests until it is [freed](Regions::free). Peers may still be using it.
    pub(crate) fn remove(&mut self, lkey: u32) {
        if let Some(slot) = self.slots.get_mut(slot_of_key(lkey)) {
            slot.region = None;
            self.announce(slot_of_key(lkey));
        }
    }

    pub(crate) fn free(&mut self, lkey: u32) {
        self.free.push_back(lkey >> SLOT_SHIFT);
    }

    fn find(&self, key: u32, kind: u32) -> Result<(&Slot, &Region), Fault> {
        let slot = self.slots.get(slot_of_key(key)).ok_or(Fault::Key)?;
        match &slot.region {
            Some(region) if key & REMOTE_BIT == kind && key as u8 == slot.tag => Ok((slot, region)),
            _ => Err(Fault::Key),
        }
    }

    /// The address in this process of `len` bytes at `va` of a region, as long as `self` is borrowed.
    pub(crate) fn local(
        &self,
        pd: u32,
        lkey: u32,
        va: u64,
        len: u64,
        write: bool,
    ) -> Result<u64, Fault> {
        let (_, region) = self.find(lkey, 0)?;
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(Fault::Access);
        }
        region.locate(va, len)
    }

    /// The same of `len` bytes that a peer names by `rkey`.
    pub(crate) fn remote(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, Fault> {
        let (slot, region) = self.find(rkey, REMOTE_BIT)?;
        if slot.invalidated.load(Ordering::Acquire) {
            return Err(Fault::Key);
        }
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        if !region.access.contains(need) {
            return Err(Fault::Access);
        }
        region.locate(va, len)
    }

    pub(crate) fn check_local(
        &self,
        pd: u32,
        lkey: u32,
        va: u64,
        len: u64,
        write: bool,
    ) -> Result<(), Fault> {
        self.local(pd, lkey, va, len, write).map(drop).or_else(|fault| self.null(pd, lkey, fault))
    }

    /// Whether an access that `fault` refused is to a null region, of which all may be read and written
    /// (ibv_alloc_null_mr(3)).
    #[cold]
    pub(crate) fn null(&self, pd: u32, lkey: u32, fault: Fault) -> Result<(), Fault> {
        match self.find(lkey, 0) {
            Ok((_, region)) if region.iova == NOWHERE && region.pd == pd => Ok(()),
            _ => Err(fault),
        }
    }

    pub(crate) fn check_remote(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), Fault> {
        self.remote(pd, rkey, va, len, need).map(drop)
    }

    pub(crate) fn gather(&self, pd: u32, lkey: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let src = match self.local(pd, lkey, va, dst.len() as u64, false) {
            Ok(src) => src,
            Err(fault) => return self.null(pd, lkey, fault).map(|()| dst.fill(0)),
        };
        // SAFETY: the range lies within a registered region, whose owner promised (reg_mr) that what is mapped there
        // is for peers to read; `self` is borrowed, so no deregistration can finish meanwhile.
        unsafe { copy::read(src, dst) }.map_err(gone)
    }

    pub(crate) fn scatter(&self, pd: u32, lkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        let dst = match self.local(pd, lkey, va, src.len() as u64, true) {
            Ok(dst) => dst,
            Err(fault) => return self.null(pd, lkey, fault),
        };
        // SAFETY: as in `gather`; the region was registered with LOCAL_WRITE, hence is writable memory.
        unsafe { copy::put(src.as_ptr() as u64, dst, src.len()) }.map_err(gone)
    }

    pub(crate) fn read_remote(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), Fault> {
        let src = self.remote(pd, rkey, va, dst.len() as u64, Access::REMOTE_READ)?;
        // SAFETY: as in `gather`.
        unsafe { copy::read(src, dst) }.map_err(gone)
    }

    pub(crate) fn write_remote(
        &self,
        pd: u32,
        rkey: u32,
        va: u64,
        src: &[u8],
    ) -> Result<(), Fault> {
        let dst = self.remote(pd, rkey, va, src.len() as u64, Access::REMOTE_WRITE)?;
        // SAFETY: as in `scatter`; REMOTE_WRITE is granted only together with LOCAL_WRITE.
        unsafe { copy::put(src.as_ptr() as u64, dst, src.len()) }.map_err(gone)
    }

    pub(crate) fn atomic(&self, pd: u32, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault> {
        let addr = self.remote(pd, rkey, va, 8, Access::REMOTE_ATOMIC)?;
        if !va.is_multiple_of(8) {
            return Err(Fault::Alignment);
        }
        // SAFETY: as in `scatter`; REMOTE_ATOMIC is granted only together with LOCAL_WRITE.
        let before = unsafe {
            match op {
                Atomic::CompareSwap { compare, swap } => copy::compare_swap(addr, compare, swap),
                Atomic::FetchAdd { add } => copy::fetch_add(addr, add),
            }
        };
        before.map_err(|error| match error {
            AtomicError::Misaligned(_) => Fault::Alignment,
            AtomicError::Unmapped(unmapped) => gone(unmapped),
        })
    }

    /// Ends remote access through `rkey`, which must name a region of the PD that peers may reach. The lkey and
    /// the region stay. (Adapters grant this to memory windows and kernel regions only; here a program without
    /// windows can use SEND with invalidate, too.)
    ///
    /// Peers may still be using it.
    pub(crate) fn invalidate(&self, pd: u32, rkey: u32) -> Result<(), Fault> {
        let (slot, region) = self.find(rkey, REMOTE_BIT)?;
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        if !region.access.intersects(REMOTE) {
            return Err(Fault::Access);
        }
        if slot.invalidated.swap(true, Ordering::AcqRel) {
            return Err(Fault::Key);
        }
        // Only whoever was first comes here, and those who change the slot otherwise have the table to themselves.
        if let Some(table) = &self.table {
            table.set_region(slot_of_key(rkey), None);
        }
        Ok(())
    }
}
