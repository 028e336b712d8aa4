//! Peers that mean harm, or nothing.

use std::collections::VecDeque;

use ironverbs_mad::{
    Accept, Cm, Config, Connect, ConnectError, Event, Instant, LocalAddr, exponential,
};
use ironverbs_wire::mad::cm::{
    Drep, Dreq, Message, Mra, Rej, RejReason, Rep, Req, Responded, Rtu, SidrRep, SidrStatus,
};
use ironverbs_wire::{Gid, Path};

use crate::support::{CLIENT, Faults, GUIDS, MS, Rng, SERVER, SERVICE, World, gid, path, request};

const NOW: Instant = Instant(1);

/// REQs as a hostile host makes them: of any number of senders.
fn forged_req(number: u32, template: &Req) -> (Path, Req) {
    let src = Gid::from_ipv4((0x0b00_0000 + number).into());
    let mut req = *template;
    req.local_comm_id = number | 0x8000_0000;
    req.local_ca_guid = u64::from(number);
    req.local_qpn = number & 0xff_ffff | 2;
    req.primary.local_gid = src;
    req.private_data[16..20].copy_from_slice(&src.0[12..]);
    (Path { src, ..path(CLIENT) }, req)
}

fn template() -> Req {
    let mut cm = Cm::new(Config::new(0, 0, 1));
    cm.connect(NOW, &request(CLIENT, 0x100)).unwrap();
    match Message::parse(&cm.poll_transmit().unwrap().mad) {
        Ok((_, Message::Req(req))) => req,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hundred_thousand_requests() {
    let template = template();
    let mut cm = Cm::new(Config::new(2, 10, 5));
    let listener = cm.listen(SERVICE, LocalAddr::Any, 32).unwrap();
    for number in 0..100_000 {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
    }
    assert_eq!(cm.len(), 32);
    assert_eq!(cm.counters().over_limit, 100_000 - 32);
    let mut first = None;
    while let Some(Event::Request(request)) = cm.poll_event() {
        assert_eq!(request.listener, listener);
        first.get_or_insert(request.conn);
    }
    // Each that the program takes makes room for one.
    cm.claim(first.unwrap());
    cm.claim(first.unwrap());
    for number in 200_000..200_010 {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
    }
    assert_eq!(cm.len(), 33);
    cm.reject(NOW, first.unwrap(), RejReason::ConsumerReject, &[], &[]).unwrap();
    assert!(cm.poll_event().is_some());
    assert!(cm.poll_event().is_none());
}

/// A server that is flooded for two minutes, and reads eight requests in the time in which a thousand come. One good client.
struct Flooded {
    server: Cm,
    client: Cm,
    /// What lives at the addresses of the flood.
    others: Option<Cm>,
    now: Instant,
    heard: usize,
    waiting: VecDeque<Event>,
}

impl Flooded {
    fn new(others: Option<Cm>) -> Self {
        let mut server = Cm::new(Config::new(2, 10, 5));
        server.listen(SERVICE, LocalAddr::Any, 32).unwrap();
        let client = Cm::new(Config::new(1, 10, 6));
        Self { server, client, others, now: NOW, heard: 0, waiting: VecDeque::new() }
    }

    /// Everybody hears what the others have to say, until there is nothing.
    fn exchange(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(sent) = self.client.poll_transmit() {
                quiet = false;
                self.server.handle_mad(self.now, &sent.path, 0xffff, &sent.mad);
            }
            while let Some(sent) = self.server.poll_transmit() {
                quiet = false;
                if sent.path.dst == gid(CLIENT) {
                    self.client.handle_mad(self.now, &sent.path, 0xffff, &sent.mad);
                } else if let Some(others) = &mut self.others {
                    others.handle_mad(self.now, &sent.path, 0xffff, &sent.mad);
                }
            }
            while let Some(sent) = self.others.as_mut().and_then(Cm::poll_transmit) {
                quiet = false;
                self.server.handle_mad(self.now, &sent.path, 0xffff, &sent.mad);
            }
            self.waiting.extend(std::iter::from_fn(|| self.server.poll_event()));
            if quiet {
                return;
            }
        }
    }

    /// The program takes eight requests, and refuses those that are not the good client's.
    fn serve(&mut self) {
        for _ in 0..8 {
            let Some(event) = self.waiting.pop_front() else { return };
            let Event::Request(request) = event else { continue };
            self.server.claim(request.conn);
            if request.path.dst == gid(CLIENT) {
                self.heard += 1;
                let accept = Accept::new(GUIDS[SERVER], 0x200);
                self.server.accept(self.now, request.conn, &accept).unwrap();
            } else {
                let reason = RejReason::ConsumerReject;
                self.server.reject(self.now, request.conn, reason, &[], &[]).unwrap();
            }
        }
    }

    /// `source`: the address of the flood's n-th packet. The backlog is full when the client comes.
    fn run(&mut self, source: impl Fn(u32) -> u32) {
        let template = template();
        let mut conn = None;
        for number in 0..120_000 {
            let (mut path, mut req) = forged_req(number, &template);
            path.src = Gid::from_ipv4(source(number).into());
            req.primary.local_gid = path.src;
            req.private_data[16..20].copy_from_slice(&path.src.0[12..]);
            self.server.handle_mad(self.now, &path, 0xffff, &Message::Req(req).emit(number.into()));
            if number % 1_000 == 900 {
                self.serve();
                self.now = self.now.after(1_000 * MS);
            }
            if number == 2_999 {
                conn = Some(self.client.connect(self.now, &request(CLIENT, 0x100)).unwrap());
            }
            // The flood is so quick that in a second nobody else's packet comes in between more than once.
            if number % 1_000 == 999 {
                self.server.handle_timeout(self.now);
                self.client.handle_timeout(self.now);
                self.exchange();
            }
            assert!(self.server.len() <= 32 + Config::new(2, 10, 5).max_lingering);
            if let Some(Event::Reply(reply)) = self.client.poll_event() {
                assert_eq!(Some(reply.conn), conn);
                self.client.establish(reply.conn, &[]).unwrap();
            }
        }
        assert_eq!(self.heard, 1, "{:?}", self.server.counters());
        assert_eq!(self.server.counters().proven.min(1), 1);
    }
}

/// The way back to a sender.
fn from_here(path: &Path) -> Path {
    Path { src: path.dst, dst: path.src, ..*path }
}

#[test]
fn a_flood_of_forged_senders_does_not_keep_a_good_one_out() {
    Flooded::new(None).run(|number| 0x0b00_0000 + number);
}

/// Who has the address it sends from can prove that as well as the good one.
#[test]
fn a_flood_of_one_host_does_not_keep_a_good_one_out() {
    Flooded::new(Some(Cm::new(Config::new(3, 10, 7)))).run(|_| 0x0b00_0001);
}

#[test]
fn a_proof_is_the_answer_to_the_question_that_was_put() {
    let template = template();
    let mut cm = Cm::new(Config::new(2, 10, 5));
    cm.listen(SERVICE, LocalAddr::Any, 1).unwrap();
    let ask = |cm: &mut Cm, number| {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
        (path, cm.poll_transmit())
    };
    assert_eq!(ask(&mut cm, 1).1, None);
    let (path, asked) = ask(&mut cm, 2);
    let asked = asked.unwrap();
    assert_eq!((asked.path.src, asked.path.dst), (path.dst, path.src));
    let (tid, Message::SidrReq(question)) = Message::parse(&asked.mad).unwrap() else { panic!() };
    let answer = SidrRep {
        request_id: question.request_id,
        status: SidrStatus::UNSUPPORTED,
        info_len: 0,
        qpn: 0,
        service_id: question.service_id,
        qkey: 0,
        info: [0; SidrRep::INFO],
        private_data: [0; SidrRep::PRIVATE_DATA],
    };
    let mut say = |path: &Path, tid: u64, answer: SidrRep| {
        cm.handle_mad(NOW, path, 0xffff, &Message::SidrRep(answer).emit(tid));
        let admitted = ask(&mut cm, 2).1.is_none();
        (cm.counters().proven, admitted)
    };
    assert_eq!(say(&path, tid ^ 1, answer), (0, false));
    let other = SidrRep { request_id: answer.request_id ^ 1, ..answer };
    assert_eq!(say(&path, tid, other), (0, false));
    let (elsewhere, _) = forged_req(3, &template);
    assert_eq!(say(&elsewhere, tid, answer), (0, false));
    assert_eq!(say(&path, tid, answer), (1, true));
    // It was good for one address alone.
    assert!(ask(&mut cm, 3).1.is_some());
    // Who has the address has taken a stranger's place; nobody takes his, nor he that of another of his.
    assert_eq!((cm.len(), cm.counters().displaced), (1, 1));
    assert!(
        matches!(cm.poll_event(), Some(Event::Request(asked)) if asked.path == from_here(&path))
    );
    assert!(cm.poll_event().is_none());
}

/// Connections that a program accepts and whose peers never say that they are ready.
#[test]
fn half_open_connections_are_bounded() {
    let template = template();
    let config = Config { max_half_open: 16, ..Config::new(2, 10, 5) };
    let mut cm = Cm::new(config);
    cm.listen(SERVICE, LocalAddr::Any, 1_000).unwrap();
    for number in 0..10_000 {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
        while let Some(Event::Request(request)) = cm.poll_event() {
            cm.accept(NOW, request.conn, &Accept::new(1, 0x200)).unwrap();
        }
        while cm.poll_transmit().is_some() {}
    }
    assert_eq!(cm.len(), 16);
    // They end by themselves, however long their senders want them to be kept.
    let mut now = NOW;
    while let Some(next) = cm.next_timeout() {
        now = next;
        cm.handle_timeout(now);
        while cm.poll_transmit().is_some() || cm.poll_event().is_some() {}
    }
    assert!(cm.is_empty());
    assert!(now < NOW.after(16 * exponential(21)));
    let (path, req) = forged_req(1, &template);
    cm.handle_mad(now, &path, 0xffff, &Message::Req(req).emit(1));
    assert!(matches!(cm.poll_event(), Some(Event::Request(_))));
}

#[test]
fn requests_for_nobody_leave_nothing() {
    let template = template();
    let config = Config { max_transmits: 100, ..Config::new(2, 10, 5) };
    let mut cm = Cm::new(config);
    for number in 0..10_000 {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
    }
    assert!(cm.is_empty() && cm.next_timeout().is_none());
    assert_eq!(std::iter::from_fn(|| cm.poll_transmit()).count(), 100);
    assert_eq!(cm.counters().transmits_dropped, 9_900);
    assert_eq!(cm.counters().sent, 100);
}

#[test]
fn limits_over_all_listeners() {
    let template = template();
    let config =
        Config { max_pending: 10, max_lingering: 4, max_connections: 20, ..Config::new(2, 10, 5) };
    let mut cm = Cm::new(config);
    cm.listen(SERVICE, LocalAddr::Any, 1_000).unwrap();
    let ask = |cm: &mut Cm, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let (path, req) = forged_req(number, &template);
            cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
        }
        let conns: Vec<_> = std::iter::from_fn(|| cm.poll_event()).collect();
        conns
            .into_iter()
            .map(|event| match event {
                Event::Request(request) => request.conn,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let conns = ask(&mut cm, 0..50);
    assert_eq!(conns.len(), 10);
    for conn in &conns {
        cm.reject(NOW, *conn, RejReason::ConsumerReject, &[], &[]).unwrap();
    }
    assert_eq!(cm.len(), 4, "some are kept to refuse again");
    let conns = ask(&mut cm, 100..150);
    for (i, conn) in conns.iter().enumerate() {
        cm.accept(NOW, *conn, &Accept::new(1, 0x200 + i as u32)).unwrap();
    }
    assert_eq!(ask(&mut cm, 200..250).len(), 6, "20 in all");
    let limit = Err(ConnectError::Limit { max: 20 });
    assert_eq!(cm.connect(NOW, &request(CLIENT, 0x100)), limit);
    cm.handle_timeout(NOW.after(config.linger));
    assert!(cm.connect(NOW, &request(CLIENT, 0x100)).is_ok());
}

/// Everything about a connection, right but for the address it comes from.
#[test]
fn a_stranger_who_knows_every_number_changes_nothing() {
    let mut world = World::listening();
    let asking = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x500)).unwrap();
    let transmit = world.cms[CLIENT].poll_transmit().unwrap();
    let asking_tid = Message::parse(&transmit.mad).unwrap().0;
    let [client, server] = world.connected();
    let Message::Req(req) = world.trace[0].1 else { panic!() };
    let Message::Rep(rep) = world.trace[1].1 else { panic!() };
    let [client, server] = [client.comm_id(), server.comm_id()];
    let rej = Rej {
        local_comm_id: client,
        remote_comm_id: server,
        message: Responded::Other,
        info_len: 8,
        reason: RejReason::Timeout,
        info: [0; 72],
        private_data: [0; 148],
    };
    let mut unknown = Rej { remote_comm_id: 0, ..rej };
    unknown.info[..8].copy_from_slice(&GUIDS[CLIENT].to_be_bytes());
    let to_server = [
        Message::Rtu(Rtu { local_comm_id: client, remote_comm_id: server, private_data: [0; 224] }),
        Message::Dreq(Dreq {
            local_comm_id: client,
            remote_comm_id: server,
            remote_qpn: 0x200,
            private_data: [0; 220],
        }),
        Message::Drep(Drep {
            local_comm_id: client,
            remote_comm_id: server,
            private_data: [0; 224],
        }),
        Message::Rej(rej),
        Message::Rej(unknown),
    ];
    let to_client = [
        Message::Rep(Rep { remote_comm_id: asking.comm_id(), local_qpn: 0x666, ..rep }),
        Message::Rej(Rej { remote_comm_id: asking.comm_id(), message: Responded::Req, ..rej }),
        Message::Mra(Mra {
            local_comm_id: 1,
            remote_comm_id: asking.comm_id(),
            message: Responded::Req,
            service_timeout: 31,
            private_data: [0; 222],
        }),
    ];
    let stranger: Gid = "10.0.0.66".parse().unwrap();
    let before = world.cms[CLIENT].next_timeout();
    for (side, messages) in [(SERVER, &to_server[..]), (CLIENT, &to_client[..])] {
        for (i, message) in messages.iter().enumerate() {
            let from = Path { src: stranger, ..path(1 - side) };
            let counters = world.cms[side].counters();
            world.cms[side].handle_mad(world.now, &from, 0xffff, &message.emit(asking_tid));
            assert!(world.events(side).is_empty(), "{message:?}");
            let now = world.cms[side].counters();
            assert_eq!(
                now.wrong_peer + now.unknown_id,
                counters.wrong_peer + counters.unknown_id + 1,
                "{i}"
            );
            assert_eq!(world.cms[side].poll_transmit(), None, "{message:?}");
        }
    }
    // From the right address, but without the transaction.
    for message in to_client {
        world.inject(CLIENT, asking_tid ^ 1 << 32, message);
        assert!(world.events(CLIENT).is_empty(), "{message:?}");
    }
    assert_eq!(world.cms[CLIENT].next_timeout(), before);
    // A REQ that names the GUID and QP of another's connection does not end it.
    let mut stale = Req { local_comm_id: 0x7777, ..req };
    stale.primary.local_gid = stranger;
    stale.private_data[16..20].copy_from_slice(&stranger.0[12..]);
    let from = Path { src: stranger, ..path(CLIENT) };
    world.cms[SERVER].handle_mad(world.now, &from, 0xffff, &Message::Req(stale).emit(1));
    assert!(matches!(world.event(SERVER), Event::Request(_)));
    assert_eq!(world.cms[SERVER].poll_transmit(), None);
}

