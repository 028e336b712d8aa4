//! A subnet of nodes that answer, under virtual time, with managers at some of its ports.

use std::collections::{BTreeMap, HashMap};

use ironverbs_mad::Instant;
use ironverbs_mad::subnet::{Origin, Outgoing, SmConfig, SubnetManager, Way};
use ironverbs_wire::mad::{Mad, MadHeader};

use crate::support::{MS, Rng, SECOND};

pub(crate) struct FakeNode {
    pub(crate) guid: u64,
    switch: bool,
    /// PortInfo by port; an adapter has port 1 alone.
    pub(crate) ports: Vec<[u8; 64]>,
    pub(crate) alive: bool,
}

pub(crate) struct Fabric {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<FakeNode>,
    cables: HashMap<(usize, u8), (usize, u8)>,
    pub(crate) managers: BTreeMap<usize, SubnetManager>,
    pub(crate) rng: Rng,
    pub(crate) loss: u64,
    /// What is always lost.
    pub(crate) drops: Option<fn(&Mad) -> bool>,
    /// What came to QP1 of nodes without a manager.
    pub(crate) received: Vec<(usize, Mad)>,
    m_key: u64,
}

impl Fabric {
    /// Adapters at switches of `radix` ports, the switches in a row.
    pub(crate) fn new(adapters: usize, radix: u8, seed: u64) -> Fabric {
        let mut fabric = Fabric {
            now: Instant(SECOND),
            nodes: Vec::new(),
            cables: HashMap::new(),
            managers: BTreeMap::new(),
            rng: Rng(seed),
            loss: 0,
            drops: None,
            received: Vec::new(),
            m_key: 0,
        };
        for n in 0..adapters {
            fabric.add(0x0002_c900_0000_0000 + n as u64 * 16, false, 1);
        }
        let each = usize::from(radix) - 2;
        let mut before: Option<usize> = None;
        for (n, group) in (0..adapters).collect::<Vec<_>>().chunks(each).enumerate() {
            let switch = fabric.add(0x0008_f100_0000_0000 + n as u64 * 16, true, radix);
            for (port, adapter) in group.iter().enumerate() {
                fabric.cable((*adapter, 1), (switch, port as u8 + 1));
            }
            if let Some(before) = before.replace(switch) {
                fabric.cable((before, radix), (switch, radix - 1));
            }
        }
        fabric
    }

    fn add(&mut self, guid: u64, switch: bool, ports: u8) -> usize {
        let mut info = [0; 64];
        info[8..16].copy_from_slice(&0xfe80_0000_0000_0000_u64.to_be_bytes());
        // DOWN; MTU 4096.
        info[32] = 1;
        info[36] = 5 << 4;
        let count = usize::from(ports) + 1;
        self.nodes.push(FakeNode { guid, switch, ports: vec![info; count], alive: true });
        self.nodes.len() - 1
    }

    fn cable(&mut self, a: (usize, u8), b: (usize, u8)) {
        for (from, to) in [(a, b), (b, a)] {
            self.cables.insert(from, to);
            // INIT, LinkUp.
            self.nodes[from.0].ports[usize::from(from.1)][32] = 2;
            self.nodes[from.0].ports[usize::from(from.1)][33] = 5 << 4;
        }
    }

    pub(crate) fn require_m_key(&mut self, key: u64) {
        self.m_key = key;
    }

