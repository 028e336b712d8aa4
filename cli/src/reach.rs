//! `ironverbs reach` and `ironverbs paths`: who is there, and by which way.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs::Gid;
use ironverbs::raw::registry::{JoinOptions, Observer};
use serde_json::{Value, json};

use crate::perf::seconds;
use crate::verbs::config::Links;
use crate::verbs::{Config, Context, Host};

/// Finds out whether a GID or address can be reached.
///
/// Its own QP1 is asked, which every RoCEv2 implementation with a connection manager answers; on InfiniBand links the
/// subnet's administrator. Exit status 0: it can be reached; 1: it cannot, or an error.
#[derive(clap::Args)]
pub(crate) struct ReachArgs {
    /// GID, IPv4 or IPv6 address, or host name; on InfiniBand links also a LID
    #[arg(value_name = "GID|ADDRESS|LID")]
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
/// Without arguments: to the device's own GIDs, to the peers of this user's connections and, on InfiniBand links, to all
/// ports of the subnet that are there. On InfiniBand links the records are the subnet administrator's; elsewhere they are
/// what address, route and configuration say, and nobody is asked (`ironverbs reach` does).
#[derive(clap::Args)]
pub(crate) struct PathsArgs {
    /// GIDs, addresses or host names; on InfiniBand links also LIDs
    #[arg(value_name = "GID|ADDRESS|LID")]
    gids: Vec<String>,
    /// From this device only
    #[arg(long, short = 'd')]
    device: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// What a word means.
#[derive(Copy, Clone)]
pub(crate) enum Target {
    Gid(Gid),
    Address(IpAddr),
    Lid(u16),
}

impl Target {
    pub(crate) fn parse(word: &str) -> Result<Target, String> {
        let hex = word.strip_prefix("0x").map(|digits| u16::from_str_radix(digits, 16));
        if let Ok(lid) = hex.unwrap_or_else(|| word.parse()) {
            return Ok(Target::Lid(lid));
        }
        if let Ok(address) = word.parse() {
            return Ok(Target::Address(address));
        }
        if let Ok(gid) = word.parse() {
            return Ok(Target::Gid(gid));
        }
        let addresses = (word, 0).to_socket_addrs();
        let first = addresses.ok().and_then(|mut addresses| addresses.next());
        let first =
            first.ok_or_else(|| format!("`{word}` is no GID, address, host name or LID"))?;
        Ok(Target::Address(first.ip()))
    }

    /// Its GID, from a device.
    pub(crate) fn gid(self, context: &Context) -> Result<Gid, String> {
        match self {
            Target::Gid(gid) => Ok(gid),
            // What looks like one may be a GID of InfiniBand.
            Target::Address(address) => Ok(context.gid_of_address(address)),
            Target::Lid(lid) => context.gid_of_lid(lid).ok_or_else(|| {
                format!("LID {lid:#06x} is no port's on the link of {}", context.device().name())
            }),
        }
    }
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
    let target = Target::parse(&args.gid)?;
    let host = host()?;
    host.enroll().map_err(|e| e.to_string())?;
    let start = Instant::now();
    let mut why = Vec::new();
    let mut meant = None;
    for context in contexts(&host, args.device.as_deref())? {
        let name = context.device().name().to_owned();
        let gid = target.gid(&context)?;
        meant = Some(gid);
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
            json!({ "gid": meant.map(|gid| gid.to_string()), "reachable": false, "time_ns": ns,
            "errors": errors })
        );
    }
    let lines: Vec<String> = why.iter().map(|(device, e)| format!("from {device}: {e}")).collect();
    Err(lines.join("; "))
}

pub(crate) fn paths(args: &PathsArgs) -> Result<(), String> {
    let host = host()?;
    let contexts = contexts(&host, args.device.as_deref())?;
    let asked: Vec<Target> =
        args.gids.iter().map(|word| Target::parse(word)).collect::<Result<_, _>>()?;
    let peers = if asked.is_empty() { peers(&host)? } else { Vec::new() };
    if host.config().link_layer.value == Links::InfiniBand {
        // The administrator is asked.
        host.enroll().map_err(|e| e.to_string())?;
    }
    let mut found = Vec::new();
    let (mut reached, mut failed) = (BTreeSet::new(), Vec::new());
    for context in &contexts {
        let name = || context.device().name().to_owned();
        if asked.is_empty() {
            let own = context.gid_table(1).into_iter().map(|entry| entry.gid);
            let all = own.chain(peers.iter().copied()).chain(context.subnet_gids());
            let mut seen = BTreeSet::new();
            let targets = all.filter(|gid| seen.insert(*gid));
            found.extend(targets.filter_map(|gid| Some((name(), context.path_record(&gid).ok()?))));
        }
        for (at, target) in asked.iter().enumerate() {
            let path = match target {
                Target::Lid(lid) => context.path_record_to_lid(*lid),
                target => context.path_record(&target.gid(context)?),
            };
            match path {
                Ok(path) => {
                    reached.insert(at);
                    found.push((name(), path));
                }
                Err(e) => failed.push((at, e)),
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
                    "slid": lid(path.slid),
                    "dlid": lid(path.dlid),
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
            let lids = match lid(path.dlid) {
                Some(dlid) => format!("LID {:#06x} -> {dlid:#06x}, ", path.slid),
                None => String::new(),
            };
            say!(
                "{device}: {} -> {}  {lids}MTU {}, P_Key {:#06x}, SL {}, rate {}, hop limit {}",
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
    let lost = failed.iter().find(|(at, _)| !reached.contains(at));
    match lost {
        Some((_, e)) => Err(e.to_string()),
        None => Ok(()),
    }
}

/// A LID; None: it is not known, or the link has none.
fn lid(lid: u16) -> Option<u16> {
    (lid != 0).then_some(lid)
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
