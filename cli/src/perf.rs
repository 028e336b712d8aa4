//! `ironverbs perf`: bandwidth and latency between two processes.

pub(crate) mod client;
pub(crate) mod lane;
mod pattern;
pub(crate) mod place;
mod progress;
pub(crate) mod protocol;
pub(crate) mod report;
pub(crate) mod server;
mod stream;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use client::{Length, Session};
use progress::Progress;
use protocol::{Mode, Operation, Test, Transport};
use report::{Bandwidth, Latency, Report, Row};
use server::{PlaceArgs, ServerArgs};

use ironverbs::Mtu;

use crate::verbs::{Config, Host};

/// Measures bandwidth and latency between two processes.
///
/// On one side: `ironverbs perf --server`. On the other: `ironverbs perf HOST`. The two meet through
/// the connection manager, or with --tcp over TCP, and use the device that has the addresses of that
/// connection. Latency is that of one operation at a time: of a SEND, until its echo has arrived; of
/// others, until the completion.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("side").required(true).args(["host", "server"])))]
pub(crate) struct PerfArgs {
    /// The server's name or address
    #[arg(conflicts_with = "server")]
    host: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Operations to measure; `all` is every one that the transport has
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    op: Vec<Op>,
    /// Transport service
    #[arg(long, value_enum, default_value = "rc")]
    transport: Transport,
    /// Bytes of a message, with K, M or G for 1024 and its powers [default: 64K; on UD 1K]
    #[arg(long, short = 's', value_parser = size, value_delimiter = ',')]
    size: Vec<u32>,
    /// Messages of each measurement [default: 1000]
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    iters: Option<u64>,
    /// Seconds of each measurement
    #[arg(long, short = 't', value_parser = seconds, conflicts_with = "iters", value_name = "SECONDS")]
    duration: Option<Duration>,
    /// Only bandwidth
    #[arg(long, conflicts_with = "lat")]
    bw: bool,
    /// Only latency
    #[arg(long)]
    lat: bool,
    /// Requests outstanding in bandwidth tests
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
    /// Path MTU in bytes [default: the largest that both ports have]
    #[arg(long, value_parser = mtu)]
    mtu: Option<Mtu>,
    /// Check every byte where it arrives
    #[arg(long)]
    verify: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short = 'q')]
    quiet: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Op {
    All,
    Send,
    Write,
    Read,
    /// Both atomics
    Atomic,
    FetchAdd,
    CompareSwap,
}

