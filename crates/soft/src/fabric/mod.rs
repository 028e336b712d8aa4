//! Who can be reached, and who comes and goes: what clusters find dead nodes by.
//!
//! On InfiniBand links the subnet's administrator tells of other hosts and of groups ([`sa`]). There is none on RoCE, so the
//! answers come from the fabric itself.
//! - *Reachable* is a GID of this host that a device has, and any other to which there is a route and whose own QP1
//!   answers ([`Prober`]).
//! - *In service* is, on this host, a GID from when its address appears on an interface that is up until it goes, and
//!   anew from when the first other process opens a device with it until the last has ended: processes tell in the
//!   registry what they have open, and deaths are pidfds ([`local`]). A process that only watches does not count, since
//!   nobody could miss it. Of other hosts a GID is in service while their QP1 answers: those that a registration names,
//!   and for all GIDs those that this process's queue pairs are connected to, are asked every 25 ms; after 200 ms of
//!   silence, or at once where the host says that nobody has the port, they are out of service ([`remote`]).
//! - *Multicast groups* are those that processes of this host have joined.
//!
//! Locks: the state's comes after the progress engine's and before those of queue pairs and event queues.

mod local;
mod probe;
mod reach;
mod remote;
pub(crate) mod sa;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bitflags::bitflags;
use ironverbs_mad::{ProbeEvent, ProbeId, Prober};
use ironverbs_sys::netlink::Interface;
use ironverbs_transport::device::Instant;
use ironverbs_wire::mad::Mad;
use ironverbs_wire::{Gid, Path};
use parking_lot::{Mutex, RwLock};

use crate::cm;
use crate::event::{AsyncEvent, EventKind, EventSource};
use crate::host::Inner;
use crate::subnet::Subnet;
use crate::{Context, Error};

pub use local::Neighbourhood;
use local::{Link, Seen};
use probe::Probes;
use reach::Ask;
pub use reach::ReachError;
pub(crate) use reach::record;

/// The number that the Host's timers know this by.
pub(crate) const TIMER: u32 = 0;

/// How often it is looked for what nothing tells of: new connections, routes that came, processes whose death cannot
/// be watched. In nanoseconds.
const LOOK: u64 = 250_000_000;

bitflags! {
    /// What a registration is for (`ibv_sm_event_type_t`).
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
    pub struct SmEvents: u32 {
        /// The multicast groups that are named.
        const MGID = 1;
        /// The ports' GIDs that are named.
        const UGID = 2;
        /// All multicast groups.
        const MGID_ALL = 4;
        /// All GIDs of ports.
        const UGID_ALL = 8;
        /// Everything.
        const ALL = 4 | 8;
    }
}

/// What a context wants to hear of; see [`Context::register_sm_events`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmRegistration {
    events: SmEvents,
    gids: Vec<Gid>,
}

impl SmRegistration {
    /// A registration for `events`, of which MGID and UGID are for these GIDs.
    ///
    /// # Errors
    /// Invalid: no events, or GIDs without MGID or UGID or the reverse, or a GID of the other kind.
    pub fn new(events: SmEvents, gids: &[Gid]) -> Result<SmRegistration, Error> {
        let wrong = |why| Error::Invalid { what: "events", value: events.bits().into(), why };
        if events.is_empty() {
            return Err(wrong("there is none"));
        }
        let named = events.intersects(SmEvents::MGID | SmEvents::UGID);
        match (named, gids.is_empty()) {
            (true, true) => return Err(wrong("MGID and UGID need GIDs")),
            (false, false) => return Err(wrong("GIDs are for MGID and UGID")),
            _ => {}
        }
        for gid in gids {
            let kind = if gid.is_multicast() { SmEvents::MGID } else { SmEvents::UGID };
            let why = match gid {
                gid if *gid == Gid::UNSPECIFIED => "it is all zeros",
                _ if !events.contains(kind) => "it is of the kind that is not asked for",
                _ => continue,
            };
            let value = (u128::from_be_bytes(gid.0) >> 64) as u64;
            return Err(Error::Invalid { what: "gid", value, why });
        }
        Ok(SmRegistration { events, gids: gids.to_vec() })
    }

    fn covers(&self, gid: &Gid) -> bool {
        let [named, all] = match gid.is_multicast() {
            true => [SmEvents::MGID, SmEvents::MGID_ALL],
            false => [SmEvents::UGID, SmEvents::UGID_ALL],
        };
        self.events.contains(all) || self.events.contains(named) && self.gids.contains(gid)
    }
}

/// What a Host knows of the fabric.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    /// Somebody is registered.
    watching: AtomicBool,
    /// The interfaces when they were last looked at.
    links: RwLock<Vec<Link>>,
    state: Mutex<State>,
    /// Of InfiniBand links.
    pub(crate) sa: sa::Sa,
}

