//! `ironverbs ps` and `ironverbs agent`.

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::*;

/// Processes of one group, on ports of their own.
struct Group {
    udp: String,
}

impl Group {
    fn new() -> Group {
        Group { udp: udp_port().to_string() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(IRONVERBS, arguments);
        command.env("IRONVERBS_UDP_PORT", &self.udp);
        command
    }

    fn start(&self, arguments: &[&str]) -> Background {
        Background::start(self.command(arguments))
    }

    /// A server, and its TCP port.
    fn server(&self) -> (Background, String) {
        let server = self.start(&["perf", "--server", "--port", "0"]);
        let line = server.line();
        (server, line.rsplit(' ').next().unwrap().to_owned())
    }

    fn agent(&self) -> Background {
        let agent = self.start(&["agent", "--json"]);
        let ready: Value = serde_json::from_str(&agent.line()).unwrap();
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["pid"], agent.id());
        assert_eq!(ready["udp_port"].to_string(), self.udp);
        agent
    }

    fn processes(&self) -> Vec<Value> {
        let output = finish(self.command(&["ps", "--json"])).ok();
        let document: Value = serde_json::from_str(&output.out()).unwrap();
        assert_eq!(document["program"], "ironverbs");
        document["processes"].as_array().unwrap().clone()
    }
}

