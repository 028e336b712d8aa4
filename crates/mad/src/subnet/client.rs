//! A client of the subnet's administrator (IBA chapter 15), sans-I/O: queries in, MADs for the administrator's QP1 out,
//! its answers in, results out.
//!
//! A query is repeated while nothing comes, after a pause that doubles, and after an answer that says that the
//! administrator is busy, until its time is over. Each repetition is a transaction of its own, of which 32 bits are
//! random, so that who cannot see a query cannot answer it; the first answer to any of them counts.

use std::collections::{HashMap, VecDeque};

use ironverbs_wire::Gid;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::{SUBN_ADM, attribute, be16, header, method};
use crate::Instant;
use crate::rmpp::{Receiver, is_active};

/// The first pause before a query is repeated, and the longest, in nanoseconds.
const PAUSES: (u64, u64) = (50_000_000, 800_000_000);

/// How long the next part of a long answer may take, in nanoseconds.
const PART: u64 = 1_000_000_000;

/// How long a manager that has only begun is asked again for a path that it says there is none of, and how soon, in
/// nanoseconds: of two parts of a subnet that become one it may know its own so far.
const YOUTH: u64 = 500_000_000;
const AGAIN: u64 = 20_000_000;

/// How long the parts of a long answer that is complete are still acknowledged.
const LINGER: u64 = 2_000_000_000;

/// Where the data of the class starts in a MAD, and how much there is.
const DATA: usize = 56;
const ROOM: usize = 256 - DATA;

/// In the status of an answer: the administrator is busy (IBA 13.4.7).
const BUSY: u16 = 1;

/// Which query. Never given out twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(u64);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaQuery {
    /// Get, Set, GetTable or Delete (IBA 15.2.2).
    pub method: u8,
    /// The attribute (IBA 15.2.5).
    pub attribute: u16,
    /// Which components of the record count.
    pub mask: u64,
    /// The record, at most 200 bytes.
    pub record: Vec<u8>,
}

impl SaQuery {
    /// The path from one port to another; `pkey` names a partition that it is to be in.
    pub fn path(source: &Gid, target: &Gid, pkey: Option<u16>) -> SaQuery {
        let mut record = vec![0; 64];
        record[8..24].copy_from_slice(&target.0);
        record[24..40].copy_from_slice(&source.0);
        // Reversible, one.
        record[49] = 0x80 | 1;
        record[50..52].copy_from_slice(&pkey.unwrap_or(0).to_be_bytes());
        let mask = 1 << 2 | 1 << 3 | 1 << 11 | 1 << 12 | u64::from(pkey.is_some()) << 13;
        SaQuery { method: method::GET, attribute: 0x35, mask, record }
    }

    /// The same, by one of the target's LIDs.
    pub fn by_lid(mut self, lid: u16) -> SaQuery {
        if let (0x35, Some(room)) = (self.attribute, self.record.get_mut(40..42)) {
            room.copy_from_slice(&lid.to_be_bytes());
            self.mask |= 1 << 4;
        }
        self
    }

    /// All nodes. (Paths from a port do not tell whom there is: opensm takes the number of paths asked for as that to all
    /// ports together.)
    pub fn nodes() -> SaQuery {
        SaQuery { method: method::GET_TABLE, attribute: 0x11, mask: 0, record: vec![0; 108] }
    }

    /// All multicast groups.
    pub fn groups() -> SaQuery {
        SaQuery { method: method::GET_TABLE, attribute: 0x38, mask: 0, record: vec![0; 52] }
    }

    /// Subscribes to the notices of a trap (IBA 13.4.8.3), or takes it back.
    pub fn inform(trap: u16, subscribe: bool) -> SaQuery {
        let mut record = vec![0; 36];
        // From any LID, generic, of any type, from any producer, to QP1.
        record[16..18].fill(0xff);
        (record[22], record[23]) = (1, u8::from(subscribe));
        record[24..26].fill(0xff);
        record[26..28].copy_from_slice(&trap.to_be_bytes());
        record[30] = 1;
        record[31] = 18;
        record[33..36].fill(0xff);
        SaQuery { method: method::SET, attribute: attribute::INFORM_INFO, mask: 0, record }
    }

