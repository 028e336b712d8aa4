//! Whether ports answer: asked once, or kept under watch.
//!
//! On RoCE there is no administrator to ask, so the port itself is asked: by a service ID resolution request (SIDR_REQ,
//! IBA 12.11.1) for a service that nobody offers. Whatever has a connection manager behind its QP1, this stack, the
//! kernel's rxe and adapters alike, answers with a SIDR_REP that refuses, and neither side keeps anything: no connection,
//! no queue pair, no state that could be mistaken for one. A port that cannot be reached says nothing, or a host on the
//! way says so (ICMP), which the owner passes on by [`Prober::unreachable`].
//!
//! An answer counts if it comes from the address that was asked, and has the request's number and its transaction, of
//! which 32 bits are random: who cannot see the question cannot answer it.

use std::collections::{BTreeSet, HashMap, VecDeque};

use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::{Message, ServiceId, SidrReq};
use ironverbs_wire::{Gid, Path};

use crate::ids::Ids;
use crate::{Instant, Transmit};

/// The service that is asked for: of the range that an operating system assigns (IBA A3.2.3.4: first byte 0x02), which
/// no port space of rdma_cm(7) uses.
pub const SERVICE: ServiceId = ServiceId(0x0249_524e_5052_4f42);

/// The default partition.
const PKEY: u16 = 0xffff;

/// How often a port under watch is asked while it answers: 25 ms.
pub const PERIOD: u64 = 25_000_000;

/// How long a port under watch may be silent: 200 ms. Less would take a busy machine for a dead one, more would be no
/// better than the retries of a reliable connection.
pub const SILENCE: u64 = 200_000_000;

/// How often a port that does not answer is asked.
const PERIOD_SILENT: u64 = 250_000_000;

/// Time per port under watch: questions to many are spread out.
const SHARE: u64 = 1_000_000;

/// The first pause of a question that is asked once, doubled with each until the second.
const PAUSES: (u64, u64) = (20_000_000, 500_000_000);

/// How long an answer to a question may take.
const MEMORY: u64 = 2_000_000_000;

/// Which question. Never given out twice.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct ProbeId(u64);

/// What became of a question.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum ProbeEvent {
    /// The port answers: the end of [`Prober::ask`], and of a port under watch that did not answer before.
    Answers(ProbeId),
    /// It does not: the time of [`Prober::ask`] is over, or a port under watch that answered before is silent.
    Silent(ProbeId),
}

#[derive(Debug)]
struct Target {
    path: Path,
    kind: Kind,
    /// When it is to be asked next.
    next: Instant,
}

#[derive(Debug)]
enum Kind {
    Once { until: Instant, pause: u64 },
    Watch { since: Instant, answers: Option<bool> },
}

#[derive(Debug)]
struct Question {
    tid: u64,
    of: ProbeId,
    asked: Instant,
}

/// Asks ports. Sans-I/O: as [`Cm`](crate::Cm).
#[derive(Debug)]
pub struct Prober {
    ids: Ids,
    count: u64,
    targets: HashMap<ProbeId, Target>,
    due: BTreeSet<(Instant, ProbeId)>,
    open: HashMap<u32, Question>,
    /// Open questions, oldest first.
    order: VecDeque<(Instant, u32)>,
    watched: u64,
    out: VecDeque<Transmit>,
    events: VecDeque<ProbeEvent>,
}

