//! The administrator: answers to queries, multicast groups, services, subscriptions (IBA chapter 15).

use std::collections::{BTreeMap, HashMap, VecDeque};

use ironverbs_wire::Gid;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::db::{Db, Node, NodeKind};
use super::paths::{multi_paths, paths};
use super::reports::{Reports, nobody};
use super::{Origin, Outgoing, Way, attribute, be16, be64, header, method, records, tables};
use crate::Instant;
use crate::rmpp::{self, Receiver, Sender};

/// Attributes of the administrator (IBA 15.2.5).
mod record {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const INFORM_INFO: u16 = 0x03;
    pub(super) const NODE: u16 = 0x11;
    pub(super) const PORT_INFO: u16 = 0x12;
    pub(super) const SL_TO_VL: u16 = 0x13;
    pub(super) const SWITCH_INFO: u16 = 0x14;
    pub(super) const LINEAR_FORWARDING: u16 = 0x15;
    pub(super) const MULTICAST_FORWARDING: u16 = 0x17;
    pub(super) const SM_INFO: u16 = 0x18;
    pub(super) const LINK: u16 = 0x20;
    pub(super) const GUID_INFO: u16 = 0x30;
    pub(super) const SERVICE: u16 = 0x31;
    pub(super) const PKEY_TABLE: u16 = 0x33;
    pub(super) const PATH: u16 = 0x35;
    pub(super) const VL_ARBITRATION: u16 = 0x36;
    pub(super) const MULTI_PATH: u16 = 0x3a;
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

/// Requests in segments, and segments of one: 255 GIDs from and 255 to fit.
const MOST_RECEIVERS: usize = 1024;
const MOST_SEGMENTS: u32 = 42;

/// How long the next segment of a request may take, and a repeated one is recognized, in nanoseconds.
const PATIENCE: u64 = 5_000_000_000;

/// Of ServiceRecord: the lease's component bit, in seconds, and one that does not end.
const LEASE: u64 = 1 << 4;
const FOREVER: u32 = u32::MAX;

/// Component bits of records of virtual lanes: ports in and out, or the only one.
const PORTS: u64 = 0b110;
const PORT: u64 = 0b010;

/// Component bit of PortInfoRecord: the capability mask.
const CAPABILITIES: u64 = 1 << 7;

/// Of what a group is made with: a selector, and the least rate, 2.5 Gb/s.
const EXACTLY: u8 = 2;
const SLOWEST: u8 = 2;

/// The scope of groups that are not named.
const LINK_LOCAL: u8 = 2;

/// The first multicast LID.
const FIRST_MLID: u16 = 0xc000;

/// Component bits of MCMemberRecord.
mod mc {
    pub(super) const MGID: u64 = 1;
    pub(super) const SCOPE: u64 = 1 << 15;
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

/// A service that a port offers, and how long it does.
#[derive(Debug)]
struct Service {
    owner: u16,
    until: Option<Instant>,
    record: [u8; 176],
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
    services: Vec<Service>,
    reports: Reports,
    /// Other managers: LID and SMInfo.
    pub(super) managers: Vec<(u16, [u8; 25])>,
    senders: HashMap<(u16, u64), Sender>,
    /// Requests of several segments, and until when they may come.
    receivers: HashMap<(u16, u64), (Receiver, Instant)>,
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
        let part = rmpp::part(mad);
        if rmpp::is_active(mad) && part != rmpp::Part::Data {
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
        // What is asked with a list of GIDs may be longer than a MAD.
        let whole = match part {
            rmpp::Part::Data => match self.segment(now, key, mad) {
                Some(whole) => whole,
                None => return,
            },
            _ => mad.to_vec(),
        };
        let query = whole.get(DATA..).unwrap_or_default();
        let answer = match (asked.base_version, asked.class_version) {
            (BASE_VERSION, 2) => self.answer(now, db, own, asker, from, &asked, mad, query),
            _ => Err(status::BAD_VERSION),
        };
        self.respond(now, from, &asked, mad, answer);
    }