pub(crate) fn size(text: &str) -> Result<u32, String> {
    let (digits, factor) = match text.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']) {
        digits if digits.len() == text.len() => (digits, 1_u64),
        digits if digits.len() + 1 == text.len() => match text.bytes().last() {
            Some(b'k' | b'K') => (digits, 1 << 10),
            Some(b'm' | b'M') => (digits, 1 << 20),
            _ => (digits, 1 << 30),
        },
        _ => return Err("expected a number of bytes such as 4096, 64K or 1M".to_owned()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number of bytes such as 4096, 64K or 1M")?;
    match number.checked_mul(factor) {
        Some(n) if n <= 1 << 30 => Ok(n as u32),
        _ => Err("at most 1G is possible".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected seconds, more than 0 and at most a day".to_owned();
    let number: f64 = text.parse().map_err(|_| wrong())?;
    if number > 0.0 && number <= 86_400.0 {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err(wrong())
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    Mtu::ALL
        .into_iter()
        .find(|m| m.bytes().to_string() == text)
        .ok_or_else(|| "expected 256, 512, 1024, 2048 or 4096".to_owned())
}

pub(crate) fn run(args: &PerfArgs) -> Result<(), String> {
    // Wrong options are told before anybody is called.
    let operations = operations(args)?;
    let config = Config::load().map_err(|e| e.to_string())?;
    let host = Host::start(config).map_err(|e| e.to_string())?;
    match &args.host {
        None => server::serve(&host, &args.server, &args.place),
        Some(name) => measure(&host, name, args, &operations),
    }
}

/// What to measure, without repetition.
fn operations(args: &PerfArgs) -> Result<Vec<Operation>, String> {
    use Operation::{CompareSwap, FetchAdd, Read, Send, Write};
    let possible: &[Operation] = match args.transport {
        Transport::Rc => &[Send, Write, Read, FetchAdd, CompareSwap],
        Transport::Uc => &[Send, Write],
        Transport::Ud => &[Send],
    };
    let mut list: Vec<Operation> = Vec::new();
    for op in &args.op {
        let asked: &[Operation] = match op {
            Op::All => possible,
            Op::Send => &[Send],
            Op::Write => &[Write],
            Op::Read => &[Read],
            Op::Atomic => &[FetchAdd, CompareSwap],
            Op::FetchAdd => &[FetchAdd],
            Op::CompareSwap => &[CompareSwap],
        };
        for operation in asked {
            if !possible.contains(operation) {
                let (service, name) = (args.transport.name(), operation.name());
                return Err(format!(
                    "{service} has no {name}: only RC has READ and atomics, UD only SEND"
                ));
            }
            if !list.contains(operation) {
                list.push(*operation);
            }
        }
    }
    if args.lat && args.transport == Transport::Uc && list == [Write] {
        return Err(
            "a UC WRITE is not acknowledged: its latency cannot be seen from here".to_owned()
        );
    }
    Ok(list)
}

fn measure(
    host: &Host,
    name: &str,
    args: &PerfArgs,
    operations: &[Operation],
) -> Result<(), String> {
    let mut session = Session::connect(host, name, &args.place)?;
    let mtu = args.mtu.unwrap_or(session.mtu);
    if mtu > session.mtu {
        let most = session.mtu.bytes();
        return Err(format!(
            "path MTU {} is more than both ports have: at most {most}",
            mtu.bytes()
        ));
    }
    let sizes = match (args.size.as_slice(), args.transport) {
        ([], Transport::Ud) => vec![1024.min(mtu.bytes() as u32)],
        ([], _) => vec![64 << 10],
        (sizes, _) => sizes.to_vec(),
    };
    if args.transport == Transport::Ud
        && let Some(size) = sizes.iter().find(|s| **s as usize > mtu.bytes())
    {
        return Err(format!(
            "{size} bytes: a UD message holds at most the path MTU, {}",
            mtu.bytes()
        ));
    }
    let mut report = Report {
        program: "ironverbs",
        version: env!("CARGO_PKG_VERSION"),
        server: session.place.peer.clone(),
        device: session.place.context.device().to_string(),
        gid: session.place.gid.to_string(),
        gid_index: session.place.gid_index,
        transport: args.transport,
        mtu: mtu.bytes(),
        results: Vec::new(),
    };
    if !args.json {
        report.print_heading();
    }
    let mut progress = Progress::new(!args.quiet);
    for &operation in operations {
        // An atomic has one size.
        let eight = [8];
        let sizes = if operation.is_atomic() { &eight[..] } else { &sizes };
        for &size in sizes {
            let row = one(&mut session, args, mtu, operation, size, &mut progress)?;
            if !args.json {
                row.print();
            }
            report.results.push(row);
        }
    }
    session.bye();
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?);
    }
    match report.results.iter().find(|r| r.verified == Some(false)) {
        None => Ok(()),
        Some(row) => {
            Err(format!("{} of {} bytes: data arrived wrong", row.operation.name(), row.size))
        }
    }
}

fn one(
    session: &mut Session,
    args: &PerfArgs,
    mtu: Mtu,
    operation: Operation,
    size: u32,
    progress: &mut Progress,
) -> Result<Row, String> {
    let length = match (args.iters, args.duration) {
        (_, Some(time)) => Length::Time(time),
        (iters, None) => Length::Messages(iters.unwrap_or(1000)),
    };
    let mut row = Row { operation, size, verified: None, bandwidth: None, latency: None };
    for mode in [Mode::Bandwidth, Mode::Latency] {
        let wanted = match mode {
            Mode::Bandwidth => !args.lat,
            Mode::Latency => {
                !args.bw && (args.transport, operation) != (Transport::Uc, Operation::Write)
            }
        };
        if !wanted {
            continue;
        }
        let depth = match mode {
            Mode::Bandwidth => args.depth,
            Mode::Latency => 16,
        };
        let test = Test {
            transport: args.transport,
            operation,
            mode,
            size,
            window: lane::window(depth, size),
            verify: args.verify,
            seed: RandomState::new().build_hasher().finish(),
            mtu: mtu as u8,
        };
        progress.start();
        let outcome = session.begin(test)?.measure(length, progress);
        progress.clear();
        let outcome = outcome?;
        let right = report::verified(&test, &outcome);
        row.verified = match (row.verified, right) {
            (Some(a), Some(b)) => Some(a && b),
            (a, b) => a.or(b),
        };
        match &outcome.latency {
            Some(times) => row.latency = Some(Latency::new(&test, &outcome, times)),
            None => row.bandwidth = Some(Bandwidth::new(&test, &outcome)),
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64K", Some(65_536)),
            ("1m", Some(1 << 20)),
            ("1G", Some(1 << 30)),
            ("2G", None),
            ("", None),
            ("K", None),
            ("1KK", None),
            ("-1", None),
            ("99999999999999999999", None),
            ("18446744073709551615G", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e9", "", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
