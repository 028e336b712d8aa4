//! Multicast groups of an id.

use std::net::{IpAddr, SocketAddr};

use ironverbs_mad::subnet::{SaError, SaMember};
use ironverbs_sys::errno;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::Gid;

use super::connect::UD_QKEY;
use super::event::{Queued, Subject};
use super::{CmError, CmEventKind, CmId, Ece, EventParam, McJoin, UdParam};
use crate::context::limits;
use crate::multicast::QPN;

/// Hop limit of packets to a group.
const HOP_LIMIT: u8 = 64;

/// A group that an id has joined.
#[derive(Copy, Clone, Debug)]
pub(super) struct Joined {
    group: SocketAddr,
    /// What queue pairs are attached to.
    gid: Gid,
    how: McJoin,
    /// Which join, from 1: its events carry it.
    tag: u64,
    cookie: usize,
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
        let host = self.inner();
        let subnet = host.subnet.is_some();
        let gid = if subnet { of_subnet(group.ip()) } else { Gid::from_ip(group.ip()) };
        state.groups.push(Joined { group, gid, how, tag, cookie });
        let tos = state.options.tos;
        drop(state);
        if subnet {
            let sends_only = matches!(how, McJoin::SendOnly);
            host.fabric.sa.join(host, self.me.clone(), tag, [gid, place.gid], sends_only);
            return Ok(());
        }
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
        self.tell_of_join(kind, status, param, tag);
        Ok(())
    }

    fn tell_of_join(&self, kind: CmEventKind, status: i32, param: UdParam, tag: u64) {
        self.channel().push(Queued {
            id: Subject::Known(self.me.clone()),
            listen_id: None,
            kind,
            status,
            param: EventParam::Ud(param),
            ece: Ece::default(),
            tag,
        });
    }

    /// The administrator of the subnet has answered to a join.
    pub(crate) fn joined(&self, tag: u64, result: Result<SaMember, SaError>) {
        let state = self.state.lock();
        let joined = state.groups.iter().find(|joined| joined.tag == tag).copied();
        drop(state);
        // It may have left meanwhile.
        let Some(joined) = joined else { return };
        let (kind, status, member) = match result {
            Ok(member) => (CmEventKind::MulticastJoin, 0, member),
            Err(SaError::Silent) => {
                (CmEventKind::MulticastError, -errno::ETIMEDOUT, SaMember::default())
            }
            Err(_) => (CmEventKind::MulticastError, -errno::EINVAL, SaMember::default()),
        };
        let ah_attr = AhAttr {
            dgid: joined.gid,
            dlid: member.mlid,
            sl: member.sl,
            flow_label: member.flow_label,
            hop_limit: member.hop_limit,
            traffic_class: member.traffic_class,
            static_rate: member.rate,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let (qkey, cookie) = (member.qkey, joined.cookie);
        let param = UdParam { private_data: Vec::new(), ah_attr, qp_num: QPN, qkey, cookie };
        self.tell_of_join(kind, status, param, tag);
    }

    /// Attaches the queue pair to the group that was joined. The negative errno if that fails.
    pub(super) fn enter_group(&self, tag: u64) -> Result<(), i32> {
        let state = self.state.lock();
        let joined = state.groups.iter().find(|joined| joined.tag == tag).copied();
        let qp = state.qp.clone();
        drop(state);
        match (joined, qp) {
            (Some(Joined { gid, how: McJoin::Full, .. }), Some(qp)) => {
                qp.attach_mcast(&gid).map_err(|error| -error.errno())
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
            let _ = qp.detach_mcast(&joined.gid);
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

/// The group of an InfiniBand subnet that an IP group stands for, in the default partition: as IPoIB maps them (RFC 4391,
/// section 4), with the signature of rdma_cm(7), whose groups are not IPoIB's.
fn of_subnet(group: IpAddr) -> Gid {
    let [high, low] = limits::PKEY.to_be_bytes();
    let mut gid = [0; 16];
    match group {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            gid[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x01, high, low]);
            gid[12..].copy_from_slice(&[a & 0x0f, b, c, d]);
        }
        IpAddr::V6(ip) => {
            let ip = ip.octets();
            // One that the administrator has given out stays what it is.
            if (ip[0], ip[1] & 0xf0, ip[2], ip[3]) == (0xff, 0x10, 0xa0, 0x1b) {
                return Gid(ip);
            }
            gid[..6].copy_from_slice(&[0xff, 0x10 | ip[1] & 0x0f, 0x60, 0x01, high, low]);
            gid[6..].copy_from_slice(&ip[6..]);
        }
    }
    Gid(gid)
}
