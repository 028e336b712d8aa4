//! Connections, message by message.

use ironverbs_mad::{
    Accept, AnswerError, Connect, ConnectError, Disconnect, Event, Failure, ListenError, LocalAddr,
    exponential,
};
use ironverbs_wire::Mtu;
use ironverbs_wire::mad::cm::{
    ApStatus, Dreq, Lap, Message, Mra, Rej, RejReason, Rep, Req, Responded, Rtu, ServiceId,
    Transport,
};

use crate::support::{
    CLIENT, Faults, GUIDS, MS, SERVER, SERVICE, World, gid, header, path, request,
};

const SECOND: u64 = 1_000 * MS;

fn names(world: &World) -> Vec<(usize, &'static str)> {
    let name = |message: &Message| match message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
        Message::Lap(_) => "LAP",
        Message::Apr(_) => "APR",
    };
    world.trace.iter().map(|(side, message)| (*side, name(message))).collect()
}

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
    let other: ironverbs_wire::Gid = "10.0.0.9".parse().unwrap();
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
fn both_disconnect_at_once() {
    let mut world = World::listening();
    let conns = world.connected();
    for side in [CLIENT, SERVER] {
        world.cms[side].disconnect(world.now, conns[side], &[]).unwrap();
    }
    world.settle();
    for side in [CLIENT, SERVER] {
        assert!(matches!(world.event(side), Event::Disconnected { .. }));
    }
    world.wait(3 * SECOND);
    for side in [CLIENT, SERVER] {
        assert_eq!(world.event(side), Event::TimewaitExit { conn: conns[side] });
    }
}

#[test]
fn a_lost_drep_comes_again_and_none_is_an_end_too() {
    let mut world = World::listening();
    let [client, _] = world.connected();
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    world.flush();
    // What is on its way arrives, the answer does not.
    world.faults.loss = 100;
    world.settle();
    assert!(matches!(world.event(SERVER), Event::Disconnected { .. }));
    assert!(world.events(CLIENT).is_empty());
    world.faults.loss = 0;
    world.wait(7 * SECOND);
    let by = Disconnect::Confirmed(Box::new([0; 224]));
    let events = world.events(CLIENT);
    assert_eq!(events[0], Event::Disconnected { conn: client, by }, "{events:?}");

    let mut world = World::listening();
    let [client, server] = world.connected();
    world.faults.loss = 100;
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    world.wait(200 * SECOND);
    let by = Disconnect::NoAnswer;
    let events = world.events(CLIENT);
    assert_eq!(
        events,
        [Event::Disconnected { conn: client, by }, Event::TimewaitExit { conn: client }]
    );
    // The other side notices when it disconnects, and is told that there is nothing any more.
    world.faults.loss = 0;
    world.cms[SERVER].disconnect(world.now, server, &[]).unwrap();
    world.settle();
    assert!(matches!(
        world.event(SERVER),
        Event::Disconnected { by: Disconnect::Confirmed(_), .. }
    ));
}

#[test]
fn what_is_released_is_not_heard_of() {
    let mut world = World::listening();
    let [client, server] = world.connected();
    world.cms[CLIENT].release(world.now, client);
    world.cms[CLIENT].release(world.now, client);
    assert!(world.cms[CLIENT].disconnect(world.now, client, &[]).is_err());
    world.settle();
    assert!(matches!(world.event(SERVER), Event::Disconnected { by: Disconnect::Peer(_), .. }));
    world.cms[SERVER].release(world.now, server);
    world.wait(10 * SECOND);
    assert!(world.events(CLIENT).is_empty() && world.events(SERVER).is_empty());
    assert!(world.cms.iter().all(|cm| cm.is_empty()));
    world.cms[CLIENT].release(world.now, client);
}

