//! Ports of the connection manager: whose they are among the user's processes, and who listens.
//!
//! A table of entries, each found by its port within a window that starts where a hash says. An entry counts as long as
//! the tenant of the slot that made it; it is written by that one process, under the lock, and cleared by it
//! without. Looking up who listens takes no lock: what is read may be half of one entry and half of the next, and whoever is then
//! asked says that nobody listens there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ironverbs_wire::Gid;
use ironverbs_wire::mad::cm::PortSpace;

use super::Registry;
use super::life::Life;
use super::service::Membership;
use crate::status::ServiceStatus;

/// The lock is held for a millisecond at most by a process that runs.
const LOCK: Duration = Duration::from_secs(2);

/// Entries looked at for one port.
const WINDOW: usize = 32;

/// How one process holds a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Which of the process's ids has it.
    pub(crate) id: u32,
    /// Port space and port, as in service IDs: 16 bits each.
    pub(crate) service: u32,
    /// The address, or a wildcard.
    pub(crate) ip: IpAddr,
    /// It shares the address with others that do, unless one listens.
    pub(crate) reuse: bool,
    /// Its IPv6 wildcard leaves IPv4 alone.
    pub(crate) family_only: bool,
    pub(crate) listens: bool,
}

impl Claim {
    /// Whether a request could be meant for either.
    pub(crate) fn overlaps(&self, other: &Claim) -> bool {
        let apart = self.ip.is_ipv4() != other.ip.is_ipv4();
        if self.service != other.service || apart && !(self.is_dual() || other.is_dual()) {
            return false;
        }
        self.ip.is_unspecified() || other.ip.is_unspecified() || self.ip == other.ip
    }

    /// Whether `new` cannot be had beside this.
    pub(crate) fn excludes(&self, new: &Claim) -> bool {
        let shared = self.reuse && new.reuse && !self.listens;
        !shared && self.overlaps(new)
    }

    /// As it is shown to those who look; None for what no process of ours writes.
    pub(super) fn told(&self) -> Option<ServiceStatus> {
        let space = PortSpace::from_number((self.service >> 16).into())?;
        let address = SocketAddr::new(self.ip, self.service as u16);
        Some(ServiceStatus { space, address, listens: self.listens })
    }

    /// Whether it stands for the addresses of both families.
    fn is_dual(&self) -> bool {
        self.ip.is_ipv6() && self.ip.is_unspecified() && !self.family_only
    }

    /// How well a listener suits requests to an address of this host; 0: not at all.
    fn suits(&self, dst: &Gid) -> u8 {
        let same_family = self.ip.is_ipv4() == dst.is_ipv4();
        match self.ip {
            ip if Gid::from_ip(ip) == *dst => 4,
            ip if ip.is_unspecified() && same_family => 3,
            IpAddr::V6(ip) if ip.is_unspecified() && !self.family_only => 2,
            // Requests to a loopback address come to a device's.
            ip if ip.is_loopback() && same_family => 1,
            _ => 0,
        }
    }
}

/// An entry of the table, and who made it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: u16,
    pub(super) tenure: u32,
    pub(super) claim: Claim,
}

impl Registry {
    /// Takes a port for this process; false when somebody has it.
    ///
    /// # Errors
    /// TimedOut: a stopped process holds the registry's lock.
    pub(crate) fn claim_port(&self, claim: &Claim) -> io::Result<bool> {
        let Some(member) = self.member() else { return Ok(false) };
        let _lock = member.group.lock(LOCK)?;
        Ok(member.claim_port(claim))
    }

    /// Makes a port one that is listened on; false when others have it, too.
    ///
    /// # Errors
    /// As [`Registry::claim_port`].
    pub(crate) fn listen_on_port(&self, claim: &Claim) -> io::Result<bool> {
        let Some(member) = self.member() else { return Ok(false) };
        let _lock = member.group.lock(LOCK)?;
        if member.has_rival(claim, Claim::overlaps) {
            return Ok(false);
        }
        let own = window(claim.service).find(|at| member.is_own(*at, claim));
        if let Some(at) = own {
            member.set(at, claim);
        }
        Ok(own.is_some())
    }

    /// Gives a port back. That it was listened on is remembered while nobody takes it.
    pub(crate) fn release_port(&self, service: u32, id: u32) {
        let Some(member) = self.member() else { return };
        let table = &member.group.table;
        for at in window(service) {
            let own = |entry: &Entry| entry.claim.service == service && entry.claim.id == id;
            match table.port(at).filter(|entry| member.made(entry) && own(entry)) {
                Some(Entry { claim: Claim { listens: true, .. }, .. }) => table.leave_port(at),
                Some(_) => table.set_port(at, None),
                None => {}
            }
        }
    }

    /// The slot of the process that listens for a service of the connection manager at an address of this host.
    pub(crate) fn listener(&self, service: u64, dst: &Gid) -> Option<u16> {
        self.holder(service, dst, true)
    }

    /// The slot of a process that has the port of a service without listening on it.
    pub(crate) fn bound(&self, service: u64, dst: &Gid) -> Option<u16> {
        self.holder(service, dst, false)
    }

    fn holder(&self, service: u64, dst: &Gid, listens: bool) -> Option<u16> {
        let member = self.member()?;
        let service = u32::try_from(service).ok()?;
        let holds = |entry: &Entry| {
            let Claim { service: of, listens: does, .. } = entry.claim;
            of == service && does == listens && member.is_current(entry)
        };
        let entries = window(service).filter_map(|at| member.group.table.port(at));
        best(entries.filter(holds), dst)
    }

