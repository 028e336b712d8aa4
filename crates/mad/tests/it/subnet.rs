//! The subnet manager and administrator.

use ironverbs_mad::Instant;
use ironverbs_mad::rmpp::{Receiver, Sender, is_active};
use ironverbs_mad::subnet::{NodeKind, Origin, Role, SmConfig, SubnetManager};
use ironverbs_wire::mad::{Mad, MadHeader};

use crate::fabric::Fabric;
use crate::support::{Rng, SECOND};

const GET: u8 = 1;
const SET: u8 = 2;
const GET_TABLE: u8 = 0x12;
const GET_MULTI: u8 = 0x14;
const DELETE: u8 = 0x15;

fn query(method: u8, attribute: u16, mask: u64, data: &[u8]) -> Mad {
    let header = MadHeader {
        base_version: 1,
        class: 3,
        class_version: 2,
        method,
        tid: 0x77,
        attribute,
        ..MadHeader::default()
    };
    let mut mad = [0; 256];
    mad[..24].copy_from_slice(&header.emit());
    mad[48..56].copy_from_slice(&mask.to_be_bytes());
    mad[56..56 + data.len()].copy_from_slice(data);
    mad
}

/// Asks the administrator at `sm` from `node`: status, records.
fn ask(fabric: &mut Fabric, node: usize, sm: usize, mad: &Mad) -> (u16, Vec<Vec<u8>>) {
    fabric.received.clear();
    fabric.ask(node, sm, mad);
    let mut receiver = Receiver::new();
    loop {
        let answers = std::mem::take(&mut fabric.received);
        assert!(!answers.is_empty(), "no answer");
        for (to, answer) in answers {
            assert_eq!((to, answer[3]), (node, mad[3] | 0x80));
            let status = u16::from_be_bytes([answer[4], answer[5]]);
            let size = usize::from(u16::from_be_bytes([answer[44], answer[45]])) * 8;
            if !is_active(&answer) {
                let one = answer[56..].to_vec();
                return (status, if status == 0 { vec![one] } else { Vec::new() });
            }
            let step = receiver.handle(&answer);
            if let Some(reply) = step.reply {
                fabric.ask(node, sm, &reply);
            }
            if let Some(done) = step.done {
                let data = &done[56..];
                let records = if size == 0 {
                    Vec::new()
                } else {
                    data.chunks(size).map(<[u8]>::to_vec).collect()
                };
                return (status, records);
            }
        }
    }
}

fn managed(adapters: usize) -> Fabric {
    let mut fabric = Fabric::new(adapters, 8, 1);
    fabric.manage(0, 3);
    fabric.run(3 * SECOND);
    assert_eq!(fabric.managers[&0].role(), Role::Master);
    fabric
}

#[test]
fn every_port_has_a_lid_and_becomes_active() {
    for loss in [0, 10] {
        for seed in 0..20 {
            let mut fabric = Fabric::new(20, 8, seed);
            fabric.loss = loss;
            fabric.manage(3, 0);
            fabric.run(20 * SECOND);
            fabric.loss = 0;
            fabric.run(5 * SECOND);
            let mut lids: Vec<u16> = (0..fabric.nodes.len()).map(|n| fabric.lid(n)).collect();
            let sm = fabric.lid(3).to_be_bytes();
            lids.sort_unstable();
            lids.dedup();
            assert_eq!((lids.len(), lids[0] > 0), (fabric.nodes.len(), true), "seed {seed}");
            for (n, node) in fabric.nodes.iter().enumerate() {
                for (port, info) in node.ports.iter().enumerate() {
                    // A cable is up, or there is none.
                    assert!(matches!(info[32] & 0x0f, 1 | 4), "seed {seed} node {n} port {port}");
                }
            }
            for node in fabric.nodes.iter().take(20) {
                assert_eq!(node.ports[1][18..20], sm);
            }
            let manager = &fabric.managers[&3];
            let switches = manager.nodes().filter(|node| node.kind() == NodeKind::Switch);
            assert_eq!((manager.nodes().count(), switches.count()), (24, 4), "seed {seed}");
        }
    }
}

#[test]
fn what_ports_have_already_is_kept() {
    let mut fabric = managed(5);
    let before: Vec<u16> = (0..6).map(|n| fabric.lid(n)).collect();
    fabric.manage(4, 9);
    fabric.managers.remove(&0);
    fabric.run(10 * SECOND);
    assert_eq!(fabric.managers[&4].role(), Role::Master);
    assert_eq!((0..6).map(|n| fabric.lid(n)).collect::<Vec<_>>(), before);
}

