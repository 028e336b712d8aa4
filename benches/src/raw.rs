//! The raw limits: UDP without anything on top.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ironverbs_sys::udp::{Family, RxBatch, RxSocket, TxSocket};
use ironverbs_wire::{Gid, Path, ROCE_PORT};

use crate::Outcome;

/// Bytes of a packet with 4 KiB of payload: BTH and ICRC around it.
const PACKET: usize = 4096 + 12 + 4;
/// Packets in one send.
const BATCH: usize = 15;

fn path(from: IpAddr, to: IpAddr) -> Path {
    Path { src: Gid::from_ip(from), dst: Gid::from_ip(to), ..Path::default() }
}

/// Receives for `seconds` from the first packet on, and tells GB/s.
pub(crate) fn sink(seconds: u64) -> Outcome {
    let socket = RxSocket::bind(ROCE_PORT, false)?;
    let mut batch = RxBatch::new(8);
    println!("ready");
    while socket.recv(&mut batch)? == 0 {
        std::hint::spin_loop();
    }
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        if socket.recv(&mut batch)? > 0 {
            bytes += batch.messages().map(|d| d.data.len()).sum::<usize>();
        }
    }
    println!("figure {}", bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
    Ok(())
}

/// Sends for a little longer than `seconds`.
pub(crate) fn stream(from: IpAddr, to: IpAddr, seconds: u64) -> Outcome {
    let socket = TxSocket::bind(Family::V4, 0x8100)?;
    let (path, bytes) = (path(from, to), vec![7; PACKET * BATCH]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) + Duration::from_millis(500) {
        // A full queue is no error of the stream.
        let _ = socket.send(&path, ROCE_PORT, &bytes, Some(PACKET as u16));
    }
    println!("figure 0");
    Ok(())
}

/// Answers packets until killed.
pub(crate) fn pong() -> Outcome {
    let socket = RxSocket::bind(ROCE_PORT, false)?;
    let answer = TxSocket::bind(Family::V4, 0x8100)?;
    let mut batch = RxBatch::new(1);
    println!("ready");
    loop {
        if socket.recv_some(&mut batch, 1)? > 0 {
            for datagram in batch.messages() {
                let back = Path { src: datagram.path.dst, dst: datagram.path.src, ..datagram.path };
                answer.send(&back, ROCE_PORT, datagram.data, None)?;
            }
        }
    }
}

/// Round trips of 24 bytes, the size of an 8-byte SEND; tells the median in nanoseconds.
pub(crate) fn ping(from: IpAddr, to: IpAddr, rounds: usize) -> Outcome {
    let socket = RxSocket::bind(ROCE_PORT, false)?;
    let send = TxSocket::bind(Family::V4, 0x8100)?;
    let (path, mut batch) = (path(from, to), RxBatch::new(1));
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        send.send(&path, ROCE_PORT, &[7; 24], None)?;
        while socket.recv_some(&mut batch, 1)? == 0 {
            if start.elapsed() > Duration::from_secs(1) {
                return Err("a packet was lost".into());
            }
        }
        times.push(start.elapsed().as_nanos() as u64);
    }
    println!("figure {}", crate::ours::median(&mut times));
    Ok(())
}

/// Hands a cache line back and forth between two threads; tells the time one way in nanoseconds.
pub(crate) fn handover() -> Outcome {
    const ROUNDS: u64 = 200_000;
    #[repr(align(64))]
    struct Line(AtomicU64);
    let line = std::sync::Arc::new(Line(AtomicU64::new(0)));
    let other = line.clone();
    // Odd values are ours, even ones the other's.
    let thread = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            wait(&other.0, 2 * round + 1);
            other.0.store(2 * round + 2, Ordering::Release);
        }
    });
    let mut times = Vec::with_capacity(ROUNDS as usize);
    for round in 0..ROUNDS {
        let start = Instant::now();
        line.0.store(2 * round + 1, Ordering::Release);
        wait(&line.0, 2 * round + 2);
        times.push(start.elapsed().as_nanos() as u64);
    }
    thread.join().map_err(|_| "the other thread failed")?;
    println!("figure {}", crate::ours::median(&mut times) as f64 / 2.0);
    Ok(())
}

fn wait(word: &AtomicU64, value: u64) {
    let mut spins = 0u32;
    while word.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        spins = spins.wrapping_add(1);
        // Where both threads are on one core, it must change hands.
        if spins.is_multiple_of(4096) {
            std::thread::yield_now();
        }
    }
}

/// Copies 64 KiB again and again between buffers that do not fit the first cache; tells GB/s.
pub(crate) fn copy() -> Outcome {
    let (from, mut to) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    let (start, mut bytes) = (Instant::now(), 0usize);
    while start.elapsed() < Duration::from_secs(1) {
        for (from, to) in from.chunks(65_536).zip(to.chunks_mut(65_536)) {
            to.copy_from_slice(std::hint::black_box(from));
            bytes += from.len();
        }
    }
    std::hint::black_box(&to);
    println!("figure {}", bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
    Ok(())
}
