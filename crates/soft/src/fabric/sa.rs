//! What a process asks the subnet's administrator, and what it hears from it.
//!
//! Paths are kept until a notice, or another manager, may have changed them. Whoever is registered for events has the
//! GIDs and groups of the subnet kept, too: they are fetched when the host's steward has subscribed, and compared, so
//! that what was reported while nobody listened, or by a manager that is gone, is made up for.
//!
//! The steward passes notices on to the processes of its host as MADs that are no answer to anybody, see [`word`].

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use ironverbs_mad::subnet::{
    PathCache, QueryId, SaClient, SaError, SaMember, SaPath, SaQuery, SaResult, port_gid,
};
use ironverbs_transport::device::Instant;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::mad::{BASE_VERSION, GSI_QPN, Mad, MadHeader};
use ironverbs_wire::{Gid, Path};
use parking_lot::Mutex;

use super::reach::Ask;
use crate::cm::CmId;
use crate::context::limits;
use crate::event::EventKind;
use crate::host::Inner;
use crate::management::{self, steward};
use crate::subnet::Subnet;

/// The number that the Host's timers know this by; no QP has it.
pub(crate) const TIMER: u32 = 4;

/// How long a subscription, or a fetch of all there is, may take, in nanoseconds.
const PATIENCE: u64 = 4_000_000_000;

/// How long a port of the subnet's list may take to be found, in nanoseconds, and how often it is asked for meanwhile: a
/// host is there with its first process, and a client may be quicker than its server.
const GRACE: u64 = 2_000_000_000;
const AGAIN: u64 = 50_000_000;

/// The notices that are subscribed to: a GID in and out of service, a group made and gone (IBA 14.2.5.1).
const TRAPS: [u16; 4] = [64, 65, 66, 67];

const SUBN_ADM: u8 = 0x03;
const REPORT_RESPONSE: u8 = 0x86;
const NOTICE: u16 = 0x02;

/// JoinState of a full member (IBA 15.2.5.17), and of one that only sends to a group that there is.
const FULL: u8 = 1;
const SENDS: u8 = 4;

/// Q_Key of groups that nobody has said anything of: that of UD queue pairs of rdma_cm(7).
const QKEY: u32 = 0x0123_4567;

/// What a steward tells the processes of its host.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Another manager has the subnet, or the same has begun anew.
    Manager,
    /// It is subscribed: what is fetched from now on stays right.
    Subscribed,
    /// To the steward: groups were joined or left.
    Groups,
    /// A notice.
    Notice {
        /// 64 to 67.
        trap: u16,
        /// Of whom.
        gid: Gid,
    },
}

/// The MAD that carries a word: a report's acknowledgement, which no port takes from another.
pub(crate) fn word(word: Word) -> Mad {
    let head = MadHeader {
        base_version: BASE_VERSION,
        class: SUBN_ADM,
        class_version: 2,
        method: REPORT_RESPONSE,
        attribute: NOTICE,
        ..MadHeader::default()
    };
    let (trap, gid) = match word {
        Word::Manager => (1, Gid::UNSPECIFIED),
        Word::Subscribed => (2, Gid::UNSPECIFIED),
        Word::Groups => (3, Gid::UNSPECIFIED),
        Word::Notice { trap, gid } => (trap, gid),
    };
    let mut mad: Mad = [0; 256];
    mad[..24].copy_from_slice(&head.emit());
    mad[60..62].copy_from_slice(&trap.to_be_bytes());
    mad[72..88].copy_from_slice(&gid.0);
    mad
}

fn word_in(mad: &Mad) -> Option<Word> {
    if mad[1] != SUBN_ADM || mad[3] != REPORT_RESPONSE {
        return None;
    }
    let gid = mad.get(72..88).and_then(|bytes| bytes.try_into().ok()).map(Gid)?;
    Some(match u16::from_be_bytes([mad[60], mad[61]]) {
        1 => Word::Manager,
        2 => Word::Subscribed,
        3 => Word::Groups,
        trap @ 64..=67 => Word::Notice { trap, gid },
        _ => return None,
    })
}

/// Who waits for an answer.
#[derive(Debug)]
enum Waiter {
    /// A blocked caller.
    Ask(Arc<Ask>),
    /// An id whose route is resolved.
    Route(Asked),
    /// The GIDs that there are, to compare; whose prefix they have.
    Gids(Gid),
    /// The groups that there are, to compare.
    Groups,
    /// The steward's subscription.
    Inform,
    /// An id that joins a group: which join.
    Join(Weak<CmId>, u64),
    /// The steward, which makes the port a member of a group that a process has; whether it makes the group, too.
    Member(Gid, bool),
    /// Nobody.
    Nobody,
}

