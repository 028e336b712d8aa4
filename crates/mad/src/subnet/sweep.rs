//! Finding the nodes of the subnet, port by port, by directed-route packets.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::attribute::{GUID_INFO, LINEAR_FORWARDING, MULTICAST_FORWARDING};
use super::db::{Db, Link, Node, NodeKind};
use super::{Outgoing, Way, attribute, directed, header, lid_routed, method, smp_data};
use crate::Instant;

/// Questions under way at once.
const WINDOW: usize = 32;

/// How long an answer may take, in nanoseconds, and how often it is asked again.
const PATIENCE: u64 = 100_000_000;
const RETRIES: u32 = 3;

/// Nodes and hops, at most.
const MOST_NODES: usize = 48 * 1024;
const MOST_HOPS: usize = 62;

/// The last unicast LID.
pub(super) const LAST_LID: u16 = 0xbfff;

/// In a port's capability mask: a subnet manager is there.
const IS_SM: u32 = 1 << 1;

/// Tables of a node that are asked for, by attribute and modifier: the first block of GUIDs, and of the LIDs. Further blocks
/// are asked for when the node says that it has them.
const ADAPTER_TABLES: [(u16, u32); 1] = [(GUID_INFO, 0)];
const SWITCH_TABLES: [(u16, u32); 3] =
    [(GUID_INFO, 0), (LINEAR_FORWARDING, 0), (MULTICAST_FORWARDING, 0)];

/// LIDs of a block of a switch's table.
const BLOCK: u16 = 64;

/// A question to a node.
#[derive(Clone, Debug)]
struct Question {
    path: Vec<u8>,
    attribute: u16,
    modifier: u32,
    /// Node and port that the path leads through last.
    through: Option<(u64, u8)>,
    /// The node asked, where it is known.
    node: u64,
    /// None: a Get.
    set: Option<[u8; 64]>,
}

#[derive(Debug)]
struct Asked {
    question: Question,
    deadline: Instant,
    left: u32,
}

/// Another manager.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) guid: u64,
    pub(super) priority: u8,
    pub(super) state: u8,
    pub(super) activity: u32,
    pub(super) lid: u16,
}

impl Other {
    /// Its LID, and SMInfo as far as it is others' business (IBA 14.2.5.13).
    pub(super) fn sm_info(&self) -> (u16, [u8; 25]) {
        let mut info = [0; 25];
        info[..8].copy_from_slice(&self.guid.to_be_bytes());
        info[16..20].copy_from_slice(&self.activity.to_be_bytes());
        info[20] = self.priority << 4 | self.state;
        (self.lid, info)
    }
}

/// A walk over the subnet.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    queue: VecDeque<Question>,
    asked: HashMap<u32, Asked>,
    pub(super) found: Db,
    pub(super) others: Vec<Other>,
    /// Tables of nodes as they were found in the walk before: they are asked for once.
    before: HashMap<u64, BTreeMap<(u16, u32), [u8; 64]>>,
    m_key: u64,
    own: u64,
    pub(super) sent: u64,
    /// How often ports were asked to change.
    pub(super) rounds: u32,
}

