//! Resolution of datagram services.

use ironverbs_mad::{AnswerError, ConnectError, Event, Failure, LocalAddr, Resolve, SidrAnswer};
use ironverbs_wire::mad::cm::{Message, PortSpace, ServiceId, SidrStatus};

use crate::support::{CLIENT, Faults, MS, SERVER, World, gid, header, path};

const UDP: ServiceId = ServiceId::of_port(PortSpace::Udp, 7174);

fn resolve<'a>() -> Resolve<'a> {
    Resolve { ip: Some(header(CLIENT)), ..Resolve::new(path(CLIENT), UDP) }
}

fn world() -> World {
    let mut world = World::new(3, Faults::default());
    world.cms[SERVER].listen(UDP, LocalAddr::AnyIpv4, 2).unwrap();
    world
}

const ANSWER: SidrAnswer =
    SidrAnswer { status: SidrStatus::VALID, qpn: 0x300, qkey: 0x0123_4567, private_data: b"here" };

#[test]
fn found() {
    let mut world = world();
    let asked = Resolve { private_data: &[5; 180], ..resolve() };
    let sidr = world.cms[CLIENT].resolve(world.now, &asked).unwrap();
    world.settle();
    let Event::SidrRequest(request) = world.event(SERVER) else { panic!() };
    assert_eq!((request.service_id, request.ip, request.pkey), (UDP, Some(header(CLIENT)), 0xffff));
    assert_eq!((request.path.src, request.path.dst), (gid(SERVER), gid(CLIENT)));
    assert_eq!(request.private_data(), [5; 180]);
    // The program is slow and the client asks again, which is no second request.
    world.wait(10_000 * MS);
    assert!(world.events(SERVER).is_empty());
    world.cms[SERVER].sidr_answer(world.now, request.sidr, &ANSWER).unwrap();
    world.settle();
    let Event::SidrReply(reply) = world.event(CLIENT) else { panic!() };
    assert_eq!((reply.sidr, reply.status), (sidr, SidrStatus::VALID));
    assert_eq!((reply.qpn, reply.qkey), (0x300, 0x0123_4567));
    assert_eq!(reply.private_data[..5], *b"here\0");
    let again = world.cms[SERVER].sidr_answer(world.now, request.sidr, &ANSWER);
    assert_eq!(again, Err(AnswerError::Unknown { id: request.sidr.request_id() }));
    world.drain();
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut world = world();
    world.cms[CLIENT].resolve(world.now, &resolve()).unwrap();
    world.settle();
    let Event::SidrRequest(request) = world.event(SERVER) else { panic!() };
    world.faults.loss = 100;
    world.cms[SERVER].sidr_answer(world.now, request.sidr, &ANSWER).unwrap();
    world.flush();
    world.faults.loss = 0;
    world.wait(5_000 * MS);
    assert!(matches!(world.event(CLIENT), Event::SidrReply(_)));
    assert!(world.events(SERVER).is_empty());
    world.drain();
}

#[test]
fn not_there() {
    let mut world = World::new(3, Faults::default());
    world.cms[CLIENT].resolve(world.now, &resolve()).unwrap();
    world.settle();
    let Event::SidrReply(reply) = world.event(CLIENT) else { panic!() };
    assert_eq!(reply.status, SidrStatus::UNSUPPORTED);
    assert!(world.cms.iter().all(|cm| cm.is_empty()));
}

#[test]
fn nobody_there() {
    let mut world = World::new(3, Faults { loss: 100, ..Faults::default() });
    let asked = Resolve { timeout: 100 * MS, max_retries: 2, ..resolve() };
    let sidr = world.cms[CLIENT].resolve(world.now, &asked).unwrap();
    world.wait(299 * MS);
    assert!(world.events(CLIENT).is_empty());
    world.wait(2 * MS);
    assert_eq!(world.event(CLIENT), Event::SidrFailed { sidr, failure: Failure::NoReply });
    assert_eq!(world.trace.len(), 3);
    assert!(world.cms[CLIENT].is_empty());
}

#[test]
fn released_on_either_side() {
    let mut world = world();
    let sidr = world.cms[CLIENT].resolve(world.now, &resolve()).unwrap();
    world.settle();
    let Event::SidrRequest(request) = world.event(SERVER) else { panic!() };
    world.cms[SERVER].sidr_release(world.now, request.sidr);
    world.cms[CLIENT].sidr_release(world.now, sidr);
    world.settle();
    let Message::SidrRep(rep) = world.last(0) else { panic!() };
    assert_eq!(rep.status, SidrStatus::REJECTED);
    assert!(world.events(CLIENT).is_empty());
    assert_eq!(world.cms[CLIENT].counters().unknown_id, 1);
    world.drain();
}

#[test]
fn an_answer_must_know_the_question() {
    let mut world = world();
    let sidr = world.cms[CLIENT].resolve(world.now, &resolve()).unwrap();
    let transmit = world.cms[CLIENT].poll_transmit().unwrap();
    let (tid, Message::SidrReq(req)) = Message::parse(&transmit.mad).unwrap() else { panic!() };
    let forged = Message::SidrRep(ironverbs_wire::mad::cm::SidrRep {
        request_id: req.request_id,
        status: SidrStatus::VALID,
        info_len: 0,
        qpn: 0x666,
        service_id: UDP,
        qkey: 1,
        info: [0; 72],
        private_data: [0; 136],
    });
    world.inject(CLIENT, tid ^ 1 << 40, forged);
    let elsewhere = ironverbs_wire::Path { src: "10.0.0.3".parse().unwrap(), ..path(SERVER) };
    world.cms[CLIENT].handle_mad(world.now, &elsewhere, 0xffff, &forged.emit(tid));
    assert!(world.events(CLIENT).is_empty());
    assert_eq!(world.cms[CLIENT].counters().wrong_peer, 2);
    world.inject(CLIENT, tid, forged);
    assert!(matches!(world.event(CLIENT), Event::SidrReply(reply) if reply.sidr == sidr));
}

#[test]
fn room_for_private_data_and_for_requests() {
    let mut world = world();
    let long = [0; 217];
    let mut room = |ip, len: usize| {
        let asked = Resolve { ip, private_data: &long[..len], ..resolve() };
        match world.cms[CLIENT].resolve(world.now, &asked) {
            Err(ConnectError::PrivateData(error)) => error.max,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(room(Some(header(CLIENT)), 181), 180);
    assert_eq!(room(None, 217), 216);

    for _ in 0..3 {
        world.cms[CLIENT].resolve(world.now, &resolve()).unwrap();
    }
    world.settle();
    let requests = world.events(SERVER);
    assert_eq!(requests.len(), 2, "the backlog");
    assert_eq!(world.cms[SERVER].counters().over_limit, 1);
    let Event::SidrRequest(first) = &requests[0] else { panic!() };
    let long = SidrAnswer { private_data: &[0; 137], ..ANSWER };
    let error = world.cms[SERVER].sidr_answer(world.now, first.sidr, &long);
    assert!(matches!(error, Err(AnswerError::PrivateData(error)) if error.max == 136));
    world.cms[SERVER].sidr_claim(first.sidr);
    world.wait(5_000 * MS);
    assert!(matches!(world.event(SERVER), Event::SidrRequest(_)));
}
