//! What a ring of the local path costs by itself, between two threads that spin: the hand-over of a
//! record of 20 bytes beside that of a bare cache line, and records of 16 KiB beside memcpy.
//!
//! Ours and the raw limit take turns, and the ratio is of each turn: the speed of a shared machine
//! drifts. The load printed first says how far to trust it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use ironverbs_soft::local::{Consumer, Producer};

const TURNS: usize = 7;
const ROUND_TRIPS: u64 = 10_000;
const SMALL: usize = 20;
const LARGE: usize = 16 * 1024;
const LARGES: usize = 8_000;
/// Large records timed at once; of them the median counts, since a thread that loses its core stops
/// both.
const BATCH: usize = 32;

fn main() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}", load.trim());
    turns(
        "hand-over, ns one way",
        "cache line",
        line_hand_over,
        "20-byte record",
        record_hand_over,
    );
    turns("16 KiB, ns each", "memcpy", copies, "through a ring", stream);
}

fn turns(what: &str, raw: &str, limit: fn() -> f64, ours: &str, measure: fn() -> f64) {
    let (mut limits, mut measured, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let (limit, ours) = (limit(), measure());
        limits.push(limit);
        measured.push(ours);
        ratios.push(ours / limit);
    }
    println!(
        "{what}: {raw} {:.0}, {ours} {:.0}, ratio {:.2}",
        median(limits),
        median(measured),
        median(ratios)
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where both threads are on one core, it must change hands.
fn spin(mut done: impl FnMut() -> bool) {
    let mut spins = 0u32;
    while !done() {
        std::hint::spin_loop();
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(4096) {
            thread::yield_now();
        }
    }
}

/// The median of many round trips, halved.
fn one_way(mut round_trip: impl FnMut(u64)) -> f64 {
    let times = (0..ROUND_TRIPS).map(|round| {
        let start = Instant::now();
        round_trip(round);
        start.elapsed().as_nanos() as f64
    });
    median(times.collect()) / 2.0
}

fn line_hand_over() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let wait = |line: &Line, value| spin(|| line.0.load(Ordering::Acquire) == value);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUND_TRIPS {
                wait(&there, round);
                back.0.store(round, Ordering::Release);
            }
        });
        one_way(|round| {
            there.0.store(round + 1, Ordering::Release);
            wait(&back, round + 1);
        })
    })
}

fn ring() -> (Producer, Consumer) {
    let (producer, fd) = Producer::create().expect("a ring");
    (producer, Consumer::map(fd).expect("a ring"))
}

fn push(producer: &mut Producer, bytes: &[u8]) {
    spin(|| producer.push(1, bytes));
    // As the device does after each send.
    assert!(!producer.needs_wake());
}

fn take(consumer: &mut Consumer, bytes: &mut [u8]) {
    spin(|| match consumer.next().expect("a sound ring") {
        Some(record) => record.copy_prefix(bytes) == bytes.len(),
        None => false,
    });
    consumer.release();
}

fn record_hand_over() -> f64 {
    let (mut there, mut arriving) = ring();
    let (mut back, mut returning) = ring();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; SMALL];
            for _ in 0..ROUND_TRIPS {
                take(&mut arriving, &mut bytes);
                push(&mut back, &bytes);
            }
        });
        let mut bytes = [7; SMALL];
        one_way(|_| {
            push(&mut there, &bytes);
            take(&mut returning, &mut bytes);
        })
    })
}

/// The time of one of many large ones.
fn each(mut large: impl FnMut(usize)) -> f64 {
    let times = (0..LARGES / BATCH).map(|batch| {
        let start = Instant::now();
        for round in 0..BATCH {
            large(batch * BATCH + round);
        }
        start.elapsed().as_nanos() as f64 / BATCH as f64
    });
    median(times.collect())
}

/// As much as a ring holds, from and to places that change.
fn copies() -> f64 {
    let from = vec![7u8; 8 * LARGE];
    let mut to = vec![0u8; 8 * LARGE];
    each(|round| {
        let at = round % 8 * LARGE;
        to[at..at + LARGE].copy_from_slice(&from[at..at + LARGE]);
        std::hint::black_box(&mut to);
    })
}

fn stream() -> f64 {
    let (mut producer, mut consumer) = ring();
    thread::scope(|scope| {
        scope.spawn(move || {
            let from = vec![7u8; 8 * LARGE];
            for round in 0..LARGES {
                let at = round % 8 * LARGE;
                push(&mut producer, &from[at..at + LARGE]);
            }
        });
        let mut to = vec![0u8; 8 * LARGE];
        each(|round| {
            let at = round % 8 * LARGE;
            take(&mut consumer, &mut to[at..at + LARGE]);
        })
    })
}
