//! Programs that do anything at any time, over a network that does anything to their messages:
//! every connection ends, and what each side hears makes sense and agrees with the other's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ironverbs_mad::{
    Accept, Cm, ConnId, Connect, Disconnect, Event, Instant, LocalAddr, exponential,
};
use ironverbs_wire::mad::cm::RejReason;

use crate::support::{CLIENT, Faults, GUIDS, MS, Rng, SECOND, SERVER, SERVICE, World, request};

/// What a program does.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
enum Act {
    Connect,
    Accept(ConnId),
    Establish(ConnId),
    Reject(ConnId),
    Release(ConnId),
    Disconnect(ConnId),
    DataArrives(ConnId),
}

/// What a program knows of a connection.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Phase {
    /// Client: connect called. Server: request heard.
    Asked,
    /// Client: reply heard. Server: accept called.
    Answered,
    /// Client: establish called. Server: established heard.
    Up,
    Down,
    Gone,
}

#[derive(Debug)]
struct Record {
    phase: Phase,
    released: bool,
    /// The client's QP, which tells the two ends of a connection.
    qpn: u32,
    was_up: bool,
    /// Has asked for the end of it, or refused it.
    ended: bool,
    rejected: bool,
}

struct Programs {
    world: World,
    agenda: BinaryHeap<Reverse<(Instant, usize, Act)>>,
    records: [HashMap<ConnId, Record>; 2],
    qpns: u32,
    /// In percent: how often a program refuses or lets go.
    moody: u64,
    /// Longest time a program takes for anything.
    slowness: u64,
}

