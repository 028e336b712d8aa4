//! The connection manager of a Host that a hostile one sends all it can.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ironverbs_mad::{Cm, Config as CmConfig, Connect, Resolve};
use ironverbs_soft::cm::*;
use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_soft::sim::Network;
use ironverbs_soft::{Config, Gid, Host, Path, Qp, QpCap, QpInit, QpType};
use ironverbs_wire::mad::cm::{IpHeader, Message, Req, ServiceId, SidrReq};
use ironverbs_wire::mad::{Mad, gmp};
use ironverbs_wire::{Packet, ROCE_PORT, icrc};

const LONG: Duration = Duration::from_secs(2);
const WATCHDOG: Duration = Duration::from_secs(120);
const BACKLOG: u32 = 32;
const PORT: u16 = 4000;
const NOW: ironverbs_mad::Instant = ironverbs_mad::Instant(1);

fn path(src: Ipv4Addr, dst: Ipv4Addr) -> Path {
    let [src, dst] = [src, dst].map(Gid::from_ipv4);
    Path { src, dst, traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None }
}

/// A packet from QP1 to QP1, right in every respect.
fn sealed(path: &Path, from: u16, to: u16, mad: &Mad) -> Vec<u8> {
    let packet = gmp(0xffff, 0, mad);
    let mut body = vec![0; Packet::header_len(packet.service, packet.op)];
    assert_eq!(packet.emit_header(&mut body), body.len());
    body.extend_from_slice(packet.payload);
    let crc = icrc::compute(path, from, to, 0, &body);
    body.extend(crc.to_le_bytes());
    body
}

/// Makes requests of any number of senders.
struct Forger {
    req: Req,
    sidr: SidrReq,
}

impl Forger {
    fn new(to: Ipv4Addr) -> Forger {
        let mut cm = Cm::new(CmConfig::new(0, 0, 1));
        let path = path(Ipv4Addr::new(11, 0, 0, 1), to);
        let ip = Some(IpHeader { src_port: 1, src: path.src.to_ip(), dst: path.dst.to_ip() });
        let service = |space| ServiceId::of_port(space, PORT);
        let connect = Connect { ip, ..Connect::new(path, service(PortSpace::Tcp), 1, 0x100) };
        cm.connect(NOW, &connect).unwrap();
        let resolve = Resolve { ip, ..Resolve::new(path, service(PortSpace::Udp)) };
        cm.resolve(NOW, &resolve).unwrap();
        let sent = std::iter::from_fn(|| cm.poll_transmit());
        let sent: Vec<_> = sent.map(|sent| Message::parse(&sent.mad).unwrap().1).collect();
        let [Message::Req(req), Message::SidrReq(sidr)] = sent[..] else { panic!("{sent:?}") };
        Forger { req, sidr }
    }

    fn req(&self, number: u32, src: Ipv4Addr) -> Mad {
        let mut req = self.req;
        req.local_comm_id = number | 0x8000_0000;
        req.local_ca_guid = u64::from(number) + 1;
        req.local_qpn = number & 0xff_ffff | 2;
        req.primary.local_gid = Gid::from_ipv4(src);
        req.private_data[16..20].copy_from_slice(&src.octets());
        Message::Req(req).emit(number.into())
    }

    fn sidr(&self, number: u32, src: Ipv4Addr) -> Mad {
        let mut sidr = self.sidr;
        sidr.request_id = number;
        sidr.private_data[16..20].copy_from_slice(&src.octets());
        Message::SidrReq(sidr).emit(number.into())
    }
}

/// A program that accepts who says "good", and looks at a few events at a time.
struct Server {
    channel: Arc<EventChannel>,
    _listeners: [Arc<CmId>; 2],
    accepted: Vec<Arc<CmId>>,
}

impl Server {
    fn new(host: &Host, ip: Ipv4Addr) -> Server {
        let channel = EventChannel::new(host).unwrap();
        let listeners = [PortSpace::Tcp, PortSpace::Udp].map(|space| {
            let id = CmId::new(&channel, space, None).unwrap();
            id.bind(SocketAddr::new(IpAddr::V4(ip), PORT)).unwrap();
            id.listen(BACKLOG).unwrap();
            id
        });
        Server { channel, _listeners: listeners, accepted: Vec::new() }
    }

