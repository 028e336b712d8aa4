//! What the UDP sockets cost over loopback: a one-way stream by two threads and by one, a ping-pong,
//! and three ways to send two small packets. Compare lines of one run with each other, not with another machine's: the load
//! printed first says how far to trust them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::udp::{Family, RxBatch, RxSocket, Transmit, TxSocket};
use ironverbs_wire::{Gid, Path};

/// BTH, RETH and ICRC around 4 KiB.
const SEGMENT: usize = 12 + 16 + 4096 + 4;

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}", load.trim());
    let v4 = path(Ipv4Addr::LOCALHOST.into());
    let v6 = path(Ipv6Addr::LOCALHOST.into());
    for (name, path) in [("IPv4", v4), ("IPv6", v6)] {
        for segments in [1, 4, 15] {
            stream(name, &path, segments);
        }
        one_thread(name, &path);
        ping_pong(name, &path);
        two_small(name, &path);
    }
}

fn path(ip: IpAddr) -> Path {
    let gid = Gid::from_ip(ip);
    Path { src: gid, dst: gid, hop_limit: 64, ..Path::default() }
}

fn tx(path: &Path) -> TxSocket {
    TxSocket::bind(Family::of(&path.dst), 0).expect("bind sender")
}

/// Passes the time of one empty poll; now and then lets others have the core, who need it more
/// where there are not enough.
fn idle(polls: &mut u32) {
    *polls += 1;
    if polls.is_multiple_of(1000) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// One thread sends, one receives; at most `WINDOW` bytes are under way.
fn stream(name: &str, path: &Path, segments: usize) {
    const WINDOW: u64 = 1 << 20;
    const SLICE: Duration = Duration::from_millis(20);
    const SLICES: usize = 100;

    let rx = RxSocket::bind(0, false).expect("bind receiver");
    let port = rx.local_port().expect("port");
    let (received, packets) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let tx = tx(path);
            let bytes = vec![7u8; segments * SEGMENT];
            let (mut sent, mut polls) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                while sent - received.load(Ordering::Acquire) + bytes.len() as u64 > WINDOW {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    idle(&mut polls);
                }
                if tx.send(path, port, &bytes, Some(SEGMENT as u16)).is_ok() {
                    sent += bytes.len() as u64;
                }
            }
        });
        scope.spawn(|| {
            let mut batch = RxBatch::new(8);
            let (mut bytes, mut count, mut polls) = (0, 0, 0);
            while !done.load(Ordering::Relaxed) {
                if rx.recv(&mut batch).expect("receive") == 0 {
                    idle(&mut polls);
                }
                for message in batch.messages() {
                    bytes += message.data.len() as u64;
                    count += message.segments().len() as u64;
                }
                packets.store(count, Ordering::Relaxed);
                received.store(bytes, Ordering::Release);
            }
        });
        let mut rates = Vec::new();
        let mut last = (monotonic_ns(), 0);
        for _ in 0..SLICES {
            thread::sleep(SLICE);
            let now = (monotonic_ns(), received.load(Ordering::Relaxed));
            rates.push((now.1 - last.1) as f64 / (now.0 - last.0) as f64);
            last = now;
        }
        done.store(true, Ordering::Relaxed);
        rates.sort_by(f64::total_cmp);
        println!(
            "{name} stream of {segments:2} segments a send: median {:.2} GB/s, best tenth {:.2}, \
             {} packets, {} dropped",
            rates[SLICES / 2],
            rates[SLICES * 9 / 10],
            packets.load(Ordering::Relaxed),
            rx.backlog().map_or(0, |b| b.drops),
        );
    });
}

/// One thread sends a batch of 15 segments and receives it, over and over.
fn one_thread(name: &str, path: &Path) {
    const ROUNDS: usize = 5000;
    let rx = RxSocket::bind(0, false).expect("bind receiver");
    let port = rx.local_port().expect("port");
    let tx = tx(path);
    let bytes = vec![7u8; 15 * SEGMENT];
    let mut batch = RxBatch::new(1);
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = monotonic_ns();
        tx.send(path, port, &bytes, Some(SEGMENT as u16)).expect("send");
        let sent = monotonic_ns();
        while rx.recv_some(&mut batch, 1).expect("receive") == 0 {}
        times.push((sent - start, monotonic_ns() - sent));
    }
    let mut median = |part: fn(&(u64, u64)) -> u64| {
        times.sort_by_key(part);
        part(&times[ROUNDS / 2]) as f64
    };
    let (send, receive) = (median(|t| t.0), median(|t| t.1));
    println!(
        "{name} one thread, 15 segments: send {send:.0} ns, receive {receive:.0} ns, together \
         {:.2} GB/s",
        bytes.len() as f64 / (send + receive),
    );
}

