//! The ways between the Hosts of a case.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ironverbs_soft::config::{DataPath, OneSided, Setting, Source};
use ironverbs_soft::sim::Network;
use ironverbs_soft::*;

use crate::side::Side;

/// Real time after which something that should have come counts as missing.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// Virtual time after which it does, in nanoseconds.
pub(crate) const VIRTUAL_WATCHDOG: u64 = 600_000_000_000;

/// Makes the functions named tests, once for every path. A path is one line here.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        cases!(@ simulated: $($case),*);
        cases!(@ udp: $($case),*);
        cases!(@ local: $($case),*);
        cases!(@ kernel: $($case),*);
        cases!(@ ring: $($case),*);
    };
    (@ $path:ident: $($case:ident),*) => {
        mod $path {
            $(#[test] fn $case() { super::$case(&crate::fabric::Fabric::$path()) })*
        }
    };
}

/// Hosts that reach each other.
#[derive(Debug)]
pub(crate) struct Fabric {
    way: Way,
    hosts: RefCell<Vec<Host>>,
}

#[derive(Debug)]
enum Way {
    /// A network in this process, under virtual time.
    Simulated { network: Network, count: Cell<u8> },
    /// Members of one group on the loopback interface, with a UDP port of the case's own.
    Real { port: u16, path: DataPath, onesided: OneSided },
}

impl Fabric {
    pub(crate) fn simulated() -> Fabric {
        Fabric::seeded(1)
    }

    /// A simulated network whose accidents come from `seed`.
    pub(crate) fn seeded(seed: u64) -> Fabric {
        let way = Way::Simulated { network: Network::new(seed), count: Cell::new(0) };
        Fabric { way, hosts: RefCell::default() }
    }

    /// UDP, whoever the peer is.
    pub(crate) fn udp() -> Fabric {
        Fabric::real(DataPath::Wire, OneSided::Auto)
    }

    /// Shared memory between the members, and what else is best.
    pub(crate) fn local() -> Fabric {
        Fabric::real(DataPath::Auto, OneSided::Auto)
    }

    /// Shared memory, with one-sided operations by the kernel, as between processes.
    pub(crate) fn kernel() -> Fabric {
        Fabric::real(DataPath::Auto, OneSided::Kernel)
    }

    /// Shared memory, and nothing else.
    pub(crate) fn ring() -> Fabric {
        Fabric::real(DataPath::Auto, OneSided::Off)
    }

    fn real(path: DataPath, onesided: OneSided) -> Fabric {
        let way = Way::Real { port: port(), path, onesided };
        Fabric { way, hosts: RefCell::default() }
    }

    /// Whether initiators carry out one-sided operations by themselves.
    pub(crate) fn is_direct(&self) -> bool {
        match self.way {
            Way::Real { path: DataPath::Auto, onesided, .. } => onesided != OneSided::Off,
            _ => false,
        }
    }

    /// Another one of the same kind; accidents come from `seed`.
    pub(crate) fn again(&self, seed: u64) -> Fabric {
        match self.way {
            Way::Simulated { .. } => Fabric::seeded(seed),
            Way::Real { path, onesided, .. } => Fabric::real(path, onesided),
        }
    }

    /// The simulated network; None on a real path.
    pub(crate) fn network(&self) -> Option<&Network> {
        match &self.way {
            Way::Simulated { network, .. } => Some(network),
            Way::Real { .. } => None,
        }
    }

    /// Another Host.
    pub(crate) fn host(&self) -> Host {
        let host = match &self.way {
            Way::Simulated { network, count } => {
                count.set(count.get() + 1);
                network.host(&[address(count.get()), address_v6(count.get())]).unwrap()
            }
            Way::Real { port, path, onesided } => {
                let onesided = Setting { value: *onesided, source: Source::Default };
                Host::start(Config { onesided, ..config(*port, *path) }).unwrap()
            }
        };
        self.hosts.borrow_mut().push(host.clone());
        host
    }

