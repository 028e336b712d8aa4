//! What is done for a process that was killed: its peers on other hosts are told. Two hosts are two network namespaces
//! that the test makes, which takes root and iproute2; without them it fails and says so.

#[path = "child/mod.rs"]
mod child;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use child::{Child, WATCHDOG, eventually, say, told};
use ironverbs_soft::cm::*;
use ironverbs_soft::*;

const ROLE: &str = "IRONVERBS_TEST_WILLS";
const A: &str = "10.77.0.1";
const B: &str = "10.77.0.2";

/// Two hosts with a cable between them.
struct Hosts {
    a: String,
    b: String,
}

impl Hosts {
    fn new(test: &str) -> Hosts {
        let name = |end: &str| format!("ironverbs-wills-{}-{test}-{end}", std::process::id());
        let hosts = Hosts { a: name("a"), b: name("b") };
        for host in [&hosts.a, &hosts.b] {
            ip(&format!("netns add {host}"));
        }
        ip(&format!("-n {} link add va type veth peer name vb netns {}", hosts.a, hosts.b));
        for (host, end, address) in [(&hosts.a, "va", A), (&hosts.b, "vb", B)] {
            ip(&format!("-n {host} link set lo up"));
            ip(&format!("-n {host} address add {address}/24 dev {end}"));
            ip(&format!("-n {host} link set {end} up"));
        }
        hosts
    }

    fn start(&self, host: &str, role: &str) -> Child {
        Child::start_in(host, "member_process", (ROLE, role.to_owned()))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in [&self.a, &self.b] {
            let _ = Command::new("ip").args(["netns", "del", host]).output();
        }
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("needs `ip` of iproute2");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: needs root (CAP_SYS_ADMIN): {why}");
}

/// An open device of the host, and a channel.
struct End {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    channel: Arc<EventChannel>,
}

impl End {
    fn new() -> End {
        let host = Host::start(Config::default()).unwrap();
        let mut device = None;
        // An interface that was just set up has its address a moment later.
        eventually("a device", || {
            let devices = host.devices().unwrap();
            let found = devices.into_iter().find(|found| found.interface() != "lo");
            device = found.filter(|found| found.link().0);
            device.is_some()
        });
        let context = device.unwrap().open().unwrap();
        assert_eq!(context.wire_problem(), None);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None, 0).unwrap();
        End { pd, cq, channel: EventChannel::new(&host).unwrap() }
    }

    fn qp(&self) -> Arc<Qp> {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        let init =
            QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        self.pd.create_qp(&init).unwrap()
    }

    fn next(&self) -> CmEvent {
        let mut event = None;
        eventually("an event", || {
            event = self.channel.try_next_event().unwrap();
            event.is_some()
        });
        event.unwrap()
    }

    fn expect(&self, kind: CmEventKind) {
        let event = self.next();
        assert_eq!(event.kind(), kind, "status {}", event.status());
    }
}

/// Not a test: what the processes run.
#[test]
fn member_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let end = End::new();
    match role.as_str() {
        // Tells what happens to its connections.
        "server" => {
            let listener = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
            listener.bind(SocketAddr::new(B.parse().unwrap(), 0)).unwrap();
            listener.listen(0).unwrap();
            say(&listener.local_addr().unwrap().to_string());
            let mut all = Vec::new();
            loop {
                let event = end.channel.next_event().unwrap();
                if event.kind() == CmEventKind::ConnectRequest {
                    let (id, qp) = (event.id().clone(), end.qp());
                    id.attach_qp(Some(&qp)).unwrap();
                    id.accept(None).unwrap();
                    all.push((id, qp));
                } else {
                    say(event.kind().name());
                }
            }
        }
        // Only there.
        "bystander" => {
            say("there");
            told();
        }
        // Connects so often, and does as it is told.
        _ => {
            let (to, count) = role.split_once(' ').unwrap();
            let connections: Vec<_> = (0..count.parse().unwrap())
                .map(|_| {
                    let id = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
                    id.resolve_addr(None, to.parse().unwrap(), WATCHDOG).unwrap();
                    end.expect(CmEventKind::AddrResolved);
                    id.resolve_route(WATCHDOG).unwrap();
                    end.expect(CmEventKind::RouteResolved);
                    let qp = end.qp();
                    id.attach_qp(Some(&qp)).unwrap();
                    id.connect(&ConnParam::default()).unwrap();
                    end.expect(CmEventKind::Established);
                    (id, qp)
                })
                .collect();
            say("connected");
            if told() == "disconnect" {
                for (id, _) in &connections {
                    id.disconnect().unwrap();
                    end.expect(CmEventKind::Disconnected);
                }
                say("disconnected");
                told();
            }
        }
    }
}

/// The server hears so often of an end, and of nothing else.
fn hears_of_ends(server: &Child, count: usize) {
    for _ in 0..count {
        assert_eq!(server.line(), "RDMA_CM_EVENT_DISCONNECTED");
    }
}

fn connect(hosts: &Hosts, server: &Child, to: &str, count: usize) -> Child {
    let client = hosts.start(&hosts.a, &format!("{to} {count}"));
    assert_eq!(client.line(), "connected");
    for _ in 0..count {
        assert_eq!(server.line(), "RDMA_CM_EVENT_ESTABLISHED");
    }
    client
}

#[test]
fn peers_of_a_killed_process_are_told_by_one_that_lives() {
    let hosts = Hosts::new("lives");
    let server = hosts.start(&hosts.b, "server");
    let to = server.line();
    let bystander = hosts.start(&hosts.a, "bystander");
    assert_eq!(bystander.line(), "there");
    for count in [1, 5] {
        let mut client = connect(&hosts, &server, &to, count);
        client.kill();
        hears_of_ends(&server, count);
    }
    // What was disconnected is nobody's concern any more, and who disconnected is not spoken for.
    let mut client = connect(&hosts, &server, &to, 2);
    client.tell("disconnect");
    hears_of_ends(&server, 2);
    assert_eq!(client.line(), "disconnected");
    client.kill();
    let nothing = server.line_within(Duration::from_millis(300));
    assert!(nothing.is_err(), "{nothing:?}");
}

#[test]
fn peers_of_a_killed_process_are_told_by_its_heir() {
    let hosts = Hosts::new("heir");
    let server = hosts.start(&hosts.b, "server");
    let to = server.line();
    // Keeps the group, and can do nothing.
    let stopped = hosts.start(&hosts.a, "bystander");
    assert_eq!(stopped.line(), "there");
    let mut client = connect(&hosts, &server, &to, 3);
    stopped.stop();
    client.kill();
    client.wait();
    let nothing = server.line_within(Duration::from_millis(300));
    assert!(nothing.is_err(), "{nothing:?}");
    let newcomer = hosts.start(&hosts.a, "bystander");
    hears_of_ends(&server, 3);
    assert_eq!(newcomer.line(), "there");
}
