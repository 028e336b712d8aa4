//! Connections, message by message.

use ironverbs_mad::{
    Accept, AnswerError, Cm, Config, Connect, ConnectError, Disconnect, Event, Failure, Instant,
    ListenError, LocalAddr, exponential,
};
use ironverbs_wire::mad::cm::{
    ApStatus, Ece, IpHeader, Lap, Message, RejReason, Responded, ServiceId, Transport,
};
use ironverbs_wire::{Gid, Mtu, Path};

use crate::support::{
    CLIENT, Faults, GUIDS, MS, SECOND, SERVER, SERVICE, World, gid, header, names, request,
};

#[test]
fn a_whole_life() {
    let mut world = World::listening();
    let connect = Connect {
        starting_psn: 111,
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 4,
        rnr_retry_count: 6,
        srq: true,
        mtu: Mtu::M2048,
        transport: Transport::Uc,
        private_data: b"hello",
        ..request(CLIENT, 0x100)
    };
    let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let asked = world.request_event();
    assert_eq!(asked.ip, Some(header(CLIENT)));
    assert_eq!((asked.path.src, asked.path.dst), (gid(SERVER), gid(CLIENT)));
    assert_eq!((asked.remote_qpn, asked.starting_psn), (0x100, 111));
    assert_eq!((asked.initiator_depth, asked.responder_resources), (3, 5), "swapped");
    assert_eq!((asked.retry_count, asked.rnr_retry_count, asked.ack_timeout), (4, 6, 19));
    assert!(asked.srq && asked.flow_control);
    assert_eq!((asked.mtu, asked.transport), (Mtu::M2048, Transport::Uc));
    assert_eq!(asked.remote_ca_guid, GUIDS[CLIENT]);
    assert_eq!(asked.private_data(), [&b"hello"[..], &[0; 51]].concat());

    let accept = Accept {
        starting_psn: 222,
        responder_resources: 2,
        initiator_depth: 1,
        private_data: &[9; 196],
        ..Accept::new(GUIDS[SERVER], 0x200)
    };
    world.cms[SERVER].accept(world.now, asked.conn, &accept).unwrap();
    world.settle();
    let Event::Reply(reply) = world.event(CLIENT) else { panic!() };
    assert_eq!(reply.conn, client);
    assert_eq!((reply.remote_qpn, reply.starting_psn), (0x200, 222));
    assert_eq!((reply.initiator_depth, reply.responder_resources), (2, 1), "swapped");
    assert_eq!((reply.target_ack_delay, reply.rnr_retry_count), (15, 7));
    assert_eq!(reply.private_data, [9; 196]);

    world.cms[CLIENT].establish(client, b"ready").unwrap();
    world.settle();
    let Event::Established { conn, private_data } = world.event(SERVER) else { panic!() };
    assert_eq!(conn, asked.conn);
    assert_eq!(private_data[..6], *b"ready\0");
    assert_eq!(world.cms[CLIENT].next_timeout(), None);

    world.cms[SERVER].disconnect(world.now, asked.conn, b"bye").unwrap();
    world.cms[SERVER].disconnect(world.now, asked.conn, b"").unwrap();
    world.settle();
    let Event::Disconnected { conn, by: Disconnect::Peer(data) } = world.event(CLIENT) else {
        panic!();
    };
    assert_eq!((conn, &data[..4]), (client, &b"bye\0"[..]));
    assert!(matches!(
        world.event(SERVER),
        Event::Disconnected { by: Disconnect::Confirmed(_), .. }
    ));
    world.cms[CLIENT].disconnect(world.now, client, b"").unwrap();
    assert_eq!(
        names(&world),
        [(CLIENT, "REQ"), (SERVER, "REP"), (CLIENT, "RTU"), (SERVER, "DREQ"), (CLIENT, "DREP")]
    );
    world.wait(exponential(19) - 1_000_000);
    assert!(world.events(CLIENT).is_empty());
    world.wait(MS * 2);
    assert_eq!(world.event(CLIENT), Event::TimewaitExit { conn: client });
    assert_eq!(world.event(SERVER), Event::TimewaitExit { conn: asked.conn });
    assert!(world.cms.iter().all(|cm| cm.is_empty() && cm.next_timeout().is_none()));
    let unknown = Err(AnswerError::Unknown { id: client.comm_id() });
    assert_eq!(world.cms[CLIENT].disconnect(world.now, client, b""), unknown);
}

