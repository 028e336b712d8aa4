//! The connection manager.

mod active;
mod conn;
mod ending;
mod listeners;
mod outbox;
mod parting;
mod passive;
mod proof;
mod refusal;
mod sidr;

use std::collections::{BTreeSet, VecDeque};

use ironverbs_wire::Path;
use ironverbs_wire::mad::cm::Message;

use self::conn::{Conn, Resend, State, Table};
use self::listeners::{HalfOpen, Listeners};
use self::outbox::{Deadlines, Outbox, Timer};
use self::proof::Proven;
use self::sidr::Sidr;
use crate::ids::Ids;
use crate::{Config, Counters, Disconnect, Event, Failure, Instant};

pub use self::outbox::Transmit;
pub use self::parting::{Bequest, Parting};

/// A connection: its local communication ID.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct ConnId(u32);

impl ConnId {
    /// The ID in messages.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}

/// A listener. Never given out twice.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct ListenerId(u64);

/// A resolution, asked for or to be answered.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct SidrId(u32);

impl SidrId {
    /// Of a resolution that was asked for: its ID in messages.
    pub const fn request_id(self) -> u32 {
        self.0
    }
}

/// A connection manager: what one process has behind QP1.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    ids: Ids,
    listeners: Listeners,
    conns: Table,
    sidr: Sidr,
    deadlines: Deadlines,
    out: Outbox,
    events: VecDeque<Event>,
    bequests: VecDeque<Bequest>,
    /// Requests that the program has not answered.
    unanswered: HalfOpen,
    /// Those, and connections that are answered and not established.
    half_open: HalfOpen,
    /// Peers whose requests go before those of strangers.
    proven: Proven,
    /// What is only kept to answer repetitions.
    lingering: usize,
    counters: Counters,
}

impl Cm {
    /// A manager without connections or listeners.
    pub fn new(config: Config) -> Self {
        Self {
            ids: Ids::new(config.seed, config.slot, config.slot_bits),
            listeners: Listeners::default(),
            conns: Table::default(),
            sidr: Sidr::default(),
            deadlines: BTreeSet::new(),
            out: Outbox::new(config.max_transmits),
            events: VecDeque::new(),
            bequests: VecDeque::new(),
            unanswered: HalfOpen::default(),
            half_open: HalfOpen::default(),
            proven: Proven::default(),
            lingering: 0,
            counters: Counters::default(),
            config,
        }
    }

    /// A MAD that QP1 has received: the packet's addresses, its P_Key and its payload of 256
    /// bytes ([`mad_of`](ironverbs_wire::mad::mad_of)). The ICRC and Q_Key have been checked.
    pub fn handle_mad(&mut self, now: Instant, path: &Path, pkey: u16, bytes: &[u8]) {
        self.counters.received += 1;
        let Ok((tid, message)) = Message::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let from = Origin { path: *path, pkey, tid };
        match message {
            Message::Req(req) => self.on_req(now, &from, &req),
            Message::Mra(mra) => self.on_mra(now, &from, &mra),
            Message::Rej(rej) => self.on_rej(now, &from, &rej),
            Message::Rep(rep) => self.on_rep(now, &from, &rep),
            Message::Rtu(rtu) => self.on_rtu(&from, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, &from, &dreq),
            Message::Drep(drep) => self.on_drep(now, &from, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, &from, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, &from, &rep),
            Message::Lap(lap) => self.on_lap(&from, &lap),
            // We never send a LAP.
            Message::Apr(_) => self.counters.unexpected += 1,
        }
    }

