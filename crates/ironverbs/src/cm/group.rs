//! Multicast groups.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ironverbs_soft::cm::{
    CmError, CmEvent, CmEventKind, CmId, EventChannel, EventParam, McJoin, PortSpace,
};
use ironverbs_soft::{Error as SoftError, Gid, QpType};

use super::connection::Ends;
use super::datagram::{destination, fits};
use super::pending::sealed::{Operation, Step};
use super::{Error, Pending};
use crate::{Destination, Device, Devices, Pd, Qp, Ud};

/// An address of this host from which groups are joined.
pub struct Multicast {
    ends: Ends,
    device: Device,
}

impl Multicast {
    /// Takes the device that has an address; a loopback address stands for any device's.
    ///
    /// # Errors
    /// Refused: no device has it.
    pub fn bind(devices: &Devices, from: IpAddr) -> Result<Multicast, Error> {
        match Multicast::bind_to(devices, from) {
            Err(Error::DeviceGone) => {
                let addr = SocketAddr::new(from, 0);
                let other = any_address(devices, from).ok_or(CmError::NoDevice { addr })?;
                Multicast::bind_to(devices, other)
            }
            bound => bound,
        }
    }

    fn bind_to(devices: &Devices, from: IpAddr) -> Result<Multicast, Error> {
        let channel = EventChannel::new(devices.host())?;
        let id = CmId::new(&channel, PortSpace::Udp, Some(QpType::Ud))?;
        id.bind(SocketAddr::new(from, 0))?;
        let ends = Ends { channel, id };
        let device = ends.device()?;
        Ok(Multicast { ends, device })
    }

    /// The device: the queue pair or protection domain must be of a context of it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Joins a group (rdma_join_multicast(3); IGMP and MLD tell the network): datagrams to it come to this queue pair, which
    /// must have [`QKEY`](super::QKEY) and cannot go while it is a member.
    ///
    /// # Errors
    /// Refused: no address of a group, another Q_Key, a queue pair of another device.
    pub fn join<'q>(self, qp: &'q Qp<Ud>, group: IpAddr) -> Result<Pending<Joining<'q>>, Error> {
        fits(&self.ends.id, qp)?;
        let pd = Pd(qp.pd().clone());
        self.begin(pd, Some(qp), group, McJoin::Full)
    }

    /// Prepares for sending to a group without being its member.
    ///
    /// # Errors
    /// Refused: no address of a group, a domain of another device.
    pub fn send_to(self, pd: &Pd, group: IpAddr) -> Result<Pending<Joining<'static>>, Error> {
        if !Arc::ptr_eq(self.device.raw(), pd.0.context.raw.device()) {
            return Err(CmError::Device(SoftError::Foreign { what: "PD" }).into());
        }
        self.begin(pd.clone(), None, group, McJoin::SendOnly)
    }

    fn begin<'q>(
        self,
        pd: Pd,
        qp: Option<&'q Qp<Ud>>,
        group: IpAddr,
        how: McJoin,
    ) -> Result<Pending<Joining<'q>>, Error> {
        self.ends.id.join_multicast(SocketAddr::new(group, 0), how, 0)?;
        Ok(Pending::new(Joining { ends: self.ends, pd, qp, group }))
    }
}

/// An address of a device, of the family of `like`, that needs no scope.
fn any_address(devices: &Devices, like: IpAddr) -> Option<IpAddr> {
    let devices = devices.list().ok()?;
    let gids = devices.iter().flat_map(|device| device.raw().gids());
    gids.filter(|(_, gid)| !gid.is_link_local())
        .map(|(_, gid)| gid.to_ip())
        .find(|ip| ip.is_ipv4() == like.is_ipv4())
}

impl fmt::Debug for Multicast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Multicast({})", self.ends.local_addr().ip())
    }
}

/// Comes to a [`Group`].
pub struct Joining<'q> {
    ends: Ends,
    pd: Pd,
    qp: Option<&'q Qp<Ud>>,
    group: IpAddr,
}

impl<'q> Operation for Joining<'q> {
    type Output = Group<'q>;

    fn channel(&self) -> &EventChannel {
        &self.ends.channel
    }

    fn event(self, event: CmEvent) -> Result<Step<Self>, Error> {
        match (event.kind(), event.param()) {
            (CmEventKind::MulticastJoin, EventParam::Ud(param)) => {
                let destination = destination(&self.pd, param)?;
                drop(event);
                let Joining { ends, qp, group, .. } = self;
                if let Some(qp) = qp {
                    let gid = Gid::from_ip(group);
                    qp.raw().attach_mcast(&gid).map_err(CmError::Device)?;
                }
                Ok(Step::Done(Group { ends, destination, qp, group }))
            }
            _ => Err(Error::of(&event)),
        }
    }

    fn name() -> &'static str {
        "Joining"
    }
}

/// Membership in a group, or the way to it. Dropping it leaves the group.
pub struct Group<'q> {
    ends: Ends,
    destination: Destination,
    qp: Option<&'q Qp<Ud>>,
    group: IpAddr,
}

impl Group<'_> {
    /// Where to send to, from a queue pair of the same protection domain.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The group's address.
    pub fn address(&self) -> IpAddr {
        self.group
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let Some(qp) = self.qp {
            // In a fork it is the parent's.
            let _ = qp.raw().detach_mcast(&Gid::from_ip(self.group));
        }
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({} from {}, {:?})", self.group, self.ends.local_addr().ip(), self.qp)
    }
}
