use super::*;
use std::fs::File;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);

fn ring() -> (Producer, Consumer) {
    let (producer, fd) = Producer::create().unwrap();
    (producer, Consumer::map(fd).unwrap())
}

/// A second mapping, to write what neither side does.
fn ring_and_memory() -> (Producer, Consumer, Shared) {
    let (producer, fd) = Producer::create().unwrap();
    let memfd = Memfd::received(fd.try_clone().unwrap()).unwrap();
    (producer, Consumer::map(fd).unwrap(), Shared::map(&memfd, SIZE, true).unwrap())
}

/// Bytes that look like headers, and tell the record's number.
fn pattern(number: u32, len: usize) -> Vec<u8> {
    let word = 0x8000_003c | number << 8;
    word.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn assert_next(consumer: &mut Consumer, kind: u8, bytes: &[u8]) {
    let record = consumer.next().unwrap().expect("a record");
    assert_eq!((record.kind, record.len), (kind, bytes.len()));
    assert!(record.bytes() == bytes);
    let mut copy = vec![0; bytes.len() + 1];
    assert_eq!(record.copy_prefix(&mut copy), bytes.len());
    assert!(copy.starts_with(bytes));
    let mut prefix = [0; 7];
    let len = record.copy_prefix(&mut prefix);
    assert_eq!(prefix[..len], bytes[..len]);
    assert_eq!(len, bytes.len().min(7));
}

#[test]
fn what_goes_in_comes_out_whatever_the_lengths() {
    let (mut producer, mut consumer) = ring();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut sent, mut received) = (0u32, 0u32);
    let mut lengths = std::collections::VecDeque::new();
    while received < 60_000 {
        for _ in 0..random.usize(..40) {
            let len = match random.u8(..8) {
                0 => random.usize(..=MAX_RECORD),
                1 => MAX_RECORD,
                2 => random.usize(50..70),
                _ => random.usize(..200),
            };
            let bytes = pattern(sent, len);
            // Thought better of it: what was written must not be taken for headers.
            if random.u8(..10) == 0
                && let Some(room) = producer.reserve(random.usize(..1000))
            {
                let garbage = pattern(sent, room.len());
                room.copy_from_slice(&garbage);
            }
            if random.bool() {
                let Some(room) = producer.reserve(len) else { break };
                room.copy_from_slice(&bytes);
                producer.commit(sent as u8);
            } else if !producer.push(sent as u8, &bytes) {
                break;
            }
            lengths.push_back(len);
            sent += 1;
        }
        for _ in 0..random.usize(..40) {
            let Some(&len) = lengths.front() else { break };
            assert_next(&mut consumer, received as u8, &pattern(received, len));
            consumer.release();
            lengths.pop_front();
            received += 1;
        }
        if lengths.is_empty() {
            assert!(consumer.next().unwrap().is_none());
        }
    }
}

#[test]
fn sixty_bytes_are_one_line() {
    let fit = |len: usize| {
        let (mut producer, _consumer) = ring();
        (0..).take_while(|_| producer.push(1, &[7; MAX_RECORD][..len])).count()
    };
    assert_eq!(fit(0), LINES - 1);
    assert_eq!(fit(60), LINES - 1);
    assert_eq!(fit(61), (LINES - 1) / 2);
    assert_eq!(fit(MAX_RECORD), 7);
    const { assert!(2 * SIZE <= 256 * 1024) };
}

#[test]
fn a_record_beyond_the_limit_does_not_fit_and_does_not_wait() {
    let (mut producer, mut consumer) = ring();
    assert!(producer.reserve(MAX_RECORD + 1).is_none());
    assert!(!producer.push(0, &[0; MAX_RECORD + 1]));
    assert!(!producer.is_waiting() && !producer.is_closed());
    // Nor does it commit what was reserved before.
    assert!(producer.reserve(4).is_some());
    assert!(producer.reserve(MAX_RECORD + 1).is_none());
    producer.commit(1);
    assert!(consumer.next().unwrap().is_none());
    consumer.release();
    assert!(consumer.is_empty());
}

#[test]
fn who_sleeps_is_woken_once() {
    let (mut producer, mut consumer) = ring();
    assert!(!producer.needs_wake());
    assert!(consumer.prepare_sleep());
    assert!(producer.push(1, b"x"));
    assert!(producer.needs_wake());
    assert!(!producer.needs_wake());
    assert!(!consumer.prepare_sleep());
    assert!(!producer.needs_wake());
    consumer.next().unwrap().unwrap();
    consumer.release();
    assert!(consumer.prepare_sleep());
    consumer.awake();
    assert!(!producer.needs_wake());
}

#[test]
fn a_producer_without_room_waits_and_is_woken_once() {
    let (mut producer, mut consumer) = ring();
    let full = |producer: &mut Producer| while producer.push(1, &[0; MAX_RECORD]) {};
    full(&mut producer);
    assert!(producer.is_waiting());
    assert!(!consumer.producer_waits());
    // It polls: the head comes at once, but no wake.
    consumer.next().unwrap().unwrap();
    consumer.release();
    assert!(!consumer.producer_waits());
    assert!(!producer.prepare_sleep());
    assert!(producer.push(2, &[0; 64]));
    assert!(!producer.is_waiting());
    full(&mut producer);
    assert!(producer.prepare_sleep());
    assert!(!consumer.prepare_sleep());
    while consumer.next().unwrap().is_some() {
        consumer.release();
    }
    assert!(consumer.producer_waits());
    assert!(!consumer.producer_waits());
    producer.awake();
    assert!(producer.push(3, &[0; MAX_RECORD]));
    assert!(producer.prepare_sleep());
    assert!(!consumer.producer_waits());
}

