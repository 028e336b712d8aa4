//! Who of the host's processes has which devices open, for those that want to hear of it.
//!
//! A process writes its own entry and wakes those that watch. Whoever watches has a descriptor of each other process,
//! readable from its death on, so that a process that is killed is missed at once, by every watcher.

use std::os::fd::AsFd;

use ironverbs_sys::process::ClosedOnFork;
use ironverbs_wire::Gid;

use super::Registry;
use super::life::Life;
use super::peers::{Tenancy, Watched, ding};
use super::table::{GROUPS_PER_SLOT, Presence};

/// Another process of the group, alive.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub(crate) tenancy: Tenancy,
    /// In its own PID namespace.
    pub(crate) pid: u32,
    pub(crate) presence: Presence,
}

impl Registry {
    /// Tells the others what this process has open, and wakes those that watch.
    pub(crate) fn announce(&self, presence: &Presence) {
        let Some(member) = self.member() else { return };
        let (table, own) = (&member.group.table, member.seat.slot);
        if table.presence(own) != *presence {
            table.set_presence(own, presence);
            self.wake_watchers();
        }
    }

    /// Wakes the processes that want to hear of others.
    pub(crate) fn wake_watchers(&self) {
        let Some(member) = self.member() else { return };
        let (table, own) = (&member.group.table, member.seat.slot);
        for slot in (0..table.sockets()).filter(|slot| *slot != own) {
            if table.tenant(slot).is_some()
                && table.presence(slot).watches
                && let Ok(name) = member.coroner.names.mailbox(slot)
            {
                ding(&member.seat.mailbox, &name);
            }
        }
    }

    /// The other processes that live. From here on the death of each wakes, where that can be had, [`Registry::service_fd`].
    pub(crate) fn neighbours(&self) -> Vec<Neighbour> {
        let Some(member) = self.member() else { return Vec::new() };
        let (table, own) = (&member.group.table, member.seat.slot);
        let mut watched = member.wake.watched.lock();
        let neighbour = |slot| {
            let tenant = table.tenant(slot)?;
            let tenancy = (slot, tenant.tenure);
            match watched.get(&tenancy).map(|watched| watched.pidfd.alive()) {
                // Who sees to the watched tells of it; here it is no neighbour any more.
                Some(false) => return None,
                Some(true) => {}
                None => match member.coroner.examine(slot, &tenant) {
                    Life::Dead => return None,
                    // Without a descriptor its death shows when it is looked for again.
                    Life::Alive(None) => {}
                    Life::Alive(Some(pidfd)) => {
                        let closed_on_fork = ClosedOnFork::new(pidfd.as_fd());
                        let watch = closed_on_fork.and_then(|c| {
                            member.watch_pidfd(&pidfd)?;
                            Ok(Watched { _closed_on_fork: c, pidfd })
                        });
                        // As here, where descriptors have run out.
                        watched.extend(watch.ok().map(|watch| (tenancy, watch)));
                    }
                },
            }
            let pid = tenant.identity.pid;
            Some(Neighbour { tenancy, pid, presence: table.presence(slot) })
        };
        (0..table.sockets()).filter(|slot| *slot != own).filter_map(neighbour).collect()
    }

    /// The multicast groups that these processes and this one have joined.
    pub(crate) fn joined_groups(&self, living: &[Neighbour]) -> Vec<Gid> {
        let Some(member) = self.member() else { return Vec::new() };
        let table = &member.group.table;
        let slots = living.iter().map(|neighbour| neighbour.tenancy.0);
        let of_slot =
            |slot| (0..GROUPS_PER_SLOT).filter_map(move |at| Some(table.joined(slot, at)?.0));
        slots.chain([member.seat.slot]).flat_map(of_slot).collect()
    }
}