#[test]
fn one_master_by_priority_and_guid_and_a_heir_when_it_dies() {
    for seed in 0..20 {
        let mut fabric = Fabric::new(9, 8, seed);
        let mut rng = Rng(seed);
        // 2 and 5 have the same priority: the lower GUID wins.
        for (node, priority) in [(8, 1), (5, 4), (2, 4)] {
            fabric.manage(node, priority);
            fabric.run(rng.below(3 * SECOND));
        }
        fabric.run(15 * SECOND);
        let roles = |fabric: &Fabric| -> Vec<(usize, Role)> {
            fabric.managers.iter().map(|(node, manager)| (*node, manager.role())).collect()
        };
        let (master, standby) = (Role::Master, Role::Standby);
        assert_eq!(roles(&fabric), [(2, master), (5, standby), (8, standby)], "seed {seed}");
        fabric.kill(2);
        fabric.run(10 * SECOND);
        assert_eq!(roles(&fabric), [(5, master), (8, standby)], "seed {seed}");
        let sm = fabric.lid(5).to_be_bytes();
        assert_eq!(fabric.nodes[0].ports[1][18..20], sm);
        fabric.revive(2);
        fabric.manage(2, 4);
        fabric.run(15 * SECOND);
        assert_eq!(roles(&fabric), [(2, master), (5, standby), (8, standby)], "seed {seed}");
    }
}

/// Whether a MAD is a Set or Get of SMInfo with that modifier.
fn is_sm_info(mad: &Mad, method: u8, modifier: u8) -> bool {
    (mad[3], mad[17], mad[23]) == (method, 0x20, modifier)
}

#[test]
fn who_has_handed_over_is_master_no_more() {
    // The heir answers and does not acknowledge, as opensm.
    let mut fabric = managed(5);
    fabric.drops = Some(|mad| is_sm_info(mad, SET, 2));
    fabric.manage(3, 9);
    fabric.run(5 * SECOND);
    let roles = |fabric: &Fabric| [0, 3].map(|node| fabric.managers[&node].role());
    assert_eq!(roles(&fabric), [Role::Standby, Role::Master]);
    assert_eq!(fabric.managers[&0].master_lid(), Some(fabric.lid(3)));
    // The answer is lost as well: the better of two masters is told that it is.
    let mut fabric = managed(5);
    fabric.drops = Some(|mad| is_sm_info(mad, SET, 2) || is_sm_info(mad, 0x81, 1));
    fabric.manage(3, 9);
    fabric.run(8 * SECOND);
    assert_eq!(roles(&fabric), [Role::Standby, Role::Master]);
}

#[test]
fn who_asks_before_it_is_known_is_answered_when_it_is() {
    let mut fabric = managed(6);
    fabric.kill(3);
    fabric.run(5 * SECOND);
    fabric.revive(3);
    fabric.received.clear();
    let asked = query(GET, 0x01, 0, &[]);
    fabric.ask(3, 0, &asked);
    // The walk is begun by the question: the next would be a second later.
    fabric.run(SECOND / 10);
    let answers = std::mem::take(&mut fabric.received);
    let [(to, answer)] = answers.as_slice() else { panic!("{} answers", answers.len()) };
    assert_eq!((*to, answer[3], &answer[4..6]), (3, 0x81, &[0, 0][..]));
}

#[test]
fn who_comes_again_behind_a_walk_keeps_what_it_asked_for() {
    let mut fabric = managed(12);
    fabric.kill(5);
    // A walk begins that does not find it; an answer that it waits for keeps it from ending.
    fabric.drops = Some(|mad| mad[1] == 0x81 && mad[17] == 0x16);
    fabric.run(SECOND / 20);
    let now = fabric.now;
    fabric.managers.get_mut(&0).unwrap().topology_changed(now);
    fabric.run(SECOND / 20);
    fabric.revive(5);
    fabric.received.clear();
    let mut inform = vec![0; 36];
    inform[22..24].copy_from_slice(&[1, 1]);
    inform[24..28].fill(0xff);
    assert_eq!(ask_from(&mut fabric, 5, &query(SET, 0x03, 0, &inform)).0, 0);
    fabric.drops = None;
    fabric.run(3 * SECOND);
    // It is subscribed.
    fabric.kill(7);
    fabric.run(3 * SECOND);
    let gone = |(node, mad): &(usize, Mad)| *node == 5 && (mad[3], mad[61]) == (6, 65);
    assert!(fabric.received.iter().any(gone));
}