impl Prober {
    /// One whose requests name `slot` in their upper `slot_bits` bits, as communication IDs do; `seed` decides what
    /// must not be guessed.
    pub fn new(slot: u32, slot_bits: u8, seed: u128) -> Prober {
        Prober {
            ids: Ids::new(seed, slot, slot_bits),
            count: 0,
            targets: HashMap::new(),
            due: BTreeSet::new(),
            open: HashMap::new(),
            order: VecDeque::new(),
            watched: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Asks a port until it answers, at most for `time` nanoseconds. Ends in one event.
    pub fn ask(&mut self, now: Instant, path: &Path, time: u64) -> ProbeId {
        let kind = Kind::Once { until: now.after(time), pause: PAUSES.0 };
        self.add(now, path, kind)
    }

    /// Keeps a port under watch until it is [forgotten](Prober::forget). Whether it answers at first is no event.
    pub fn watch(&mut self, now: Instant, path: &Path) -> ProbeId {
        self.watched += 1;
        self.add(now, path, Kind::Watch { since: now, answers: None })
    }

    fn add(&mut self, now: Instant, path: &Path, kind: Kind) -> ProbeId {
        self.count += 1;
        let id = ProbeId(self.count);
        self.targets.insert(id, Target { path: *path, kind, next: now });
        self.due.insert((now, id));
        self.handle_timeout(now);
        id
    }

    /// Asks no more.
    pub fn forget(&mut self, id: ProbeId) {
        let Some(target) = self.targets.remove(&id) else { return };
        self.due.remove(&(target.next, id));
        self.open.retain(|_, question| question.of != id);
        if matches!(target.kind, Kind::Watch { .. }) {
            self.watched -= 1;
        }
    }

    /// Whether a port under watch answers; None: not known yet.
    pub fn answers(&self, id: ProbeId) -> Option<bool> {
        match self.targets.get(&id)?.kind {
            Kind::Watch { answers, .. } => answers,
            Kind::Once { .. } => None,
        }
    }

    /// A MAD that QP1 has received. Whether it was an answer, and of nobody else's concern.
    pub fn handle_mad(&mut self, now: Instant, path: &Path, mad: &Mad) -> bool {
        let Ok((tid, Message::SidrRep(rep))) = Message::parse(mad) else { return false };
        let Some(question) = self.open.get(&rep.request_id) else { return false };
        let of = question.of;
        let asked = self.targets.get(&of).map(|target| target.path);
        let right = |asked: Path| asked.dst == path.src && asked.src == path.dst;
        if question.tid != tid || !asked.is_some_and(right) {
            return false;
        }
        self.open.remove(&rep.request_id);
        self.answered(now, of);
        true
    }

    fn answered(&mut self, now: Instant, id: ProbeId) {
        let Some(target) = self.targets.get_mut(&id) else { return };
        match &mut target.kind {
            Kind::Once { .. } => {
                self.events.push_back(ProbeEvent::Answers(id));
                self.forget(id);
            }
            Kind::Watch { since, answers } => {
                *since = now;
                let before = answers.replace(true);
                if before == Some(false) {
                    self.events.push_back(ProbeEvent::Answers(id));
                }
                if before != Some(true) {
                    let period = self.period(PERIOD);
                    self.ask_at(id, now.after(period));
                }
            }
        }
    }

    /// Something on the way, or the host itself, says that nobody is at `dst`.
    pub fn unreachable(&mut self, now: Instant, dst: &Gid) {
        let of = |target: &Target| target.path.dst == *dst;
        let ids: Vec<_> =
            self.targets.iter().filter(|(_, target)| of(target)).map(|(id, _)| *id).collect();
        for id in ids {
            self.silent(now, id);
        }
    }

    fn silent(&mut self, now: Instant, id: ProbeId) {
        let Some(target) = self.targets.get_mut(&id) else { return };
        match &mut target.kind {
            Kind::Once { .. } => {
                self.events.push_back(ProbeEvent::Silent(id));
                self.forget(id);
            }
            Kind::Watch { answers, .. } => {
                if answers.replace(false) == Some(true) {
                    self.events.push_back(ProbeEvent::Silent(id));
                    // A late answer to an old question does not wake the dead.
                    self.open.retain(|_, question| question.of != id);
                    let period = self.period(PERIOD_SILENT);
                    self.ask_at(id, now.after(period));
                }
            }
        }
    }

    /// Time has come to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((asked, number)) = self.order.front().copied() {
            if asked.after(MEMORY) > now {
                break;
            }
            self.order.pop_front();
            if self.open.get(&number).is_some_and(|question| question.asked == asked) {
                self.open.remove(&number);
            }
        }
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            self.turn(now, id);
        }
    }

    /// It is a target's turn.
    fn turn(&mut self, now: Instant, id: ProbeId) {
        let (periods, Some(target)) =
            ([self.period(PERIOD), self.period(PERIOD_SILENT)], self.targets.get_mut(&id))
        else {
            return;
        };
        let path = target.path;
        let next = match &mut target.kind {
            Kind::Once { until, .. } if *until <= now => return self.silent(now, id),
            Kind::Once { until, pause } => {
                let next = now.after(*pause).min(*until);
                *pause = (*pause * 2).min(PAUSES.1);
                next
            }
            Kind::Watch { since, answers } => {
                let patience = SILENCE.max(periods[0].saturating_mul(4));
                if *answers != Some(false) && since.after(patience) <= now {
                    self.silent(now, id);
                }
                let silent = self.answers(id) == Some(false);
                now.after(periods[usize::from(silent)])
            }
        };
        self.question(now, id, &path);
        self.ask_at(id, next);
    }

    fn ask_at(&mut self, id: ProbeId, at: Instant) {
        if let Some(target) = self.targets.get_mut(&id) {
            self.due.remove(&(target.next, id));
            target.next = at;
            self.due.insert((at, id));
        }
    }

    fn question(&mut self, now: Instant, of: ProbeId, path: &Path) {
        let number = self.ids.next();
        let tid = self.ids.tid(number);
        let private_data = [0; SidrReq::PRIVATE_DATA];
        let request = SidrReq { request_id: number, pkey: PKEY, service_id: SERVICE, private_data };
        let mad = Message::SidrReq(request).emit(tid);
        self.open.insert(number, Question { tid, of, asked: now });
        self.order.push_back((now, number));
        self.out.push_back(Transmit { path: *path, pkey: PKEY, mad });
    }

    fn period(&self, least: u64) -> u64 {
        least.max(self.watched.saturating_mul(SHARE))
    }

    /// What QP1 is to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// What the owner is to hear of.
    pub fn poll_event(&mut self) -> Option<ProbeEvent> {
        self.events.pop_front()
    }

    /// When [`Prober::handle_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }
}
