//! Results, for people and for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::client::Outcome;
use super::protocol::{Checked, Operation, Test, Transport};

/// Everything that one command measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    pub(crate) server: String,
    pub(crate) device: String,
    pub(crate) gid: String,
    pub(crate) gid_index: u8,
    pub(crate) transport: Transport,
    /// Payload bytes of a packet.
    pub(crate) mtu: usize,
    pub(crate) results: Vec<Row>,
}

/// One operation and size.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: Operation,
    pub(crate) size: u32,
    /// All data that arrived was checked and right; absent when it was not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verified: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Bandwidth {
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) messages_per_second: f64,
    pub(crate) window: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    /// What was timed: a message and its echo, or until the completion.
    pub(crate) of: &'static str,
    pub(crate) operations: u64,
    pub(crate) lost: u64,
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl Bandwidth {
    pub(crate) fn new(test: &Test, outcome: &Outcome) -> Bandwidth {
        // Where messages are lost, what counts is what arrived.
        let arrived = outcome.messages.saturating_sub(outcome.lost);
        let seconds = outcome.elapsed.as_secs_f64();
        let bytes = arrived * u64::from(test.size);
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        Bandwidth {
            messages: outcome.messages,
            lost: outcome.lost,
            bytes,
            seconds,
            bytes_per_second: rate(bytes),
            messages_per_second: rate(arrived),
            window: test.window,
        }
    }
}

impl Latency {
    pub(crate) fn new(test: &Test, outcome: &Outcome, times: &Histogram<u64>) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |percentile: f64| us(times.value_at_percentile(percentile));
        Latency {
            of: if test.operation == Operation::Send { "round trip" } else { "completion" },
            operations: outcome.messages,
            lost: outcome.lost,
            min_us: us(times.min()),
            mean_us: times.mean() / 1e3,
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p99_9_us: at(99.9),
            max_us: us(times.max()),
        }
    }
}

/// Whether everything that arrived was checked and right.
pub(crate) fn verified(test: &Test, outcome: &Outcome) -> Option<bool> {
    let Checked { right, wrong } = outcome.checked;
    test.verify.then(|| wrong == 0 && right > 0 && right + outcome.lost == outcome.messages)
}

impl Report {
    /// The heading of the table.
    pub(crate) fn print_heading(&self) {
        say!(
            "{} on {} (GID {}: {}) to {}, path MTU {}",
            self.transport.name(),
            self.device,
            self.gid_index,
            self.gid,
            self.server,
            self.mtu
        );
        say!(
            "{:<12} {:>10} {:>9} {:>12} {:>11}  {:>8} {:>8} {:>8} {:>8} {:>8}  ",
            "operation",
            "bytes",
            "messages",
            "bandwidth",
            "messages/s",
            "min us",
            "p50",
            "p99",
            "p99.9",
            "max"
        );
    }
}

impl Row {
    /// A line of the table.
    pub(crate) fn print(&self) {
        let mut line = format!("{:<12} {:>10}", self.operation.name(), self.size);
        let messages = match (&self.bandwidth, &self.latency) {
            (Some(b), _) => b.messages,
            (None, Some(l)) => l.operations,
            (None, None) => 0,
        };
        line += &format!(" {messages:>9}");
        match &self.bandwidth {
            Some(b) => {
                line += &format!(
                    " {:>12} {:>11}",
                    bytes_per_second(b.bytes_per_second),
                    format!("{:.0}", b.messages_per_second)
                );
            }
            None => line += &format!(" {:>12} {:>11}", "-", "-"),
        }
        match &self.latency {
            Some(l) => {
                line += " ";
                for value in [l.min_us, l.p50_us, l.p99_us, l.p99_9_us, l.max_us] {
                    line += &format!(" {:>8}", microseconds(value * 1e3));
                }
            }
            None => line += &format!("  {:>8} {:>8} {:>8} {:>8} {:>8}", "-", "-", "-", "-", "-"),
        }
        let lost = [self.bandwidth.as_ref().map(|b| b.lost), self.latency.as_ref().map(|l| l.lost)];
        let lost: u64 = lost.into_iter().flatten().sum();
        if lost > 0 {
            line += &format!("  {lost} lost");
        }
        match self.verified {
            Some(true) => line += "  verified",
            Some(false) => line += "  WRONG DATA",
            None => {}
        }
        say!("{line}");
    }
}

/// `12.3 MB/s`; powers of ten.
pub(crate) fn bytes_per_second(rate: f64) -> String {
    let (value, unit) = match rate {
        r if r >= 1e9 => (r / 1e9, "GB/s"),
        r if r >= 1e6 => (r / 1e6, "MB/s"),
        r if r >= 1e3 => (r / 1e3, "kB/s"),
        r => (r, "B/s"),
    };
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

/// Microseconds of `ns`, to three digits or so.
pub(crate) fn microseconds(ns: f64) -> String {
    let us = ns / 1e3;
    let digits = if us >= 1000.0 {
        0
    } else if us >= 100.0 {
        1
    } else {
        2
    };
    format!("{us:.digits$}")
}

/// A duration as ping(8) prints it.
pub(crate) fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    let digits = if ms >= 100.0 {
        0
    } else if ms >= 10.0 {
        1
    } else if ms >= 1.0 {
        2
    } else {
        3
    };
    format!("{ms:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes_per_second(1_234_567_890.0), "1.23 GB/s");
        assert_eq!(bytes_per_second(45_600_000.0), "45.6 MB/s");
        assert_eq!(bytes_per_second(0.0), "0.00 B/s");
        assert_eq!(microseconds(1234.0), "1.23");
        assert_eq!(microseconds(123_456.0), "123.5");
        assert_eq!(milliseconds(Duration::from_micros(87)), "0.087");
    }
}
