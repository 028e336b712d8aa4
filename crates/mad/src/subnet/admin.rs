//! The administrator: answers to queries, multicast groups, services, subscriptions (IBA chapter 15).

use std::collections::{BTreeMap, HashMap, VecDeque};

use ironverbs_wire::Gid;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::db::{Db, Node};
use super::paths::paths;
use super::reports::{Reports, nobody};
use super::{Origin, Outgoing, Way, be16, be64, header, method, records};
use crate::Instant;
use crate::rmpp::{self, Sender};

/// Attributes of the administrator (IBA 15.2.5).
mod record {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const INFORM_INFO: u16 = 0x03;
    pub(super) const NODE: u16 = 0x11;
    pub(super) const PORT_INFO: u16 = 0x12;
    pub(super) const SWITCH_INFO: u16 = 0x14;
    pub(super) const SM_INFO: u16 = 0x18;
    pub(super) const LINK: u16 = 0x20;
    pub(super) const SERVICE: u16 = 0x31;
    pub(super) const PKEY_TABLE: u16 = 0x33;
    pub(super) const PATH: u16 = 0x35;
    pub(super) const INFORM: u16 = 0xf3;
    pub(super) const MC_MEMBER: u16 = 0x38;
}

/// Status codes (IBA 13.4.7, 15.2.2, table 185).
pub(super) mod status {
    pub(in super::super) const BAD_VERSION: u16 = 1 << 2;
    pub(in super::super) const BAD_METHOD: u16 = 2 << 2;
    pub(in super::super) const BAD_ATTRIBUTE: u16 = 3 << 2;
    pub(in super::super) const NO_RESOURCES: u16 = 0x0100;
    pub(in super::super) const INVALID: u16 = 0x0200;
    pub(in super::super) const NO_RECORDS: u16 = 0x0300;
    pub(in super::super) const TOO_MANY: u16 = 0x0400;
    pub(in super::super) const INVALID_GID: u16 = 0x0500;
    pub(in super::super) const INSUFFICIENT: u16 = 0x0600;
    pub(in super::super) const DENIED: u16 = 0x0700;
}

/// Where data starts in a MAD of the class.
const DATA: usize = 56;

/// `IBV_RATE_100_GBPS`; 4.096 us * 2^18, about a second.
pub(super) const RATE: u8 = 16;
pub(super) const LIFE: u8 = 18;

/// Groups, services, answers under way, and records of an answer, at most.
const MOST_GROUPS: usize = 0x3ffe;
const MOST_SERVICES: usize = 4096;
const MOST_SENDERS: usize = 1024;
pub(super) const MOST_RECORDS: usize = 1 << 16;

/// The first multicast LID.
const FIRST_MLID: u16 = 0xc000;

/// Component bits of MCMemberRecord.
mod mc {
    pub(super) const MGID: u64 = 1;
    pub(super) const PORT_GID: u64 = 1 << 1;
    pub(super) const JOIN_STATE: u64 = 1 << 16;
    /// What a group is made with: Q_Key, traffic class, P_Key, SL, flow label.
    pub(super) const CREATES: u64 = 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
    /// What must fit a group that there is.
    pub(super) const FITS: u64 = CREATES | 1 << 3 | 1 << 14 | 1 << 15;
}

#[derive(Debug)]
struct Group {
    record: [u8; 52],
    members: Vec<(Gid, u8)>,
}

/// What the manager says of itself.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) lid: u16,
    pub(super) gid: Gid,
    pub(super) sm_info: [u8; 25],
    pub(super) sm_key: u64,
}

/// The administrator's own memory.
#[derive(Debug, Default)]
pub(super) struct Admin {
    groups: BTreeMap<Gid, Group>,
    services: Vec<(u16, [u8; 176])>,
    reports: Reports,
    senders: HashMap<(u16, u64), Sender>,
    pub(super) out: VecDeque<Outgoing>,
    pub(super) answered: u64,
    pub(super) refused: u64,
}

pub(super) type Answer = Result<Vec<Vec<u8>>, u16>;

