//! Connections made by the connection manager.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_soft::cm::*;
use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, EISCONN, ETIMEDOUT};

use crate::fabric::Fabric;
use crate::side::{Side, nonblocking, outcomes, pattern, readable, wr};

cases![
    a_connection_carries_data_both_ways,
    private_data_arrives_padded,
    depths_are_swapped_for_the_peer,
    private_data_that_is_too_long_is_refused,
    nobody_listens,
    a_request_is_refused_with_the_programs_words,
    either_side_disconnects_once,
    both_sides_disconnect_at_once,
    a_connection_without_queue_pairs,
    a_response_can_be_refused,
    the_responder_may_learn_by_data_that_it_is_connected,
    the_backlog_holds,
    a_listener_that_goes_refuses_what_waits,
    a_listener_that_migrates_takes_along_what_waits,
    a_request_that_is_destroyed_is_refused,
    an_id_that_is_destroyed_disconnects,
    datagram_services_are_found,
    datagram_services_that_are_not_there,
    unreliable_connections,
    port_spaces_are_apart,
    the_wildcard_of_ipv6_takes_both_families,
    calls_out_of_turn_change_nothing,
    a_multicast_group_is_joined_and_left,
];

const LONG: Duration = Duration::from_secs(2);

/// A Host's connection manager, and what a program has besides.
struct End {
    side: Side,
    channel: Arc<EventChannel>,
}

impl End {
    fn new(f: &Fabric) -> End {
        let side = f.side();
        let channel = EventChannel::new(side.context.host()).unwrap();
        nonblocking(channel.fd());
        End { side, channel }
    }

    fn id(&self, space: PortSpace) -> Arc<CmId> {
        CmId::new(&self.channel, space, None).unwrap()
    }

    /// Listens on a port of every address; the address that others find it at.
    fn listen(&self, space: PortSpace, backlog: u32) -> (Arc<CmId>, SocketAddr) {
        self.listen_with(self.id(space), backlog)
    }

    fn listen_with(&self, id: Arc<CmId>, backlog: u32) -> (Arc<CmId>, SocketAddr) {
        id.bind(SocketAddr::from(([0; 4], 0))).unwrap();
        id.listen(backlog).unwrap();
        let port = id.local_addr().unwrap().port();
        (id, SocketAddr::new(self.side.gid().to_ip(), port))
    }

    /// An id with a route to that address.
    fn routed(&self, f: &Fabric, space: PortSpace, to: SocketAddr) -> Arc<CmId> {
        self.route(f, self.id(space), to)
    }

    fn route(&self, f: &Fabric, id: Arc<CmId>, to: SocketAddr) -> Arc<CmId> {
        id.resolve_addr(None, to, LONG).unwrap();
        assert_eq!(self.next(f).kind(), CmEventKind::AddrResolved);
        id.resolve_route(LONG).unwrap();
        assert_eq!(self.next(f).kind(), CmEventKind::RouteResolved);
        id
    }

    /// The next event.
    #[track_caller]
    fn next(&self, f: &Fabric) -> CmEvent {
        let mut event = None;
        f.sleep_until("an event", || {
            event = self.channel.next_event().ok();
            event.is_some()
        });
        event.unwrap()
    }

    /// The next event, which must be that.
    #[track_caller]
    fn expect(&self, f: &Fabric, kind: CmEventKind) -> CmEvent {
        let event = self.next(f);
        assert_eq!(event.kind(), kind, "status {}", event.status());
        event
    }

    fn qp(&self, id: &CmId) -> Arc<Qp> {
        let qp = self.side.qp(id.qp_type());
        id.attach_qp(Some(&qp)).unwrap();
        qp
    }

    fn quiet(&self) -> bool {
        !readable(self.channel.fd())
    }
}

fn two(f: &Fabric) -> (End, End) {
    (End::new(f), End::new(f))
}

