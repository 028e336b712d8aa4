//! What making and ending connections costs, between two processes of one host: one after the other, a thousand at
//! once, and what ten thousand that stand hold in memory. Of each way, shared memory and UDP.
//!
//! A round is what a program does: an id, its address and route resolved, a queue pair, the connection, one message
//! across it and its completion, the end of both sides. The load printed first says how far to trust it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs_soft::cm::*;
use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_soft::*;
use ironverbs_sys::mem::Mapping;

const PORT: u16 = 47_311;
const ROLE: &str = "IRONVERBS_BENCH_SERVER";
const SEQUENTIAL: usize = 2_000;
const PARALLEL: usize = 1_000;
const STANDING: usize = 10_000;

fn main() {
    if let Ok(path) = std::env::var(ROLE) {
        return serve(&path);
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}", load.trim());
    for path in ["auto", "wire"] {
        let server = Server::start(path);
        let client = End::new(path);
        let rate = |n: usize, start: Instant| n as f64 / start.elapsed().as_secs_f64();
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..SEQUENTIAL {
                client.round(server.to);
            }
            println!("{path}: {:.0} a second, one after the other", rate(SEQUENTIAL, start));
            let start = Instant::now();
            client.many(server.to, PARALLEL);
            println!("{path}: {:.0} a second, {PARALLEL} at once", rate(PARALLEL, start));
        }
    }
    let server = Server::start("auto");
    let client = End::new("auto");
    let before = (resident("self"), resident(&server.child.id().to_string()));
    let held: Vec<_> = (0..STANDING).map(|_| client.establish(server.to, false)).collect();
    let after = (resident("self"), resident(&server.child.id().to_string()));
    let each = |before: u64, after: u64| after.saturating_sub(before) * 1024 / STANDING as u64;
    println!(
        "{STANDING} ids with queue pairs: {} bytes each at the client, {} at the server",
        each(before.0, after.0),
        each(before.1, after.1)
    );
    drop(held);
}

/// KiB that a process has in memory.
fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn host(path: &str) -> Host {
    let path = if path == "wire" { DataPath::Wire } else { DataPath::Auto };
    Host::start(Config {
        udp_port: Setting { value: PORT, source: Source::Default },
        interfaces: Setting { value: vec!["lo".into()], source: Source::Default },
        path: Setting { value: path, source: Source::Default },
        ..Config::default()
    })
    .unwrap()
}

struct End {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
    memory: Mapping,
    channel: Arc<EventChannel>,
}

impl End {
    fn new(path: &str) -> End {
        let host = host(path);
        let context = host.devices().unwrap().remove(0).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(65_536, None, 0).unwrap();
        let memory = Mapping::anonymous(4096).unwrap();
        // SAFETY: the mapping lives as long as the process.
        let mr =
            unsafe { pd.reg_mr(memory.addr(), 4096, memory.addr(), Access::LOCAL_WRITE).unwrap() };
        let channel = EventChannel::new(&host).unwrap();
        End { pd, cq, mr, memory, channel }
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

    fn sge(&self) -> Sge {
        Sge { addr: self.memory.addr(), len: 8, lkey: self.mr.lkey() }
    }

    fn expect(&self, id: &CmId, kind: CmEventKind) {
        loop {
            let event = self.channel.next_event().unwrap();
            if std::ptr::eq(Arc::as_ptr(event.id()), id) {
                assert_eq!(event.kind(), kind, "status {}", event.status());
                return;
            }
        }
    }

    fn establish(&self, to: SocketAddr, message: bool) -> (Arc<CmId>, Arc<Qp>) {
        let id = CmId::new(&self.channel, PortSpace::Tcp, None).unwrap();
        id.resolve_addr(None, to, Duration::from_secs(1)).unwrap();
        self.expect(&id, CmEventKind::AddrResolved);
        id.resolve_route(Duration::from_secs(1)).unwrap();
        self.expect(&id, CmEventKind::RouteResolved);
        let qp = self.qp();
        id.attach_qp(Some(&qp)).unwrap();
        id.connect(&ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() })
            .unwrap();
        self.expect(&id, CmEventKind::Established);
        if message {
            self.send(&qp);
            while self.cq.poll(1, |wc| assert_eq!(wc.status, WcStatus::Success)).unwrap() == 0 {}
        }
        (id, qp)
    }

    fn send(&self, qp: &Qp) {
        let send = SendWr::new(1, WrOpcode::Send, SendFlags::SIGNALED);
        qp.post_send(&send, Payload::Sges(&[self.sge()])).unwrap();
    }

    fn round(&self, to: SocketAddr) {
        let (id, qp) = self.establish(to, true);
        id.disconnect().unwrap();
        self.expect(&id, CmEventKind::Disconnected);
        id.attach_qp(None).unwrap();
        qp.destroy().unwrap();
        id.destroy().unwrap();
    }

    /// All at once, each as far as its next event.
    fn many(&self, to: SocketAddr, n: usize) {
        let mut ids = HashMap::new();
        for _ in 0..n {
            let id = CmId::new(&self.channel, PortSpace::Tcp, None).unwrap();
            id.resolve_addr(None, to, Duration::from_secs(1)).unwrap();
            ids.insert(id.number(), (id, None::<Arc<Qp>>));
        }
        while !ids.is_empty() {
            let event = self.channel.next_event().unwrap();
            let Some((id, qp)) = ids.get_mut(&event.id().number()) else { continue };
            match event.kind() {
                CmEventKind::AddrResolved => id.resolve_route(Duration::from_secs(1)).unwrap(),
                CmEventKind::RouteResolved => {
                    let new = self.qp();
                    id.attach_qp(Some(&new)).unwrap();
                    *qp = Some(new);
                    let param =
                        ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() };
                    id.connect(&param).unwrap();
                }
                CmEventKind::Established => {
                    self.send(qp.as_ref().unwrap());
                    while self.cq.poll(1, |_| {}).unwrap() == 0 {}
                    id.disconnect().unwrap();
                }
                CmEventKind::Disconnected => {
                    let number = id.number();
                    drop(event);
                    ids.remove(&number);
                }
                kind => panic!("{kind:?} {}", event.status()),
            }
        }
    }
}

struct Server {
    child: Child,
    to: SocketAddr,
}

impl Server {
    fn start(path: &str) -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Server { child, to: line.trim().parse().unwrap() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(path: &str) {
    let end = End::new(path);
    let listener = CmId::new(&end.channel, PortSpace::Tcp, None).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut ids = HashMap::new();
    loop {
        let event = end.channel.next_event().unwrap();
        let id = event.id().clone();
        match event.kind() {
            CmEventKind::ConnectRequest => {
                let qp = end.qp();
                id.attach_qp(Some(&qp)).unwrap();
                qp.post_recv(1, &[end.sge()]).unwrap();
                id.accept(None).unwrap();
                ids.insert(id.number(), (id, qp));
            }
            CmEventKind::Disconnected => {
                drop(event);
                if let Some((id, qp)) = ids.remove(&id.number()) {
                    id.attach_qp(None).unwrap();
                    qp.destroy().unwrap();
                    id.destroy().unwrap();
                }
            }
            _ => {}
        }
        end.cq.poll(64, |_| {}).unwrap();
    }
}
