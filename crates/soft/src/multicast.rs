//! Multicast: which UD queue pairs are attached to which groups (IBA 10.5).
//!
//! A packet to a group goes to QPN 0xffffff. Each process with members has joined the group on its
//! slot's socket and gets a copy of its own; here the copy becomes one for each QP attached. A sender
//! hears itself like anybody else: if it is attached, and was not made so that it does not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::errno::{EINVAL, ENOBUFS, ENODEV};
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::{Gid, Packet, Path};
use parking_lot::RwLock;

use crate::context::limits;
use crate::host::Inner;
use crate::registry::Registry;
use crate::{Error, Qp};

/// The destination QPN of multicast packets (IBA 9.2.7).
pub(crate) const QPN: u32 = 0xff_ffff;

/// The groups that QPs of a Host are attached to.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: RwLock<HashMap<Gid, Vec<Member>>>,
}

#[derive(Debug)]
struct Member {
    qp: Weak<Qp>,
    /// The interface of its device.
    ifindex: u32,
}

impl Member {
    fn is(&self, qp: &Qp) -> bool {
        std::ptr::eq(self.qp.as_ptr(), qp)
    }
}

/// How a QP takes part in groups.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    /// How many it is attached to.
    count: AtomicUsize,
    /// It does not hear what it sends.
    deaf_to_self: AtomicBool,
}

impl Groups {
    /// The QPs attached to a group by devices of that interface; by any if it is 0, not known.
    pub(crate) fn members(&self, group: &Gid, ifindex: u32) -> Vec<Arc<Qp>> {
        let members = self.members.read();
        let of_group = members.get(group).map(Vec::as_slice).unwrap_or_default();
        let there = of_group.iter().filter(|m| ifindex == 0 || m.ifindex == ifindex);
        there.filter_map(|member| member.qp.upgrade()).collect()
    }

    /// Whether any QP is attached to the group.
    pub(crate) fn has(&self, group: &Gid) -> bool {
        self.members.read().contains_key(group)
    }

    /// Joins all there are, when the wire has come only now.
    pub(crate) fn join_all(&self, host: &Inner, registry: &Registry) {
        for (group, members) in &*self.members.read() {
            for member in members {
                if host.subnet.is_some() {
                    let _ = registry.have_group(group, member.ifindex);
                    continue;
                }
                // What fails here is as if no packet came.
                let _ = registry.join_group(group, member.ifindex);
            }
        }
    }

    fn attach(&self, host: &Inner, qp: &Qp, group: Gid) -> Result<(), Error> {
        let no_memory = Err(Error::NoMemory { what: "multicast attachment" });
        let ifindex = qp.context().device().ifindex();
        let mut all = self.members.write();
        let count = all.len();
        match all.get(&group) {
            Some(members) if members.iter().any(|member| member.is(qp)) => return Ok(()),
            Some(members) if members.len() >= limits::MCAST_QPS as usize => return no_memory,
            None if count >= limits::MCAST_GROUPS as usize => return no_memory,
            _ => {}
        }
        let Some(qp_reference) = qp.me() else { return Err(Error::Stale { what: "queue pair" }) };
        let known = all.get(&group).is_some_and(|m| m.iter().any(|m| m.ifindex == ifindex));
        if !known && let Some(registry) = host.registry() {
            let joined = match host.subnet.is_some() {
                true => registry.have_group(&group, ifindex),
                false => registry.join_group(&group, ifindex),
            };
            joined.map_err(|e| match e.raw_os_error() {
                Some(ENOBUFS) => Error::NoMemory { what: "multicast group" },
                Some(ENODEV) => Error::Gone { device: qp.context().device().name().to_owned() },
                Some(EINVAL) => invalid(&group),
                _ => Error::Io(e),
            })?;
        }
        let member = Member { qp: Arc::downgrade(&qp_reference), ifindex };
        all.entry(group).or_default().push(member);
        qp.attachments.count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn detach(&self, host: &Inner, qp: &Qp, group: &Gid) -> Result<(), Error> {
        let mut all = self.members.write();
        let members = all.get_mut(group).ok_or_else(|| not_attached(group))?;
        let at = members.iter().position(|m| m.is(qp)).ok_or_else(|| not_attached(group))?;
        let gone = members.swap_remove(at);
        qp.attachments.count.fetch_sub(1, Ordering::AcqRel);
        if !members.iter().any(|member| member.ifindex == gone.ifindex)
            && let Some(registry) = host.registry()
        {
            registry.leave_group(group, gone.ifindex);
        }
        if members.is_empty() {
            all.remove(group);
        }
        Ok(())
    }
}

impl Qp {
    /// Attaches it to a multicast group, IPv6 or mapped IPv4 (ibv_attach_mcast(3)); again is no error. Packets to the
    /// group, QPN 0xffffff and its Q_Key then come to it, its own among them.
    ///
    /// # Errors
    /// Invalid for another type than UD, or an address that is no multicast address; NoMemory beyond the limits of
    /// the device or of the system (`net.ipv4.igmp_max_memberships`).
    pub fn attach_mcast(&self, group: &Gid) -> Result<(), Error> {
        self.context().check()?;
        self.identity.check()?;
        self.check_group(group)?;
        self.host().groups.attach(self.host(), self, *group)?;
        self.tell_subnet();
        Ok(())
    }