fn param() -> ConnParam {
    ConnParam {
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

fn with(bytes: &[u8]) -> ConnParam {
    ConnParam { private_data: bytes.to_vec(), ..param() }
}

#[track_caller]
fn conn(event: &CmEvent) -> &ConnParam {
    match event.param() {
        EventParam::Conn(param) => param,
        other => panic!("{:?} says {other:?}", event.kind()),
    }
}

#[track_caller]
fn ud(event: &CmEvent) -> &UdParam {
    match event.param() {
        EventParam::Ud(param) => param,
        other => panic!("{:?} says {other:?}", event.kind()),
    }
}

/// A connection with queue pairs on both sides.
struct Connected {
    a: Arc<CmId>,
    b: Arc<CmId>,
    x: Arc<Qp>,
    y: Arc<Qp>,
    _listener: Arc<CmId>,
}

#[track_caller]
fn connect(f: &Fabric, client: &End, server: &End) -> Connected {
    let (listener, to) = server.listen(PortSpace::Tcp, 0);
    connect_to(f, client, server, listener, to)
}

#[track_caller]
fn connect_to(
    f: &Fabric,
    client: &End,
    server: &End,
    listener: Arc<CmId>,
    to: SocketAddr,
) -> Connected {
    let a = client.routed(f, PortSpace::Tcp, to);
    let x = client.qp(&a);
    a.connect(&param()).unwrap();
    let request = server.expect(f, CmEventKind::ConnectRequest);
    assert!(Arc::ptr_eq(request.listen_id().unwrap(), &listener));
    let b = request.id().clone();
    drop(request);
    let y = server.qp(&b);
    b.accept(Some(&param())).unwrap();
    client.expect(f, CmEventKind::Established);
    server.expect(f, CmEventKind::Established);
    Connected { a, b, x, y, _listener: listener }
}

fn errno_of<T: std::fmt::Debug>(result: Result<T, CmError>) -> i32 {
    result.unwrap_err().errno()
}

fn a_connection_carries_data_both_ways(f: &Fabric) {
    let (client, server) = two(f);
    let Connected { a, b, x, y, .. } = connect(f, &client, &server);
    assert_eq!(a.peer_addr().unwrap().port(), b.local_addr().unwrap().port());
    assert_eq!(b.peer_addr().unwrap().port(), a.local_addr().unwrap().port());
    assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Rts));
    let (one, other) = (&client.side, &server.side);
    for (from, to, p, q) in [(one, other, &x, &y), (other, one, &y, &x)] {
        let sent = pattern(5000, 3);
        from.fill(0, &sent);
        q.post_recv(7, &[to.sge(8192, 8192)]).unwrap();
        p.post_send(&wr(8, WrOpcode::Send), Payload::Sges(&[from.sge(0, 5000)])).unwrap();
        assert_eq!(outcomes(&f.completions(to, 1)), [(7, WcStatus::Success)]);
        assert_eq!(outcomes(&f.completions(from, 1)), [(8, WcStatus::Success)]);
        assert_eq!(to.read(8192, 5000), sent);
    }
    // READs: the depths were agreed on.
    let read = one.remote(9, WrOpcode::Read, 0);
    y.post_send(&read, Payload::Sges(&[other.sge(20_000, 5000)])).unwrap();
    assert_eq!(outcomes(&f.completions(other, 1)), [(9, WcStatus::Success)]);
}

fn private_data_arrives_padded(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    client.qp(&a);
    let full: Vec<u8> = (0..private_data::CONNECT as u8).collect();
    a.connect(&with(&full)).unwrap();
    let request = server.expect(f, CmEventKind::ConnectRequest);
    assert_eq!(conn(&request).private_data, full);
    let b = request.id().clone();
    server.qp(&b);
    b.accept(Some(&with(b"welcome"))).unwrap();
    let mut padded = b"welcome".to_vec();
    padded.resize(private_data::ACCEPT, 0);
    assert_eq!(conn(&client.expect(f, CmEventKind::Established)).private_data, padded);
}