impl Programs {
    fn new(seed: u64, faults: Faults, moody: u64, slowness: u64) -> Self {
        let mut world = World::new(seed, faults);
        world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 4).unwrap();
        Self {
            world,
            agenda: BinaryHeap::new(),
            records: Default::default(),
            qpns: 0x100,
            moody,
            slowness,
        }
    }

    fn plan(&mut self, side: usize, act: Act) {
        let at = self.world.now.after(self.world.rng.below(self.slowness));
        self.agenda.push(Reverse((at, side, act)));
    }

    /// Plans one of these, with luck the first.
    fn plan_moody(&mut self, side: usize, good: Act, bad: [Act; 2]) {
        let act = if self.world.rng.percent(self.moody) {
            bad[self.world.rng.below(2) as usize]
        } else {
            good
        };
        self.plan(side, act);
    }

    fn run(&mut self) {
        let mut steps = 0;
        loop {
            let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
            let next = self.world.next_time();
            let Some(at) = planned.into_iter().chain(next).min() else { break };
            self.world.pass(at);
            self.hear();
            while let Some(Reverse((at, ..))) = self.agenda.peek()
                && *at <= self.world.now
            {
                let Some(Reverse((_, side, act))) = self.agenda.pop() else { break };
                self.act(side, act);
                self.world.flush();
                self.hear();
            }
            steps += 1;
            assert!(steps < 100_000, "no end");
        }
    }

    fn act(&mut self, side: usize, act: Act) {
        let now = self.world.now;
        if act == Act::Connect {
            return self.connect();
        }
        let (Act::Accept(conn)
        | Act::Establish(conn)
        | Act::Reject(conn)
        | Act::Release(conn)
        | Act::Disconnect(conn)
        | Act::DataArrives(conn)) = act
        else {
            return;
        };
        let cm = &mut self.world.cms[side];
        let record = self.records[side].get_mut(&conn).unwrap();
        if record.released {
            return;
        }
        match (act, record.phase) {
            (Act::Accept(_), Phase::Asked) => {
                let accept = Accept::new(GUIDS[SERVER], 0x8000 + conn.comm_id() % 0x8000);
                cm.accept(now, conn, &accept).unwrap();
                record.phase = Phase::Answered;
                let moody = self.world.rng.percent(self.moody / 4);
                self.plan(side, if moody { Act::Release(conn) } else { Act::DataArrives(conn) });
            }
            (Act::Establish(_), Phase::Answered) => {
                cm.establish(conn, b"").unwrap();
                record.phase = Phase::Up;
                record.was_up = true;
                self.plan_moody(side, Act::Disconnect(conn), [Act::Release(conn); 2]);
            }
            (Act::Reject(_), Phase::Asked | Phase::Answered) => {
                cm.reject(now, conn, RejReason::ConsumerReject, &[], &[]).unwrap();
                record.phase = Phase::Gone;
                record.ended = true;
                record.released = true;
            }
            (Act::Release(_), _) => {
                cm.release(now, conn);
                record.ended = true;
                record.released = true;
            }
            (Act::Disconnect(_), Phase::Up | Phase::Down) => {
                cm.disconnect(now, conn, &[]).unwrap();
                record.ended = true;
            }
            (Act::DataArrives(_), Phase::Answered) => {
                // Only a peer that thinks itself connected sends data.
                let qpn = record.qpn;
                let clients = self.records[CLIENT].values();
                if clients.clone().any(|client| client.qpn == qpn && client.was_up) {
                    cm.communication_established(conn);
                }
            }
            // What was planned has been overtaken by an event.
            _ => {}
        }
    }

    fn connect(&mut self) {
        self.qpns += 1;
        let rng = &mut self.world.rng;
        let connect = Connect {
            remote_cm_response_timeout: 14 + rng.below(7) as u8,
            local_cm_response_timeout: rng.below(21) as u8,
            packet_life_time: 10 + rng.below(8) as u8,
            max_cm_retries: rng.below(16) as u8,
            ack_timeout: rng.below(20) as u8,
            ..request(CLIENT, self.qpns)
        };
        let conn = self.world.cms[CLIENT].connect(self.world.now, &connect).unwrap();
        let record = Record {
            phase: Phase::Asked,
            released: false,
            qpn: self.qpns,
            was_up: false,
            ended: false,
            rejected: false,
        };
        assert!(self.records[CLIENT].insert(conn, record).is_none());
        if self.world.rng.percent(self.moody / 4) {
            self.plan(CLIENT, Act::Release(conn));
        }
    }

    /// Takes what the managers have to say, and checks that it may be said.
    fn hear(&mut self) {
        for side in [CLIENT, SERVER] {
            for event in self.world.events(side) {
                self.heard(side, event);
            }
        }
    }

    fn heard(&mut self, side: usize, event: Event) {
        let text = format!("{event:?}");
        let (conn, from, to): (_, &[Phase], _) = match event {
            Event::Request(request) => {
                assert_eq!(side, SERVER);
                let record = Record {
                    phase: Phase::Asked,
                    released: false,
                    qpn: request.remote_qpn,
                    was_up: false,
                    ended: false,
                    rejected: false,
                };
                assert!(self.records[side].insert(request.conn, record).is_none());
                let bad = [Act::Reject(request.conn), Act::Release(request.conn)];
                return self.plan_moody(side, Act::Accept(request.conn), bad);
            }
            Event::Reply(reply) => {
                assert_eq!(side, CLIENT);
                let bad = [Act::Reject(reply.conn), Act::Release(reply.conn)];
                self.plan_moody(side, Act::Establish(reply.conn), bad);
                (reply.conn, &[Phase::Asked], Phase::Answered)
            }
            Event::Established { conn, .. } => {
                assert_eq!(side, SERVER);
                let qpn = self.records[side][&conn].qpn;
                let client = self.records[CLIENT].values().find(|client| client.qpn == qpn);
                assert!(client.is_some_and(|client| client.was_up), "nobody is ready");
                self.records[side].get_mut(&conn).unwrap().was_up = true;
                if self.world.rng.percent(50) {
                    self.plan(side, Act::Disconnect(conn));
                }
                // In the end at the latest.
                let at = self.world.now.after(1_000 * SECOND);
                self.agenda.push(Reverse((at, side, Act::Disconnect(conn))));
                (conn, &[Phase::Answered], Phase::Up)
            }
            Event::Rejected { conn, rej } => {
                let record = self.records[side].get_mut(&conn).unwrap();
                record.rejected = rej.reason == RejReason::ConsumerReject;
                (conn, &[Phase::Asked, Phase::Answered], Phase::Gone)
            }
            Event::Failed { conn, .. } => (conn, &[Phase::Asked, Phase::Answered], Phase::Gone),
            Event::Disconnected { conn, by } => {
                let qpn = self.records[side][&conn].qpn;
                let mut others = self.records[1 - side].values().filter(|other| other.qpn == qpn);
                match by {
                    Disconnect::Peer(_) | Disconnect::Rejected(RejReason::ConsumerReject) => {
                        assert!(others.any(|other| other.ended), "nobody ended it: {text}");
                    }
                    Disconnect::Confirmed(_) | Disconnect::NoAnswer => {
                        assert!(self.records[side][&conn].ended, "{text}");
                    }
                    Disconnect::Rejected(_) => {}
                    Disconnect::Lost => panic!("nobody said that a peer is gone: {text}"),
                }
                (conn, &[Phase::Up], Phase::Down)
            }
            Event::TimewaitExit { conn } => (conn, &[Phase::Down], Phase::Gone),
            other => panic!("{other:?}"),
        };
        let record = self.records[side].get_mut(&conn).unwrap();
        assert!(!record.released, "{text} of what was released");
        assert!(from.contains(&record.phase), "{text} in {record:?}");
        record.phase = to;
    }

    fn check(&self) {
        for (cm, records) in self.world.cms.iter().zip(&self.records) {
            assert!(cm.is_empty(), "left over: {cm:?}");
            assert_eq!(cm.next_timeout(), None);
            for (conn, record) in records {
                let is_over = record.released || record.phase == Phase::Gone;
                assert!(is_over, "{conn:?} is left as {record:?}");
            }
        }
        for client in self.records[CLIENT].values() {
            let mut servers =
                self.records[SERVER].values().filter(|server| server.qpn == client.qpn);
            if client.rejected {
                assert!(servers.any(|server| server.ended), "nobody refused {client:?}");
            }
        }
    }
}

