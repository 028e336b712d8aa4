//! Members in processes of their own: this test binary, executed again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ironverbs_soft::registry::{JoinOptions, Registry};
use ironverbs_sys::process;

/// Every wait ends here at the latest, with a failure.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

const ROLE: &str = "IRONVERBS_TEST_LANES";

/// A group of its own for each test: the tests run side by side.
pub(crate) fn options(test: u16) -> JoinOptions {
    JoinOptions {
        port: 47_950 + test,
        namespace: format!("ironverbs-lanes-{}", std::process::id()),
        ..JoinOptions::default()
    }
}

/// A member in another process. Killed when dropped.
pub(crate) struct Member {
    child: Child,
    lines: Receiver<String>,
    pub(crate) slot: u16,
}

impl Member {
    /// Starts one that does what `role` says (see [`role`]) when it has joined, and waits until then;
    /// meanwhile `serve` is called: if there is a member in this process, it is the one that the
    /// newcomer asks.
    pub(crate) fn start(options: &JoinOptions, role: &str, serve: &dyn Fn()) -> Member {
        let lanes = u8::from(options.lanes);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["member_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{} {} {lanes} {role}", options.port, options.namespace))
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
        let mut member = Member { child, lines, slot: u16::MAX };
        let start = Instant::now();
        let joined = loop {
            match member.lines.recv_timeout(Duration::from_millis(1)) {
                Ok(line) => break line,
                Err(error) => assert!(start.elapsed() < WATCHDOG, "{role}: {error}"),
            }
            serve();
        };
        member.slot = joined.strip_prefix("joined ").unwrap().parse().unwrap();
        member
    }

    /// The next thing it says.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(WATCHDOG) {
            Ok(line) => line,
            Err(error) => panic!("member {} in slot {}: {error}", self.pid(), self.slot),
        }
    }

    /// The next thing it says, if it has said something.
    pub(crate) fn try_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line it reads.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: i32) {
        process::signal(self.pid(), signal).unwrap();
    }

    /// kill -9. Not waited for: it may be a zombie for a while, which is dead enough.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a member's process: joins and gives what it is to do. None in the test runner's own process.
pub(crate) fn role() -> Option<(Registry, Vec<String>)> {
    let role = std::env::var(ROLE).ok()?;
    let mut words = role.split(' ').map(str::to_owned);
    let port = words.next()?.parse().ok()?;
    let options = JoinOptions { port, namespace: words.next()?, lanes: words.next()? == "1" };
    let mut words = words.peekable();
    if words.next_if_eq("stranger").is_some() {
        say("joined 65535");
        crate::stranger(&options, words.next()?.parse().ok()?);
        std::process::exit(0);
    }
    let registry = Registry::join(&options).unwrap();
    say(&format!("joined {}", registry.slot()));
    Some((registry, words.collect()))
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
