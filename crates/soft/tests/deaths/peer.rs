//! The other end of a connection in a process of its own: this test binary, executed again.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;

use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_soft::*;

use crate::child::Child;
pub(crate) use crate::child::{WATCHDOG, eventually, say, told};
use crate::common::*;

/// Bytes of memory of each side.
pub(crate) const MEMORY: usize = 1 << 20;

const ROLE: &str = "IRONVERBS_TEST_DEATHS";

fn config(port: u16, path: DataPath) -> Config {
    let udp_port = Setting { value: port, source: Source::Default };
    let interfaces = Setting { value: vec!["lo".to_owned()], source: Source::Default };
    let path = Setting { value: path, source: Source::Default };
    Config { udp_port, interfaces, path, ..Config::default() }
}

/// A UDP port, and so a group, of the test's own.
pub(crate) fn port(test: u16) -> u16 {
    let process = (std::process::id() % 100) as u16;
    21_000 + process * 20 + test
}

pub(crate) fn side(port: u16) -> Side {
    side_by(port, DataPath::Auto)
}

pub(crate) fn side_by(port: u16, path: DataPath) -> Side {
    Side::new(Host::start(config(port, path)).unwrap(), MEMORY)
}

/// What one needs to know of the other's QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) qpn: u32,
    pub(crate) va: u64,
    pub(crate) rkey: u32,
}

impl Address {
    pub(crate) fn of(side: &Side, qp: &Qp) -> Address {
        Address { qpn: qp.qpn(), va: side.memory.addr(), rkey: side.mr.rkey() }
    }

    fn parse(line: &str) -> Address {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        Address { qpn: next() as u32, va: next(), rkey: next() as u32 }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.qpn, self.va, self.rkey)
    }
}

/// A process at the other end. Killed when dropped.
pub(crate) struct Peer(Child);

impl std::ops::Deref for Peer {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Peer {
    /// One whose QP of that type is connected to a new one of ours by the same path, and which does what `role` says,
    /// see [`crate::peer_process`].
    pub(crate) fn connect(port: u16, side: &Side, init: &QpInit, role: &str) -> (Peer, Joined) {
        let path = side.host.config().path.value;
        let role = format!("{port} {} {} {role}", path.as_str(), init.qp_type as u32);
        let mut peer = Peer(Child::start("peer_process", (ROLE, role)));
        let remote = Address::parse(&peer.line());
        let qp = side.pd.create_qp(init).unwrap();
        peer.tell(&Address::of(side, &qp).to_string());
        connect(&qp, &attr(side.gid(), remote.qpn));
        assert_eq!(peer.line(), "connected");
        assert_eq!(qp.is_local(), path != DataPath::Wire);
        (peer, Joined { qp, remote })
    }

    /// Waits until it has ended and its output was read.
    pub(crate) fn drained(&self) {
        while !matches!(self.line_within(WATCHDOG), Err(RecvTimeoutError::Disconnected)) {}
    }
}

/// Our end of a connection to a peer.
pub(crate) struct Joined {
    pub(crate) qp: Arc<Qp>,
    pub(crate) remote: Address,
}

/// In a peer's process: its end of the connection, and what it is to do. None in the test runner's own process.
pub(crate) fn role() -> Option<(Side, Joined, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let mut words = role.split(' ');
    let port = words.next()?.parse().ok()?;
    let path = if words.next()? == "wire" { DataPath::Wire } else { DataPath::Auto };
    let side = side_by(port, path);
    let qp_type = match words.next()?.parse().ok()? {
        2u32 => QpType::Rc,
        3 => QpType::Uc,
        other => panic!("{other}"),
    };
    let qp = side.qp(qp_type);
    say(&Address::of(&side, &qp).to_string());
    let remote = Address::parse(&told());
    let words: Vec<_> = words.map(str::to_owned).collect();
    let mut attr = attr(side.gid(), remote.qpn);
    if words == ["slow"] {
        // 491.52 ms.
        attr.min_rnr_timer = 31;
    }
    connect(&qp, &attr);
    say("connected");
    Some((side, Joined { qp, remote }, words))
}
