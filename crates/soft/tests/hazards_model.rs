//! The rules by which an initiator touches memory that its owner may take away, under loom: every order in which two
//! threads can run, with every value that a load may give under the memory model, up to the preemptions stated. The
//! code is the library's; the memory is loom's.
//!
//! The memory touched is a cell: loom reports it when the owner has it back while an initiator touches it.
//!
//! `cargo test -p ironverbs-soft --test hazards_model`

use ironverbs_soft::direct::protocol::{self, Entry, Memory, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// A line: its number and what it says.
#[derive(Default)]
struct Line {
    number: AtomicU64,
    says: [AtomicU64; 2],
}

#[derive(Default)]
struct Shared {
    slots: [AtomicU64; 2],
    watched: AtomicU64,
    region: Line,
    qp: Line,
    memory: UnsafeCell<u32>,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let shared = Shared::default();
        shared.watched.store(1, Ordering::Relaxed);
        for line in [&shared.region, &shared.qp] {
            line.says.iter().for_each(|word| word.store(1, Ordering::Relaxed));
        }
        Arc::new(shared)
    }
}

/// What one slot's user sees.
struct View(Arc<Shared>, usize);

impl View {
    fn word(&self, word: Word) -> &AtomicU64 {
        match word {
            Word::Slot => &self.0.slots[self.1],
            Word::Watched => &self.0.watched,
            Word::Region => &self.0.region.number,
            Word::Qp => &self.0.qp.number,
        }
    }
}

impl Memory for View {
    fn load(&self, word: Word, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }

    fn claim(&self, value: u64) -> bool {
        let (relaxed, slot) = (Ordering::Relaxed, self.word(Word::Slot));
        let claimed = slot.compare_exchange(0, value, relaxed, relaxed).is_ok();
        fence(Ordering::SeqCst);
        claimed
    }
}

/// One operation: whether it was done.
fn touch(view: &View) -> bool {
    let lines = [(&view.0.region, Word::Region), (&view.0.qp, Word::Qp)];
    let mut numbers = [0; 2];
    let mut said = [[0; 2]; 2];
    for ((line, word), (number, said)) in lines.iter().zip(numbers.iter_mut().zip(&mut said)) {
        let Some(seen) = protocol::begin(view, *word) else { return false };
        *number = seen;
        *said = [line.says[0].load(Ordering::Relaxed), line.says[1].load(Ordering::Relaxed)];
    }
    if said.iter().any(|said| said[0] == 0)
        || protocol::enter(view, 7, numbers[0], numbers[1]) != Entry::Entered
    {
        return false;
    }
    for said in said {
        assert_eq!(said, [1, 1], "a line that was half written");
    }
    // SAFETY: loom checks that nobody else has it.
    view.0.memory.with_mut(|memory| unsafe { *memory += 1 });
    protocol::leave(view);
    true
}

/// Waits until no slot names anything, then uses the memory as its own.
fn take_back(shared: &Arc<Shared>, slots: usize) {
    for slot in 0..slots {
        while protocol::value(&View(shared.clone(), slot)) != 0 {
            thread::yield_now();
        }
    }
    // SAFETY: as in `touch`.
    shared.memory.with_mut(|memory| unsafe { *memory += 100 });
}

fn withdraw(shared: &Arc<Shared>, word: Word) {
    let line = if word == Word::Qp { &shared.qp } else { &shared.region };
    protocol::change(&View(shared.clone(), 0), word, || {
        line.says[1].store(0, Ordering::Relaxed);
        line.says[0].store(0, Ordering::Relaxed);
    });
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn what_is_withdrawn_is_not_touched() {
    for word in [Word::Region, Word::Qp] {
        model(3, move || {
            let shared = Shared::new();
            let view = View(shared.clone(), 0);
            let initiator = thread::spawn(move || {
                touch(&view);
                touch(&view)
            });
            withdraw(&shared, word);
            take_back(&shared, 1);
            initiator.join().unwrap();
            assert!(!touch(&View(shared, 0)));
        });
    }
}

#[test]
fn a_slot_is_one_threads_at_a_time() {
    model(3, || {
        let shared = Shared::new();
        let view = View(shared.clone(), 0);
        let other = thread::spawn(move || touch(&view));
        let one = touch(&View(shared.clone(), 0));
        assert!(other.join().unwrap() || one);
        take_back(&shared, 1);
    });
}

#[test]
fn who_is_no_longer_watched_touches_nothing() {
    model(3, || {
        let shared = Shared::new();
        let view = View(shared.clone(), 0);
        let initiator = thread::spawn(move || touch(&view));
        protocol::revoke(&View(shared.clone(), 0));
        take_back(&shared, 1);
        initiator.join().unwrap();
        assert!(!touch(&View(shared, 0)));
    });
}

#[test]
fn whoever_comes_first_does_something() {
    model(3, || {
        let shared = Shared::new();
        assert!(touch(&View(shared.clone(), 0)));
        let view = View(shared.clone(), 1);
        let initiator = thread::spawn(move || touch(&view));
        assert!(initiator.join().unwrap());
    });
}

#[test]
fn a_line_that_changes_is_seen_whole() {
    model(3, || {
        let shared = Shared::new();
        let view = View(shared.clone(), 0);
        let initiator = thread::spawn(move || touch(&view));
        // The same again: who reads it between sees neither half.
        protocol::change(&View(shared.clone(), 0), Word::Region, || {
            shared.region.says.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        });
        protocol::change(&View(shared.clone(), 0), Word::Region, || {
            shared.region.says.iter().for_each(|word| word.store(1, Ordering::Relaxed));
        });
        initiator.join().unwrap();
    });
}