#[test]
fn an_end_is_seen_after_what_came_before() {
    let (mut producer, mut consumer) = ring();
    assert!(producer.is_taken());
    assert!(producer.push(1, b"last words"));
    producer.close();
    assert!(consumer.is_gone() && !consumer.is_over());
    consumer.next().unwrap().unwrap();
    consumer.release();
    assert!(consumer.is_over());
    assert!(!producer.is_closed());
    consumer.close();
    assert!(producer.is_closed());
}

#[test]
fn what_is_no_ring_is_refused() {
    let sealed = |size| OwnedFd::from(Memfd::create(c"foreign", size).unwrap());
    assert!(matches!(Consumer::map(sealed(SIZE)), Err(RingError::Foreign)));
    assert!(matches!(Consumer::map(sealed(64)), Err(RingError::Foreign)));
    let null = File::open("/dev/null").unwrap();
    assert!(matches!(Consumer::map(null.into()), Err(RingError::Io(_))));
    let (_producer, fd) = Producer::create().unwrap();
    let memfd = Memfd::received(fd.try_clone().unwrap()).unwrap();
    let memory = Shared::map(&memfd, SIZE, true).unwrap();
    memory.u32(at::VERSION).unwrap().store(VERSION + 1, Ordering::Relaxed);
    let file = File::from(memfd.as_fd().try_clone_to_owned().unwrap());
    assert!(matches!(Consumer::map(fd), Err(RingError::Foreign)));
    assert!(file.set_len(1).is_err());
}

#[test]
fn headers_that_cannot_be_break_the_lane_for_good() {
    let record = |len: u32| 1 << 31 | len;
    for (place, word) in [
        (0, 1),
        (0, 1 << 30),
        (0, record(MAX_RECORD as u32 + 1)),
        (0, record(0xffff)),
        (0, record(1) | 1 << 30),
        (0, u32::MAX),
        (LINES - 1, record(61)),
        (LINES - 1, 1 << 30 | 1),
        // A wrap to nothing.
        (LINES - 1, 1 << 30),
    ] {
        let (mut producer, mut consumer, memory) = ring_and_memory();
        for _ in 0..place {
            assert!(producer.push(0, b""));
            consumer.next().unwrap().unwrap();
            consumer.release();
        }
        if place != 0 {
            memory.u32(at::LINES).unwrap().store(0, Ordering::Relaxed);
        }
        memory.u32(line_at(place as u32)).unwrap().store(word, Ordering::Relaxed);
        assert!(consumer.next().is_err(), "{word:#x} in line {place}");
        memory.u32(line_at(place as u32)).unwrap().store(0, Ordering::Relaxed);
        assert!(consumer.next().is_err());
        assert!(consumer.is_broken() && consumer.is_over() && !consumer.prepare_sleep());
        consumer.release();
    }
}

#[test]
fn a_head_that_cannot_be_breaks_the_lane() {
    let (mut producer, _consumer, memory) = ring_and_memory();
    while producer.push(0, &[0; 1000]) {}
    memory.u32(at::HEAD).unwrap().store(u32::MAX, Ordering::Relaxed);
    assert!(producer.reserve(1000).is_none());
    assert!(producer.is_closed() && !producer.is_waiting());
    memory.u32(at::HEAD).unwrap().store(0, Ordering::Relaxed);
    assert!(producer.reserve(1000).is_none());
}

#[test]
fn random_scribbles_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut broken = 0;
    for _ in 0..400 {
        let (mut producer, mut consumer, memory) = ring_and_memory();
        for _ in 0..300 {
            for _ in 0..random.usize(..4) {
                let offset = match random.bool() {
                    true => random.usize(16..at::LINES) & !3,
                    false => line_at(random.u32(..LINES as u32)),
                };
                let word = match random.u8(..3) {
                    0 => random.u32(..),
                    1 => 1 << 31 | random.u32(..0x1_0000),
                    _ => random.u32(..3),
                };
                memory.u32(offset).unwrap().store(word, Ordering::Relaxed);
            }
            let len = random.usize(..=MAX_RECORD);
            producer.push(3, &[0xaa; MAX_RECORD][..len]);
            let _ = (producer.needs_wake(), producer.prepare_sleep());
            if let Ok(Some(record)) = consumer.next() {
                let mut copy = vec![0; MAX_RECORD];
                assert_eq!(record.copy_prefix(&mut copy), record.len);
                assert!(record.bytes().len() <= MAX_RECORD);
            }
            consumer.release();
            let _ = (consumer.producer_waits(), consumer.prepare_sleep(), consumer.is_over());
        }
        broken += u32::from(consumer.is_broken()) + u32::from(producer.is_closed());
    }
    assert!(broken > 100, "only {broken}: the scribbles missed");
}

#[test]
fn two_threads_at_full_speed_lose_nothing() {
    let (mut producer, mut consumer) = ring();
    let count = 200_000u32;
    let len = |number: u32| match number % 16 {
        15 => MAX_RECORD - (number % 64) as usize,
        n => n as usize * 9,
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            let start = Instant::now();
            for number in 0..count {
                let bytes = pattern(number, len(number));
                while !producer.push(number as u8, &bytes) {
                    assert!(!producer.is_closed() && start.elapsed() < WATCHDOG);
                    thread::yield_now();
                }
            }
        });
        let start = Instant::now();
        for number in 0..count {
            while consumer.next().unwrap().is_none() {
                assert!(start.elapsed() < WATCHDOG);
                thread::yield_now();
            }
            assert_next(&mut consumer, number as u8, &pattern(number, len(number)));
            consumer.release();
        }
    });
}