    /// Takes a segment of a request: the whole, with the last.
    fn segment(&mut self, now: Instant, key: (u16, u64), mad: &Mad) -> Option<Vec<u8>> {
        self.receivers.retain(|_, (_, until)| *until > now);
        if self.receivers.len() >= MOST_RECEIVERS && !self.receivers.contains_key(&key) {
            return None;
        }
        let fresh = || (Receiver::new(), now.after(PATIENCE));
        let (receiver, until) = self.receivers.entry(key).or_insert_with(fresh);
        // Longer than any request can be.
        if u32::from_be_bytes([mad[28], mad[29], mad[30], mad[31]]) > MOST_SEGMENTS {
            self.receivers.remove(&key);
            return None;
        }
        *until = now.after(PATIENCE);
        let step = receiver.handle(mad);
        if step.failed {
            self.receivers.remove(&key);
        }
        if let Some(reply) = step.reply {
            self.send(key.0, reply);
        }
        step.done
    }

    fn respond(
        &mut self,
        now: Instant,
        from: &Origin,
        asked: &MadHeader,
        mad: &Mad,
        answer: Answer,
    ) {
        let table = matches!(asked.method, method::GET_TABLE | method::GET_MULTI);
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
        query: &[u8],
    ) -> Answer {
        self.services.retain(|service| service.until.is_none_or(|until| until > now));
        let mask = be64(mad, 48);
        let trusted = be64(mad, 36) == own.sm_key && own.sm_key != 0;
        match (asked.attribute, asked.method) {
            (record::MC_MEMBER, method::SET) => self.join(now, db, own, asker, mask, query),
            (record::MC_MEMBER, method::DELETE) => self.leave(now, own, asker, mask, query),
            (record::SERVICE, method::SET) => self.offer(now, db, asker, from, mask, query),
            (record::SERVICE, method::DELETE) => self.withdraw(from, mask, query),
            (record::INFORM_INFO, method::SET) => self.reports.subscribe(from.lid, query),
            (record::CLASS_PORT_INFO, method::GET) => Ok(vec![class_port_info(own)]),
            (record::MULTI_PATH, method::GET_MULTI) => multi_paths(db, mask, query),
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
                // The capabilities named, whatever others there are (IBA 15.2.5.3).
                let some = asked.attribute == record::PORT_INFO && asked.modifier >> 31 != 0;
                let (mask, capabilities) = match some && mask & CAPABILITIES != 0 {
                    true => (mask & !CAPABILITIES, be64(query, 20) as u32),
                    false => (mask, 0),
                };
                for record in all {
                    // Which port of an adapter virtual lanes are of does not matter (IBA 15.2.5.4, 15.2.5.9).
                    let switch = || {
                        let node = db.of_lid(be16(&record, 0));
                        node.is_some_and(|node| node.kind() == NodeKind::Switch)
                    };
                    let mask = match asked.attribute {
                        record::SL_TO_VL | record::VL_ARBITRATION
                            if mask & PORTS != 0 && !switch() =>
                        {
                            mask & !if asked.attribute == record::SL_TO_VL { PORTS } else { PORT }
                        }
                        _ => mask,
                    };
                    if capabilities & !(be64(&record, 20) as u32) != 0 {
                        continue;
                    }
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
        asked: u16,
    ) -> Result<(&'static [(u16, u16)], Vec<Vec<u8>>), u16> {
        let nodes = db.nodes.values();
        Ok(match asked {
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
            record::GUID_INFO => {
                let all = nodes.flat_map(|node| tables::records(node, attribute::GUID_INFO));
                (records::GUID_INFO, all.collect())
            }
            record::SL_TO_VL => {
                (records::SL_TO_VL, nodes.flat_map(tables::service_levels).collect())
            }
            record::VL_ARBITRATION => {
                (records::VL_ARBITRATION, nodes.flat_map(tables::arbitration).collect())
            }
            record::LINEAR_FORWARDING => {
                let of = attribute::LINEAR_FORWARDING;
                (records::FORWARDING, nodes.flat_map(|node| tables::records(node, of)).collect())
            }
            record::MULTICAST_FORWARDING => {
                let of = attribute::MULTICAST_FORWARDING;
                let all = nodes.flat_map(|node| tables::records(node, of)).collect();
                (records::MULTICAST_FORWARDING, all)
            }
            record::LINK => (records::LINK, link_records(db)),
            record::SM_INFO => {
                let record = |lid: u16, info: &[u8; 25]| {
                    let mut record = lid.to_be_bytes().to_vec();
                    record.extend_from_slice(&[0, 0]);
                    record.extend_from_slice(info);
                    // The key is nobody else's business.
                    record[12..20].fill(0);
                    record
                };
                let other = |(lid, info): &(u16, [u8; 25])| record(*lid, info);
                let all = std::iter::once(record(own.lid, &own.sm_info));
                (records::SM_INFO, all.chain(self.managers.iter().map(other)).collect())
            }
            record::SERVICE => {
                let all = self.services.iter().map(|service| service.record.to_vec()).collect();
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
        let (mut group, port) = (gid_at(&record, 0), gid_at(&record, 16));
        // Nobody joins for another.
        if port != asker.gid() {
            return Err(if db.of_gid(&port).is_some() {
                status::DENIED
            } else {
                status::INVALID_GID
            });
        }
        // Who names none gets one (IBA 15.2.5.17.1), for what a group is made with.
        let unnamed = group == Gid::UNSPECIFIED;
        if unnamed && (mask & mc::CREATES != mc::CREATES || join & 1 == 0) {
            return Err(status::INSUFFICIENT);
        }
        if unnamed {
            group = self.free_mgid(own, &record);
            record[..16].copy_from_slice(&group.0);
        }
        let scope = mask & mc::SCOPE == 0 || record[48] >> 4 == group.0[1] & 0x0f;
        if !group.is_multicast() || group.is_ipv4() || !scope {
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
            let chosen = |select: u64, of: u64, at: usize, usual, range| {
                let selector = if mask & select != 0 { record[at] >> 6 } else { EXACTLY };
                chosen(selector, (mask & of != 0).then_some(record[at] & 0x3f), usual, range)
            };
            let mtu = chosen(1 << 4, 1 << 5, 38, 4, 1..=asker.mtu()).ok_or(status::INVALID)?;
            let rate = chosen(1 << 8, 1 << 9, 42, RATE, SLOWEST..=RATE).ok_or(status::INVALID)?;
            let life = chosen(1 << 10, 1 << 11, 43, LIFE, 0..=0x3f).ok_or(status::INVALID)?;
            (record[38], record[42], record[43]) = (2 << 6 | mtu, 2 << 6 | rate, 2 << 6 | life);
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

    /// The GID of a group that was named none: transient, of the scope asked for, behind a signature and the subnet's prefix.
    fn free_mgid(&self, own: &Own, record: &[u8; 52]) -> Gid {
        let scope = match record[48] >> 4 {
            0 => LINK_LOCAL,
            scope => scope,
        };
        let mut gid = Gid([0; 16]);
        gid.0[..4].copy_from_slice(&[0xff, 0x10 | scope, 0xa0, 0x1b]);
        gid.0[4..12].copy_from_slice(&own.gid.0[..8]);
        let named = |number: u32| {
            let mut gid = gid;
            gid.0[12..].copy_from_slice(&number.to_be_bytes());
            gid
        };
        let free = (1..).map(named).find(|gid| !self.groups.contains_key(gid));
        free.unwrap_or(gid)
    }

    fn free_mlid(&self) -> Option<u16> {
        let taken = |mlid: u16| self.groups.values().any(|g| be16(&g.record, 36) == mlid);
        (0..MOST_GROUPS as u16).map(|n| FIRST_MLID + n).find(|mlid| !taken(*mlid))
    }

    #[allow(clippy::too_many_arguments)]
    fn offer(
        &mut self,
        now: Instant,
        db: &Db,
        asker: &Node,
        from: &Origin,
        mask: u64,
        query: &[u8],
    ) -> Answer {
        let service: [u8; 176] = *query.first_chunk().ok_or(status::INVALID)?;
        // ID, GID and P_Key are what names it.
        if mask & 0b111 != 0b111 {
            return Err(status::INSUFFICIENT);
        }
        // Nobody offers in another's name. One that nobody has may be offered in, as opensm allows: it comes after who has it.
        let gid = gid_at(&service, 8);
        if gid != asker.gid() && db.of_gid(&gid).is_some() {
            return Err(status::DENIED);
        }
        let lease = u32::from_be_bytes([service[28], service[29], service[30], service[31]]);
        let until = (lease != FOREVER && mask & LEASE != 0)
            .then(|| now.after(u64::from(lease) * 1_000_000_000));
        let same = |other: &[u8; 176]| other[..26] == service[..26];
        let full = self.services.len() >= MOST_SERVICES;
        match self.services.iter_mut().find(|known| same(&known.record)) {
            // Whose it is, he may change.
            Some(known) if known.owner != from.lid && gid != asker.gid() => {
                return Err(status::DENIED);
            }
            Some(known) => *known = Service { owner: from.lid, until, record: service },
            None if full => return Err(status::NO_RESOURCES),
            None => self.services.push(Service { owner: from.lid, until, record: service }),
        }
        Ok(vec![service.to_vec()])
    }

    fn withdraw(&mut self, from: &Origin, mask: u64, query: &[u8]) -> Answer {
        if mask & 0b111 != 0b111 {
            return Err(status::INSUFFICIENT);
        }
        let same = |known: &Service| known.record[..26] == query[..26];
        let at = self.services.iter().position(same).ok_or(status::NO_RECORDS)?;
        if self.services[at].owner != from.lid {
            return Err(status::DENIED);
        }
        Ok(vec![self.services.swap_remove(at).record.to_vec()])
    }

    /// Tells subscribers of a GID.
    pub(super) fn report(&mut self, now: Instant, own: &Own, trap: u16, gid: Gid) {
        let sent = self.reports.report(now, own, trap, gid);
        self.out.extend(sent);
    }

    /// Tells subscribers what a node has said, or would have (IBA 13.4.8.3).
    pub(super) fn relay(&mut self, now: Instant, notice: &[u8; 64], issuer: &Gid) {
        let sent = self.reports.relay(now, notice, issuer);
        self.out.extend(sent);
    }

    /// A port is gone: with it go its memberships, services and subscriptions.
    pub(super) fn forget(&mut self, now: Instant, own: &Own, gid: &Gid, lid: u16) {
        for group in self.groups.values_mut() {
            group.members.retain(|(member, _)| member != gid);
        }
        self.services.retain(|service| service.owner != lid);
        self.reports.forget(lid);
        self.senders.retain(|(to, _), _| *to != lid);
        self.receivers.retain(|(from, _), _| *from != lid);
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

/// What a group has, of what a selector asks for: 0 more than, 1 less, 2 exactly, 3 the most there is. None: it cannot be.
fn chosen(
    selector: u8,
    asked: Option<u8>,
    usual: u8,
    there: std::ops::RangeInclusive<u8>,
) -> Option<u8> {
    let Some(asked) = asked else { return Some(usual) };
    let (least, most) = there.clone().into_inner();
    match selector {
        0 => (asked < most).then_some(most),
        1 => (asked > least).then(|| most.min(asked - 1)),
        EXACTLY => there.contains(&asked).then_some(asked),
        _ => Some(most),
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
