//! The connection manager on a bad network: whatever is lost, repeated, reordered or damaged, both sides of a
//! connection end in states that agree, and say so in one event each.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_soft::cm::*;
use ironverbs_soft::sim::{Impairments, Network};
use ironverbs_soft::{Host, QpType};

use super::seeds;

const LONG: Duration = Duration::from_secs(2);
const CONNECTIONS: u32 = 6;

/// Virtual time in which everything has ended: retries, and the rest of the queue pairs.
const ETERNITY: u64 = 3_600_000_000_000;

#[derive(Default)]
struct Life {
    events: Vec<CmEventKind>,
    accepted: bool,
    /// It, or an earlier request of the same name, was accepted.
    ever: bool,
    disconnected: bool,
    id: Option<Arc<CmId>>,
}

struct Program {
    channel: Arc<EventChannel>,
    lives: HashMap<u32, Life>,
}

impl Program {
    fn new(host: &Host) -> Program {
        Program { channel: EventChannel::new(host).unwrap(), lives: HashMap::new() }
    }

    fn life(&mut self, id: &Arc<CmId>, name: u32) -> &mut Life {
        id.set_cookie(name as usize);
        let life = self.lives.entry(name).or_default();
        life.id.get_or_insert_with(|| id.clone());
        life
    }
}

/// Which connection it is, in its private data.
fn name(event: &CmEvent) -> Option<u32> {
    match event.param() {
        EventParam::Conn(param) => param.private_data.first_chunk().map(|b| u32::from_be_bytes(*b)),
        _ => None,
    }
}

fn client(program: &mut Program, random: &mut fastrand::Rng) {
    while let Ok(Some(event)) = program.channel.try_next_event() {
        let id = event.id().clone();
        let name = id.cookie() as u32;
        let life = program.life(&id, name);
        match event.kind() {
            CmEventKind::AddrResolved => id.resolve_route(LONG).unwrap(),
            CmEventKind::RouteResolved => {
                let private_data = name.to_be_bytes().to_vec();
                let param = ConnParam { private_data, qp_num: 1000 + name, ..ConnParam::default() };
                id.connect(&param).unwrap();
            }
            kind => life.events.push(kind),
        }
        if event.kind() == CmEventKind::ConnectResponse {
            match random.u8(..8) {
                0 => {
                    id.reject(b"no").unwrap();
                    life.disconnected = true;
                }
                _ => id.establish().unwrap(),
            }
        }
    }
}

fn server(program: &mut Program, random: &mut fastrand::Rng) {
    while let Ok(Some(event)) = program.channel.try_next_event() {
        let id = event.id().clone();
        if event.kind() != CmEventKind::ConnectRequest {
            let name = id.cookie() as u32;
            program.life(&id, name).events.push(event.kind());
            continue;
        }
        let name = name(&event).unwrap();
        // A peer that never heard an answer may ask again when this side has forgotten that it gave one.
        let mut ever = false;
        if let Some(before) = program.lives.remove(&name) {
            ever = before.ever;
            let ended = [
                CmEventKind::Rejected,
                CmEventKind::Unreachable,
                CmEventKind::Disconnected,
                CmEventKind::TimewaitExit,
            ];
            let over = before.events.last().is_some_and(|last| ended.contains(last));
            assert!(!before.accepted || over, "{name} asked twice: {:?}", before.events);
        }
        let life = program.life(&id, name);
        life.ever = ever;
        match random.u8(..8) {
            0 => id.reject(b"no").unwrap(),
            _ => {
                let param = ConnParam { qp_num: 2000 + name, ..ConnParam::default() };
                // The peer may have given up by now.
                life.accepted = id.accept(Some(&param)).is_ok();
                life.ever |= life.accepted;
            }
        }
    }
}

