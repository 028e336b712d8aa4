//! Members in processes of their own: this test binary, executed again.

use std::time::{Duration, Instant};

use ironverbs_soft::registry::{JoinOptions, Registry};

use crate::child::Child;
pub(crate) use crate::child::{say, told};

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
    pub(crate) slot: u16,
}

impl Member {
    /// Starts one that does what `role` says (see [`role`]) when it has joined, and waits until then;
    /// meanwhile `serve` is called: if there is a member in this process, it is the one that the
    /// newcomer asks.
    pub(crate) fn start(options: &JoinOptions, role: &str, serve: &dyn Fn()) -> Member {
        let lanes = u8::from(options.lanes);
        let role_of = format!("{} {} {lanes} {role}", options.port, options.namespace);
        let child = Child::start("member_process", (ROLE, role_of));
        let mut member = Member { child, slot: u16::MAX };
        let start = Instant::now();
        let joined = loop {
            match member.child.line_within(Duration::from_millis(1)) {
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
        match self.child.line_within(WATCHDOG) {
            Ok(line) => line,
            Err(error) => panic!("member {} in slot {}: {error}", self.pid(), self.slot),
        }
    }
}

impl std::ops::Deref for Member {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl std::ops::DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
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

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "never: {what}");
        std::thread::yield_now();
    }
}