fn depths_are_swapped_for_the_peer(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    let x = client.qp(&a);
    a.connect(&ConnParam { responder_resources: 3, initiator_depth: 5, ..param() }).unwrap();
    let request = server.expect(f, CmEventKind::ConnectRequest);
    let asked = conn(&request);
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 3));
    assert_eq!(asked.qp_num, x.qpn());
    let b = request.id().clone();
    let y = server.qp(&b);
    b.accept(Some(&ConnParam { responder_resources: 2, initiator_depth: 1, ..param() })).unwrap();
    let established = client.expect(f, CmEventKind::Established);
    let given = conn(&established);
    assert_eq!((given.responder_resources, given.initiator_depth), (1, 2));
    assert_eq!(given.qp_num, y.qpn());
    let depths = |qp: &Qp| (qp.query().max_dest_rd_atomic, qp.query().max_rd_atomic);
    assert_eq!((depths(&x), depths(&y)), ((1, 2), (2, 1)));
    server.expect(f, CmEventKind::Established);

    // "As many as possible", and what a request says, where nothing else is said.
    let a = client.routed(f, PortSpace::Tcp, to);
    let x = client.qp(&a);
    a.connect(&ConnParam { responder_resources: 255, initiator_depth: 6, ..param() }).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    let y = server.qp(&b);
    b.accept(None).unwrap();
    client.expect(f, CmEventKind::Established);
    let most = client.side.context.attr().max_qp_rd_atom as u8;
    assert_eq!((depths(&x), depths(&y)), ((most, 6), (6, most)));

    let a = client.routed(f, PortSpace::Tcp, to);
    client.qp(&a);
    let too_many = ConnParam { initiator_depth: most + 1, ..param() };
    assert_eq!(errno_of(a.connect(&too_many)), EINVAL);
}

fn private_data_that_is_too_long_is_refused(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    client.qp(&a);
    assert_eq!(errno_of(a.connect(&with(&[1; private_data::CONNECT + 1]))), EINVAL);
    // The id is as it was.
    a.connect(&param()).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    server.qp(&b);
    assert_eq!(errno_of(b.reject(&[1; private_data::REJECT + 1])), EINVAL);
    assert_eq!(errno_of(b.accept(Some(&with(&[1; private_data::ACCEPT + 1])))), EINVAL);
    b.accept(Some(&with(&[1; private_data::ACCEPT]))).unwrap();
    client.expect(f, CmEventKind::Established);
    server.expect(f, CmEventKind::Established);

    let (_listener, to) = server.listen(PortSpace::Udp, 0);
    let a = client.routed(f, PortSpace::Udp, to);
    assert_eq!(errno_of(a.connect(&with(&[1; private_data::UD_CONNECT + 1]))), EINVAL);
    a.connect(&with(&[1; private_data::UD_CONNECT])).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    assert_eq!(errno_of(b.accept(Some(&with(&[1; private_data::UD_ACCEPT + 1])))), EINVAL);
    b.accept(Some(&with(&[1; private_data::UD_ACCEPT]))).unwrap();
    client.expect(f, CmEventKind::Established);
}

fn nobody_listens(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Tcp, 0);
    listener.destroy().unwrap();
    let a = client.routed(f, PortSpace::Tcp, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    assert_eq!(client.expect(f, CmEventKind::Rejected).status(), 8);
    assert!(server.quiet());
}

fn a_request_is_refused_with_the_programs_words(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    b.reject(b"no").unwrap();
    let rejected = client.expect(f, CmEventKind::Rejected);
    assert_eq!(rejected.status(), 28);
    let mut padded = b"no".to_vec();
    padded.resize(private_data::REJECT, 0);
    assert_eq!(conn(&rejected).private_data, padded);
    drop(rejected);
    assert_eq!(errno_of(b.accept(None)), EINVAL);
    a.destroy().unwrap();
    b.destroy().unwrap();
    assert!(client.quiet() && server.quiet());
}