fn faults(rng: &mut Rng) -> Faults {
    let mut some = |most| if rng.percent(70) { rng.below(most) } else { 0 };
    let (loss, duplication) = (some(70), some(60));
    let delay = [10, MS, 100 * MS, SECOND, 8 * SECOND][rng.below(5) as usize];
    Faults { loss, duplication, corruption: 0, delay }
}

/// How many seeds a test tries. More can be asked for.
fn seeds(usual: u64) -> u64 {
    std::env::var("IRONVERBS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// Says which seed it was that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

#[test]
fn every_connection_ends_and_both_sides_agree() {
    let (mut up, mut down, mut failed) = (0, 0, 0);
    for seed in 0..seeds(4_000) {
        let _seed = Seed(seed);
        let mut rng = Rng(seed ^ 0xc0ffee);
        let slowness = [1, MS, SECOND, 10 * SECOND, 60 * SECOND][rng.below(5) as usize];
        let mut programs = Programs::new(seed, faults(&mut rng), rng.below(50), slowness);
        for _ in 0..1 + rng.below(8) {
            programs.plan(CLIENT, Act::Connect);
        }
        programs.run();
        programs.check();
        for record in programs.records.iter().flat_map(HashMap::values) {
            up += u64::from(record.was_up);
            down += u64::from(record.ended);
            failed += u64::from(!record.was_up);
        }
    }
    // The test is of nothing if nothing happens in it.
    for count in [up, down, failed] {
        assert!(count > seeds(4_000), "{up} up, {down} ended, {failed} failed");
    }
}

/// With programs of good will and a network that loses a fifth, everybody gets connected, is
/// disconnected by its peer's wish or its own, and hears exactly that.
#[test]
fn a_lossy_network_only_takes_longer() {
    for seed in 0..seeds(1_000) {
        let _seed = Seed(seed);
        let faults = Faults { loss: 20, duplication: 20, corruption: 0, delay: SECOND / 2 };
        let mut world = World::new(seed, faults);
        world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 16).unwrap();
        let conns: Vec<_> = (0..5)
            .map(|i| world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100 + i)).unwrap())
            .collect();
        let mut heard: HashMap<(usize, ConnId), Vec<&'static str>> = HashMap::new();
        world.flush();
        while let Some(at) = world.next_time() {
            world.pass(at);
            for side in [CLIENT, SERVER] {
                for event in world.events(side) {
                    let now = world.now;
                    let cm = &mut world.cms[side];
                    let (conn, name) = answer(cm, now, event);
                    heard.entry((side, conn)).or_default().push(name);
                }
            }
            world.flush();
        }
        assert_eq!(heard.len(), 10);
        for ((side, conn), events) in heard {
            if side == CLIENT {
                assert!(conns.contains(&conn));
                assert_eq!(events, ["reply", "disconnected", "exit"]);
            } else {
                assert_eq!(events, ["request", "established", "disconnected", "exit"]);
            }
        }
    }
}

