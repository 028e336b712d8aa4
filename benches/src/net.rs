//! Two network namespaces joined by a veth pair, and processes in them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

pub(crate) const A: &str = "10.67.0.1";
pub(crate) const B: &str = "10.67.0.2";

/// No measurement takes longer than this.
const WATCHDOG: Duration = Duration::from_secs(60);

pub(crate) struct Joined {
    a: String,
    b: String,
}

impl Joined {
    pub(crate) fn new() -> Outcome<Joined> {
        let name = |side| format!("ironverbs-bench-{}-{side}", std::process::id());
        let joined = Joined { a: name("a"), b: name("b") };
        ip(&["netns", "add", &joined.a])?;
        ip(&["netns", "add", &joined.b])?;
        let veth =
            ["link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", &joined.b];
        ip(&[&["-n", &joined.a], &veth[..]].concat())?;
        for (namespace, address) in [(&joined.a, A), (&joined.b, B)] {
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", namespace, "link", "set", "veth0", "mtu", "9000", "up"])?;
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", "veth0"])?;
        }
        Ok(joined)
    }

    /// Runs a role in B and, once that is ready, another in A; the figure of the first (`of_b`) or the second.
    pub(crate) fn pair(&self, in_b: &[&str], in_a: &[&str], of_b: bool) -> Outcome<f64> {
        pair(&self.b, in_b, &self.a, in_a, of_b)
    }

    /// Runs two roles on one host: the server in A and, once that is ready, the client, whose figure it is.
    pub(crate) fn together(&self, server: &[&str], client: &[&str]) -> Outcome<f64> {
        pair(&self.a, server, &self.a, client, false)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        for namespace in [&self.a, &self.b] {
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

fn pair(first: &str, role: &[&str], second: &str, other: &[&str], of_first: bool) -> Outcome<f64> {
    let mut first = Role::start(Some(first), role)?;
    first.expect("ready")?;
    let mut second = Role::start(Some(second), other)?;
    if of_first { first.figure() } else { second.figure() }
}

/// Runs a role outside of the namespaces.
pub(crate) fn alone(role: &[&str]) -> Outcome<f64> {
    Role::start(None, role)?.figure()
}

fn ip(arguments: &[&str]) -> Outcome {
    let status = Command::new("ip").args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(format!("ip {} failed", arguments.join(" ")).into()) }
}

/// A process that plays a role; killed when dropped.
struct Role {
    child: Child,
    name: String,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Role {
    fn start(namespace: Option<&str>, role: &[&str]) -> Outcome<Role> {
        let program = std::env::current_exe()?;
        let mut command = match namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command.arg("role").args(role).stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = std::sync::mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Role { child, name: role.join(" "), lines })
    }

    fn line(&mut self, start: Instant) -> Outcome<String> {
        let left = WATCHDOG.saturating_sub(start.elapsed());
        self.lines.recv_timeout(left).map_err(|e| format!("{}: {e}", self.name).into())
    }

    fn expect(&mut self, word: &str) -> Outcome {
        let line = self.line(Instant::now())?;
        if line == word { Ok(()) } else { Err(format!("{}: {line}", self.name).into()) }
    }

    fn figure(&mut self) -> Outcome<f64> {
        let start = Instant::now();
        loop {
            if let Some(figure) = self.line(start)?.strip_prefix("figure ") {
                return Ok(figure.parse()?);
            }
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
