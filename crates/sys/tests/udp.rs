//! The UDP sockets over loopback.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ironverbs_sys::event::{Epoll, Event, Interest};
use ironverbs_sys::udp::{
    BindOptions, Datagram, Family, MAX_BATCH, MAX_SEGMENTS, RxBatch, RxSocket, Transmit, TxSocket,
};
use ironverbs_wire::{Gid, Path};

/// Longer than anything here takes.
const WATCHDOG: Duration = Duration::from_secs(20);

fn gid(ip: &str) -> Gid {
    Gid::from_ip(ip.parse::<IpAddr>().unwrap())
}

fn path(src: &str, dst: &str) -> Path {
    Path { src: gid(src), dst: gid(dst), hop_limit: 64, ..Path::default() }
}

fn receiver() -> (RxSocket, u16) {
    let rx = RxSocket::bind(0, false).unwrap();
    let port = rx.local_port().unwrap();
    (rx, port)
}

/// Waits for messages and hands them over until `enough` says so.
fn receive(rx: &RxSocket, mut enough: impl FnMut(&Datagram<'_>) -> bool) {
    let epoll = Epoll::new().unwrap();
    epoll.add(rx.as_fd(), 0, Interest::READ).unwrap();
    let mut batch = RxBatch::new(4);
    let end = Instant::now() + WATCHDOG;
    loop {
        epoll.wait(&mut [Event::EMPTY], Some(Duration::from_millis(100))).unwrap();
        rx.recv(&mut batch).unwrap();
        let mut done = false;
        for message in batch.messages() {
            done |= enough(&message);
        }
        if done {
            return;
        }
        assert!(Instant::now() < end, "nothing more arrives");
    }
}

/// The next message: its payload, segment size, path and source port.
fn next(rx: &RxSocket) -> (Vec<u8>, usize, Path, u16) {
    let mut got = None;
    receive(rx, |m| {
        assert!(!m.truncated);
        assert_eq!(m.ifindex, 1, "loopback is interface 1 of every namespace");
        let previous = got.replace((m.data.to_vec(), m.segment_size, m.path, m.src_port));
        assert!(previous.is_none(), "a second message: {previous:?}");
        true
    });
    got.unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_packet_arrives_with_its_path() {
    for path in [path("127.0.0.1", "127.0.0.1"), path("::1", "::1")] {
        let (rx, port) = receiver();
        let tx = TxSocket::bind(Family::of(&path.dst), 0).unwrap();
        let bytes = pattern(300);
        tx.send(&path, port, &bytes, None).unwrap();
        assert_eq!(next(&rx), (bytes, 300, path, tx.local_port()));
    }
}

#[test]
fn nothing_waiting_is_no_message() {
    let (rx, _) = receiver();
    let mut batch = RxBatch::new(2);
    assert_eq!(rx.recv(&mut batch).unwrap(), 0);
    assert_eq!(rx.recv_some(&mut batch, 1).unwrap(), 0);
    assert_eq!(batch.messages().len(), 0);
}

#[test]
fn the_source_address_is_the_paths() {
    let (rx, port) = receiver();
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    for src in ["127.0.0.5", "127.9.9.9", "127.0.0.1"] {
        let path = path(src, "127.0.0.1");
        tx.send(&path, port, b"x", None).unwrap();
        assert_eq!(next(&rx).2, path);
    }
    // Left to routing.
    let unspecified = Path { src: Gid::UNSPECIFIED, ..path("127.0.0.1", "127.0.0.3") };
    tx.send(&unspecified, port, b"x", None).unwrap();
    let got = next(&rx).2;
    assert_eq!(got.dst, unspecified.dst);
    assert!(got.src.to_ip().is_loopback(), "{got:?}");
}

#[test]
fn traffic_class_hop_limit_and_flow_label_are_the_paths() {
    let v4 = Path { traffic_class: 0xb9, hop_limit: 3, ..path("127.0.0.1", "127.0.0.2") };
    let v6 =
        Path { traffic_class: 0x5e, hop_limit: 255, flow_label: 0xf_1234, ..path("::1", "::1") };
    let plain6 = path("::1", "::1");
    let only_label = Path { flow_label: 1, ..plain6 };
    for path in [v4, v6, plain6, only_label] {
        let (rx, port) = receiver();
        let tx = TxSocket::bind(Family::of(&path.dst), 0).unwrap();
        tx.send(&path, port, b"x", None).unwrap();
        assert_eq!(next(&rx).2, path);
    }
    // Hop limit 0 is the default one.
    let (rx, port) = receiver();
    let tx = TxSocket::bind(Family::V6, 0).unwrap();
    tx.send(&Path { hop_limit: 0, ..plain6 }, port, b"x", None).unwrap();
    assert_eq!(next(&rx).2, plain6);
}

#[test]
fn a_batch_stays_one_message_on_loopback() {
    for path in [path("127.0.0.1", "127.0.0.1"), path("::1", "::1")] {
        let (rx, port) = receiver();
        let tx = TxSocket::bind(Family::of(&path.dst), 0).unwrap();
        for (size, len) in [(4096, 3 * 4096 + 100), (4096, 15 * 4096), (24, 44), (1, 64)] {
            let bytes = pattern(len);
            tx.send(&path, port, &bytes, Some(size)).unwrap();
            let (data, segment_size, got, _) = next(&rx);
            assert_eq!((data, segment_size, got), (bytes, usize::from(size), path));
        }
        // One segment is a plain packet.
        tx.send(&path, port, &pattern(40), Some(40)).unwrap();
        assert_eq!(next(&rx).1, 40);
    }
}

#[test]
fn segments_are_the_packets() {
    let (rx, port) = receiver();
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let bytes = pattern(2500);
    tx.send(&path("127.0.0.1", "127.0.0.1"), port, &bytes, Some(1000)).unwrap();
    receive(&rx, |m| {
        let segments: Vec<_> = m.segments().collect();
        assert_eq!(segments, [&bytes[..1000], &bytes[1000..2000], &bytes[2000..]]);
        true
    });
}

#[test]
fn the_largest_batch_passes_and_a_larger_one_is_refused() {
    let path = path("127.0.0.1", "127.0.0.1");
    let (rx, port) = receiver();
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let bytes = pattern(MAX_BATCH + 1);
    let size = MAX_BATCH.div_ceil(MAX_SEGMENTS) as u16;
    tx.send(&path, port, &bytes[..MAX_BATCH], Some(size)).unwrap();
    let (data, segment_size, ..) = next(&rx);
    assert_eq!((data.len(), segment_size), (MAX_BATCH, usize::from(size)));

    for (len, size) in [(MAX_BATCH + 1, 4096), (MAX_SEGMENTS + 1, 1), (10, 0)] {
        let error = tx.send(&path, port, &bytes[..len], Some(size)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{len} bytes by {size}");
    }
    let error = tx.send(&path, port, &[0; 65_508], None).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn a_send_that_cannot_be_says_why() {
    let v4 = TxSocket::bind(Family::V4, 0).unwrap();
    let v6 = TxSocket::bind(Family::V6, 0).unwrap();
    let kind = |r: std::io::Result<()>| r.unwrap_err().kind();
    let (four, six) = (path("127.0.0.1", "127.0.0.1"), path("::1", "::1"));
    assert_eq!(kind(v4.send(&six, 9, b"x", None)), ErrorKind::InvalidInput);
    assert_eq!(kind(v6.send(&four, 9, b"x", None)), ErrorKind::InvalidInput);
    for (tx, src, dst) in [(&v4, "203.0.113.9", "127.0.0.1"), (&v6, "2001:db8::9", "::1")] {
        let error = tx.send(&path(src, dst), 9, b"x", None).unwrap_err();
        let errno = error.raw_os_error();
        assert!(matches!(errno, Some(libc::ENETUNREACH | libc::EINVAL)), "{src}: {error}");
    }
}

#[test]
fn dissimilar_packets_go_together() {
    let (rx, port) = receiver();
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let bytes = pattern(100);
    let path = path("127.0.0.1", "127.0.0.1");
    let foreign = Path { src: gid("203.0.113.9"), ..path };
    let packet = |path, len| Transmit {
        path,
        ifindex: 0,
        dst_port: port,
        bytes: &bytes[..len],
        segment: None,
    };

    // More than one system call takes.
    let many: Vec<_> = (1..=70).map(|len| packet(&path, len)).collect();
    assert_eq!(tx.send_many(&many).unwrap(), 70);
    let mut lens = Vec::new();
    receive(&rx, |m| {
        lens.push(m.data.len());
        lens.len() == 70
    });
    assert_eq!(lens, (1..=70).collect::<Vec<_>>());

    let second_fails = [packet(&path, 5), packet(&foreign, 6), packet(&path, 7)];
    assert_eq!(tx.send_many(&second_fails).unwrap(), 1);
    assert_eq!(next(&rx).0.len(), 5);
    assert!(tx.send_many(&second_fails[1..]).is_err());
    assert_eq!(tx.send_many(&[]).unwrap(), 0);
}

#[test]
fn a_port_is_shared_only_by_those_who_agree() {
    let (_rx, port) = receiver();
    for reuseport in [false, true] {
        let error = RxSocket::bind(port, reuseport).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    let first = RxSocket::bind(0, true).unwrap();
    let port = first.local_port().unwrap();
    let second = RxSocket::bind(port, true).unwrap();
    assert_eq!(second.local_port().unwrap(), port);
    assert_eq!(RxSocket::bind(port, false).unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn an_ipv4_socket_says_the_same() {
    let rx = RxSocket::bind_with(&BindOptions { only_v4: true, ..BindOptions::default() }).unwrap();
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let path = Path { traffic_class: 0x14, hop_limit: 7, ..path("127.0.0.5", "127.0.0.6") };
    let bytes = pattern(300);
    tx.send(&path, rx.local_port().unwrap(), &bytes, Some(128)).unwrap();
    assert_eq!(next(&rx), (bytes, 128, path, tx.local_port()));
}

#[test]
fn a_taken_source_port_is_replaced() {
    let first = TxSocket::bind(Family::V4, 0).unwrap();
    let other = TxSocket::bind(Family::V4, first.local_port()).unwrap();
    assert_ne!(other.local_port(), first.local_port());
}

#[test]
fn a_sender_hears_nothing() {
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let reader = UdpSocket::from(tx.as_fd().try_clone_to_owned().unwrap());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Delivered, or not, before send_to returns: loopback.
    stranger.send_to(b"x", ("127.0.0.1", tx.local_port())).unwrap();
    let error = reader.recv_from(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_ipv6_packet_without_checksum_is_received() {
    /// linux/udp.h
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    use std::os::fd::AsRawFd;

    let (rx, port) = receiver();
    let tx = UdpSocket::bind("[::1]:0").unwrap();
    let on: libc::c_int = 1;
    // SAFETY: reads the integer `on`.
    let rc = unsafe {
        libc::setsockopt(
            tx.as_raw_fd(),
            libc::SOL_UDP,
            UDP_NO_CHECK6_TX,
            (&raw const on).cast(),
            size_of_val(&on) as _,
        )
    };
    assert_eq!(rc, 0);
    tx.send_to(b"unchecked", ("::1", port)).unwrap();
    assert_eq!(next(&rx).0, b"unchecked");
}

#[test]
fn what_does_not_fit_is_counted() {
    let options = BindOptions { receive_space: 4096, ..BindOptions::default() };
    let rx = RxSocket::bind_with(&options).unwrap();
    let before = rx.backlog().unwrap();
    assert_eq!((before.used, before.drops), (0, 0));
    let tx = TxSocket::bind(Family::V4, 0).unwrap();
    let path = path("127.0.0.1", "127.0.0.1");
    for _ in 0..50 {
        tx.send(&path, rx.local_port().unwrap(), &[0; 1024], None).unwrap();
    }
    let after = rx.backlog().unwrap();
    assert!(after.drops > 0 && after.drops < 50, "{after:?}");
    assert!(after.used > 0, "{after:?}");
    assert_eq!(after.limit, before.limit);
}

#[test]
fn a_port_that_nobody_has_is_told_of() {
    for (family, ip) in [(Family::V4, "127.0.0.1"), (Family::V6, "::1")] {
        // Free a moment ago, and of a number that the system gives to nobody else soon.
        let free = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        let socket = TxSocket::bind(family, 0).unwrap();
        socket.keep_unreached().unwrap();
        assert_eq!(socket.next_unreached().unwrap(), None);
        let dst: Gid = ip.parse().unwrap();
        let path = Path { dst, ..Path::default() };
        socket.send(&path, free, &[0; 16], None).unwrap();
        let start = Instant::now();
        let unreached = loop {
            if let Some(unreached) = socket.next_unreached().unwrap() {
                break unreached;
            }
            assert!(start.elapsed() < WATCHDOG, "nothing comes back");
            std::thread::yield_now();
        };
        assert_eq!(unreached.dst, dst);
        assert_eq!(unreached.errno, ironverbs_sys::errno::ECONNREFUSED);
    }
}
