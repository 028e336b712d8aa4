//! `ironverbs reach` and `ironverbs paths`: who is there, and by which way.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs::Gid;
use ironverbs::raw::registry::{JoinOptions, Observer};
use serde_json::{Value, json};

use crate::perf::seconds;
use crate::verbs::{Config, Context, Host};

/// Finds out whether a GID or address can be reached.
///
/// Its own QP1 is asked, which every RoCEv2 implementation with a connection manager answers; on InfiniBand links the
/// subnet's administrator. Exit status 0: it can be
/// reached; 1: it cannot, or an error.
#[derive(clap::Args)]
pub(crate) struct ReachArgs {
    /// GID, IPv4 or IPv6 address, or host name
    #[arg(value_name = "GID|ADDRESS")]
    gid: String,
    /// From this device only [default: from any]
    #[arg(long, short = 'd')]
    device: Option<String>,
    /// Seconds to wait for an answer
    #[arg(long, short = 'W', default_value = "2", value_parser = seconds, value_name = "SECONDS")]
    timeout: Duration,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Shows the path records from this host's devices to others.
///
/// Without arguments: to the device's own GIDs and to the peers of this user's connections. The records are what
/// address, route and configuration say; nobody is asked (`ironverbs reach` does).
#[derive(clap::Args)]
pub(crate) struct PathsArgs {
    /// GIDs, addresses or host names
    #[arg(value_name = "GID|ADDRESS")]
    gids: Vec<String>,
    /// From this device only
    #[arg(long, short = 'd')]
    device: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The GID that a word means.
pub(crate) fn gid(word: &str) -> Result<Gid, String> {
    if let Ok(gid) = word.parse() {
        return Ok(gid);
    }
    let addresses = (word, 0).to_socket_addrs();
    let first = addresses.ok().and_then(|mut addresses| addresses.next());
    let first = first.ok_or_else(|| format!("`{word}` is no GID, address or host name"))?;
    Ok(Gid::from_ip(first.ip()))
}

/// The devices asked for, to be looked at: nobody is to take this for a peer that has come.
fn contexts(host: &Host, name: Option<&str>) -> Result<Vec<Arc<Context>>, String> {
    let devices = host.devices().map_err(|e| e.to_string())?;
    let wanted = devices.iter().filter(|device| name.is_none_or(|name| device.name() == name));
    let contexts = wanted.map(|device| device.inspect()).collect::<Result<Vec<_>, _>>();
    let contexts = contexts.map_err(|e| e.to_string())?;
    match (contexts.is_empty(), name) {
        (true, Some(name)) => Err(format!("there is no device {name}")),
        (true, None) => Err("there is no device".into()),
        _ => Ok(contexts),
    }
}

fn host() -> Result<Host, String> {
    Host::start(Config::load().map_err(|e| e.to_string())?).map_err(|e| e.to_string())
}

pub(crate) fn reach(args: &ReachArgs) -> Result<(), String> {
    let gid = gid(&args.gid)?;
    let host = host()?;
    host.enroll().map_err(|e| e.to_string())?;
    let start = Instant::now();
    let mut why = Vec::new();
    for context in contexts(&host, args.device.as_deref())? {
        let name = context.device().name().to_owned();
        let asked = Instant::now();
        match context.gid_reachable(0, &gid, Some(args.timeout)) {
            Ok(()) => {
                let time = asked.elapsed();
                if args.json {
                    let ns = time.as_nanos() as u64;
                    let fields = json!({ "gid": gid.to_string(), "reachable": true,
                        "device": name, "time_ns": ns });
                    say!("{fields}");
                } else {
                    let ms = time.as_secs_f64() * 1e3;
                    say!("{gid} is reachable from {name} ({ms:.3} ms)");
                }
                return Ok(());
            }
            Err(e) => why.push((name, e)),
        }
    }
    if args.json {
        let errors: Vec<Value> = why
            .iter()
            .map(
                |(device, e)| json!({ "device": device, "errno": e.errno(), "why": e.to_string() }),
            )
            .collect();
        let ns = start.elapsed().as_nanos() as u64;
        say!(
            "{}",
            json!({ "gid": gid.to_string(), "reachable": false, "time_ns": ns,
            "errors": errors })
        );
    }
    let lines: Vec<String> = why.iter().map(|(device, e)| format!("from {device}: {e}")).collect();
    Err(lines.join("; "))
}

pub(crate) fn paths(args: &PathsArgs) -> Result<(), String> {
    let host = host()?;
    let contexts = contexts(&host, args.device.as_deref())?;
    let asked: Vec<Gid> = args.gids.iter().map(|word| gid(word)).collect::<Result<_, _>>()?;
    let peers = if asked.is_empty() { peers(&host)? } else { Vec::new() };
    let mut found = Vec::new();
    let mut failed = Vec::new();
    for context in &contexts {
        let own = || context.gid_table(1).into_iter().map(|entry| entry.gid);
        let targets: Vec<Gid> = match asked.is_empty() {
            true => {
                own().chain(peers.iter().copied().filter(|p| !own().any(|o| o == *p))).collect()
            }
            false => asked.clone(),
        };
        for target in targets {
            match context.path_record(&target) {
                Ok(path) => found.push((context.device().name().to_owned(), path)),
                Err(e) if !asked.is_empty() => failed.push((target, e)),
                Err(_) => {}
            }
        }
    }
    if args.json {
        let records: Vec<Value> = found
            .iter()
            .map(|(device, path)| {
                json!({
                    "device": device,
                    "sgid": path.sgid.to_string(),
                    "dgid": path.dgid.to_string(),
                    "pkey": format!("{:#06x}", path.pkey),
                    "mtu": path.mtu.bytes(),
                    "sl": path.sl,
                    "rate": path.rate,
                    "hop_limit": path.hop_limit,
                    "traffic_class": path.traffic_class,
                    "flow_label": path.flow_label,
                    "packet_life_time": path.packet_life_time,
                })
            })
            .collect();
        say!("{}", json!({ "paths": records }));
    } else {
        for (device, path) in &found {
            say!(
                "{device}: {} -> {}  MTU {}, P_Key {:#06x}, SL {}, rate {}, hop limit {}",
                path.sgid,
                path.dgid,
                path.mtu.bytes(),
                path.pkey,
                path.sl,
                path.rate,
                path.hop_limit
            );
        }
    }
    let lost = failed.iter().find(|(gid, _)| !found.iter().any(|(_, path)| path.dgid == *gid));
    match lost {
        Some((_, e)) => Err(e.to_string()),
        None => Ok(()),
    }
}

/// Addresses of the peers of this user's connected queue pairs.
fn peers(host: &Host) -> Result<Vec<Gid>, String> {
    let options = JoinOptions { port: host.config().udp_port.value, ..JoinOptions::default() };
    let own = ironverbs_sys::process::uid();
    let Some(observer) = Observer::find(&options, own).map_err(|e| e.to_string())? else {
        return Ok(Vec::new());
    };
    let processes = observer.processes();
    let connected = processes.iter().flat_map(|process| &process.qps);
    let mut gids: Vec<Gid> = connected.filter_map(|qp| qp.peer.map(|(gid, _)| gid)).collect();
    gids.sort_unstable();
    gids.dedup();
    Ok(gids)
}