    /// Answers up to `most` events.
    fn serve(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.channel.try_next_event().unwrap() else { return };
            if event.kind() != CmEventKind::ConnectRequest {
                continue;
            }
            let id = event.id().clone();
            let (EventParam::Conn(ConnParam { private_data, .. })
            | EventParam::Ud(UdParam { private_data, .. })) = event.param()
            else {
                panic!("{event:?}")
            };
            if private_data.starts_with(b"good") {
                let qp_num = 0x1000 + self.accepted.len() as u32;
                id.accept(Some(&ConnParam { qp_num, ..ConnParam::default() })).unwrap();
                self.accepted.push(id);
            } else {
                // Who asked may have taken it back.
                let _ = id.reject(b"no");
            }
        }
    }

    /// Takes every request that waits, and answers none.
    fn waiting(&self) -> Vec<Arc<CmId>> {
        let events = std::iter::from_fn(|| self.channel.try_next_event().unwrap());
        events.map(|event| event.id().clone()).collect()
    }
}

struct Client {
    channel: Arc<EventChannel>,
    id: Arc<CmId>,
    /// Its own, or the second of a Host would be taken for the first come back.
    qp_num: u32,
    done: bool,
}

impl Client {
    fn new(host: &Host, space: PortSpace, to: Ipv4Addr) -> Client {
        static NUMBERS: AtomicU32 = AtomicU32::new(9);
        let qp_num = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let channel = EventChannel::new(host).unwrap();
        let id = CmId::new(&channel, space, None).unwrap();
        id.resolve_addr(None, SocketAddr::new(IpAddr::V4(to), PORT), LONG).unwrap();
        Client { channel, id, qp_num, done: false }
    }

    fn go_on(&mut self) {
        while let Some(event) = self.channel.try_next_event().unwrap() {
            match event.kind() {
                CmEventKind::AddrResolved => self.id.resolve_route(LONG).unwrap(),
                CmEventKind::RouteResolved => {
                    let private_data = b"good".to_vec();
                    let qp_num = self.qp_num;
                    let param = ConnParam { private_data, qp_num, ..ConnParam::default() };
                    self.id.connect(&param).unwrap();
                }
                CmEventKind::ConnectResponse => {
                    self.id.establish().unwrap();
                    self.done = true;
                }
                CmEventKind::Established => self.done = true,
                other => panic!("{other:?}, status {}", event.status()),
            }
        }
    }
}

/// KiB that this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

const GOOD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// One test at a time: they look at the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());

struct World {
    network: Network,
    good: Host,
    victim: Host,
    forger: Forger,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> World {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let network = Network::new(7);
        let [good, victim] = [GOOD, VICTIM].map(|ip| network.host(&[ip.into()]).unwrap());
        World { network, good, victim, forger: Forger::new(VICTIM), _alone: alone }
    }

    fn inject(&self, src: Ipv4Addr, mad: &Mad) {
        let path = path(src, VICTIM);
        self.network.inject(path, 0x8000, &sealed(&path, 0x8000, ROCE_PORT, mad));
    }

    fn forge(&self, number: u32) {
        let src = Ipv4Addr::from(0x0b00_0000 + number);
        let mad = match number % 8 {
            0 => self.forger.sidr(number, src),
            _ => self.forger.req(number, src),
        };
        self.inject(src, &mad);
    }

    /// Lets time pass until the clients are served.
    fn serve(&self, server: &mut Server, clients: &mut [Client]) {
        let end = self.network.now() + 100_000_000_000;
        while !clients.iter().all(|client| client.done) {
            server.serve(8);
            clients.iter_mut().for_each(Client::go_on);
            self.network.step();
            assert!(self.network.now() < end, "good clients are not served");
        }
    }
}

/// The good clients come in the midst of the flood and are served while it goes on: each of its senders is another, and a
/// program that reads eight events while a hundred come cannot tell who will be a good one.
#[test]
fn a_hundred_thousand_requests_of_a_hostile_host() {
    let world = World::new();
    let mut server = Server::new(&world.victim, VICTIM);
    let mut clients = Vec::new();
    // What a few cost for good is there.
    (0..2_000).for_each(|number| world.forge(number));
    let waiting = server.waiting();
    assert!(waiting.len() <= 2 * BACKLOG as usize, "{} wait", waiting.len());
    drop(waiting);
    let before = resident();
    let mut served_at = None;
    for number in 2_000..100_000 {
        world.forge(number);
        // The program is slower than the flood.
        if number % 100 == 0 {
            world.network.run_until(20_000_000, || false);
            server.serve(8);
        }
        if number == 30_000 {
            clients = [PortSpace::Tcp, PortSpace::Udp]
                .map(|space| Client::new(&world.good, space, VICTIM))
                .into();
        }
        clients.iter_mut().for_each(Client::go_on);
        if !clients.is_empty() && clients.iter().all(|client| client.done) {
            served_at.get_or_insert(number);
        }
    }
    let grown = resident().saturating_sub(before);
    // A kilobyte each would be more.
    assert!(grown < 64 << 10, "{grown} KiB for 100,000 requests");
    eprintln!("served after {served_at:?} requests, {grown} KiB");
    assert!(served_at.is_some(), "the good clients were not served");
    assert_eq!(server.accepted.len(), 2);
}