fn of(processes: &[Value], pid: u32) -> &Value {
    processes.iter().find(|p| p["pid"] == pid).unwrap_or_else(|| panic!("{pid}: {processes:?}"))
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nobody_is_there() {
    let group = Group::new();
    let output = finish(group.command(&["ps"])).ok();
    assert!(output.out().contains("no process"), "{}", output.out());
    assert!(group.processes().is_empty());
}

#[test]
fn both_ends_of_a_connection_with_their_counters_running_or_stopped() {
    let group = Group::new();
    let (server, tcp) = group.server();
    let client = group.start(&[
        "perf",
        "127.0.0.1",
        "--port",
        &tcp,
        "--op",
        "write",
        "--bw",
        "-t",
        "100",
        "-s",
        "4096",
    ]);
    let sent = |processes: &[Value]| {
        let process = processes.iter().find(|p| p["pid"] == client.id())?;
        // One of its queue pairs carries what the two programs tell each other, the other one the traffic.
        let qps = process["qps"].as_array().unwrap();
        let ready = qps.iter().filter(|qp| qp["state"] == "RTS");
        ready.filter_map(|qp| qp["counters"]["tx_messages"].as_u64()).max()
    };
    until("traffic", || sent(&group.processes()).is_some_and(|messages| messages > 1000));
    let before = sent(&group.processes()).unwrap();
    until("more traffic", || sent(&group.processes()).unwrap() > before);

    for pid in [server.id(), client.id()] {
        signal(pid, "-STOP");
    }
    until("both stopped", || group.processes().iter().all(|p| p["state"] == "stopped"));
    // Nobody who could answer is running.
    let processes = group.processes();
    assert_eq!(processes.len(), 2);
    for (one, other) in [(&server, &client), (&client, &server)] {
        let process = of(&processes, one.id());
        assert_eq!(process["command"], "ironverbs");
        assert_eq!(process["same_pid_namespace"], true);
        let qp = process["qps"].as_array().unwrap().iter().find(|qp| qp["state"] == "RTS");
        let qp = qp.unwrap_or_else(|| panic!("{process}"));
        assert_eq!((qp["type"].as_str(), qp["path"].as_str()), (Some("RC"), Some("local")));
        assert_eq!(qp["peer"]["pid"], other.id());
        let peers = of(&processes, other.id())["qps"].as_array().unwrap();
        let peer = peers.iter().find(|peer| peer["qpn"] == qp["peer"]["qpn"]).unwrap();
        assert_eq!(peer["peer"]["qpn"], qp["qpn"]);
    }
    let text = finish(group.command(&["ps"])).ok().out();
    for part in ["stopped", "RC", "RTS", "local to ", &format!("(pid {})", client.id())] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for pid in [server.id(), client.id()] {
        signal(pid, "-CONT");
    }
    let pid = client.id();
    drop(client);
    until("the dead are not shown", || group.processes().iter().all(|p| p["pid"] != pid));
}

#[test]
fn where_a_process_listens() {
    let group = Group::new();
    let (server, tcp) = group.server();
    // It listens by the connection manager on the port where it does by TCP.
    let services = of(&group.processes(), server.id())["services"].clone();
    let [service] = services.as_array().unwrap().as_slice() else { panic!("{services}") };
    assert_eq!((&service["space"], &service["listens"]), (&"TCP".into(), &true.into()));
    assert_eq!((service["port"].to_string(), &service["address"]), (tcp.clone(), &"::".into()));
    let text = finish(group.command(&["ps"])).ok().out();
    assert!(text.contains(&format!("\n  listens on [::]:{tcp} (TCP)\n")), "{text}");
    assert_eq!(server.id(), of(&group.processes(), server.id())["pid"]);
}

/// Open descriptors and resident KiB of a process.
fn holds(pid: u32) -> (usize, u64) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (files, line.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn an_agent_stays_while_programs_come_and_are_killed() {
    let group = Group::new();
    let agent = group.agent();
    assert_eq!(of(&group.processes(), agent.id())["qps"].as_array().unwrap().len(), 0);
    let mut first = None;
    for round in 0..20 {
        let (mut server, tcp) = group.server();
        let mut client = group.start(&[
            "perf",
            "127.0.0.1",
            "--port",
            &tcp,
            "--op",
            "send",
            "--bw",
            "-t",
            "100",
            "-s",
            "8",
        ]);
        let busy = |p: &Value| p["qps"].as_array().is_some_and(|qps| !qps.is_empty());
        until("traffic", || group.processes().iter().filter(|p| busy(p)).count() == 2);
        assert!(group.processes().iter().any(|p| p["pid"] == agent.id()));
        server.kill();
        client.kill();
        drop((server, client));
        until("the agent is alone", || group.processes().len() == 1);
        if round == 2 {
            first = Some(holds(agent.id()));
        }
    }
    let (before, after) = (first.unwrap(), holds(agent.id()));
    assert_eq!(before.0, after.0, "descriptors");
    assert!(after.1 < before.1 + 1024, "{before:?} to {after:?} KiB");
    // Slots are used again.
    let slots = group.processes().iter().map(|p| p["slot"].as_u64().unwrap()).max();
    assert!(slots < Some(8), "{slots:?}");
    signal(agent.id(), "-TERM");
    let output = agent.wait().ok();
    assert_eq!(output.err(), "");
    assert!(group.processes().is_empty());
}

#[test]
fn an_agent_that_cannot_have_the_port_says_why() {
    let taken = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let group = Group { udp: taken.local_addr().unwrap().port().to_string() };
    let output = finish(group.command(&["agent"])).failed_with(1);
    assert!(output.err().contains(&format!("process {}", std::process::id())), "{}", output.err());
}

#[test]
fn all_users_are_shown_to_root() {
    let group = Group::new();
    let own = group.agent();
    let output = finish(group.command(&["ps", "--all", "--json"])).ok();
    let document: Value = serde_json::from_str(&output.out()).unwrap();
    let root = of(document["processes"].as_array().unwrap(), own.id())["uid"] == 0;
    if !root {
        eprintln!("skipped: becoming another user takes root");
        return;
    }
    // Another port, another group; another user cannot share this one.
    let other = Group::new();
    let scratch = Scratch::new("ps-all");
    let copy = scratch.0.join("ironverbs");
    std::fs::copy(IRONVERBS, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
    command.arg(&copy).args(["agent", "--json"]);
    command.env("IRONVERBS_UDP_PORT", &other.udp).env("HOME", "/nonexistent");
    let agent = Background::start(command);
    agent.line();
    assert!(other.processes().is_empty(), "root's own group is another");
    let output = finish(other.command(&["ps", "--all", "--json"])).ok();
    let document: Value = serde_json::from_str(&output.out()).unwrap();
    assert_eq!(of(document["processes"].as_array().unwrap(), agent.id())["uid"], 65534);
}
