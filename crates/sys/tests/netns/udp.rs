//! The UDP sockets over a cable.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ironverbs_sys::event::{Epoll, Event, Interest};
use ironverbs_sys::udp::{BindOptions, Family, RxBatch, RxSocket, Transmit, TxSocket};
use ironverbs_wire::{Gid, Path, ROCE_PORT};

use crate::WATCHDOG;
use crate::capture::Capture;
use crate::link::{A_LOCAL, A4, A6, B_LOCAL, B4, B6, Link, interface};
use crate::namespace::Namespace;

fn path(src: &str, dst: &str) -> Path {
    let gid = |ip: &str| Gid::from_ip(ip.parse::<IpAddr>().unwrap());
    Path { src: gid(src), dst: gid(dst), hop_limit: 64, ..Path::default() }
}

fn receiver(namespace: &Namespace) -> RxSocket {
    namespace.run(|| RxSocket::bind(ROCE_PORT, false).unwrap())
}

fn sender(namespace: &Namespace, family: Family) -> TxSocket {
    namespace.run(|| TxSocket::bind(family, 0).unwrap())
}

/// Receives `n` packets: each one's payload, path and interface.
fn receive(rx: &RxSocket, n: usize) -> Vec<(Vec<u8>, Path, u32)> {
    let epoll = Epoll::new().unwrap();
    epoll.add(rx.as_fd(), 0, Interest::READ).unwrap();
    let mut batch = RxBatch::new(8);
    let mut packets = Vec::new();
    let end = Instant::now() + WATCHDOG;
    while packets.len() < n {
        assert!(Instant::now() < end, "received {} packets of {n}", packets.len());
        epoll.wait(&mut [Event::EMPTY], Some(Duration::from_millis(100))).unwrap();
        rx.recv(&mut batch).unwrap();
        for m in batch.messages() {
            packets.extend(m.segments().map(|s| (s.to_vec(), m.path, m.ifindex)));
        }
    }
    packets
}

/// Packets of `size` bytes, each full of its number.
fn numbered(n: u8, size: usize) -> Vec<u8> {
    (0..n).flat_map(|i| std::iter::repeat_n(i, size)).collect()
}

#[test]
fn identification_is_the_segment_index() {
    let link = Link::new();
    link.split_batches();
    let rx = receiver(&link.b);
    let tx = sender(&link.a, Family::V4);
    let mut capture = link.b.run(Capture::new);
    let path = path(A4, B4);

    let mut ids = |sent: &dyn Fn(), n: usize| -> Vec<u16> {
        sent();
        let frames = capture.take(n, ROCE_PORT);
        for frame in &frames {
            assert!(frame.dont_fragment && !frame.fragment, "{frame:?}");
            assert_eq!((frame.tos, frame.ttl), (0, 64));
            assert_eq!((frame.src, frame.dst), ([10, 77, 0, 1], [10, 77, 0, 2]));
            assert_eq!(frame.src_port, tx.local_port());
        }
        for (frame, (payload, got, _)) in frames.iter().zip(receive(&rx, n)) {
            assert_eq!(frame.payload, payload);
            assert_eq!(got, path);
        }
        frames.iter().map(|f| f.identification).collect()
    };
    let send = |bytes: &[u8], segment| tx.send(&path, ROCE_PORT, bytes, segment).unwrap();

    assert_eq!(ids(&|| (0..3).for_each(|_| send(b"plain", None)), 3), [0, 0, 0]);
    for (n, size) in [(5, 1000), (15, 4132), (64, 100)] {
        let batch = numbered(n, size);
        let expected: Vec<_> = (0..u16::from(n)).collect();
        assert_eq!(ids(&|| send(&batch, Some(size as u16)), n.into()), expected, "{n} of {size}");
    }
    // The last one shorter.
    assert_eq!(ids(&|| send(&[1; 44], Some(24)), 2), [0, 1]);
    assert_eq!(ids(&|| send(b"plain", None), 1), [0]);
    let two = [&b"first"[..], b"second, longer"].map(|bytes| Transmit {
        path: &path,
        ifindex: 0,
        dst_port: ROCE_PORT,
        bytes,
        segment: None,
    });
    assert_eq!(ids(&|| assert_eq!(tx.send_many(&two).unwrap(), 2), 2), [0, 0]);
}

#[test]
fn a_device_that_can_passes_the_batch_whole() {
    let link = Link::new();
    let rx = receiver(&link.b);
    for (family, path) in [(Family::V4, path(A4, B4)), (Family::V6, path(A6, B6))] {
        let tx = sender(&link.a, family);
        tx.send(&path, ROCE_PORT, &numbered(15, 4132), Some(4132)).unwrap();
        let packets = receive(&rx, 15);
        for (i, (payload, got, _)) in packets.iter().enumerate() {
            assert_eq!((payload, *got), (&vec![i as u8; 4132], path));
        }
        assert_eq!(packets.len(), 15);
    }
}

