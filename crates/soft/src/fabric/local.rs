//! What is in service on this host.

use std::collections::BTreeSet;

use ironverbs_sys::netlink::Interface;
use ironverbs_wire::Gid;

use super::Fabric;
use crate::event::EventKind;
use crate::host::Inner;
use crate::registry::Neighbour;
use crate::subnet::Subnet;
use crate::{Host, Member};

/// An interface.
#[derive(Clone, Debug)]
pub(super) struct Link {
    ifindex: u32,
    up: bool,
    gids: Vec<Gid>,
}

impl Link {
    /// With the GIDs that a device has there: on a subnet its port's, else all addresses.
    pub(super) fn of(interface: &Interface, subnet: Option<&Subnet>) -> Link {
        let usable = interface.addresses.iter().filter(|address| !address.tentative);
        let gid = |ip| match subnet {
            Some(subnet) => subnet.of_address(ip).map(|place| place.gid),
            None => Some(Gid::from_ip(ip)),
        };
        Link {
            ifindex: interface.index,
            up: interface.up,
            gids: usable.filter_map(|address| gid(address.ip)).collect(),
        }
    }
}

/// What was there at one moment.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// GIDs of interfaces that are up.
    pub(super) present: BTreeSet<Gid>,
    /// Those of them that another process serves.
    pub(super) served: BTreeSet<Gid>,
    groups: BTreeSet<Gid>,
}

impl Seen {
    /// What is to be told when `now` has come about.
    pub(super) fn changes(&self, now: &Seen) -> Vec<(EventKind, Gid)> {
        let mut changes = Vec::new();
        let both = [(&self.present, &now.present), (&self.served, &now.served)];
        let gone: BTreeSet<Gid> =
            both.iter().flat_map(|(before, now)| before.difference(now)).copied().collect();
        let come: BTreeSet<Gid> =
            both.iter().flat_map(|(before, now)| now.difference(before)).copied().collect();
        changes.extend(gone.into_iter().map(|gid| (EventKind::GidUnavail, gid)));
        changes.extend(come.into_iter().map(|gid| (EventKind::GidAvail, gid)));
        let gone = self.groups.difference(&now.groups);
        changes.extend(gone.map(|gid| (EventKind::McgDeleted, *gid)));
        let come = now.groups.difference(&self.groups);
        changes.extend(come.map(|gid| (EventKind::McgCreated, *gid)));
        changes
    }
}

impl Fabric {
    /// What is there now.
    pub(super) fn survey(&self, host: &Inner) -> Seen {
        let Some(registry) = host.registry() else { return Seen::default() };
        let neighbours = registry.neighbours();
        let links = self.links.read();
        let up = || links.iter().filter(|link| link.up);
        let serves = |link: &&Link| {
            neighbours.iter().any(|neighbour: &Neighbour| neighbour.presence.serves(link.ifindex))
        };
        Seen {
            present: up().flat_map(|link| &link.gids).copied().collect(),
            served: up().filter(serves).flat_map(|link| &link.gids).copied().collect(),
            // Of those of a subnet the administrator tells.
            groups: match host.subnet {
                Some(_) => BTreeSet::new(),
                None => registry.joined_groups(&neighbours).into_iter().collect(),
            },
        }
    }
}

/// The processes of this user on this host, and what each has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbourhood {
    /// The process.
    pub member: Member,
    /// The interfaces of the devices it has open.
    pub interfaces: Vec<u32>,
    /// It only watches others.
    pub only_watches: bool,
}

impl Host {
    /// The other processes of this user on this host that have joined, by slot.
    pub fn neighbourhood(&self) -> Vec<Neighbourhood> {
        let Some(registry) = self.0.registry() else { return Vec::new() };
        let neighbour = |neighbour: Neighbour| Neighbourhood {
            member: Member { slot: neighbour.tenancy.0, pid: neighbour.pid, blocks: 0 },
            interfaces: neighbour.presence.open,
            only_watches: neighbour.presence.only_watches,
        };
        registry.neighbours().into_iter().map(neighbour).collect()
    }
}
