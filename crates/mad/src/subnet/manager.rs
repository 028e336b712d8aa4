//! The manager: when it looks, what it changes, and who of several it is.

use std::collections::{BTreeSet, VecDeque};

use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::admin::{Admin, Own};
use super::db::{Db, Link, Node, NodeKind};
use super::reports;
use super::sweep::{LAST_LID, Other, Sweep};
use super::{
    Origin, Outgoing, SMP_DATA, SUBN_ADM, SUBN_DIRECTED, SUBN_LID, Way, attribute, be16, be64,
    header, lid_routed, method, smp_data,
};
use crate::{Instant, rmpp};

/// Between two looks at a master, and how often it may be silent, by a manager that stands by; in nanoseconds.
const POLL: u64 = 250_000_000;
const SILENT: u32 = 4;

/// Port states (IBA 14.2.5.6).
const INIT: u8 = 2;
const ARMED: u8 = 3;
const ACTIVE: u8 = 4;

/// What AttributeModifier of Set(SMInfo) asks for (IBA 14.4.1).
const HANDOVER: u32 = 1;
const ACKNOWLEDGE: u32 = 2;

/// How long a query waits for a walk that finds who asked, in nanoseconds: less than most who ask wait for an answer.
const PATIENCE: u64 = 700_000_000;

/// Queries that may wait for one.
const MOST_EARLY: usize = 256;

/// LIDs that are kept in mind during a walk.
const MOST_HEARD: usize = 4096;

/// State of a manager that takes no part.
const NOT_ACTIVE: u8 = 0;

/// What a manager is (IBA 14.4.1), numbered as in SMInfo.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It does not know yet.
    Discovering = 1,
    /// Another is the master.
    Standby = 2,
    /// It manages the subnet.
    Master = 3,
}

/// How a manager is to be.
#[derive(Copy, Clone, Debug)]
pub struct SmConfig {
    /// GUID of the port it is at, host order.
    pub port_guid: u64,
    /// 0 to 15; of several managers the highest is the master.
    pub priority: u8,
    /// What others must know to change who is master, and those who are trusted with members of groups.
    pub sm_key: u64,
    /// What it sends with each packet to a node, which may ask for it; 0: none.
    pub m_key: u64,
    /// Between two walks over the subnet, in nanoseconds.
    pub period: u64,
    /// How long it stands by before it says so, in nanoseconds. Until then it is no heir, whatever its priority, so that one
    /// that comes for a moment does not change who manages the subnet; should the master go, it takes its place at once.
    pub youth: u64,
}

impl SmConfig {
    /// Priority 0, SM_Key 1, no M_Key, a walk every second, no youth.
    pub fn new(port_guid: u64) -> SmConfig {
        SmConfig { port_guid, priority: 0, sm_key: 1, m_key: 0, period: 1_000_000_000, youth: 0 }
    }
}

/// What a manager has done.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SmCounters {
    /// Walks that were finished.
    pub sweeps: u64,
    /// Subnet management packets sent.
    pub packets: u64,
    /// Queries answered, and refused.
    pub answered: u64,
    /// Queries refused.
    pub refused: u64,
}

/// A subnet manager and administrator: see the [module](super).
#[derive(Debug)]
pub struct SubnetManager {
    config: SmConfig,
    role: Role,
    db: Db,
    sweep: Option<Sweep>,
    next_sweep: Option<Instant>,
    /// The master, while we stand by, and how often it was silent.
    master: Option<Other>,
    silent: u32,
    next_poll: Option<Instant>,
    /// Managers seen in the last walk.
    others: Vec<Other>,
    admin: Admin,
    out: VecDeque<Outgoing>,
    tid: u32,
    activity: u32,
    counters: SmCounters,
    /// It became the master, and nobody was told so far: programs are to say anew what they have told the one before.
    fresh: bool,
    /// LIDs that something came from while it looked.
    heard: BTreeSet<u16>,
    /// Something changed while it looked.
    again: bool,
    /// Who is to be master instead, and since when it is seen to stand by: who has only begun to is not ready for it,
    /// and a program that is soon over is none.
    heir: Option<(u64, Instant)>,
    /// Who was asked to take over, and in which transaction.
    handing: Option<(u32, Other)>,
    /// Until when it is young.
    grown: Instant,
    /// It was, when it was asked last.
    young: bool,
    /// Queries that wait for the walk that finds who asked, and until when.
    early: Vec<(Instant, Origin, Mad)>,
}

