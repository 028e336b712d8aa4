//! What a Host has of the connection manager: the protocol's state, and which id is what to it.
//!
//! One lock holds all of it. It comes after the progress engine's and before those of ids, queue pairs' senders,
//! channels and timers; nobody takes it who holds one of those, or a queue pair's.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_mad::{Cm, Config, ConnId, ListenerId, SidrId};
use ironverbs_transport::device::Instant;
use ironverbs_wire::Path;
use ironverbs_wire::mad::Mad;
use parking_lot::{Mutex, MutexGuard};

use super::CmId;
use super::grace::Grace;
use super::last_words::LastWords;
use super::ports::Ports;
use super::wire::{self, Handed, Reports};
use crate::host::{AT_EXIT, Inner};
use crate::registry::{Registry, Tenancy};

/// The number that the Host's timers know the connection manager by: the QPN of its queue pair.
pub(crate) const TIMER: u32 = 1;

/// Bits of a communication ID that name the process.
pub(crate) const SLOT_BITS: u8 = 10;

/// Resolutions of datagram services, and of connections, that may be under way at once.
const REQUESTS: usize = 1 << 12;

/// The connection manager of a Host.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    pub(super) ports: Ports,
    numbers: AtomicU64,
    ids: Mutex<HashMap<u64, Weak<CmId>>>,
    resolving: Mutex<Vec<Resolving>>,
    /// Packets for other processes that wait for room in their mailboxes.
    pub(super) waiting: Mutex<VecDeque<(u16, Handed)>>,
    /// What is said for processes that are dead.
    pub(super) last_words: Mutex<Vec<LastWords>>,
    /// MADs to other hosts.
    pub(super) reports: Reports,
    core: Mutex<Core>,
}

/// An id that waits for a neighbour.
#[derive(Debug)]
struct Resolving {
    id: Weak<CmId>,
    at: Instant,
}

/// The protocol, and whose its connections are.
#[derive(Debug, Default)]
pub(super) struct Core {
    /// None until somebody needs it.
    protocol: Option<Protocol>,
    pub(super) conns: HashMap<ConnId, Weak<CmId>>,
    pub(super) listeners: HashMap<ListenerId, Weak<CmId>>,
    pub(super) sidrs: HashMap<SidrId, Weak<CmId>>,
    /// The deadline that the timers know of.
    timer: Option<Instant>,
    pub(super) psn: u32,
    pub(super) grace: Grace,
    random: fastrand::Rng,
}

#[derive(Debug)]
struct Protocol {
    cm: Cm,
    /// The slot that its communication IDs name; None: this process had none.
    slot: Option<u16>,
}

impl Manager {
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn remember(&self, id: &Arc<CmId>) {
        self.ids.lock().insert(id.number(), Arc::downgrade(id));
    }

    pub(super) fn forget(&self, number: u64) {
        self.ids.lock().remove(&number);
    }

    /// All ids there are.
    pub(super) fn ids(&self) -> Vec<Arc<CmId>> {
        self.ids.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Has [`CmId::look_again`] called.
    pub(super) fn resolve_later(&self, host: &Inner, id: Weak<CmId>, at: Instant) {
        self.resolving.lock().push(Resolving { id, at });
        host.add_timer(at, TIMER);
    }

    /// A timer is due.
    pub(crate) fn timeout(&self, host: &Inner, now: Instant) {
        wire::hand_again(host);
        self.repeat_last_words(host, now);
        let due: Vec<_> =
            self.resolving.lock().extract_if(.., |waiting| waiting.at <= now).collect();
        for id in due.into_iter().filter_map(|waiting| waiting.id.upgrade()) {
            id.look_again(now);
        }
        let mut session = self.session(host);
        let heard = session.hear(true);
        session.look_for_listeners();
        let due = session.core.timer.is_some_and(|deadline| deadline <= now);
        if due {
            session.core.timer = None;
            session.cm().handle_timeout(ironverbs_mad::Instant(now.0));
        }
        if due || heard {
            session.run();
        }
    }

    /// A MAD that QP1 has received.
    pub(crate) fn receive(&self, host: &Inner, path: &Path, pkey: u16, mad: &Mad) {
        if host.fabric.receive(host, path, mad) {
            return;
        }
        let mut session = self.session(host);
        session.take(path, pkey, mad);
        session.run();
    }

    /// The group was joined only now.
    pub(crate) fn joined(&self, registry: &Registry) {
        self.ports.announce(registry);
    }

    /// Processes of this host have died.
    pub(crate) fn mourn(&self, host: &Inner, dead: &[Tenancy]) {
        if !dead.is_empty() {
            let mut session = self.session(host);
            session.mourn(dead);
            session.run();
        }
    }

    /// The program ends: disconnects what is connected, takes back what waits.
    pub(crate) fn farewell(&self, host: &Inner) {
        let Some(core) = self.core.try_lock_for(AT_EXIT) else { return };
        let mut session = Session { core, held: Vec::new(), host };
        let conns: Vec<_> = session.core.conns.drain().map(|(conn, _)| conn).collect();
        let sidrs: Vec<_> = session.core.sidrs.drain().map(|(sidr, _)| sidr).collect();
        if conns.is_empty() && sidrs.is_empty() {
            return;
        }
        let now = session.now();
        conns.into_iter().for_each(|conn| session.cm().release(now, conn));
        sidrs.into_iter().for_each(|sidr| session.cm().sidr_release(now, sidr));
        session.run();
    }

    /// The interfaces have changed: tells those ids whose device is gone.
    pub(crate) fn look_for_removals(&self) {
        for id in self.ids() {
            id.look_at_device();
        }
    }

    /// Takes the lock.
    pub(super) fn session<'a>(&'a self, host: &'a Inner) -> Session<'a> {
        Session { core: self.core.lock(), held: Vec::new(), host }
    }
}

/// Holds the connection manager's lock.
pub(super) struct Session<'a> {
    pub(super) core: MutexGuard<'a, Core>,
    /// Ids that were looked at. They may be the last references, and dropping one takes the lock: so they go after
    /// it (fields are dropped in order).
    held: Vec<Arc<CmId>>,
    pub(super) host: &'a Inner,
}