#[test]
fn an_accepted_request_that_is_released_ends_for_the_client_too() {
    for rtu_is_lost in [false, true] {
        let mut world = World::listening();
        let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
        world.settle();
        let server = world.request_event().conn;
        let now = world.now;
        world.cms[SERVER].accept(now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
        world.settle();
        world.events(CLIENT);
        world.cms[CLIENT].establish(client, &[]).unwrap();
        world.faults.loss = if rtu_is_lost { 100 } else { 0 };
        world.flush();
        world.faults.loss = 0;
        world.cms[SERVER].release(world.now, server);
        world.settle();
        let by = Disconnect::Rejected(RejReason::ConsumerReject);
        assert_eq!(world.event(CLIENT), Event::Disconnected { conn: client, by });
        assert!(world.events(SERVER).is_empty());
        world.drain();
    }
}

/// A process that was killed and started anew connects from a QP that we hold connected.
#[test]
fn a_peer_that_has_forgotten_ends_the_old_connection() {
    let mut world = World::listening();
    let [_, server] = world.connected();
    world.cms[CLIENT] = ironverbs_mad::Cm::new(ironverbs_mad::Config::new(1, 10, 0xaaaa_bbbb_cccc));
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let Event::Rejected { rej, .. } = world.event(CLIENT) else { panic!() };
    assert_eq!(rej.reason, RejReason::StaleConnection);
    assert!(matches!(world.event(SERVER), Event::Disconnected { conn, .. } if conn == server));
    world.wait(3 * SECOND);
    assert_eq!(world.event(SERVER), Event::TimewaitExit { conn: server });
    world.connected();
}

#[test]
fn a_server_that_has_forgotten_ends_the_old_connection() {
    let mut world = World::listening();
    let [old, _] = world.connected();
    world.cms[SERVER] = ironverbs_mad::Cm::new(ironverbs_mad::Config::new(2, 10, 0xaaaa_bbbb_cccc));
    world.cms[SERVER].listen(SERVICE, LocalAddr::Any, 1).unwrap();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x101)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    let Event::Rejected { rej, .. } = world.event(SERVER) else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejReason::StaleConnection, Responded::Rep));
    let events = world.events(CLIENT);
    assert!(
        matches!(events[..], [
            Event::Failed { conn, failure: Failure::StaleReply },
            Event::Disconnected { conn: ended, .. },
        ] if conn == client && ended == old),
        "{events:?}"
    );
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

/// Each kind of message that answers nothing, in each state of a connection: it is counted, and
/// the connection lives on.
#[test]
fn messages_out_of_turn() {
    let mut world = World::listening();
    let [client, server] = world.connected();
    let sent: Vec<Message> = world.trace.iter().map(|(_, message)| *message).collect();
    let [Message::Req(req), Message::Rep(rep), Message::Rtu(rtu)] = sent[..] else { panic!() };
    let tid_of = |world: &mut World| {
        // The transaction is that of the REQ, which is that of any repetition.
        let connect = request(CLIENT, 0x900);
        let conn = world.cms[CLIENT].connect(world.now, &connect).unwrap();
        let transmit = world.cms[CLIENT].poll_transmit().unwrap();
        world.cms[CLIENT].release(world.now, conn);
        while world.cms[CLIENT].poll_transmit().is_some() {}
        Message::parse(&transmit.mad).unwrap().0
    };
    let other_tid = tid_of(&mut world);
    let mra = Mra {
        local_comm_id: server.comm_id(),
        remote_comm_id: client.comm_id(),
        message: Responded::Req,
        service_timeout: 31,
        private_data: [0; 222],
    };
    let before = world.trace.len();
    world.inject(CLIENT, other_tid, Message::Mra(mra));
    world.inject(SERVER, other_tid, Message::Rtu(rtu));
    world.inject(CLIENT, other_tid, Message::Rep(Rep { remote_comm_id: client.comm_id(), ..rep }));
    // To the wrong side.
    world.inject(
        CLIENT,
        other_tid,
        Message::Rtu(Rtu {
            local_comm_id: server.comm_id(),
            remote_comm_id: client.comm_id(),
            private_data: [0; 224],
        }),
    );
    world.inject(
        SERVER,
        other_tid,
        Message::Rep(Rep {
            local_comm_id: client.comm_id(),
            remote_comm_id: server.comm_id(),
            ..rep
        }),
    );
    // With a QPN that is not the connection's.
    let dreq = Dreq {
        local_comm_id: client.comm_id(),
        remote_comm_id: server.comm_id(),
        remote_qpn: 0x201,
        private_data: [0; 220],
    };
    world.inject(SERVER, other_tid, Message::Dreq(dreq));
    // With an ID that is not the peer's.
    let dreq = Dreq { local_comm_id: client.comm_id() ^ 1, remote_qpn: 0x200, ..dreq };
    world.inject(SERVER, other_tid, Message::Dreq(dreq));
    let rej = Rej {
        local_comm_id: client.comm_id() ^ 1,
        remote_comm_id: server.comm_id(),
        message: Responded::Other,
        info_len: 0,
        reason: RejReason::StaleConnection,
        info: [0; 72],
        private_data: [0; 148],
    };
    world.inject(SERVER, other_tid, Message::Rej(rej));
    assert!(world.events(CLIENT).is_empty() && world.events(SERVER).is_empty());
    world.flush();
    let sent = &names(&world)[before..];
    assert_eq!(sent, [(CLIENT, "RTU")], "the answer to a REP that comes again");
    assert_eq!(world.cms[CLIENT].counters().unexpected, 2);
    assert_eq!(world.cms[SERVER].counters().unexpected, 1);
    assert_eq!(world.cms[SERVER].counters().wrong_peer, 3);
    assert_eq!(req.local_comm_id, client.comm_id());
    world.settle();
    world.cms[SERVER].disconnect(world.now, server, &[]).unwrap();
    world.settle();
    assert!(matches!(world.event(CLIENT), Event::Disconnected { .. }));
}