    /// Detaches it (ibv_detach_mcast(3)).
    ///
    /// # Errors
    /// Invalid when it is not attached.
    pub fn detach_mcast(&self, group: &Gid) -> Result<(), Error> {
        self.host().check()?;
        self.identity.check()?;
        self.check_group(group)?;
        self.host().groups.detach(self.host(), self, group)?;
        self.tell_subnet();
        Ok(())
    }

    /// On InfiniBand links the port is a member of the groups that processes have.
    fn tell_subnet(&self) {
        if self.host().subnet.is_some() {
            self.host().fabric.sa.groups_changed(self.host());
        }
    }

    /// From now on it does not hear what it sends to groups itself (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB).
    pub fn block_own_mcast(&self) {
        self.attachments.deaf_to_self.store(true, Ordering::Relaxed);
    }

    /// Whether a group's packet is for it.
    pub(crate) fn hears(&self, path: &Path, packet: &Packet<'_>) -> bool {
        let own = || {
            packet.deth.is_some_and(|deth| deth.src_qpn == self.qpn())
                && self.context().device().has_gid(&path.src)
        };
        !(self.attachments.deaf_to_self.load(Ordering::Relaxed) && own())
    }

    fn check_group(&self, group: &Gid) -> Result<(), Error> {
        if self.qp_type() != QpType::Ud {
            let value = self.qp_type() as u64;
            return Err(Error::Invalid { what: "qp_type", value, why: "multicast is for UD" });
        }
        if group.is_multicast() { Ok(()) } else { Err(invalid(group)) }
    }

    /// The groups it is attached to keep it, unless it is only dropped.
    pub(crate) fn check_detached(&self) -> Result<(), Error> {
        match self.attachments.count.load(Ordering::Acquire) {
            0 => Ok(()),
            users => Err(Error::Busy { what: "queue pair", users }),
        }
    }

    /// Detaches it from whatever it is attached to.
    pub fn detach_all_mcast(&self) {
        if self.attachments.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let host = self.host();
        let attached = |(group, members): (&Gid, &Vec<Member>)| {
            members.iter().any(|member| member.is(self)).then_some(*group)
        };
        let groups: Vec<Gid> = host.groups.members.read().iter().filter_map(attached).collect();
        for group in groups {
            let _ = host.groups.detach(host, self, &group);
        }
        self.tell_subnet();
    }
}

fn invalid(group: &Gid) -> Error {
    Error::Invalid { what: "gid", value: top(group), why: "it is no multicast address" }
}

fn not_attached(group: &Gid) -> Error {
    Error::Invalid { what: "gid", value: top(group), why: "the queue pair is not attached to it" }
}

/// The part of a GID that an error shows.
fn top(group: &Gid) -> u64 {
    (u128::from_be_bytes(group.0) >> 64) as u64
}
