//! The ring's protocol under loom: every order in which two threads can run, with every value that a
//! load may give under the memory model, up to the preemptions stated. The code is the library's; the
//! memory is loom's.
//!
//! Lines hold a cell each besides their header word: loom reports it when both sides touch one at a
//! time. A wake that is lost is a deadlock, which loom reports too.
//!
//! `cargo test -p ironverbs-soft --test lanes_model`; it takes half a minute.

use ironverbs_soft::local::protocol::{Memory, Reader, Word, Writer};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

struct Words<const LINES: usize> {
    headers: [AtomicU32; LINES],
    cells: [UnsafeCell<u32>; LINES],
    /// The words that are no header, in the order of [`place`].
    flags: [AtomicU32; 6],
}

struct View<const LINES: usize>(Arc<Words<LINES>>);

impl<const LINES: usize> View<LINES> {
    fn word(&self, word: Word) -> &AtomicU32 {
        let flag = match word {
            Word::Header(line) => return &self.0.headers[line as usize],
            Word::Head => 0,
            Word::Sleeps => 1,
            Word::Waits => 2,
            Word::Taken => 3,
            Word::Closed => 4,
            Word::Gone => 5,
        };
        &self.0.flags[flag]
    }
}

impl<const LINES: usize> Memory for View<LINES> {
    const LINES: u32 = LINES as u32;

    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.word(word).load(order)
    }

    fn store(&self, word: Word, value: u32, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn ring<const LINES: usize>() -> (Writer<View<LINES>>, Reader<View<LINES>>) {
    let words = Arc::new(Words {
        headers: std::array::from_fn(|_| AtomicU32::new(0)),
        cells: std::array::from_fn(|_| UnsafeCell::new(0)),
        flags: std::array::from_fn(|_| AtomicU32::new(0)),
    });
    (Writer::new(View(words.clone())), Reader::new(View(words)))
}

/// What one line holds with its header.
const ONE_LINE: usize = 60;
const TWO_LINES: usize = 61;

fn lines(len: usize) -> usize {
    if len == ONE_LINE { 1 } else { 2 }
}

/// False: there is no room.
fn push<const LINES: usize>(writer: &mut Writer<View<LINES>>, number: u8, len: usize) -> bool {
    let Some(line) = writer.reserve(len) else { return false };
    for cell in &writer.memory().0.cells[line as usize..][..lines(len)] {
        // SAFETY: loom checks that nobody else has it.
        cell.with_mut(|cell| unsafe { *cell = number.into() });
    }
    writer.commit(number);
    true
}

/// Takes the record `number` if it has come.
fn take<const LINES: usize>(reader: &mut Reader<View<LINES>>, number: u8, len: usize) -> bool {
    let Some(place) = reader.next().unwrap() else { return false };
    assert_eq!((place.kind, place.len), (number, len));
    for cell in &reader.memory().0.cells[place.line as usize..][..lines(len)] {
        // SAFETY: as in `push`.
        cell.with(|cell| assert_eq!(unsafe { *cell }, u32::from(number)));
    }
    reader.release();
    true
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// Spinning producer and consumer, `count` records, round a ring of so many lines.
fn spin<const LINES: usize>(count: u8, len: usize) {
    let (mut writer, mut reader) = ring::<LINES>();
    let producer = thread::spawn(move || {
        for number in 0..count {
            while !push(&mut writer, number, len) {
                thread::yield_now();
            }
        }
    });
    for number in 0..count {
        while !take(&mut reader, number, len) {
            thread::yield_now();
        }
    }
    producer.join().unwrap();
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn records_come_once_and_whole_through_several_laps() {
    model(2, || spin::<3>(5, ONE_LINE));
}

#[test]
fn records_that_do_not_fit_before_the_end_start_over() {
    // At lines 0 and 2, then a wrap in line 4.
    model(2, || spin::<5>(4, TWO_LINES));
}

/// What a process is woken by: a datagram, which is not lost.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Both sleep whenever there is nothing to do.
fn sleep<const LINES: usize>(count: u8, len: usize) {
    let (mut writer, mut reader) = ring::<LINES>();
    let (to_producer, to_consumer) = (Bell::new(), Bell::new());
    let bells = (to_producer.clone(), to_consumer.clone());
    let producer = thread::spawn(move || {
        for number in 0..count {
            while !push(&mut writer, number, len) {
                if writer.prepare_sleep() {
                    bells.0.sleep();
                }
                writer.awake();
            }
            if writer.needs_wake() {
                bells.1.ring();
            }
        }
    });
    for number in 0..count {
        while !take(&mut reader, number, len) {
            if reader.prepare_sleep() {
                to_consumer.sleep();
            }
            reader.awake();
            if reader.producer_waits() {
                to_producer.ring();
            }
        }
        if reader.producer_waits() {
            to_producer.ring();
        }
    }
    producer.join().unwrap();
}

#[test]
fn no_wake_is_lost_when_there_is_always_room() {
    model(3, || sleep::<4>(2, ONE_LINE));
}

#[test]
fn no_wake_is_lost_when_the_ring_is_full_and_empty_by_turns() {
    model(2, || sleep::<2>(3, ONE_LINE));
}

#[test]
fn no_wake_is_lost_when_the_ring_is_full_once() {
    model(3, || sleep::<2>(2, ONE_LINE));
}

/// A thread that sleeps until there is room for its record, while another finds room for a shorter one.
#[test]
fn no_wake_is_lost_when_another_thread_finds_room_meanwhile() {
    model(2, || {
        let (mut writer, mut reader) = ring::<4>();
        assert!(push(&mut writer, 0, TWO_LINES));
        let writer = Arc::new(Mutex::new(writer));
        let (to_producer, to_consumer) = (Bell::new(), Bell::new());
        let long = {
            let (writer, to_producer, to_consumer) =
                (writer.clone(), to_producer.clone(), to_consumer.clone());
            thread::spawn(move || {
                loop {
                    let mut locked = writer.lock().unwrap();
                    if push(&mut locked, 1, TWO_LINES) {
                        break;
                    }
                    let sleeps = locked.prepare_sleep();
                    drop(locked);
                    if sleeps {
                        to_producer.sleep();
                    }
                    writer.lock().unwrap().awake();
                }
                if writer.lock().unwrap().needs_wake() {
                    to_consumer.ring();
                }
            })
        };
        let short = {
            let to_consumer = to_consumer.clone();
            thread::spawn(move || {
                let mut locked = writer.lock().unwrap();
                push(&mut locked, 2, ONE_LINE);
                if locked.needs_wake() {
                    to_consumer.ring();
                }
            })
        };
        loop {
            match reader.next().unwrap() {
                Some(place) if place.kind == 1 => break,
                Some(_) => reader.release(),
                None => {
                    if reader.prepare_sleep() {
                        to_consumer.sleep();
                    }
                    reader.awake();
                }
            }
            if reader.producer_waits() {
                to_producer.ring();
            }
        }
        long.join().unwrap();
        short.join().unwrap();
    });
}

#[test]
fn nothing_is_left_behind_when_the_producer_ends() {
    model(3, || {
        let (mut writer, mut reader) = ring::<3>();
        let producer = thread::spawn(move || {
            assert!(push(&mut writer, 0, ONE_LINE));
            assert!(push(&mut writer, 1, ONE_LINE));
            writer.close();
        });
        let mut next = 0;
        while !reader.is_over() {
            if take(&mut reader, next, ONE_LINE) {
                next += 1;
            } else {
                thread::yield_now();
            }
        }
        assert_eq!(next, 2);
        producer.join().unwrap();
    });
}