impl Admin {
    /// Takes a MAD of the class.
    pub(super) fn handle(&mut self, now: Instant, db: &Db, own: &Own, from: &Origin, mad: &Mad) {
        let asked = header(mad);
        if asked.method & method::RESPONSE != 0 {
            if asked.method == method::REPORT | method::RESPONSE {
                self.reports.heard(from.lid, asked.tid as u32);
            }
            return;
        }
        let key = (from.lid, asked.tid);
        // What an answer's receiver says of its segments comes with the method of the request.
        if rmpp::is_active(mad) && mad[25] != 1 {
            if let Some(sender) = self.senders.get_mut(&key) {
                sender.handle(now, mad);
                self.pump(now, key);
            }
            return;
        }
        let Some(asker) = db.of_lid(from.lid) else {
            self.refused += 1;
            return;
        };
        let answer = match (asked.base_version, asked.class_version) {
            (BASE_VERSION, 2) => self.answer(now, db, own, asker, from, &asked, mad),
            _ => Err(status::BAD_VERSION),
        };
        self.respond(now, from, &asked, mad, answer);
    }

    fn respond(
        &mut self,
        now: Instant,
        from: &Origin,
        asked: &MadHeader,
        mad: &Mad,
        answer: Answer,
    ) {
        let table = asked.method == method::GET_TABLE;
        let answer = answer.and_then(|records| match (table, records.len()) {
            (true, _) | (false, 1) => Ok(records),
            (false, 0) => Err(status::NO_RECORDS),
            (false, _) => Err(status::TOO_MANY),
        });
        let mut out = *mad;
        out[3] |= method::RESPONSE;
        // No segments, unless there are some.
        out[24..36].fill(0);
        out[44..48].fill(0);
        match answer {
            Err(status) => {
                self.refused += 1;
                out[4..6].copy_from_slice(&status.to_be_bytes());
                self.send(from.lid, out);
            }
            Ok(records) => {
                self.answered += 1;
                out[4..6].fill(0);
                let size = records.first().map_or(0, |record| record.len().next_multiple_of(8));
                out[44..46].copy_from_slice(&((size / 8) as u16).to_be_bytes());
                let mut data = Vec::with_capacity(size * records.len());
                for record in &records {
                    data.extend_from_slice(record);
                    data.resize(data.len().next_multiple_of(8), 0);
                }
                if table {
                    let key = (from.lid, asked.tid);
                    if self.senders.len() < MOST_SENDERS || self.senders.contains_key(&key) {
                        self.senders.insert(key, Sender::new(&out, data));
                        self.pump(now, key);
                    }
                    return;
                }
                out[DATA..].fill(0);
                let room = &mut out[DATA..];
                let len = data.len().min(room.len());
                room[..len].copy_from_slice(&data[..len]);
                self.send(from.lid, out);
            }
        }
    }

    fn send(&mut self, lid: u16, mad: Mad) {
        self.out.push_back(Outgoing { way: Way::Lid { lid, qpn: 1 }, asks: false, mad });
    }

    /// Sends what an answer of several segments has to send.
    fn pump(&mut self, now: Instant, key: (u16, u64)) {
        let Some(sender) = self.senders.get_mut(&key) else { return };
        let mut segments = Vec::new();
        while let Some(segment) = sender.poll_transmit(now) {
            segments.push(segment);
        }
        if sender.is_done() || sender.has_failed() {
            self.senders.remove(&key);
        }
        segments.into_iter().for_each(|segment| self.send(key.0, segment));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let due: Vec<_> = self
            .senders
            .iter()
            .filter(|(_, sender)| sender.next_timeout().is_some_and(|at| at <= now))
            .map(|(key, _)| *key)
            .collect();
        for key in due {
            let abort = self.senders.get_mut(&key).and_then(|s| s.handle_timeout(now));
            if let Some(abort) = abort {
                self.send(key.0, abort);
            }
            self.pump(now, key);
        }
        let again = self.reports.handle_timeout(now);
        self.out.extend(again);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let senders = self.senders.values().filter_map(Sender::next_timeout).min();
        senders.into_iter().chain(self.reports.next_timeout()).min()
    }

