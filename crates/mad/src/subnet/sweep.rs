//! Finding the nodes of the subnet, port by port, by directed-route packets.

use std::collections::{HashMap, VecDeque};

use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

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

/// In a port's capability mask: a subnet manager is there.
const IS_SM: u32 = 1 << 1;

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
    pub(super) lid: u16,
}

/// A walk over the subnet.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    queue: VecDeque<Question>,
    asked: HashMap<u32, Asked>,
    pub(super) found: Db,
    pub(super) others: Vec<Other>,
    m_key: u64,
    own: u64,
    pub(super) sent: u64,
    /// How often ports were asked to change.
    pub(super) rounds: u32,
}

impl Sweep {
    /// Starts at the port with the GUID `own`.
    pub(super) fn start(own: u64, m_key: u64) -> Sweep {
        let mut sweep = Sweep { m_key, own, ..Sweep::default() };
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
        let node = Node::new(info, question.path.clone());
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
        let path = question.path.as_slice();
        self.get(path, attribute::NODE_DESCRIPTION, 0, None, guid);
        match node.kind() {
            NodeKind::Switch => {
                self.get(path, attribute::SWITCH_INFO, 0, None, guid);
                for port in 0..=info[3] {
                    self.get(path, attribute::PORT_INFO, port.into(), None, guid);
                }
            }
            _ => {
                self.get(path, attribute::PORT_INFO, local.into(), None, guid);
                self.get(path, attribute::PKEY_TABLE, 0, None, guid);
            }
        }
        self.found.nodes.insert(guid, node);
    }
}
