//! Memory windows: rights to part of a region that can be given, and taken away again, without registering anything
//! (IBA 10.6.6).

use std::sync::Arc;

use parking_lot::RwLock;

use crate::direct::Thing;
use crate::direct::table::RegionLine;
use crate::memory::{Region, slot_of_key};
use crate::object::{self, Identity};
use crate::status::Waiting;
use crate::{Error, Pd};

/// Type of a memory window (`enum ibv_mw_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MwType {
    /// Bound by ibv_bind_mw(3), any number of times; for every queue pair of its domain.
    One = 1,
    /// Bound by a work request with a key of its choice, once until it is invalidated; for that queue pair alone (2B).
    Two = 2,
}

/// A window as the data path sees it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) pd: u32,
    pub(crate) kind: MwType,
    /// Held for reading by whoever touches memory through it.
    pub(crate) bound: RwLock<Option<Bound>>,
}

/// What a window is bound to.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) rkey: u32,
    /// The region's slot.
    pub(crate) slot: usize,
    /// The one queue pair that it is for; 0: all.
    pub(crate) qpn: u32,
    /// What of the region it gives.
    pub(crate) region: Region,
}

impl Window {
    pub(crate) fn new(pd: u32, kind: MwType) -> Window {
        Window { pd, kind, bound: RwLock::new(None) }
    }
}

impl Bound {
    pub(crate) fn is_for(&self, qpn: u32) -> bool {
        self.qpn == 0 || self.qpn == qpn
    }

    /// As peers are told of it.
    pub(crate) fn line(&self) -> RegionLine {
        let Region { pd, addr, len, iova, access } = self.region;
        RegionLine { rkey: self.rkey, pd, access, addr, len, iova, qpn: self.qpn }
    }
}

/// A memory window (ibv_alloc_mw(3)).
#[derive(Debug)]
pub struct Mw {
    identity: Identity,
    pd: Arc<Pd>,
    kind: MwType,
    rkey: u32,
}

impl Mw {
    pub(crate) fn allocate(pd: &Arc<Pd>, kind: MwType) -> Result<Arc<Mw>, Error> {
        let identity = pd.host().counted(&pd.host().quotas.mw)?;
        let rkey = pd.host().regions.write().insert_window(pd.handle(), kind)?;
        object::take(&pd.users);
        Ok(Arc::new(Mw { identity, pd: pd.clone(), kind, rkey }))
    }

    /// The key that it was made with; whoever binds it gives it others, which differ in the lowest byte.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What it is bound to now: address as peers name it, bytes, and the key they use.
    pub fn bound(&self) -> Option<(u64, u64, u32)> {
        // A fork's copy of the lock may be held for ever.
        self.pd.host().check().ok()?;
        self.pd.host().regions.read().window(self.rkey)
    }

    /// Its type.
    pub fn kind(&self) -> MwType {
        self.kind
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Frees it (ibv_dealloc_mw(3)), bound or not: when this returns, nobody touches anything by its key any more.
    pub fn destroy(&self) -> Result<(), Error> {
        let host = self.pd.host();
        host.check()?;
        self.identity.retire()?;
        host.regions.write().remove_window(self.rkey);
        let told = (Waiting::Deallocate, self.rkey);
        host.wait_for_peers(Thing::Region(slot_of_key(self.rkey)), told);
        host.regions.write().free(self.rkey);
        object::give_back(&self.pd.users);
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // Destroyed before: nothing to do.
        let _ = self.destroy();
    }
}

object::accessors!(Mw);
