//! Network namespaces of a test's own. Nothing here touches the machine's own interfaces.

use crate::process::{Failure, Outcome, Program, pause};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PREFIX: &str = "ironverbs-test-";

/// A namespace, removed with everything in it when dropped.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one with its loopback up.
    pub(crate) fn new() -> Outcome<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{count}", std::process::id());
        ip(["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.ip(["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// `ip` in this namespace.
    pub(crate) fn ip<const N: usize>(&self, arguments: [&str; N]) -> Outcome {
        Program::new("ip").args(["-n", &self.name]).args(arguments).read().map(drop)
    }

    /// `program` in this namespace, under the same process ID that it will be started with.
    pub(crate) fn within(&self, program: Program) -> Program {
        program.under(["ip", "netns", "exec", &self.name])
    }

    fn is_up(&self, interface: &str) -> Outcome<bool> {
        let shown =
            Program::new("ip").args(["-n", &self.name, "link", "show", interface]).read()?;
        Ok(shown.contains(" state UP "))
    }

    fn address(&self, interface: &str, v4: &str, v6: &str) -> Outcome {
        self.ip(["address", "add", &format!("{v4}/24"), "dev", interface])?;
        self.ip(["address", "add", &format!("{v6}/64"), "dev", interface, "nodad"])?;
        self.ip(["link", "set", interface, "up"])
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Two namespaces joined by a veth pair, `veth0` in each.
pub(crate) struct Joined {
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
}

/// Address family of a test's traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::V4 => "v4",
            Family::V6 => "v6",
        }
    }
}

/// Which of the two ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    A,
    B,
}

impl Joined {
    pub(crate) fn new(mtu: u32) -> Outcome<Joined> {
        let joined = Joined { a: Namespace::new()?, b: Namespace::new()? };
        let peer = joined.b.name.as_str();
        joined
            .a
            .ip(["link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", peer])?;
        for end in [End::A, End::B] {
            let namespace = joined.end(end);
            namespace.ip(["link", "set", "veth0", "mtu", &mtu.to_string()])?;
            let (v4, v6) = (Self::address(end, Family::V4), Self::address(end, Family::V6));
            namespace.address("veth0", v4, v6)?;
        }
        // The kernel tells that a carrier came up at most once a second.
        let deadline = Instant::now() + Duration::from_secs(30);
        for end in [End::A, End::B] {
            while !joined.end(end).is_up("veth0")? {
                if Instant::now() >= deadline {
                    return Err("a veth pair does not come up".into());
                }
                pause();
            }
        }
        Ok(joined)
    }

    pub(crate) fn end(&self, end: End) -> &Namespace {
        match end {
            End::A => &self.a,
            End::B => &self.b,
        }
    }

    pub(crate) fn address(end: End, family: Family) -> &'static str {
        match (end, family) {
            (End::A, Family::V4) => "10.66.0.1",
            (End::B, Family::V4) => "10.66.0.2",
            (End::A, Family::V6) => "fd66::1",
            (End::B, Family::V6) => "fd66::2",
        }
    }
}

/// Removes what an earlier run that was killed left behind.
pub(crate) fn sweep() -> Outcome {
    for line in ip(["netns", "list"])?.lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(name);
        }
    }
    Ok(())
}

fn remove(name: &str) {
    if let Ok(pids) = ip(["netns", "pids", name]) {
        let pids: Vec<_> = pids.split_whitespace().collect();
        if !pids.is_empty() {
            let _ = Program::new("kill").args(["-s", "KILL", "--"]).args(pids).read();
        }
    }
    if let Err(failure) = ip(["netns", "delete", name]) {
        eprintln!("xtask: {failure}");
    }
}

fn ip<const N: usize>(arguments: [&str; N]) -> Result<String, Failure> {
    Program::new("ip").args(arguments).read()
}
