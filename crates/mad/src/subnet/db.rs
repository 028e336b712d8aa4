//! What is known of the subnet.

use std::collections::{BTreeMap, HashMap};

use ironverbs_wire::Gid;

use super::{be16, be64, gid};

/// Kind of a node (IBA 14.2.5.3).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A host's channel adapter.
    Ca,
    /// A switch.
    Switch,
    /// A router, or something unknown.
    Other,
}

/// A node, as it says of itself.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) info: [u8; 40],
    pub(super) description: [u8; 64],
    pub(super) switch_info: Option<[u8; 20]>,
    /// PortInfo by port: of a switch all, of an adapter those that are on this subnet.
    pub(super) ports: BTreeMap<u8, [u8; 64]>,
    pub(super) pkeys: Option<[u8; 64]>,
    /// Further tables, by attribute and modifier.
    pub(super) tables: BTreeMap<(u16, u32), [u8; 64]>,
    /// How it is reached.
    pub(super) path: Vec<u8>,
}

impl Node {
    pub(super) fn new(info: [u8; 40], path: Vec<u8>) -> Node {
        Node {
            info,
            description: [0; 64],
            switch_info: None,
            ports: BTreeMap::new(),
            pkeys: None,
            tables: BTreeMap::new(),
            path,
        }
    }

    /// What it is.
    pub fn kind(&self) -> NodeKind {
        match self.info[2] {
            1 => NodeKind::Ca,
            2 => NodeKind::Switch,
            _ => NodeKind::Other,
        }
    }

    /// Its GUID, host order.
    pub fn guid(&self) -> u64 {
        be64(&self.info, 12)
    }

    /// GUID of the port that it was found by, host order.
    pub fn port_guid(&self) -> u64 {
        be64(&self.info, 20)
    }

    /// What it is called.
    pub fn description(&self) -> String {
        let text = String::from_utf8_lossy(&self.description);
        text.trim_end_matches('\0').to_owned()
    }

    /// The port that has its LID: of a switch 0.
    pub(super) fn end_port(&self) -> u8 {
        if self.kind() == NodeKind::Switch { 0 } else { self.info[36] }
    }

    /// The lowest of its LIDs; 0: none yet.
    pub fn lid(&self) -> u16 {
        self.ports.get(&self.end_port()).map_or(0, |info| be16(info, 16))
    }

    pub(super) fn lmc(&self) -> u8 {
        self.ports.get(&self.end_port()).map_or(0, |info| info[34] & 7)
    }

    /// The GID of its port.
    pub fn gid(&self) -> Gid {
        let prefix = self.ports.get(&self.end_port()).map_or(0, |info| be64(info, 8));
        gid(prefix, self.port_guid())
    }

    /// The largest MTU of its port, as IBA numbers them.
    pub(super) fn mtu(&self) -> u8 {
        let info = self.ports.get(&self.end_port());
        let own = info.map_or(1, |info| info[36] >> 4);
        if self.kind() == NodeKind::Switch { 5 } else { own.clamp(1, 5) }
    }
}

/// A cable, as seen from one end.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Link {
    pub(super) from: (u64, u8),
    pub(super) to: (u64, u8),
}

/// All nodes, by GUID.
#[derive(Clone, Debug, Default)]
pub(super) struct Db {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) links: Vec<Link>,
    /// Nodes by LID and GID, when all are known.
    by_lid: HashMap<u16, u64>,
    by_gid: HashMap<Gid, u64>,
}

impl Db {
    /// All are known: from here on they are found by LID and GID.
    pub(super) fn complete(&mut self) {
        self.by_lid.clear();
        self.by_gid.clear();
        for (guid, node) in &self.nodes {
            let lid = node.lid();
            if lid != 0 {
                let last = lid.saturating_add((1 << node.lmc()) - 1);
                for lid in lid..=last {
                    self.by_lid.entry(lid).or_insert(*guid);
                }
            }
            self.by_gid.entry(node.gid()).or_insert(*guid);
        }
    }

    pub(super) fn of_lid(&self, lid: u16) -> Option<&Node> {
        self.nodes.get(self.by_lid.get(&lid)?)
    }

    pub(super) fn of_gid(&self, gid: &Gid) -> Option<&Node> {
        self.nodes.get(self.by_gid.get(gid)?)
    }
}
