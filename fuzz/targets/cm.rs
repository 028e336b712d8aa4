//! A connection manager under any sequence of MADs, calls and time.
//!
//! Whatever comes: no panic, no MAD of ours that is malformed or goes to a stranger, no event that
//! does not fit what came before, never more connections than allowed, and in the end none.
#![no_main]

use ironverbs_mad::{
    Accept, Cm, Config, ConnId, Connect, Event, Instant, LocalAddr, Resolve, SidrAnswer, SidrId,
};
use ironverbs_wire::mad::cm::{IpHeader, Message, PortSpace, RejReason, ServiceId, SidrStatus};
use ironverbs_wire::{Gid, Path};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;

const LIMIT: usize = 64;
const MS: u64 = 1_000_000;
/// That of every QP of ours, and of the DREQ in a capture.
const QPN: u32 = 0x11;
/// Those that the captures use.
const TCP: [ServiceId; 2] =
    [ServiceId::of_port(PortSpace::Tcp, 7174), ServiceId::of_port(PortSpace::Tcp, 7471)];
const UDP: ServiceId = ServiceId::of_port(PortSpace::Udp, 7174);

/// From us to the peer, with the addresses of the captures.
fn path() -> Path {
    let gid = |last: u8| Gid::from_ipv4([10, 90, 0, last].into());
    Path { src: gid(2), dst: gid(1), hop_limit: 64, ..Path::default() }
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Phase {
    Asking,
    Asked,
    Replied,
    Accepted,
    Up,
    Down,
}

struct World {
    cm: Cm,
    now: Instant,
    conns: Vec<(ConnId, Phase)>,
    sidrs: Vec<SidrId>,
    /// Transaction of the last message about each of our IDs.
    tids: HashMap<u32, u64>,
}

impl World {
    fn new() -> Self {
        let config = Config { max_connections: LIMIT, max_transmits: 16, ..Config::new(1, 10, 1) };
        let mut cm = Cm::new(config);
        for service in [TCP[0], TCP[1], UDP] {
            cm.listen(service, LocalAddr::Any, 8).expect("nobody else listens");
        }
        let (conns, sidrs, tids) = Default::default();
        Self { cm, now: Instant(1), conns, sidrs, tids }
    }

    fn settle(&mut self) {
        while let Some(transmit) = self.cm.poll_transmit() {
            assert_eq!((transmit.path.src, transmit.path.dst), (path().src, path().dst));
            let (tid, message) = Message::parse(&transmit.mad).expect("a message of ours");
            assert_eq!(message.emit(tid), transmit.mad);
            if let Some(ours) = transmit.mad[24..].first_chunk() {
                self.tids.insert(u32::from_be_bytes(*ours), tid);
            }
        }
        while let Some(event) = self.cm.poll_event() {
            self.hear(event);
        }
        assert!(self.cm.len() <= LIMIT);
    }

    fn hear(&mut self, event: Event) {
        let text = format!("{event:?}");
        let (conn, from, to): (_, &[Phase], _) = match event {
            Event::Request(request) => {
                assert!(!self.conns.iter().any(|(conn, _)| *conn == request.conn));
                self.conns.push((request.conn, Phase::Asked));
                return;
            }
            Event::Displaced { conn } => {
                // What a program has not looked at; here it has seen nothing yet.
                if self.conns.contains(&(conn, Phase::Asked)) {
                    self.cm.abandon(conn);
                    self.conns.retain(|(other, _)| *other != conn);
                }
                return;
            }
            Event::SidrDisplaced { sidr } => {
                self.cm.sidr_abandon(sidr);
                return self.sidrs.retain(|other| *other != sidr);
            }
            Event::SidrRequest(request) => return self.sidrs.push(request.sidr),
            Event::SidrReply(reply) => return self.sidrs.retain(|sidr| *sidr != reply.sidr),
            Event::SidrFailed { sidr, .. } => return self.sidrs.retain(|other| *other != sidr),
            Event::Reply(reply) => (reply.conn, &[Phase::Asking], Some(Phase::Replied)),
            Event::Established { conn, .. } => (conn, &[Phase::Accepted], Some(Phase::Up)),
            Event::Rejected { conn, .. } | Event::Failed { conn, .. } => {
                (conn, &[Phase::Asking, Phase::Asked, Phase::Replied, Phase::Accepted], None)
            }
            Event::Disconnected { conn, .. } => (conn, &[Phase::Up], Some(Phase::Down)),
            Event::TimewaitExit { conn } => (conn, &[Phase::Down], None),
        };
        let known = self.conns.iter().position(|(known, _)| *known == conn);
        let place = known.unwrap_or_else(|| panic!("{text} of what the program does not know"));
        assert!(from.contains(&self.conns[place].1), "{text} in {:?}", self.conns[place].1);
        match to {
            Some(phase) => self.conns[place].1 = phase,
            None => drop(self.conns.remove(place)),
        }
    }

    fn mad(&mut self, bytes: &[u8], pick: Option<u8>) {
        let mut mad = bytes.to_vec();
        if let Some(pick) = pick {
            mad.resize(256, 0);
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[24..28].copy_from_slice(&(0x1000 + u32::from(pick & 3)).to_be_bytes());
            if !self.conns.is_empty() {
                let (conn, _) = self.conns[usize::from(pick >> 2) % self.conns.len()];
                let id = conn.comm_id();
                if mad[17] != 0x10 {
                    mad[28..32].copy_from_slice(&id.to_be_bytes());
                    let tid = self.tids.get(&id).copied().unwrap_or_default();
                    mad[8..16].copy_from_slice(&tid.to_be_bytes());
                }
            }
        }
        let from = Path { src: path().dst, dst: path().src, ..path() };
        self.cm.handle_mad(self.now, &from, 0xffff, &mad);
    }

    fn call(&mut self, call: u8, pick: u8) {
        let now = self.now;
        let ip = IpHeader { src_port: 1, src: path().src.to_ip(), dst: path().dst.to_ip() };
        match call % 10 {
            8 => {
                let connect = Connect { ip: Some(ip), ..Connect::new(path(), TCP[0], 1, QPN) };
                if let Ok(conn) = self.cm.connect(now, &connect) {
                    self.conns.push((conn, Phase::Asking));
                }
            }
            9 if self.sidrs.is_empty() || pick & 1 == 0 => {
                let resolve = Resolve { ip: Some(ip), ..Resolve::new(path(), UDP) };
                self.sidrs.extend(self.cm.resolve(now, &resolve).ok());
            }
            9 => {
                let sidr = self.sidrs.remove(usize::from(pick) % self.sidrs.len());
                let status = SidrStatus::VALID;
                let answer = SidrAnswer { status, qpn: 0x300, qkey: 1, private_data: &[] };
                if pick & 2 == 0 || self.cm.sidr_answer(now, sidr, &answer).is_err() {
                    self.cm.sidr_release(now, sidr);
                }
            }
            call if !self.conns.is_empty() => {
                let place = usize::from(pick) % self.conns.len();
                self.call_on(call, place);
            }
            _ => {}
        }
    }

    fn call_on(&mut self, call: u8, place: usize) {
        let now = self.now;
        let (conn, phase) = self.conns[place];
        let reason = RejReason::ConsumerReject;
        // That a call is taken is told by what the program knows, and by nothing else.
        let (taken, expected, next) = match call {
            0 | 1 => {
                let accept = Accept::new(2, QPN);
                let taken = self.cm.accept(now, conn, &accept).is_ok();
                (taken, phase == Phase::Asked, Some(Phase::Accepted))
            }
            2 | 3 => {
                let taken = self.cm.establish(conn, &[]).is_ok();
                (taken, phase == Phase::Replied, Some(Phase::Up))
            }
            4 => {
                let taken = self.cm.reject(now, conn, reason, &[], &[]).is_ok();
                (taken, matches!(phase, Phase::Asked | Phase::Replied), None)
            }
            5 => {
                let taken = self.cm.disconnect(now, conn, &[]).is_ok();
                (taken, matches!(phase, Phase::Up | Phase::Down), Some(phase))
            }
            6 => {
                self.cm.release(now, conn);
                (true, true, None)
            }
            _ => {
                self.cm.communication_established(conn);
                self.cm.claim(conn);
                return;
            }
        };
        assert_eq!(taken, expected, "call {call} in {phase:?}");
        match next {
            _ if !taken => {}
            Some(phase) => self.conns[place].1 = phase,
            None => drop(self.conns.remove(place)),
        }
    }

    fn end(mut self) {
        for (conn, _) in std::mem::take(&mut self.conns) {
            self.cm.release(self.now, conn);
        }
        for sidr in std::mem::take(&mut self.sidrs) {
            self.cm.sidr_release(self.now, sidr);
        }
        for _ in 0..100_000 {
            self.settle();
            let Some(next) = self.cm.next_timeout() else { break };
            self.now = self.now.max(next);
            self.cm.handle_timeout(self.now);
        }
        assert!(self.cm.is_empty() && self.cm.next_timeout().is_none(), "{:?}", self.cm);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut world = World::new();
    let mut rest = data;
    while let Some((&[tag, value], after)) = rest.split_first_chunk() {
        rest = after;
        match tag & 7 {
            // A MAD, whole or made to be about a connection that exists.
            0..=3 => {
                let (mad, after) = rest.split_at(rest.len().min(256));
                rest = after;
                world.mad(mad, (tag & 3 != 0).then_some(value));
            }
            4 => {
                world.now = world.now.after(u64::from(value) * 100 * MS);
                world.cm.handle_timeout(world.now);
            }
            _ => world.call(tag >> 3, value),
        }
        world.settle();
    }
    world.end();
});
