//! `ironverbs watch`: devices, processes and nodes as they come and go.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ironverbs::{Devices, EventSource, Gid, SmEvents};
use serde_json::{Value, json};

use crate::reach::Target;
use crate::verbs::{Config, Host};

/// Prints a line whenever a GID, a multicast group, a process or a device comes or goes.
///
/// First what is there, then what changes, until SIGINT or SIGTERM. GIDs of this host are watched always; name those of
/// other hosts. With `--json` each line is a document of its own.
#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// GIDs, addresses or names of other hosts to keep under watch; on InfiniBand links also LIDs
    #[arg(value_name = "GID|ADDRESS|LID")]
    gids: Vec<String>,
    /// Print JSON, a document a line
    #[arg(long)]
    json: bool,
    /// Stop after so many changes
    #[arg(long, short = 'c', value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// How often processes and devices are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A thing that is there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Device(String),
    Process(u32),
}

pub(crate) fn run(args: &WatchArgs) -> Result<(), String> {
    let targets: Vec<Target> =
        args.gids.iter().map(|word| Target::parse(word)).collect::<Result<_, _>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|e| e.to_string())?;
    }
    let config = Config::load().map_err(|e| e.to_string())?;
    let host = Host::start(config).map_err(|e| e.to_string())?;
    let devices = Devices::from(host.clone());
    let first = devices.first().map_err(|e| e.to_string())?;
    let context = first.open().map_err(|e| e.to_string())?;
    if let Some(why) = host.wire_problem() {
        return Err(why);
    }
    let shown = host.devices().map_err(|e| e.to_string())?;
    let shown = shown.first().ok_or("there is no device")?.inspect().map_err(|e| e.to_string())?;
    let gids: Vec<Gid> =
        targets.iter().map(|target| target.gid(&shown)).collect::<Result<_, _>>()?;
    let _all = context.sm_events(SmEvents::ALL, &[]).map_err(|e| e.to_string())?;
    let _named = match gids.as_slice() {
        [] => None,
        gids => Some(context.sm_events(SmEvents::UGID, gids).map_err(|e| e.to_string())?),
    };
    let (sender, events) = channel();
    let reader = context.clone();
    // It ends with the process.
    std::thread::spawn(move || read(&reader, &sender));
    let mut output = Output { json: args.json, left: args.count };
    let mut known = BTreeMap::new();
    output.look(&host, &mut known, false)?;
    for entry in context.gids() {
        output.line("gid", "present", &entry.gid.to_string(), json!({}), false);
    }
    for gid in &gids {
        let there = context.gid_reachable(*gid, None).is_ok();
        let state = if there { "present" } else { "absent" };
        output.line("gid", state, &gid.to_string(), json!({}), false);
    }
    output.line("watch", "ready", "", json!({ "pid": std::process::id() }), false);
    while !stop.load(Ordering::Relaxed) && output.left != Some(0) {
        match events.recv_timeout(LOOK) {
            Ok((kind, change, gid)) => output.line(kind, change, &gid, json!({}), true),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("no more events come".into()),
        }
        output.look(&host, &mut known, true)?;
    }
    Ok(())
}

type Change = (&'static str, &'static str, String);

fn read(context: &ironverbs::Context, sender: &Sender<Change>) {
    loop {
        let event = context.next_event().wait();
        let (kind, change) = match event.kind {
            ironverbs::EventKind::GidAvail => ("gid", "available"),
            ironverbs::EventKind::GidUnavail => ("gid", "unavailable"),
            ironverbs::EventKind::McgCreated => ("group", "created"),
            ironverbs::EventKind::McgDeleted => ("group", "deleted"),
            _ => continue,
        };
        let EventSource::Gid(gid) = event.source else { continue };
        if sender.send((kind, change, gid.to_string())).is_err() {
            return;
        }
    }
}

struct Output {
    json: bool,
    left: Option<u64>,
}

impl Output {
    /// Tells of devices and processes that are new or gone.
    fn look(
        &mut self,
        host: &Host,
        known: &mut BTreeMap<Thing, Value>,
        change: bool,
    ) -> Result<(), String> {
        let mut now = BTreeMap::new();
        for device in host.devices().map_err(|e| e.to_string())? {
            let facts = json!({ "interface": device.interface() });
            now.insert(Thing::Device(device.name().to_owned()), facts);
        }
        for neighbour in host.neighbourhood() {
            let pid = neighbour.member.pid;
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let facts = json!({ "slot": neighbour.member.slot, "command": command.trim_end() });
            now.insert(Thing::Process(pid), facts);
        }
        let lines = |of: &BTreeMap<Thing, Value>, not: &BTreeMap<Thing, Value>| {
            let gone = of.iter().filter(|(thing, _)| !not.contains_key(*thing));
            gone.map(|(thing, facts)| (thing.clone(), facts.clone())).collect::<Vec<_>>()
        };
        let word = if change { "appeared" } else { "present" };
        let came = lines(&now, known).into_iter().map(|entry| (word, entry));
        let went = lines(known, &now).into_iter().map(|entry| ("disappeared", entry));
        for (word, (thing, facts)) in went.chain(came) {
            match thing {
                Thing::Device(name) => self.line("device", word, &name, facts, change),
                Thing::Process(pid) => self.line("process", word, &pid.to_string(), facts, change),
            }
        }
        *known = now;
        Ok(())
    }

    fn line(&mut self, kind: &str, change: &str, name: &str, facts: Value, counts: bool) {
        if counts {
            match &mut self.left {
                Some(0) => return,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.json {
            let mut line = json!({ "time": now.as_secs_f64(), "kind": kind, "change": change });
            if let (Some(line), Some(facts)) = (line.as_object_mut(), facts.as_object()) {
                if !name.is_empty() {
                    line.insert("name".into(), name.into());
                }
                line.extend(facts.clone());
            }
            say!("{line}");
        } else {
            let facts = facts.as_object().into_iter().flatten();
            let facts: String =
                facts.map(|(key, value)| format!(" {key} {}", plain(value))).collect();
            say!(
                "{:.3} {kind} {name}{}{change}{facts}",
                now.as_secs_f64(),
                if name.is_empty() { "" } else { " " }
            );
        }
        // Whoever waits for the line may read a pipe.
        let _ = std::io::stdout().flush();
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
