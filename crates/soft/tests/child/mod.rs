//! A process of a test's own: the test binary, executed again, to be spoken to by lines.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ironverbs_sys::process;

/// Every wait ends here at the latest, with a failure.
pub const WATCHDOG: Duration = Duration::from_secs(30);

/// Killed when dropped.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts one that runs the test `entry` with the variable `role` set.
    pub fn start(entry: &str, role: (&str, String)) -> Child {
        Child::run(Command::new(std::env::current_exe().unwrap()), entry, role)
    }

    /// The same in a network namespace, which takes root and iproute2.
    pub fn start_in(namespace: &str, entry: &str, role: (&str, String)) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Child::run(command, entry, role)
    }

    fn run(mut command: Command, entry: &str, role: (&str, String)) -> Child {
        let mut process = command
            .args([entry, "--exact", "--nocapture", "--test-threads=1"])
            .env(role.0, role.1)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // What the test harness says in the child has no mark.
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once('@') {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Child { process, lines }
    }

    /// The next thing it says.
    #[track_caller]
    pub fn line(&self) -> String {
        match self.line_within(WATCHDOG) {
            Ok(line) => line,
            Err(error) => panic!("process {}: {error}", self.pid()),
        }
    }

    pub fn line_within(&self, time: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(time)
    }

    /// The next thing it says, if it has said something.
    pub fn try_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// The next line it reads.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: i32) {
        process::signal(self.pid(), signal).unwrap();
    }

    /// SIGSTOP, and waits until it has stopped: its threads run on for a moment, and longer on a busy machine.
    pub fn stop(&self) {
        const SIGSTOP: i32 = 19;
        self.signal(SIGSTOP);
        eventually("a stop of every thread", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            tasks.flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        });
    }

    /// kill -9. Not waited for: it may be a zombie for a while, which is dead enough.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Waits for its end; its exit code. Its standard input stays open, for children of it.
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < WATCHDOG, "process {} does not end", self.pid());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the child: says something to the test.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "@{line}").and_then(|()| out.flush());
}

/// In the child: the next line from the test; ends the process when the test is gone.
pub fn told() -> String {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "never: {what}");
        std::thread::yield_now();
    }
}