/// A program that accepts whoever asks: what is accepted and never established is bounded, and ends.
#[test]
fn who_accepts_all_holds_a_bounded_number_of_them() {
    let world = World::new();
    let mut server = Server::new(&world.victim, VICTIM);
    for number in 0..30_000 {
        let src = Ipv4Addr::from(0x0b00_0000 + number);
        world.inject(src, &world.forger.req(number, src));
        while let Some(event) = server.channel.try_next_event().unwrap() {
            let id = event.id().clone();
            match event.kind() {
                CmEventKind::ConnectRequest => {
                    let qp_num = 0x1000 + number;
                    id.accept(Some(&ConnParam { qp_num, ..ConnParam::default() })).unwrap();
                    server.accepted.push(id);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let half_open = server.accepted.len();
    assert!((1_000..10_000).contains(&half_open), "{half_open}");
    let mut client = [Client::new(&world.good, PortSpace::Tcp, VICTIM)];
    let mut gone = 0;
    let end = world.network.now() + 300_000_000_000;
    while gone < half_open || !client[0].done {
        client[0].go_on();
        while let Some(event) = server.channel.try_next_event().unwrap() {
            let id = event.id().clone();
            match event.kind() {
                CmEventKind::ConnectRequest => {
                    let qp_num = 0x900_000;
                    id.accept(Some(&ConnParam { qp_num, ..ConnParam::default() })).unwrap();
                    server.accepted.push(id);
                }
                CmEventKind::Unreachable => gone += 1,
                CmEventKind::Established => assert!(gone < half_open, "the good one had to wait"),
                other => panic!("{other:?}"),
            }
        }
        assert!(world.network.step() && world.network.now() < end, "{gone} of {half_open} ended");
    }
}

/// Attributes of what no connection begins with: MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REP, LAP, APR (IBA 16.7.1.2).
const ANSWERS: [u8; 9] = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x18, 0x19, 0x1a];

/// The PSN that a request names is the one that its receiver begins with (the captures of the mad crate show a kernel that
/// does); what the receiver names, its own peer's.
#[test]
fn the_receiver_begins_with_the_psn_that_it_was_told() {
    const TOLD: u32 = 0x12_3456;
    let world = World::new();
    let server = Server::new(&world.victim, VICTIM);
    let mut req = world.forger.req(1, GOOD);
    req = match Message::parse(&req).unwrap() {
        (tid, Message::Req(req)) => Message::Req(Req { starting_psn: TOLD, ..req }).emit(tid),
        other => panic!("{other:?}"),
    };
    world.inject(GOOD, &req);
    let event = server.channel.try_next_event().unwrap().unwrap();
    let (id, qp) = (event.id().clone(), rc_qp(&world.victim));
    id.attach_qp(Some(&qp)).unwrap();
    id.accept(None).unwrap();
    let attr = qp.query();
    assert_eq!(attr.sq_psn, TOLD);
    assert_ne!(attr.rq_psn, TOLD);

    // Two of ours agree.
    let other = EventChannel::new(&world.good).unwrap();
    let client = CmId::new(&other, PortSpace::Tcp, None).unwrap();
    let (mine, theirs) = (rc_qp(&world.good), rc_qp(&world.victim));
    client.resolve_addr(None, SocketAddr::new(IpAddr::V4(VICTIM), PORT), LONG).unwrap();
    let wait = |channel: &EventChannel, kind| {
        let end = 1_000_000_000;
        let mut found = None;
        world.network.run_until(end, || {
            found = found.take().or_else(|| channel.try_next_event().unwrap());
            found.is_some()
        });
        let event = found.expect("an event");
        assert_eq!(event.kind(), kind);
        event
    };
    wait(&other, CmEventKind::AddrResolved);
    client.resolve_route(LONG).unwrap();
    wait(&other, CmEventKind::RouteResolved);
    client.attach_qp(Some(&mine)).unwrap();
    client.connect(&ConnParam::default()).unwrap();
    let asked = wait(&server.channel, CmEventKind::ConnectRequest).id().clone();
    asked.attach_qp(Some(&theirs)).unwrap();
    asked.accept(None).unwrap();
    wait(&other, CmEventKind::Established);
    let (mine, theirs) = (mine.query(), theirs.query());
    assert_eq!((mine.sq_psn, mine.rq_psn), (theirs.rq_psn, theirs.sq_psn));
    assert_ne!(mine.sq_psn, mine.rq_psn);
}

fn rc_qp(host: &Host) -> Arc<Qp> {
    let context = host.devices().unwrap().remove(0).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4, None, 0).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let (send_cq, recv_cq) = (cq.clone(), cq);
    let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
    pd.create_qp(&init).unwrap()
}

/// Whatever else comes to QP1: nothing of it reaches a program, and the next one is served.
#[test]
fn messages_that_are_none() {
    let world = World::new();
    let mut server = Server::new(&world.victim, VICTIM);
    let mut clients = vec![Client::new(&world.good, PortSpace::Tcp, VICTIM)];
    world.serve(&mut server, &mut clients);
    let mut random = fastrand::Rng::with_seed(3);
    for number in 0..20_000 {
        let src = if random.bool() { GOOD } else { Ipv4Addr::from(0x0b00_0000 + number) };
        // A request in most bytes, with another attribute and damage, or nothing at all like it.
        let mut mad = world.forger.req(number, src);
        mad[17] = random.u8(0x0e..0x1d);
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..mad.len());
            mad[at] = random.u8(..);
        }
        if random.u8(..8) == 0 {
            random.fill(&mut mad);
        }
        world.inject(src, &mad);
        let path = path(src, VICTIM);
        let mut cut = sealed(&path, 0x8000, ROCE_PORT, &mad);
        cut.truncate(random.usize(..cut.len()));
        world.network.inject(path, 0x8000, &cut);
    }
    server.serve(usize::MAX);
    let mut more = vec![Client::new(&world.good, PortSpace::Udp, VICTIM)];
    more.push(Client::new(&world.good, PortSpace::Tcp, VICTIM));
    world.serve(&mut server, &mut more);
    clients.iter_mut().for_each(Client::go_on);
    assert_eq!(server.accepted.len(), 3);
}