    #[allow(clippy::too_many_arguments)]
    fn answer(
        &mut self,
        now: Instant,
        db: &Db,
        own: &Own,
        asker: &Node,
        from: &Origin,
        asked: &MadHeader,
        mad: &Mad,
    ) -> Answer {
        let query = &mad[DATA..];
        let mask = be64(mad, 48);
        let trusted = be64(mad, 36) == own.sm_key && own.sm_key != 0;
        match (asked.attribute, asked.method) {
            (record::MC_MEMBER, method::SET) => self.join(now, db, own, asker, mask, query),
            (record::MC_MEMBER, method::DELETE) => self.leave(now, own, asker, mask, query),
            (record::SERVICE, method::SET) => self.offer(asker, from, mask, query),
            (record::SERVICE, method::DELETE) => self.withdraw(from, mask, query),
            (record::INFORM_INFO, method::SET) => self.reports.subscribe(from.lid, query),
            (record::CLASS_PORT_INFO, method::GET) => Ok(vec![class_port_info(own)]),
            (record::PATH, method::GET | method::GET_TABLE) => {
                let mut paths = paths(db, mask, query)?;
                if asked.method == method::GET {
                    paths.truncate(1);
                }
                Ok(paths)
            }
            (_, method::GET | method::GET_TABLE) => {
                let (fields, all) = self.table(db, own, trusted, asked.attribute)?;
                let mut found = Vec::new();
                for record in all {
                    if records::matches(&record, query, mask, fields).ok_or(status::INVALID)? {
                        found.push(record);
                    }
                }
                Ok(found)
            }
            (_, method::SET | method::DELETE) => Err(status::BAD_ATTRIBUTE),
            _ => Err(status::BAD_METHOD),
        }
    }