/// A peer names its times; none of them makes us busy or keeps us for hours.
#[test]
fn times_of_a_peer_are_kept_within_bounds() {
    for (exponent, each) in [(0, MS), (31, exponential(21))] {
        let mut world = World::new(1, Faults { loss: 0, ..Faults::default() });
        world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 1).unwrap();
        let connect = Connect {
            local_cm_response_timeout: exponent,
            ack_timeout: exponent,
            max_cm_retries: 15,
            ..request(CLIENT, 0x100)
        };
        world.cms[CLIENT].connect(world.now, &connect).unwrap();
        world.settle();
        let server = world.request_event().conn;
        let start = world.now;
        world.cms[SERVER].accept(start, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
        world.flush();
        let cm = &mut world.cms[SERVER];
        for i in 1..=16 {
            assert_eq!(cm.next_timeout(), Some(start.after(i * each)));
            cm.handle_timeout(start.after(i * each));
        }
        assert!(matches!(cm.poll_event(), Some(Event::Failed { .. })));
        assert!(cm.is_empty());

        // And the rest in the end.
        let mut world = World::listening();
        let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
        world.settle();
        let server = world.request_event().conn;
        let now = world.now;
        world.cms[SERVER].accept(now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
        world.settle();
        world.cms[CLIENT].establish(client, &[]).unwrap();
        world.settle();
        world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
        world.settle();
        let rest = world.cms[SERVER].next_timeout().unwrap();
        assert!(rest <= world.now.after(each), "{rest:?}");
    }
}

/// Bytes of any kind, and messages of any content about connections that exist.
#[test]
fn nothing_panics_and_nothing_grows() {
    let mut rng = Rng(0x5eed);
    let mut world = World::listening();
    let conns = world.connected();
    let waiting = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x700)).unwrap();
    world.settle();
    let asked = world.request_event().conn;
    let seen: Vec<_> = world.trace.iter().map(|(_, message)| message.emit(1)).collect();
    let ids = [conns[0], conns[1], waiting, asked].map(|conn| conn.comm_id());
    for i in 0..200_000 {
        let mut mad = seen[rng.below(seen.len() as u64) as usize];
        mad[17] = 0x0f + rng.below(13) as u8;
        for at in [24, 28] {
            if rng.percent(80) {
                let id = ids[rng.below(4) as usize];
                mad[at..at + 4].copy_from_slice(&id.to_be_bytes());
            }
        }
        for _ in 0..rng.below(6) {
            let at = rng.below(256) as usize;
            mad[at] = rng.next() as u8;
        }
        let side = rng.below(2) as usize;
        let len = if rng.percent(95) { 256 } else { rng.below(256) as usize };
        let at = Instant(1 + i * 10_000);
        world.cms[side].handle_mad(at, &path(1 - side), 0xffff, &mad[..len]);
        if rng.percent(10) {
            world.cms[side].handle_timeout(at);
        }
        while world.cms[side].poll_transmit().is_some() {}
        for event in world.events(side) {
            if let Event::Request(request) = event {
                let accept = Accept::new(1, 0x1000 + rng.below(100) as u32);
                let _ = world.cms[side].accept(at, request.conn, &accept);
                if rng.percent(90) {
                    world.cms[side].release(at, request.conn);
                }
            }
        }
        assert!(world.cms[side].len() < 2_000);
    }
    let counters = world.cms.each_ref().map(Cm::counters);
    for counters in counters {
        assert!(counters.malformed > 1_000 && counters.wrong_peer > 1_000, "{counters:?}");
        assert!(counters.unknown_id > 1_000, "{counters:?}");
    }
    assert_eq!(gid(CLIENT), path(CLIENT).src);
}

/// Who asks and withdraws for ever fills nothing, though the program looks at no event.
#[test]
fn requests_that_are_withdrawn_leave_nothing() {
    let template = template();
    let mut cm = Cm::new(Config::new(2, 10, 5));
    cm.listen(SERVICE, LocalAddr::Any, 32).unwrap();
    for number in 0..1_000 {
        let (path, req) = forged_req(number, &template);
        cm.handle_mad(NOW, &path, 0xffff, &Message::Req(req).emit(number.into()));
        let mut rej = Rej {
            local_comm_id: req.local_comm_id,
            remote_comm_id: 0,
            message: Responded::Other,
            info_len: 8,
            reason: RejReason::Timeout,
            info: [0; 72],
            private_data: [0; 148],
        };
        rej.info[..8].copy_from_slice(&req.local_ca_guid.to_be_bytes());
        cm.handle_mad(NOW, &path, 0xffff, &Message::Rej(rej).emit(number.into()));
        assert!(cm.is_empty());
    }
    assert_eq!(cm.poll_event(), None);
    assert_eq!(cm.counters().over_limit, 0);
}