#[test]
fn a_packet_beyond_the_mtu_is_refused() {
    let link = Link::new();
    // The largest UDP payload in an MTU of 4200.
    for (family, path, fits) in
        [(Family::V4, path(A4, B4), 4200 - 28), (Family::V6, path(A6, B6), 4200 - 48)]
    {
        let tx = sender(&link.a, family);
        let bytes = vec![0; 3 * (fits + 1)];
        tx.send(&path, ROCE_PORT, &bytes[..fits], None).unwrap();
        let error = tx.send(&path, ROCE_PORT, &bytes[..fits + 1], None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE), "{family:?}");

        tx.send(&path, ROCE_PORT, &bytes[..3 * fits], Some(fits as u16)).unwrap();
        let error = tx.send(&path, ROCE_PORT, &bytes, Some(fits as u16 + 1)).unwrap_err();
        let sized = error.raw_os_error() == Some(libc::EMSGSIZE);
        assert!(sized || error.kind() == ErrorKind::Unsupported, "{family:?}: {error}");
    }
}

#[test]
fn link_local_addresses_work_by_interface() {
    let link = Link::new();
    let (index_a, index_b) = (interface(&link.a).index, interface(&link.b).index);
    let rx = receiver(&link.b);
    let tx = sender(&link.a, Family::V6);
    let path = path(A_LOCAL, B_LOCAL);
    let bytes = b"x";
    let transmit =
        Transmit { path: &path, ifindex: index_a, dst_port: ROCE_PORT, bytes, segment: None };
    tx.transmit(&transmit).unwrap();
    assert_eq!(receive(&rx, 1), [(bytes.to_vec(), path, index_b)]);
    assert!(tx.send(&path, ROCE_PORT, bytes, None).is_err(), "sent without an interface");
}

/// A source of ours, an address of the peer's, a group.
const GROUPS: [(Family, &str, &str, &str); 2] =
    [(Family::V4, A4, B4, "239.7.7.7"), (Family::V6, A6, B6, "ff1e::77")];

#[test]
fn a_group_is_heard_while_joined() {
    let link = Link::new();
    let (index_a, index_b) = (interface(&link.a).index, interface(&link.b).index);
    let elsewhere = link.b.run(|| RxSocket::bind(ROCE_PORT + 1, false).unwrap());
    let [v4, v6] = GROUPS;
    for (only_v4, (family, src, unicast, group)) in [(false, v4), (false, v6), (true, v4)] {
        let options = BindOptions { only_v4, ..BindOptions::default() };
        let rx = link.b.run(|| RxSocket::bind_with(&options).unwrap());
        let port = rx.local_port().unwrap();
        let tx = sender(&link.a, family);
        let (alone, grouped) = (path(src, unicast), path(src, group));
        let send = |path: &Path, bytes: &[u8]| {
            let (ifindex, dst_port) = (index_a, port);
            tx.transmit(&Transmit { path, ifindex, dst_port, bytes, segment: None }).unwrap();
        };
        let group: IpAddr = group.parse().unwrap();
        // The host listens to the group, on another port.
        elsewhere.join(group, index_b).unwrap();
        send(&grouped, b"not for us");
        send(&alone, b"first");
        assert_eq!(receive(&rx, 1), [(b"first".to_vec(), alone, index_b)]);

        rx.join(group, index_b).unwrap();
        assert_eq!(rx.join(group, index_b).unwrap_err().kind(), ErrorKind::AddrInUse);
        send(&grouped, b"for us");
        assert_eq!(receive(&rx, 1), [(b"for us".to_vec(), grouped, index_b)]);

        rx.leave(group, index_b).unwrap();
        assert_eq!(rx.leave(group, index_b).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        send(&grouped, b"no longer for us");
        send(&alone, b"last");
        assert_eq!(receive(&rx, 1), [(b"last".to_vec(), alone, index_b)]);
        elsewhere.leave(group, index_b).unwrap();
    }
}

#[test]
fn every_member_that_shares_the_port_hears_a_group() {
    let link = Link::new();
    let (index_a, index_b) = (interface(&link.a).index, interface(&link.b).index);
    let sockets = link.b.run(|| [(); 3].map(|()| RxSocket::bind(ROCE_PORT, true).unwrap()));
    let [first, second, bystander] = &sockets;
    for (family, src, _, group) in GROUPS {
        for member in [first, second] {
            member.join(group.parse().unwrap(), index_b).unwrap();
        }
        let tx = sender(&link.a, family);
        let (path, bytes) = (path(src, group), &[7; 100]);
        let (ifindex, dst_port) = (index_a, ROCE_PORT);
        tx.transmit(&Transmit { path: &path, ifindex, dst_port, bytes, segment: None }).unwrap();
        for member in [first, second] {
            assert_eq!(receive(member, 1), [(bytes.to_vec(), path, index_b)]);
        }
        // All copies are made at once: it would have one.
        assert_eq!(bystander.recv(&mut RxBatch::new(1)).unwrap(), 0);
    }
}

#[test]
fn without_ipv6_addresses_ipv4_still_arrives() {
    let link = Link::new();
    link.b.ip("-6 addr flush dev v");
    link.b.ip("-6 addr flush dev lo");
    let rx = receiver(&link.b);
    let tx = sender(&link.a, Family::V4);
    tx.send(&path(A4, B4), ROCE_PORT, b"x", None).unwrap();
    assert_eq!(receive(&rx, 1)[0].1, path(A4, B4));
}