/// A route that an id wants.
#[derive(Debug)]
struct Asked {
    id: Weak<CmId>,
    source: Gid,
    target: Gid,
    /// When the id has waited as long as it would.
    until: Instant,
    /// Until when the answer that there is none is not the last: see [`GRACE`].
    grace: Instant,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Sa {
    state: Mutex<State>,
    /// What is done when no lock is held.
    later: Mutex<VecDeque<Later>>,
}

#[derive(Debug)]
enum Later {
    Routed(Weak<CmId>, Result<SaPath, SaError>),
    Joined(Weak<CmId>, u64, Result<SaMember, SaError>),
    Tell(EventKind, Gid),
    /// The steward has subscribed.
    Subscribed,
}

#[derive(Debug, Default)]
struct State {
    client: Option<SaClient>,
    cache: PathCache,
    waiting: HashMap<QueryId, Waiter>,
    /// The deadline that the timers know of.
    timer: Option<Instant>,
    /// What is known to be there, while somebody is registered.
    gids: Option<BTreeSet<Gid>>,
    groups: Option<BTreeSet<Gid>>,
    /// The groups that the steward has made the port a member of, or is about to.
    joined: BTreeSet<Gid>,
    /// Those of them that no process had at the last look.
    leaving: BTreeSet<Gid>,
    seated: bool,
    /// Routes that are to be asked for again, and when.
    again: Vec<(Instant, Asked)>,
    /// LID of the subnet manager that programs were told of; 0: of none.
    manager: u16,
    /// Subscriptions that are under way, and whether one has failed.
    informing: usize,
    failed: bool,
}

impl State {
    fn client(&mut self, host: &Inner) -> &mut SaClient {
        self.client.get_or_insert_with(|| SaClient::new(host.random()))
    }

    fn ask(&mut self, host: &Inner, query: SaQuery, time: u64, waiter: Waiter) -> QueryId {
        let now = ironverbs_mad::Instant(host.now().0);
        let id = self.client(host).query(now, query, host.clock.ticks(time));
        self.waiting.insert(id, waiter);
        id
    }

    fn subscribe(&mut self, host: &Inner) {
        if !self.seated || self.informing > 0 {
            return;
        }
        self.failed = false;
        for trap in TRAPS {
            self.informing += 1;
            self.ask(host, SaQuery::inform(trap, true), PATIENCE, Waiter::Inform);
        }
    }

    /// The steward sees to it that the port is a member of the groups that processes have. It leaves a group when that
    /// was without members at one of its looks and is at the next: there is one membership of the port, and a program that
    /// asks the administrator by itself ends what it began after it has detached its queue pair.
    fn join_groups(&mut self, host: &Inner, looks: bool) {
        let (true, Some(own), Some(registry)) = (self.seated, own_gid(host), host.registry())
        else {
            return;
        };
        if host.subnet_manager().0 == 0 {
            return;
        }
        let groups = registry.joined_groups(&registry.neighbours());
        let wanted: BTreeSet<Gid> = groups.into_iter().collect();
        if looks {
            let gone: BTreeSet<Gid> = self.joined.difference(&wanted).copied().collect();
            let (leave, wait) = gone.into_iter().partition(|group| self.leaving.contains(group));
            self.leaving = wait;
            let leave: BTreeSet<Gid> = leave;
            for group in leave {
                self.joined.remove(&group);
                self.ask(host, SaQuery::leave(&group, &own, FULL), PATIENCE, Waiter::Nobody);
            }
        }
        for group in wanted {
            if self.joined.insert(group) {
                let query = SaQuery::join(&group, &own, FULL, None);
                self.ask(host, query, PATIENCE, Waiter::Member(group, false));
            }
        }
    }

    fn fetch(&mut self, host: &Inner) {
        let own = own_gid(host);
        if let (true, Some(own)) = (host.fabric.is_watching(), own) {
            self.ask(host, SaQuery::nodes(), PATIENCE, Waiter::Gids(own));
            self.ask(host, SaQuery::groups(), PATIENCE, Waiter::Groups);
        }
    }

