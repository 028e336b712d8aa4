//! The other members as ends of lanes: who they are, how they are offered one, how they are woken.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_sys::process::{ClosedOnFork, PidFd};
use ironverbs_sys::unix::{Datagrams, Name};
use parking_lot::Mutex;

use super::Registry;
use super::life::Life;
use super::mail::{Mail, Offer};
use super::seat::Estate;
use super::service::Membership;
use super::table::Tenant;
use crate::local::LaneTable;

/// How long a mailbox may be full: its owner reads it when it polls, and at the latest when its
/// background thread wakes.
const PATIENCE: Duration = Duration::from_millis(100);

/// A member that takes lanes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
    pub(crate) slot: u16,
    /// Which of the slot's tenants it is.
    pub(crate) tenure: u32,
    /// Its process, in our PID namespace too.
    pub(crate) pid: u32,
}

impl Membership {
    pub(crate) fn lanes(&self) -> &LaneTable {
        &self.lanes
    }

    pub(crate) fn slot(&self) -> u16 {
        self.seat.slot
    }

    /// Who is in the slot, if it takes lanes and so do we.
    ///
    /// Only of our PID namespace: there both sides know the other's pid, so that both can tell who
    /// sent an offer and both see the other's death.
    pub(crate) fn peer(&self, slot: u16) -> Option<Peer> {
        self.peer_if(slot, self.tenant(slot)?)
    }

    fn peer_if(&self, slot: u16, theirs: Tenant) -> Option<Peer> {
        let ours = self.tenant(self.slot())?;
        let reachable = ours.lanes && theirs.lanes;
        let same = theirs.identity.namespaces == self.coroner.own.namespaces;
        (reachable && same).then_some(Peer {
            slot,
            tenure: theirs.tenure,
            pid: theirs.identity.pid,
        })
    }

    fn tenant(&self, slot: u16) -> Option<Tenant> {
        self.group.table.tenant(slot)
    }