impl SubnetManager {
    /// One that begins to look at `now`.
    pub fn new(config: SmConfig, now: Instant) -> SubnetManager {
        SubnetManager {
            config,
            role: Role::Discovering,
            db: Db::default(),
            sweep: None,
            next_sweep: Some(now),
            master: None,
            silent: 0,
            next_poll: None,
            others: Vec::new(),
            admin: Admin::default(),
            out: VecDeque::new(),
            tid: 0,
            activity: 0,
            counters: SmCounters::default(),
            fresh: false,
            heard: BTreeSet::new(),
            again: false,
            heir: None,
            grown: now.after(config.youth),
            young: config.youth > 0,
            early: Vec::new(),
            handing: None,
        }
    }

    /// The LID of the master that it stands by for.
    pub fn master_lid(&self) -> Option<u16> {
        self.master.map(|master| master.lid).filter(|_| self.role == Role::Standby)
    }

    /// A port came up or went down: a master looks at once, as at a trap 128 (IBA 14.4.7).
    pub fn topology_changed(&mut self, now: Instant) {
        match &self.sweep {
            Some(_) => self.again = true,
            None if self.role != Role::Standby => self.next_sweep = Some(now),
            None => {}
        }
    }

    /// The host of the master is gone: whoever stands by does not wait until it has been silent long enough.
    pub fn master_lost(&mut self, now: Instant) {
        if self.role == Role::Standby {
            self.look_anew(now);
        }
    }

