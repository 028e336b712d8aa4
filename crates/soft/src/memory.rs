//! The table of memory regions, which every access is checked against.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironverbs_sys::copy::{self, AtomicError, Unmapped};
use ironverbs_transport::device::Atomic;
use ironverbs_transport::verbs::{Access, Bind, Fault};

use crate::Error;
use crate::direct::Table;
use crate::direct::table::RegionLine;
use crate::window::{Bound, MwType, Window};

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
    /// The same, for peers.
    #[inline]
    fn reach(&self, pd: u32, va: u64, len: u64, need: Access) -> Result<u64, Fault> {
        if self.pd != pd {
            return Err(Fault::Pd);
        }
        if !self.access.contains(need) {
            return Err(Fault::Access);
        }
        self.locate(va, len)
    }

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
    /// Windows that are bound to the region.
    bound: AtomicUsize,
    /// A window, instead of a region.
    window: Option<Box<Window>>,
}

/// Who asks for remote access.
#[derive(Copy, Clone, Debug)]
pub(crate) struct By {
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
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
            qpn: 0,
        });
        let reachable = line.filter(|line| line.access.intersects(REMOTE));
        table.set_region(slot, reachable.as_ref());
    }

    /// A slot that nothing is in, with another tag than before.
    fn take_slot(&mut self, what: &'static str) -> Result<usize, Error> {
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
            None => return Err(Error::NoMemory { what }),
        };
        let entry = &mut self.slots[slot];
        entry.tag = entry.tag.wrapping_add(1);
        Ok(slot)
    }

    pub(crate) fn insert(&mut self, region: Region) -> Result<u32, Error> {
        let slot = self.take_slot("memory region")?;
        let entry = &mut self.slots[slot];
        entry.region = Some(region);
        let lkey = (slot as u32) << SLOT_SHIFT | u32::from(entry.tag);
        self.announce(slot);
        Ok(lkey)
    }

    /// Adds a window, bound to nothing; its first rkey.
    pub(crate) fn insert_window(&mut self, pd: u32, kind: MwType) -> Result<u32, Error> {
        let slot = self.take_slot("memory window")?;
        let entry = &mut self.slots[slot];
        entry.window = Some(Box::new(Window::new(pd, kind)));
        Ok((slot as u32) << SLOT_SHIFT | REMOTE_BIT | u32::from(entry.tag))
    }

    /// Takes a window away; the rest is as with [`remove`](Regions::remove).
    pub(crate) fn remove_window(&mut self, rkey: u32) {
        let slot = slot_of_key(rkey);
        let window = self.slots.get_mut(slot).and_then(|entry| entry.window.take());
        if let Some(window) = window {
            self.unbind(slot, &mut window.bound.write());
        }
    }

    /// Changes the region of a slot in use; its keys stay. Peers may still be using what it was.
    pub(crate) fn replace(&mut self, lkey: u32, region: Region) {
        if let Some(slot) = self.slots.get_mut(slot_of_key(lkey)) {
            slot.region = Some(region);
            self.announce(slot_of_key(lkey));
        }
    }

    /// Windows bound to a region.
    pub(crate) fn bound_to(&self, lkey: u32) -> usize {
        self.slots.get(slot_of_key(lkey)).map_or(0, |slot| slot.bound.load(Ordering::Acquire))
    }

    /// Ends what is bound to a region, for one that goes whatever is; the windows that it was.
    pub(crate) fn unbind_all(&mut self, lkey: u32) -> Vec<usize> {
        let region = slot_of_key(lkey);
        let mut ended = Vec::new();
        if self.bound_to(lkey) > 0 {
            for (slot, entry) in self.slots.iter().enumerate() {
                let Some(window) = &entry.window else { continue };
                let mut bound = window.bound.write();
                if bound.as_ref().is_some_and(|bound| bound.slot == region) {
                    self.unbind(slot, &mut bound);
                    ended.push(slot);
                }
            }
        }
        ended
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

    fn find(&self, key: u32, kind: u32) -> Result<&Region, Fault> {
        let slot = self.slots.get(slot_of_key(key)).ok_or(Fault::Key)?;
        match &slot.region {
            Some(region) if key & REMOTE_BIT == kind && key as u8 == slot.tag => Ok(region),
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
        let region = self.find(lkey, 0)?;
        if region.pd != pd {
            return Err(Fault::Pd);
        }
        if write && !region.access.contains(Access::LOCAL_WRITE) {
            return Err(Fault::Access);
        }
        region.locate(va, len)
    }

    /// Runs `access` on the address of `len` bytes that a peer names by `rkey`. What it does there is over before the key
    /// can have become void.
    pub(crate) fn remote<T>(
        &self,
        by: By,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
        access: impl FnOnce(u64) -> T,
    ) -> Result<T, Fault> {
        let Ok(region) = self.find(rkey, REMOTE_BIT) else {
            return self.through_window(
                by,
                rkey,
                |region| region.reach(by.pd, va, len, need),
                access,
            );
        };
        region.reach(by.pd, va, len, need).map(access)
    }

    /// The same by the key of a window.
    #[cold]
    fn through_window<T>(
        &self,
        by: By,
        rkey: u32,
        reach: impl FnOnce(&Region) -> Result<u64, Fault>,
        access: impl FnOnce(u64) -> T,
    ) -> Result<T, Fault> {
        let slot = self.slots.get(slot_of_key(rkey)).ok_or(Fault::Key)?;
        let bound = slot.window.as_ref().ok_or(Fault::Key)?.bound.read();
        match &*bound {
            Some(bound) if bound.rkey == rkey && bound.is_for(by.qpn) => {
                reach(&bound.region).map(access)
            }
            _ => Err(Fault::Key),
        }
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
            Ok(region) if region.iova == NOWHERE && region.pd == pd => Ok(()),
            _ => Err(fault),
        }
    }

    pub(crate) fn check_remote(
        &self,
        by: By,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), Fault> {
        self.remote(by, rkey, va, len, need, drop)
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
        by: By,
        rkey: u32,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), Fault> {
        self.remote(by, rkey, va, dst.len() as u64, Access::REMOTE_READ, |src| {
            // SAFETY: as in `gather`.
            unsafe { copy::read(src, dst) }.map_err(gone)
        })?
    }

    pub(crate) fn write_remote(&self, by: By, rkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        self.remote(by, rkey, va, src.len() as u64, Access::REMOTE_WRITE, |dst| {
            // SAFETY: as in `scatter`; REMOTE_WRITE is granted only together with LOCAL_WRITE.
            unsafe { copy::put(src.as_ptr() as u64, dst, src.len()) }.map_err(gone)
        })?
    }

    pub(crate) fn atomic(&self, by: By, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault> {
        self.remote(by, rkey, va, 8, Access::REMOTE_ATOMIC, |addr| {
            if !va.is_multiple_of(8) {
                return Err(Fault::Alignment);
            }
            // SAFETY: as in `scatter`; REMOTE_ATOMIC is granted only together with LOCAL_WRITE.
            let before = unsafe {
                match op {
                    Atomic::CompareSwap { compare, swap } => {
                        copy::compare_swap(addr, compare, swap)
                    }
                    Atomic::FetchAdd { add } => copy::fetch_add(addr, add),
                }
            };
            before.map_err(|error| match error {
                AtomicError::Misaligned(_) => Fault::Alignment,
                AtomicError::Unmapped(unmapped) => gone(unmapped),
            })
        })?
    }

    /// What a window is bound to: address as peers name it, bytes, key.
    pub(crate) fn window(&self, rkey: u32) -> Option<(u64, u64, u32)> {
        let window = self.slots.get(slot_of_key(rkey))?.window.as_ref()?;
        let bound = window.bound.read();
        bound.as_ref().map(|bound| (bound.region.iova, bound.region.len, bound.rkey))
    }

    /// Binds a window (IBA 10.6.6.2). Where the key was another before, peers may still be using what it named.
    pub(crate) fn bind(&self, by: By, bind: &Bind) -> Result<(), Fault> {
        let slot = slot_of_key(bind.rkey);
        let window = self.slots.get(slot).and_then(|slot| slot.window.as_ref());
        let window = window.filter(|_| bind.rkey & REMOTE_BIT != 0).ok_or(Fault::Key)?;
        if window.pd != by.pd {
            return Err(Fault::Pd);
        }
        let mut bound = window.bound.write();
        if window.kind == MwType::Two && bound.is_some() {
            return Err(Fault::Key);
        }
        let new = match (bind.len, window.kind) {
            (0, MwType::One) => None,
            (0, MwType::Two) => return Err(Fault::Range),
            _ => Some(self.bound_as(by, window.kind, bind)?),
        };
        self.unbind(slot, &mut bound);
        if let Some(new) = new {
            if let Some(region) = self.slots.get(new.slot) {
                region.bound.fetch_add(1, Ordering::AcqRel);
            }
            if let Some(table) = &self.table {
                table.set_region(slot, Some(&new.line()));
            }
            *bound = Some(new);
        }
        Ok(())
    }

    /// What a window is when it has been bound.
    fn bound_as(&self, by: By, kind: MwType, bind: &Bind) -> Result<Bound, Fault> {
        let region = self.find(bind.lkey, 0)?;
        if region.pd != by.pd {
            return Err(Fault::Pd);
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let given = region.access;
        if !given.contains(Access::MW_BIND)
            || given.contains(Access::ZERO_BASED)
            || bind.access.intersects(writes) && !given.contains(Access::LOCAL_WRITE)
        {
            return Err(Fault::Access);
        }
        let addr = region.locate(bind.addr, bind.len)?;
        let iova = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        Ok(Bound {
            rkey: bind.rkey,
            slot: slot_of_key(bind.lkey),
            qpn: if kind == MwType::Two { by.qpn } else { 0 },
            region: Region { pd: by.pd, addr, len: bind.len, iova, access: bind.access & REMOTE },
        })
    }

    /// Ends what the window in a slot is bound to.
    fn unbind(&self, slot: usize, bound: &mut Option<Bound>) {
        let Some(old) = bound.take() else { return };
        if let Some(table) = &self.table {
            table.set_region(slot, None);
        }
        if let Some(region) = self.slots.get(old.slot) {
            region.bound.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Ends what `rkey` names, which must be a window of type 2 that was bound by this queue pair (IBA 10.6.6.3).
    ///
    /// Peers may still be using it.
    pub(crate) fn invalidate(&self, by: By, rkey: u32) -> Result<(), Fault> {
        let slot = slot_of_key(rkey);
        let window =
            self.slots.get(slot).and_then(|slot| slot.window.as_ref()).ok_or(Fault::Key)?;
        if window.pd != by.pd {
            return Err(Fault::Pd);
        }
        if window.kind != MwType::Two {
            return Err(Fault::Access);
        }
        let mut bound = window.bound.write();
        match &*bound {
            Some(now) if now.rkey == rkey && now.is_for(by.qpn) => {
                self.unbind(slot, &mut bound);
                Ok(())
            }
            _ => Err(Fault::Key),
        }
    }
}
