//! The lanes of a Host as its progress engine sees them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ironverbs_sys::unix::{Datagrams, Name};
use parking_lot::Mutex;

use super::ring::{Consumer, Producer};
use crate::registry::{self, Membership, Peer, Registry};

/// The lanes of this process: `registry.lanes()`.
///
/// Lanes that others offer, and deaths, are taken in [`Registry::service`]; what came of it shows in
/// the next [`Lanes::for_each_inbound`]. In a child of fork(2) there are none.
#[derive(Clone, Copy, Debug)]
pub struct Lanes<'a> {
    /// None in a child of fork(2).
    member: Option<&'a Membership>,
}

/// A lane to another process, or to this one. Not to be touched in a child of fork(2).
pub struct Outbound {
    pub(super) peer: Peer,
    /// The ring. Who finds it full notes under this lock what is to be sent later, so that no wake
    /// is lost in between.
    pub producer: Mutex<Producer>,
    pub(super) alive: AtomicBool,
    pub(super) mailbox: Name,
    pub(super) post: Arc<Datagrams>,
}

/// A lane from another process, or from this one.
#[derive(Debug)]
pub struct Inbound {
    /// The sender's slot.
    pub slot: u16,
    /// The sender's process id.
    pub pid: u32,
    /// The ring.
    pub consumer: Consumer,
    pub(super) peer: Peer,
    /// The sender is dead, or has nothing more to do with us.
    pub(super) departed: bool,
}

impl Outbound {
    /// The receiver's slot.
    pub fn slot(&self) -> u16 {
        self.peer.slot
    }

    /// The receiver's process id.
    pub fn pid(&self) -> u32 {
        self.peer.pid
    }

    /// Wakes the receiver: its [`Registry::service_fd`] becomes readable. Never blocks.
    pub fn wake(&self) {
        if self.is_alive() {
            registry::ding(&self.post, &self.mailbox);
        }
    }

    /// Whether the receiver, as far as is known, is alive and takes from the lane. Where not,
    /// [`Lanes::to`] makes a new lane or says why there is none.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("peer", &self.peer)
            .field("alive", &self.is_alive())
            .finish_non_exhaustive()
    }
}

impl<'a> Lanes<'a> {
    /// The lanes of a member.
    pub fn new(registry: &'a Registry) -> Lanes<'a> {
        Lanes { member: registry.member() }
    }

    /// Whether the process in that slot can be reached by a lane: it has not left, is of our PID
    /// namespace, and takes lanes ([`registry::JoinOptions::lanes`]), as we do. Our own slot can.
    pub fn capable(&self, slot: u16) -> bool {
        self.member.is_some_and(|member| member.peer(slot).is_some())
    }

    /// The lane to the process in that slot; it is made when there is none.
    ///
    /// # Errors
    /// NotConnected: not [`Lanes::capable`], or dead. TimedOut: its mailbox has been full for 100 ms.
    /// Otherwise as memfd_create(2), mmap(2), pidfd_open(2) and sendmsg(2).
    pub fn to(&self, slot: u16) -> io::Result<Arc<Outbound>> {
        let member = self.member.ok_or(io::ErrorKind::NotConnected)?;
        member.lanes().to(member, slot)
    }

    /// Calls `f` for each lane to us, then wakes its sender if that waits for room. While another
    /// thread is in it, returns false at once; `f` may call everything here but this.
    ///
    /// `f` is to take all records there are, or at least some. A lane whose sender is dead stays
    /// until it is empty; one whose sender wrote nonsense goes after the call that found out.
    pub fn for_each_inbound(&self, f: &mut dyn FnMut(&mut Inbound)) -> bool {
        self.member.is_none_or(|member| member.lanes().for_each_inbound(member, f))
    }

    /// Wakes the process in that slot. Never blocks.
    pub fn wake(&self, slot: u16) {
        if let Some(member) = self.member {
            member.lanes().wake(member, slot);
        }
    }

    /// Slots whose process died, left, broke its lane or could not take ours, since the last call:
    /// each one after what it had sent has been taken by [`Lanes::for_each_inbound`].
    pub fn deaths(&self) -> Vec<u16> {
        self.member.map(|member| member.lanes().deaths()).unwrap_or_default()
    }

    /// To be called before going to sleep on [`Registry::service_fd`]: from now on senders wake us,
    /// and so do receivers for which we have something that found no room. False: there is something
    /// to do; nobody sleeps.
    ///
    /// It stays in force until [`Lanes::awake`], once for each lane: who has been woken calls it again
    /// before sleeping again. Polling meanwhile does no harm.
    pub fn prepare_sleep(&self) -> bool {
        self.member.is_none_or(|member| member.lanes().prepare_sleep())
    }

    /// Undoes [`Lanes::prepare_sleep`]: senders need not wake us, we poll.
    pub fn awake(&self) {
        if let Some(member) = self.member {
            member.lanes().awake();
        }
    }
}