#[test]
fn who_has_just_come_is_no_heir_but_takes_the_place_of_a_master_that_dies() {
    for seed in 0..20 {
        let mut fabric = Fabric::new(9, 8, seed);
        let mut rng = Rng(seed);
        let youth = 10 * SECOND;
        fabric.manage(5, 1);
        fabric.run(5 * SECOND);
        let config = SmConfig { priority: 9, youth, ..SmConfig::new(fabric.nodes[2].guid + 1) };
        fabric.manage_as(2, config);
        fabric.run(rng.below(9 * SECOND));
        assert_eq!(fabric.managers[&5].role(), Role::Master, "seed {seed}");
        if seed % 2 == 0 {
            fabric.kill(5);
        }
        fabric.run(15 * SECOND);
        assert_eq!(fabric.managers[&2].role(), Role::Master, "seed {seed}");
    }
}

#[test]
fn records_by_component() {
    let mut fabric = managed(12);
    let (status, nodes) = ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x11, 0, &[]));
    assert_eq!((status, nodes.len()), (0, 14));
    let lid = fabric.lid(7).to_be_bytes();
    let (status, node) = ask(&mut fabric, 1, 0, &query(GET, 0x11, 1, &lid));
    assert_eq!((status, &node[0][..2]), (0, &lid[..]));
    assert_eq!(node[0][16..24], fabric.nodes[7].guid.to_be_bytes());
    // Adapters alone: bit 4 is the kind.
    let mut kind = [0; 8];
    kind[6] = 1;
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x11, 1 << 4, &kind)).1.len(), 12);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x11, 1 << 4, &kind)).0, 0x0400);
    let (status, ports) = ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x12, 1, &lid));
    assert_eq!((status, ports.len(), ports[0][2]), (0, 1, 1));
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x20, 0, &[])).1.len(), 26);
    assert_eq!(
        ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x33, 1, &lid)).1[0][8..12],
        [0xff, 0xff, 0x12, 0x34]
    );
    // Ports with some capabilities, whatever others they have: who is a manager's.
    fabric.nodes[7].ports[1][20] = 0x12;
    fabric.run(2 * SECOND);
    let mut able = [0; 28];
    able[24] = 0x10;
    let mut mad = query(GET_TABLE, 0x12, 1 << 7, &able);
    assert_eq!(ask(&mut fabric, 1, 0, &mad).1.len(), 0);
    mad[20] = 0x80;
    assert_eq!(ask(&mut fabric, 1, 0, &mad).1.len(), 1);
    let (_, sm) = ask(&mut fabric, 1, 0, &query(GET, 0x18, 0, &[]));
    assert_eq!(
        (sm[0][..2].to_vec(), sm[0][24]),
        (fabric.lid(0).to_be_bytes().to_vec(), 3 << 4 | 3)
    );
    assert_eq!(sm[0][12..20], [0; 8], "the SM_Key is nobody's business");
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x01, 0, &[])).0, 0);
}

#[test]
fn tables_of_nodes() {
    let mut fabric = managed(9);
    // For each its kind of node: records, and what is in one of them behind its names.
    let (adapters, switches) = (9, 2);
    for (attribute, count, at, value) in [
        (0x30, adapters + switches, 11, 0),
        // Each port of a switch with each, and four blocks of each port: of all virtual lanes there is one.
        (0x13, adapters + 9 * 9 * switches, 8, 0),
        (0x36, 4 * (adapters + 9 * switches), 8, 0),
        (0x15, 3 * switches, 8, 0),
        (0x17, switches, 9, 6),
    ] {
        let (status, all) = ask(&mut fabric, 1, 0, &query(GET_TABLE, attribute, 0, &[]));
        assert_eq!((status, all.len()), (0, count), "{attribute:#x}");
        assert_eq!(all[0][at], value, "{attribute:#x}");
    }
    // A block of a switch, by LID and number; a port's GUIDs.
    let switch = fabric.lid(9).to_be_bytes();
    let block = [switch[0], switch[1], 0, 2];
    let (status, of) = ask(&mut fabric, 1, 0, &query(GET, 0x15, 0b11, &block));
    assert_eq!((status, of[0][8]), (0, 2));
    let block = [switch[0], switch[1], 0, 3];
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x15, 0b11, &block)).0, 0x0300);
    let lid = fabric.lid(4).to_be_bytes();
    let (_, guids) = ask(&mut fabric, 1, 0, &query(GET, 0x30, 1, &lid));
    assert_eq!(guids[0][8..16], (fabric.nodes[4].guid + 1).to_be_bytes());
    // They are asked for once.
    let before = fabric.managers[&0].counters();
    fabric.run(2 * SECOND);
    let after = fabric.managers[&0].counters();
    let each = (after.packets - before.packets) / (after.sweeps - before.sweeps);
    assert!(each < 80, "{each} packets a walk, without tables");
}