fn either_side_disconnects_once(f: &Fabric) {
    let (client, server) = two(f);
    for by_client in [true, false] {
        let Connected { a, b, x, y, .. } = connect(f, &client, &server);
        let (one, other) = if by_client { (&a, &b) } else { (&b, &a) };
        one.disconnect().unwrap();
        client.expect(f, CmEventKind::Disconnected);
        server.expect(f, CmEventKind::Disconnected);
        one.disconnect().unwrap();
        other.disconnect().unwrap();
        assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err));
        // The only thing to come is that the queue pairs may be used again.
        client.expect(f, CmEventKind::TimewaitExit);
        server.expect(f, CmEventKind::TimewaitExit);
        assert!(client.quiet() && server.quiet());
    }
}

fn both_sides_disconnect_at_once(f: &Fabric) {
    let (client, server) = two(f);
    let Connected { a, b, .. } = connect(f, &client, &server);
    a.disconnect().unwrap();
    b.disconnect().unwrap();
    client.expect(f, CmEventKind::Disconnected);
    server.expect(f, CmEventKind::Disconnected);
    client.expect(f, CmEventKind::TimewaitExit);
    server.expect(f, CmEventKind::TimewaitExit);
    assert!(client.quiet() && server.quiet());
}

fn a_connection_without_queue_pairs(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    let (x, y) = (client.side.qp(QpType::Rc), server.side.qp(QpType::Rc));
    assert_eq!(errno_of(a.qp_attr(QpState::Rtr)), EINVAL);
    a.connect(&ConnParam { qp_num: x.qpn(), ..param() }).unwrap();
    let request = server.expect(f, CmEventKind::ConnectRequest);
    let b = request.id().clone();
    assert_eq!(conn(&request).qp_num, x.qpn());
    b.accept(Some(&ConnParam { qp_num: y.qpn(), ..param() })).unwrap();
    let response = client.expect(f, CmEventKind::ConnectResponse);
    assert_eq!(conn(&response).qp_num, y.qpn());
    for (id, qp) in [(&a, &x), (&b, &y)] {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = id.qp_attr(state).unwrap();
            qp.modify(&attr, mask).unwrap();
        }
    }
    a.establish().unwrap();
    server.expect(f, CmEventKind::Established);
    assert_eq!(errno_of(a.establish()), EINVAL);
    assert_eq!(errno_of(b.notify(EventKind::CommEst)), EISCONN);
    y.post_recv(1, &[server.side.sge(0, 64)]).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[client.side.sge(0, 64)])).unwrap();
    assert_eq!(outcomes(&f.completions(&server.side, 1)), [(1, WcStatus::Success)]);
}

fn a_response_can_be_refused(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    a.connect(&ConnParam { qp_num: 77, ..param() }).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    b.accept(Some(&ConnParam { qp_num: 78, ..param() })).unwrap();
    client.expect(f, CmEventKind::ConnectResponse);
    a.reject(b"after all, no").unwrap();
    let rejected = server.expect(f, CmEventKind::Rejected);
    assert_eq!(rejected.status(), 28);
    assert!(conn(&rejected).private_data.starts_with(b"after all, no\0"));
}

fn the_responder_may_learn_by_data_that_it_is_connected(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    a.connect(&ConnParam { qp_num: 77, ..param() }).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    assert_eq!(errno_of(b.notify(EventKind::CommEst)), EINVAL);
    b.accept(Some(&ConnParam { qp_num: 78, ..param() })).unwrap();
    b.notify(EventKind::CommEst).unwrap();
    server.expect(f, CmEventKind::Established);
    client.expect(f, CmEventKind::ConnectResponse);
    a.establish().unwrap();
    f.settle_for(50_000_000);
    assert!(server.quiet() && client.quiet());
}

