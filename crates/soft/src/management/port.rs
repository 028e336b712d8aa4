//! What a node of the subnet says of itself: a host's channel adapter, or the switch between them (IBA 14.2.5).

use std::fs;

use super::Target;
use crate::config::MAX_PKEYS;
use crate::context::limits;
use crate::host::Inner;
use crate::subnet::{self, Place, Subnet};

/// Of PortInfo: port state, link width and speed as verbs and IBA number them.
const ACTIVE: u8 = 4;
const DOWN: u8 = 1;
const LINK_UP: u8 = 5;
const POLLING: u8 = 2;
const WIDTH_4X: u8 = 2;
const SPEED_SDR_TO_QDR: u8 = 7;
const SPEED_QDR: u8 = 4;
const EXTENDED_SPEED_EDR: u8 = 2;
const MTU_4096: u8 = 5;

/// A node, asked by somebody.
pub(super) struct Node<'a> {
    host: &'a Inner,
    subnet: &'a Subnet,
    target: Target,
    asker: &'a Place,
    /// Name of the device, and the MTU of its port.
    name: String,
    mtu: u8,
}

impl<'a> Node<'a> {
    /// None: the device of that port is not there.
    pub(super) fn new(
        host: &'a Inner,
        subnet: &'a Subnet,
        target: &Target,
        asker: &'a Place,
    ) -> Option<Node<'a>> {
        let target = *target;
        let (name, mtu) = match target {
            Target::Switch => (String::new(), MTU_4096),
            Target::Port(place) => {
                let devices = host.present_devices();
                let device = devices.iter().find(|device| device.place() == Some(place))?;
                let (up, mtu) = device.link();
                (up.then(|| device.name().to_owned())?, mtu as u8)
            }
        };
        Some(Node { host, subnet, target, asker, name, mtu })
    }

    /// What a manager must know to change the node; 0: nothing.
    pub(super) fn m_key(&self) -> u64 {
        self.host.config.m_key.value
    }

    pub(super) fn is_switch(&self) -> bool {
        self.target == Target::Switch
    }

    pub(super) fn description(&self, data: &mut [u8; 64]) {
        let text = match self.target {
            Target::Switch => "ironverbs switch".to_owned(),
            Target::Port(_) => {
                let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                format!("{} {}", host.trim(), self.name)
            }
        };
        for (to, from) in data.iter_mut().zip(text.bytes()) {
            *to = from;
        }
    }

    pub(super) fn info(&self, data: &mut [u8; 64]) {
        let config = &self.host.config;
        let (kind, ports, node, port, local) = match self.target {
            Target::Switch => {
                let guid = subnet::SWITCH_GUID;
                (2, self.subnet.ports() as u8, guid, guid, self.asker.number(self.subnet))
            }
            Target::Port(place) => {
                let node = subnet::node_guid(place.address);
                (1, 1, node, subnet::port_guid(place.address), 1)
            }
        };
        let (vendor, part) = (config.vendor_id.value, config.vendor_part_id.value as u16);
        data[..4].copy_from_slice(&[1, 1, kind, ports]);
        data[4..12].copy_from_slice(&node.to_be_bytes());
        data[12..20].copy_from_slice(&node.to_be_bytes());
        data[20..28].copy_from_slice(&port.to_be_bytes());
        data[28..30].copy_from_slice(&(MAX_PKEYS as u16).to_be_bytes());
        data[30..32].copy_from_slice(&part.to_be_bytes());
        data[36..40].copy_from_slice(&(vendor & 0xff_ffff).to_be_bytes());
        data[36] = local;
    }

    pub(super) fn switch_info(&self, data: &mut [u8; 64]) {
        let cap = 0xbfff_u16;
        data[..2].copy_from_slice(&cap.to_be_bytes());
        data[4..6].copy_from_slice(&1024_u16.to_be_bytes());
        data[6..8].copy_from_slice(&self.subnet.switch_lid().to_be_bytes());
        data[14..16].copy_from_slice(&(MAX_PKEYS as u16).to_be_bytes());
    }

    pub(super) fn guids(&self, block: u32, data: &mut [u8; 64]) {
        let guid = match self.target {
            Target::Switch => subnet::SWITCH_GUID,
            Target::Port(place) => subnet::port_guid(place.address),
        };
        if block == 0 {
            data[..8].copy_from_slice(&guid.to_be_bytes());
        }
    }

    pub(super) fn pkeys(&self, block: u32, data: &mut [u8; 64]) {
        let first = block as usize * 32;
        for (at, room) in data.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *room = self.subnet.pkey(first + at).to_be_bytes();
        }
    }

    /// By which port of the switch each of 64 LIDs is reached; 255: by none.
    pub(super) fn forwarding(&self, block: u32, data: &mut [u8; 64]) {
        for (at, port) in data.iter_mut().enumerate() {
            let lid = u16::try_from(block as usize * 64 + at).unwrap_or(0);
            *port = match self.subnet.of_lid(lid) {
                Some(place) => place.number(self.subnet),
                None if lid == self.subnet.switch_lid() => 0,
                None => 255,
            };
        }
    }

    /// False: there is no such port.
    pub(super) fn port_info(&self, port: u32, data: &mut [u8; 64]) -> bool {
        let (lid, number, base) = match self.target {
            Target::Port(place) if port <= 1 => (place.lid, 1, true),
            Target::Switch if port == 0 => (self.subnet.switch_lid(), 0, true),
            Target::Switch if port as usize <= self.subnet.ports() => (0, port as u8, false),
            _ => return false,
        };
        let (sm_lid, sm_sl) = self.host.subnet_manager();
        let up = base || self.is_present(port);
        data[8..16].copy_from_slice(&self.subnet.prefix().to_be_bytes());
        data[16..18].copy_from_slice(&lid.to_be_bytes());
        if base {
            data[18..20].copy_from_slice(&sm_lid.to_be_bytes());
            let manages = match self.target {
                Target::Port(place) => super::steward::is_at(self.host, &place),
                Target::Switch => false,
            };
            let capabilities = limits::IB_PORT_CAPABILITIES | if manages { 1 << 1 } else { 0 };
            data[20..24].copy_from_slice(&capabilities.to_be_bytes());
        }
        data[28] = match self.target {
            // By which it was asked.
            Target::Switch => self.asker.number(self.subnet),
            Target::Port(_) => number,
        };
        data[29..32].fill(WIDTH_4X);
        data[32] = SPEED_SDR_TO_QDR << 4 | if up { ACTIVE } else { DOWN };
        data[33] = (if up { LINK_UP } else { POLLING }) << 4 | POLLING;
        data[34] = if base && !self.is_switch() { self.subnet.lmc() } else { 0 };
        if base && self.m_key() != 0 {
            // M_KeyProtectBits: the key is shown to who knows it. Its lease never ends: 0.
            data[34] |= 1 << 6;
            data[44..46].copy_from_slice(&self.host.steward.violations().to_be_bytes());
        }
        data[35] = SPEED_QDR << 4 | SPEED_SDR_TO_QDR;
        data[36] = self.mtu << 4 | sm_sl & 0x0f;
        // VL0 only.
        data[37] = 1 << 4;
        data[41] = MTU_4096;
        data[43] = 1 << 4;
        data[50] = limits::GUIDS as u8;
        data[51] = limits::SUBNET_TIMEOUT;
        data[52] = limits::RESPONSE_TIME;
        data[62] = EXTENDED_SPEED_EDR << 4 | EXTENDED_SPEED_EDR;
        data[63] = EXTENDED_SPEED_EDR;
        true
    }

    /// Takes over who manages the subnet. False: something that cannot be had is asked for, as another LID.
    pub(super) fn set_port_info(&self, port: u32, given: &[u8; 64]) -> bool {
        let lid = u16::from_be_bytes([given[16], given[17]]);
        let manager = u16::from_be_bytes([given[18], given[19]]);
        let (own, base) = match self.target {
            Target::Port(place) if port <= 1 => (place.lid, true),
            Target::Switch if port == 0 => (self.subnet.switch_lid(), true),
            Target::Switch if port as usize <= self.subnet.ports() => (0, false),
            _ => return false,
        };
        if base && lid != own {
            return false;
        }
        if let (true, Target::Port(_)) = (base, self.target) {
            // ClientReregister (IBA 14.4.12).
            let anew = given[51] & 0x80 != 0;
            self.host.set_subnet_manager(manager, given[36] & 0x0f, anew);
        }
        true
    }

    /// Whether the cable at a port of the switch ends somewhere, as far as is known here: a port of this host that is
    /// down does not, nor that of a host under watch that is silent.
    fn is_present(&self, port: u32) -> bool {
        let Some(place) = self.subnet.of_number(port as usize) else { return false };
        if !self.host.is_local(&place.gid) {
            return !self.host.fabric.is_silent(&place.gid);
        }
        let devices = self.host.present_devices();
        devices.iter().any(|device| device.place() == Some(place) && device.link().0)
    }
}