#[test]
fn nobody_listens() {
    let mut world = World::new(1, Faults::default());
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let Event::Rejected { conn, rej } = world.event(CLIENT) else { panic!() };
    assert_eq!((conn, rej.reason), (client, RejReason::InvalidServiceId));
    assert_eq!((rej.reason.to_u16(), rej.message), (8, Responded::Req));
    assert!(world.cms.iter().all(|cm| cm.is_empty()));
    assert_eq!(world.cms[SERVER].counters().refused, 1);
}

#[test]
fn a_listener_is_found_by_service_and_address() {
    let mut world = World::new(1, Faults::default());
    let cm = &mut world.cms[SERVER];
    let other: Gid = "10.0.0.9".parse().unwrap();
    let v6 = cm.listen(SERVICE, LocalAddr::AnyIpv6, 8).unwrap();
    let elsewhere = cm.listen(SERVICE, LocalAddr::Gid(other), 8).unwrap();
    for addr in [LocalAddr::Any, LocalAddr::AnyIpv6, LocalAddr::AnyIpv4, LocalAddr::Gid(other)] {
        assert!(matches!(cm.listen(SERVICE, addr, 8), Err(ListenError::InUse { .. })), "{addr:?}");
    }
    cm.listen(ServiceId(1), LocalAddr::Any, 8).unwrap();
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    assert!(matches!(world.event(CLIENT), Event::Rejected { .. }));

    let here = world.cms[SERVER].listen(SERVICE, LocalAddr::Gid(gid(SERVER)), 8).unwrap();
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    assert_eq!(world.request_event().listener, here);
    for listener in [v6, elsewhere, here] {
        assert!(world.cms[SERVER].unlisten(listener));
        assert!(!world.cms[SERVER].unlisten(listener));
    }
    world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 8).unwrap();
}

#[test]
fn the_consumer_refuses_and_says_so_again() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let conn = world.request_event().conn;
    let (info, data) = ([1, 2, 3], [7; 148]);
    let reason = RejReason::ConsumerReject;
    world.faults.loss = 100;
    world.cms[SERVER].reject(world.now, conn, reason, &info, &data).unwrap();
    world.flush();
    assert!(world.cms[SERVER].accept(world.now, conn, &Accept::new(1, 2)).is_err());
    world.faults.loss = 0;
    world.wait(7 * SECOND);
    assert!(world.events(SERVER).is_empty(), "the repeated REQ is no new request");
    let Event::Rejected { conn, rej } = world.event(CLIENT) else { panic!() };
    assert_eq!((conn, rej.reason.to_u16(), rej.info()), (client, 28, &info[..]));
    assert_eq!(rej.private_data, data);
    assert_eq!(names(&world), [(CLIENT, "REQ"), (SERVER, "REJ"), (CLIENT, "REQ"), (SERVER, "REJ")]);
    world.drain();
}

#[test]
fn the_client_refuses_a_reply() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    assert!(matches!(world.event(CLIENT), Event::Reply(_)));
    world.cms[CLIENT].reject(world.now, client, RejReason::ConsumerReject, &[], b"no").unwrap();
    world.settle();
    let Event::Rejected { conn, rej } = world.event(SERVER) else { panic!() };
    assert_eq!((conn, rej.message, rej.reason.to_u16()), (server, Responded::Rep, 28));
    assert!(world.cms.iter().all(|cm| cm.is_empty()));
}

#[test]
fn no_answer_at_all() {
    let mut world = World::listening();
    world.faults.loss = 100;
    let connect = Connect { max_cm_retries: 3, ..request(CLIENT, 0x100) };
    let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
    let each = exponential(20) + 2 * exponential(18);
    world.wait(4 * each - MS);
    assert!(world.events(CLIENT).is_empty());
    world.wait(2 * MS);
    let failure = Failure::NoReply;
    assert_eq!(world.event(CLIENT), Event::Failed { conn: client, failure });
    let expected = [(CLIENT, "REQ"), (CLIENT, "REQ"), (CLIENT, "REQ"), (CLIENT, "REQ")];
    assert_eq!(names(&world)[..4], expected);
    assert_eq!(names(&world)[4..], [(CLIENT, "REJ")]);
    assert_eq!(world.cms[CLIENT].counters().retries, 3);
    assert!(world.cms[CLIENT].is_empty());
}

/// A request whose sender has given up is taken back, though its sender never learnt our ID.
#[test]
fn the_client_gives_up_before_the_program_answers() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[CLIENT].release(world.now, client);
    world.settle();
    let Event::Rejected { conn, rej } = world.event(SERVER) else { panic!() };
    assert_eq!((conn, rej.reason), (server, RejReason::Timeout));
    assert!(world.cms.iter().all(|cm| cm.is_empty()));
}