    /// Makes a port a member of a group; `join` has the bits of JoinState. Where there is no such group one is made of
    /// this partition and Q_Key, if they are given.
    pub fn join(group: &Gid, port: &Gid, join: u8, makes: Option<(u16, u32)>) -> SaQuery {
        let (pkey, qkey) = makes.unwrap_or((0, 0));
        let mut record = vec![0; 52];
        record[..16].copy_from_slice(&group.0);
        record[16..32].copy_from_slice(&port.0);
        record[32..36].copy_from_slice(&qkey.to_be_bytes());
        record[40..42].copy_from_slice(&pkey.to_be_bytes());
        record[48] = 0x20 | join & 0x0f;
        // MGID, port, JoinState; Q_Key, traffic class, P_Key, SL, flow label.
        let creates =
            if makes.is_some() { 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 } else { 0 };
        let mask = 1 | 1 << 1 | 1 << 16 | creates;
        SaQuery { method: method::SET, attribute: 0x38, mask, record }
    }

    /// Ends what [`SaQuery::join`] began.
    pub fn leave(group: &Gid, port: &Gid, join: u8) -> SaQuery {
        let joined = SaQuery::join(group, port, join, None);
        SaQuery { method: method::DELETE, mask: 1 | 1 << 1 | 1 << 16, ..joined }
    }
}

/// Why there is no answer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SaError {
    /// Nobody has answered in time.
    Silent,
    /// The administrator refuses: the status of its MAD (IBA 13.4.7, table 185).
    Status(u16),
    /// A long answer was broken off.
    Aborted,
}

impl SaError {
    /// Whether it says that there is no such record, or no such GID.
    pub fn is_absent(self) -> bool {
        matches!(self, SaError::Status(0x0300 | 0x0500))
    }
}

/// A path, as the administrator tells it (IBA 15.2.5.16).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SaPath {
    /// Destination.
    pub dgid: Gid,
    /// Source.
    pub sgid: Gid,
    /// LID of the destination.
    pub dlid: u16,
    /// LID of the source.
    pub slid: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// P_Key.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// MTU, as IBA numbers them: 1 (256) to 5 (4096).
    pub mtu: u8,
    /// Rate, as `enum ibv_rate` numbers them.
    pub rate: u8,
    /// Packet life time: 4.096 us * 2^this.
    pub life_time: u8,
}

impl SaPath {
    /// The path in a record; None: it is too short, or leads nowhere.
    pub fn parse(record: &[u8]) -> Option<SaPath> {
        let record: &[u8; 57] = record.first_chunk()?;
        let gid = |at: usize| record.get(at..).and_then(|b| b.first_chunk()).map(|b| Gid(*b));
        let label = u32::from_be_bytes([0, record[44], record[45], record[46]]) & 0xf_ffff;
        let path = SaPath {
            dgid: gid(8)?,
            sgid: gid(24)?,
            dlid: be16(record, 40),
            slid: be16(record, 42),
            hop_limit: record[47],
            flow_label: label,
            traffic_class: record[48],
            pkey: be16(record, 50),
            sl: record[53] & 0x0f,
            mtu: record[54] & 0x3f,
            rate: record[55] & 0x3f,
            life_time: record[56] & 0x3f,
        };
        (path.dlid != 0 && (1..=5).contains(&path.mtu)).then_some(path)
    }
}

/// A member of a multicast group, as the administrator tells it (IBA 15.2.5.17).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SaMember {
    /// The group.
    pub mgid: Gid,
    /// Its LID.
    pub mlid: u16,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its P_Key.
    pub pkey: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Rate, as `enum ibv_rate` numbers them.
    pub rate: u8,
}

impl SaMember {
    /// The member in a record; None: it is too short, or of no group.
    pub fn parse(record: &[u8]) -> Option<SaMember> {
        let record: &[u8; 52] = record.first_chunk()?;
        let word = u32::from_be_bytes([record[44], record[45], record[46], record[47]]);
        let member = SaMember {
            mgid: Gid(*record.first_chunk()?),
            qkey: u32::from_be_bytes(*record.get(32..)?.first_chunk()?),
            mlid: be16(record, 36),
            traffic_class: record[39],
            pkey: be16(record, 40),
            rate: record[42] & 0x3f,
            sl: (word >> 28) as u8,
            flow_label: word >> 8 & 0xf_ffff,
            hop_limit: word as u8,
        };
        (member.mlid >= 0xc000 && member.mlid != 0xffff).then_some(member)
    }
}