impl Session<'_> {
    /// The protocol. What is told it goes out with [`Session::run`].
    pub(super) fn cm(&mut self) -> &mut Cm {
        let slot = self.host.registry().map(|registry| registry.slot());
        let core = &mut *self.core;
        // The group was joined only now: communication IDs are to name the slot from now on.
        if core.protocol.as_ref().is_some_and(|old| old.slot != slot && old.cm.is_empty()) {
            core.protocol = None;
        }
        let fresh = core.protocol.is_none();
        let protocol = core.protocol.get_or_insert_with(|| Protocol::new(self.host, slot));
        if fresh {
            let before = std::mem::take(&mut core.listeners);
            for (_, id) in before {
                let Some(listener) = id.upgrade() else { continue };
                listener.listen_again(&mut protocol.cm, &mut core.listeners);
                self.held.push(listener);
            }
        }
        &mut protocol.cm
    }

    /// A PSN to start with.
    pub(super) fn random_psn(&mut self) -> u32 {
        self.core.random.u32(..) & 0xff_ffff
    }

    pub(super) fn now(&self) -> ironverbs_mad::Instant {
        ironverbs_mad::Instant(self.host.now().0)
    }

    /// Keeps an id until the lock is released.
    pub(super) fn hold(&mut self, id: Arc<CmId>) -> Arc<CmId> {
        self.held.push(id.clone());
        id
    }

    /// The id that a reference stands for, kept until the lock is released.
    pub(super) fn upgrade(&mut self, id: Option<&Weak<CmId>>) -> Option<Arc<CmId>> {
        let id = id.and_then(Weak::upgrade)?;
        Some(self.hold(id))
    }

    /// Takes what hosts say of MADs that did not arrive. Whether any did.
    fn hear(&mut self, due: bool) -> bool {
        let refusals = self.host.cm.reports.refusals(due);
        let now = self.now();
        for gid in &refusals {
            self.cm().refused(now, gid);
        }
        !refusals.is_empty()
    }

    /// Sends what is to be sent, and tells ids what has happened to them.
    pub(super) fn run(&mut self) {
        loop {
            if let Some(transmit) = self.cm().poll_transmit() {
                let psn = self.core.psn;
                self.core.psn = psn.wrapping_add(1) & 0xff_ffff;
                if wire::send(self.host, &transmit, psn) == wire::Sent::Here {
                    self.take(&transmit.path, transmit.pkey, &transmit.mad);
                }
            } else if let Some(event) = self.cm().poll_event() {
                self.happened(event);
            } else if !self.hear(false) {
                break;
            }
        }
        self.bequeath();
        let next = self.cm().next_timeout().map(|at| Instant(at.0));
        if let Some(next) = next
            && self.core.timer.is_none_or(|known| next < known)
        {
            self.core.timer = Some(next);
            self.host.add_timer(next, TIMER);
        }
    }
}

impl Protocol {
    fn new(host: &Inner, slot: Option<u16>) -> Protocol {
        let config = Config {
            max_pending: REQUESTS,
            max_transmits: 2 * REQUESTS,
            ..Config::new(slot.unwrap_or_default().into(), SLOT_BITS, host.random())
        };
        Protocol { cm: Cm::new(config), slot }
    }
}
