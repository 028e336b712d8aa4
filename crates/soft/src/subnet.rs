//! The InfiniBand subnet that devices with InfiniBand links are on: who is on it, by which LIDs and GUIDs.
//!
//! Everything follows from the list of its members' addresses, which is the same on every host, so that nobody has
//! to tell anybody: the n-th port, from 0, has the LIDs from (n + 1) << LMC on, is at port n + 1 of the one virtual
//! switch, and its GUIDs are made of its address. Where no list is configured the subnet is this host, and its
//! members are the interfaces in the order in which they were found.

use std::net::IpAddr;

use ironverbs_sys::netlink::Interface;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::ib::{FIRST_MULTICAST_LID, PERMISSIVE_LID};
use ironverbs_wire::{Gid, IbRoute, Path};
use parking_lot::RwLock;

use crate::config::{Links, MAX_HOSTS};
use crate::{Config, Error};

/// What GUIDs of ours begin with: locally administered, "IR", and what they name.
const GUID: u64 = 0x02_49_52_00 << 32;
const OF_NODE: u64 = 0x4e << 32;
const OF_PORT: u64 = 0x50 << 32;

/// GUID of the switch, and of its port 0.
pub(crate) const SWITCH_GUID: u64 = GUID | 0x53 << 32 | 1;

/// A subnet.
#[derive(Debug)]
pub(crate) struct Subnet {
    prefix: u64,
    lmc: u8,
    /// Whether the members are configured.
    listed: bool,
    /// Their addresses; the place of one never changes.
    members: RwLock<Vec<IpAddr>>,
    pkeys: Vec<u16>,
}

/// A port's place on its subnet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Address by which its host is reached.
    pub(crate) address: IpAddr,
    /// The lowest of its LIDs.
    pub(crate) lid: u16,
    /// Its GID.
    pub(crate) gid: Gid,
}

impl Place {
    /// The port of the switch that it is at, from 1.
    pub(crate) fn number(&self, subnet: &Subnet) -> u8 {
        (self.lid >> subnet.lmc) as u8
    }
}

impl Subnet {
    /// The subnet that is configured, if one is.
    pub(crate) fn of(config: &Config) -> Option<Subnet> {
        (config.link_layer.value == Links::InfiniBand).then(|| Subnet {
            prefix: config.subnet_prefix.value,
            lmc: config.lmc.value,
            listed: !config.hosts.value.is_empty(),
            members: RwLock::new(config.hosts.value.clone()),
            pkeys: config.pkeys.value.clone(),
        })
    }

    /// Its ports have 2^LMC LIDs each.
    pub(crate) fn lmc(&self) -> u8 {
        self.lmc
    }

    /// The upper half of its GIDs.
    pub(crate) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// How many ports its switch has.
    pub(crate) fn ports(&self) -> usize {
        self.members.read().len()
    }

    /// LID of the switch: the first that is no port's.
    pub(crate) fn switch_lid(&self) -> u16 {
        (self.ports() as u16 + 1) << self.lmc
    }

    /// The port at a port of the switch, from 1.
    pub(crate) fn of_number(&self, number: usize) -> Option<Place> {
        self.of_lid(u16::try_from(number).ok()?.checked_shl(self.lmc.into())?)
    }

    /// The place of a P_Key in the ports' tables: the first of the same partition.
    pub(crate) fn pkey_index(&self, pkey: u16) -> Option<u16> {
        let at = self.pkeys.iter().position(|own| (own ^ pkey) & 0x7fff == 0)?;
        u16::try_from(at).ok()
    }

    /// Whether its members are configured, and not just the interfaces of this host.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// The P_Key at a place of the ports' tables; 0: none.
    pub(crate) fn pkey(&self, index: usize) -> u16 {
        self.pkeys.get(index).copied().unwrap_or(0)
    }

    /// Whether an interface has one of its ports.
    pub(crate) fn has(&self, interface: &Interface) -> bool {
        let members = self.members.read();
        interface.addresses.iter().any(|a| members.contains(&a.ip))
    }

    /// The place of an interface whose best address is `best`; None: it has none.
    pub(crate) fn place(&self, interface: &Interface, best: Option<IpAddr>) -> Option<Place> {
        let known = {
            let members = self.members.read();
            let has = |ip: &&IpAddr| interface.addresses.iter().any(|a| a.ip == **ip);
            members.iter().find(has).copied()
        };
        if let Some(ip) = known {
            return self.of_address(ip);
        }
        let best = best.filter(|_| !self.listed)?;
        let mut members = self.members.write();
        if !members.contains(&best) && members.len() < MAX_HOSTS {
            members.push(best);
        }
        drop(members);
        self.of_address(best)
    }