fn the_backlog_holds(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 2);
    let ids: Vec<_> = (0..4)
        .map(|n| {
            let id = client.routed(f, PortSpace::Tcp, to);
            id.connect(&ConnParam { qp_num: 100 + n, ..param() }).unwrap();
            id
        })
        .collect();
    f.settle_for(100_000_000);
    let mut waiting = Vec::new();
    while let Ok(event) = server.channel.next_event() {
        assert_eq!(event.kind(), CmEventKind::ConnectRequest);
        waiting.push(event.id().clone());
        if waiting.len() == 2 {
            break;
        }
    }
    assert_eq!(waiting.len(), 2);
    assert!(server.quiet(), "more requests than the backlog");
    // The others ask again, and are heard now.
    for _ in 0..2 {
        waiting.push(server.expect(f, CmEventKind::ConnectRequest).id().clone());
    }
    drop(ids);
}

fn a_listener_that_goes_refuses_what_waits(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    a.connect(&ConnParam { qp_num: 77, ..param() }).unwrap();
    f.sleep_until("the request", || !server.quiet());
    listener.destroy().unwrap();
    assert!(server.quiet());
    assert_eq!(client.expect(f, CmEventKind::Rejected).status(), 28);
}

fn a_listener_that_migrates_takes_along_what_waits(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    a.connect(&ConnParam { qp_num: 77, ..param() }).unwrap();
    f.sleep_until("the request", || !server.quiet());
    let other = End::new(f);
    let channel = EventChannel::new(server.side.context.host()).unwrap();
    nonblocking(channel.fd());
    let server_there = End { channel: channel.clone(), ..other };
    listener.migrate(&channel).unwrap();
    assert!(server.quiet());
    let asked = server_there.expect(f, CmEventKind::ConnectRequest).id().clone();
    asked.accept(Some(&ConnParam { qp_num: 78, ..param() })).unwrap();
    client.expect(f, CmEventKind::ConnectResponse);
    a.establish().unwrap();
    server_there.expect(f, CmEventKind::Established);
    a.disconnect().unwrap();
    server_there.expect(f, CmEventKind::Disconnected);
    assert!(server.quiet());
}

fn a_request_that_is_destroyed_is_refused(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Tcp, to);
    a.connect(&ConnParam { qp_num: 77, ..param() }).unwrap();
    // The event counts for the listener: the request itself may go before it is acknowledged.
    let event = server.expect(f, CmEventKind::ConnectRequest);
    event.id().destroy().unwrap();
    assert_eq!(client.expect(f, CmEventKind::Rejected).status(), 28);
    drop(event);
}

fn an_id_that_is_destroyed_disconnects(f: &Fabric) {
    let (client, server) = two(f);
    let Connected { a, b, .. } = connect(f, &client, &server);
    a.destroy().unwrap();
    let event = server.expect(f, CmEventKind::Disconnected);
    assert!(Arc::ptr_eq(event.id(), &b));
    assert!(client.quiet());
}

fn datagram_services_are_found(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Udp, 0);
    let a = client.routed(f, PortSpace::Udp, to);
    let x = client.qp(&a);
    assert_eq!(x.state(), QpState::Rts);
    a.connect(&with(b"who is there")).unwrap();
    let request = server.expect(f, CmEventKind::ConnectRequest);
    assert!(Arc::ptr_eq(request.listen_id().unwrap(), &listener));
    let mut padded = b"who is there".to_vec();
    padded.resize(private_data::UD_CONNECT, 0);
    assert_eq!(ud(&request).private_data, padded);
    let b = request.id().clone();
    drop(request);
    let y = server.qp(&b);
    b.accept(Some(&with(b"me"))).unwrap();
    let established = client.expect(f, CmEventKind::Established);
    let service = ud(&established);
    assert_eq!((service.qp_num, service.qkey), (y.qpn(), 0x0123_4567));
    let mut padded = b"me".to_vec();
    padded.resize(private_data::UD_ACCEPT, 0);
    assert_eq!(service.private_data, padded);
    assert!(server.quiet());
    let path = client.side.pd.create_ah(&service.ah_attr).unwrap().path();
    y.post_recv(1, &[server.side.sge(0, 4096)]).unwrap();
    let dest = UdDest { path, qpn: service.qp_num, qkey: service.qkey };
    let send = SendWr { ud: Some(dest), ..wr(2, WrOpcode::Send) };
    x.post_send(&send, Payload::Sges(&[client.side.sge(0, 64)])).unwrap();
    assert_eq!(outcomes(&f.completions(&server.side, 1)), [(1, WcStatus::Success)]);
}

