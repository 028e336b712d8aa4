//! Multicast groups that the members' sockets have joined.
//!
//! Linux (6.18) gives an IPv4 multicast packet to any socket of the group that shares the port where
//! exactly one has joined. Whoever gets such a stray hands it on to those whose entries here name the
//! group. IPv6 packets go to all that have joined, on whatever interface. An entry also tells the slot's next tenant what to leave: the socket outlives the process.

use std::io;

use ironverbs_sys::errno::{EADDRINUSE, ENOBUFS};
use ironverbs_wire::{Gid, Path};

use super::Registry;
use super::mail::Mail;
use super::service::Membership;
use super::table::GROUPS_PER_SLOT;

impl Registry {
    /// Joins a multicast group on an interface with the slot's socket.
    ///
    /// # Errors
    /// As [`RxSocket::join`](ironverbs_sys::udp::RxSocket::join), save that joining again is none;
    /// ENOBUFS beyond 20 groups.
    pub fn join_group(&self, group: &Gid, ifindex: u32) -> io::Result<()> {
        let Some(member) = self.member() else { return Ok(()) };
        let (table, slot) = (&member.group.table, member.seat.slot);
        let Some(at) = member.place_for_group(group, ifindex)? else { return Ok(()) };
        // First the entry: what was joined and is not told would be left by nobody.
        table.set_joined(slot, at, Some((*group, ifindex)));
        match member.seat.socket.join(group.to_ip(), ifindex) {
            Err(e) if e.raw_os_error() == Some(EADDRINUSE) => Ok(()),
            Err(e) => {
                table.set_joined(slot, at, None);
                Err(e)
            }
            Ok(()) => {
                self.wake_watchers();
                Ok(())
            }
        }
    }

    /// Has a multicast group of the InfiniBand subnet on an interface: no socket joins it, since every host gets its
    /// packets.
    ///
    /// # Errors
    /// ENOBUFS beyond 20 groups.
    pub fn have_group(&self, group: &Gid, ifindex: u32) -> io::Result<()> {
        let Some(member) = self.member() else { return Ok(()) };
        if let Some(at) = member.place_for_group(group, ifindex)? {
            member.group.table.set_joined(member.seat.slot, at, Some((*group, ifindex)));
        }
        Ok(())
    }

    /// Hands a packet of a group of the InfiniBand subnet, which came here by the way of `from`, to all other
    /// processes that have the group. Returns to how many.
    pub fn forward_subnet_group(
        &self,
        group: &Gid,
        ifindex: u32,
        from: &Path,
        src_port: u16,
        segment: &[u8],
    ) -> usize {
        let Some(member) = self.member() else { return 0 };
        let table = &member.group.table;
        let has = |slot: u16| {
            (0..GROUPS_PER_SLOT).any(|at| table.joined(slot, at) == Some((*group, ifindex)))
        };
        let mail = Mail::Packet { path: *from, src_port, bytes: segment };
        member.mail_to_others(&mail, has)
    }

    /// Leaves a group.
    pub fn leave_group(&self, group: &Gid, ifindex: u32) {
        let Some(member) = self.member() else { return };
        for at in 0..GROUPS_PER_SLOT {
            if member.group.table.joined(member.seat.slot, at) == Some((*group, ifindex)) {
                member.leave_joined(at);
                self.wake_watchers();
            }
        }
    }

    /// Hands an IPv4 packet to a multicast group, which arrived here although this process has not joined
    /// it, to those that have. Returns to how many.
    pub fn forward_group(&self, path: &Path, ifindex: u32, src_port: u16, segment: &[u8]) -> usize {
        let Some(member) = self.member().filter(|_| path.is_ipv4()) else { return 0 };
        let table = &member.group.table;
        let joined = |slot: u16| {
            (0..GROUPS_PER_SLOT).any(|at| {
                table
                    .joined(slot, at)
                    .is_some_and(|(group, of)| group == path.dst && (ifindex == 0 || of == ifindex))
            })
        };
        if joined(member.seat.slot) {
            // Then it was this process's own copy.
            return 0;
        }
        let mail = Mail::Packet { path: *path, src_port, bytes: segment };
        member.mail_to_others(&mail, joined)
    }
}

impl Membership {
    /// A place for a group among the slot's entries; None where the group has one. ENOBUFS: all are taken.
    fn place_for_group(&self, group: &Gid, ifindex: u32) -> io::Result<Option<usize>> {
        let (table, slot) = (&self.group.table, self.seat.slot);
        let entries = || (0..GROUPS_PER_SLOT).map(|at| (at, table.joined(slot, at)));
        if entries().any(|(_, entry)| entry == Some((*group, ifindex))) {
            return Ok(None);
        }
        let free = entries().find(|(_, entry)| entry.is_none());
        free.map(|(at, _)| Some(at)).ok_or_else(|| io::Error::from_raw_os_error(ENOBUFS))
    }

    /// Sends it to the other processes for whose slots `wants` holds. Returns to how many.
    fn mail_to_others(&self, mail: &Mail<'_>, wants: impl Fn(u16) -> bool) -> usize {
        let table = &self.group.table;
        (0..table.sockets())
            .filter(|&slot| slot != self.seat.slot && table.tenant(slot).is_some() && wants(slot))
            .filter_map(|slot| self.coroner.names.mailbox(slot).ok())
            .filter(|name| mail.send(&self.seat.mailbox, name).is_ok())
            .count()
    }

    /// Leaves what an earlier tenant of the slot, or this one, has joined.
    pub(super) fn leave_groups(&self) {
        for at in 0..GROUPS_PER_SLOT {
            self.leave_joined(at);
        }
    }

    fn leave_joined(&self, at: usize) {
        let (table, slot) = (&self.group.table, self.seat.slot);
        if let Some((group, ifindex)) = table.joined(slot, at) {
            // The interface may be gone, and the membership with it.
            let _ = self.seat.socket.leave(group.to_ip(), ifindex);
            table.set_joined(slot, at, None);
        }
    }
}
