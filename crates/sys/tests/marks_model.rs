//! The rules by which a thing is marked as used, and waited for, under loom: every order in which two threads can run, with
//! every value that a load may give under the memory model, up to the preemptions stated. The code is the library's; the
//! memory is loom's.
//!
//! Loom knows no barrier that only one side pays for. Both are sequentially consistent fences here, which is what the two
//! sides together amount to; that the kernel's call has this effect is the manual's word (membarrier(2)).
//!
//! What is used is a cell: loom reports it when the owner has it back while somebody uses it.
//!
//! `cargo test -p ironverbs-sys --test marks_model`

use ironverbs_sys::marks::protocol::{self, Memory};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::thread;

const NAME: usize = 7;

#[derive(Default)]
struct Shared {
    marks: [AtomicUsize; 2],
    closed: AtomicBool,
    thing: UnsafeCell<u32>,
}

/// What a user of the place sees, and what is wrong with it.
struct View {
    shared: Arc<Shared>,
    place: usize,
    fault: Fault,
}

#[derive(Copy, Clone, PartialEq)]
enum Fault {
    None,
    NoBarrier,
    LeavesRelaxed,
}

impl Memory for View {
    fn mark(&self, order: Ordering) -> usize {
        self.shared.marks[self.place].load(order)
    }

    fn set_mark(&self, value: usize, order: Ordering) {
        let leaves = value == 0 && self.fault == Fault::LeavesRelaxed;
        let order = if leaves { Ordering::Relaxed } else { order };
        self.shared.marks[self.place].store(value, order);
    }

    fn is_open(&self) -> bool {
        !self.shared.closed.load(Ordering::Acquire)
    }

    fn light(&self) {
        if self.fault != Fault::NoBarrier {
            fence(Ordering::SeqCst);
        }
    }
}

fn look(view: &View) -> Option<u32> {
    if !protocol::enter(view, NAME) {
        return None;
    }
    // SAFETY: loom checks that nobody changes it.
    let value = view.shared.thing.with(|thing| unsafe { *thing });
    protocol::leave(view);
    Some(value)
}

/// Closes it, waits until nobody uses it, and changes it.
fn close(shared: &Arc<Shared>) {
    shared.closed.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    for place in 0..2 {
        let view = View { shared: shared.clone(), place, fault: Fault::None };
        while protocol::is_used(&view, NAME) {
            thread::yield_now();
        }
    }
    // SAFETY: as in `look`.
    shared.thing.with_mut(|thing| unsafe { *thing += 1 });
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn one_user(fault: Fault) {
    model(3, move || {
        let shared = Arc::new(Shared::default());
        let view = View { shared: shared.clone(), place: 0, fault };
        let user = thread::spawn(move || [look(&view), look(&view)]);
        close(&shared);
        let seen = user.join().unwrap();
        assert!(seen.iter().all(|seen| seen.is_none_or(|value| value == 0)));
    });
}

#[test]
fn what_is_closed_is_nobodys() {
    one_user(Fault::None);
}

#[test]
#[should_panic = "Causality violation"]
fn without_the_barrier_it_would_not_be() {
    one_user(Fault::NoBarrier);
}

#[test]
#[should_panic = "Causality violation"]
fn a_use_is_over_before_its_mark_goes() {
    one_user(Fault::LeavesRelaxed);
}

#[test]
fn two_users_are_both_waited_for() {
    model(2, || {
        let shared = Arc::new(Shared::default());
        let users = [0, 1].map(|place| {
            let view = View { shared: shared.clone(), place, fault: Fault::None };
            thread::spawn(move || look(&view))
        });
        close(&shared);
        for user in users {
            assert_ne!(user.join().unwrap(), Some(1));
        }
    });
}

/// As of a lock: what was closed is opened again, and who then enters sees what was changed.
#[test]
fn what_is_opened_again_is_seen_as_it_is_now() {
    model(3, || {
        let shared = Arc::new(Shared::default());
        let view = View { shared: shared.clone(), place: 0, fault: Fault::None };
        let user = thread::spawn(move || [look(&view), look(&view)]);
        close(&shared);
        shared.closed.store(false, Ordering::Release);
        let [first, second] = user.join().unwrap();
        assert!(first.is_none() || second.is_none() || first <= second);
        let view = View { shared, place: 0, fault: Fault::None };
        assert_eq!(look(&view), Some(1));
    });
}