/// A program that agrees to everything; half of the servers disconnect.
fn answer(cm: &mut Cm, now: Instant, event: Event) -> (ConnId, &'static str) {
    match event {
        Event::Request(request) => {
            let accept = Accept::new(GUIDS[SERVER], 0x8000 + request.remote_qpn);
            cm.accept(now, request.conn, &accept).unwrap();
            (request.conn, "request")
        }
        Event::Reply(reply) => {
            cm.establish(reply.conn, &[]).unwrap();
            if reply.remote_qpn.is_multiple_of(2) {
                cm.disconnect(now, reply.conn, &[]).unwrap();
            }
            (reply.conn, "reply")
        }
        Event::Established { conn, .. } => {
            cm.disconnect(now, conn, &[]).unwrap();
            (conn, "established")
        }
        Event::Disconnected { conn, .. } => (conn, "disconnected"),
        Event::TimewaitExit { conn } => (conn, "exit"),
        other => panic!("{other:?}"),
    }
}

/// Damage that no ICRC has found: nothing panics, nothing is left.
#[test]
fn damaged_messages_do_no_lasting_harm() {
    for seed in 0..seeds(1_000) {
        let _seed = Seed(seed);
        let faults = Faults { loss: 5, duplication: 30, corruption: 40, delay: SECOND };
        let mut world = World::new(seed, faults);
        world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 16).unwrap();
        for i in 0..8 {
            world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100 + i)).unwrap();
        }
        let mut ups = Vec::new();
        let mut end = world.now.after(exponential(21) * 40);
        loop {
            world.flush();
            let Some(at) = world.next_time() else { break };
            world.pass(at);
            for side in [CLIENT, SERVER] {
                let now = world.now;
                for event in world.events(side) {
                    let cm = &mut world.cms[side];
                    match event {
                        Event::Request(request) => {
                            let accept = Accept::new(GUIDS[SERVER], 0x8000 + request.remote_qpn);
                            let _ = cm.accept(now, request.conn, &accept);
                        }
                        Event::Reply(reply) => {
                            let _ = cm.establish(reply.conn, &[]);
                            ups.push((side, reply.conn));
                        }
                        Event::Established { conn, .. } => ups.push((side, conn)),
                        _ => {}
                    }
                }
            }
            if world.now >= end || world.next_time().is_none() {
                for (side, conn) in ups.drain(..) {
                    world.cms[side].release(world.now, conn);
                }
                end = world.now.after(exponential(21) * 40);
            }
        }
        for cm in &world.cms {
            assert!(cm.is_empty(), "{cm:?}");
        }
    }
}
