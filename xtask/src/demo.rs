//! `cargo xtask demo`: two processes move verified data on the embedded device.

use crate::pair::{User, wait_for_listener};
use crate::process::{During, Outcome, Program, Running};
use crate::{stage, tree};
use std::fs;
use std::time::{Duration, Instant};

/// What is shown, by the names of `ironverbs perf --op`.
pub(crate) const OPERATIONS: [&str; 5] = ["send", "write", "read", "fetch-add", "compare-swap"];

/// TCP port on which server and client meet.
const PORT: u16 = 18516;

/// What a client reported.
pub(crate) struct Report {
    messages: f64,
    bytes: f64,
    seconds: f64,
    median_us: f64,
}

/// Starts a program with its output where the caller wants it.
pub(crate) trait Starter {
    fn start(&mut self, program: &Program) -> Outcome<Running>;
    fn deadline(&self) -> Instant;
}

impl Starter for crate::suite::case::Case {
    fn start(&mut self, program: &Program) -> Outcome<Running> {
        Self::start(self, program)
    }

    fn deadline(&self) -> Instant {
        Self::deadline(self)
    }
}

/// Logs of the demo, kept for who wants to know more.
struct Logs {
    count: u32,
    deadline: Instant,
}

impl Starter for Logs {
    fn start(&mut self, program: &Program) -> Outcome<Running> {
        let directory = tree::target().join("demo-logs");
        self.count += 1;
        program.start(&directory.join(format!("{}.log", self.count)))
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// The command line.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask demo".into());
    }
    stage::build().show()?;
    stage::install(&tree::stage())?;
    let directory = tree::target().join("demo-logs");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).during(directory.display())?;

    let user = User::own();
    println!("Two processes, one embedded device, no adapter, every byte checked:\n");
    println!(
        "{:<12} {:>9} {:>10} {:>12} {:>12}",
        "operation", "messages", "MiB", "MiB/s", "median us"
    );
    let mut logs = Logs { count: 0, deadline: Instant::now() + Duration::from_secs(120) };
    for operation in OPERATIONS {
        let (server, client) = (user.command(), user.command());
        let report = exchange(&mut logs, server, client, "127.0.0.1", operation, &[])
            .during(format!("{operation} (see {})", directory.display()))?;
        println!(
            "{operation:<12} {:>9} {:>10.2} {:>12.1} {:>12.1}  verified",
            report.messages,
            report.bytes / MIB,
            report.bytes / MIB / report.seconds,
            report.median_us
        );
    }
    let run = tree::stage().join("bin/ironverbs");
    println!("\nAny program built against libibverbs runs on it too:");
    println!("  {} run -- ibv_devinfo", run.display());
    Ok(())
}

const MIB: f64 = 1024.0 * 1024.0;

/// One operation between a server and a client, both `ironverbs` with what leads there; `more` are
/// options of the client.
pub(crate) fn exchange(
    starter: &mut impl Starter,
    server: Program,
    client: Program,
    host: &str,
    operation: &str,
    more: &[&str],
) -> Outcome<Report> {
    let deadline = starter.deadline();
    let port = PORT.to_string();
    let server = server.args(["perf", "--server", "--port", &port]);
    let mut server = starter.start(&server)?;
    wait_for_listener(&mut server, PORT, deadline)?;
    let client = client.args(["perf", host, "--port", &port, "--op", operation]);
    let client = starter.start(&client.args(["--verify", "--json"]).args(more))?;
    let output = client.wait(deadline)?.success()?.output;
    server.wait(deadline)?.success()?;
    parse(&output)
}

fn parse(output: &str) -> Outcome<Report> {
    let number = |key: &str| -> Outcome<f64> {
        let found = json(output, key).ok_or_else(|| format!("the report lacks {key:?}"))?;
        found.parse().during(format!("{key}: {found:?}"))
    };
    if json(output, "verified") != Some("true") {
        return Err("the report does not say that the data was verified".into());
    }
    Ok(Report {
        messages: number("messages")?,
        bytes: number("bytes")?,
        seconds: number("seconds")?,
        median_us: number("p50_us")?,
    })
}

/// The number or word after `"key":`, wherever that first stands.
fn json<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("\"{key}\":"))?;
    rest.trim_start().split([',', '}', '\n', ' ']).next()
}
