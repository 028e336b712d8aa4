//! How a lock is taken away from its first owner, under loom, as in `marks_model`: both sides of the barrier are
//! sequentially consistent fences here. What the lock protects is a cell, and loom reports it when two have it.
//!
//! `cargo test -p ironverbs-sys --test biased_model`

use ironverbs_sys::biased::protocol::{self, Memory};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::thread;

const OWNER: usize = 8;

struct Shared {
    owner: AtomicUsize,
    busy: AtomicBool,
    thing: UnsafeCell<u32>,
}

#[derive(Clone)]
struct View {
    shared: Arc<Shared>,
    /// Without the barrier the model must fail.
    barrier: bool,
}

impl View {
    fn new(barrier: bool) -> View {
        let (owner, busy) = (AtomicUsize::new(OWNER), AtomicBool::new(false));
        View { shared: Arc::new(Shared { owner, busy, thing: UnsafeCell::new(0) }), barrier }
    }

    fn add(&self, n: u32) {
        // SAFETY: loom checks that nobody else has it.
        self.shared.thing.with_mut(|thing| unsafe { *thing += n });
    }
}

impl Memory for View {
    fn owner(&self, order: Ordering) -> usize {
        self.shared.owner.load(order)
    }

    fn set_owner(&self, owner: usize, order: Ordering) {
        self.shared.owner.store(owner, order);
    }

    fn busy(&self, order: Ordering) -> bool {
        self.shared.busy.load(order)
    }

    fn set_busy(&self, busy: bool, order: Ordering) {
        self.shared.busy.store(busy, order);
    }

    fn light(&self) {
        if self.barrier {
            fence(Ordering::SeqCst);
        }
    }

    fn heavy(&self) {
        fence(Ordering::SeqCst);
    }
}

fn run(barrier: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let view = View::new(barrier);
        let owner = view.clone();
        let owner = thread::spawn(move || {
            let mut taken = 0;
            for _ in 0..2 {
                if protocol::take(&owner, OWNER) {
                    owner.add(1);
                    protocol::give_back(&owner);
                    taken += 1;
                }
            }
            taken
        });
        protocol::revoke(&view);
        while !protocol::is_free(&view) {
            thread::yield_now();
        }
        view.add(100);
        let taken = owner.join().unwrap();
        assert!(!protocol::take(&view, OWNER));
        // SAFETY: as in `add`.
        assert_eq!(view.shared.thing.with(|thing| unsafe { *thing }), 100 + taken);
    });
}

#[test]
fn it_is_one_threads_at_a_time() {
    run(true);
}

#[test]
#[should_panic = "Causality violation"]
fn without_the_barrier_two_would_have_it() {
    run(false);
}