    /// The addresses of all members, in their order.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.members.read().clone()
    }

    /// The member with that address.
    pub(crate) fn of_address(&self, address: IpAddr) -> Option<Place> {
        let at = self.members.read().iter().position(|ip| *ip == address)?;
        Some(self.at(at, address))
    }

    /// The member that a LID is one of.
    pub(crate) fn of_lid(&self, lid: u16) -> Option<Place> {
        let at = usize::from(lid >> self.lmc).checked_sub(1)?;
        let address = *self.members.read().get(at)?;
        Some(self.at(at, address))
    }

    /// The member with that GID.
    pub(crate) fn of_gid(&self, gid: &Gid) -> Option<Place> {
        let members = self.members.read();
        let mut places = members.iter().enumerate().map(|(at, ip)| self.at(at, *ip));
        places.find(|place| place.gid == *gid)
    }

    fn at(&self, at: usize, address: IpAddr) -> Place {
        let gid = u128::from(self.prefix) << 64 | u128::from(port_guid(address));
        Place { address, lid: (at as u16 + 1) << self.lmc, gid: Gid(gid.to_be_bytes()) }
    }

    /// Where an address vector of the port at `own` leads. A way to nobody is no error: as on a cable, what takes
    /// it is lost.
    ///
    /// # Errors
    /// Invalid: a LID that cannot be anybody's, or a multicast LID without the GRH that names the group.
    pub(crate) fn resolve(&self, own: &Place, attr: &AhAttr) -> Result<Path, Error> {
        let invalid = |why| Error::Invalid { what: "dlid", value: attr.dlid.into(), why };
        // What knows GIDs only, as programs for RoCE do, asks for the LID by that.
        let dlid = match (attr.dlid, attr.is_global) {
            (0, true) => self.of_gid(&attr.dgid).map_or(0, |place| place.lid),
            (dlid, _) => dlid,
        };
        if dlid == 0 || dlid == PERMISSIVE_LID {
            return Err(invalid("it is nobody's LID"));
        }
        let multicast = dlid >= FIRST_MULTICAST_LID;
        if multicast && !(attr.is_global && attr.dgid.is_multicast()) {
            return Err(invalid("a multicast LID goes with the GID of the group"));
        }
        let target = self.of_lid(dlid).map(|place| place.gid);
        let dst = match (multicast, attr.is_global) {
            (true, _) => attr.dgid,
            // A port takes no packet with another's GID.
            (false, true) if target != Some(attr.dgid) => Gid::UNSPECIFIED,
            (false, _) => target.unwrap_or(Gid::UNSPECIFIED),
        };
        let path_bits = u16::from(attr.src_path_bits) & ((1 << self.lmc) - 1);
        Ok(Path {
            src: own.gid,
            dst,
            traffic_class: attr.traffic_class,
            hop_limit: attr.hop_limit,
            flow_label: attr.flow_label & 0xf_ffff,
            ib: Some(IbRoute {
                slid: own.lid | path_bits,
                dlid,
                sl: attr.sl & 0x0f,
                grh: attr.is_global,
            }),
        })
    }

    /// The path of a packet that arrived by UDP from `from` for `to`, as its headers tell it, with the GIDs of the
    /// ports put in. None: it is not from who it says, or not for that port.
    pub(crate) fn arrived(&self, from: IpAddr, to: IpAddr, packet: &Path) -> Option<Path> {
        let route = packet.ib?;
        let own = self.of_address(to)?;
        // Each host has the switch to itself.
        let of_switch = |lid: u16| from == to && lid == self.switch_lid();
        let source = if of_switch(route.slid) { own } else { self.of_lid(route.slid)? };
        if source.address != from {
            return None;
        }
        let mut path = Path { src: source.gid, dst: own.gid, ..*packet };
        if route.dlid >= FIRST_MULTICAST_LID && route.dlid != PERMISSIVE_LID {
            path.dst = packet.dst;
            return (route.grh && packet.dst.is_multicast()).then_some(path);
        }
        let ours = route.dlid == PERMISSIVE_LID
            || of_switch(route.dlid)
            || route.dlid >> self.lmc == own.lid >> self.lmc;
        let global = !route.grh || (packet.src == source.gid && packet.dst == own.gid);
        (ours && global).then_some(path)
    }
}

/// GUID of the node at an address.
pub(crate) fn node_guid(address: IpAddr) -> u64 {
    GUID | OF_NODE | u64::from(short(address))
}

/// GUID of its port.
pub(crate) fn port_guid(address: IpAddr) -> u64 {
    GUID | OF_PORT | u64::from(short(address))
}