    /// Compares what there is with what was known; what changed.
    fn compare(
        known: &mut Option<BTreeSet<Gid>>,
        now: BTreeSet<Gid>,
        [come, gone]: [EventKind; 2],
    ) -> Vec<Later> {
        let Some(before) = known.replace(now) else { return Vec::new() };
        let now = known.as_ref().unwrap_or(&before);
        let gone = before.difference(now).map(|gid| Later::Tell(gone, *gid));
        gone.chain(now.difference(&before).map(|gid| Later::Tell(come, *gid))).collect()
    }
}

const OF_GIDS: [EventKind; 2] = [EventKind::GidAvail, EventKind::GidUnavail];
const OF_GROUPS: [EventKind; 2] = [EventKind::McgCreated, EventKind::McgDeleted];

fn own_gid(host: &Inner) -> Option<Gid> {
    host.present_devices().iter().find_map(|device| device.place()).map(|place| place.gid)
}

impl Sa {
    /// A path that is known.
    pub(crate) fn known(&self, host: &Inner, source: &Gid, target: &Gid) -> Option<SaPath> {
        let now = ironverbs_mad::Instant(host.now().0);
        self.state.lock().cache.get(now, source, target)
    }

    /// Asks for the path to a port, by one of its LIDs if one is given; [`Ask::answered`] ends it.
    pub(super) fn ask(
        &self,
        host: &Inner,
        path: &Path,
        lid: Option<u16>,
        time: u64,
        ask: &Arc<Ask>,
    ) -> QueryId {
        let query = SaQuery::path(&path.src, &path.dst, None);
        let query = lid.map_or(query.clone(), |lid| query.by_lid(lid));
        let id = self.state.lock().ask(host, query, time, Waiter::Ask(ask.clone()));
        self.pump(host);
        id
    }

    pub(super) fn cancel(&self, id: QueryId) {
        let mut state = self.state.lock();
        state.waiting.remove(&id);
        if let Some(client) = &mut state.client {
            client.cancel(id);
        }
    }

    /// Asks for the path of an id, which is told later, on another thread.
    pub(crate) fn route(&self, host: &Inner, id: Weak<CmId>, ends: [Gid; 2], time: u64) {
        let ([source, target], now) = (ends, host.now());
        let until = now.after(host.clock.ticks(time));
        let grace = now.after(host.clock.ticks(time.min(GRACE)));
        let asked = Asked { id, source, target, until, grace };
        let query = SaQuery::path(&source, &target, None);
        self.state.lock().ask(host, query, time, Waiter::Route(asked));
        self.pump(host);
    }

    /// Joins a group for an id, which is told later, on another thread.
    pub(crate) fn join(
        &self,
        host: &Inner,
        id: Weak<CmId>,
        tag: u64,
        [group, port]: [Gid; 2],
        sends_only: bool,
    ) {
        let query = match sends_only {
            true => SaQuery::join(&group, &port, SENDS, None),
            false => SaQuery::join(&group, &port, FULL, Some((limits::PKEY, QKEY))),
        };
        self.state.lock().ask(host, query, PATIENCE, Waiter::Join(id, tag));
        self.pump(host);
    }

    /// Processes of this host have joined or left groups: the steward is to see to it.
    pub(crate) fn groups_changed(&self, host: &Inner) {
        let Some(registry) = host.registry() else { return };
        match steward::slot(registry) {
            Some(slot) if slot == registry.slot() => {
                self.state.lock().join_groups(host, false);
                self.pump(host);
            }
            Some(slot) => steward::tell(host, slot, Word::Groups),
            None => {}
        }
    }

    /// Somebody is registered for events now: what there is is fetched, to compare with.
    pub(super) fn registered(&self, host: &Inner) {
        if host.subnet.is_some() {
            self.state.lock().fetch(host);
            self.pump(host);
        }
    }

    /// Nobody is registered any more.
    pub(super) fn deserted(&self) {
        let mut state = self.state.lock();
        (state.gids, state.groups) = (None, None);
    }

    /// This process has become the steward, or is it no more.
    pub(crate) fn seated(&self, host: &Inner, seated: bool) {
        let mut state = self.state.lock();
        state.seated = seated;
        state.joined.clear();
        if seated && host.subnet_manager().0 != 0 {
            state.subscribe(host);
            state.join_groups(host, false);
        }
        drop(state);
        self.pump(host);
    }

    /// The steward looks what is left to be done.
    pub(crate) fn look(&self, host: &Inner) {
        let mut state = self.state.lock();
        if state.failed {
            state.subscribe(host);
        }
        // Those of processes that were killed are left.
        state.join_groups(host, true);
        drop(state);
        self.pump(host);
    }

