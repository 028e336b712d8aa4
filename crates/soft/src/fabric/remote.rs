//! GIDs of other hosts that somebody wants to hear of.

use std::collections::BTreeMap;

use ironverbs_wire::{Gid, Path};

use super::{Fabric, SmEvents, State};
use crate::host::Inner;

/// GIDs of other hosts under watch, at most: each is asked 40 times a second, and less often where there are many.
const MOST: usize = 4096;

impl Fabric {
    /// Starts to watch who is to be watched, and stops with the others.
    pub(super) fn see_to_remote(&self, state: &mut State, host: &Inner) {
        let wanted = self.wanted(state, host);
        let gone: Vec<Gid> =
            state.watched.keys().filter(|gid| !wanted.contains_key(gid)).copied().collect();
        for gid in gone {
            if let (Some(id), Some(probes)) = (state.watched.remove(&gid), &mut state.probes) {
                probes.prober.forget(id);
            }
        }
        let fresh: Vec<Path> = wanted
            .into_iter()
            .filter(|(gid, _)| !state.watched.contains_key(gid))
            .filter_map(|(_, path)| path)
            .collect();
        if !fresh.is_empty() {
            let now = ironverbs_mad::Instant(host.now().0);
            for path in fresh.into_iter().take(MOST - state.watched.len().min(MOST)) {
                // Without sockets there is nobody to ask; it is tried again.
                let Ok(probes) = state.probes(host) else { return };
                let id = probes.prober.watch(now, &path);
                state.watched.insert(path.dst, id);
            }
            if let Some(probes) = &mut state.probes {
                probes.send(host, now);
            }
            state.happened();
        }
        self.arm(state, host);
    }

    /// Who is to be watched, and by which path; none where there is no route at the moment.
    fn wanted(&self, state: &State, host: &Inner) -> BTreeMap<Gid, Option<Path>> {
        let mut wanted = BTreeMap::new();
        // Of those of a subnet the administrator tells.
        if host.subnet.is_some() {
            return wanted;
        }
        let mut all = false;
        for (context, registration) in &state.registrations {
            let Some(context) = context.upgrade() else { continue };
            all |= registration.events.contains(SmEvents::UGID_ALL);
            if !registration.events.contains(SmEvents::UGID) {
                continue;
            }
            for gid in registration.gids.iter().filter(|gid| !gid.is_multicast()) {
                let known = state.watched.contains_key(gid);
                if host.is_local(gid) || known && wanted.contains_key(gid) {
                    continue;
                }
                // Who is watched goes on being watched, whatever becomes of the route: then there is silence.
                let path = if known { None } else { context.path_to(gid).ok() };
                let entry = wanted.entry(*gid).or_insert(path);
                *entry = entry.or(path);
            }
        }
        if all {
            let qps: Vec<_> = host.qps.read().all().collect();
            for path in qps.iter().filter_map(|qp| qp.peer_path()) {
                if !host.is_local(&path.dst) {
                    wanted.entry(path.dst).or_insert(Some(path));
                }
            }
        }
        wanted
    }
}
