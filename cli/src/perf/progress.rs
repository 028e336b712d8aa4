//! A line on stderr that tells of a long run, and goes away with it.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::client::Length;
use super::protocol::{Mode, Test};
use super::report::{bytes_per_second, microseconds};

/// The line. On a terminal it is rewritten twice a second; elsewhere one is added now and then.
pub(crate) struct Progress {
    enabled: bool,
    terminal: bool,
    next: Instant,
    shown: bool,
}

/// A run this short needs no line.
const PATIENCE: Duration = Duration::from_secs(1);

impl Progress {
    pub(crate) fn new(enabled: bool) -> Progress {
        let terminal = io::stderr().is_terminal();
        Progress { enabled, terminal, next: Instant::now() + PATIENCE, shown: false }
    }

    /// A test begins.
    pub(crate) fn start(&mut self) {
        self.next = Instant::now() + PATIENCE;
    }

    /// `messages` are done after `elapsed`.
    pub(crate) fn show(&mut self, test: &Test, messages: u64, length: Length, elapsed: Duration) {
        if !self.enabled {
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(if self.terminal { 500 } else { 5000 });
        let part = match length {
            Length::Messages(n) => messages as f64 / n.max(1) as f64,
            Length::Time(t) => elapsed.as_secs_f64() / t.as_secs_f64().max(1e-9),
        };
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let so_far = match test.mode {
            Mode::Bandwidth => bytes_per_second(messages as f64 * f64::from(test.size) / seconds),
            Mode::Latency => {
                format!("{} us each", microseconds(seconds * 1e9 / messages.max(1) as f64))
            }
        };
        let line = format!(
            "{} {} bytes: {:.0}%, {messages} messages, {so_far}",
            test.operation.name(),
            test.size,
            (part * 100.0).min(100.0)
        );
        let mut stderr = io::stderr().lock();
        // A line that cannot be shown is no reason to stop.
        let _ = match self.terminal {
            true => write!(stderr, "\r{line}\x1b[K").and_then(|()| stderr.flush()),
            false => writeln!(stderr, "{line}"),
        };
        self.shown = true;
    }

    /// The test is over: makes room for its result.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) && self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
