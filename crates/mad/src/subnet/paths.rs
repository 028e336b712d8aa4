//! Path records (IBA 15.2.5.16).

use super::admin::{Answer, LIFE, MOST_RECORDS, RATE, gid_at, status};
use super::be16;
use super::db::{Db, Node, NodeKind};

/// Component bits of PathRecord.
mod path {
    pub(super) const DGID: u64 = 1 << 2;
    pub(super) const SGID: u64 = 1 << 3;
    pub(super) const DLID: u64 = 1 << 4;
    pub(super) const SLID: u64 = 1 << 5;
    pub(super) const PKEY: u64 = 1 << 13;
    pub(super) const SL: u64 = 1 << 15;
    pub(super) const MTU_SELECTOR: u64 = 1 << 16;
    pub(super) const MTU: u64 = 1 << 17;
    pub(super) const RATE_SELECTOR: u64 = 1 << 18;
    pub(super) const RATE: u64 = 1 << 19;
}

/// Whether a value is one that a selector asks for: 0 greater, 1 less, 2 exactly, 3 the largest there is.
fn selected(selector: u8, asked: u8, value: u8) -> bool {
    match selector {
        0 => value > asked,
        1 => value < asked,
        2 => value == asked,
        _ => true,
    }
}

pub(super) fn paths(db: &Db, mask: u64, query: &[u8]) -> Answer {
    let ends = |by_gid: u64, gid_place: usize, by_lid: u64, lid_place: usize| {
        let node = match (mask & by_gid != 0, mask & by_lid != 0) {
            (false, false) => {
                let ends = db.nodes.values().filter(|node| node.kind() != NodeKind::Other);
                return Ok(ends.collect::<Vec<_>>());
            }
            (true, _) => db.of_gid(&gid_at(query, gid_place)).ok_or(status::INVALID_GID)?,
            (false, true) => db.of_lid(be16(query, lid_place)).ok_or(status::NO_RECORDS)?,
        };
        let lid_fits = mask & by_lid == 0
            || db.of_lid(be16(query, lid_place)).is_some_and(|n| n.guid() == node.guid());
        if lid_fits { Ok(vec![node]) } else { Err(status::NO_RECORDS) }
    };
    let targets = ends(path::DGID, 8, path::DLID, 40)?;
    let sources = ends(path::SGID, 24, path::SLID, 42)?;
    let mut found = Vec::new();
    for source in &sources {
        for target in &targets {
            if found.len() >= MOST_RECORDS {
                return Err(status::NO_RESOURCES);
            }
            found.extend(path_between(source, target, mask, query));
        }
    }
    Ok(found)
}

/// Where MultiPathRecord (IBA 15.2.5.20) has what PathRecord has, too: component bits of both.
const ALIKE: [(u64, u64); 6] = [
    (1 << 7, path::PKEY),
    (1 << 9, path::SL),
    (1 << 10, path::MTU_SELECTOR),
    (1 << 11, path::MTU),
    (1 << 12, path::RATE_SELECTOR),
    (1 << 13, path::RATE),
];
const SGID_COUNT: u64 = 1 << 19;
const DGID_COUNT: u64 = 1 << 20;
const GIDS: usize = 24;

/// Paths from each of several GIDs to each of several.
pub(super) fn multi_paths(db: &Db, mask: u64, query: &[u8]) -> Answer {
    if mask & (SGID_COUNT | DGID_COUNT) != SGID_COUNT | DGID_COUNT || query.len() < GIDS {
        return Err(status::INSUFFICIENT);
    }
    let (from, to) = (usize::from(query[15]), usize::from(query[16]));
    if from == 0 || to == 0 || query.len() < GIDS + 16 * (from + to) {
        return Err(status::INVALID);
    }
    let mut one = [0; 64];
    // P_Key, SL, MTU, rate.
    one[50..56].copy_from_slice(&query[6..12]);
    let alike = ALIKE.iter().filter(|(multi, _)| mask & multi != 0);
    let mask = alike.fold(0, |mask, (_, bit)| mask | bit);
    let node = |at| db.of_gid(&gid_at(query, GIDS + 16 * at)).ok_or(status::INVALID_GID);
    let mut found = Vec::new();
    for source in 0..from {
        for target in from..from + to {
            found.extend(path_between(node(source)?, node(target)?, mask, &one));
        }
    }
    Ok(found)
}

fn path_between(source: &Node, target: &Node, mask: u64, query: &[u8]) -> Option<Vec<u8>> {
    let pkey = shared_pkey(source, target, (mask & path::PKEY != 0).then(|| be16(query, 50)))?;
    let mtu = source.mtu().min(target.mtu());
    let selector = |bit: u64, at: usize| if mask & bit != 0 { query[at] >> 6 } else { 2 };
    let fits = |of: u64, select: u64, at: usize, value| {
        mask & of == 0 || selected(selector(select, at), query[at] & 0x3f, value)
    };
    let level = if mask & path::SL != 0 { query[53] & 0x0f } else { 0 };
    let wanted = fits(path::MTU, path::MTU_SELECTOR, 54, mtu)
        && fits(path::RATE, path::RATE_SELECTOR, 55, RATE)
        && level == 0;
    if !wanted || source.lid() == 0 || target.lid() == 0 {
        return None;
    }
    let lid = |node: &Node, asked: u64, at: usize| {
        if mask & asked != 0 { be16(query, at) } else { node.lid() }
    };
    let mut record = vec![0; 64];
    record[8..24].copy_from_slice(&target.gid().0);
    record[24..40].copy_from_slice(&source.gid().0);
    record[40..42].copy_from_slice(&lid(target, path::DLID, 40).to_be_bytes());
    record[42..44].copy_from_slice(&lid(source, path::SLID, 42).to_be_bytes());
    // Reversible, one path.
    record[49] = 0x80 | 1;
    record[50..52].copy_from_slice(&pkey.to_be_bytes());
    record[54] = 2 << 6 | mtu;
    record[55] = 2 << 6 | RATE;
    record[56] = 2 << 6 | LIFE;
    Some(record)
}

/// A partition that both are in, one of them at least as a full member.
fn shared_pkey(source: &Node, target: &Node, asked: Option<u16>) -> Option<u16> {
    let keys = |node: &Node| -> Vec<u16> {
        let table = node.pkeys.as_ref().map_or(&[0xff, 0xff][..], |table| table.as_slice());
        let keys = table.as_chunks::<2>().0.iter().map(|key| u16::from_be_bytes(*key));
        keys.filter(|key| key & 0x7fff != 0).collect()
    };
    let (own, theirs) = (keys(source), keys(target));
    let alike = |a: u16, b: u16| a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0;
    let asked_for = |key: &u16| asked.is_none_or(|asked| asked & 0x7fff == key & 0x7fff);
    own.into_iter().filter(asked_for).find(|key| theirs.iter().any(|other| alike(*key, *other)))
}