#[derive(Debug, Default)]
struct State {
    registrations: Vec<(Weak<Context>, SmRegistration)>,
    seen: Seen,
    /// None until somebody needs it.
    probes: Option<Probes>,
    asks: HashMap<ProbeId, Arc<Ask>>,
    /// GIDs of other hosts under watch.
    watched: BTreeMap<Gid, ProbeId>,
    /// Hosts of the subnet that the steward has under watch, and whether they answered last.
    monitored: BTreeMap<Gid, (ProbeId, Option<bool>)>,
    /// The deadline that the timers know of.
    timer: Option<Instant>,
    next_look: Option<Instant>,
}

impl Context {
    /// Has SM events of the fabric come as asynchronous events of this context: GidAvail, GidUnavail, McgCreated and
    /// McgDeleted, each with its GID as [`EventSource::Gid`]. One registration is enough for what is reached through any
    /// of the host's devices.
    ///
    /// # Errors
    /// Io: the device has no wire, so that nothing can be learned.
    pub fn register_sm_events(self: &Arc<Self>, registration: SmRegistration) -> Result<(), Error> {
        let host = self.inner();
        host.check()?;
        self.identity.check()?;
        if host.registry().is_none() {
            let why = host.wire_problem().unwrap_or_else(|| "the device has no wire".into());
            return Err(Error::Io(std::io::Error::other(why)));
        }
        let mut state = host.fabric.state.lock();
        if state.registrations.is_empty() {
            host.fabric.watching.store(true, Ordering::Release);
            // Tells others to wake us first: what changes from here on is told or seen.
            host.announce();
            state.seen = host.fabric.survey(host);
        }
        state.registrations.push((Arc::downgrade(self), registration));
        host.fabric.see_to_remote(&mut state, host);
        host.fabric.arm(&mut state, host);
        drop(state);
        host.fabric.sa.registered(host);
        Ok(())
    }

    /// Takes a registration back.
    ///
    /// # Errors
    /// Invalid when there is none with the same events and GIDs.
    pub fn unregister_sm_events(&self, registration: &SmRegistration) -> Result<(), Error> {
        let host = self.inner();
        host.check()?;
        let mut state = host.fabric.state.lock();
        let same = |(context, other): &(Weak<Context>, SmRegistration)| {
            std::ptr::eq(context.as_ptr(), self) && other == registration
        };
        let at = state.registrations.iter().position(same).ok_or(Error::Invalid {
            what: "registration",
            value: registration.events.bits().into(),
            why: "there is none with these events and GIDs",
        })?;
        state.registrations.swap_remove(at);
        host.fabric.settle(&mut state, host);
        Ok(())
    }
}

impl Fabric {
    /// Whether anybody wants to hear of others.
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// The context is closed.
    pub(crate) fn forget(&self, context: &Context) {
        if !self.is_watching() {
            return;
        }
        let mut state = self.state.lock();
        let before = state.registrations.len();
        state.registrations.retain(|(of, _)| !std::ptr::eq(of.as_ptr(), context));
        if state.registrations.len() != before {
            self.settle(&mut state, context.inner());
        }
    }

    /// After a registration has gone.
    fn settle(&self, state: &mut State, host: &Inner) {
        if state.registrations.is_empty() {
            self.watching.store(false, Ordering::Release);
            self.sa.deserted();
            host.announce();
        }
        self.see_to_remote(state, host);
    }

    /// Queue pairs came or went: whether this process only watches may have changed.
    pub(crate) fn qps_changed(&self, host: &Inner) {
        if self.is_watching() {
            host.announce();
        }
    }

    /// Looks what has become of the host's processes, addresses and groups, and tells who wants to hear of it.
    pub(crate) fn look(&self, host: &Inner) {
        if !self.is_watching() {
            return;
        }
        let mut state = self.state.lock();
        let now = self.survey(host);
        let before = std::mem::replace(&mut state.seen, now);
        for (kind, gid) in before.changes(&state.seen) {
            state.tell(kind, gid);
        }
        self.see_to_remote(&mut state, host);
    }

    /// A timer is due.
    pub(crate) fn timeout(&self, host: &Inner, now: Instant) {
        let mut state = self.state.lock();
        if state.timer.is_none_or(|timer| timer > now) {
            return;
        }
        state.timer = None;
        if let Some(probes) = &mut state.probes {
            probes.turn(host, ironverbs_mad::Instant(now.0));
        }
        let look = state.next_look.is_none_or(|at| at <= now) && self.is_watching();
        let moved = state.happened();
        if look {
            state.next_look = Some(now.after(host.clock.ticks(LOOK)));
            drop(state);
            self.look(host);
            state = self.state.lock();
        }
        self.arm(&mut state, host);
        drop(state);
        if moved {
            host.steward.moved(host);
        }
    }

    /// A MAD for QP1; whether it was an answer to a question of ours.
    pub(crate) fn receive(&self, host: &Inner, path: &Path, mad: &Mad) -> bool {
        let mut state = self.state.lock();
        let Some(probes) = &mut state.probes else { return false };
        let ours = probes.prober.handle_mad(ironverbs_mad::Instant(host.now().0), path, mad);
        let moved = ours && state.happened();
        if ours {
            // A port that answers is asked sooner than one that was silent.
            self.arm(&mut state, host);
        }
        drop(state);
        if moved {
            host.steward.moved(host);
        }
        ours
    }

