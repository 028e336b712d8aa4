//! Connections between processes: peers that are killed or end, and what a thousand rounds leave behind.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs_soft::cm::*;
use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_soft::*;

const ROLE: &str = "IRONVERBS_TEST_CM_SERVER";
const WATCHDOG: Duration = Duration::from_secs(60);

fn port(test: u16) -> u16 {
    10_000 + (std::process::id() as u16 % 2_000) * 10 + test
}

struct End {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    channel: Arc<EventChannel>,
}

impl End {
    fn new(port: u16, path: DataPath) -> End {
        let host = Host::start(Config {
            udp_port: Setting { value: port, source: Source::Default },
            interfaces: Setting { value: vec!["lo".into()], source: Source::Default },
            path: Setting { value: path, source: Source::Default },
            ..Config::default()
        })
        .unwrap();
        let context = host.devices().unwrap().remove(0).open().unwrap();
        assert_eq!(context.wire_problem(), None);
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096, None, 0).unwrap();
        End { pd, cq, channel: EventChannel::new(&host).unwrap() }
    }

    fn qp(&self) -> Arc<Qp> {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        let init =
            QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        self.pd.create_qp(&init).unwrap()
    }

    /// The next event, which must come.
    fn next(&self) -> CmEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = self.channel.try_next_event().unwrap() {
                return event;
            }
            assert!(start.elapsed() < WATCHDOG, "no event");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn expect(&self, kind: CmEventKind) {
        let event = self.next();
        assert_eq!(event.kind(), kind, "status {}", event.status());
    }

    fn connect(&self, to: SocketAddr) -> (Arc<CmId>, Arc<Qp>) {
        let id = CmId::new(&self.channel, PortSpace::Tcp, None).unwrap();
        id.resolve_addr(None, to, WATCHDOG).unwrap();
        self.expect(CmEventKind::AddrResolved);
        id.resolve_route(WATCHDOG).unwrap();
        self.expect(CmEventKind::RouteResolved);
        let qp = self.qp();
        id.attach_qp(Some(&qp)).unwrap();
        let param = ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() };
        id.connect(&param).unwrap();
        self.expect(CmEventKind::Established);
        (id, qp)
    }
}

/// Not a test: what the other process runs, which accepts whoever comes.
#[test]
fn server_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (port, how) = role.split_once(' ').unwrap();
    let path = if how.ends_with("wire") { DataPath::Wire } else { DataPath::Auto };
    let end = End::new(port.parse().unwrap(), path);
    let mut listener = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    if how.starts_with("late") {
        println!("\n@{}", listener.local_addr().unwrap());
        std::thread::sleep(Duration::from_millis(300));
    }
    listener.listen(0).unwrap();
    println!("\n@{}", listener.local_addr().unwrap());
    let mut ids = Vec::new();
    loop {
        let event = end.channel.next_event().unwrap();
        let id = event.id().clone();
        match event.kind() {
            CmEventKind::ConnectRequest => {
                let qp = end.qp();
                id.attach_qp(Some(&qp)).unwrap();
                id.accept(None).unwrap();
                ids.push((id, qp));
            }
            CmEventKind::Established if how == "exit" => std::process::exit(0),
            CmEventKind::Established if how.starts_with("again") && ids.len() == 1 => {
                let to = listener.local_addr().unwrap();
                listener.destroy().unwrap();
                println!("\n@{to}");
                std::thread::sleep(Duration::from_millis(300));
                listener = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
                listener.bind(to).unwrap();
                listener.listen(0).unwrap();
            }
            CmEventKind::Disconnected => {
                drop(event);
                let at = ids.iter().position(|(other, _)| Arc::ptr_eq(other, &id)).unwrap();
                let (id, qp) = ids.swap_remove(at);
                id.attach_qp(None).unwrap();
                qp.destroy().unwrap();
                id.destroy().unwrap();
            }
            _ => {}
        }
    }
}