/// What must be right in a REQ, and what is answered if it is not.
#[test]
fn a_request_that_is_wrong_is_refused_with_the_reason() {
    let mut world = World::listening();
    world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    let transmit = world.cms[CLIENT].poll_transmit().unwrap();
    let (tid, Message::Req(good)) = Message::parse(&transmit.mad).unwrap() else { panic!() };
    let with_data = |at: usize, byte: u8| {
        let mut req = good;
        req.private_data[at] = byte;
        req
    };
    let mut other_remote = good;
    other_remote.primary.remote_gid = gid(CLIENT);
    let mut other_local = good;
    other_local.primary.local_gid = "10.0.0.77".parse().unwrap();
    let cases = [
        (Req { transport: Transport::Rd, ..good }, RejReason::InvalidTransportServiceType),
        (Req { transport: Transport::Extended(2), ..good }, RejReason::InvalidTransportServiceType),
        (Req { mtu: 0, ..good }, RejReason::InvalidMtu),
        (Req { mtu: 6, ..good }, RejReason::InvalidMtu),
        (Req { local_qpn: 1, ..good }, RejReason::Unsupported),
        (Req { service_id: ServiceId(77), ..good }, RejReason::InvalidServiceId),
        (with_data(0, 0x10), RejReason::Unsupported),
        (with_data(1, 0x50), RejReason::Unsupported),
        (with_data(19, 99), RejReason::PrimaryRemoteGid),
        (with_data(35, 99), RejReason::PrimaryRemoteGid),
        (other_remote, RejReason::PrimaryRemoteGid),
        (other_local, RejReason::PrimaryRemoteGid),
    ];
    for (req, reason) in cases {
        world.inject(SERVER, tid, Message::Req(req));
        let answer = world.cms[SERVER].poll_transmit().unwrap();
        let (answer_tid, Message::Rej(rej)) = Message::parse(&answer.mad).unwrap() else {
            panic!("{reason:?}");
        };
        assert_eq!((rej.reason, rej.message, answer_tid), (reason, Responded::Req, tid));
        assert_eq!(rej.remote_comm_id, good.local_comm_id);
        assert!(world.events(SERVER).is_empty());
        assert!(world.cms[SERVER].is_empty());
    }
    assert_eq!(world.cms[SERVER].counters().refused, cases.len() as u64);
    world.inject(SERVER, tid, Message::Req(good));
    assert_eq!(world.request_event().path.dst, path(CLIENT).src);
}
