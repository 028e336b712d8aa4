//! What every object of the verbs has: a handle, a word for the caller, and an end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::Error;

/// Identity of an object.
#[derive(Debug)]
pub(crate) struct Identity {
    what: &'static str,
    handle: u32,
    cookie: AtomicUsize,
    retired: AtomicBool,
}

impl Identity {
    pub(crate) fn new(what: &'static str, handles: &AtomicU32) -> Identity {
        Identity {
            what,
            handle: handles.fetch_add(1, Ordering::Relaxed),
            cookie: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
        }
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