fn datagram_services_that_are_not_there(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Udp, 0);
    let a = client.routed(f, PortSpace::Udp, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    b.reject(b"").unwrap();
    let refused = client.expect(f, CmEventKind::Unreachable);
    assert_eq!(refused.status(), 2);
    drop(refused);
    listener.destroy().unwrap();
    let a = client.routed(f, PortSpace::Udp, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    assert_eq!(client.expect(f, CmEventKind::Unreachable).status(), 1);
}

fn unreliable_connections(f: &Fabric) {
    let (client, server) = two(f);
    let uc = |end: &End| CmId::new(&end.channel, PortSpace::Ib, Some(QpType::Uc)).unwrap();
    let (_listener, to) = server.listen_with(uc(&server), 0);
    let a = client.route(f, uc(&client), to);
    let x = client.qp(&a);
    a.connect(&param()).unwrap();
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    assert_eq!(b.qp_type(), QpType::Uc);
    let y = server.qp(&b);
    b.accept(Some(&param())).unwrap();
    client.expect(f, CmEventKind::Established);
    server.expect(f, CmEventKind::Established);
    y.post_recv(1, &[server.side.sge(0, 64)]).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[client.side.sge(0, 64)])).unwrap();
    assert_eq!(outcomes(&f.completions(&server.side, 1)), [(1, WcStatus::Success)]);
    // A reliable one is not what is listened for.
    let a = client.routed(f, PortSpace::Ib, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    assert_eq!(client.expect(f, CmEventKind::Rejected).status(), 9);
}

fn port_spaces_are_apart(f: &Fabric) {
    let (client, server) = two(f);
    let (_listener, to) = server.listen(PortSpace::Tcp, 0);
    let a = client.routed(f, PortSpace::Ib, to);
    client.qp(&a);
    a.connect(&param()).unwrap();
    assert_eq!(client.expect(f, CmEventKind::Rejected).status(), 8);
}

fn the_wildcard_of_ipv6_takes_both_families(f: &Fabric) {
    let (client, server) = two(f);
    let listener = server.id(PortSpace::Tcp);
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let gids = server.side.context.gid_table(1);
    for v4 in [true, false] {
        let gid = gids.iter().map(|entry| entry.gid).find(|gid| gid.is_ipv4() == v4).unwrap();
        let to = SocketAddr::new(gid.to_ip(), port);
        let Connected { a, b, .. } = connect_to(f, &client, &server, listener.clone(), to);
        assert_eq!(b.local_addr().unwrap(), to);
        drop((a, b));
        f.settle_for(50_000_000);
        while client.channel.next_event().is_ok() || server.channel.next_event().is_ok() {}
    }
}

