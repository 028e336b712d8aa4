//! Memory regions and the table that every access is checked against.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ironverbs_sys::copy::{self, AtomicError, Unmapped};
use ironverbs_sys::mem;
use ironverbs_transport::device::Atomic;
use ironverbs_transport::verbs::{Access, Fault};
use parking_lot::Mutex;

use crate::direct::table::RegionLine;
use crate::direct::{Table, Thing};
use crate::object::{self, Identity};
use crate::{Context, Error, Pd};

/// A region as the data path sees it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Region {
    pd: u32,
    /// Where the memory is in this process.
    addr: u64,
    len: u64,
    /// Where it starts for those who name it by key.
    iova: u64,
    access: Access,
}

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
const REMOTE_BIT: u32 = 1 << 8;
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

    fn insert(&mut self, region: Region) -> Result<u32, Error> {
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
    fn replace(&mut self, lkey: u32, region: Region) {
        if let Some(slot) = self.slots.get_mut(slot_of_key(lkey)) {
            slot.region = Some(region);
            *slot.invalidated.get_mut() = false;
            self.announce(slot_of_key(lkey));
        }
    }

    /// Takes a region away; its slot rests until it is [freed](Regions::free). Peers may still be using it.
    fn remove(&mut self, lkey: u32) {
        if let Some(slot) = self.slots.get_mut(slot_of_key(lkey)) {
            slot.region = None;
            self.announce(slot_of_key(lkey));
        }
    }

    fn free(&mut self, lkey: u32) {
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
        self.local(pd, lkey, va, len, write).map(drop)
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
        let src = self.local(pd, lkey, va, dst.len() as u64, false)?;
        // SAFETY: the range lies within a registered region, whose owner promised (reg_mr) that what is mapped there
        // is for peers to read; `self` is borrowed, so no deregistration can finish meanwhile.
        unsafe { copy::read(src, dst) }.map_err(gone)
    }

    pub(crate) fn scatter(&self, pd: u32, lkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        let dst = self.local(pd, lkey, va, src.len() as u64, true)?;
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

#[derive(Debug)]
struct Registration {
    pd: Arc<Pd>,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
    lkey: u32,
}

/// A memory region (ibv_reg_mr(3)).
#[derive(Debug)]
pub struct Mr {
    pub(crate) identity: Identity,
    context: Arc<Context>,
    now: Mutex<Registration>,
}

impl Mr {
    /// # Safety
    /// As [`Pd::reg_mr`].
    pub(crate) unsafe fn register(
        pd: &Arc<Pd>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let iova = check(addr, len, iova, access)?;
        let region = Region { pd: pd.handle(), addr, len, iova, access };
        let identity = pd.host().counted(&pd.host().quotas.mr)?;
        let lkey = pd.host().regions.write().insert(region)?;
        object::take(&pd.users);
        Ok(Arc::new(Mr {
            identity,
            context: pd.context().clone(),
            now: Mutex::new(Registration { pd: pd.clone(), addr, len, iova, access, lkey }),
        }))
    }

    /// Key for local use.
    pub fn lkey(&self) -> u32 {
        self.now.lock().lkey
    }

    /// Key for peers; differs from the lkey, so that mixing them up shows.
    pub fn rkey(&self) -> u32 {
        self.now.lock().lkey | REMOTE_BIT
    }

    /// Start in this process.
    pub fn addr(&self) -> u64 {
        self.now.lock().addr
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.now.lock().len
    }

    /// Never: a region has at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Start as the keys' users name it.
    pub fn iova(&self) -> u64 {
        self.now.lock().iova
    }

    /// Rights.
    pub fn access(&self) -> Access {
        self.now.lock().access
    }

    /// Its protection domain.
    pub fn pd(&self) -> Arc<Pd> {
        self.now.lock().pd.clone()
    }

    /// Changes domain, range or rights (ibv_rereg_mr(3)); the keys stay. On an error nothing has changed.
    ///
    /// # Safety
    /// As for registering: the memory named stays mapped until the region is deregistered.
    pub unsafe fn rereg(
        &self,
        new_pd: Option<&Arc<Pd>>,
        new_range: Option<(u64, u64, u64)>,
        new_access: Option<Access>,
    ) -> Result<(), Error> {
        self.context.check()?;
        self.identity.check()?;
        let mut now = self.now.lock();
        let pd = new_pd.unwrap_or(&now.pd).clone();
        if !Arc::ptr_eq(pd.context(), now.pd.context()) {
            return Err(Error::Foreign { what: "protection domain" });
        }
        let access = new_access.unwrap_or(now.access);
        let (addr, len, iova) = new_range.unwrap_or((now.addr, now.len, now.iova));
        let iova = check(addr, len, iova, access)?;
        let lkey = now.lkey;
        let region = Region { pd: pd.handle(), addr, len, iova, access };
        pd.host().regions.write().replace(lkey, region);
        pd.host().wait_for_peers(Thing::Region(slot_of_key(lkey)), None);
        object::take(&pd.users);
        object::give_back(&now.pd.users);
        *now = Registration { pd, addr, len, iova, access, lkey };
        Ok(())
    }

    /// Deregisters (ibv_dereg_mr(3)): when this returns, nobody reads or writes the memory any more.
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire()?;
        let now = self.now.lock();
        let host = now.pd.host();
        host.regions.write().remove(now.lkey);
        host.wait_for_peers(Thing::Region(slot_of_key(now.lkey)), None);
        host.regions.write().free(now.lkey);
        object::give_back(&now.pd.users);
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Nobody can deregister it any more, and its memory may go next. Destroyed before: nothing to do.
        let _ = self.destroy();
    }
}

object::accessors!(Mr);

/// Rights that say how memory is used and that may be ignored (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;

/// Whether a range may be registered with these rights; where it starts for users of its keys.
fn check(addr: u64, len: u64, iova: u64, access: Access) -> Result<u64, Error> {
    let invalid = |what, value, why| Error::Invalid { what, value, why };
    if access.bits() & !OPTIONAL & !Access::all().bits() != 0 {
        return Err(invalid("access", access.bits().into(), "it has unknown bits"));
    }
    let need_local = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(need_local) && !access.contains(Access::LOCAL_WRITE) {
        let why = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE";
        return Err(invalid("access", access.bits().into(), why));
    }
    if access.intersects(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT) {
        return Err(Error::NotSupported { what: "placement flush" });
    }
    if len == 0 {
        return Err(invalid("length", 0, "a region has at least one byte"));
    }
    let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    if addr.checked_add(len).is_none() || iova.checked_add(len).is_none() {
        return Err(invalid("length", len, "the range wraps around"));
    }
    mem::accessible(addr, len, access.contains(Access::LOCAL_WRITE)).map_err(|e| Error::Fault {
        addr,
        len,
        why: e.to_string(),
    })?;
    // The program may have installed a handler of faults since. Where it may not be replaced, memory that is not
    // taken away under a region works all the same.
    let _ = copy::arm();
    Ok(iova)
}