    /// A Host with a device open and a MiB of memory registered.
    pub(crate) fn side(&self) -> Side {
        Side::new(&self.host(), 1 << 20)
    }

    /// Two of them.
    pub(crate) fn two(&self) -> (Side, Side) {
        (self.side(), self.side())
    }

    /// Lets time pass until `done`; fails the test with `what` when that does not happen.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        if let Some(network) = self.network() {
            assert!(network.run_until(VIRTUAL_WATCHDOG, done), "{what}: did not happen");
            return;
        }
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < WATCHDOG, "{what}: did not happen");
            self.progress();
        }
    }

    /// Lets everything pass that is on its way: nothing more comes afterwards without a cause.
    pub(crate) fn settle(&self) {
        if let Some(network) = self.network() {
            network.run_until(VIRTUAL_WATCHDOG, || false);
            return;
        }
        let mut quiet = Instant::now();
        let start = quiet;
        while quiet.elapsed() < Duration::from_millis(10) && start.elapsed() < WATCHDOG {
            if self.progress() {
                quiet = Instant::now();
            }
        }
    }

    /// Lets some time pass, in nanoseconds, of whatever clock there is.
    pub(crate) fn settle_for(&self, ns: u64) {
        if let Some(network) = self.network() {
            network.run_until(ns, || false);
            return;
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_nanos(ns) {
            self.progress();
        }
    }

    /// As [`until`](Fabric::until), but nobody polls a real Host meanwhile: its own thread has to do the work.
    #[track_caller]
    pub(crate) fn sleep_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        if self.network().is_some() {
            return self.until(what, done);
        }
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < WATCHDOG, "{what}: did not happen");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Polls every Host once, or moves virtual time on once; whether there was anything.
    pub(crate) fn progress(&self) -> bool {
        if let Some(network) = self.network() {
            return network.step();
        }
        let mut did = false;
        for host in self.hosts.borrow().iter() {
            did |= host.progress();
        }
        did
    }

    /// The next completions of a side's CQ, `n` of them.
    #[track_caller]
    pub(crate) fn completions(&self, side: &Side, n: usize) -> Vec<Wc> {
        self.completions_of(&side.cq, n)
    }

    /// The next `n` completions of a CQ.
    #[track_caller]
    pub(crate) fn completions_of(&self, cq: &Cq, n: usize) -> Vec<Wc> {
        let mut found = Vec::new();
        self.until(&format!("{n} completions"), || {
            cq.poll(n - found.len(), |wc| found.push(*wc)).unwrap();
            found.len() >= n
        });
        found
    }

    /// The next completion of a side's CQ.
    #[track_caller]
    pub(crate) fn completion(&self, side: &Side) -> Wc {
        self.completions(side, 1)[0]
    }

    /// The next asynchronous event of a side, acknowledged.
    #[track_caller]
    pub(crate) fn event(&self, side: &Side) -> AsyncEvent {
        let mut event = None;
        self.until("an asynchronous event", || {
            event = side.next_event();
            event.is_some()
        });
        event.inspect(AsyncEvent::ack).unwrap()
    }

    /// Nothing more comes on either CQ.
    #[track_caller]
    pub(crate) fn nothing_more(&self, sides: &[&Side]) {
        self.settle();
        for side in sides {
            assert_eq!(side.poll(), []);
        }
    }
}

/// A UDP port that nobody uses: below those that Linux gives out by itself.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id().wrapping_mul(977);
    loop {
        let n = process.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (n % 20_000) as u16;
        // Who has it has it for all addresses, and does not share it with a stranger.
        if UdpSocket::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// A device on the loopback interface.
pub(crate) fn config(port: u16, path: DataPath) -> Config {
    Config {
        udp_port: Setting { value: port, source: Source::Default },
        interfaces: Setting { value: vec!["lo".into()], source: Source::Default },
        path: Setting { value: path, source: Source::Default },
        ..Config::default()
    }
}

pub(crate) fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 0, n).into()
}

pub(crate) fn address_v6(n: u8) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 1, u16::from(n)])
}