/// A packet of 64 bytes there and back, both ends polling.
fn ping_pong(name: &str, path: &Path) {
    const ROUNDS: usize = 20_000;
    let (a, b) = (RxSocket::bind(0, false).expect("bind"), RxSocket::bind(0, false).expect("bind"));
    let (port_a, port_b) = (a.local_port().expect("port"), b.local_port().expect("port"));
    let done = AtomicBool::new(false);
    let mut times = thread::scope(|scope| {
        scope.spawn(|| {
            let tx = tx(path);
            let mut batch = RxBatch::new(1);
            let mut polls = 0;
            while !done.load(Ordering::Relaxed) {
                if b.recv_some(&mut batch, 1).expect("receive") == 1 {
                    tx.send(path, port_a, &[0; 64], None).expect("send");
                } else {
                    idle(&mut polls);
                }
            }
        });
        let tx = tx(path);
        let mut batch = RxBatch::new(1);
        let (mut times, mut polls) = (Vec::with_capacity(ROUNDS), 0);
        for _ in 0..ROUNDS {
            let before = monotonic_ns();
            tx.send(path, port_b, &[0; 64], None).expect("send");
            while a.recv_some(&mut batch, 1).expect("receive") == 0 {
                idle(&mut polls);
            }
            times.push(monotonic_ns() - before);
        }
        done.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let us = |part: usize| times[ROUNDS * part / 1000] as f64 / 1000.0;
    println!(
        "{name} ping-pong of 64 bytes: round trip {:.1} us best, {:.1} median, {:.1} at 99 %",
        us(0),
        us(500),
        us(990),
    );
}

/// Two packets of 24 and 20 bytes to one place, an ACK and the next, say: by one send each, by
/// sendmmsg, and as a GSO batch whose last segment is shorter. Interleaved; sender's and
/// receiver's time apart.
fn two_small(name: &str, path: &Path) {
    const ROUNDS: usize = 300;
    const PAIRS: usize = 32;
    let rx = RxSocket::bind(0, false).expect("bind");
    let dst_port = rx.local_port().expect("port");
    let tx = tx(path);
    let bytes = [1u8; 44];
    let (first, second) = bytes.split_at(24);
    let one = |bytes, segment| Transmit { path, ifindex: 0, dst_port, bytes, segment };
    let ways: [(&str, &dyn Fn()); 3] = [
        ("two sends", &|| {
            tx.transmit(&one(first, None)).expect("send");
            tx.transmit(&one(second, None)).expect("send");
        }),
        ("sendmmsg", &|| {
            assert_eq!(tx.send_many(&[one(first, None), one(second, None)]).expect("send"), 2);
        }),
        ("GSO", &|| tx.transmit(&one(&bytes, Some(24))).expect("send")),
    ];
    let mut batch = RxBatch::new(8);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (times, (_, send)) in times.iter_mut().zip(&ways) {
            let start = monotonic_ns();
            for _ in 0..PAIRS {
                send();
            }
            let sent = monotonic_ns();
            let mut packets = 0;
            while packets < 2 * PAIRS {
                rx.recv(&mut batch).expect("receive");
                packets += batch.messages().map(|m| m.segments().len()).sum::<usize>();
            }
            times.push((sent - start, monotonic_ns() - sent));
        }
    }
    for (times, (way, _)) in times.iter_mut().zip(&ways) {
        let mut median = |part: fn(&(u64, u64)) -> u64| {
            times.sort_by_key(part);
            part(&times[ROUNDS / 2]) as f64 / PAIRS as f64 / 1000.0
        };
        println!(
            "{name} 24 + 20 bytes by {way:9}: send {:.2} us a pair, receive {:.2}",
            median(|t| t.0),
            median(|t| t.1),
        );
    }
}