    /// A manager has told the steward who it is.
    pub(crate) fn told(&self, host: &Inner) {
        let mut state = self.state.lock();
        state.subscribe(host);
        state.joined.clear();
        state.join_groups(host, false);
        drop(state);
        self.pump(host);
    }

    /// A MAD for this process: an answer, or the steward's word.
    pub(crate) fn receive(&self, host: &Inner, path: &Path, mad: &Mad) {
        let now = ironverbs_mad::Instant(host.now().0);
        if let Some(word) = word_in(mad) {
            // Only this host's own.
            if path.ib.is_some() && host.is_local(&path.src) {
                self.hear(host, word);
            }
            return;
        }
        let Some(subnet) = &host.subnet else { return };
        let from = path.ib.and_then(|route| subnet.of_lid(route.slid));
        if from.is_none() || from != subnet.of_lid(host.subnet_manager().0) {
            return;
        }
        if let Some(client) = &mut self.state.lock().client {
            client.handle_mad(now, mad);
        }
        self.pump(host);
    }

    /// The process begins: what it finds is no change.
    pub(crate) fn begin(&self, host: &Inner) {
        self.state.lock().manager = host.subnet_manager().0;
    }

    fn hear(&self, host: &Inner, word: Word) {
        let now = ironverbs_mad::Instant(host.now().0);
        let mut state = self.state.lock();
        let (mut before, mut changed) = (0, false);
        match word {
            Word::Manager => {
                state.cache.clear();
                let (manager, _) = host.subnet_manager();
                before = std::mem::replace(&mut state.manager, manager);
                changed = before != 0 && before != manager;
                state.client(host).ask_anew(now);
            }
            Word::Subscribed => {
                state.cache.clear();
                state.fetch(host);
            }
            Word::Groups => state.join_groups(host, false),
            Word::Notice { trap, gid } => {
                state.cache.invalidate(&gid);
                let (is, known, kinds) = match trap {
                    64 | 65 => (trap == 64, &mut state.gids, OF_GIDS),
                    _ => (trap == 66, &mut state.groups, OF_GROUPS),
                };
                let mut now = known.clone().unwrap_or_default();
                if is {
                    now.insert(gid)
                } else {
                    now.remove(&gid)
                };
                // A notice about what is not known yet counts as news.
                let mut before = known.take().or_else(|| {
                    let mut before = now.clone();
                    if is {
                        before.remove(&gid)
                    } else {
                        before.insert(gid)
                    };
                    Some(before)
                });
                let changes = State::compare(&mut before, now, kinds);
                *known = before;
                if host.fabric.is_watching() {
                    self.later.lock().extend(changes);
                }
            }
        }
        drop(state);
        if before != 0 {
            // As for adapters of the kernel: who manages has changed, and is to be told anew what the one before knew.
            for device in host.present_devices().iter() {
                if changed {
                    device.raise(EventKind::SmChange);
                }
                device.raise(EventKind::ClientReregister);
            }
        }
        self.pump(host);
    }

    /// A timer is due.
    pub(crate) fn timeout(&self, host: &Inner, now: Instant) {
        let mut state = self.state.lock();
        if let Some(client) = &mut state.client {
            client.handle_timeout(ironverbs_mad::Instant(now.0));
        }
        let (due, wait) = std::mem::take(&mut state.again).into_iter().partition(|a| a.0 <= now);
        state.again = wait;
        let due: Vec<(Instant, Asked)> = due;
        for (_, asked) in due {
            let query = SaQuery::path(&asked.source, &asked.target, None);
            let time = asked.until.since(now);
            let id = state.client(host).query(ironverbs_mad::Instant(now.0), query, time);
            state.waiting.insert(id, Waiter::Route(asked));
        }
        drop(state);
        self.pump(host);
        loop {
            let next = self.later.lock().pop_front();
            match next {
                None => break,
                Some(Later::Routed(id, result)) => {
                    if let Some(id) = id.upgrade() {
                        id.routed(result);
                    }
                }
                Some(Later::Joined(id, tag, result)) => {
                    if let Some(id) = id.upgrade() {
                        id.joined(tag, result);
                    }
                }
                Some(Later::Subscribed) => {
                    if let Some(registry) = host.registry() {
                        steward::tell_all(host, registry, Word::Subscribed);
                    }
                }
                Some(Later::Tell(kind, gid)) => host.fabric.tell(kind, gid),
            }
        }
    }

