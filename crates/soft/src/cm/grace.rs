//! Requests to a port on which nobody listens yet.
//!
//! Programs meet a second time at a port that the server has to bind anew (perftest with `-R`). Through a kernel the
//! client is slow enough; here, on one host, its request may be there first. So before a request is refused for want of
//! a listener it waits a moment for one.

use ironverbs_mad::{Destination, destination};
use ironverbs_transport::device::Instant;
use ironverbs_wire::Path;
use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::ServiceId;

use super::manager::{Session, TIMER};
use super::wire;

/// How long a request waits, in nanoseconds: nothing beside the seconds that its sender waits for an answer.
const GRACE: u64 = 50_000_000;

/// How soon it is looked again, in nanoseconds.
const LOOK: u64 = 1_000_000;

/// Requests that wait at once; one more is refused at once.
const MOST: usize = 64;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Early {
    until: Instant,
    path: Path,
    pkey: u16,
    mad: Mad,
}

impl Session<'_> {
    /// Hands a MAD to the protocol, a request without a listener only after a while.
    pub(super) fn take(&mut self, path: &Path, pkey: u16, mad: &Mad) {
        if self.core.early.len() < MOST && self.is_early(path, mad) {
            let now = self.host.now();
            self.core.early.push(Early { until: now.after(GRACE), path: *path, pkey, mad: *mad });
            self.host.add_timer(now.after(LOOK), TIMER);
            return;
        }
        let now = self.now();
        self.cm().handle_mad(now, path, pkey, mad);
    }

    /// Hands on those that have a listener now, or have waited long enough.
    pub(super) fn look_for_listeners(&mut self) {
        if self.core.early.is_empty() {
            return;
        }
        let now = self.host.now();
        for early in std::mem::take(&mut self.core.early) {
            let Early { until, path, pkey, mad } = &early;
            if now < *until && self.is_early(path, mad) {
                self.core.early.push(early);
            } else if wire::hand_on(self.host, path, *pkey, mad) == wire::Sent::Here {
                let now = self.now();
                self.cm().handle_mad(now, path, *pkey, mad);
            }
        }
        if !self.core.early.is_empty() {
            self.host.add_timer(now.after(LOOK), TIMER);
        }
        self.run();
    }

    /// Whether nobody listens for it. In a simulation who listens is known to each Host alone.
    fn is_early(&self, path: &Path, mad: &Mad) -> bool {
        let Some(registry) = self.host.registry() else { return false };
        match destination(mad) {
            // What no port space has, nobody is about to listen for.
            Destination::ServiceId(ServiceId(service)) => {
                u32::try_from(service).is_ok() && registry.listener(service, &path.dst).is_none()
            }
            _ => false,
        }
    }
}
