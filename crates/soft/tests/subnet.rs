//! Two hosts with a cable between them, each a network namespace: who is reachable, who comes, who goes. Needs root and
//! iproute2; without them these tests fail and say so.

mod child;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use child::{WATCHDOG, say};
use ironverbs_soft::cm::*;
use ironverbs_soft::*;

/// In a run of this program inside: the other host's namespace.
const INSIDE: &str = "IN_NAMESPACE_BESIDE";

const HERE: &str = "10.78.0.1";
const THERE: &str = "10.78.0.2";
const THERE6: &str = "fd78::2";

struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Namespace {
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        Namespace(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("needs `ip` of iproute2");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments} (needs root): {why}");
}

/// Runs `body` on one of two hosts; it is given the name of the other.
fn beside(test: &str, body: impl FnOnce(&str)) {
    beside_with(test, &[], body);
}

/// As [`beside`], both hosts with these settings.
fn beside_with(test: &str, settings: &[(&str, &str)], body: impl FnOnce(&str)) {
    if let Ok(other) = std::env::var(INSIDE) {
        return body(&other);
    }
    let name = |end| format!("ironverbs-subnet-{}-{test}-{end}", std::process::id());
    let [a, b] = ["a", "b"].map(|end| Namespace::new(name(end)));
    ip(&format!("-n {} link add v type veth peer name v netns {}", a.0, b.0));
    for (end, v4, v6) in [(&a.0, HERE, "fd78::1"), (&b.0, THERE, THERE6)] {
        ip(&format!("-n {end} link set v addrgenmode none"));
        ip(&format!("-n {end} address add {v4}/24 dev v"));
        ip(&format!("-n {end} address add {v6}/64 dev v nodad"));
        ip(&format!("-n {end} link set v up"));
    }
    let mut child = inside(&a.0, test, INSIDE, &b.0);
    child.envs(settings.iter().copied());
    let output = child.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// This program in a namespace.
fn inside(namespace: &str, test: &str, variable: &str, value: &str) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", namespace])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, value);
    command
}

/// A process of the other host that has its device open. Killed when dropped.
struct Peer(std::process::Child);

const ROLE: &str = "PEER_IN_NAMESPACE_BESIDE";

impl Peer {
    fn start(namespace: &str) -> Peer {
        Peer::start_with(namespace, &[])
    }

    fn start_with(namespace: &str, settings: &[(&str, &str)]) -> Peer {
        let mut command = inside(namespace, "peer_process", ROLE, "1");
        command.envs(settings.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap());
        let ready = std::io::BufRead::lines(lines).map_while(Result::ok);
        assert!(ready.into_iter().any(|line| line.contains("@open")), "the peer does not start");
        Peer(child)
    }