#[test]
fn a_slow_program_makes_the_peer_wait() {
    let mut world = World::listening();
    let connect = Connect { max_cm_retries: 1, ..request(CLIENT, 0x100) };
    world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.wait(60 * SECOND);
    assert_eq!(names(&world), [(CLIENT, "REQ"), (CLIENT, "REQ"), (SERVER, "MRA")]);
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    let Event::Reply(reply) = world.event(CLIENT) else { panic!() };
    // Now the client is slow, and the server repeats its REP.
    world.wait(60 * SECOND);
    assert!(world.events(SERVER).is_empty());
    world.cms[CLIENT].establish(reply.conn, &[]).unwrap();
    world.settle();
    assert!(matches!(world.event(SERVER), Event::Established { .. }));
}

#[test]
fn patience_asked_for_at_once() {
    let mut world = World::listening();
    let connect = Connect { max_cm_retries: 0, ..request(CLIENT, 0x100) };
    let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].ask_patience(server, 21).unwrap();
    world.cms[SERVER].ask_patience(server, 31).unwrap();
    world.settle();
    let all = exponential(21) + exponential(20) + 2 * exponential(18);
    world.wait(all - 2 * MS);
    assert!(world.events(CLIENT).is_empty());
    world.wait(3 * MS);
    let failure = Failure::NoReply;
    assert_eq!(world.event(CLIENT), Event::Failed { conn: client, failure });
    assert!(matches!(world.event(SERVER), Event::Rejected { .. }));
}

#[test]
fn a_lost_rep_and_a_lost_rtu_come_again() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.faults.loss = 100;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.flush();
    world.faults.loss = 0;
    world.wait(exponential(20) + MS);
    assert!(matches!(world.event(CLIENT), Event::Reply(_)));
    world.faults.loss = 100;
    world.cms[CLIENT].establish(client, b"x").unwrap();
    world.flush();
    world.faults.loss = 0;
    world.wait(exponential(20) + MS);
    let Event::Established { conn, private_data } = world.event(SERVER) else { panic!() };
    assert_eq!((conn, private_data[0]), (server, b'x'));
    assert!(world.events(CLIENT).is_empty());
}

#[test]
fn data_is_as_good_as_an_rtu() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].communication_established(server);
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    world.events(CLIENT);
    world.faults.loss = 100;
    world.cms[CLIENT].establish(client, b"x").unwrap();
    world.flush();
    world.cms[SERVER].communication_established(server);
    world.cms[SERVER].communication_established(server);
    let private_data = Box::new([0; 224]);
    assert_eq!(world.event(SERVER), Event::Established { conn: server, private_data });
    assert_eq!(world.cms[SERVER].next_timeout(), None);
}

#[test]
fn a_dreq_is_as_good_as_an_rtu() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    world.events(CLIENT);
    world.faults.loss = 100;
    world.cms[CLIENT].establish(client, b"x").unwrap();
    world.flush();
    world.faults.loss = 0;
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    world.settle();
    let events = world.events(SERVER);
    assert!(
        matches!(events[..], [Event::Established { .. }, Event::Disconnected { .. }]),
        "{events:?}"
    );
    world.drain();
}

/// The server never hears that the client is ready, and says that it waits no longer.
#[test]
fn no_rtu_at_all() {
    let mut world = World::listening();
    let connect = Connect { max_cm_retries: 2, ..request(CLIENT, 0x100) };
    let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    world.events(CLIENT);
    world.faults.loss = 100;
    world.cms[CLIENT].establish(client, b"x").unwrap();
    world.wait(3 * exponential(20) - MS);
    world.faults.loss = 0;
    world.wait(2 * MS);
    let failure = Failure::NotReady;
    assert_eq!(world.event(SERVER), Event::Failed { conn: server, failure });
    let by = Disconnect::Rejected(RejReason::Timeout);
    assert_eq!(world.event(CLIENT), Event::Disconnected { conn: client, by });
    world.drain();
}

#[test]
fn an_alternate_path_is_answered() {
    let mut world = World::listening();
    let [client, server] = world.connected();
    let lap = |remote: u32| {
        Message::Lap(Lap {
            local_comm_id: client.comm_id(),
            remote_comm_id: remote,
            remote_qpn: 0x200,
            remote_cm_response_timeout: 20,
            local_lid: 0,
            remote_lid: 0,
            local_gid: gid(CLIENT),
            remote_gid: gid(SERVER),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            packet_rate: 0,
            sl: 0,
            subnet_local: false,
            ack_timeout: 0,
            private_data: [0; 168],
        })
    };
    for (remote, status) in [
        (server.comm_id(), ApStatus::UNSUPPORTED),
        (server.comm_id() ^ 1, ApStatus::INVALID_COMM_ID),
    ] {
        world.inject(SERVER, 5, lap(remote));
        world.settle();
        let Message::Apr(apr) = world.last(0) else { panic!() };
        assert_eq!((apr.status, apr.remote_comm_id), (status, client.comm_id()));
        assert!(world.events(SERVER).is_empty());
    }
}