/// The address, or 32 bits of an IPv6 one (FNV-1a): alike on every host.
fn short(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => {
            let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
            ip.octets().iter().fold(0x811c_9dc5, hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn subnet(lmc: u8) -> Subnet {
        let set = |value| Setting { value, source: crate::config::Source::Default };
        let mut config = Config::default();
        config.link_layer.value = Links::InfiniBand;
        config.hosts = set(vec![ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")]);
        config.lmc.value = lmc;
        Subnet::of(&config).unwrap()
    }

    #[test]
    fn lids_and_guids_follow_from_the_list() {
        for lmc in [0, 3] {
            let subnet = subnet(lmc);
            for (at, address) in ["10.0.0.1", "10.0.0.2", "fd00::1"].map(ip).iter().enumerate() {
                let place = subnet.of_address(*address).unwrap();
                assert_eq!(place.lid, (at as u16 + 1) << lmc);
                for bits in 0..1 << lmc {
                    assert_eq!(subnet.of_lid(place.lid | bits), Some(place));
                }
                assert_eq!(subnet.of_gid(&place.gid), Some(place));
            }
            assert_eq!(subnet.of_lid(0), None);
            assert_eq!(subnet.of_lid(4 << lmc), None);
            assert_eq!(subnet.of_address(ip("10.0.0.3")), None);
        }
        let gid = subnet(0).of_lid(1).unwrap().gid;
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:0249:5250:0a00:0001");
    }

    #[test]
    fn address_vectors() {
        let subnet = subnet(1);
        let (own, peer) = (subnet.of_lid(2).unwrap(), subnet.of_lid(4).unwrap());
        let attr = AhAttr { dlid: 5, src_path_bits: 1, sl: 3, port_num: 1, ..AhAttr::default() };
        let path = subnet.resolve(&own, &attr).unwrap();
        assert_eq!((path.src, path.dst), (own.gid, peer.gid));
        assert_eq!(path.ib, Some(IbRoute { slid: 3, dlid: 5, sl: 3, grh: false }));

        let global = AhAttr { is_global: true, dgid: peer.gid, ..attr };
        assert!(subnet.resolve(&own, &global).unwrap().ib.unwrap().grh);
        let by_gid = AhAttr { dlid: 0, ..global };
        assert_eq!(subnet.resolve(&own, &by_gid).unwrap().ib.unwrap().dlid, 4);
        // The LID of one and the GID of another lead to nobody.
        let mixed = AhAttr { dgid: own.gid, ..global };
        assert_eq!(subnet.resolve(&own, &mixed).unwrap().dst, Gid::UNSPECIFIED);

        for dlid in [0, 0xc000, 0xffff] {
            subnet.resolve(&own, &AhAttr { dlid, ..attr }).unwrap_err();
        }
        let group: Gid = "ff12::1".parse().unwrap();
        let multicast = AhAttr { dlid: 0xc001, is_global: true, dgid: group, ..attr };
        assert_eq!(subnet.resolve(&own, &multicast).unwrap().dst, group);
    }

    #[test]
    fn only_who_has_the_lid_sends_from_it() {
        let subnet = subnet(0);
        let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let (from, to) = (subnet.of_address(a).unwrap(), subnet.of_address(b).unwrap());
        let route = IbRoute { slid: 1, dlid: 2, sl: 0, grh: false };
        let packet = Path { ib: Some(route), ..Path::default() };
        let path = subnet.arrived(a, b, &packet).unwrap();
        assert_eq!((path.src, path.dst), (from.gid, to.gid));

        assert_eq!(subnet.arrived(ip("10.0.0.9"), b, &packet), None, "a stranger");
        assert_eq!(subnet.arrived(b, b, &packet), None, "another's LID");
        assert_eq!(subnet.arrived(a, a, &packet), None, "for another port");
        let global = IbRoute { grh: true, ..route };
        let wrong = Path { src: to.gid, dst: to.gid, ib: Some(global), ..packet };
        assert_eq!(subnet.arrived(a, b, &wrong), None, "another's GID");
        let right = Path { src: from.gid, ..wrong };
        assert_eq!(subnet.arrived(a, b, &right), Some(right));
        let group = Path { dst: "ff12::1".parse().unwrap(), ..right };
        assert_eq!(subnet.arrived(a, b, &group), None, "a group at the LID of a port");
        let route = IbRoute { dlid: 0xc000, ..global };
        let group = Path { ib: Some(route), ..group };
        assert_eq!(subnet.arrived(a, b, &group), Some(group));
    }
}
