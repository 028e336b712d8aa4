//! A network in one process under virtual time: many Hosts, one clock, and whatever can go wrong on a wire, from a
//! seed.
//!
//! Nothing here waits: [`Network::step`] moves the clock to the next packet or timer and does what is due, on the
//! caller's thread. The same seed and the same calls give the same run.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::netlink::{Address, Interface};
use ironverbs_wire::{Gid, Path};
use parking_lot::Mutex;

use crate::error::HostError;
use crate::host::{Clock, Inner, Interfaces};
use crate::link::Outlet;
use crate::{Config, Host};

/// What happens to packets. Shares are of 1.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Impairments {
    /// Share that is lost.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplication: f64,
    /// Share that is held back by up to `reorder_by`.
    pub reordering: f64,
    /// Share in which bits are flipped.
    pub corruption: f64,
    /// Time on the way, in nanoseconds.
    pub delay: u64,
    /// Longest time, in nanoseconds, that a reordered packet is held back.
    pub reorder_by: u64,
    /// Bytes per second of each sender's link; packets queue before it. 0: no limit.
    pub rate: u64,
}

impl Default for Impairments {
    /// A clean wire with a delay of 5 us.
    fn default() -> Self {
        Impairments {
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            delay: 5_000,
            reorder_by: 100_000,
            rate: 0,
        }
    }
}

/// What passed the network.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets sent into it.
    pub sent: u64,
    /// Packets it lost.
    pub lost: u64,
    /// Packets it damaged.
    pub corrupted: u64,
    /// Packets it delivered, repeated ones included.
    pub delivered: u64,
}

/// A simulated network. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Network(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Arc<AtomicU64>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    impairments: Impairments,
    hosts: Vec<(Vec<Gid>, Weak<Inner>)>,
    /// Packets on the way, by arrival and order of sending.
    flying: BTreeMap<(u64, u64), Flying>,
    /// When each sender's link is free.
    busy: BTreeMap<Gid, u64>,
    count: u64,
    traffic: Traffic,
}

#[derive(Clone, Debug)]
struct Flying {
    path: Path,
    src_port: u16,
    packet: Vec<u8>,
}

/// The source port of everything that simulated Hosts send: one of ours.
const SOURCE_PORT: u16 = 0x8000;

