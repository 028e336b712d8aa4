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
    /// Requests of anybody that count against the backlog.
    pending: usize,
    /// Those above it, of senders that have proven to have their address.
    reserved: Vec<Gid>,
}

/// What a request counts against.
#[derive(Copy, Clone, Debug)]
pub(super) struct Counted {
    listener: ListenerId,
    /// Whose share, if not that of all.
    share: Option<Gid>,
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

/// A sender's part of the share of those that have proven to have their address: so many it takes to fill it.
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
        others.push(Listener { id, addr, backlog, pending: 0, reserved: Vec::new() });
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

    /// Counts one more request against the backlog, or, if that is full, against the share of those that have `proven` their
    /// address. None, and nothing counted: there is no room.
    pub(super) fn count(&mut self, id: ListenerId, proven: Option<Gid>) -> Option<Counted> {
        let listener = self.get_mut(id)?;
        if listener.pending < listener.backlog {
            listener.pending += 1;
            return Some(Counted { listener: id, share: None });
        }
        let gid = proven?;
        let own = listener.reserved.iter().filter(|other| **other == gid).count();
        if listener.reserved.len() >= listener.backlog || own >= listener.backlog.div_ceil(PART) {
            return None;
        }
        listener.reserved.push(gid);
        Some(Counted { listener: id, share: proven })
    }

    /// One request less counts.
    pub(super) fn uncount(&mut self, counted: &Counted) {
        let Some(listener) = self.get_mut(counted.listener) else { return };
        match counted.share {
            None => listener.pending = listener.pending.saturating_sub(1),
            Some(gid) => {
                if let Some(at) = listener.reserved.iter().position(|other| *other == gid) {
                    listener.reserved.swap_remove(at);
                }
            }
        }
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let listeners = self.by_service.get_mut(self.services.get(&id)?)?;
        listeners.iter_mut().find(|listener| listener.id == id)
    }
}