/// The GID of the port in a NodeRecord (IBA 15.2.5.2) of the subnet that `own` is of; None: it is too short, or of no port.
pub fn port_gid(own: &Gid, record: &[u8]) -> Option<Gid> {
    let guid = record.get(24..32)?;
    let mut gid = *own;
    gid.0[8..].copy_from_slice(guid);
    (guid != [0; 8]).then_some(gid)
}

/// The trap and the GID of a notice of the administrator's, 64 to 67 (IBA 14.2.5.1); None: the MAD is no such report.
pub fn notice(mad: &Mad) -> Option<(u16, Gid)> {
    let head = header(mad);
    let report =
        (head.class, head.method, head.attribute) == (SUBN_ADM, method::REPORT, attribute::NOTICE);
    let notice = &mad[DATA..];
    let (generic, trap) = (notice[0] & 0x80 != 0, be16(notice, 4));
    let gid = notice.get(16..).and_then(|bytes| bytes.first_chunk()).map(|bytes| Gid(*bytes))?;
    (report && generic && (64..=67).contains(&trap)).then_some((trap, gid))
}

#[derive(Debug)]
struct Open {
    query: SaQuery,
    until: Instant,
    next: Instant,
    pause: u64,
}

/// One transaction of a query.
#[derive(Debug)]
struct Transaction {
    of: QueryId,
    receiver: Receiver,
    /// The answer is complete: only acknowledged until then.
    over: Option<Instant>,
}

impl Open {
    /// Whether it asks for a path, and there is time left then.
    fn asks_path(&self, then: Instant) -> bool {
        (self.query.attribute, self.query.method) == (0x35, method::GET) && then < self.until
    }
}

/// What became of a query: the records, or why there are none.
pub type SaResult = Result<Vec<Vec<u8>>, SaError>;

/// Asks the administrator. Whoever owns it sends its MADs, with the transaction IDs' upper halves as it likes.
#[derive(Debug)]
pub struct SaClient {
    random: u64,
    count: u64,
    open: HashMap<QueryId, Open>,
    transactions: HashMap<u32, Transaction>,
    out: VecDeque<Mad>,
    events: VecDeque<(QueryId, SaResult)>,
    /// Until when a manager may not know all yet.
    young: Instant,
}

impl SaClient {
    /// A client; `seed` decides what must not be guessed.
    pub fn new(seed: u128) -> SaClient {
        SaClient {
            random: (seed >> 64) as u64 ^ seed as u64,
            count: 0,
            open: HashMap::new(),
            transactions: HashMap::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            young: Instant(0),
        }
    }

    /// Asks, for at most `time` nanoseconds. Ends in one event.
    pub fn query(&mut self, now: Instant, query: SaQuery, time: u64) -> QueryId {
        self.count += 1;
        let id = QueryId(self.count);
        let open = Open { query, until: now.after(time), next: now, pause: PAUSES.0 };
        self.open.insert(id, open);
        self.send(now, id);
        id
    }

    /// Ends a query without an event.
    pub fn cancel(&mut self, id: QueryId) {
        self.open.remove(&id);
        self.transactions.retain(|_, transaction| transaction.of != id);
    }

    /// Another manager has the subnet, or the first: what waits is asked at once.
    pub fn ask_anew(&mut self, now: Instant) {
        self.young = now.after(YOUTH);
        let ids: Vec<QueryId> = self.open.keys().copied().collect();
        for id in ids {
            if let Some(open) = self.open.get_mut(&id) {
                open.pause = PAUSES.0;
            }
            self.send(now, id);
        }
    }

    /// Queries under way.
    pub fn pending(&self) -> usize {
        self.open.len()
    }

    fn number(&mut self) -> u32 {
        loop {
            // splitmix64.
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.random;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let number = (z ^ z >> 31) as u32;
            if number != 0 && !self.transactions.contains_key(&number) {
                return number;
            }
        }
    }

