//! What a Host has of the connection manager: the ports, the resolutions under way.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_transport::device::Instant;
use parking_lot::Mutex;

use super::CmId;
use super::ports::Ports;
use crate::host::Inner;

/// The number that the Host's timers know the connection manager by: the QPN of its queue pair.
pub(crate) const TIMER: u32 = 1;

/// The connection manager of a Host.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    pub(super) ports: Ports,
    numbers: AtomicU64,
    resolving: Mutex<Vec<Resolving>>,
}

/// An id that waits for a neighbour.
#[derive(Debug)]
struct Resolving {
    id: Weak<CmId>,
    at: Instant,
}

impl Manager {
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has [`CmId::look_again`] called.
    pub(super) fn resolve_later(&self, host: &Inner, id: Weak<CmId>, at: Instant) {
        self.resolving.lock().push(Resolving { id, at });
        host.add_timer(at, TIMER);
    }

    /// A timer is due.
    pub(crate) fn timeout(&self, now: Instant) {
        let due: Vec<_> =
            self.resolving.lock().extract_if(.., |waiting| waiting.at <= now).collect();
        for id in due.into_iter().filter_map(|waiting| waiting.id.upgrade()) {
            id.look_again(now);
        }
    }
}