fn calls_out_of_turn_change_nothing(f: &Fabric) {
    let (client, server) = two(f);
    let (listener, to) = server.listen(PortSpace::Tcp, 0);
    assert_eq!(errno_of(listener.connect(&param())), EINVAL);
    assert_eq!(errno_of(listener.accept(None)), EINVAL);
    assert_eq!(errno_of(listener.listen(0)), EINVAL);
    assert_eq!(errno_of(listener.resolve_addr(None, to, LONG)), EINVAL);
    let a = client.id(PortSpace::Tcp);
    assert_eq!(errno_of(a.connect(&param())), EINVAL);
    assert_eq!(errno_of(a.disconnect()), EINVAL);
    assert_eq!(errno_of(a.reject(&[])), EINVAL);
    assert_eq!(errno_of(a.establish()), EINVAL);
    assert_eq!(errno_of(a.qp_attr(QpState::Init)), EINVAL);
    let qp = client.side.qp(QpType::Rc);
    assert_eq!(errno_of(a.attach_qp(Some(&qp))), EINVAL);
    let a = client.route(f, a, to);
    let other = client.side.qp(QpType::Uc);
    assert_eq!(errno_of(a.attach_qp(Some(&other))), EINVAL);
    a.attach_qp(Some(&qp)).unwrap();
    assert_eq!(errno_of(a.attach_qp(Some(&qp))), EINVAL);
    assert_eq!(errno_of(a.bind(to)), EINVAL);
    a.connect(&param()).unwrap();
    assert_eq!(errno_of(a.connect(&param())), EINVAL);
    let b = server.expect(f, CmEventKind::ConnectRequest).id().clone();
    assert_eq!(errno_of(b.connect(&param())), EINVAL);
    server.qp(&b);
    b.accept(None).unwrap();
    assert_eq!(errno_of(b.accept(None)), EINVAL);
    assert_eq!(errno_of(b.reject(&[])), EINVAL);
    client.expect(f, CmEventKind::Established);
    server.expect(f, CmEventKind::Established);
}

fn a_multicast_group_is_joined_and_left(f: &Fabric) {
    let (one, other) = two(f);
    let group: SocketAddr = "239.1.2.99:7000".parse().unwrap();
    let mut members = Vec::new();
    for end in [&one, &other] {
        let id = end.id(PortSpace::Udp);
        assert_eq!(errno_of(id.join_multicast(group, McJoin::Full, 1)), EINVAL);
        id.bind(SocketAddr::new(end.side.gid().to_ip(), 0)).unwrap();
        let qp = end.qp(&id);
        assert_eq!(
            errno_of(id.join_multicast("10.0.0.1:1".parse().unwrap(), McJoin::Full, 1)),
            EINVAL
        );
        id.join_multicast(group, McJoin::Full, 4711).unwrap();
        let event = end.expect(f, CmEventKind::MulticastJoin);
        let param = ud(&event).clone();
        assert_eq!((param.qp_num, param.qkey, param.cookie), (0xff_ffff, 0x0123_4567, 4711));
        assert_eq!(param.ah_attr.dgid, Gid::from_ip(group.ip()));
        drop(event);
        qp.post_recv(1, &[end.side.sge(0, 4096)]).unwrap();
        members.push((id, qp, param));
    }
    let (id, x, param) = &members[0];
    let path = one.side.pd.create_ah(&param.ah_attr).unwrap().path();
    let dest = UdDest { path, qpn: param.qp_num, qkey: param.qkey };
    let send = SendWr { ud: Some(dest), ..wr(2, WrOpcode::Send) };
    x.post_send(&send, Payload::Sges(&[one.side.sge(8192, 64)])).unwrap();
    assert_eq!(outcomes(&f.completions(&other.side, 1)), [(1, WcStatus::Success)]);
    id.leave_multicast(group).unwrap();
    assert_eq!(x.detach_mcast(&param.ah_attr.dgid).unwrap_err().errno(), EINVAL);
    // What is destroyed leaves.
    let (id, y, param) = &members[1];
    id.destroy().unwrap();
    assert_eq!(y.detach_mcast(&param.ah_attr.dgid).unwrap_err().errno(), EINVAL);
}

/// In virtual time: a peer that is not there.
#[test]
fn a_silent_peer_is_unreachable() {
    let f = Fabric::simulated();
    let client = End::new(&f);
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let a = client.routed(&f, space, "10.1.0.99:7".parse().unwrap());
        client.qp(&a);
        a.connect(&param()).unwrap();
        let event = client.expect(&f, CmEventKind::Unreachable);
        assert_eq!(event.status(), -ETIMEDOUT, "{space:?}");
    }
}
