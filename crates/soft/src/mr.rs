//! Memory regions: what a program registers, changes and deregisters.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ironverbs_sys::copy;
use ironverbs_sys::mem::{self, Mapping};
use ironverbs_transport::verbs::Access;
use parking_lot::Mutex;

use crate::direct::Thing;
use crate::dm::Dm;
use crate::memory::{NOWHERE, REMOTE_BIT, Region, Regions, slot_of_key};
use crate::object::{self, Identity};
use crate::status::Waiting;
use crate::{Context, Error, Pd};

#[derive(Debug)]
struct Registration {
    pd: Arc<Pd>,
    addr: u64,
    len: u64,
    iova: u64,
    access: Access,
    lkey: u32,
}

/// What a region's memory is, if it is not the program's own.
#[derive(Debug)]
enum Holds {
    Nothing,
    /// A file's, mapped for as long as the region lives.
    Mapping {
        _mapping: Mapping,
    },
    /// Device memory, which is not freed before.
    Dm(Arc<Dm>),
}

/// A memory region (ibv_reg_mr(3)).
#[derive(Debug)]
pub struct Mr {
    pub(crate) identity: Identity,
    context: Arc<Context>,
    now: Mutex<Registration>,
    holds: Holds,
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
        Mr::insert(pd, region, Holds::Nothing)
    }

    /// The region that is nowhere: reads as zeros, and forgets what is written (ibv_alloc_null_mr(3)).
    pub(crate) fn null(pd: &Arc<Pd>) -> Result<Arc<Mr>, Error> {
        let access = Access::LOCAL_WRITE;
        let region = Region { pd: pd.handle(), addr: 0, len: 0, iova: NOWHERE, access };
        Mr::insert(pd, region, Holds::Nothing)
    }

    /// Device memory from `offset` on.
    pub(crate) fn of_dm(
        pd: &Arc<Pd>,
        dm: &Arc<Dm>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let addr = dm.place(offset, len)?;
        if !access.contains(Access::ZERO_BASED) {
            let (what, why) = ("access", "device memory is registered with ZERO_BASED");
            return Err(Error::Invalid { what, value: access.bits().into(), why });
        }
        // It may be empty.
        let iova = check(addr, len.max(1), 0, access)?;
        let region = Region { pd: pd.handle(), addr, len, iova, access };
        dm.take()?;
        Mr::insert(pd, region, Holds::Dm(dm.clone())).inspect_err(|_| dm.give_back())
    }

    /// `len` bytes of a file that can be mapped, from `offset` on.
    pub(crate) fn of_file(
        pd: &Arc<Pd>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        if len == 0 {
            let why = "a region has at least one byte";
            return Err(Error::Invalid { what: "length", value: 0, why });
        }
        let wraps =
            || Error::Invalid { what: "offset", value: offset, why: "the range wraps around" };
        let end = offset.checked_add(len).and_then(|end| usize::try_from(end).ok());
        let end = end.ok_or_else(wraps)?;
        // What lies beyond the end is not there, though it could be mapped.
        let size = mem::file_size(file)?;
        if end as u64 > size {
            return Err(Error::Limit { what: "end of the range", asked: end as u64, max: size });
        }
        let writable = access.contains(Access::LOCAL_WRITE);
        let mapping = Mapping::of_file_for(file, end, writable)?;
        let addr = mapping.addr() + offset;
        let iova = check(addr, len, iova, access)?;
        let region = Region { pd: pd.handle(), addr, len, iova, access };
        Mr::insert(pd, region, Holds::Mapping { _mapping: mapping })
    }

    fn insert(pd: &Arc<Pd>, region: Region, holds: Holds) -> Result<Arc<Mr>, Error> {
        let Region { addr, len, iova, access, .. } = region;
        let identity = pd.host().counted(&pd.host().quotas.mr)?;
        let lkey = pd.host().regions.write().insert(region)?;
        object::take(&pd.users);
        let now = Registration { pd: pd.clone(), addr, len, iova, access, lkey };
        let (context, now) = (pd.context().clone(), Mutex::new(now));
        Ok(Arc::new(Mr { identity, context, now, holds }))
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

    /// Bytes; 0 of a null region, and perhaps of one of device memory.
    pub fn len(&self) -> u64 {
        self.now.lock().len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        if now.iova == NOWHERE {
            return Err(Error::NotSupported { what: "changing a null region" });
        }
        if new_range.is_some() && !matches!(self.holds, Holds::Nothing) {
            let what = "another range for a region of device or file memory";
            return Err(Error::NotSupported { what });
        }
        let access = new_access.unwrap_or(now.access);
        let (addr, len, iova) = new_range.unwrap_or((now.addr, now.len, now.iova));
        let iova = check(addr, len, iova, access)?;
        let lkey = now.lkey;
        not_bound(&pd.host().regions.read(), lkey)?;
        let region = Region { pd: pd.handle(), addr, len, iova, access };
        pd.host().regions.write().replace(lkey, region);
        let told = (Waiting::Reregister, lkey);
        pd.host().wait_for_peers(Thing::Region(slot_of_key(lkey)), told);
        object::take(&pd.users);
        object::give_back(&now.pd.users);
        *now = Registration { pd, addr, len, iova, access, lkey };
        Ok(())
    }

    /// Deregisters (ibv_dereg_mr(3)): when this returns, nobody reads or writes the memory any more.
    ///
    /// # Errors
    /// Busy while memory windows are bound to it.
    pub fn destroy(&self) -> Result<(), Error> {
        self.end(false)
    }

    fn end(&self, whatever_is_bound: bool) -> Result<(), Error> {
        self.context.inner().check()?;
        let now = self.now.lock();
        let host = now.pd.host();
        let ended = {
            let mut regions = host.regions.write();
            if !whatever_is_bound {
                not_bound(&regions, now.lkey)?;
            }
            self.identity.retire()?;
            let ended = regions.unbind_all(now.lkey);
            regions.remove(now.lkey);
            ended
        };
        let told = (Waiting::Deregister, now.lkey);
        for window in ended {
            host.wait_for_peers(Thing::Region(window), told);
        }
        host.wait_for_peers(Thing::Region(slot_of_key(now.lkey)), told);
        host.regions.write().free(now.lkey);
        object::give_back(&now.pd.users);
        if let Holds::Dm(dm) = &self.holds {
            dm.give_back();
        }
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Nobody can deregister it any more, and its memory may go next. Destroyed before: nothing to do.
        let _ = self.end(true);
    }
}

/// Busy while windows are bound to the region.
fn not_bound(regions: &Regions, lkey: u32) -> Result<(), Error> {
    match regions.bound_to(lkey) {
        0 => Ok(()),
        users => Err(Error::Busy { what: "memory region", users }),
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
    // On demand, memory may come later, and go again: whoever finds none gets a fault then.
    if !access.contains(Access::ON_DEMAND) {
        accessible(addr, len, access.contains(Access::LOCAL_WRITE))?;
    }
    // The program may have installed a handler of faults since. Where it may not be replaced, memory that is not
    // taken away under a region works all the same.
    let _ = copy::arm();
    Ok(iova)
}

/// Whether the memory is there now, with these rights.
pub(crate) fn accessible(addr: u64, len: u64, write: bool) -> Result<(), Error> {
    let fault = |e: std::io::Error| Error::Fault { addr, len, why: e.to_string() };
    mem::accessible(addr, len, write).map_err(fault)
}