impl Network {
    /// A clean network at time 0.
    pub fn new(seed: u64) -> Network {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            impairments: Impairments::default(),
            hosts: Vec::new(),
            flying: BTreeMap::new(),
            busy: BTreeMap::new(),
            count: 0,
            traffic: Traffic::default(),
        };
        Network(Arc::new(Shared { clock: Arc::new(AtomicU64::new(1)), state: Mutex::new(state) }))
    }

    /// Changes what happens to packets sent from now on.
    pub fn impair(&self, impairments: Impairments) {
        self.0.state.lock().impairments = impairments;
    }

    /// A Host with one device that has these addresses.
    pub fn host(&self, addresses: &[IpAddr]) -> Result<Host, HostError> {
        let mut state = self.0.state.lock();
        let number = state.hosts.len() as u32 + 1;
        let interface = Interface {
            index: number,
            name: format!("sim{number}"),
            mtu: 9_000,
            up: true,
            loopback: false,
            mac: [2, 0, 0, 0, (number >> 8) as u8, number as u8],
            addresses: addresses
                .iter()
                .map(|ip| Address {
                    ip: *ip,
                    prefix: 24,
                    scope: 0,
                    tentative: false,
                    deprecated: false,
                })
                .collect(),
        };
        let outlet = Arc::new(Cable { network: Arc::downgrade(&self.0) });
        let clock = Clock::Virtual(self.0.clock.clone());
        let inner = Inner::new(Config::default(), clock, Interfaces::Fixed(vec![interface]))?;
        inner.simulate(outlet, (number % 0xfff) as u16 + 1);
        let inner = Arc::new(inner);
        let gids = addresses.iter().map(|ip| Gid::from_ip(*ip)).collect();
        state.hosts.push((gids, Arc::downgrade(&inner)));
        Ok(Host(inner))
    }

    /// Virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.0.clock.load(Ordering::Acquire)
    }

    /// What passed so far.
    pub fn traffic(&self) -> Traffic {
        self.0.state.lock().traffic
    }

    /// Moves the clock to the next packet or timer and does what is due then; false when nothing is to come.
    pub fn step(&self) -> bool {
        let (hosts, packet) = {
            let mut state = self.0.state.lock();
            let hosts: Vec<_> = state.hosts.iter().filter_map(|(_, host)| host.upgrade()).collect();
            let timer = hosts.iter().map(|host| host.timers.next().0).min().unwrap_or(u64::MAX);
            let arrival = state.flying.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let next = timer.min(arrival);
            if next == u64::MAX {
                return false;
            }
            self.0.clock.fetch_max(next, Ordering::AcqRel);
            let packet =
                if arrival <= next { state.flying.pop_first().map(|(_, p)| p) } else { None };
            (hosts, packet)
        };
        match packet {
            Some(packet) => self.deliver(&packet),
            None => hosts.iter().for_each(|host| {
                host.run_timers(host.clock.now());
            }),
        }
        true
    }

    /// Steps until `done`, or until the clock has gone `limit` nanoseconds on, or nothing is to come. Whether done.
    pub fn run_until(&self, limit: u64, mut done: impl FnMut() -> bool) -> bool {
        let end = self.now().saturating_add(limit);
        loop {
            if done() {
                return true;
            }
            if self.now() > end || !self.step() {
                return done();
            }
        }
    }

    /// Sends bytes as if from the UDP port of some host: for tests of what strangers may send.
    pub fn inject(&self, path: Path, src_port: u16, packet: &[u8]) {
        self.deliver(&Flying { path, src_port, packet: packet.to_vec() });
    }

    fn deliver(&self, flying: &Flying) {
        let hosts: Vec<_> = {
            let mut state = self.0.state.lock();
            state.traffic.delivered += 1;
            let dst = &flying.path.dst;
            // A switch that snoops: to a group's packets only Hosts with members listen.
            let to = |(gids, host): &(Vec<Gid>, Weak<Inner>)| {
                host.upgrade().filter(|host| match dst.is_multicast() {
                    true => host.groups.has(dst),
                    false => gids.contains(dst),
                })
            };
            let receivers = if dst.is_multicast() { usize::MAX } else { 1 };
            state.hosts.iter().filter_map(to).take(receivers).collect()
        };
        for host in hosts {
            host.take_packet(&flying.path, flying.src_port, &flying.packet);
        }
    }
}

/// A Host's connection to the network.
#[derive(Debug)]
struct Cable {
    network: Weak<Shared>,
}

impl Outlet for Cable {
    fn source_port(&self, _: &Path, _: u32) -> u16 {
        SOURCE_PORT
    }

    fn send(&self, path: &Path, _: u32, _: u32, bytes: &[u8], segment: usize) -> io::Result<()> {
        let Some(network) = self.network.upgrade() else { return Ok(()) };
        let now = network.clock.load(Ordering::Acquire);
        let mut state = network.state.lock();
        for packet in bytes.chunks(segment.max(1)) {
            state.send(now, path, packet);
        }
        Ok(())
    }

    fn port(&self) -> u16 {
        ironverbs_wire::ROCE_PORT
    }
}

impl State {
    fn send(&mut self, now: u64, path: &Path, packet: &[u8]) {
        self.traffic.sent += 1;
        let leaves = self.leaves(now, path, packet.len());
        if self.happens(self.impairments.loss) {
            self.traffic.lost += 1;
            return;
        }
        let copies = 1 + u32::from(self.happens(self.impairments.duplication));
        for _ in 0..copies {
            let mut flying = Flying { path: *path, src_port: SOURCE_PORT, packet: packet.to_vec() };
            if self.happens(self.impairments.corruption) {
                self.traffic.corrupted += 1;
                let bit = self.random.usize(0..packet.len() * 8);
                if let Some(byte) = flying.packet.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            let mut arrival = leaves + self.impairments.delay;
            if self.happens(self.impairments.reordering) {
                arrival += self.random.u64(0..=self.impairments.reorder_by);
            }
            self.count += 1;
            self.flying.insert((arrival, self.count), flying);
        }
    }

    /// When the last bit of a packet has left.
    fn leaves(&mut self, now: u64, path: &Path, len: usize) -> u64 {
        if self.impairments.rate == 0 {
            return now;
        }
        let free = self.busy.entry(path.src).or_insert(0);
        *free = now.max(*free) + len as u64 * 1_000_000_000 / self.impairments.rate;
        *free
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.random.f64() < share
    }
}
