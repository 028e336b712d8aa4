//! `ironverbs ps`: the processes that have the stack open, and what they do.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::verbs::{
    Config, Counters, JoinOptions, Observer, ProcessStatus, QpState, QpStatus, QpType,
    ServiceStatus, WaitStatus, users,
};

/// Shows the processes that have a device open, their queue pairs, the ports they listen on, and what they wait for.
///
/// Everything comes from memory that the processes share: one that is stopped or hangs is shown as well. The
/// processes are those of this user and network namespace.
#[derive(clap::Args)]
pub(crate) struct PsArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Show every user's processes; takes root, or the right to ptrace them
    #[arg(long)]
    all: bool,
}

/// A process and the user whose group it is of.
struct Shown {
    uid: u32,
    status: ProcessStatus,
    /// As proc_pid_stat(5) has it, in a word.
    run_state: &'static str,
}

pub(crate) fn run(args: &PsArgs) -> Result<(), String> {
    let config = Config::load().map_err(|e| e.to_string())?;
    let options = JoinOptions { port: config.udp_port.value, ..JoinOptions::default() };
    let own = ironverbs_sys::process::uid();
    let mut uids = if args.all { users(&options) } else { Vec::new() };
    if !uids.contains(&own) {
        uids.insert(0, own);
    }
    let mut shown = Vec::new();
    for uid in uids {
        match Observer::find(&options, uid) {
            Ok(Some(observer)) => shown.extend(observer.processes().into_iter().map(|status| {
                let run_state = run_state(&status);
                Shown { uid, status, run_state }
            })),
            Ok(None) => {}
            Err(e) if uid != own => crate::warn(format_args!("user {uid}: {e}")),
            Err(e) => return Err(e.to_string()),
        }
    }
    if args.json {
        let document = json!({
            "program": "ironverbs",
            "version": env!("CARGO_PKG_VERSION"),
            "udp_port": config.udp_port.value,
            "processes": shown.iter().map(|one| one.json(&shown)).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&document).map_err(|e| e.to_string())?;
        say!("{text}");
    } else {
        print(&shown, args.all);
    }
    Ok(())
}

/// `running` covers sleeping, too.
fn run_state(status: &ProcessStatus) -> &'static str {
    if !status.same_pid_namespace {
        return "unknown";
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", status.pid)).unwrap_or_default();
    let letter = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    match letter {
        Some('T' | 't') => "stopped",
        Some('Z' | 'X') => "dead",
        Some(_) => "running",
        None => "unknown",
    }
}

/// Without what would upset a terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC_SEND",
        QpType::XrcRecv => "XRC_RECV",
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

fn path(qp: &QpStatus) -> Option<&'static str> {
    qp.peer.map(|_| if qp.peer_slot.is_some() { "local" } else { "wire" })
}

fn peer_pid(qp: &QpStatus, uid: u32, all: &[Shown]) -> Option<u32> {
    let slot = qp.peer_slot?;
    all.iter().find(|p| p.uid == uid && p.status.slot == slot).map(|p| p.status.pid)
}

fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = 0;
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn print(shown: &[Shown], all: bool) {
    if shown.is_empty() {
        say!("no process has a device open");
        return;
    }
    let user = if all { "USER    " } else { "" };
    say!("PID      {user}SLOT  STATE    OPEN FOR   QPS    PROGRAM");
    for one in shown {
        let ProcessStatus { slot, pid, qps, waits, services, command, .. } = &one.status;
        let user = if all { format!("{:<8}", one.uid) } else { String::new() };
        say!(
            "{pid:<8} {user}{slot:<5} {:<8} {:<10} {:<6} {}",
            one.run_state,
            one.age(),
            qps.len(),
            clean(command)
        );
        for qp in qps {
            print_qp(qp, one.uid, shown);
        }
        for ServiceStatus { space, address, .. } in services.iter().filter(|one| one.listens) {
            say!("  listens on {address} ({})", space.name());
        }
        for wait in waits {
            say!("  waits {}", describe(wait));
        }
    }
}

fn print_qp(qp: &QpStatus, uid: u32, shown: &[Shown]) {
    let peer = match qp.peer {
        None => String::new(),
        Some((gid, qpn)) => {
            let pid = peer_pid(qp, uid, shown).map(|pid| format!(" (pid {pid})"));
            let path = path(qp).unwrap_or_default();
            format!("{path} to {} QP {qpn:#08x}{}", gid.to_ip(), pid.unwrap_or_default())
        }
    };
    let (qp_type, state) = (type_name(qp.qp_type), state_name(qp.state));
    say!("{}", format!("  QP {:#08x} {qp_type:<8} {state:<5} {peer}", qp.qpn).trim_end());
    let c = &qp.counters;
    say!(
        "     sent {} messages, {} packets, {}; received {} messages, {} packets, {}",
        c.tx_messages,
        c.tx_packets,
        bytes(c.tx_bytes),
        c.rx_messages,
        c.rx_packets,
        bytes(c.rx_bytes)
    );
    let trouble: Vec<_> = named(c)
        .into_iter()
        .skip(6)
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    if !trouble.is_empty() {
        say!("     {}", trouble.join(", "));
    }
}

