//! What waits to be sent, and what waits for time.

use std::collections::{BTreeSet, VecDeque};

use ironverbs_wire::Path;
use ironverbs_wire::mad::Mad;

use crate::Instant;

/// What is due when, soonest first.
pub(super) type Deadlines = BTreeSet<(Instant, Timer)>;

/// Whose time it is.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub(super) enum Timer {
    Conn(u32),
    Sidr(u32),
}

impl Timer {
    /// Moves this timer from `old` to `new`.
    pub(super) fn set(
        self,
        deadlines: &mut Deadlines,
        old: &mut Option<Instant>,
        new: Option<Instant>,
    ) {
        if let Some(old) = old.take() {
            deadlines.remove(&(old, self));
        }
        if let Some(new) = new {
            deadlines.insert((new, self));
        }
        *old = new;
    }
}

/// How messages reach a peer.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Route {
    /// From the local port to the peer's.
    pub(super) path: Path,
    pub(super) pkey: u16,
}

impl Route {
    /// Whether a packet of these addresses is from this peer.
    pub(super) fn is_from(&self, path: &Path) -> bool {
        self.path.src == path.dst && self.path.dst == path.src
    }
}

/// A MAD to send from QP1 to QP1.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Transmit {
    /// From the local port to the peer's.
    pub path: Path,
    /// Partition.
    pub pkey: u16,
    /// The payload.
    pub mad: Mad,
}

/// A queue of bounded length. What does not fit is lost, as it might be on the network.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: VecDeque<Transmit>,
    max: usize,
    dropped: u64,
}

impl Outbox {
    pub(super) fn new(max: usize) -> Self {
        Self { queue: VecDeque::new(), max, dropped: 0 }
    }

    pub(super) fn push(&mut self, route: Route, mad: Mad) {
        if self.queue.len() < self.max {
            self.queue.push_back(Transmit { path: route.path, pkey: route.pkey, mad });
        } else {
            self.dropped += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<Transmit> {
        self.queue.pop_front()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}