struct Server {
    child: Child,
    said: Box<dyn Iterator<Item = String>>,
    to: SocketAddr,
}

impl Server {
    fn start(port: u16, how: &str) -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["server_process", "--exact", "--nocapture"])
            .env(ROLE, format!("{port} {how}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = Box::new(lines.filter_map(|line| Some(line.strip_prefix('@')?.to_owned())));
        let to = said.next().unwrap().parse().unwrap();
        Server { child, said, to }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn who_is_connected_to_a_killed_process_is_disconnected() {
    for (n, (path, how)) in
        [(DataPath::Auto, "auto"), (DataPath::Wire, "wire")].into_iter().enumerate()
    {
        let port = port(n as u16);
        let mut server = Server::start(port, how);
        let end = End::new(port, path);
        let connections: Vec<_> = (0..3).map(|_| end.connect(server.to)).collect();
        server.kill();
        let start = Instant::now();
        for _ in &connections {
            end.expect(CmEventKind::Disconnected);
        }
        eprintln!("{how}: told after {:?}", start.elapsed());
        // Its packets may be under way for a while.
        for _ in &connections {
            end.expect(CmEventKind::TimewaitExit);
        }
        for (id, _) in &connections {
            id.disconnect().unwrap();
        }
        // Its port is free again, and the service can come back.
        let again = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
        again.bind(server.to).unwrap();
    }
}

#[test]
fn a_program_that_ends_disconnects() {
    let port = port(2);
    let server = Server::start(port, "exit");
    let end = End::new(port, DataPath::Auto);
    let _connection = end.connect(server.to);
    end.expect(CmEventKind::Disconnected);
}

/// perftest with `-R` does that: its server listens anew for the second of its client's connections.
#[test]
fn who_was_accepted_may_come_again_before_the_server_listens_again() {
    for (n, (path, how)) in
        [(DataPath::Auto, "again"), (DataPath::Wire, "again-wire")].into_iter().enumerate()
    {
        let port = port(5 + n as u16);
        let mut server = Server::start(port, how);
        let end = End::new(port, path);
        let _first = end.connect(server.to);
        server.said.next().expect("it listens no more");
        let _second = end.connect(server.to);
        let _third = end.connect(server.to);
    }
}

/// qperf's server tells its client the port and listens then.
#[test]
fn who_comes_to_a_bound_port_waits_for_the_listener() {
    for (n, (path, how)) in
        [(DataPath::Auto, "late"), (DataPath::Wire, "late-wire")].into_iter().enumerate()
    {
        let port = port(7 + n as u16);
        let server = Server::start(port, how);
        let end = End::new(port, path);
        let _connection = end.connect(server.to);
    }
}

#[test]
fn a_port_is_the_users_not_the_processes() {
    let port = port(3);
    let mut server = Server::start(port, "auto");
    let end = End::new(port, DataPath::Auto);
    let id = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
    assert!(matches!(id.bind(server.to), Err(CmError::AddrInUse { .. })));
    server.kill();
    id.bind(server.to).unwrap();
    id.listen(0).unwrap();
}

/// KiB that this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_rounds_leave_nothing_behind() {
    let port = port(4);
    let server = Server::start(port, "auto");
    let end = End::new(port, DataPath::Auto);
    let round = || {
        let (id, qp) = end.connect(server.to);
        id.disconnect().unwrap();
        end.expect(CmEventKind::Disconnected);
        id.attach_qp(None).unwrap();
        qp.destroy().unwrap();
        id.destroy().unwrap();
    };
    (0..1000).for_each(|_| round());
    let before = (resident(), descriptors());
    (0..1000).for_each(|_| round());
    // What rests after its end is some hundred bytes each.
    assert!(resident() < before.0 + 4096, "{} KiB became {}", before.0, resident());
    // Other tests of this process come and go meanwhile.
    assert!(descriptors() < before.1 + 100);
}