/// Answers to what nobody asked, and ends of connections that there are not: right in every respect, with random IDs.
#[test]
fn answers_to_nothing() {
    let world = World::new();
    let mut server = Server::new(&world.victim, VICTIM);
    let mut clients = vec![Client::new(&world.good, PortSpace::Tcp, VICTIM)];
    world.serve(&mut server, &mut clients);
    while server.channel.try_next_event().unwrap().is_some() {}
    let mut random = fastrand::Rng::with_seed(4);
    let sent = world.network.traffic().sent;
    let mut before = 0;
    for number in 0..100_000 {
        let src = if random.bool() { GOOD } else { Ipv4Addr::from(0x0b00_0000 + number) };
        let mut mad = world.forger.req(number, src);
        random.fill(&mut mad[24..]);
        mad[17] = *random.choice(&ANSWERS).unwrap();
        world.inject(src, &mad);
        if number == 10_000 {
            before = resident();
        }
        if number % 100 == 0 {
            world.network.run_until(1_000_000, || false);
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
    assert!(server.channel.try_next_event().unwrap().is_none(), "a program hears of it");
    assert!(clients[0].channel.try_next_event().unwrap().is_none(), "a program hears of it");
    // Nobody is sent more than came from there; the good one answers what it is told.
    assert!(world.network.traffic().sent - sent <= 2 * 100_000);
    let mut more = vec![Client::new(&world.good, PortSpace::Tcp, VICTIM)];
    world.serve(&mut server, &mut more);
}

/// By UDP in real time, until the good client is served: the flood has another address and never stops.
#[test]
fn a_flood_by_udp() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = 11_000 + (std::process::id() % 8_000) as u16;
    let here = Ipv4Addr::LOCALHOST;
    let start = || {
        Host::start(Config {
            udp_port: Setting { value: port, source: Source::Default },
            interfaces: Setting { value: vec!["lo".into()], source: Source::Default },
            path: Setting { value: DataPath::Wire, source: Source::Default },
            ..Config::default()
        })
        .unwrap()
    };
    let (good, victim) = (start(), start());
    let mut server = Server::new(&victim, here);
    let forger = Forger::new(here);
    let there = Ipv4Addr::new(127, 0, 0, 2);
    let socket = UdpSocket::bind((there, 0)).unwrap();
    let from = socket.local_addr().unwrap().port();
    let path = path(there, here);
    let flood = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let packet = sealed(&path, from, port, &forger.req(number, there));
            // A full buffer of the receiver is what is meant to happen.
            let _ = socket.send_to(&packet, (here, port));
        }
    };
    flood(0..2_000);
    let mut client = Client::new(&good, PortSpace::Tcp, here);
    let start = Instant::now();
    for number in (2_000..u32::MAX).step_by(100) {
        flood(number..number + 100);
        server.serve(8);
        client.go_on();
        if client.done {
            eprintln!("served after {number} requests, {:?}", start.elapsed());
            return;
        }
        assert!(start.elapsed() < WATCHDOG, "the good client is not served");
    }
}
