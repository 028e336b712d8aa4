//! The lanes of a Host as its progress engine sees them.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ironverbs_sys::moment;
use ironverbs_sys::unix::{Datagrams, Name};
use parking_lot::Mutex;

use super::ring::{Consumer, Producer};
use super::table::Departure;
use crate::direct::{Initiator, Table, Thing};
use crate::registry::{self, Membership, Peer, Registry};
use crate::status::Wait;

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
    pub producer: moment::Mutex<Producer>,
    /// What this process does to the other's memory by itself.
    pub(crate) initiator: Initiator,
    pub(super) alive: AtomicBool,
    pub(super) mailbox: Name,
    pub(super) post: Arc<Datagrams>,
    owed: Owed,
    /// When the receiver was last looked at because it was silent; nanoseconds of the Host's clock.
    doubted: AtomicU64,
}

/// How often that is done at most, in nanoseconds. A stopped process is silent, too.
const DOUBT: u64 = 100_000_000;

/// Short records that found no room in a lane and whose senders will not try again: the last
/// acknowledgements of queue pairs that have ended, refusals.
#[derive(Debug, Default)]
struct Owed {
    any: AtomicBool,
    /// Whether any lane may have something.
    anywhere: Arc<AtomicBool>,
    records: Mutex<VecDeque<(u8, Vec<u8>)>>,
}

/// Owed records of one lane: there is one at most for each queue pair, and fewer queue pairs.
const MOST_OWED: usize = 16_384;

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
    /// The sender is dead, or has nothing more to do with us; true: it was killed.
    pub(super) departed: Option<bool>,
}

impl Outbound {
    pub(super) fn new(
        peer: Peer,
        producer: Producer,
        initiator: Initiator,
        mailbox: Name,
        post: Arc<Datagrams>,
        owing: Arc<AtomicBool>,
    ) -> Outbound {
        let owed = Owed { anywhere: owing, ..Owed::default() };
        let (producer, alive) = (moment::Mutex::new(producer), AtomicBool::new(true));
        let doubted = AtomicU64::new(0);
        Outbound { peer, producer, initiator, alive, mailbox, post, owed, doubted }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether something waits for room that its sender will not send again.
    pub(crate) fn owes(&self) -> bool {
        self.owed.any.load(Ordering::Acquire)
    }

    /// Sends a short record now, or, where there is no room, when there is. The lane's producer is
    /// locked, and wakes the receiver afterwards.
    pub(crate) fn send_surely(&self, producer: &mut Producer, kind: u8, bytes: &[u8]) {
        if !self.owes() && producer.push(kind, bytes) || producer.is_closed() {
            return;
        }
        let mut records = self.owed.records.lock();
        let known = |(k, b): &(u8, Vec<u8>)| *k == kind && b == bytes;
        // What is repeated is a refusal, and of those there are few.
        if records.len() < MOST_OWED && !records.iter().rev().take(64).any(known) {
            records.push_back((kind, bytes.to_vec()));
            self.owed.any.store(true, Ordering::Release);
            self.owed.anywhere.store(true, Ordering::Release);
        }
    }

    /// Sends of what is owed as much as there is room for. Whether any of it was sent.
    pub(super) fn pay(&self) -> bool {
        let mut producer = self.producer.lock();
        let mut records = self.owed.records.lock();
        let before = records.len();
        while let Some((kind, bytes)) = records.front() {
            if !producer.is_closed() && !producer.push(*kind, bytes) {
                break;
            }
            records.pop_front();
        }
        let after = records.len();
        self.owed.any.store(after > 0, Ordering::Release);
        drop(records);
        let wake = after < before && producer.needs_wake();
        drop(producer);
        if wake {
            self.wake();
        }
        after < before
    }

    /// Whether it is time to look at a receiver that is silent.
    pub(crate) fn is_doubtful(&self, now: u64) -> bool {
        let last = self.doubted.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= DOUBT;
        due && self.doubted.swap(now, Ordering::Relaxed) == last
    }

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

    /// Looks whether a process that is silent is there at all.
    pub(crate) fn doubt(&self, peer: &Peer) {
        if let Some(member) = self.member {
            member.lanes().doubt(member, peer);
        }
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
        self.departures().iter().map(|departure| departure.peer.slot).collect()
    }

    /// The same with who it was, and how.
    pub(crate) fn departures(&self) -> Vec<Departure> {
        self.member.map(|member| member.lanes().departures()).unwrap_or_default()
    }

    /// Tells the other ends of all lanes that this process is about to end in good order, so that
    /// its death is not taken for a crash. The lanes work on.
    pub fn leave(&self) {
        if let Some(member) = self.member {
            member.lanes().leave();
        }
    }

    /// Sends what found no room before and has nobody else to send it. Whether anything was sent.
    pub(crate) fn pay(&self) -> bool {
        self.member.is_some_and(|member| member.lanes().pay())
    }

    /// Whether something still waits for room that nobody else sends.
    pub(crate) fn owes(&self) -> bool {
        self.member.is_some_and(|member| member.lanes().owes())
    }

    /// Peers are told where this process's table is, from now on.
    pub(crate) fn announce(&self, table: &Table) {
        if let Some(member) = self.member {
            member.lanes().announce(table.announcement());
        }
    }

    /// Waits until nobody uses `thing`, of which the table says no more; `tell` tells others for which process. False:
    /// not within the limit.
    pub(crate) fn wait_for_initiators<'w>(
        &self,
        thing: Thing,
        limit: Option<Duration>,
        tell: &dyn Fn(u32) -> Option<Wait<'w>>,
    ) -> bool {
        self.member.is_none_or(|member| member.lanes().hazards.wait(member, thing, limit, tell))
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

    /// Whether all who have found no room in a lane did so before [`Lanes::prepare_sleep`], or their receivers would not
    /// wake us.
    pub(crate) fn waits_are_told(&self) -> bool {
        self.member.is_none_or(|member| member.lanes().waits_are_told())
    }

    /// Undoes [`Lanes::prepare_sleep`]: senders need not wake us, we poll.
    pub fn awake(&self) {
        if let Some(member) = self.member {
            member.lanes().awake();
        }
    }
}
