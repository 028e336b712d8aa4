//! Who waits for requests.

use std::collections::HashMap;

use ironverbs_wire::Gid;
use ironverbs_wire::mad::cm::ServiceId;

use super::ListenerId;
use crate::{ListenError, LocalAddr};

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    addr: LocalAddr,
    backlog: usize,
    /// Requests that count against the backlog, and who asks.
    waiting: Vec<(Asked, Gid)>,
}

/// A request that a program has not looked at.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Asked {
    /// For a connection, by its ID.
    Conn(u32),
    /// For a datagram service, by the resolution's ID.
    Sidr(u32),
}

/// What peers have asked for and is not done with, by who asked.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    count: usize,
    by: HashMap<Gid, usize>,
}

impl HalfOpen {
    pub(super) fn add(&mut self, gid: Gid) {
        self.count += 1;
        *self.by.entry(gid).or_default() += 1;
    }

    pub(super) fn remove(&mut self, gid: Gid) {
        let Some(own) = self.by.get_mut(&gid) else { return };
        *own -= 1;
        if *own == 0 {
            self.by.remove(&gid);
        }
        self.count -= 1;
    }

    /// Whether there is room for one more: `max` of anybody, and as many again, in parts, of those that have `proven` to
    /// have their address.
    pub(super) fn has_room(&self, max: usize, proven: Option<Gid>) -> bool {
        self.count < max
            || proven.is_some_and(|gid| {
                let own = self.by.get(&gid).copied().unwrap_or_default();
                self.count < max.saturating_mul(2) && own < max.div_ceil(PART)
            })
    }
}

/// So many senders that have proven to have their address it takes to fill their share.
const PART: usize = 8;

/// Listeners by service ID; no request is for two of them.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_service: HashMap<ServiceId, Vec<Listener>>,
    services: HashMap<ListenerId, ServiceId>,
    count: u64,
}

impl Listeners {
    pub(super) fn add(
        &mut self,
        service_id: ServiceId,
        addr: LocalAddr,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let others = self.by_service.entry(service_id).or_default();
        if let Some(other) = others.iter().find(|other| other.addr.overlaps(&addr)) {
            return Err(ListenError::InUse { service_id, addr, by: other.addr });
        }
        self.count += 1;
        let id = ListenerId(self.count);
        others.push(Listener { id, addr, backlog, waiting: Vec::new() });
        self.services.insert(id, service_id);
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(service_id) = self.services.remove(&id) else { return false };
        if let Some(listeners) = self.by_service.get_mut(&service_id) {
            listeners.retain(|listener| listener.id != id);
            if listeners.is_empty() {
                self.by_service.remove(&service_id);
            }
        }
        true
    }

    /// Who takes requests for this service at this address.
    pub(super) fn find(&self, service_id: ServiceId, addr: Gid) -> Option<ListenerId> {
        let listeners = self.by_service.get(&service_id)?;
        listeners.iter().find(|listener| listener.addr.contains(addr)).map(|listener| listener.id)
    }

    /// Whether one more request fits in the backlog.
    pub(super) fn has_room(&mut self, id: ListenerId) -> bool {
        self.get_mut(id).is_some_and(|listener| listener.waiting.len() < listener.backlog)
    }

    /// Counts one more request against the backlog.
    pub(super) fn count(&mut self, id: ListenerId, asked: Asked, by: Gid) {
        if let Some(listener) = self.get_mut(id) {
            listener.waiting.push((asked, by));
        }
    }

    /// One request less counts.
    pub(super) fn uncount(&mut self, id: ListenerId, asked: Asked) {
        let Some(listener) = self.get_mut(id) else { return };
        if let Some(at) = listener.waiting.iter().rposition(|(other, _)| *other == asked) {
            listener.waiting.remove(at);
        }
    }

    /// The request that has to make room for one of `by`, who has proven to have its address: the latest of those who
    /// have not, else the latest of who has the most, if that is more than `by` would have.
    pub(super) fn displaced(
        &mut self,
        id: ListenerId,
        by: Gid,
        is_proven: impl Fn(&Gid) -> bool,
    ) -> Option<Asked> {
        let listener = self.get_mut(id)?;
        let mut of: HashMap<Gid, usize> = HashMap::new();
        for (_, gid) in &listener.waiting {
            *of.entry(*gid).or_default() += 1;
        }
        let own = of.get(&by).copied().unwrap_or_default();
        let stranger = listener.waiting.iter().rfind(|(_, gid)| *gid != by && !is_proven(gid));
        let most = || {
            let (gid, count) = of.iter().max_by_key(|(_, count)| **count)?;
            let latest = listener.waiting.iter().rfind(|(_, other)| other == gid);
            latest.filter(|_| *count > own + 1)
        };
        stranger.or_else(most).map(|(asked, _)| *asked)
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let listeners = self.by_service.get_mut(self.services.get(&id)?)?;
        listeners.iter_mut().find(|listener| listener.id == id)
    }
}