    /// Time has come to `now`: repeats what was not answered, gives up what was repeated enough,
    /// ends what has rested.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, timer)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            match timer {
                Timer::Conn(id) => self.conn_timeout(now, id),
                Timer::Sidr(id) => self.sidr_timeout(now, id),
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next; `None` if nothing waits
    /// for time. Changes with every other call.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// The next MAD to send from QP1 to QP1.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let transmit = self.out.pop()?;
        self.counters.sent += 1;
        Some(transmit)
    }

    /// The next thing to tell the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Counts of what arrived.
    pub fn counters(&self) -> Counters {
        Counters { transmits_dropped: self.out.dropped(), ..self.counters }
    }

    /// Connections and resolutions that are remembered, those that rest included.
    pub fn len(&self) -> usize {
        self.conns.len() + self.sidr.len()
    }

    /// Whether nothing is remembered but listeners.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Connections and resolutions that the program has not let go of or that have not ended.
    fn is_full(&self) -> bool {
        // Half of the IDs rest at any time, so that a late message finds none that is in use again.
        let ids = usize::try_from(self.ids.capacity() / 2).unwrap_or(usize::MAX);
        self.len() >= self.config.max_connections.min(ids)
    }

    /// A communication ID that is not in use.
    fn next_id(&mut self) -> u32 {
        loop {
            let id = self.ids.next();
            if !self.conns.contains(id) && !self.sidr.contains(id) {
                return id;
            }
        }
    }

    fn conn_timeout(&mut self, now: Instant, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.deadline = None;
        let failure = match &mut conn.state {
            State::ReqSent(Resend { refusal: refusal @ Some(_), .. })
            | State::RepSent(Resend { refusal: refusal @ Some(_), .. })
            | State::DreqSent(Resend { refusal: refusal @ Some(_), .. }) => {
                let soon = refusal.as_mut().and_then(|refusal| refusal.next(now, conn.timeout));
                if soon.is_none() {
                    *refusal = None;
                }
                self.counters.retries += 1;
                if let Some(mad) = &conn.sent {
                    self.out.push(conn.route, **mad);
                }
                let deadline = soon.unwrap_or(now.after(conn.timeout));
                conn.set_deadline(&mut self.deadlines, Some(deadline));
                return;
            }
            State::ReqSent(resend) | State::RepSent(resend) | State::DreqSent(resend)
                if resend.left > 0 =>
            {
                resend.left -= 1;
                self.counters.retries += 1;
                if let Some(mad) = &conn.sent {
                    self.out.push(conn.route, **mad);
                }
                let deadline = now.after(conn.timeout);
                conn.set_deadline(&mut self.deadlines, Some(deadline));
                return;
            }
            State::ReqSent(_) => Failure::NoReply,
            State::RepSent(_) => Failure::NotReady,
            State::DreqSent(_) => {
                self.enter_timewait(now, id, Disconnect::NoAnswer);
                return;
            }
            State::TimeWait => {
                if !conn.released {
                    self.events.push_back(Event::TimewaitExit { conn: ConnId(id) });
                }
                self.remove(id);
                return;
            }
            State::Rejected => {
                self.remove(id);
                return;
            }
            // These wait for the program, not for time.
            State::RepRcvd | State::ReqRcvd | State::Established => return,
        };
        // The peer may wait for us as we waited for it.
        let mad = conn.timeout_rej().emit(conn.tid);
        self.out.push(conn.route, mad);
        if !conn.released {
            self.events.push_back(Event::Failed { conn: ConnId(id), failure });
        }
        self.remove(id);
    }

    /// Forgets a connection.
    fn remove(&mut self, id: u32) -> Option<Conn> {
        self.disinherit(id);
        let mut conn = self.conns.remove(id)?;
        conn.set_deadline(&mut self.deadlines, None);
        if matches!(conn.state, State::Rejected) {
            self.lingering -= 1;
        }
        self.left_unanswered(&mut conn);
        Some(conn)
    }
}

/// Where a message came from.
#[derive(Copy, Clone, Debug)]
struct Origin {
    /// Addresses of the packet: the peer's is the source.
    path: Path,
    pkey: u16,
    tid: u64,
}

impl Origin {
    /// Back to the sender.
    fn route(&self) -> outbox::Route {
        let path = Path { hop_limit: HOP_LIMIT, ..self.path.reversed() };
        outbox::Route { path, pkey: self.pkey }
    }
}

/// Hop limit of answers to who is no connection's peer (yet).
const HOP_LIMIT: u8 = 64;
