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
    /// Requests that count against the backlog.
    pending: usize,
}

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
        others.push(Listener { id, addr, backlog, pending: 0 });
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

    /// Counts one more request against the backlog; false, and nothing counted, if it is full.
    pub(super) fn count(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.get_mut(id) else { return false };
        let room = listener.pending < listener.backlog;
        listener.pending += usize::from(room);
        room
    }

    /// One request less counts.
    pub(super) fn uncount(&mut self, id: ListenerId) {
        if let Some(listener) = self.get_mut(id) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let listeners = self.by_service.get_mut(self.services.get(&id)?)?;
        listeners.iter_mut().find(|listener| listener.id == id)
    }
}