    /// Sees that [`Fabric::timeout`] is called.
    fn arm(&self, state: &mut State, host: &Inner) {
        let probes = state.probes.as_ref().and_then(|probes| probes.prober.next_timeout());
        let mut next = probes.map(|at| Instant(at.0));
        if self.is_watching() {
            let look =
                *state.next_look.get_or_insert_with(|| host.now().after(host.clock.ticks(LOOK)));
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        if let Some(next) = next
            && state.timer.is_none_or(|known| next < known)
        {
            state.timer = Some(next);
            host.add_timer(next, TIMER);
        }
    }
}

impl Fabric {
    /// Keeps the hosts at the ends of these paths under watch, and no others.
    pub(crate) fn monitor(&self, host: &Inner, paths: &[Path]) {
        let mut state = self.state.lock();
        let same = state.monitored.len() == paths.len()
            && paths.iter().all(|path| state.monitored.contains_key(&path.dst));
        if same {
            return;
        }
        let gone = |gid: &Gid| !paths.iter().any(|path| path.dst == *gid);
        let gone: Vec<Gid> = state.monitored.keys().filter(|gid| gone(gid)).copied().collect();
        let gone: Vec<_> =
            gone.iter().filter_map(|gid| state.monitored.remove(gid)).map(|(id, _)| id).collect();
        let now = ironverbs_mad::Instant(host.now().0);
        // Without sockets there is nobody to ask; it is tried again.
        let Ok(probes) = state.probes(host) else { return };
        gone.into_iter().for_each(|id| probes.prober.forget(id));
        for path in paths {
            if state.monitored.contains_key(&path.dst) {
                continue;
            }
            let Ok(probes) = state.probes(host) else { return };
            let id = probes.prober.watch(now, path);
            probes.send(host, now);
            state.monitored.insert(path.dst, (id, None));
        }
        // What is known at once nobody is told of: it is looked at anyway.
        let _ = state.happened();
        self.arm(&mut state, host);
    }

    /// Whether a host is under watch and does not answer.
    pub(crate) fn is_silent(&self, gid: &Gid) -> bool {
        let state = self.state.lock();
        state.monitored.get(gid).is_some_and(|(_, answers)| *answers == Some(false))
    }

    /// Tells those who are registered.
    pub(crate) fn tell(&self, kind: EventKind, gid: Gid) {
        self.state.lock().tell(kind, gid);
    }
}

impl State {
    /// Tells every context once that is registered for it.
    fn tell(&self, kind: EventKind, gid: Gid) {
        let mut told = BTreeSet::new();
        for (context, registration) in &self.registrations {
            if registration.covers(&gid)
                && let Some(context) = context.upgrade()
                && told.insert(Arc::as_ptr(&context))
            {
                context.events.push(AsyncEvent { kind, source: EventSource::Gid(gid) });
            }
        }
    }

    /// Takes what the probes have found out. Whether a host that is monitored came or went.
    fn happened(&mut self) -> bool {
        while let Some(event) = self.probes.as_mut().and_then(|probes| probes.prober.poll_event()) {
            let (id, answers) = match event {
                ProbeEvent::Answers(id) => (id, true),
                ProbeEvent::Silent(id) => (id, false),
            };
            if let Some(ask) = self.asks.remove(&id) {
                ask.answered(answers);
            } else if let Some(gid) =
                self.watched.iter().find(|(_, watch)| **watch == id).map(|(gid, _)| *gid)
            {
                self.tell(if answers { EventKind::GidAvail } else { EventKind::GidUnavail }, gid);
            }
        }
        let Some(probes) = &self.probes else { return false };
        let mut moved = false;
        for (id, answered) in self.monitored.values_mut() {
            let answers = probes.prober.answers(*id);
            // It is taken to be there until something else is known.
            moved |= *answered != answers && (answered.is_some() || answers == Some(false));
            *answered = answers;
        }
        moved
    }

    fn probes(&mut self, host: &Inner) -> Result<&mut Probes, std::io::Error> {
        let slot = host.registry().map(|registry| registry.slot());
        match &mut self.probes {
            Some(probes) => Ok(probes),
            none => {
                let slot = slot.ok_or(std::io::ErrorKind::NotConnected)?;
                let prober = Prober::new(slot.into(), cm::SLOT_BITS, host.random());
                Ok(none.insert(Probes::open(host, prober, slot)?))
            }
        }
    }
}

impl Fabric {
    /// Takes over what the interfaces have become.
    pub(crate) fn follow(&self, interfaces: &[Interface], subnet: Option<&Subnet>) {
        let link = |interface| Link::of(interface, subnet);
        *self.links.write() = interfaces.iter().map(link).collect();
    }
}