/// A MultiPathRecord of those GIDs.
fn multi_path(fabric: &Fabric, from: &[usize], to: &[usize]) -> Vec<u8> {
    let mut record = vec![0; 24];
    (record[5], record[15], record[16]) = (0x81, from.len() as u8, to.len() as u8);
    for node in from.iter().chain(to) {
        record.extend_from_slice(&fabric.gid(*node));
    }
    record
}

const COUNTS: u64 = 1 << 19 | 1 << 20;

#[test]
fn paths_between_several_gids() {
    let mut fabric = managed(40);
    let record = multi_path(&fabric, &[1, 2], &[3, 4, 5]);
    let (status, paths) = ask(&mut fabric, 1, 0, &query(GET_MULTI, 0x3a, COUNTS, &record));
    assert_eq!((status, paths.len()), (0, 6));
    assert_eq!((&paths[5][8..24], &paths[5][24..40]), (&fabric.gid(5)[..], &fabric.gid(2)[..]));
    // The partition that all are in, and one that nobody is in.
    for (pkey, expected) in [(0xffff_u16, 6), (0x4321, 0)] {
        let mut record = record.clone();
        record[6..8].copy_from_slice(&pkey.to_be_bytes());
        let mad = query(GET_MULTI, 0x3a, COUNTS | 1 << 7, &record);
        let (status, paths) = ask(&mut fabric, 1, 0, &mad);
        assert_eq!((status, paths.len()), (0, expected), "{pkey:#x}");
    }
    let mad = query(GET_MULTI, 0x3a, 1 << 19, &record);
    assert_eq!(ask(&mut fabric, 1, 0, &mad).0, 0x0600);
    let mut unknown = record.clone();
    unknown[30] = 9;
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_MULTI, 0x3a, COUNTS, &unknown)).0, 0x0500);
    // More GIDs than there are.
    let mut short = record.clone();
    short[16] = 200;
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_MULTI, 0x3a, COUNTS, &short)).0, 0x0200);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x3a, COUNTS, &record)).0, 3 << 2);
}

#[test]
fn a_request_of_several_segments() {
    let mut fabric = managed(40);
    let all: Vec<usize> = (0..40).collect();
    let record = multi_path(&fabric, &[1, 2], &all);
    let head = query(GET_MULTI, 0x3a, COUNTS, &[]);
    let mut sender = Sender::new(&head, record);
    fabric.received.clear();
    let mut receiver = Receiver::new();
    for _ in 0..100 {
        while let Some(segment) = sender.poll_transmit(fabric.now) {
            fabric.ask(1, 0, &segment);
        }
        for (_, mad) in std::mem::take(&mut fabric.received) {
            if mad[25] == 2 {
                sender.handle(fabric.now, &mad);
                continue;
            }
            let step = receiver.handle(&mad);
            if let Some(reply) = step.reply {
                fabric.ask(1, 0, &reply);
            }
            if let Some(done) = step.done {
                assert!(sender.is_done());
                assert_eq!((done[3], done.len()), (0x94, 56 + 80 * 64));
                return;
            }
        }
    }
    panic!("no answer");
}

