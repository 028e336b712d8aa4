//! How connections end.

use ironverbs_mad::{Accept, Cm, Config, Disconnect, Event, Failure, LocalAddr};
use ironverbs_wire::mad::cm::{Message, RejReason, Rep, Req, Responded};

use crate::support::{CLIENT, GUIDS, SECOND, SERVER, SERVICE, World, request};

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
    world.cms[CLIENT] = Cm::new(Config::new(1, 10, 0xaaaa_bbbb_cccc));
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
    world.cms[SERVER] = Cm::new(Config::new(2, 10, 0xaaaa_bbbb_cccc));
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

/// The client has forgotten its request, and the message that says so is lost.
#[test]
fn a_reply_to_what_is_forgotten_is_refused() {
    let mut world = World::listening();
    let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
    world.settle();
    let server = world.request_event().conn;
    world.faults.loss = 100;
    world.cms[CLIENT].release(world.now, client);
    world.flush();
    world.faults.loss = 0;
    world.cms[SERVER].accept(world.now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
    world.settle();
    let Event::Rejected { conn, rej } = world.event(SERVER) else { panic!() };
    assert_eq!((conn, rej.reason), (server, RejReason::InvalidCommId));
    assert!(world.cms.iter().all(Cm::is_empty));
}

/// The server takes back what it has accepted, and the message that says so is lost: the next that
/// the client says is answered.
#[test]
fn what_was_taken_back_is_refused_again() {
    for rtu_is_late in [true, false] {
        let mut world = World::listening();
        let client = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x100)).unwrap();
        world.settle();
        let server = world.request_event().conn;
        let now = world.now;
        world.cms[SERVER].accept(now, server, &Accept::new(GUIDS[SERVER], 0x200)).unwrap();
        world.settle();
        assert!(matches!(world.event(CLIENT), Event::Reply(_)));
        world.faults.loss = 100;
        world.cms[SERVER].release(world.now, server);
        world.flush();
        world.faults.loss = if rtu_is_late { 0 } else { 100 };
        world.cms[CLIENT].establish(client, &[]).unwrap();
        world.settle();
        if !rtu_is_late {
            world.faults.loss = 0;
            world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
            world.settle();
        }
        let Event::Disconnected { conn, by } = world.event(CLIENT) else { panic!() };
        assert_eq!(conn, client);
        let refused = by == Disconnect::Rejected(RejReason::ConsumerReject);
        let confirmed = matches!(by, Disconnect::Confirmed(_));
        assert_eq!((refused, confirmed), (rtu_is_late, !rtu_is_late));
        assert!(world.events(SERVER).is_empty());
        world.drain();
    }
}

/// A DREQ that comes again while the connection rests is answered, and is news to nobody.
#[test]
fn a_dreq_that_comes_again() {
    let mut world = World::listening();
    let [client, server] = world.connected();
    world.cms[CLIENT].disconnect(world.now, client, &[]).unwrap();
    world.settle();
    world.events(CLIENT);
    assert!(matches!(world.event(SERVER), Event::Disconnected { conn, .. } if conn == server));
    let count = world.trace.len();
    let Message::Dreq(dreq) = world.last(1) else { panic!() };
    world.inject(SERVER, 77, Message::Dreq(dreq));
    world.flush();
    assert_eq!(world.trace.len(), count + 1);
    assert!(matches!(world.last(0), Message::Drep(_)));
    world.settle();
    assert!(world.events(SERVER).is_empty() && world.events(CLIENT).is_empty());
    assert_eq!(world.cms[CLIENT].counters().duplicates, 1);
}

/// A communication ID that the peer uses anew, for another QP or in another transaction: it has
/// forgotten the connection that had it.
#[test]
fn a_communication_id_used_anew() {
    for other_qpn in [true, false] {
        let mut world = World::listening();
        let [_, server] = world.connected();
        let Message::Req(req) = world.trace[0].1 else { panic!() };
        let qpn = if other_qpn { 0x101 } else { req.local_qpn };
        world.inject(SERVER, 77, Message::Req(Req { local_qpn: qpn, ..req }));
        world.flush();
        let Message::Rej(rej) = world.last(1) else { panic!() };
        assert_eq!(rej.reason, RejReason::StaleConnection);
        let Message::Dreq(dreq) = world.last(0) else { panic!() };
        assert_eq!(dreq.local_comm_id, server.comm_id());
        world.settle();
        assert!(matches!(world.event(SERVER), Event::Disconnected { conn, .. } if conn == server));
    }
}

/// A REP that names a communication ID which the same peer gave another connection is none of the
/// peer's, and leaves both as they are.
#[test]
fn a_reply_with_an_id_of_another_connection() {
    let mut world = World::listening();
    let [first, _] = world.connected();
    let Message::Rep(rep) = world.trace[1].1 else { panic!() };
    let second = world.cms[CLIENT].connect(world.now, &request(CLIENT, 0x101)).unwrap();
    let transmit = world.cms[CLIENT].poll_transmit().unwrap();
    let tid = Message::parse(&transmit.mad).unwrap().0;
    let forged = Rep { remote_comm_id: second.comm_id(), local_qpn: 0x999, ..rep };
    world.inject(CLIENT, tid, Message::Rep(forged));
    assert!(world.events(CLIENT).is_empty());
    assert_eq!(world.cms[CLIENT].counters().wrong_peer, 1);
    let good = Rep { local_comm_id: 0x4444, ..forged };
    world.inject(CLIENT, tid, Message::Rep(good));
    assert!(matches!(world.event(CLIENT), Event::Reply(reply) if reply.conn == second));
    world.cms[CLIENT].disconnect(world.now, first, &[]).unwrap();
}