#[test]
fn calls_at_the_wrong_time_change_nothing() {
    let mut world = World::listening();
    let now = world.now;
    let accept = Accept::new(GUIDS[SERVER], 0x200);
    let client = world.cms[CLIENT].connect(now, &request(CLIENT, 0x100)).unwrap();
    let cm = &mut world.cms[CLIENT];
    let state = |result| matches!(result, Err(AnswerError::State { .. }));
    assert!(state(cm.establish(client, &[])));
    assert!(state(cm.accept(now, client, &accept)));
    assert!(state(cm.disconnect(now, client, &[])));
    assert!(state(cm.reject(now, client, RejReason::ConsumerReject, &[], &[])));
    assert!(state(cm.ask_patience(client, 20)));
    world.settle();
    let server = world.request_event().conn;
    let cm = &mut world.cms[SERVER];
    assert!(state(cm.establish(server, &[])));
    assert!(state(cm.disconnect(now, server, &[])));
    cm.accept(now, server, &accept).unwrap();
    assert!(state(cm.accept(now, server, &accept)));
    assert!(state(cm.disconnect(now, server, &[])));
    assert!(state(cm.reject(now, server, RejReason::ConsumerReject, &[], &[])));
    world.settle();
    world.cms[CLIENT].establish(client, &[]).unwrap();
    assert!(state(world.cms[CLIENT].establish(client, &[])));
    world.settle();
    assert!(matches!(world.event(SERVER), Event::Established { .. }));
}

