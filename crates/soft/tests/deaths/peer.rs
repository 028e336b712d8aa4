//! The other end of a connection in a process of its own: this test binary, executed again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ironverbs_soft::config::{Setting, Source};
use ironverbs_soft::*;
use ironverbs_sys::process;

use crate::common::*;

/// Every wait ends here at the latest, with a failure.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);

/// Bytes of memory of each side.
pub(crate) const MEMORY: usize = 1 << 20;

const ROLE: &str = "IRONVERBS_TEST_DEATHS";

pub(crate) fn config(port: u16) -> Config {
    let udp_port = Setting { value: port, source: Source::Default };
    let interfaces = Setting { value: vec!["lo".to_owned()], source: Source::Default };
    Config { udp_port, interfaces, ..Config::default() }
}

/// A UDP port, and so a group, of the test's own.
pub(crate) fn port(test: u16) -> u16 {
    let process = (std::process::id() % 100) as u16;
    21_000 + process * 20 + test
}

pub(crate) fn side(port: u16) -> Side {
    Side::new(Host::start(config(port)).unwrap(), MEMORY)
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
pub(crate) struct Peer {
    child: Child,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts one that does what `role` says, see [`crate::peer_process`].
    pub(crate) fn start(port: u16, role: &str) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["peer_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{port} {role}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // What the test harness says in the child has no mark.
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once('@') {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Peer { child, lines }
    }

    /// One whose QP of that type is connected to a new one of ours.
    pub(crate) fn connect(port: u16, side: &Side, init: &QpInit, role: &str) -> (Peer, Joined) {
        let mut peer = Peer::start(port, &format!("{} {role}", init.qp_type as u32));
        let remote = Address::parse(&peer.line());
        let qp = side.pd.create_qp(init).unwrap();
        peer.tell(&Address::of(side, &qp).to_string());
        connect(&qp, &attr(side.gid(), remote.qpn));
        assert_eq!(peer.line(), "connected");
        assert!(qp.is_local());
        (peer, Joined { qp, remote })
    }

    /// The next thing it says.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(WATCHDOG) {
            Ok(line) => line,
            Err(error) => panic!("peer {}: {error}", self.pid()),
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        process::signal(self.pid(), signal).unwrap();
    }

    /// SIGSTOP, and waits until it has stopped: some of its threads may run on for a moment.
    pub(crate) fn stop(&self) {
        self.signal(crate::traffic::SIGSTOP);
        eventually("a stop of every thread", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            tasks.flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        });
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for its end; its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < WATCHDOG, "peer {} does not end", self.pid());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it has ended and its output was read.
    pub(crate) fn drained(&self) {
        while !matches!(self.lines.recv_timeout(WATCHDOG), Err(RecvTimeoutError::Disconnected)) {}
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let side = side(words.next()?.parse().ok()?);
    let qp_type = match words.next()?.parse().ok()? {
        2u32 => QpType::Rc,
        3 => QpType::Uc,
        other => panic!("{other}"),
    };
    let qp = side.qp(qp_type);
    say(&Address::of(&side, &qp).to_string());
    let remote = Address::parse(&told());
    connect(&qp, &attr(side.gid(), remote.qpn));
    say("connected");
    Some((side, Joined { qp, remote }, words.map(str::to_owned).collect()))
}

pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{line}").and_then(|()| out.flush());
}

/// The next line from the test; ends the process when the test is gone.
pub(crate) fn told() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "never: {what}");
        std::thread::yield_now();
    }
}