    fn kill(mut self) -> Instant {
        let at = Instant::now();
        self.0.kill().unwrap();
        at
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn peer_process() {
    if std::env::var(ROLE).is_ok() {
        let _context = open();
        say("open");
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

fn open() -> Arc<Context> {
    let host = Host::start(Config::load().unwrap()).unwrap();
    let start = Instant::now();
    // An interface that was just set up passes packets a moment later.
    let device = loop {
        let devices = host.devices().unwrap();
        if let Some(device) = devices.into_iter().find(|device| device.interface() == "v") {
            break device;
        }
        assert!(start.elapsed() < WATCHDOG, "v does not come up");
        std::thread::sleep(Duration::from_millis(2));
    };
    let context = device.open().unwrap();
    nonblocking(&context);
    context
}

fn nonblocking(context: &Context) {
    // SAFETY: the context holds the descriptor for the length of the call.
    let fd = unsafe { BorrowedFd::borrow_raw(context.async_fd()) };
    UnixStream::from(fd.try_clone_to_owned().unwrap()).set_nonblocking(true).unwrap();
}

/// Waits for an event of a GID; what comes before it for the same GID is a failure.
#[track_caller]
fn event(context: &Context, kind: EventKind, gid: Gid) -> Instant {
    let start = Instant::now();
    loop {
        match context.next_async_event() {
            Ok(AsyncEvent { kind: is, source: EventSource::Gid(of) }) if of == gid => {
                assert_eq!(is, kind);
                return Instant::now();
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
        assert!(start.elapsed() < WATCHDOG, "no {kind:?} of {gid}");
    }
}

#[track_caller]
fn unreachable(context: &Context, gid: Gid) {
    let answer = context.gid_reachable(0, &gid, Some(Duration::from_millis(300)));
    assert!(matches!(answer, Err(ReachError::NoPath { .. })), "{answer:?}");
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

#[test]
fn another_host_comes_and_goes() {
    beside("another_host_comes_and_goes", |other| {
        let context = open();
        let (there, there6) = (gid(THERE), gid(THERE6));
        unreachable(&context, there);
        unreachable(&context, gid("10.78.0.9"));
        unreachable(&context, gid("192.0.2.1"));
        let both = SmRegistration::new(SmEvents::UGID, &[there, there6]).unwrap();
        context.register_sm_events(both.clone()).unwrap();
        for round in 0..3 {
            let peer = Peer::start(other);
            event(&context, EventKind::GidAvail, there);
            context.gid_reachable(1, &there, None).unwrap();
            context.gid_reachable(0, &there6, None).unwrap();
            let killed = peer.kill();
            let told = event(&context, EventKind::GidUnavail, there);
            eprintln!("round {round}: told {:?} after the kill", told - killed);
            unreachable(&context, there);
            unreachable(&context, there6);
        }
        let _peer = Peer::start(other);
        event(&context, EventKind::GidAvail, there);
        // A host that goes without a word.
        ip(&format!("-n {other} link set v down"));
        event(&context, EventKind::GidUnavail, there);
        ip(&format!("-n {other} link set v up"));
        // IPv6 addresses go with the link.
        ip(&format!("-n {other} address add {THERE6}/64 dev v nodad"));
        event(&context, EventKind::GidAvail, there);
        context.gid_reachable(0, &there, None).unwrap();
        // An address that is taken away from a host that stays.
        ip(&format!("-n {other} address del {THERE}/24 dev v"));
        event(&context, EventKind::GidUnavail, there);
        unreachable(&context, there);
        context.gid_reachable(0, &there6, None).unwrap();
        context.unregister_sm_events(&both).unwrap();
        assert!(context.unregister_sm_events(&both).is_err());
    });
}

#[test]
fn addresses_of_this_host_come_and_go() {
    beside("addresses_of_this_host_come_and_go", |_| {
        let context = open();
        let all = SmRegistration::new(SmEvents::UGID_ALL, &[]).unwrap();
        context.register_sm_events(all).unwrap();
        let fresh = gid("10.78.7.7");
        unreachable(&context, fresh);
        ip("address add 10.78.7.7/24 dev v");
        event(&context, EventKind::GidAvail, fresh);
        context.gid_reachable(1, &fresh, None).unwrap();
        ip("address del 10.78.7.7/24 dev v");
        event(&context, EventKind::GidUnavail, fresh);
        unreachable(&context, fresh);
        ip("link set v down");
        event(&context, EventKind::GidUnavail, gid(HERE));
        unreachable(&context, gid(HERE));
        unreachable(&context, gid(THERE));
        ip("link set v up");
        event(&context, EventKind::GidAvail, gid(HERE));
        ip("link del v");
        event(&context, EventKind::GidUnavail, gid(HERE));
        unreachable(&context, gid(HERE));
    });
}

#[test]
fn ports_of_an_infiniband_subnet() {
    let hosts = format!("{HERE},{THERE}");
    let settings = [("IRONVERBS_LINK_LAYER", "InfiniBand"), ("IRONVERBS_HOSTS", hosts.as_str())];
    beside_with("ports_of_an_infiniband_subnet", &settings, |other| {
        let context = open();
        // The port's GUID is made of its address.
        let there = gid("fe80::249:5250:a4e:2");
        unreachable(&context, there);
        unreachable(&context, gid("fe80::249:5250:a4e:9"));
        let registration = SmRegistration::new(SmEvents::UGID, &[there]).unwrap();
        context.register_sm_events(registration).unwrap();
        let peer = Peer::start(other);
        event(&context, EventKind::GidAvail, there);
        context.gid_reachable(1, &there, None).unwrap();
        let own = context.gid_table(1)[0].gid;
        context.gid_reachable(1, &own, None).unwrap();
        let path = context.path_record(&there).unwrap();
        assert_eq!((path.sgid, path.dgid), (own, there));
        peer.kill();
        event(&context, EventKind::GidUnavail, there);
        unreachable(&context, there);
    });
}

/// Waits until the port has that subnet manager.
#[track_caller]
fn managed_by(context: &Context, lid: u16) {
    let start = Instant::now();
    while context.port(1).unwrap().sm_lid != lid {
        assert!(start.elapsed() < WATCHDOG, "no manager at LID {lid}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a context is told that another manages the subnet, and that it is to be told anew what the one before knew.
#[track_caller]
fn changes_hands(context: &Context) {
    let start = Instant::now();
    let mut left = vec![EventKind::SmChange, EventKind::ClientReregister];
    while !left.is_empty() {
        match context.next_async_event() {
            Ok(AsyncEvent { kind, source: EventSource::Port(1) }) => left.retain(|k| *k != kind),
            Ok(event) => panic!("{event:?}"),
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
        assert!(start.elapsed() < WATCHDOG, "no {left:?}");
    }
}

/// Tells how many lookups there are in a second: each asked for, and known.
fn rates(context: &Context, gid: &Gid) {
    const ROUNDS: u32 = 500;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        context.gid_reachable(1, gid, None).unwrap();
    }
    let cold = start.elapsed() / ROUNDS;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        context.path_record(gid).unwrap();
    }
    eprintln!("a path that is asked for: {cold:?}, that is known: {:?}", start.elapsed() / ROUNDS);
}

#[test]
fn a_subnet_outlives_its_manager() {
    let hosts = format!("{HERE},{THERE}");
    let settings = [("IRONVERBS_LINK_LAYER", "InfiniBand"), ("IRONVERBS_HOSTS", hosts.as_str())];
    beside_with("a_subnet_outlives_its_manager", &settings, |other| {
        let context = open();
        managed_by(&context, 1);
        let there = gid("fe80::249:5250:a4e:2");
        let all = SmRegistration::new(SmEvents::ALL, &[]).unwrap();
        context.register_sm_events(all).unwrap();
        // One that nothing else is told.
        let aside = context.device().open().unwrap();
        nonblocking(&aside);
        for round in 0..2 {
            let peer = Peer::start_with(other, &[("IRONVERBS_SUBNET_MANAGER", "9")]);
            event(&context, EventKind::GidAvail, there);
            managed_by(&context, 2);
            changes_hands(&aside);
            context.gid_reachable(1, &there, None).unwrap();
            rates(&context, &there);
            let killed = peer.kill();
            // With the host goes whoever would have told.
            let told = event(&context, EventKind::GidUnavail, there);
            eprintln!("round {round}: told {:?} after the kill", told - killed);
            managed_by(&context, 1);
            changes_hands(&aside);
            let answer = context.gid_reachable(1, &there, None);
            assert!(matches!(answer, Err(ReachError::NoPath { .. })), "{answer:?}");
        }
    });
}

/// The next event of connection management.
#[track_caller]
fn happens(channel: &EventChannel) -> CmEventKind {
    let start = Instant::now();
    loop {
        if let Some(event) = channel.try_next_event().unwrap() {
            return event.kind();
        }
        assert!(start.elapsed() < WATCHDOG, "no event");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A client may be quicker than its server: a port of the list that the manager has not found yet is waited for.
#[test]
fn a_route_to_a_host_that_is_just_coming() {
    let hosts = format!("{HERE},{THERE}");
    let settings = [("IRONVERBS_LINK_LAYER", "InfiniBand"), ("IRONVERBS_HOSTS", hosts.as_str())];
    beside_with("a_route_to_a_host_that_is_just_coming", &settings, |other| {
        let context = open();
        managed_by(&context, 1);
        let there = gid("fe80::249:5250:a4e:2");
        let channel = EventChannel::new(context.host()).unwrap();
        for _ in 0..4 {
            let id = CmId::new(&channel, PortSpace::Tcp, None).unwrap();
            id.resolve_addr(None, format!("{THERE}:7").parse().unwrap(), WATCHDOG).unwrap();
            assert_eq!(happens(&channel), CmEventKind::AddrResolved);
            let peer = Peer::start(other);
            loop {
                let start = Instant::now();
                id.resolve_route(WATCHDOG).unwrap();
                if happens(&channel) == CmEventKind::RouteResolved {
                    break;
                }
                // On a busy machine it may take longer than that.
                assert!(start.elapsed() > Duration::from_millis(1900), "refused at once");
            }
            id.destroy().unwrap();
            drop(peer);
            let start = Instant::now();
            while context.gid_reachable(1, &there, Some(Duration::from_millis(300))).is_ok() {
                assert!(start.elapsed() < WATCHDOG, "it stays reachable");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // One that does not come is told.
        let id = CmId::new(&channel, PortSpace::Tcp, None).unwrap();
        id.resolve_addr(None, format!("{THERE}:7").parse().unwrap(), WATCHDOG).unwrap();
        assert_eq!(happens(&channel), CmEventKind::AddrResolved);
        id.resolve_route(Duration::from_millis(200)).unwrap();
        assert_eq!(happens(&channel), CmEventKind::RouteError);
    });
}

#[test]
fn nobody_answers_on_a_subnet_without_a_manager() {
    let hosts = format!("{HERE},{THERE}");
    let settings = [
        ("IRONVERBS_LINK_LAYER", "InfiniBand"),
        ("IRONVERBS_HOSTS", hosts.as_str()),
        ("IRONVERBS_SUBNET_MANAGER", "off"),
    ];
    beside_with("nobody_answers_on_a_subnet_without_a_manager", &settings, |other| {
        let context = open();
        let peer = Peer::start(other);
        let there = gid("fe80::249:5250:a4e:2");
        let answer = context.gid_reachable(1, &there, Some(Duration::from_millis(300)));
        assert!(matches!(answer, Err(ReachError::Io(_))), "{answer:?}");
        assert_eq!(context.port(1).unwrap().sm_lid, 0);
        drop(peer);
    });
}

/// What a port says to a Set of its PortInfo that names another subnet manager, with a key; None: nothing.
fn set_manager(port: &MadPort, agent: u32, key: u64, manager: u16) -> Option<ReceivedMad> {
    let own = port.context().port(1).unwrap().lid;
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 1, 1, 2]);
    (mad[15], mad[17], mad[23]) = (7, 0x15, 1);
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    mad[80..82].copy_from_slice(&own.to_be_bytes());
    mad[82..84].copy_from_slice(&manager.to_be_bytes());
    let ah = AhAttr { dlid: own, port_num: 1, ..AhAttr::default() };
    let to = MadAddress { ah, ..MadAddress::default() };
    port.send(agent, &to, &mad, 200, 0).unwrap();
    let start = Instant::now();
    loop {
        if let Some(answer) = port.next(256).unwrap() {
            return (answer.status == 0).then_some(answer);
        }
        assert!(start.elapsed() < WATCHDOG, "neither answer nor timeout");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_does_not_know_the_key_changes_no_port() {
    let settings = [
        ("IRONVERBS_LINK_LAYER", "InfiniBand"),
        ("IRONVERBS_HOSTS", HERE),
        ("IRONVERBS_M_KEY", "0x1234"),
    ];
    beside_with("who_does_not_know_the_key_changes_no_port", &settings, |_| {
        let context = open();
        // Ours knows it.
        managed_by(&context, 1);
        let port = context.open_mads().unwrap();
        let agent = port.register(0, 0x01, 1, 0, false).unwrap();
        for key in [0, 0x1235] {
            assert!(set_manager(&port, agent, key, 9).is_none(), "answered with {key:#x}");
            assert_eq!(context.port(1).unwrap().sm_lid, 1);
        }
        let answer = set_manager(&port, agent, 0x1234, 1).expect("an answer");
        assert_eq!(answer.mad[64..72], 0x1234_u64.to_be_bytes());
        // Both were counted.
        assert_eq!(answer.mad[64 + 44..64 + 46], [0, 2]);
    });
}
