//! Managers under virtual time, joined by a network with seeded faults.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ironverbs_mad::{Accept, Cm, Config, ConnId, Connect, Event, Instant, LocalAddr, Request};
use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::{IpHeader, Message, PortSpace, ServiceId};
use ironverbs_wire::{Gid, Path};

pub(crate) const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);
pub(crate) const GUIDS: [u64; 2] = [0x1111_0000_0000_0001, 0x2222_0000_0000_0002];
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// Seeded randomness (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `bound` - 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Faults, in percent of MADs, and the longest time one takes, in nanoseconds.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplication: u64,
    pub(crate) corruption: u64,
    pub(crate) delay: u64,
}

#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
struct Flight {
    at: Instant,
    number: u64,
    to: usize,
    pkey: u16,
    mad: Mad,
}

/// Two managers and the network between them.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) cms: [Cm; 2],
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
    /// What was sent, and by whom, whether or not it arrived.
    pub(crate) trace: Vec<(usize, Message)>,
    flights: BinaryHeap<Reverse<Flight>>,
    sent: u64,
}

pub(crate) fn gid(side: usize) -> Gid {
    ["10.0.0.1", "10.0.0.2"][side].parse().unwrap()
}

/// From one side to the other.
pub(crate) fn path(from: usize) -> Path {
    let (src, dst) = (gid(from), gid(1 - from));
    Path { src, dst, traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None }
}

pub(crate) fn header(from: usize) -> IpHeader {
    IpHeader { src_port: 40_000, src: gid(from).to_ip(), dst: gid(1 - from).to_ip() }
}

/// A request of one side to the service.
pub(crate) fn request<'a>(from: usize, qpn: u32) -> Connect<'a> {
    Connect { ip: Some(header(from)), ..Connect::new(path(from), SERVICE, GUIDS[from], qpn) }
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let cm = |slot| Cm::new(Config::new(slot, 10, u128::from(seed) << 10 | u128::from(slot)));
        Self {
            now: Instant(1),
            cms: [cm(1), cm(2)],
            faults,
            rng: Rng(seed),
            trace: Vec::new(),
            flights: BinaryHeap::new(),
            sent: 0,
        }
    }

    /// A world in which the server listens.
    pub(crate) fn listening() -> Self {
        let mut world = Self::new(7, Faults::default());
        world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 16).unwrap();
        world
    }

    /// Puts what the managers have to send on its way.
    pub(crate) fn flush(&mut self) {
        for side in [CLIENT, SERVER] {
            while let Some(transmit) = self.cms[side].poll_transmit() {
                let expected = path(side);
                assert_eq!((transmit.path.src, transmit.path.dst), (expected.src, expected.dst));
                self.trace.push((side, Message::parse(&transmit.mad).unwrap().1));
                self.send(1 - side, transmit.pkey, transmit.mad);
            }
        }
    }

    fn send(&mut self, to: usize, pkey: u16, mad: Mad) {
        if self.rng.percent(self.faults.loss) {
            return;
        }
        let copies = 1 + u64::from(self.rng.percent(self.faults.duplication));
        for _ in 0..copies {
            let mut mad = mad;
            if self.rng.percent(self.faults.corruption) {
                let at = self.rng.below(mad.len() as u64) as usize;
                mad[at] ^= 1 << self.rng.below(8);
            }
            self.sent += 1;
            let at = self.now.after(1_000 + self.rng.below(self.faults.delay));
            self.flights.push(Reverse(Flight { at, number: self.sent, to, pkey, mad }));
        }
    }

    /// When something happens next.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let flight = self.flights.peek().map(|Reverse(flight)| flight.at);
        let timers = self.cms.iter().filter_map(Cm::next_timeout);
        timers.chain(flight).min()
    }

    /// Lets time pass until `at` and everything due by then happen. Events are the caller's to
    /// collect, so this is only for times up to the next one.
    pub(crate) fn pass(&mut self, at: Instant) {
        self.now = self.now.max(at);
        while let Some(Reverse(flight)) = self.flights.peek()
            && flight.at <= self.now
        {
            let Some(Reverse(flight)) = self.flights.pop() else { break };
            let from = path(1 - flight.to);
            self.cms[flight.to].handle_mad(self.now, &from, flight.pkey, &flight.mad);
        }
        for cm in &mut self.cms {
            cm.handle_timeout(self.now);
        }
        self.flush();
    }

    /// Lets everything happen that is on its way, but no time out.
    pub(crate) fn settle(&mut self) {
        self.flush();
        while let Some(Reverse(flight)) = self.flights.peek() {
            let at = flight.at;
            self.pass(at);
        }
    }

    /// Lets `nanoseconds` pass.
    pub(crate) fn wait(&mut self, nanoseconds: u64) {
        self.flush();
        let end = self.now.after(nanoseconds);
        while let Some(at) = self.next_time().filter(|&at| at <= end) {
            self.pass(at);
        }
        self.pass(end);
    }

    /// Gives a manager a message as if the other side had sent it.
    pub(crate) fn inject(&mut self, to: usize, tid: u64, message: Message) {
        self.cms[to].handle_mad(self.now, &path(1 - to), 0xffff, &message.emit(tid));
    }

    pub(crate) fn events(&mut self, side: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.cms[side].poll_event()).collect()
    }

    /// The one event that a side has.
    pub(crate) fn event(&mut self, side: usize) -> Event {
        let mut events = self.events(side);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// The one event that the server has is a request.
    pub(crate) fn request_event(&mut self) -> Request {
        match self.event(SERVER) {
            Event::Request(request) => *request,
            other => panic!("{other:?}"),
        }
    }

    /// The message of the trace counted from its end.
    pub(crate) fn last(&self, back: usize) -> Message {
        self.trace[self.trace.len() - 1 - back].1
    }

    /// An established connection: its IDs on both sides. The QPNs are 0x100 and 0x200.
    pub(crate) fn connected(&mut self) -> [ConnId; 2] {
        let client = self.cms[CLIENT].connect(self.now, &request(CLIENT, 0x100)).unwrap();
        self.settle();
        let server = self.request_event().conn;
        self.cms[SERVER].accept(self.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
        self.settle();
        assert!(matches!(self.event(CLIENT), Event::Reply(reply) if reply.conn == client));
        self.cms[CLIENT].establish(client, &[]).unwrap();
        self.settle();
        assert!(matches!(self.event(SERVER), Event::Established { conn, .. } if conn == server));
        [client, server]
    }

    /// Waits until nothing is remembered, and throws events away.
    pub(crate) fn drain(&mut self) {
        self.flush();
        while let Some(at) = self.next_time() {
            self.pass(at);
            for side in [CLIENT, SERVER] {
                self.events(side);
            }
        }
        for cm in &self.cms {
            assert!(cm.is_empty(), "{cm:?}");
        }
    }
}

/// Who sent which messages.
pub(crate) fn names(world: &World) -> Vec<(usize, &'static str)> {
    let name = |message: &Message| match message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
        Message::Lap(_) => "LAP",
        Message::Apr(_) => "APR",
    };
    world.trace.iter().map(|(side, message)| (*side, name(message))).collect()
}
