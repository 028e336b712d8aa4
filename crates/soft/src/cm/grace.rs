//! Requests to a port on which nobody listens yet.
//!
//! Programs meet a second time at a port that the server has to bind anew (perftest with `-R`), or tell their port before
//! they listen on it (qperf). Through a kernel the client is slow enough; here its request may be there first. So a
//! request without a listener waits for one if the port is bound, or if it comes from where a connection to that port was
//! accepted a moment ago. It waits in the process that has the port, or accepted, whose listening hands it on.
//! Everybody else is refused at once.

use std::collections::VecDeque;

use ironverbs_mad::{Destination, destination};
use ironverbs_transport::device::Instant;
use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::{PortSpace, ServiceId};
use ironverbs_wire::{Gid, Path};

use super::manager::{Session, TIMER};
use super::wire;
use crate::registry::Registry;

/// How long a request waits, in nanoseconds: less than its sender waits before it asks again.
const PATIENCE: u64 = 3_000_000_000;

/// How long it is remembered whose connections were accepted, in nanoseconds.
const MEMORY: u64 = 30_000_000_000;

/// Requests that wait at once, and peers that are remembered.
const MOST: usize = 64;

/// Requests that wait, and whose may.
#[derive(Debug, Default)]
pub(super) struct Grace {
    waiting: Vec<Early>,
    known: VecDeque<Known>,
}

/// A peer that was accepted.
#[derive(Debug)]
struct Known {
    peer: Gid,
    /// In any port space: a datagram service may be what it comes back for.
    port: u16,
    until: Instant,
}

/// A request that waits.
#[derive(Debug)]
struct Early {
    until: Instant,
    path: Path,
    pkey: u16,
    mad: Mad,
}

impl Session<'_> {
    /// Remembers that a peer's request to a port was accepted.
    pub(super) fn remember(&mut self, peer: Gid, port: u16) {
        let until = self.host.now().after(MEMORY);
        let known = &mut self.core.grace.known;
        known.retain(|other| (other.peer, other.port) != (peer, port));
        if known.len() >= MOST {
            known.pop_front();
        }
        known.push_back(Known { peer, port, until });
    }

    /// Hands a MAD to the protocol, a request that may wait only when there is a listener.
    pub(super) fn take(&mut self, path: &Path, pkey: u16, mad: &Mad) {
        if self.may_wait(path, mad) {
            let until = self.host.now().after(PATIENCE);
            self.core.grace.waiting.push(Early { until, path: *path, pkey, mad: *mad });
            self.host.add_timer(until, TIMER);
        } else {
            let now = self.now();
            self.cm().handle_mad(now, path, pkey, mad);
        }
    }

    /// Somebody listens from now on, or time has passed: hands on those that have a listener, or have waited long enough.
    pub(super) fn look_for_listeners(&mut self) {
        if self.core.grace.waiting.is_empty() {
            return;
        }
        let now = self.host.now();
        for early in std::mem::take(&mut self.core.grace.waiting) {
            let Early { until, path, pkey, mad } = &early;
            if now < *until && self.is_early(path, mad).is_some() {
                self.core.grace.waiting.push(early);
            } else if wire::hand_on(self.host, path, *pkey, mad) == wire::Sent::Here {
                let now = self.now();
                self.cm().handle_mad(now, path, *pkey, mad);
            }
        }
        self.run();
    }

    fn may_wait(&mut self, path: &Path, mad: &Mad) -> bool {
        if self.core.grace.waiting.len() >= MOST {
            return false;
        }
        let Some((service, port)) = self.is_early(path, mad) else { return false };
        let bound = self.host.registry().is_some_and(|registry| {
            registry.bound(service.0, &self.address(path)) == Some(registry.slot())
        });
        let now = self.host.now();
        let mut known = self.core.grace.known.iter();
        bound
            || known.any(|known| (known.peer, known.port) == (path.src, port) && now < known.until)
    }

    /// The address of this host that a request came to, as ports have it.
    fn address(&self, path: &Path) -> Gid {
        Gid::from_ip(self.host.ip_of(&path.dst))
    }

    /// The service and its port, if it is a request for one that nobody listens on. In a simulation who listens is known to
    /// each Host alone.
    fn is_early(&self, path: &Path, mad: &Mad) -> Option<(ServiceId, u16)> {
        let registry = self.host.registry()?;
        let Destination::ServiceId(service) = destination(mad) else { return None };
        let (_, port) = service.port()?;
        registry.listener(service.0, &self.address(path)).is_none().then_some((service, port))
    }
}

/// Where a request that nobody listens for may wait: with who has the port, listened there, or has it in another space.
pub(super) fn waits_with(registry: &Registry, service: ServiceId, dst: &Gid) -> Option<u16> {
    let (_, port) = service.port()?;
    let spaces = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib, PortSpace::Ipoib];
    let same = [service].into_iter().chain(spaces.map(|space| ServiceId::of_port(space, port)));
    let mut ids = same.map(|service| service.0);
    registry.bound(service.0, dst).or_else(|| {
        ids.find_map(|id| registry.listener(id, dst).or_else(|| registry.former_listener(id, dst)))
    })
}