    /// All records of an attribute, and its components.
    #[allow(clippy::type_complexity)]
    fn table(
        &self,
        db: &Db,
        own: &Own,
        trusted: bool,
        attribute: u16,
    ) -> Result<(&'static [(u16, u16)], Vec<Vec<u8>>), u16> {
        let nodes = db.nodes.values();
        Ok(match attribute {
            record::NODE => (records::NODE, nodes.map(node_record).collect()),
            record::PORT_INFO => (records::PORT_INFO, nodes.flat_map(port_records).collect()),
            record::SWITCH_INFO => (
                records::SWITCH_INFO,
                nodes.filter_map(|node| lid_record(node, node.switch_info?.as_slice())).collect(),
            ),
            record::PKEY_TABLE => {
                let pkeys = |node: &Node| {
                    let mut rest = vec![node.end_port(), 0, 0, 0];
                    rest.extend_from_slice(&node.pkeys?);
                    lid_record(node, &rest)
                };
                (records::PKEY_TABLE, nodes.filter_map(pkeys).collect())
            }
            record::LINK => (records::LINK, link_records(db)),
            record::SM_INFO => {
                let mut record = own.lid.to_be_bytes().to_vec();
                record.extend_from_slice(&[0, 0]);
                record.extend_from_slice(&own.sm_info);
                // The key is nobody else's business.
                record[12..20].fill(0);
                (records::SM_INFO, vec![record])
            }
            record::SERVICE => {
                let all = self.services.iter().map(|(_, service)| service.to_vec()).collect();
                (records::SERVICE, all)
            }
            record::MC_MEMBER => {
                let all = self.groups.values().flat_map(|group| group.records(trusted)).collect();
                (records::MC_MEMBER, all)
            }
            record::INFORM => {
                let gid_of = |lid| db.of_lid(lid).map_or_else(nobody, Node::gid);
                (records::INFORM, self.reports.records(gid_of))
            }
            _ => return Err(status::BAD_ATTRIBUTE),
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn join(
        &mut self,
        now: Instant,
        db: &Db,
        own: &Own,
        asker: &Node,
        mask: u64,
        query: &[u8],
    ) -> Answer {
        let needed = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
        let mut record = [0; 52];
        record.copy_from_slice(&query[..52]);
        let join = record[48] & 0x0f;
        if mask & needed != needed || join == 0 {
            return Err(status::INSUFFICIENT);
        }
        let (group, port) = (gid_at(&record, 0), gid_at(&record, 16));
        // Nobody joins for another.
        if port != asker.gid() {
            return Err(if db.of_gid(&port).is_some() {
                status::DENIED
            } else {
                status::INVALID_GID
            });
        }
        if !group.is_multicast() || group.is_ipv4() {
            return Err(status::INVALID_GID);
        }
        if let Some(known) = self.groups.get_mut(&group) {
            let fits = records::matches(&known.record, query, mask & mc::FITS, records::MC_MEMBER);
            if fits != Some(true) {
                return Err(status::INVALID);
            }
            match known.members.iter_mut().find(|(gid, _)| *gid == port) {
                Some((_, state)) => *state |= join,
                None => known.members.push((port, join)),
            }
        } else {
            // Only a full member makes a group.
            if mask & mc::CREATES != mc::CREATES || join & 1 == 0 {
                return Err(status::INSUFFICIENT);
            }
            let mlid = self.free_mlid().ok_or(status::NO_RESOURCES)?;
            record[36..38].copy_from_slice(&mlid.to_be_bytes());
            // MTU, rate and life time are exact, and those of the subnet where not asked for.
            record[38] = 2 << 6 | if mask & 1 << 5 != 0 { record[38] & 0x3f } else { 4 };
            record[42] = 2 << 6 | if mask & 1 << 9 != 0 { record[42] & 0x3f } else { RATE };
            record[43] = 2 << 6 | if mask & 1 << 11 != 0 { record[43] & 0x3f } else { LIFE };
            record[16..32].fill(0);
            record[48] &= 0xf0;
            let members = vec![(port, join)];
            self.groups.insert(group, Group { record, members });
            self.report(now, own, 66, group);
        }
        let known = self.groups.get(&group).ok_or(status::NO_RESOURCES)?;
        let state = known.members.iter().find(|(gid, _)| *gid == port).map_or(0, |(_, s)| *s);
        Ok(vec![known.member(&port, state)])
    }

    fn leave(&mut self, now: Instant, own: &Own, asker: &Node, mask: u64, query: &[u8]) -> Answer {
        let needed = mc::MGID | mc::PORT_GID | mc::JOIN_STATE;
        if mask & needed != needed {
            return Err(status::INSUFFICIENT);
        }
        let (group, port) = (gid_at(query, 0), gid_at(query, 16));
        if port != asker.gid() {
            return Err(status::DENIED);
        }
        let known = self.groups.get_mut(&group).ok_or(status::INVALID)?;
        let at = known.members.iter().position(|(gid, _)| *gid == port).ok_or(status::INVALID)?;
        let left = known.members[at].1 & !(query[48] & 0x0f);
        let answer = known.member(&port, left);
        match left {
            0 => drop(known.members.swap_remove(at)),
            left => known.members[at].1 = left,
        }
        self.drop_empty(now, own);
        Ok(vec![answer])
    }

    /// Groups without a full member end.
    fn drop_empty(&mut self, now: Instant, own: &Own) {
        let empty = |group: &Group| !group.members.iter().any(|(_, state)| state & 1 != 0);
        let gone: Vec<Gid> =
            self.groups.iter().filter(|(_, group)| empty(group)).map(|(gid, _)| *gid).collect();
        for gid in gone {
            self.groups.remove(&gid);
            self.report(now, own, 67, gid);
        }
    }

    fn free_mlid(&self) -> Option<u16> {
        let taken = |mlid: u16| self.groups.values().any(|g| be16(&g.record, 36) == mlid);
        (0..MOST_GROUPS as u16).map(|n| FIRST_MLID + n).find(|mlid| !taken(*mlid))
    }

    fn offer(&mut self, asker: &Node, from: &Origin, mask: u64, query: &[u8]) -> Answer {
        let mut service = [0; 176];
        service.copy_from_slice(&query[..176]);
        // ID, GID and P_Key are what names it.
        if mask & 0b111 != 0b111 {
            return Err(status::INSUFFICIENT);
        }
        if gid_at(&service, 8) != asker.gid() {
            return Err(status::DENIED);
        }
        let same = |other: &[u8; 176]| other[..26] == service[..26];
        let full = self.services.len() >= MOST_SERVICES;
        match self.services.iter_mut().find(|(_, other)| same(other)) {
            Some(known) => *known = (from.lid, service),
            None if full => return Err(status::NO_RESOURCES),
            None => self.services.push((from.lid, service)),
        }
        Ok(vec![service.to_vec()])
    }

    fn withdraw(&mut self, from: &Origin, mask: u64, query: &[u8]) -> Answer {
        if mask & 0b111 != 0b111 {
            return Err(status::INSUFFICIENT);
        }
        let same = |(_, other): &(u16, [u8; 176])| other[..26] == query[..26];
        let at = self.services.iter().position(same).ok_or(status::NO_RECORDS)?;
        if self.services[at].0 != from.lid {
            return Err(status::DENIED);
        }
        Ok(vec![self.services.swap_remove(at).1.to_vec()])
    }

    /// Tells subscribers of a GID.
    pub(super) fn report(&mut self, now: Instant, own: &Own, trap: u16, gid: Gid) {
        let sent = self.reports.report(now, own, trap, gid);
        self.out.extend(sent);
    }

    /// A port is gone: with it go its memberships, services and subscriptions.
    pub(super) fn forget(&mut self, now: Instant, own: &Own, gid: &Gid, lid: u16) {
        for group in self.groups.values_mut() {
            group.members.retain(|(member, _)| member != gid);
        }
        self.services.retain(|(owner, _)| *owner != lid);
        self.reports.forget(lid);
        self.senders.retain(|(to, _), _| *to != lid);
        self.drop_empty(now, own);
    }
}

impl Group {
    fn member(&self, port: &Gid, state: u8) -> Vec<u8> {
        let mut record = self.record.to_vec();
        record[16..32].copy_from_slice(&port.0);
        record[48] = record[48] & 0xf0 | state & 0x0f;
        record
    }

    /// A record for each member, to those who are trusted; to others one that names none.
    fn records(&self, trusted: bool) -> Vec<Vec<u8>> {
        match trusted {
            true => self.members.iter().map(|(gid, state)| self.member(gid, *state)).collect(),
            false => vec![self.member(&Gid::UNSPECIFIED, 1)],
        }
    }
}

pub(super) fn gid_at(bytes: &[u8], at: usize) -> Gid {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(Gid::UNSPECIFIED, |gid| Gid(*gid))
}

fn class_port_info(own: &Own) -> Vec<u8> {
    let mut info = vec![0; 72];
    // Versions, and that UD multicast and subscriptions are there.
    info[..4].copy_from_slice(&[BASE_VERSION, 2, 0x22, 0x02]);
    // The time to answer: 4.096 us * 2^18.
    info[7] = 18;
    info[8..24].copy_from_slice(&own.gid.0);
    info[28..30].copy_from_slice(&own.lid.to_be_bytes());
    info
}

/// A record that begins with a LID and 16 bits.
fn lid_record(node: &Node, rest: &[u8]) -> Option<Vec<u8>> {
    let mut record = node.lid().to_be_bytes().to_vec();
    record.extend_from_slice(&[0, 0]);
    record.extend_from_slice(rest);
    Some(record)
}

fn node_record(node: &Node) -> Vec<u8> {
    let rest = [node.info.as_slice(), &node.description].concat();
    lid_record(node, &rest).unwrap_or_default()
}

fn port_records(node: &Node) -> Vec<Vec<u8>> {
    let record = |(port, info): (&u8, &[u8; 64])| {
        let mut record = node.lid().to_be_bytes().to_vec();
        record.extend_from_slice(&[*port, 0]);
        record.extend_from_slice(info);
        // The M_Key is the manager's alone.
        record[4..12].fill(0);
        record
    };
    node.ports.iter().map(record).collect()
}

fn link_records(db: &Db) -> Vec<Vec<u8>> {
    let lid = |guid: u64| db.nodes.get(&guid).map(|node| node.lid().to_be_bytes());
    let record = |link: &super::db::Link| {
        let (from, to) = (lid(link.from.0)?, lid(link.to.0)?);
        Some([&from[..], &[link.from.1, link.to.1], &to].concat())
    };
    db.links.iter().filter_map(record).collect()
}