#[test]
fn paths_by_gid_and_lid() {
    let mut fabric = managed(9);
    let mut asked = vec![0; 64];
    asked[8..24].copy_from_slice(&fabric.gid(5));
    asked[24..40].copy_from_slice(&fabric.gid(1));
    let (status, path) = ask(&mut fabric, 1, 0, &query(GET, 0x35, 0b1100, &asked));
    assert_eq!(status, 0);
    assert_eq!(path[0][40..42], fabric.lid(5).to_be_bytes());
    assert_eq!(path[0][42..44], fabric.lid(1).to_be_bytes());
    assert_eq!((path[0][50..52].to_vec(), path[0][54]), (vec![0xff, 0xff], 2 << 6 | 5));
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x35, 0b1000, &asked)).1.len(), 11);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x35, 0, &[])).1.len(), 121);
    // A GID that nobody has, a partition that is not shared, an MTU beyond what there is.
    let mut unknown = asked.clone();
    unknown[23] ^= 0x0f;
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x35, 0b1100, &unknown)).0, 0x0500);
    let mut partition = asked.clone();
    partition[50..52].copy_from_slice(&[0x85, 0x55]);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x35, 0b1100 | 1 << 13, &partition)).0, 0x0300);
    // In 0x1234 both are limited members.
    partition[50..52].copy_from_slice(&[0x12, 0x34]);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x35, 0b1100 | 1 << 13, &partition)).0, 0x0300);
    let mut large = asked;
    large[54] = 5;
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x35, 0b1100 | 3 << 16, &large)).0, 0x0300);
}

fn membership(fabric: &Fabric, node: usize, group: u8) -> Vec<u8> {
    let mut record = vec![0; 52];
    record[..2].copy_from_slice(&[0xff, 0x12]);
    record[15] = group;
    record[16..32].copy_from_slice(&fabric.gid(node));
    record[32..36].copy_from_slice(&0x8001_0000_u32.to_be_bytes());
    record[40..42].copy_from_slice(&[0xff, 0xff]);
    record[48] = 1;
    record
}

const CREATE: u64 = 1 | 2 | 1 << 16 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;
const JOIN: u64 = 1 | 2 | 1 << 16;

#[test]
fn groups_subscriptions_and_notices() {
    let mut fabric = managed(6);
    let mut inform = vec![0; 36];
    inform[22..24].copy_from_slice(&[1, 1]);
    inform[24..28].fill(0xff);
    assert_eq!(ask(&mut fabric, 4, 0, &query(SET, 0x03, 0, &inform)).0, 0);
    fabric.received.clear();
    let notice = |fabric: &mut Fabric, trap: u16| {
        let of = |mad: &Mad| (mad[3], mad[17]) == (6, 2) && mad[60..62] == trap.to_be_bytes();
        let found = fabric.received.iter().position(|(node, mad)| *node == 4 && of(mad));
        fabric.received.remove(found.unwrap_or_else(|| panic!("no notice {trap}"))).1
    };

    let record = membership(&fabric, 1, 7);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x38, JOIN, &record)).0, 0x0600);
    // No port has such a rate; fewer bytes than the least.
    let mut wrong = record.clone();
    (wrong[38], wrong[42]) = (1 << 6 | 1, 2 << 6 | 0x3f);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x38, CREATE | 3 << 8, &wrong)).0, 0x0200);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x38, CREATE | 3 << 4, &wrong)).0, 0x0200);
    let (status, joined) = ask_from(&mut fabric, 1, &query(SET, 0x38, CREATE, &record));
    assert_eq!(status, 0);
    let mlid = u16::from_be_bytes([joined[36], joined[37]]);
    assert!(mlid >= 0xc000);
    assert_eq!(notice(&mut fabric, 66)[72..88], record[..16]);
    // Nobody joins for another, and not with another Q_Key; then the second is in.
    let other = membership(&fabric, 2, 7);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x38, JOIN, &other)).0, 0x0700);
    let mut wrong = other.clone();
    wrong[35] = 1;
    assert_eq!(ask_from(&mut fabric, 2, &query(SET, 0x38, JOIN | 1 << 2, &wrong)).0, 0x0200);
    assert_eq!(ask_from(&mut fabric, 2, &query(SET, 0x38, JOIN, &other)).0, 0);
    assert_eq!(ask_from(&mut fabric, 1, &query(DELETE, 0x38, JOIN, &other)).0, 0x0700);
    assert_eq!(ask_from(&mut fabric, 1, &query(DELETE, 0x38, JOIN, &record)).0, 0);
    // The group ends with its last member, that one with its node.
    fabric.kill(2);
    let gid = fabric.gid(2);
    fabric.run(5 * SECOND);
    assert_eq!(notice(&mut fabric, 65)[72..88], gid);
    // The switch's port went down with it.
    let switch = fabric.lid(6).to_be_bytes();
    assert_eq!(notice(&mut fabric, 128)[66..68], switch);
    assert_eq!(notice(&mut fabric, 67)[72..88], record[..16]);
    fabric.revive(2);
    fabric.run(5 * SECOND);
    assert_eq!(notice(&mut fabric, 64)[72..88], gid);
    // A port's own changes: a bit of its capabilities, which another manager's coming is, too.
    fabric.nodes[3].ports[1][20] = 0x12;
    fabric.run(2 * SECOND);
    let told = notice(&mut fabric, 144);
    assert_eq!((&told[68..70], told[72]), (&fabric.lid(3).to_be_bytes()[..], 0x12));
    // Taken back.
    inform[23] = 0;
    assert_eq!(ask_from(&mut fabric, 4, &query(SET, 0x03, 0, &inform)).0, 0);
    assert_eq!(ask_from(&mut fabric, 4, &query(SET, 0x03, 0, &inform)).0, 0x0200);
    fabric.received.clear();
    fabric.kill(2);
    fabric.run(5 * SECOND);
    assert!(fabric.received.is_empty());
}

