//! What every object of the verbs has: a handle, a word for the caller, and an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::Error;
use crate::context::limits;

/// How many objects of a kind a Host has, and may have.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    max: u32,
    used: AtomicU32,
}

impl Quota {
    fn new(what: &'static str, max: u32) -> Arc<Quota> {
        Arc::new(Quota { what, max, used: AtomicU32::new(0) })
    }

    fn take(&self) -> Result<(), Error> {
        let more = |used| (used < self.max).then_some(used + 1);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::NoMemory { what: self.what }),
        }
    }

    fn give_back(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The quotas of a Host, those that its devices tell (ibv_query_device(3)).
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) pd: Arc<Quota>,
    pub(crate) cq: Arc<Quota>,
    pub(crate) mr: Arc<Quota>,
    pub(crate) mw: Arc<Quota>,
    pub(crate) ah: Arc<Quota>,
    pub(crate) srq: Arc<Quota>,
    pub(crate) raw_qp: Arc<Quota>,
    pub(crate) wq: Arc<Quota>,
    pub(crate) rwq_table: Arc<Quota>,
    pub(crate) flow: Arc<Quota>,
    pub(crate) counters: Arc<Quota>,
    pub(crate) comp_cntr: Arc<Quota>,
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas {
            pd: Quota::new("protection domain", limits::PD),
            cq: Quota::new("completion queue", limits::CQ),
            mr: Quota::new("memory region", limits::MR),
            mw: Quota::new("memory window", limits::MW),
            ah: Quota::new("address handle", limits::AH),
            srq: Quota::new("shared receive queue", limits::SRQ),
            raw_qp: Quota::new("raw packet queue pair", limits::RAW_QP),
            wq: Quota::new("work queue", limits::WQ),
            rwq_table: Quota::new("table of work queues", limits::WQ),
            flow: Quota::new("flow", limits::FLOW),
            counters: Quota::new("counters object", limits::COUNTERS),
            comp_cntr: Quota::new("completion counter", limits::COMP_CNTR),
        }
    }
}

/// Identity of an object.
#[derive(Debug)]
pub(crate) struct Identity {
    what: &'static str,
    handle: u32,
    cookie: AtomicUsize,
    retired: AtomicBool,
    /// What it counts for until it is destroyed.
    quota: Option<Arc<Quota>>,
}

impl Identity {
    pub(crate) fn new(what: &'static str, handles: &AtomicU32) -> Identity {
        Identity {
            what,
            handle: handles.fetch_add(1, Ordering::Relaxed),
            cookie: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            quota: None,
        }
    }

    /// The identity of another view of the same thing, with its handle.
    pub(crate) fn again(what: &'static str, of: &Identity) -> Identity {
        Identity::new(what, &AtomicU32::new(of.handle))
    }

    /// NoMemory when there are as many as may be.
    pub(crate) fn counted(quota: &Arc<Quota>, handles: &AtomicU32) -> Result<Identity, Error> {
        quota.take()?;
        let mut identity = Identity::new(quota.what, handles);
        identity.quota = Some(quota.clone());
        Ok(identity)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn cookie(&self) -> usize {
        self.cookie.load(Ordering::Acquire)
    }

    pub(crate) fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Release);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Marks the object destroyed; Stale the second time.
    pub(crate) fn retire(&self) -> Result<(), Error> {
        if self.retired.swap(true, Ordering::AcqRel) {
            return Err(Error::Stale { what: self.what });
        }
        if let Some(quota) = &self.quota {
            quota.give_back();
        }
        Ok(())
    }

    /// The same, but Busy while `users` counts somebody.
    pub(crate) fn retire_unless_used(&self, users: &AtomicUsize) -> Result<(), Error> {
        if self.is_retired() {
            return Err(Error::Stale { what: self.what });
        }
        match users.load(Ordering::Acquire) {
            0 => self.retire(),
            users => Err(Error::Busy { what: self.what, users }),
        }
    }

    /// An error unless the object is alive.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_retired() { Err(Error::Stale { what: self.what }) } else { Ok(()) }
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        // Never destroyed, or never made.
        let _ = self.retire();
    }
}

pub(crate) fn take(users: &AtomicUsize) {
    users.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn give_back(users: &AtomicUsize) {
    users.fetch_sub(1, Ordering::AcqRel);
}

/// The accessors every object shares.
macro_rules! accessors {
    ($object:ident) => {
        impl $object {
            /// Number of the object, unique among those of its Host.
            pub fn handle(&self) -> u32 {
                self.identity.handle()
            }

            /// The caller's own word; 0 at creation.
            pub fn cookie(&self) -> usize {
                self.identity.cookie()
            }

            /// Sets the caller's own word.
            pub fn set_cookie(&self, cookie: usize) {
                self.identity.set_cookie(cookie);
            }
        }
    };
}

pub(crate) use accessors;
