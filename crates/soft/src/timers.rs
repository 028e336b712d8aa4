//! Deadlines of queue pairs.
//!
//! A QP has one entry of its own at most that counts: the earliest it asked for. When that is due, the QP is
//! asked again; a deadline that moved back in the meantime costs nothing until then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_transport::device::Instant;
use parking_lot::Mutex;

#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, u32)>>>,
    /// The earliest deadline, readable without the lock.
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { heap: Mutex::default(), next: AtomicU64::new(u64::MAX) }
    }
}

impl Timers {
    /// The earliest deadline.
    pub(crate) fn next(&self) -> Instant {
        Instant(self.next.load(Ordering::Acquire))
    }

    pub(crate) fn add(&self, deadline: Instant, qpn: u32) {
        let mut heap = self.heap.lock();
        heap.push(Reverse((deadline, qpn)));
        self.publish(&heap);
    }

    /// An entry that is due.
    pub(crate) fn pop(&self, now: Instant) -> Option<(Instant, u32)> {
        if self.next() > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((deadline, _))| *deadline <= now);
        let entry = if due { heap.pop().map(|Reverse(entry)| entry) } else { None };
        self.publish(&heap);
        entry
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, u32)>>) {
        let next = heap.peek().map_or(u64::MAX, |Reverse((deadline, _))| deadline.0);
        self.next.store(next, Ordering::Release);
    }
}