#[test]
fn groups_that_are_not_named() {
    let mut fabric = managed(3);
    let mut unnamed = membership(&fabric, 1, 0);
    unnamed[..16].fill(0);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x38, JOIN, &unnamed)).0, 0x0600);
    let make = query(SET, 0x38, CREATE, &unnamed);
    let (one, two) = (ask_from(&mut fabric, 1, &make), ask_from(&mut fabric, 1, &make));
    assert_eq!((one.0, &one.1[..4]), (0, &[0xff, 0x12, 0xa0, 0x1b][..]));
    assert_ne!(one.1[..16], two.1[..16]);
    for (_, named) in [one, two] {
        assert_eq!(ask_from(&mut fabric, 1, &query(DELETE, 0x38, JOIN, &named[..52])).0, 0);
    }
}

#[test]
fn services_end_with_their_lease() {
    let mut fabric = managed(3);
    let mut service = vec![0; 176];
    (service[7], service[24], service[25], service[31]) = (9, 0xff, 0xff, 5);
    service[8..24].copy_from_slice(&fabric.gid(1));
    service[48] = b's';
    let offer = query(SET, 0x31, 0b111 | 1 << 4, &service);
    assert_eq!(ask_from(&mut fabric, 1, &offer).0, 0);
    // By name, whose component is the seventh; nobody else takes it over.
    let asked = query(GET, 0x31, 1 << 6, &service);
    assert_eq!(ask_from(&mut fabric, 2, &asked).0, 0);
    let other = query(DELETE, 0x31, 0b111, &service);
    assert_eq!(ask_from(&mut fabric, 2, &other).0, 0x0700);
    fabric.run(4 * SECOND);
    assert_eq!(ask_from(&mut fabric, 2, &asked).0, 0);
    fabric.run(2 * SECOND);
    assert_eq!(ask_from(&mut fabric, 2, &asked).0, 0x0300);
    // Without end.
    service[28..32].fill(0xff);
    assert_eq!(ask_from(&mut fabric, 1, &query(SET, 0x31, 0b111 | 1 << 4, &service)).0, 0);
    fabric.run(9 * SECOND);
    assert_eq!(ask_from(&mut fabric, 1, &other).0, 0);
}

/// As [`ask`] for one record, leaving notices where they are.
fn ask_from(fabric: &mut Fabric, node: usize, mad: &Mad) -> (u16, Vec<u8>) {
    fabric.ask(node, 0, mad);
    let answer = |(to, answer): &(usize, Mad)| *to == node && answer[3] & 0x80 != 0;
    let at = fabric.received.iter().position(answer).expect("an answer");
    let (_, answer) = fabric.received.remove(at);
    (u16::from_be_bytes([answer[4], answer[5]]), answer[56..].to_vec())
}

