//! Messages that are out of turn or wrong.

use ironverbs_mad::Event;
use ironverbs_wire::mad::cm::{
    Dreq, Message, Mra, Rej, RejReason, Rep, Req, Responded, Rtu, ServiceId, Transport,
};

use crate::support::{CLIENT, SERVER, World, gid, names, path, request};

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
    // What is no IP header is the program's data, of who names ports by GIDs.
    for other in [with_data(0, 0x10), with_data(1, 0x50)] {
        world.inject(SERVER, tid, Message::Req(other));
        let events = world.events(SERVER);
        let [Event::Request(request)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((request.ip, request.private_data()), (None, &other.private_data[..]));
        world.cms[SERVER].abandon(request.conn);
    }
    world.inject(SERVER, tid, Message::Req(good));
    assert_eq!(world.request_event().path.dst, path(CLIENT).src);
}