    /// Sends what is to be sent, and tells those who wait.
    fn pump(&self, host: &Inner) {
        loop {
            let mut state = self.state.lock();
            let Some(client) = &mut state.client else { return };
            if let Some(mad) = client.poll_transmit() {
                drop(state);
                // Within the call the answer may come.
                send(host, mad);
            } else if let Some((id, result)) = client.poll_event() {
                let waiter = state.waiting.remove(&id).unwrap_or(Waiter::Nobody);
                state.finish(host, self, waiter, result);
            } else {
                let next = client.next_timeout().map(|at| Instant(at.0));
                let now = host.now();
                let later = (!self.later.lock().is_empty()).then_some(now);
                let again = state.again.iter().map(|(at, _)| *at).min();
                if let Some(next) = later.into_iter().chain(next).chain(again).min()
                    && state.timer.is_none_or(|known| next < known || known <= now)
                {
                    state.timer = Some(next);
                    host.add_timer(next, TIMER);
                }
                return;
            }
        }
    }
}

impl State {
    fn finish(&mut self, host: &Inner, sa: &Sa, waiter: Waiter, result: SaResult) {
        let now = ironverbs_mad::Instant(host.now().0);
        let path = |result: SaResult| {
            let first = result?.first().and_then(|record| SaPath::parse(record));
            first.ok_or(SaError::Status(0x0300))
        };
        match waiter {
            Waiter::Ask(ask) => {
                let path = path(result);
                if let Ok(path) = path {
                    self.cache.put(now, path);
                }
                ask.told(path);
            }
            Waiter::Route(asked) => {
                let path = path(result);
                if let Ok(path) = path {
                    self.cache.put(now, path);
                }
                let at = host.now().after(host.clock.ticks(AGAIN));
                let listed =
                    || host.subnet.as_ref().and_then(|s| s.of_gid(&asked.target)).is_some();
                if path.is_err_and(SaError::is_absent) && at < asked.grace && listed() {
                    self.again.push((at, asked));
                } else {
                    sa.later.lock().push_back(Later::Routed(asked.id, path));
                }
            }
            Waiter::Gids(own) => {
                let Ok(records) = result else { return };
                let gids = records.iter().filter_map(|record| port_gid(&own, record));
                // Of this host other things tell.
                let gids = gids.filter(|gid| !host.is_local(gid)).collect();
                sa.later.lock().extend(State::compare(&mut self.gids, gids, OF_GIDS));
            }
            Waiter::Groups => {
                let Ok(records) = result else { return };
                let gid = |record: &Vec<u8>| record.first_chunk().map(|gid| Gid(*gid));
                let groups = records.iter().filter_map(gid).collect();
                sa.later.lock().extend(State::compare(&mut self.groups, groups, OF_GROUPS));
            }
            Waiter::Inform => {
                self.informing = self.informing.saturating_sub(1);
                self.failed |= result.is_err();
                if (self.informing, self.failed) == (0, false) {
                    sa.later.lock().push_back(Later::Subscribed);
                }
            }
            Waiter::Join(id, tag) => {
                let member = result.and_then(|records| {
                    let first = records.first().and_then(|record| SaMember::parse(record));
                    first.ok_or(SaError::Status(0x0200))
                });
                sa.later.lock().push_back(Later::Joined(id, tag, member));
            }
            Waiter::Member(group, makes) => {
                let Some(own) = own_gid(host).filter(|_| result.is_err()) else { return };
                match makes {
                    // It is tried again when the steward looks.
                    true => drop(self.joined.remove(&group)),
                    false => {
                        let query = SaQuery::join(&group, &own, FULL, Some((limits::PKEY, QKEY)));
                        self.ask(host, query, PATIENCE, Waiter::Member(group, true));
                    }
                }
            }
            Waiter::Nobody => {}
        }
    }
}

/// Sends a MAD to the administrator. While nobody manages the subnet it is lost.
fn send(host: &Inner, mut mad: Mad) {
    let (Some(registry), Some(subnet)) = (host.registry(), &host.subnet) else { return };
    let Some(path) = way(host, subnet) else { return };
    if let Some(room) = mad.get_mut(8..12) {
        let number = management::sa_number(registry.slot());
        room.copy_from_slice(&number.to_be_bytes());
    }
    management::send(host, &path, GSI_QPN, limits::PKEY, &mad);
}

fn way(host: &Inner, subnet: &Subnet) -> Option<Path> {
    let own = host.present_devices().iter().find_map(|device| device.place())?;
    let (dlid, sl) = host.subnet_manager();
    let attr = AhAttr { dlid, sl, port_num: 1, ..AhAttr::default() };
    subnet.resolve(&own, &attr).ok()
}
