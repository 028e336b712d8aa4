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
use crate::rping::{self, Rping};
use crate::verbs::{Config, Host};

/// Sends messages to a host and waits for each to come back.
///
/// The other side runs `ironverbs ping --server` (or `ironverbs perf --server`), or with --rping
/// the server of rdmacm-utils, `rping -s`, on any RDMA device. The two find each other through the
/// connection manager. Every message's data is checked when it is back. Exit status 0: at least one
/// came back right; 1: none did, or an error.
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
    /// Print the summary as JSON, and nothing else
    #[arg(long, conflicts_with = "server")]
    json: bool,
    /// The server is `rping -s`: RC, each message READ and written back; at most what its -S says
    #[arg(long, conflicts_with_all = ["server", "tcp", "device", "gid_index", "transport"])]
    rping: bool,
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

    /// The same for scripts.
    fn json(&self, about: &About<'_>, elapsed: Duration) -> Result<String, String> {
        let n = self.received.max(1) as f64;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let some = (self.received > 0).then_some(());
        let value = serde_json::json!({
            "program": "ironverbs",
            "version": env!("CARGO_PKG_VERSION"),
            "host": about.host,
            "peer": about.peer,
            "device": about.device,
            "source": about.source,
            "transport": about.transport,
            "size": about.size,
            "transmitted": self.sent,
            "received": self.received,
            "wrong": self.wrong,
            "loss_percent": (self.sent - self.received) as f64 * 100.0 / self.sent.max(1) as f64,
            "seconds": elapsed.as_secs_f64(),
            "min_us": self.min.map(us),
            "avg_us": some.map(|()| us(self.sum) / n),
            "max_us": some.map(|()| us(self.max)),
            "mdev_us": some.map(|()| self.deviation() * 1e6),
        });
        serde_json::to_string_pretty(&value).map_err(|e| e.to_string())
    }

    /// Standard deviation in seconds.
    fn deviation(&self) -> f64 {
        let n = self.received.max(1) as f64;
        let average = self.sum.as_secs_f64() / n;
        (self.sum_of_squares / n - average * average).max(0.0).sqrt()
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
        say!(
            "rtt min/avg/max/mdev = {}/{}/{}/{} ms",
            milliseconds(min),
            milliseconds(Duration::from_secs_f64(average)),
            milliseconds(self.max),
            milliseconds(Duration::from_secs_f64(self.deviation()))
        );
    }
}

/// Who is pinged, from where.
struct About<'a> {
    host: &'a str,
    peer: &'a str,
    device: String,
    source: String,
    transport: &'a str,
    size: u32,
}

pub(crate) fn run(args: &PingArgs) -> Result<(), String> {
    let config = Config::load().map_err(|e| e.to_string())?;
    let host = Host::start(config).map_err(|e| e.to_string())?;
    match &args.host {
        None => server::serve(&host, &args.server, &args.place),
        Some(name) if args.rping => ping_rping(&host, name, args),
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
    let peer = session.place.peer.clone();
    let about = About {
        host: name,
        peer: &peer,
        device: session.place.context.device().to_string(),
        source: session.place.gid.to_ip().to_string(),
        transport: args.transport.name(),
        size: args.size,
    };
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
    summed_up(args, &about, host, |stop, tally| {
        let mut run = session.begin(test)?;
        let result = turns(args, &about, stop, tally, &mut |turn| match turn {
            Turn::Send(number) => {
                let once = run.once(number, args.timeout).map_err(|why| run.both_sides(why))?;
                Ok(once.map(|once| (once.time, once.right)))
            }
            Turn::Pause => run.look(Instant::now()).map(|()| None),
        });
        result?;
        let checked = protocol::Checked::default();
        let (messages, elapsed) = (tally.sent, Duration::ZERO);
        run.finish(Outcome { messages, lost: 0, elapsed, latency: None, checked })?;
        drop(run);
        session.bye();
        Ok(())
    })
}

fn ping_rping(host: &Host, name: &str, args: &PingArgs) -> Result<(), String> {
    if args.size == 0 {
        return Err("rping has no messages of 0 bytes".to_owned());
    }
    let port = args.place.port.unwrap_or(rping::PORT);
    let mut server = Rping::connect(host, name, port, args.size as usize)?;
    let peer = server.peer().to_owned();
    let about = About {
        host: name,
        peer: &peer,
        device: server.device().to_owned(),
        source: server.local().ip().to_string(),
        transport: "RC, as rping",
        size: args.size,
    };
    summed_up(args, &about, host, |stop, tally| {
        turns(args, &about, stop, tally, &mut |turn| match turn {
            Turn::Send(number) => server.once(number).map(Some),
            Turn::Pause => Ok(None),
        })?;
        server.bye();
        Ok(())
    })
}

/// Announces, pings, and says what came of it, at Ctrl-C as well.
fn summed_up(
    args: &PingArgs,
    about: &About<'_>,
    host: &Host,
    exchange: impl FnOnce(&AtomicBool, &mut Tally) -> Result<(), String>,
) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the process whatever it waits for.
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|e| e.to_string())?;
    }
    let About { host: name, peer, device, source, transport, size } = about;
    if !args.json {
        say!("PING {name} ({peer}) from {source} on {device}: {size} bytes over {transport}");
    }
    let start = Instant::now();
    let mut tally = Tally::default();
    let result = exchange(&stop, &mut tally);
    if args.json && result.is_ok() {
        say!("{}", tally.json(about, start.elapsed())?);
    } else if tally.sent > 0 && !args.json {
        tally.print(name, start.elapsed());
    }
    result?;
    match (tally.received, tally.wrong) {
        (0, 0) => Err(format!(
            "nothing came back: does UDP port {} reach {peer}, and from there here?",
            host.config().udp_port.value
        )),
        (_, 0) => Ok(()),
        (_, wrong) => Err(format!("{wrong} messages came back with wrong data")),
    }
}

/// What is to be done next.
enum Turn {
    /// Send message number `n` and wait for it.
    Send(u64),
    /// Nothing, for a moment.
    Pause,
}

fn turns(
    args: &PingArgs,
    about: &About<'_>,
    stop: &AtomicBool,
    tally: &mut Tally,
    take: &mut dyn FnMut(Turn) -> Result<Option<(Duration, bool)>, String>,
) -> Result<(), String> {
    let (peer, size) = (about.peer, about.size);
    let mut next = Instant::now();
    while args.count.is_none_or(|n| tally.sent < n) && !stop.load(Ordering::Relaxed) {
        let number = tally.sent;
        tally.sent += 1;
        let seq = tally.sent;
        match take(Turn::Send(number))? {
            Some((time, right)) => {
                tally.add(time);
                tally.wrong += u64::from(!right);
                if !args.quiet && !args.json {
                    let note = if right { "" } else { " WRONG DATA" };
                    let time = milliseconds(time);
                    say!("{size} bytes from {peer}: seq={seq} time={time} ms{note}");
                }
            }
            None if args.quiet || args.json => {}
            None => say!("no answer from {peer}: seq={seq}"),
        }
        next += args.interval;
        while args.count.is_none_or(|n| tally.sent < n) && !stop.load(Ordering::Relaxed) {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
            take(Turn::Pause)?;
        }
    }
    Ok(())
}
