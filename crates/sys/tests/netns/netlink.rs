//! Listings, notices and routes of interfaces made for the purpose.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ironverbs_sys::event::{Epoll, Event, Interest};
use ironverbs_sys::netlink::{Address, Interface, Monitor, interfaces, route_through, route_to};

use crate::WATCHDOG;
use crate::link::{A_LOCAL, A4, A6, B_LOCAL, B4, B6, Link, interface, wait_until_up};
use crate::namespace::Namespace;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn list(namespace: &Namespace) -> Vec<Interface> {
    namespace.run(|| interfaces().unwrap())
}

/// Waits until the monitor says that something changed.
fn wait_for_change(monitor: &Monitor) {
    let epoll = Epoll::new().unwrap();
    epoll.add(monitor.as_fd(), 0, Interest::READ).unwrap();
    let end = Instant::now() + WATCHDOG;
    while !monitor.drain().unwrap() {
        assert!(Instant::now() < end, "no notice");
        epoll.wait(&mut [Event::EMPTY], Some(Duration::from_millis(100))).unwrap();
    }
}

#[test]
fn a_new_namespace_has_loopback_alone() {
    let namespace = Namespace::new();
    let all = list(&namespace);
    assert_eq!(all.len(), 1, "{all:?}");
    let lo = &all[0];
    assert_eq!((lo.index, lo.name.as_str(), lo.mtu, lo.mac), (1, "lo", 65536, [0; 6]));
    assert!(lo.loopback && lo.up);
    let ips: Vec<_> = lo.addresses.iter().map(|a| (a.ip, a.prefix, a.scope)).collect();
    assert_eq!(ips, [(ip("127.0.0.1"), 8, 254), (ip("::1"), 128, 254)]);
}

#[test]
fn interfaces_are_listed_as_they_are() {
    let namespace = Namespace::new();
    namespace.ip("link add v address 02:00:00:00:00:07 mtu 4200 type veth peer name w");
    namespace.ip("link set v addrgenmode none");
    namespace.ip("addr add 10.1.0.1/16 dev v");
    namespace.ip("addr add 10.2.0.1 peer 10.2.0.2/32 dev v");
    namespace.ip("addr add fd01::1/64 dev v nodad preferred_lft 0");
    // The interface is down: whether the address is unique cannot be known.
    namespace.ip("addr add fd01::2/64 dev v");
    let v = interface(&namespace);
    assert_eq!((v.mtu, v.mac, v.loopback), (4200, [2, 0, 0, 0, 0, 7], false));
    assert!(!v.up);
    let address = |text, prefix, scope, tentative, deprecated| Address {
        ip: ip(text),
        prefix,
        scope,
        tentative,
        deprecated,
    };
    let mut addresses = v.addresses.clone();
    addresses.sort_by_key(|a| a.ip);
    assert_eq!(
        addresses,
        [
            address("10.1.0.1", 16, 0, false, false),
            address("10.2.0.1", 32, 0, false, false),
            address("fd01::1", 64, 0, false, true),
            address("fd01::2", 64, 0, true, false),
        ]
    );

    // On, but the other end is not: no carrier.
    namespace.ip("link set v up");
    assert!(!interface(&namespace).up);
    namespace.ip("link set w up");
    wait_until_up(&namespace);

    let indices: Vec<_> = list(&namespace).iter().map(|i| i.index).collect();
    assert!(indices.is_sorted(), "{indices:?}");
    assert_eq!(indices.len(), 3);
}

#[test]
fn many_addresses_take_many_replies() {
    let namespace = Namespace::new();
    namespace.ip("link add v type veth peer name w");
    for i in 0..250 {
        namespace.ip(&format!("addr add 10.3.{i}.1/24 dev v"));
    }
    assert_eq!(interface(&namespace).addresses.len(), 250);
}

#[test]
fn the_monitor_notices_interfaces_and_addresses() {
    let namespace = Namespace::new();
    let monitor = namespace.run(|| Monitor::new().unwrap());
    // What the new namespace's loopback interface still has to say.
    let _ = monitor.drain().unwrap();
    assert!(!monitor.drain().unwrap(), "nothing happened");

    for change in [
        "link add v type veth peer name w",
        "addr add 10.1.0.1/16 dev v",
        "addr add fd01::1/64 dev v nodad",
        "link set v mtu 4200",
        "addr del 10.1.0.1/16 dev v",
        "link del v",
    ] {
        namespace.ip(change);
        wait_for_change(&monitor);
        // One change may tell several times, the last of them a little later.
        while monitor.drain().unwrap() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_monitor_notices_the_carrier() {
    let namespace = Namespace::new();
    namespace.ip("link add v type veth peer name w");
    namespace.ip("link set v up");
    let monitor = namespace.run(|| Monitor::new().unwrap());
    assert!(!interface(&namespace).up);
    namespace.ip("link set w up");
    while !interface(&namespace).up {
        wait_for_change(&monitor);
    }
    namespace.ip("link set w down");
    while interface(&namespace).up {
        wait_for_change(&monitor);
    }
}

#[test]
fn the_monitor_survives_being_overrun() {
    let namespace = Namespace::new();
    let monitor = namespace.run(|| Monitor::new().unwrap());
    // Far more notices than its buffer holds.
    let space: libc::c_int = 1;
    // SAFETY: reads the integer `space`.
    let rc = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&monitor.as_fd()),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const space).cast(),
            size_of_val(&space) as _,
        )
    };
    assert_eq!(rc, 0);
    for i in 0..40 {
        namespace.ip(&format!("addr add 10.4.{i}.1/24 dev lo"));
    }
    assert!(monitor.drain().unwrap());
    namespace.ip("addr add 10.5.0.1/24 dev lo");
    wait_for_change(&monitor);
}

#[test]
fn routes_are_the_kernels() {
    let link = Link::new();
    link.a.ip(&format!("route add 10.88.0.0/16 via {B4} mtu 1400"));
    link.a.ip("route add unreachable 10.89.0.0/16");
    let v = interface(&link.a).index;
    link.a.run(|| {
        for (dst, src) in [(B4, A4), (B6, A6)] {
            let route = route_to(ip(dst), None).unwrap();
            assert_eq!((route.ifindex, route.gateway, route.local), (v, None, false));
            assert_eq!(route.prefer_src, Some(ip(src)));
            assert_eq!(route_to(ip(dst), Some(ip(src))).unwrap().ifindex, v);
        }
        let routed = route_to(ip("10.88.1.1"), None).unwrap();
        assert_eq!((routed.ifindex, routed.gateway, routed.mtu), (v, Some(ip(B4)), Some(1400)));
        for own in [A4, A6, "127.0.0.1", "::1"] {
            let route = route_to(ip(own), None).unwrap();
            assert!(route.local, "{own}: {route:?}");
            assert_eq!(route.ifindex, 1, "{own}: {route:?}");
        }
        let local = route_through(ip(B_LOCAL), Some(ip(A_LOCAL)), v).unwrap();
        assert_eq!((local.ifindex, local.local), (v, false));

        let errno = |dst| route_to(ip(dst), None).unwrap_err().raw_os_error();
        assert_eq!(errno("10.89.0.1"), Some(libc::EHOSTUNREACH));
        assert_eq!(errno("192.0.2.1"), Some(libc::ENETUNREACH));
        assert_eq!(errno("2001:db8::1"), Some(libc::ENETUNREACH));
        let mixed = route_to(ip(B4), Some(ip(A6))).unwrap_err();
        assert_eq!(mixed.kind(), std::io::ErrorKind::InvalidInput);
    });
}