fn describe(wait: &WaitStatus) -> String {
    let WaitStatus { verb, object, number, missing, count, pid, waited } = wait;
    let number = match *object {
        "QP" => format!("{number:#08x}"),
        "MR" | "MW" => format!("{number:#x}"),
        _ => number.to_string(),
    };
    if let Some(pid) = pid {
        let seconds = waited.as_secs_f64();
        return format!("{seconds:.1} s: {verb} of {object} {number} waits for pid {pid}");
    }
    let plural = if *count == 1 { "" } else { "s" };
    format!(
        "{:.1} s: {verb} of {object} {number} for {count} {missing}{plural}",
        waited.as_secs_f64()
    )
}

/// Counters by name; those of every message come first.
fn named(c: &Counters) -> [(&'static str, u64); 31] {
    let d = &c.dropped;
    [
        ("tx_messages", c.tx_messages),
        ("tx_packets", c.tx_packets),
        ("tx_bytes", c.tx_bytes),
        ("rx_messages", c.rx_messages),
        ("rx_packets", c.rx_packets),
        ("rx_bytes", c.rx_bytes),
        ("retransmits", c.retransmits),
        ("timeouts", c.timeouts),
        ("probes", c.probes),
        ("rnr_naks_sent", c.rnr_naks_sent),
        ("rnr_naks_received", c.rnr_naks_received),
        ("seq_naks_sent", c.seq_naks_sent),
        ("seq_naks_received", c.seq_naks_received),
        ("recoveries", c.recoveries),
        ("duplicates", c.duplicates),
        ("dropped_state", d.state),
        ("dropped_service", d.service),
        ("dropped_peer", d.peer),
        ("dropped_pkey", d.pkey),
        ("dropped_qkey", d.qkey),
        ("dropped_sequence", d.sequence),
        ("dropped_message", d.message),
        ("dropped_no_receive", d.no_receive),
        ("dropped_stale", d.stale),
        ("tx_references", c.tx_references),
        ("direct_process_messages", c.direct.process.messages),
        ("direct_process_bytes", c.direct.process.bytes),
        ("direct_mapped_messages", c.direct.mapped.messages),
        ("direct_mapped_bytes", c.direct.mapped.bytes),
        ("direct_kernel_messages", c.direct.kernel.messages),
        ("direct_kernel_bytes", c.direct.kernel.bytes),
    ]
}

impl Shown {
    fn age(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = now.saturating_sub(Duration::from_secs(self.status.since)).as_secs();
        match age {
            _ if self.status.since == 0 => "-".to_owned(),
            0..60 => format!("{age} s"),
            60..3600 => format!("{} min", age / 60),
            _ => format!("{} h", age / 3600),
        }
    }

    fn json(&self, all: &[Shown]) -> Value {
        let status = &self.status;
        json!({
            "pid": status.pid,
            "same_pid_namespace": status.same_pid_namespace,
            "uid": self.uid,
            "command": status.command,
            "slot": status.slot,
            "state": self.run_state,
            "since": status.since,
            "qps": status.qps.iter().map(|qp| json!({
                "qpn": qp.qpn,
                "type": type_name(qp.qp_type),
                "state": state_name(qp.state),
                "srq": qp.srq,
                "path": path(qp),
                "peer": qp.peer.map(|(gid, qpn)| json!({
                    "gid": gid.to_string(),
                    "address": gid.to_ip().to_string(),
                    "qpn": qpn,
                    "pid": peer_pid(qp, self.uid, all),
                })),
                "counters": named(&qp.counters).into_iter().collect::<BTreeMap<_, _>>(),
            })).collect::<Vec<_>>(),
            "services": status.services.iter().map(|service| json!({
                "space": service.space.name(),
                "address": service.address.ip().to_string(),
                "port": service.address.port(),
                "listens": service.listens,
            })).collect::<Vec<_>>(),
            "waiting": status.waits.iter().map(|wait| json!({
                "verb": wait.verb,
                "object": wait.object,
                "number": wait.number,
                "for": wait.missing,
                "count": wait.count,
                "pid": wait.pid,
                "seconds": wait.waited.as_secs_f64(),
            })).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn waits_are_sentences() {
        let wait = WaitStatus {
            verb: "ibv_destroy_cq",
            object: "CQ",
            number: 7,
            missing: "unacknowledged completion event",
            count: 2,
            pid: None,
            waited: Duration::from_millis(1500),
        };
        let text = "1.5 s: ibv_destroy_cq of CQ 7 for 2 unacknowledged completion events";
        assert_eq!(describe(&wait), text);
        let wait =
            WaitStatus { object: "QP", verb: "ibv_destroy_qp", number: 0x12, count: 1, ..wait };
        let text = "1.5 s: ibv_destroy_qp of QP 0x000012 for 1 unacknowledged completion event";
        assert_eq!(describe(&wait), text);
        let wait = WaitStatus {
            object: "MR",
            verb: "ibv_dereg_mr",
            number: 0x1234,
            missing: "process that uses it",
            pid: Some(77),
            ..wait
        };
        assert_eq!(describe(&wait), "1.5 s: ibv_dereg_mr of MR 0x1234 waits for pid 77");
    }

    #[test]
    fn what_others_tell_does_not_reach_the_terminal_raw() {
        assert_eq!(clean("a\u{1b}[2Jb\n"), "a?[2Jb?");
    }
}
