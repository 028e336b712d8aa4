//! Multicast groups of an id.

use std::net::SocketAddr;

use ironverbs_sys::errno;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::Gid;

use super::connect::UD_QKEY;
use super::event::{Queued, Subject};
use super::{CmError, CmEventKind, CmId, Ece, EventParam, McJoin, UdParam};
use crate::multicast::QPN;

/// Hop limit of packets to a group.
const HOP_LIMIT: u8 = 64;

/// A group that an id has joined.
#[derive(Copy, Clone, Debug)]
pub(super) struct Joined {
    group: SocketAddr,
    how: McJoin,
    /// Which join, from 1: its events carry it.
    tag: u64,
}

impl CmId {
    /// Joins a multicast group (rdma_join_multicast_ex(3)): MULTICAST_JOIN follows, with `cookie`. A queue pair that
    /// is attached is attached to the group before the event is read.
    ///
    /// # Errors
    /// EINVAL without a device, for an address that is none of a group, and when it has joined already.
    pub fn join_multicast(
        &self,
        group: SocketAddr,
        how: McJoin,
        cookie: usize,
    ) -> Result<(), CmError> {
        self.check()?;
        if !group.ip().is_multicast() {
            return Err(CmError::Invalid { what: "group", why: "it is no multicast address" });
        }
        let mut state = self.state.lock();
        let place = state.place.clone().ok_or_else(|| state.phase.refuses("join a group"))?;
        if state.groups.iter().any(|joined| joined.group.ip() == group.ip()) {
            return Err(CmError::Invalid { what: "group", why: "the id has joined it" });
        }
        let tag = state.joins + 1;
        state.joins = tag;
        state.groups.push(Joined { group, how, tag });
        let tos = state.options.tos;
        drop(state);
        let v4 = group.is_ipv4();
        let of_family = |(_, gid): &(u32, Gid)| gid.is_ipv4() == v4;
        let source = match place.gid.is_ipv4() == v4 {
            true => Some((place.gid_index, place.gid)),
            false => place.device.gids().into_iter().find(of_family),
        };
        let (kind, status, index) = match source {
            Some((index, _)) => (CmEventKind::MulticastJoin, 0, index),
            None => (CmEventKind::MulticastError, -errno::EADDRNOTAVAIL, 0),
        };
        let ah_attr = AhAttr {
            dgid: Gid::from_ip(group.ip()),
            // The table has 128 entries.
            sgid_index: index as u8,
            hop_limit: HOP_LIMIT,
            traffic_class: tos,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let param =
            UdParam { private_data: Vec::new(), ah_attr, qp_num: QPN, qkey: UD_QKEY, cookie };
        self.channel().push(Queued {
            id: Subject::Known(self.me.clone()),
            listen_id: None,
            kind,
            status,
            param: EventParam::Ud(param),
            ece: Ece::default(),
            tag,
        });
        Ok(())
    }

    /// Attaches the queue pair to the group that was joined. The negative errno if that fails.
    pub(super) fn enter_group(&self, tag: u64) -> Result<(), i32> {
        let state = self.state.lock();
        let joined = state.groups.iter().find(|joined| joined.tag == tag).copied();
        let qp = state.qp.clone();
        drop(state);
        match (joined, qp) {
            (Some(Joined { group, how: McJoin::Full, .. }), Some(qp)) => {
                qp.attach_mcast(&Gid::from_ip(group.ip())).map_err(|error| -error.errno())
            }
            _ => Ok(()),
        }
    }

    /// Leaves a multicast group (rdma_leave_multicast(3)). Waits until its events that were read are acknowledged.
    ///
    /// # Errors
    /// EADDRNOTAVAIL when it has not joined it.
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<(), CmError> {
        self.check()?;
        let mut state = self.state.lock();
        let at = state.groups.iter().position(|joined| joined.group.ip() == group.ip());
        let at = at.ok_or(CmError::AddrNotAvailable { addr: group })?;
        let joined = state.groups.swap_remove(at);
        let qp = state.qp.clone();
        drop(state);
        self.leave_group(qp.as_deref(), &joined);
        self.channel().take_tagged(self, joined.tag);
        self.outstanding.wait(Some(joined.tag), self.explains(), "rdma_leave_multicast", self);
        Ok(())
    }

    fn leave_group(&self, qp: Option<&crate::Qp>, joined: &Joined) {
        if let (Some(qp), McJoin::Full) = (qp, joined.how) {
            // It may never have been attached.
            let _ = qp.detach_mcast(&Gid::from_ip(joined.group.ip()));
        }
    }

    /// Leaves all groups.
    pub(super) fn leave_groups(&self) {
        let (qp, groups) = {
            let mut state = self.state.lock();
            (state.qp.clone(), std::mem::take(&mut state.groups))
        };
        for joined in groups {
            self.leave_group(qp.as_deref(), &joined);
        }
    }
}
