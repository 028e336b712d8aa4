//! The parts that need no peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ironverbs_sys::errno;
use ironverbs_wire::Gid;

use super::*;
use crate::Host;
use crate::sim::Network;

const SECOND: Duration = Duration::from_secs(1);

struct Side {
    _network: Network,
    channel: Arc<EventChannel>,
}

impl Side {
    fn new() -> Side {
        let network = Network::new(1);
        let addresses = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let host: Host = network.host(&addresses).unwrap();
        Side { _network: network, channel: EventChannel::new(&host).unwrap() }
    }

    fn id(&self, space: PortSpace) -> Arc<CmId> {
        CmId::new(&self.channel, space, None).unwrap()
    }

    fn event(&self) -> CmEvent {
        self.channel.next_event().unwrap()
    }
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn errno_of<T: std::fmt::Debug>(result: Result<T, CmError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn an_address_then_a_route_is_resolved() {
    let side = Side::new();
    let id = side.id(PortSpace::Tcp);
    assert_eq!(errno_of(id.resolve_route(SECOND)), errno::EINVAL);
    id.set_options(Options { tos: 0x20, ..Options::default() }).unwrap();
    id.resolve_addr(None, addr("10.0.0.2:7471"), SECOND).unwrap();
    let event = side.event();
    assert_eq!((event.kind(), event.status()), (CmEventKind::AddrResolved, 0));
    assert!(Arc::ptr_eq(event.id(), &id));
    drop(event);
    let local = id.local_addr().unwrap();
    assert_eq!(local.ip(), addr("10.0.0.1:0").ip());
    assert_ne!(local.port(), 0);
    assert!(id.device().is_some());
    assert_eq!(id.port_num(), 1);
    assert_eq!(errno_of(id.resolve_addr(None, addr("10.0.0.2:7471"), SECOND)), errno::EINVAL);
    id.resolve_route(SECOND).unwrap();
    assert_eq!(side.event().kind(), CmEventKind::RouteResolved);
    let route = id.route().unwrap();
    assert_eq!(route.path.dgid, Gid::from_ip(addr("10.0.0.2:0").ip()));
    assert_eq!(route.path.sgid, Gid::from_ip(addr("10.0.0.1:0").ip()));
    assert_eq!((route.path.traffic_class, route.path.hop_limit), (0x20, 64));
    id.destroy().unwrap();
}

#[test]
fn loopback_is_a_device_of_either_family() {
    let side = Side::new();
    for (to, own) in [("127.0.0.1:1", "10.0.0.1"), ("[::1]:1", "fd00::1")] {
        let id = side.id(PortSpace::Tcp);
        id.resolve_addr(None, addr(to), SECOND).unwrap();
        assert_eq!(side.event().kind(), CmEventKind::AddrResolved, "{to}");
        let own = Gid::from_ip(own.parse().unwrap());
        assert_eq!((id.gid().unwrap().1, id.peer_gid()), (own, Some(own)), "{to}");
        assert_eq!(id.local_addr().unwrap().ip(), addr(to).ip(), "{to}");
    }
}

#[test]
fn bound_to_loopback_is_not_yet_on_a_device() {
    let side = Side::new();
    let id = side.id(PortSpace::Tcp);
    id.bind(addr("127.0.0.1:0")).unwrap();
    assert!(id.device().is_none());
    id.resolve_addr(None, addr("127.0.0.1:1"), SECOND).unwrap();
    assert_eq!(side.event().kind(), CmEventKind::AddrResolved);
    assert!(id.device().is_some());
    assert_eq!(id.local_addr().unwrap().ip(), addr("127.0.0.1:0").ip());
}

#[test]
fn link_local_without_a_scope_is_refused_at_once() {
    let side = Side::new();
    let id = side.id(PortSpace::Tcp);
    assert_eq!(errno_of(id.resolve_addr(None, addr("[fe80::9]:1"), SECOND)), errno::EINVAL);
    assert_eq!(errno_of(id.bind(addr("[fe80::9]:1"))), errno::EINVAL);
    // The id is as it was.
    id.bind(addr("[fd00::1]:0")).unwrap();
    let families = id.resolve_addr(None, addr("10.0.0.2:1"), SECOND);
    assert_eq!(errno_of(families), errno::EINVAL);
}

#[test]
fn ports_are_taken_and_given_back() {
    let side = Side::new();
    let [first, second, third] = [(); 3].map(|()| side.id(PortSpace::Tcp));
    assert_eq!(errno_of(first.bind(addr("10.9.9.9:0"))), errno::EADDRNOTAVAIL);
    first.bind(addr("0.0.0.0:0")).unwrap();
    let port = first.local_addr().unwrap().port();
    assert_ne!(port, 0);
    assert!(first.device().is_none());
    let taken = SocketAddr::new(addr("10.0.0.1:0").ip(), port);
    assert_eq!(errno_of(second.bind(taken)), errno::EADDRINUSE);
    // Other port spaces have ports of their own.
    side.id(PortSpace::Udp).bind(taken).unwrap();
    assert_eq!(errno_of(first.bind(taken)), errno::EINVAL);
    first.destroy().unwrap();
    assert_eq!(errno_of(first.listen(0)), errno::EINVAL);
    second.bind(taken).unwrap();
    assert!(second.device().is_some());
    second.listen(0).unwrap();
    assert_eq!(errno_of(third.bind(taken)), errno::EADDRINUSE);
    third.bind(SocketAddr::new(addr("[fd00::1]:0").ip(), port)).unwrap();
}

#[test]
fn reuse_needs_both_and_nobody_who_listens() {
    let side = Side::new();
    let reuse = || {
        let id = side.id(PortSpace::Tcp);
        id.set_options(Options { reuse_addr: true, ..Options::default() }).unwrap();
        id
    };
    let (first, second, third) = (reuse(), reuse(), reuse());
    first.bind(addr("10.0.0.1:4000")).unwrap();
    second.bind(addr("10.0.0.1:4000")).unwrap();
    assert_eq!(errno_of(side.id(PortSpace::Tcp).bind(addr("10.0.0.1:4000"))), errno::EADDRINUSE);
    assert_eq!(errno_of(first.listen(1)), errno::EADDRINUSE);
    drop(second);
    first.listen(1).unwrap();
    assert_eq!(errno_of(third.bind(addr("10.0.0.1:4000"))), errno::EADDRINUSE);
}

#[test]
fn the_wildcards_of_both_families_collide_unless_told_apart() {
    let side = Side::new();
    let only = |only| {
        let id = side.id(PortSpace::Tcp);
        id.set_options(Options { af_only: only, ..Options::default() }).unwrap();
        id
    };
    let (v6, v4) = (only(false), only(false));
    v6.bind(addr("[::]:4000")).unwrap();
    assert_eq!(errno_of(v4.bind(addr("0.0.0.0:4000"))), errno::EADDRINUSE);
    let (v6, v4) = (only(true), only(true));
    v6.bind(addr("[::]:4001")).unwrap();
    v4.bind(addr("0.0.0.0:4001")).unwrap();
}

#[test]
fn migration_takes_unread_events_along() {
    let side = Side::new();
    let other = EventChannel::new(side.channel.host()).unwrap();
    let (id, stays) = (side.id(PortSpace::Tcp), side.id(PortSpace::Tcp));
    id.resolve_addr(None, addr("10.0.0.2:1"), SECOND).unwrap();
    stays.resolve_addr(None, addr("10.0.0.2:1"), SECOND).unwrap();
    id.migrate(&other).unwrap();
    assert!(Arc::ptr_eq(other.next_event().unwrap().id(), &id));
    assert!(Arc::ptr_eq(side.event().id(), &stays));
    id.resolve_route(SECOND).unwrap();
    assert_eq!(other.next_event().unwrap().kind(), CmEventKind::RouteResolved);
}

#[test]
fn destroying_waits_for_acknowledgements() {
    let side = Side::new();
    let id = side.id(PortSpace::Tcp);
    id.resolve_addr(None, addr("10.0.0.2:1"), SECOND).unwrap();
    let event = side.event();
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            id.destroy().unwrap();
            gone.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!gone.load(Ordering::Acquire));
        event.ack();
    });
    assert!(gone.load(Ordering::Acquire));
}

#[test]
fn unread_events_go_with_their_id() {
    let side = Side::new();
    let (id, other) = (side.id(PortSpace::Tcp), side.id(PortSpace::Tcp));
    id.resolve_addr(None, addr("10.0.0.2:1"), SECOND).unwrap();
    other.resolve_addr(None, addr("10.0.0.2:1"), SECOND).unwrap();
    id.destroy().unwrap();
    assert!(Arc::ptr_eq(side.event().id(), &other));
}