/// Ends what stands, from either side or both.
fn part(program: &mut Program, random: &mut fastrand::Rng) {
    for life in program.lives.values_mut() {
        if let Some(id) = life.id.as_ref().filter(|_| random.u8(..3) > 0) {
            life.disconnected |= id.disconnect().is_ok();
        }
    }
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let network = Network::new(seed);
    let hosts = [1, 2].map(|n| network.host(&[[10, 0, 0, n].into()]).unwrap());
    let [mut a, mut b] = [&hosts[0], &hosts[1]].map(Program::new);
    let listener = CmId::new(&b.channel, PortSpace::Tcp, Some(QpType::Rc)).unwrap();
    let to: SocketAddr = "10.0.0.2:4000".parse().unwrap();
    listener.bind(to).unwrap();
    listener.listen(4).unwrap();
    network.impair(Impairments {
        loss: random.f64() * 0.4,
        duplication: random.f64() * 0.3,
        reordering: random.f64() * 0.5,
        corruption: random.f64() * 0.1,
        reorder_by: 6_000_000_000,
        ..Impairments::default()
    });
    for name in 0..CONNECTIONS {
        let id = CmId::new(&a.channel, PortSpace::Tcp, None).unwrap();
        a.life(&id, name);
        id.resolve_addr(None, to, LONG).unwrap();
    }
    let end = network.now() + ETERNITY;
    let mut parted = random.u64(1_000_000..60_000_000_000);
    loop {
        client(&mut a, &mut random);
        server(&mut b, &mut random);
        if network.now() > parted {
            parted = u64::MAX;
            part(&mut a, &mut random);
            part(&mut b, &mut random);
        }
        if !network.step() {
            break;
        }
        assert!(network.now() < end, "seed {seed}: it does not end");
    }
    for name in 0..CONNECTIONS {
        check(seed, name, &a.lives[&name], b.lives.get(&name));
    }
    // Nobody but the programs has kept an id.
    let ids = [&a, &b].into_iter().flat_map(|program| program.lives.values());
    let ids: Vec<_> = ids.filter_map(|life| life.id.as_ref()).map(Arc::downgrade).collect();
    drop((a, b, listener));
    let left = ids.iter().filter(|id| id.upgrade().is_some()).count();
    assert_eq!(left, 0, "seed {seed}: of {} ids some are left", ids.len());
}

fn count(life: &Life, kind: CmEventKind) -> usize {
    life.events.iter().filter(|other| **other == kind).count()
}

fn check(seed: u64, name: u32, active: &Life, passive: Option<&Life>) {
    use CmEventKind::*;
    let say =
        || format!("seed {seed}, {name}: {:?}, {:?}", active.events, passive.map(|p| &p.events));
    let first = active.events.first().copied();
    assert!(matches!(first, Some(ConnectResponse | Rejected | Unreachable)), "{}", say());
    for life in [Some(active), passive].into_iter().flatten() {
        for kind in
            [ConnectResponse, Established, Rejected, Unreachable, Disconnected, TimewaitExit]
        {
            assert!(count(life, kind) <= 1, "{kind:?}: {}", say());
        }
        // Nothing after the last rest, and no rest without an end.
        if let Some(at) = life.events.iter().position(|kind| *kind == TimewaitExit) {
            assert_eq!(at + 1, life.events.len(), "{}", say());
            assert_eq!(life.events[at - 1], Disconnected, "{}", say());
        }
        assert!(count(life, Rejected) + count(life, Disconnected) <= 1, "{}", say());
    }
    if first == Some(ConnectResponse) {
        assert!(passive.is_some_and(|life| life.ever), "accepted by nobody: {}", say());
    }
    if let Some(passive) = passive.filter(|life| life.accepted) {
        let outcomes = [Established, Rejected, Unreachable, Disconnected];
        let some = passive.events.iter().any(|kind| outcomes.contains(kind));
        assert!(some || passive.disconnected, "never told: {}", say());
        // Who has disconnected hears of it, unless it was never connected.
        if active.disconnected
            && count(active, ConnectResponse) == 1
            && count(passive, Established) == 1
        {
            assert!(count(passive, Disconnected) == 1, "{}", say());
        }
    }
}

#[test]
fn both_sides_agree_on_a_bad_network() {
    for seed in seeds() {
        run(seed);
    }
}