#[test]
fn strangers_change_nothing() {
    // Ports that ask for a key take nothing from a manager without it.
    let mut fabric = Fabric::new(4, 8, 5);
    fabric.require_m_key(0x1234);
    let config = SmConfig::new(fabric.nodes[0].guid + 1);
    fabric.manage_as(0, config);
    fabric.run(3 * SECOND);
    assert!((0..4).all(|node| fabric.lid(node) == 0));
    fabric.managers.clear();
    fabric.manage(0, 0);
    fabric.run(5 * SECOND);
    assert!((0..4).all(|node| fabric.lid(node) != 0));

    // Who is no manager hands nothing over, whoever knows the key or not.
    let mut handover = [0; 256];
    handover[..4].copy_from_slice(&[1, 1, 1, 2]);
    handover[17] = 0x20;
    handover[23] = 2;
    handover[79] = 1;
    let from = Origin { lid: fabric.lid(2), qpn: 0 };
    fabric.managers.get_mut(&0).unwrap().handle_mad(fabric.now, &from, &handover);
    fabric.run(SECOND);
    assert_eq!(fabric.managers[&0].role(), Role::Master);
    // A LID that is no node's, and is not found to be one's either, is not answered at QP1.
    let refused = fabric.managers[&0].counters().refused;
    fabric.managers.get_mut(&0).unwrap().handle_mad(
        fabric.now,
        &Origin { lid: 0x999, qpn: 1 },
        &query(GET_TABLE, 0x11, 0, &[]),
    );
    fabric.received.clear();
    fabric.run(2 * SECOND);
    assert_eq!(fabric.managers[&0].counters().refused, refused + 1);
    assert_eq!(fabric.received, []);
    // Wrong attribute, method, version.
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x99, 0, &[])).0, 0x0c);
    assert_eq!(ask(&mut fabric, 1, 0, &query(0x33, 0x11, 0, &[])).0, 0x08);
    assert_eq!(ask(&mut fabric, 1, 0, &query(GET, 0x11, 1 << 40, &[])).0, 0x0200);
    let mut version = query(GET, 0x11, 0, &[]);
    version[2] = 9;
    assert_eq!(ask(&mut fabric, 1, 0, &version).0, 0x04);
}

#[test]
fn garbage_is_survived() {
    let mut fabric = managed(3);
    let mut rng = Rng(4);
    let lids: Vec<u16> = (0..4).map(|n| fabric.lid(n)).collect();
    for _ in 0..50_000 {
        let mut mad = query(
            [1, 2, 6, 0x12, 0x15, 0x81, 5][rng.below(7) as usize],
            [3, 0x11, 0x12, 0x15, 0x20, 0x31, 0x33, 0x35, 0x38][rng.below(9) as usize],
            0,
            &[],
        );
        mad[1] = [3, 1, 0x81, 3][rng.below(4) as usize];
        mad[2] = if mad[1] == 3 { 2 } else { 1 };
        for byte in &mut mad[24..] {
            if rng.percent(20) {
                *byte = rng.next() as u8;
            }
        }
        let qpn = u32::from(mad[1] == 3);
        let lid = if rng.percent(80) { lids[rng.below(4) as usize] } else { rng.next() as u16 };
        let now = fabric.now;
        let manager = fabric.managers.get_mut(&0).unwrap();
        manager.handle_mad(now, &Origin { lid, qpn }, &mad);
        while manager.poll_transmit().is_some() {}
    }
    fabric.run(5 * SECOND);
    assert_eq!(fabric.managers[&0].role(), Role::Master);
    assert_eq!((0..4).map(|n| fabric.lid(n)).collect::<Vec<_>>(), lids);
}

/// Bytes of the process's memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0) * 4096
}

#[test]
fn a_thousand_nodes() {
    let mut fabric = Fabric::new(1000, 36, 1);
    fabric.manage(0, 0);
    let (start, before) = (std::time::Instant::now(), resident());
    fabric.run(SECOND / 2);
    let memory = resident().saturating_sub(before) / fabric.nodes.len() as u64;
    let manager: &SubnetManager = &fabric.managers[&0];
    assert_eq!(manager.role(), Role::Master);
    assert_eq!(manager.nodes().count(), 1000 + 1000_usize.div_ceil(34));
    assert_eq!(fabric.now, Instant(SECOND + SECOND / 2));
    let sweep = start.elapsed();
    let mut asked = vec![0; 64];
    asked[8..24].copy_from_slice(&fabric.gid(999));
    asked[24..40].copy_from_slice(&fabric.gid(1));
    let mad = query(GET, 0x35, 0b1100, &asked);
    let start = std::time::Instant::now();
    const ROUNDS: u32 = 100;
    for _ in 0..ROUNDS {
        assert_eq!(ask(&mut fabric, 1, 0, &mad).0, 0);
    }
    let record = start.elapsed() / ROUNDS;
    eprintln!("1,000 adapters: sweep {sweep:?}, a path record {record:?}, {memory} bytes a node");
    let (status, nodes) = ask(&mut fabric, 1, 0, &query(GET_TABLE, 0x11, 0, &[]));
    assert_eq!((status, nodes.len()), (0, 1030));
}
