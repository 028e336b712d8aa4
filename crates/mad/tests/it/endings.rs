//! How connections end.

use ironverbs_mad::{Accept, Cm, Config, Disconnect, Event, Failure, LocalAddr};
use ironverbs_wire::mad::cm::{RejReason, Responded};

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