    /// A descriptor that tells of the peer's death.
    ///
    /// # Errors
    /// NotConnected: it is dead. Unsupported: there is no way to learn of its death.
    pub(crate) fn pidfd(&self, peer: &Peer) -> io::Result<PidFd> {
        let tenant = self.tenant(peer.slot).filter(|tenant| tenant.tenure == peer.tenure);
        let tenant = tenant.ok_or(io::ErrorKind::NotConnected)?;
        if tenant.identity == self.coroner.own {
            return PidFd::open(tenant.identity.pid);
        }
        match self.coroner.examine(peer.slot, &tenant) {
            Life::Alive(Some(pidfd)) => Ok(pidfd),
            Life::Alive(None) => Err(io::ErrorKind::Unsupported.into()),
            Life::Dead => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Whether the peer's process, even if it lives, is no member any more: it has called execve(2).
    pub(crate) fn is_gone(&self, peer: &Peer) -> bool {
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotConnected;
        self.coroner.is_abandoned(peer.slot) || self.pidfd(peer).err().is_some_and(gone)
    }

    pub(crate) fn mailbox(&self, slot: u16) -> io::Result<Name> {
        self.coroner.names.mailbox(slot)
    }

    /// Hands a lane to the peer.
    ///
    /// # Errors
    /// TimedOut: its mailbox has been full for 100 ms. NotConnected: it is gone. Otherwise as
    /// sendmsg(2).
    pub(crate) fn offer(&self, peer: &Peer, lane: BorrowedFd<'_>) -> io::Result<()> {
        let own = self.tenant(self.slot()).ok_or(io::ErrorKind::NotConnected)?;
        let table = self.lanes.announcement();
        let offer = Offer { slot: self.slot(), tenure: own.tenure, to: peer.tenure, table };
        let name = self.mailbox(peer.slot)?;
        let start = Instant::now();
        loop {
            match offer.send(&self.seat.mailbox, &name, lane) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                result => return result,
            }
            if start.elapsed() >= PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes a lane that was offered by the process `pid` of this user.
    pub(super) fn take_offer(&self, pid: u32, offer: &Offer, fds: Vec<OwnedFd>) {
        let own = self.tenant(self.slot()).map(|own| own.tenure);
        // It may have left or died since; what it sent before counts.
        let last = self.group.table.last_tenant(offer.slot);
        let peer = last.and_then(|last| self.peer_if(offer.slot, last)).filter(|peer| {
            // A pid of 0: a process of a namespace of which we see nothing.
            peer.tenure == offer.tenure && peer.pid == pid && pid != 0
        });
        let Some(peer) = peer.filter(|_| own == Some(offer.to)) else { return };
        let taken = match fds.into_iter().next() {
            Some(fd) => self.lanes.accept(self, &peer, fd, offer.table),
            // There was no room for the descriptor.
            None => false,
        };
        if let (false, Ok(name)) = (taken, self.mailbox(peer.slot)) {
            let refusal = Mail::Refusal { slot: self.slot(), tenure: offer.to };
            let _ = refusal.send(&self.seat.mailbox, &name);
        }
    }

    /// The process `pid` says that it, in that slot, could not take our lane.
    pub(super) fn refused(&self, pid: u32, slot: u16, tenure: u32) {
        let peer = self.peer(slot).filter(|peer| peer.tenure == tenure && peer.pid == pid);
        if let Some(peer) = peer {
            self.lanes.depart(&peer);
        }
    }

    /// Closes the lanes and lets their other ends know.
    pub(super) fn close_lanes(&self) {
        for slot in self.lanes.close() {
            if let Ok(name) = self.mailbox(slot) {
                ding(&self.seat.mailbox, &name);
            }
        }
    }
}

/// Processes whose death somebody wants to hear of, apart from those at the other ends of lanes.
#[derive(Debug, Default)]
pub(super) struct Wake {
    pub(super) watched: Mutex<HashMap<(u16, u32), Watched>>,
    dead: Mutex<Vec<Tenancy>>,
    estates: Mutex<Vec<Estate>>,
}

impl Wake {
    /// What the dead have left falls to this process.
    pub(super) fn leave_to_us(&self, estates: &[Estate]) {
        self.estates.lock().extend_from_slice(estates);
    }
}

#[derive(Debug)]
pub(super) struct Watched {
    // First, so that it is gone before the descriptor is closed.
    pub(super) _closed_on_fork: ClosedOnFork,
    pub(super) pidfd: PidFd,
}

/// Names a process: its slot, and which of the slot's tenants it is.
pub(crate) type Tenancy = (u16, u32);

impl Registry {
    /// Who is in a slot now; its death is told by [`Registry::take_dead`] from here on. None: nobody, this process, or
    /// one whose death cannot be learned of.
    pub(crate) fn watch(&self, slot: u16) -> Option<Tenancy> {
        let member = self.member().filter(|member| member.slot() != slot)?;
        let tenant = member.tenant(slot)?;
        let tenancy = (slot, tenant.tenure);
        let mut watched = member.wake.watched.lock();
        if watched.contains_key(&tenancy) {
            return Some(tenancy);
        }
        match member.coroner.examine(slot, &tenant) {
            Life::Alive(Some(pidfd)) => {
                let closed_on_fork = ClosedOnFork::new(pidfd.as_fd()).ok()?;
                member.watch_pidfd(&pidfd).ok()?;
                watched.insert(tenancy, Watched { _closed_on_fork: closed_on_fork, pidfd });
                Some(tenancy)
            }
            Life::Alive(None) => None,
            Life::Dead => {
                member.wake.dead.lock().push(tenancy);
                Some(tenancy)
            }
        }
    }

    /// The processes watched that have died since the last call.
    pub(crate) fn take_dead(&self) -> Vec<Tenancy> {
        let Some(member) = self.member() else { return Vec::new() };
        std::mem::take(&mut *member.wake.dead.lock())
    }

    /// What processes whose end this one has seen to have left to be done, since the last call.
    pub(crate) fn take_estates(&self) -> Vec<Estate> {
        let Some(member) = self.member() else { return Vec::new() };
        std::mem::take(&mut *member.wake.estates.lock())
    }
}

impl Membership {
    /// Finds those watched that are dead. Who has left is not, and is watched until it is.
    pub(super) fn find_dead(&self) {
        let mut watched = self.wake.watched.lock();
        let gone = watched.extract_if(|_, watched| !watched.pidfd.alive());
        for (tenancy, watched) in gone {
            self.unwatch_pidfd(&watched.pidfd);
            self.wake.dead.lock().push(tenancy);
        }
    }
}

/// Wakes the member with that mailbox. If it is full, its owner has something to wake up for.
pub(crate) fn ding(from: &Datagrams, to: &Name) {
    let _ = Mail::Ding.send(from, to);
}