    /// A node goes without a word.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.managers.remove(&node);
        if let Some((switch, port)) = self.cables.get(&(node, 1)).copied() {
            self.nodes[switch].ports[usize::from(port)][32] = 1;
        }
    }

    pub(crate) fn revive(&mut self, node: usize) {
        self.nodes[node].alive = true;
        self.nodes[node].ports[1][32] = 2;
        if let Some((switch, port)) = self.cables.get(&(node, 1)).copied() {
            self.nodes[switch].ports[usize::from(port)][32] = 2;
        }
    }

    pub(crate) fn manage(&mut self, node: usize, priority: u8) {
        let config =
            SmConfig { priority, m_key: self.m_key, ..SmConfig::new(self.nodes[node].guid + 1) };
        self.manage_as(node, config);
    }

    pub(crate) fn manage_as(&mut self, node: usize, config: SmConfig) {
        self.nodes[node].ports[1][23] |= 2;
        self.managers.insert(node, SubnetManager::new(config, self.now));
    }

    pub(crate) fn lid(&self, node: usize) -> u16 {
        let info = &self.nodes[node].ports[usize::from(!self.nodes[node].switch)];
        u16::from_be_bytes([info[16], info[17]])
    }

    pub(crate) fn gid(&self, node: usize) -> [u8; 16] {
        let gid = 0xfe80_u128 << 112 | u128::from(self.nodes[node].guid + 1);
        gid.to_be_bytes()
    }

    fn of_lid(&self, lid: u16) -> Option<usize> {
        (0..self.nodes.len()).find(|n| self.nodes[*n].alive && lid != 0 && self.lid(*n) == lid)
    }

    /// Where a directed route ends: the node, and the port it was entered by.
    fn walk(&self, start: usize, path: &[u8]) -> Option<(usize, u8)> {
        let mut at = (start, 1);
        for port in path {
            at = *self.cables.get(&(at.0, *port))?;
            if !self.nodes[at.0].alive {
                return None;
            }
        }
        Some(at)
    }

    /// What a node says to a subnet management packet.
    fn answer(&mut self, node: usize, entered: u8, mad: &Mad) -> Option<Mad> {
        let asked = MadHeader::parse(mad.first_chunk()?);
        let key = u64::from_be_bytes(*mad[24..].first_chunk()?);
        let m_key = self.m_key;
        let node = &mut self.nodes[node];
        let mut out = *mad;
        out[3] = 0x81;
        let mut data = [0; 64];
        let port = usize::from(asked.modifier as u8);
        let mut status = 0;
        match (asked.attribute, asked.method) {
            (0x10, 1) => {
                let text = format!("node {:#x}", node.guid);
                data[..text.len()].copy_from_slice(text.as_bytes());
            }
            (0x11, 1) => {
                let ports = if node.switch { node.ports.len() as u8 - 1 } else { 1 };
                data[..4].copy_from_slice(&[1, 1, if node.switch { 2 } else { 1 }, ports]);
                data[4..12].copy_from_slice(&node.guid.to_be_bytes());
                data[12..20].copy_from_slice(&node.guid.to_be_bytes());
                data[20..28].copy_from_slice(&(node.guid + u64::from(!node.switch)).to_be_bytes());
                data[36] = entered;
            }
            // LinearFDBTop: three blocks.
            (0x12, 1) if node.switch => (data[0], data[7]) = (0x40, 130),
            (0x15, 1 | 2) if port < node.ports.len() => {
                if asked.method == 2 && key == m_key {
                    let given = &mad[64..128];
                    let info = &mut node.ports[port];
                    info[16..20].copy_from_slice(&given[16..20]);
                    match given[32] & 0x0f {
                        0 => {}
                        step => info[32] = info[32] & 0xf0 | step,
                    }
                } else if asked.method == 2 {
                    return None;
                }
                data = node.ports[port];
            }
            (0x14, 1) => {
                data[..8].copy_from_slice(&(node.guid + u64::from(!node.switch)).to_be_bytes());
            }
            (0x19, 1) if node.switch => data[0] = asked.modifier as u8,
            (0x1b, 1) if node.switch => data[1] = 6,
            (0x16, 1) => data[..4].copy_from_slice(&[0xff, 0xff, 0x12, 0x34]),
            _ => status = 3 << 2,
        }
        let direction = if asked.class == 0x81 { 0x8000 } else { 0 };
        out[4..6].copy_from_slice(&(status | direction as u16).to_be_bytes());
        out[64..128].copy_from_slice(&data);
        Some(out)
    }

    fn send(&mut self, from: usize, outgoing: Outgoing) {
        let Outgoing { way, mad, .. } = outgoing;
        let lost = |fabric: &mut Fabric| fabric.rng.percent(fabric.loss);
        if lost(self) || self.drops.is_some_and(|drops| drops(&mad)) {
            return;
        }
        let (to, entered, qpn) = match &way {
            Way::Directed(path) => {
                assert_eq!(&mad[129..129 + path.len()], path, "the route is in the packet");
                assert_eq!((mad[1], usize::from(mad[7])), (0x81, path.len()));
                let Some((node, entered)) = self.walk(from, path) else { return };
                (node, entered, 0)
            }
            Way::Lid { lid, qpn } => match self.of_lid(*lid) {
                Some(node) => (node, 1, *qpn),
                None => return,
            },
        };
        let asked = MadHeader::parse(mad.first_chunk().unwrap());
        let to_the_port = qpn == 0 && asked.method & 0x80 == 0 && asked.attribute != 0x20;
        let lid = if matches!(way, Way::Directed(_)) { 0xffff } else { self.lid(from) };
        if to_the_port {
            let Some(answer) = self.answer(to, entered, &mad) else { return };
            if !lost(self) {
                let origin = Origin { lid: 0xffff, qpn: 0 };
                let now = self.now;
                if let Some(manager) = self.managers.get_mut(&from) {
                    manager.handle_mad(now, &origin, &answer);
                }
            }
        } else if let Some(manager) = self.managers.get_mut(&to) {
            manager.handle_mad(self.now, &Origin { lid, qpn }, &mad);
        } else if qpn == 1 {
            self.received.push((to, mad));
        }
    }

    /// A MAD of a node to the manager at another, which takes part at QP1.
    pub(crate) fn ask(&mut self, from: usize, to: usize, mad: &Mad) {
        let origin = Origin { lid: self.lid(from), qpn: 1 };
        let now = self.now;
        if let Some(manager) = self.managers.get_mut(&to) {
            manager.handle_mad(now, &origin, mad);
        }
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let next = self.managers.iter_mut().find_map(|(n, m)| Some((*n, m.poll_transmit()?)));
            let Some((from, outgoing)) = next else { break };
            self.send(from, outgoing);
        }
    }

    pub(crate) fn run(&mut self, time: u64) {
        let end = self.now.after(time);
        loop {
            self.settle();
            let next = self.managers.values().filter_map(SubnetManager::next_timeout).min();
            let next = next.unwrap_or(end).max(self.now.after(MS / 10));
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            for manager in self.managers.values_mut() {
                manager.handle_timeout(next);
            }
        }
    }
}