    /// The slot of a process that lives and listened for a service some time ago.
    pub(crate) fn former_listener(&self, service: u64, dst: &Gid) -> Option<u16> {
        let member = self.member()?;
        let service = u32::try_from(service).ok()?;
        let entries = window(service).filter_map(|at| member.group.table.former_port(at));
        let left = |entry: &Entry| entry.claim.service == service && member.is_current(entry);
        best(entries.filter(left), dst)
    }
}

impl Membership {
    fn claim_port(&self, claim: &Claim) -> bool {
        if self.has_rival(claim, Claim::excludes) {
            return false;
        }
        let table = &self.group.table;
        let free = |at: &usize| table.port(*at).is_none_or(|entry| !self.is_current(&entry));
        // Who listened on others is remembered while there is room.
        let idle = |at: &usize| free(at) && table.former_port(*at).is_none();
        let at = window(claim.service).find(idle).or_else(|| window(claim.service).find(free));
        let Some(at) = at else { return false };
        self.set(at, claim);
        true
    }

    fn set(&self, at: usize, claim: &Claim) {
        let slot = self.seat.slot;
        let Some(own) = self.group.table.tenant(slot) else { return };
        self.group.table.set_port(at, Some(&Entry { slot, tenure: own.tenure, claim: *claim }));
    }

    /// Whether somebody who lives has the same port in such a way.
    fn has_rival(&self, claim: &Claim, conflicts: impl Fn(&Claim, &Claim) -> bool) -> bool {
        window(claim.service).any(|at| {
            self.foreign(at, claim)
                .is_some_and(|other| conflicts(&other.claim, claim) && self.is_alive(&other))
        })
    }

    /// An entry for the same port that is not this very claim's.
    fn foreign(&self, at: usize, claim: &Claim) -> Option<Entry> {
        let entry = self.group.table.port(at)?;
        let own = self.made(&entry) && entry.claim.id == claim.id;
        (entry.claim.service == claim.service && !own && self.is_current(&entry)).then_some(entry)
    }

    fn is_own(&self, at: usize, claim: &Claim) -> bool {
        let entry = self.group.table.port(at);
        let own = |e: &Entry| e.claim.service == claim.service && e.claim.id == claim.id;
        entry.is_some_and(|entry| self.made(&entry) && own(&entry))
    }

    fn made(&self, entry: &Entry) -> bool {
        entry.slot == self.seat.slot && self.is_current(entry)
    }

    /// Whether the slot has the tenant that made the entry.
    fn is_current(&self, entry: &Entry) -> bool {
        self.group.table.tenant(entry.slot).is_some_and(|tenant| tenant.tenure == entry.tenure)
    }

    /// Whether who made it lives: its death may not have been noticed yet.
    fn is_alive(&self, entry: &Entry) -> bool {
        let Some(tenant) = self.group.table.tenant(entry.slot) else { return false };
        entry.slot == self.seat.slot
            || !matches!(self.coroner.examine(entry.slot, &tenant), Life::Dead)
    }
}

/// The slot of the entry that suits best.
fn best(entries: impl Iterator<Item = Entry>, dst: &Gid) -> Option<u16> {
    let suited = entries.map(|entry| (entry.claim.suits(dst), entry.slot));
    suited.filter(|(how, _)| *how > 0).max().map(|(_, slot)| slot)
}

/// Where entries for a service may be.
fn window(service: u32) -> impl Iterator<Item = usize> {
    let start = (service.wrapping_mul(0x9e37_79b1) >> 16) as usize;
    (start..start + WINDOW).map(|at| at % super::table::PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(ip: &str) -> Claim {
        let ip = ip.parse().unwrap();
        Claim { id: 1, service: 7, ip, reuse: false, family_only: false, listens: true }
    }

    #[test]
    fn addresses_overlap_where_a_request_could_be_for_both() {
        let (any4, any6) = (claim("0.0.0.0"), claim("::"));
        let only6 = Claim { family_only: true, ..any6 };
        let (one4, other4, one6) = (claim("10.0.0.1"), claim("10.0.0.2"), claim("fd00::1"));
        for (a, b) in [(any4, any6), (any4, one4), (any6, one6), (any6, one4), (one4, one4)] {
            assert!(a.overlaps(&b) && b.overlaps(&a), "{a:?} {b:?}");
        }
        for (a, b) in [(any4, only6), (only6, one4), (one4, other4), (one4, one6), (any4, one6)] {
            assert!(!a.overlaps(&b) && !b.overlaps(&a), "{a:?} {b:?}");
        }
        assert!(!one4.overlaps(&Claim { service: 8, ..one4 }));
    }

    #[test]
    fn the_nearest_listener_is_the_one_asked() {
        let dst = Gid::from_ip("10.0.0.1".parse().unwrap());
        let order = ["127.0.0.1", "::", "0.0.0.0", "10.0.0.1"];
        assert!(order.map(|ip| claim(ip).suits(&dst)).is_sorted_by(|a, b| a < b));
        assert_eq!(claim("10.0.0.2").suits(&dst), 0);
        assert_eq!(Claim { family_only: true, ..claim("::") }.suits(&dst), 0);
    }
}