    fn send(&mut self, now: Instant, id: QueryId) {
        let number = self.number();
        let Some(open) = self.open.get_mut(&id) else { return };
        open.next = now.after(open.pause).min(open.until);
        open.pause = (open.pause * 2).min(PAUSES.1);
        let SaQuery { method, attribute, mask, record } = &open.query;
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: SUBN_ADM,
            class_version: 2,
            method: *method,
            tid: number.into(),
            attribute: *attribute,
            ..MadHeader::default()
        };
        let mut mad: Mad = [0; 256];
        mad[..24].copy_from_slice(&header.emit());
        mad[48..56].copy_from_slice(&mask.to_be_bytes());
        for (to, from) in mad[DATA..].iter_mut().zip(record) {
            *to = *from;
        }
        self.out.push_back(mad);
        let transaction = Transaction { of: id, receiver: Receiver::new(), over: None };
        self.transactions.insert(number, transaction);
    }

    /// A MAD from the administrator's port. Whether it was an answer to a query of ours.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        let answer = header(mad);
        let Some(transaction) = self.transactions.get_mut(&(answer.tid as u32)) else {
            return false;
        };
        let id = transaction.of;
        if answer.class != SUBN_ADM || answer.method & method::RESPONSE == 0 {
            return false;
        }
        if let Some(open) = self.open.get(&id)
            && open.query.attribute != answer.attribute
        {
            return false;
        }
        if is_active(mad) {
            let step = transaction.receiver.handle(mad);
            self.out.extend(step.reply);
            if step.failed {
                self.finish(id, Err(SaError::Aborted));
            } else if let Some(whole) = step.done {
                transaction.over = Some(now.after(LINGER));
                let size = usize::from(whole.get(44..46).map_or(0, |b| be16(b, 0))) * 8;
                let status = be16(&whole, 4) & 0x7fff;
                let data = whole.get(DATA..).unwrap_or_default();
                let records = match size {
                    0 => Vec::new(),
                    size => data.chunks_exact(size).map(<[u8]>::to_vec).collect(),
                };
                let result = if status == 0 { Ok(records) } else { Err(SaError::Status(status)) };
                self.finish(id, result);
            } else if let Some(open) = self.open.get_mut(&id) {
                open.next = now.after(PART).min(open.until);
            }
            return true;
        }
        match answer.status & 0x7fff {
            0 => {
                let record = mad.get(DATA..DATA + ROOM).unwrap_or_default().to_vec();
                // A table without records comes in one MAD, whose records have no length.
                let none =
                    answer.method & !method::RESPONSE == method::GET_TABLE && be16(mad, 44) == 0;
                self.finish(id, Ok(if none { Vec::new() } else { vec![record] }));
            }
            // It is asked again when its pause is over.
            status if status & BUSY != 0 => {}
            status => {
                let error = SaError::Status(status);
                let again = now.after(AGAIN);
                let soon = error.is_absent() && again < self.young;
                match self.open.get_mut(&id).filter(|open| soon && open.asks_path(again)) {
                    Some(open) => open.next = again,
                    None => self.finish(id, Err(error)),
                }
            }
        }
        true
    }

    fn finish(&mut self, id: QueryId, result: SaResult) {
        if self.open.remove(&id).is_some() {
            self.events.push_back((id, result));
        }
        self.transactions.retain(|_, t| t.of != id || t.over.is_some());
    }

    /// Time has come to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.transactions.retain(|_, t| t.over.is_none_or(|over| over > now));
        let due = |open: &Open| open.next <= now || open.until <= now;
        let ids: Vec<QueryId> =
            self.open.iter().filter(|(_, open)| due(open)).map(|(id, _)| *id).collect();
        for id in ids {
            match self.open.get(&id).is_some_and(|open| open.until <= now) {
                true => self.finish(id, Err(SaError::Silent)),
                false => self.send(now, id),
            }
        }
    }

    /// A MAD to send to QP1 of the administrator's port.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.out.pop_front()
    }

    /// What became of a query: the records, or why there are none.
    pub fn poll_event(&mut self) -> Option<(QueryId, SaResult)> {
        self.events.pop_front()
    }

    /// When [`SaClient::handle_timeout`] is to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let open = self.open.values().map(|open| open.next.min(open.until));
        let over = self.transactions.values().filter_map(|transaction| transaction.over);
        open.chain(over).min()
    }
}
