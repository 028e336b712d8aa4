//! `ironverbs ping`: whether messages reach a host, and how long they take.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::perf::client::{Outcome, Session};
use crate::perf::protocol::{Mode, Operation, Test, Transport};
use crate::perf::report::milliseconds;
use crate::perf::server::{self, PlaceArgs, ServerArgs};
use crate::perf::{lane, protocol, seconds, size};
use crate::verbs::{Config, Host};

/// Sends messages to a host and waits for each to come back.
///
/// The other side runs `ironverbs ping --server` (or `ironverbs perf --server`). Every message's
/// data is checked when it is back. Exit status 0: at least one came back right; 1: none did, or an
/// error.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("side").required(true).args(["host", "server"])))]
pub(crate) struct PingArgs {
    /// The server's name or address
    #[arg(conflicts_with = "server")]
    host: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    place: PlaceArgs,
    /// Stop after so many messages [default: at Ctrl-C]
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Seconds from one message to the next
    #[arg(long, short = 'i', default_value = "1", value_parser = seconds, value_name = "SECONDS")]
    interval: Duration,
    /// Bytes of a message
    #[arg(long, short = 's', default_value = "56", value_parser = size)]
    size: u32,
    /// Seconds to wait for an answer (UC, UD)
    #[arg(long, short = 'W', default_value = "1", value_parser = seconds, value_name = "SECONDS")]
    timeout: Duration,
    /// Transport service: UD and UC show loss, RC sends again what is lost
    #[arg(long, value_enum, default_value = "ud")]
    transport: Transport,
    /// Print the summary only
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// What came back.
#[derive(Default)]
struct Tally {
    sent: u64,
    received: u64,
    wrong: u64,
    sum: Duration,
    sum_of_squares: f64,
    min: Option<Duration>,
    max: Duration,
}

impl Tally {
    fn add(&mut self, time: Duration) {
        self.received += 1;
        self.sum += time;
        self.sum_of_squares += time.as_secs_f64().powi(2);
        self.min = Some(self.min.map_or(time, |m| m.min(time)));
        self.max = self.max.max(time);
    }

    fn print(&self, host: &str, elapsed: Duration) {
        let loss = (self.sent - self.received) as f64 * 100.0 / self.sent.max(1) as f64;
        say!("\n--- {host} ping statistics ---");
        say!(
            "{} messages transmitted, {} received, {loss:.4}% loss, time {:.0} ms",
            self.sent,
            self.received,
            elapsed.as_secs_f64() * 1e3
        );
        let Some(min) = self.min else { return };
        let n = self.received as f64;
        let average = self.sum.as_secs_f64() / n;
        let deviation = (self.sum_of_squares / n - average * average).max(0.0).sqrt();
        say!(
            "rtt min/avg/max/mdev = {}/{}/{}/{} ms",
            milliseconds(min),
            milliseconds(Duration::from_secs_f64(average)),
            milliseconds(self.max),
            milliseconds(Duration::from_secs_f64(deviation))
        );
    }
}

pub(crate) fn run(args: &PingArgs) -> Result<(), String> {
    let config = Config::load().map_err(|e| e.to_string())?;
    let host = Host::start(config).map_err(|e| e.to_string())?;
    match &args.host {
        None => server::serve(&host, &args.server, &args.place),
        Some(name) => ping(&host, name, args),
    }
}

fn ping(host: &Host, name: &str, args: &PingArgs) -> Result<(), String> {
    let mut session = Session::connect(host, name, &args.place)?;
    if args.transport == Transport::Ud && args.size as usize > session.mtu.bytes() {
        let most = session.mtu.bytes();
        return Err(format!(
            "{} bytes: a UD message holds at most the path MTU, {most}",
            args.size
        ));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the process whatever it waits for.
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|e| e.to_string())?;
    }
    let (device, gid) = (session.place.context.device(), session.place.gid);
    let peer = session.place.peer.clone();
    say!(
        "PING {name} ({peer}) from {} on {device}: {} bytes over {}",
        gid.to_ip(),
        args.size,
        args.transport.name()
    );
    let test = Test {
        transport: args.transport,
        operation: Operation::Send,
        mode: Mode::Latency,
        size: args.size,
        window: lane::window(16, args.size),
        verify: true,
        seed: RandomState::new().build_hasher().finish(),
        mtu: session.mtu as u8,
    };
    let start = Instant::now();
    let mut tally = Tally::default();
    let result = exchange(&mut session, test, args, &peer, &stop, &mut tally);
    if tally.sent > 0 {
        tally.print(name, start.elapsed());
    }
    result?;
    session.bye();
    match (tally.received, tally.wrong) {
        (0, 0) => Err(format!(
            "nothing came back: does UDP port {} reach {peer}, and from there here?",
            host.config().udp_port.value
        )),
        (_, 0) => Ok(()),
        (_, wrong) => Err(format!("{wrong} messages came back with wrong data")),
    }
}

fn exchange(
    session: &mut Session,
    test: Test,
    args: &PingArgs,
    peer: &str,
    stop: &AtomicBool,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut run = session.begin(test)?;
    let mut next = Instant::now();
    while args.count.is_none_or(|n| tally.sent < n) && !stop.load(Ordering::Relaxed) {
        let number = tally.sent;
        tally.sent += 1;
        let seq = tally.sent;
        match run.once(number, args.timeout).map_err(|why| run.both_sides(why))? {
            Some(once) => {
                tally.add(once.time);
                tally.wrong += u64::from(!once.right);
                if !args.quiet {
                    let (size, time) = (args.size, milliseconds(once.time));
                    let note = if once.right { "" } else { " WRONG DATA" };
                    say!("{size} bytes from {peer}: seq={seq} time={time} ms{note}");
                }
            }
            None if args.quiet => {}
            None => say!("no answer from {peer}: seq={seq}"),
        }
        next += args.interval;
        while args.count.is_none_or(|n| tally.sent < n) && !stop.load(Ordering::Relaxed) {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
            run.look(Instant::now())?;
        }
    }
    let checked = protocol::Checked::default();
    let (messages, elapsed) = (tally.sent, Duration::ZERO);
    run.finish(Outcome { messages, lost: 0, elapsed, latency: None, checked }).map(drop)
}