impl Sweep {
    /// Starts at the port with the GUID `own`.
    pub(super) fn start(own: u64, m_key: u64, known: &Db) -> Sweep {
        let full = known.nodes.iter().filter(|(_, node)| !node.tables.is_empty());
        let before = full.map(|(guid, node)| (*guid, node.tables.clone())).collect();
        let mut sweep = Sweep { before, m_key, own, ..Sweep::default() };
        sweep.get(&[], attribute::NODE_INFO, 0, None, 0);
        sweep
    }

    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty() && self.asked.is_empty()
    }

    fn get(
        &mut self,
        path: &[u8],
        attribute: u16,
        modifier: u32,
        through: Option<(u64, u8)>,
        node: u64,
    ) {
        let path = path.to_vec();
        self.queue.push_back(Question { path, attribute, modifier, through, node, set: None });
    }

    fn get_tables(&mut self, path: &[u8], node: u64, tables: &[(u16, u32)]) {
        for (attribute, modifier) in tables {
            self.get(path, *attribute, *modifier, None, node);
        }
    }

    /// Asks a node to take over PortInfo.
    pub(super) fn set_port(&mut self, node: u64, path: &[u8], port: u8, info: [u8; 64]) {
        self.queue.push_back(Question {
            path: path.to_vec(),
            attribute: attribute::PORT_INFO,
            modifier: port.into(),
            through: None,
            node,
            set: Some(info),
        });
    }

    /// The next packet, whose transaction is `tid`; None while nothing is to be sent.
    pub(super) fn poll(&mut self, now: Instant, tid: impl FnOnce() -> u32) -> Option<Outgoing> {
        if self.asked.len() >= WINDOW {
            return None;
        }
        let question = self.queue.pop_front()?;
        let tid = tid();
        let outgoing = self.packet(&question, tid);
        self.asked.insert(tid, Asked { question, deadline: now.after(PATIENCE), left: RETRIES });
        Some(outgoing)
    }

    fn packet(&mut self, question: &Question, tid: u32) -> Outgoing {
        self.sent += 1;
        let Question { path, attribute, modifier, set, .. } = question;
        let method = if set.is_some() { method::SET } else { method::GET };
        let header = MadHeader {
            method,
            tid: tid.into(),
            attribute: *attribute,
            modifier: *modifier,
            ..MadHeader::default()
        };
        let lid = self.found.nodes.get(&question.node).map_or(0, Node::lid);
        if *attribute == attribute::SM_INFO && lid != 0 {
            let header = MadHeader { base_version: BASE_VERSION, class_version: 1, ..header };
            let mad = lid_routed(&header, self.m_key, &[0; 64]);
            return Outgoing { way: Way::Lid { lid, qpn: 0 }, asks: true, mad };
        }
        let mad = directed(path, &header, self.m_key, &set.unwrap_or([0; 64]));
        Outgoing { way: Way::Directed(path.clone()), asks: true, mad }
    }

    /// What is to be sent again; who has not answered often enough is not there.
    pub(super) fn timeout(&mut self, now: Instant) -> Vec<Outgoing> {
        let due = |asked: &Asked| asked.deadline <= now;
        let late: Vec<u32> =
            self.asked.iter().filter(|(_, asked)| due(asked)).map(|(tid, _)| *tid).collect();
        let mut again = Vec::new();
        for tid in late {
            let Some(asked) = self.asked.get_mut(&tid) else { continue };
            if asked.left == 0 {
                self.asked.remove(&tid);
                continue;
            }
            asked.left -= 1;
            asked.deadline = now.after(PATIENCE);
            let question = asked.question.clone();
            again.push(self.packet(&question, tid));
        }
        again
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.asked.values().map(|asked| asked.deadline).min()
    }

    /// Takes an answer; false: it is none.
    pub(super) fn handle(&mut self, mad: &Mad) -> bool {
        let answer = header(mad);
        let tid = answer.tid as u32;
        let fits = |asked: &Asked| {
            asked.question.attribute == answer.attribute
                && asked.question.modifier == answer.modifier
        };
        if !self.asked.get(&tid).is_some_and(fits) {
            return false;
        }
        let Some(Asked { question, .. }) = self.asked.remove(&tid) else { return false };
        // Without the direction bit.
        if answer.status & 0x7fff == 0 {
            self.learn(&question, &smp_data(mad));
        }
        true
    }

    fn learn(&mut self, question: &Question, data: &[u8; 64]) {
        let Question { path, modifier, node, .. } = question;
        let port = *modifier as u8;
        match question.attribute {
            attribute::NODE_INFO => self.found_node(question, data),
            attribute::SM_INFO => {
                let mut other = Other {
                    guid: super::be64(data, 0),
                    priority: data[20] >> 4,
                    state: data[20] & 0x0f,
                    activity: super::be64(data, 12) as u32,
                    lid: 0,
                };
                other.lid = self.found.nodes.get(node).map_or(0, Node::lid);
                if other.guid != self.own {
                    self.others.push(other);
                }
            }
            _ => {}
        }
        let Some(known) = self.found.nodes.get_mut(node) else { return };
        match question.attribute {
            attribute::NODE_DESCRIPTION => known.description = *data,
            attribute::PKEY_TABLE => known.pkeys = Some(*data),
            attribute::SWITCH_INFO => {
                let mut info = [0; 20];
                info.copy_from_slice(&data[..20]);
                known.switch_info = Some(info);
                let has: Vec<u32> = known.tables.keys().map(|(_, block)| *block).collect();
                let top = u16::from_be_bytes([data[6], data[7]]).min(LAST_LID);
                let path = path.clone();
                let node = *node;
                for block in (1..=u32::from(top / BLOCK)).filter(|block| !has.contains(block)) {
                    self.get(&path, LINEAR_FORWARDING, block, None, node);
                }
            }
            GUID_INFO | LINEAR_FORWARDING | MULTICAST_FORWARDING => {
                known.tables.insert((question.attribute, *modifier), *data);
            }
            attribute::PORT_INFO => {
                known.ports.insert(port, *data);
                let (kind, end) = (known.kind(), known.end_port());
                let up = data[32] & 0x0f >= 2;
                let manages = super::be64(data, 16) as u32 & IS_SM != 0;
                if question.set.is_some() {
                    return;
                }
                if kind == NodeKind::Switch && port != 0 && up && path.len() < MOST_HOPS {
                    let mut further = path.clone();
                    further.push(port);
                    self.get(&further, attribute::NODE_INFO, 0, Some((*node, port)), 0);
                } else if port == end && manages {
                    self.get(path, attribute::SM_INFO, 0, None, *node);
                }
                // Our own port is where the walk leaves by.
                if path.is_empty() && kind != NodeKind::Switch && up {
                    self.get(&[port], attribute::NODE_INFO, 0, Some((*node, port)), 0);
                }
            }
            _ => {}
        }
    }

    fn found_node(&mut self, question: &Question, data: &[u8; 64]) {
        let mut info = [0; 40];
        info.copy_from_slice(&data[..40]);
        let mut node = Node::new(info, question.path.clone());
        let (guid, local) = (node.guid(), info[36]);
        if let Some(from) = question.through {
            let (there, back) = (Link { from, to: (guid, local) }, (guid, local));
            for link in [there, Link { from: back, to: from }] {
                if !self.found.links.contains(&link) {
                    self.found.links.push(link);
                }
            }
        }
        if self.found.nodes.contains_key(&guid) || self.found.nodes.len() >= MOST_NODES {
            return;
        }
        if let Some(tables) = self.before.remove(&guid) {
            node.tables = tables;
        }
        let path = question.path.as_slice();
        self.get(path, attribute::NODE_DESCRIPTION, 0, None, guid);
        match node.kind() {
            NodeKind::Switch => {
                self.get(path, attribute::SWITCH_INFO, 0, None, guid);
                self.get(path, attribute::PKEY_TABLE, 0, None, guid);
                for port in 0..=info[3] {
                    self.get(path, attribute::PORT_INFO, port.into(), None, guid);
                }
                if node.tables.is_empty() {
                    self.get_tables(path, guid, &SWITCH_TABLES);
                }
            }
            _ => {
                self.get(path, attribute::PORT_INFO, local.into(), None, guid);
                self.get(path, attribute::PKEY_TABLE, 0, None, guid);
                if node.tables.is_empty() {
                    self.get_tables(path, guid, &ADAPTER_TABLES);
                }
            }
        }
        self.found.nodes.insert(guid, node);
    }
}