#[test]
fn private_data_has_the_room_that_the_message_has() {
    let mut world = World::listening();
    let now = world.now;
    let long = [0; 230];
    let too_long = |len: usize, max| (len, max);
    let room = |world: &mut World, connect: Connect| match world.cms[CLIENT].connect(now, &connect)
    {
        Err(ConnectError::PrivateData(error)) => too_long(error.len, error.max),
        other => panic!("{other:?}"),
    };
    let with = Connect { private_data: &long[..57], ..request(CLIENT, 0x100) };
    assert_eq!(room(&mut world, with), (57, 56));
    let without = Connect { ip: None, private_data: &long[..93], ..with };
    assert_eq!(room(&mut world, without), (93, 92));
    assert!(world.cms[CLIENT].is_empty());

    let client = world.cms[CLIENT].connect(now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    let max = |error| match error {
        Err(AnswerError::PrivateData(error)) => error.max,
        other => panic!("{other:?}"),
    };
    let accept = Accept { private_data: &long[..197], ..Accept::new(GUIDS[SERVER], 0x200) };
    let cm = &mut world.cms[SERVER];
    assert_eq!(max(cm.accept(now, server, &accept)), 196);
    let reason = RejReason::ConsumerReject;
    assert_eq!(max(cm.reject(now, server, reason, &[], &long[..149])), 148);
    assert_eq!(max(cm.reject(now, server, reason, &long[..73], &[])), 72);
    assert_eq!(max(cm.disconnect(now, server, &long[..221])), 220);
    assert_eq!(max(cm.establish(server, &long[..225])), 224);
    cm.accept(now, server, &Accept { private_data: &long[..196], ..accept }).unwrap();
    world.settle();
    world.cms[CLIENT].establish(client, &long[..224]).unwrap();
    world.cms[CLIENT].disconnect(now, client, &long[..220]).unwrap();
}

#[test]
fn a_field_that_is_too_wide_says_the_most_it_can() {
    let mut world = World::listening();
    let connect = Connect {
        retry_count: 200,
        rnr_retry_count: 8,
        max_cm_retries: 16,
        ack_timeout: 32,
        ..request(CLIENT, 0x100)
    };
    world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.flush();
    let Message::Req(req) = world.last(0) else { panic!() };
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!(req.primary.ack_timeout, 31);
}

#[test]
fn ids_tell_the_slot() {
    let mut world = World::listening();
    let conns = world.connected();
    for side in [CLIENT, SERVER] {
        assert_eq!(ironverbs_mad::slot_of(conns[side].comm_id(), 10), side as u32 + 1);
    }
}

/// One manager is both sides, as between two programs' threads on 127.0.0.1.
#[test]
fn a_manager_with_itself() {
    let own: Gid = "127.0.0.1".parse().unwrap();
    let path =
        Path { src: own, dst: own, traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None };
    let ip = IpHeader { src_port: 4, src: own.to_ip(), dst: own.to_ip() };
    let mut cm = Cm::new(Config::new(1, 10, 99));
    let mut now = Instant(1);
    let settle = |cm: &mut Cm, now| {
        while let Some(transmit) = cm.poll_transmit() {
            cm.handle_mad(now, &transmit.path, transmit.pkey, &transmit.mad);
        }
        std::iter::from_fn(|| cm.poll_event()).collect::<Vec<_>>()
    };
    cm.listen(SERVICE, LocalAddr::AnyIpv4, 1).unwrap();
    let connect = Connect { ip: Some(ip), ..Connect::new(path, SERVICE, GUIDS[0], 0x100) };
    for disconnects in [CLIENT, SERVER] {
        let client = cm.connect(now, &connect).unwrap();
        let [Event::Request(asked)] = &settle(&mut cm, now)[..] else { panic!() };
        let server = asked.conn;
        cm.accept(now, server, &Accept::new(GUIDS[0], 0x200)).unwrap();
        assert!(matches!(settle(&mut cm, now)[..], [Event::Reply(_)]));
        cm.establish(client, &[]).unwrap();
        assert!(matches!(settle(&mut cm, now)[..], [Event::Established { .. }]));
        cm.disconnect(now, [client, server][disconnects], &[]).unwrap();
        let events = settle(&mut cm, now);
        assert!(
            matches!(events[..], [Event::Disconnected { .. }, Event::Disconnected { .. }]),
            "{events:?}"
        );
        now = now.after(3 * SECOND);
        cm.handle_timeout(now);
        assert_eq!(settle(&mut cm, now).len(), 2);
        assert!(cm.is_empty());
    }
    // A repeated REQ and one that is withdrawn find the passive side.
    let client = cm.connect(now, &connect).unwrap();
    let [Event::Request(_)] = &settle(&mut cm, now)[..] else { panic!() };
    cm.handle_timeout(cm.next_timeout().unwrap());
    assert!(settle(&mut cm, now).is_empty());
    cm.release(now, client);
    assert!(matches!(settle(&mut cm, now)[..], [Event::Rejected { .. }]));
    assert!(cm.is_empty());
}

/// Of an extended reliable connection one side sends and the other receives; its messages name the
/// receiving QP in another place.
#[test]
fn an_extended_reliable_connection() {
    let mut world = World::listening();
    let connect = Connect {
        transport: Transport::Xrc,
        responder_resources: 1,
        initiator_depth: 2,
        srq: true,
        ..request(CLIENT, 0x100)
    };
    let client = world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let Message::Req(req) = world.last(0) else { panic!() };
    assert_eq!((req.responder_resources, req.retry_count, req.rnr_retry_count), (0, 0, 0));
    assert_eq!((req.initiator_depth, req.srq), (2, false));
    let asked = world.request_event();
    assert_eq!((asked.transport, asked.responder_resources), (Transport::Xrc, 2));
    let accept =
        Accept { responder_resources: 2, initiator_depth: 5, ..Accept::new(GUIDS[SERVER], 0x200) };
    world.cms[SERVER].accept(world.now, asked.conn, &accept).unwrap();
    world.settle();
    let Message::Rep(rep) = world.last(0) else { panic!() };
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (0, 0x200, true));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 0));
    let Event::Reply(reply) = world.event(CLIENT) else { panic!() };
    assert_eq!(reply.remote_qpn, 0x200);
    world.cms[CLIENT].establish(client, &[]).unwrap();
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    world.settle();
    let events = world.events(SERVER);
    assert!(
        matches!(events[..], [Event::Established { .. }, Event::Disconnected { .. }]),
        "{events:?}"
    );
}

#[test]
fn options_of_a_vendor_reach_the_other_side() {
    let mut world = World::listening();
    let offered = Ece { vendor_id: 0x12_3456, options: 0xdead_beef };
    let taken = Ece { vendor_id: 0x12_3456, options: 0x0000_beef };
    let connect = Connect { ece: offered, ..request(CLIENT, 0x100) };
    world.cms[CLIENT].connect(world.now, &connect).unwrap();
    world.settle();
    let asked = world.request_event();
    assert_eq!(asked.ece, offered);
    let accept = Accept { ece: taken, ..Accept::new(GUIDS[SERVER], 0x200) };
    world.cms[SERVER].accept(world.now, asked.conn, &accept).unwrap();
    world.settle();
    let Event::Reply(reply) = world.event(CLIENT) else { panic!() };
    assert_eq!(reply.ece, taken);
}