    /// What it is at the moment.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The nodes it has found, by GUID.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.db.nodes.values()
    }

    /// What it has done.
    pub fn counters(&self) -> SmCounters {
        SmCounters { answered: self.admin.answered, refused: self.admin.refused, ..self.counters }
    }

    fn own_node(&self) -> Option<&Node> {
        self.db.nodes.values().find(|node| node.port_guid() == self.config.port_guid)
    }

    fn own(&self) -> Own {
        let node = self.own_node();
        Own {
            lid: node.map_or(0, Node::lid),
            gid: node.map(Node::gid).unwrap_or_default(),
            sm_info: self.sm_info(self.config.sm_key),
            sm_key: self.config.sm_key,
        }
    }

    fn sm_info(&self, key: u64) -> [u8; 25] {
        let mut info = [0; 25];
        info[..8].copy_from_slice(&self.config.port_guid.to_be_bytes());
        info[8..16].copy_from_slice(&key.to_be_bytes());
        info[16..20].copy_from_slice(&self.activity.to_be_bytes());
        let state =
            if self.young && self.role == Role::Standby { NOT_ACTIVE } else { self.role as u8 };
        info[20] = self.config.priority << 4 | state;
        info
    }

    fn next_tid(&mut self) -> u32 {
        self.tid = self.tid.wrapping_add(1);
        self.tid
    }

    /// Takes a MAD that has come to QP0 or QP1: answers, and requests of subnet management that nodes do not answer by
    /// themselves, and all of the administrator's class.
    pub fn handle_mad(&mut self, now: Instant, from: &Origin, mad: &Mad) {
        self.young = now < self.grown;
        let asked = header(mad);
        if asked.base_version != BASE_VERSION {
            return;
        }
        if self.sweep.is_some() && self.heard.len() < MOST_HEARD {
            self.heard.insert(from.lid);
        }
        match (from.qpn, asked.class) {
            (1, SUBN_ADM) if self.is_early(from, &asked, mad) && self.early.len() < MOST_EARLY => {
                self.early.push((now.after(PATIENCE), *from, *mad));
                self.topology_changed(now);
            }
            (1, SUBN_ADM) if self.role == Role::Master => {
                let own = self.own();
                self.admin.handle(now, &self.db, &own, from, mad);
            }
            (0, SUBN_DIRECTED | SUBN_LID) if asked.method & method::RESPONSE != 0 => {
                self.answered(now, mad);
            }
            (0, SUBN_LID | SUBN_DIRECTED) if from.has_lid() => self.asked(now, from, &asked, mad),
            _ => {}
        }
    }

    /// Whether a query is of a node that the next walk may find. Most who ask do so once, as soon as they are there.
    fn is_early(&self, from: &Origin, asked: &MadHeader, mad: &Mad) -> bool {
        let is_known = self.db.of_lid(from.lid).is_some();
        let may_be = match self.role {
            Role::Discovering => true,
            // Of a subnet that it has only begun to manage it may know what was.
            Role::Master => self.fresh || !is_known,
            Role::Standby => false,
        };
        // What belongs to an answer under way is too late, if anything.
        let opens = matches!(rmpp::part(mad), rmpp::Part::None | rmpp::Part::Data);
        may_be && opens && asked.method & method::RESPONSE == 0
    }

    /// An answer to a question of ours.
    fn answered(&mut self, now: Instant, mad: &Mad) {
        if let Some(sweep) = &mut self.sweep
            && sweep.handle(mad)
        {
            return self.go_on(now);
        }
        let answer = header(mad);
        if answer.attribute == attribute::SM_INFO && answer.status & 0x7fff == 0 {
            let data = smp_data(mad);
            let guid = be64(&data, 0);
            if let Some((tid, heir)) = self.handing
                && tid == answer.tid as u32
                && self.role == Role::Master
            {
                // It has the subnet from here on, whether or not it says so once more: opensm looks at once who else is
                // the master, and then waits for somebody who is.
                return self.stand_by(now, Some(heir));
            }
            if self.master.is_some_and(|master| master.guid == guid) {
                self.silent = 0;
                // It has stepped back, for another perhaps.
                if data[20] & 0x0f != Role::Master as u8 {
                    self.look_anew(now);
                }
            }
        }
    }

    /// A request: who we are, a change of roles, a trap.
    fn asked(&mut self, now: Instant, from: &Origin, asked: &MadHeader, mad: &Mad) {
        let data = smp_data(mad);
        match (asked.method, asked.attribute) {
            (method::GET, attribute::SM_INFO) => self.tell(from, mad, 0),
            (method::SET, attribute::SM_INFO) => {
                let known = self.others.iter().any(|other| other.lid == from.lid)
                    || self.master.is_some_and(|master| master.lid == from.lid);
                // Who does not know the key, or was not seen to be a manager, changes nothing.
                if be64(&data, 8) != self.config.sm_key || !known {
                    return self.tell(from, mad, 7 << 2);
                }
                let hands = self.handing.is_some_and(|(_, heir)| heir.lid == from.lid);
                match (asked.modifier, self.role) {
                    // A master takes it, too: of a subnet that has become one with its own.
                    (HANDOVER, Role::Standby | Role::Master) => {
                        self.fresh |= self.role == Role::Standby;
                        self.role = Role::Master;
                        self.master = None;
                        self.next_poll = None;
                        self.tell(from, mad, 0);
                        self.set_sm_info(from.lid, ACKNOWLEDGE);
                        match self.sweep {
                            Some(_) => self.again = true,
                            None => self.next_sweep = Some(now),
                        }
                    }
                    (ACKNOWLEDGE, Role::Master) if hands => {
                        self.tell(from, mad, 0);
                        let other = self.handing.map(|(_, heir)| heir);
                        self.stand_by(now, other);
                    }
                    (ACKNOWLEDGE, Role::Standby) => self.tell(from, mad, 0),
                    _ => self.tell(from, mad, 7 << 2),
                }
            }
            (method::TRAP, attribute::NOTICE) if self.db.of_lid(from.lid).is_some() => {
                let repress = MadHeader { method: method::TRAP_REPRESS, ..*asked };
                let mad = lid_routed(&repress, self.config.m_key, &data);
                self.out.push_back(Outgoing { way: by_lid(from.lid), asks: false, mad });
                if self.role == Role::Master {
                    self.topology_changed(now);
                    // Of links and of ports' own changes it tells when it has seen them; so a stranger's word changes nothing.
                    if !matches!(be16(&data, 4), 128 | 144)
                        && let Some(node) = self.db.of_lid(be16(&data, 6))
                        && node.guid() == self.db.of_lid(from.lid).map_or(0, Node::guid)
                    {
                        self.admin.relay(now, &data, &node.gid());
                    }
                }
            }
            _ => {}
        }
    }

    /// Answers with SMInfo.
    fn tell(&mut self, from: &Origin, asked: &Mad, status: u16) {
        self.activity = self.activity.wrapping_add(1);
        let mut data = [0; 64];
        // The key is told to who knows the nodes' (IBA 14.2.5.13): other managers compare it.
        let trusted = be64(asked, 24) == self.config.m_key;
        let key = if trusted { self.config.sm_key } else { 0 };
        data[..25].copy_from_slice(&self.sm_info(key));
        let mut mad = *asked;
        mad[3] = method::GET | method::RESPONSE;
        mad[SMP_DATA].copy_from_slice(&data);
        // A directed route is at its beginning again, on its way back.
        let directed = mad[1] == SUBN_DIRECTED;
        let status = status | if directed { 0x8000 } else { 0 };
        mad[4..6].copy_from_slice(&status.to_be_bytes());
        if directed {
            mad[6] = 0;
        }
        self.out.push_back(Outgoing { way: by_lid(from.lid), asks: false, mad });
    }

    fn set_sm_info(&mut self, lid: u16, modifier: u32) -> u32 {
        let mut data = [0; 64];
        data[..25].copy_from_slice(&self.sm_info(self.config.sm_key));
        self.ask_sm(lid, method::SET, modifier, &data)
    }

    /// The transaction's number.
    fn ask_sm(&mut self, lid: u16, method: u8, modifier: u32, data: &[u8; 64]) -> u32 {
        let number = self.next_tid();
        let tid = number.into();
        let attribute = attribute::SM_INFO;
        let asked = MadHeader {
            base_version: BASE_VERSION,
            class_version: 1,
            method,
            tid,
            attribute,
            modifier,
            ..MadHeader::default()
        };
        let mad = lid_routed(&asked, self.config.m_key, data);
        self.out.push_back(Outgoing { way: by_lid(lid), asks: true, mad });
        number
    }

    fn look_anew(&mut self, now: Instant) {
        self.role = Role::Discovering;
        self.master = None;
        self.next_poll = None;
        self.next_sweep = Some(now);
    }

    fn stand_by(&mut self, now: Instant, master: Option<Other>) {
        self.role = Role::Standby;
        // What it was about to change is the master's to change now.
        self.sweep = None;
        self.fresh = false;
        self.early.clear();
        self.handing = None;
        self.master = master;
        self.silent = 0;
        self.next_sweep = None;
        self.next_poll = Some(now.after(POLL));
    }

    /// Time has come to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.admin.handle_timeout(now);
        if let Some(sweep) = &mut self.sweep {
            self.out.extend(sweep.timeout(now));
            self.go_on(now);
        } else if self.next_sweep.is_some_and(|at| at <= now) && self.role != Role::Standby {
            self.next_sweep = None;
            self.heard.clear();
            self.sweep = Some(Sweep::start(self.config.port_guid, self.config.m_key, &self.db));
            self.go_on(now);
        }
        if self.next_poll.is_some_and(|at| at <= now) {
            self.next_poll = Some(now.after(POLL));
            self.silent += 1;
            match self.master {
                Some(master) if self.silent <= SILENT => {
                    self.ask_sm(master.lid, method::GET, 0, &[0; 64]);
                }
                _ => self.look_anew(now),
            }
        }
    }

    /// Sends the walk's next packets, and takes over what it has found when it is over.
    fn go_on(&mut self, now: Instant) {
        let Some(mut sweep) = self.sweep.take() else { return };
        let tid = &mut self.tid;
        while let Some(outgoing) = sweep.poll(now, || {
            *tid = tid.wrapping_add(1);
            *tid
        }) {
            self.out.push_back(outgoing);
        }
        if sweep.is_done() { self.finish(now, sweep) } else { self.sweep = Some(sweep) }
    }

    fn finish(&mut self, now: Instant, mut sweep: Sweep) {
        self.others = std::mem::take(&mut sweep.others);
        let better = |other: &&Other| {
            (other.priority, std::cmp::Reverse(other.guid))
                > (self.config.priority, std::cmp::Reverse(self.config.port_guid))
        };
        let master = self.others.iter().find(|other| other.state == Role::Master as u8).copied();
        let above = self.others.iter().filter(|other| other.state != NOT_ACTIVE && better(other));
        let above = above.max_by_key(|other| other.priority).copied();
        if self.role == Role::Discovering {
            match (master, above) {
                // The master steps back for us when it sees us, if that is due.
                (Some(master), _) => return self.adopt(now, sweep, Some(master)),
                (None, Some(above)) => return self.adopt(now, sweep, Some(above)),
                (None, None) => {
                    self.role = Role::Master;
                    self.fresh = true;
                }
            }
        }
        let rival = master.filter(|other| better(&other));
        if let Some(rival) = rival {
            // Two subnets that have become one: the better stays, and may wait to be told so (IBA 14.4.1).
            self.set_sm_info(rival.lid, HANDOVER);
            return self.adopt(now, sweep, Some(rival));
        }
        let mended = self.mend(&mut sweep);
        if mended && !sweep.is_done() {
            self.sweep = Some(sweep);
            return self.go_on(now);
        }
        self.counters.sweeps += 1;
        self.counters.packets += sweep.sent;
        self.fresh = false;
        self.keep_heard(&mut sweep.found);
        self.take_over(now, sweep.found);
        self.admin.managers = self.others.iter().map(Other::sm_info).collect();
        let own = self.own();
        for (until, from, mad) in std::mem::take(&mut self.early) {
            // That its cable leads somewhere again may be found out later than that it asks.
            if self.db.of_lid(from.lid).is_none() && now < until {
                self.early.push((until, from, mad));
            } else {
                self.admin.handle(now, &self.db, &own, &from, &mad);
            }
        }
        let again = std::mem::take(&mut self.again);
        self.next_sweep = Some(if again { now } else { now.after(self.config.period) });
        let heir = above.filter(|other| other.state == Role::Standby as u8 && other.lid != 0);
        let since = |guid| self.heir.filter(|(known, _)| *known == guid).map_or(now, |(_, at)| at);
        self.heir = heir.map(|heir| (heir.guid, since(heir.guid)));
        let long = |(_, at): (u64, Instant)| at.after(self.config.period) <= now;
        let ready = heir.filter(|_| self.heir.is_some_and(long));
        if let Some(heir) = ready {
            self.handing = Some((self.set_sm_info(heir.lid, HANDOVER), heir));
        }
    }

    /// Another is or will be the master.
    fn adopt(&mut self, now: Instant, sweep: Sweep, master: Option<Other>) {
        self.db = sweep.found;
        self.db.complete();
        self.stand_by(now, master);
    }

    /// Asks ports to become what they should be. Whether any has to.
    fn mend(&mut self, sweep: &mut Sweep) -> bool {
        let nodes = &sweep.found.nodes;
        let mut taken = BTreeSet::new();
        let mut without = Vec::new();
        for (guid, node) in nodes {
            let (lid, lmc) = (node.lid(), node.lmc());
            let range = lid..=lid.saturating_add((1 << lmc) - 1);
            let free =
                lid != 0 && *range.end() <= LAST_LID && range.clone().all(|l| !taken.contains(&l));
            match free {
                true => taken.extend(range),
                false => without.push(*guid),
            }
        }
        let mut next = 1;
        let mut given = Vec::new();
        for guid in without {
            while taken.contains(&next) && next < LAST_LID {
                next += 1;
            }
            taken.insert(next);
            given.push((guid, next));
        }
        let lid_of = |guid: u64, node: &Node| {
            given.iter().find(|(of, _)| *of == guid).map_or(node.lid(), |(_, lid)| *lid)
        };
        let own = nodes.iter().find(|(_, node)| node.port_guid() == self.config.port_guid);
        let Some(own) = own.map(|(guid, node)| lid_of(*guid, node)) else { return false };
        let tells = self.fresh && sweep.rounds == 0;
        let mut changes = Vec::new();
        for (guid, node) in nodes {
            for (port, info) in &node.ports {
                let end = *port == node.end_port();
                let state = info[32] & 0x0f;
                let wanted = if end { lid_of(*guid, node) } else { be16(info, 16) };
                let right = !end || be16(info, 16) == wanted && be16(info, 18) == own && !tells;
                let no_state = end && node.kind() == NodeKind::Switch;
                if right && (no_state || state == ACTIVE || state < INIT) {
                    continue;
                }
                let mut info = *info;
                if end {
                    info[16..18].copy_from_slice(&wanted.to_be_bytes());
                    info[18..20].copy_from_slice(&own.to_be_bytes());
                    // ClientReregister (IBA 14.4.12).
                    info[51] = info[51] & 0x7f | if tells { 0x80 } else { 0 };
                }
                // One step at a time; 0: as it is.
                let step = match state {
                    _ if no_state => 0,
                    INIT => ARMED,
                    ARMED => ACTIVE,
                    _ => 0,
                };
                info[32] = info[32] & 0xf0 | step;
                info[33] &= 0x0f;
                changes.push((*guid, node.path.clone(), *port, info));
            }
        }
        let any = !changes.is_empty() && sweep.rounds < 4;
        sweep.rounds += 1;
        if any {
            for (guid, path, port, info) in changes {
                sweep.set_port(guid, &path, port, info);
            }
        }
        any
    }

    /// A node that has said something since the walk began has come again behind it: the next will find it. What it has
    /// asked for in the meantime would be lost with it.
    fn keep_heard(&mut self, found: &mut Db) {
        for (guid, node) in &self.db.nodes {
            if self.heard.contains(&node.lid()) && !found.nodes.contains_key(guid) {
                found.nodes.insert(*guid, node.clone());
                let of = |link: &&Link| link.from.0 == *guid || link.to.0 == *guid;
                found.links.extend(self.db.links.iter().filter(of).copied());
                self.again = true;
            }
        }
    }

    /// What a walk has found is what there is.
    fn take_over(&mut self, now: Instant, found: Db) {
        let before = std::mem::replace(&mut self.db, found);
        self.db.complete();
        let own = self.own();
        let adapters = |db: &Db| -> Vec<(u64, ironverbs_wire::Gid, u16)> {
            let nodes = db.nodes.iter().filter(|(_, node)| node.kind() == NodeKind::Ca);
            nodes.map(|(guid, node)| (*guid, node.gid(), node.lid())).collect()
        };
        self.changes(now, &before);
        let (old, new) = (adapters(&before), adapters(&self.db));
        for (guid, gid, lid) in &old {
            if !new.iter().any(|(other, ..)| other == guid) {
                self.admin.forget(now, &own, gid, *lid);
                self.admin.report(now, &own, 65, *gid);
            }
        }
        for (guid, gid, _) in &new {
            if !old.iter().any(|(other, ..)| other == guid) && !old.is_empty() {
                self.admin.report(now, &own, 64, *gid);
            }
        }
    }

    /// Tells of what nodes that were there before say otherwise: links of switches, capabilities, names.
    fn changes(&mut self, now: Instant, before: &Db) {
        let mut notices = Vec::new();
        for (guid, node) in &self.db.nodes {
            let Some(was) = before.nodes.get(guid).filter(|was| was.lid() == node.lid()) else {
                continue;
            };
            let is_switch = node.kind() == NodeKind::Switch;
            let end = node.end_port();
            let links = |node: &Node| -> Vec<(u8, bool)> {
                let ports = node.ports.iter().filter(|(port, _)| **port != end);
                ports.map(|(port, info)| (*port, info[32] & 0x0f >= INIT)).collect()
            };
            if is_switch && links(node) != links(was) {
                notices.push((reports::link_state_changed(node.lid()), node.gid()));
            }
            let capabilities = |node: &Node| node.ports.get(&end).map(|info| be64(info, 16) as u32);
            let name = node.description != was.description;
            if let (Some(now), Some(before)) = (capabilities(node), capabilities(was))
                && (now != before || name)
            {
                let notice = reports::local_changes(node.lid(), is_switch, now, name);
                notices.push((notice, node.gid()));
            }
        }
        for (notice, issuer) in notices {
            self.admin.relay(now, &notice, &issuer);
        }
    }

    /// What is to be sent.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.pop_front().or_else(|| self.admin.out.pop_front())
    }

    /// When [`SubnetManager::handle_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let sweep = self.sweep.as_ref().and_then(Sweep::next_timeout);
        let waits = if self.sweep.is_some() { None } else { self.next_sweep };
        [sweep, waits, self.next_poll, self.admin.next_timeout()].into_iter().flatten().min()
    }
}

fn by_lid(lid: u16) -> Way {
    Way::Lid { lid, qpn: 0 }
}

const _: () = assert!(SMP_DATA.end == 128);
