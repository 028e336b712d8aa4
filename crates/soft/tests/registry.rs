//! Groups of real processes: who gets which slot and which packets, through deaths, stops and other
//! users.

mod child;
mod registry_support;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use ironverbs_soft::registry::{JoinError, Registry, slot_of};
use ironverbs_sys::udp::{Family, TxSocket};
use ironverbs_sys::unix::{Datagrams, Listener, Name};
use ironverbs_wire::{Gid, Path};
use registry_support::*;

const SIGCONT: i32 = 18;

/// Not a test: what the members run.
#[test]
fn member_process() {
    registry_support::member_process();
}

fn slots(members: &[Member]) -> BTreeSet<u16> {
    members.iter().map(|member| member.slot).collect()
}

/// Claims a block in each, sends each some packets, and sees that they get them and nothing else.
fn packets_arrive_where_they_belong(
    options: &ironverbs_soft::registry::JoinOptions,
    members: &mut [Member],
) {
    let blocks: Vec<u16> = members.iter_mut().map(Member::block).collect();
    for round in 0..3 {
        for (number, block) in blocks.iter().enumerate() {
            send(options, (u32::from(*block) << 12) + 0x123 * round, number as u32);
        }
    }
    for (number, member) in members.iter().enumerate() {
        for _ in 0..3 {
            assert_eq!(member.line(), format!("packet {number}"));
        }
    }
    for member in members {
        assert_eq!(member.try_line(), None);
    }
}

#[test]
fn those_who_start_at_once_end_in_one_group() {
    let options = options(0);
    let mut members: Vec<_> = (0..16).map(|_| Member::start(&options, None)).collect();
    for member in &mut members {
        member.joined();
    }
    // Slot 0 is nobody's: it is QP1's.
    assert_eq!(slots(&members), (1..17).collect());
    packets_arrive_where_they_belong(&options, &mut members);
}

#[test]
fn those_who_come_and_go_at_once_do_not_disturb_each_other() {
    let options = options(15);
    // So that the group stays.
    let mut resident = Member::start(&options, None);
    resident.joined();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    Registry::join(&options).unwrap();
                }
            });
        }
    });
}

#[test]
fn newcomers_take_the_slots_of_the_dead() {
    let options = options(1);
    let mut members: Vec<_> = (0..20).map(|_| Member::start(&options, None)).collect();
    for member in &mut members {
        member.joined();
    }
    // A fixed sequence of pseudo-random picks: any order must do.
    let mut seed = 12_345u64;
    for round in 0..3 {
        let mut freed = BTreeSet::new();
        for _ in 0..5 + round {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let victim = members.swap_remove((seed >> 33) as usize % members.len());
            freed.insert(victim.slot);
            victim.kill();
        }
        // Packets for the dead stay unread, and are not the newcomers'.
        for slot in &freed {
            send(&options, u32::from(*slot) << 12, 9_999);
        }
        let mut newcomers: Vec<_> =
            (0..freed.len()).map(|_| Member::start(&options, None)).collect();
        for newcomer in &mut newcomers {
            newcomer.joined();
        }
        assert_eq!(slots(&newcomers), freed);
        members.append(&mut newcomers);
        packets_arrive_where_they_belong(&options, &mut members);
    }
}

#[test]
fn a_death_at_any_moment_leaves_the_group_whole() {
    let options = options(14);
    let mut members: Vec<_> = (0..3).map(|_| Member::join(&options)).collect();
    let mut seed = 99u64;
    for _ in 0..30 {
        let mut churning: Vec<_> = (0..3).map(|_| Member::start(&options, None)).collect();
        for member in &mut churning {
            member.joined();
            assert_eq!(member.ask("churn"), "churning");
        }
        for mut member in churning {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(std::time::Duration::from_micros((seed >> 40) % 4_000));
            member.die();
        }
    }
    let mut newcomers: Vec<_> = (0..5).map(|_| Member::join(&options)).collect();
    members.append(&mut newcomers);
    packets_arrive_where_they_belong(&options, &mut members);
}

#[test]
fn a_death_is_noticed_and_a_leave_too() {
    let options = options(2);
    let mut first = Member::join(&options);
    let mut others: Vec<_> = (1..5).map(|_| Member::join(&options)).collect();
    assert_eq!(first.ask("members"), "members [1, 2, 3, 4, 5]");
    others.remove(1).kill();
    others.remove(1).kill();
    assert_eq!(first.ask("members"), "members [1, 2, 5]");
    assert_eq!(others[1].ask("leave"), "left");
    assert_eq!(first.ask("members"), "members [1, 2]");
    // A slot that was left is free though its last tenant lives.
    let mut taken: Vec<_> = (0..3).map(|_| Member::join(&options)).collect();
    assert_eq!(slots(&taken), BTreeSet::from([3, 4, 5]));
    packets_arrive_where_they_belong(&options, &mut taken);
}

#[test]
fn a_forked_child_that_outlives_its_parent_keeps_nothing() {
    let options = options(13);
    let mut members: Vec<_> = (0..2).map(|_| Member::join(&options)).collect();
    assert_eq!(members[0].ask("fork"), "forked");
    assert_eq!(members[1].ask("fork"), "forked");
    packets_arrive_where_they_belong(&options, &mut members);
    members[1].die();
    let mut newcomer = Member::join(&options);
    assert_eq!(newcomer.slot, 2);
    members[0].die();
    packets_arrive_where_they_belong(&options, std::slice::from_mut(&mut newcomer));
    newcomer.kill();
    // Both children live still, the group does not.
    eventually("the port is free", || {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, options.port)).is_ok()
    });
}

#[test]
fn when_the_last_member_dies_the_next_starts_anew() {
    let options = options(3);
    for _ in 0..3 {
        let members: Vec<_> = (0..3).map(|_| Member::join(&options)).collect();
        assert_eq!(slots(&members), BTreeSet::from([1, 2, 3]));
        members.into_iter().for_each(Member::kill);
    }
    // Nothing is left of it: anybody may have the port.
    eventually("the port is free", || {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, options.port)).is_ok()
    });
}

#[test]
fn stopped_members_do_not_keep_newcomers_out() {
    let options = options(4);
    let mut stopped: Vec<_> = (0..3).map(|_| Member::join(&options)).collect();
    for member in &stopped {
        member.stop();
    }
    // Nobody answers: the first newcomer helps itself. The next is answered by that one.
    let mut newcomers = vec![Member::join(&options), Member::join(&options)];
    assert_eq!(slots(&newcomers), BTreeSet::from([4, 5]));
    packets_arrive_where_they_belong(&options, &mut newcomers);
    for member in &stopped {
        member.signal(SIGCONT);
    }
    packets_arrive_where_they_belong(&options, &mut stopped);
    // Stopped and then killed is dead.
    let victim = stopped.remove(0);
    victim.stop();
    victim.kill();
    assert_eq!(Member::join(&options).slot, 1);
}

#[test]
fn another_user_stays_outside() {
    if ironverbs_sys::process::uid() != 0 {
        eprintln!("skipped: becoming another user takes root");
        return;
    }
    let options = options(5);
    let _member = Member::join(&options);
    let other = Member::start(&options, Some(65_534));
    let line = other.line();
    assert!(line.starts_with("taken ") && line.contains("uid: 0"), "{line}");
}

#[test]
fn members_that_cannot_answer_are_named() {
    if ironverbs_sys::process::uid() != 0 {
        eprintln!("skipped: becoming another user takes root");
        return;
    }
    let options = options(12);
    // Having changed its user, a process is closed to ptrace: its descriptors cannot be had.
    let mut member = Member::start(&options, Some(65_534));
    assert_eq!(member.joined(), 1);
    member.stop();
    let newcomer = Member::start(&options, Some(65_534));
    let line = newcomer.line();
    assert!(
        line.starts_with("unresponsive ") && line.contains(&member.pid().to_string()),
        "{line}"
    );
    member.signal(SIGCONT);
    let mut newcomer = Member::start(&options, Some(65_534));
    assert_eq!(newcomer.joined(), 2);
}

#[test]
fn a_foreign_socket_on_the_port_is_named() {
    let options = options(6);
    let _foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, options.port)).unwrap();
    match Registry::join(&options) {
        Err(JoinError::PortTaken { port, owner: Some(owner) }) => {
            assert_eq!((port, owner.pid), (options.port, Some(std::process::id())));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_that_others_hold_are_passed_over() {
    let options = options(7);
    let uid = ironverbs_sys::process::uid();
    let name = |last: &str| {
        let text = format!("{}:{}/{uid}/{last}", options.namespace, options.port);
        Name::new(text.as_bytes()).unwrap()
    };
    // Of the same user, but no members: an entry where nobody answers, and a mailbox without one.
    let _entry = Listener::bind(&name("1"), 1).unwrap();
    let _mailbox = Datagrams::bind(&name("3/mail")).unwrap();
    let mut members = vec![Member::join(&options), Member::join(&options)];
    assert_eq!(slots(&members), BTreeSet::from([2, 4]));
    packets_arrive_where_they_belong(&options, &mut members);
}

#[test]
fn a_mixed_batch_reaches_every_owner() {
    let options = options(8);
    let mut members: Vec<_> = (0..4).map(|_| Member::join(&options)).collect();
    let blocks: Vec<u16> = members.iter_mut().map(Member::block).collect();
    // One GSO batch, which the kernel steers by its first segment, to the first member; the rest
    // is forwarded.
    let mut batch = Vec::new();
    for number in 0..8 {
        batch.extend(packet(u32::from(blocks[number % 4]) << 12, number as u32));
    }
    let localhost = Gid::from_ip(Ipv4Addr::LOCALHOST.into());
    let path = Path { src: localhost, dst: localhost, ..Path::default() };
    let socket = TxSocket::bind(Family::of(&localhost), 0).unwrap();
    socket.send(&path, options.port, &batch, Some(16)).unwrap();
    for (index, member) in members.iter().enumerate() {
        let mut got = [member.line(), member.line()];
        got.sort();
        // GRO and GSO may or may not have merged them on the way here.
        let numbers: Vec<_> = got.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(numbers, [index.to_string(), (index + 4).to_string()]);
    }
}

#[test]
fn a_packet_is_forwarded_to_its_owner_with_its_path() {
    let options = options(9);
    let here = Registry::join(&options).unwrap();
    let there = Registry::join(&options).unwrap();
    let block = there.claim_block().unwrap();
    assert_eq!(slot_of(block.qpn(5)), there.slot());
    let path = Path {
        src: Gid([1; 16]),
        dst: Gid([2; 16]),
        traffic_class: 7,
        hop_limit: 9,
        flow_label: 0x1_2345,
        ib: None,
    };
    assert!(here.forward(block.qpn(5), &path, 4_791, b"for you"));
    let mut got = Vec::new();
    let mut take = |path: &Path, port: u16, bytes: &[u8]| got.push((*path, port, bytes.to_vec()));
    there.service(&mut take);
    assert_eq!(got, [(path, 4_791, b"for you".to_vec())]);
    // Not to ourselves, not to nobody.
    assert!(!there.forward(block.qpn(5), &path, 1, b"mine"));
    assert!(!here.forward(77 << 12, &path, 1, b"nobody's"));
    // A full mailbox takes no more, and nothing blocks.
    assert!((0..10_000).any(|_| !here.forward(block.qpn(5), &path, 1, &[0; 4096])));
}

#[test]
fn blocks_are_the_slots() {
    let options = options(10);
    let first = Registry::join(&options).unwrap();
    let second = Registry::join(&options).unwrap();
    let claim_all = |registry: &Registry| {
        let blocks: BTreeSet<u16> = std::iter::from_fn(|| registry.claim_block().ok())
            .map(|block| block.number())
            .collect();
        blocks
    };
    assert_eq!(claim_all(&first), BTreeSet::from([1, 1025, 2049, 3073]));
    assert_eq!(claim_all(&second), BTreeSet::from([2, 1026, 2050, 3074]));
    assert_eq!(first.members().iter().map(|member| member.blocks).collect::<Vec<_>>(), [4, 4]);
    drop(second);
    assert_eq!(first.members().len(), 1);
    let third = Registry::join(&options).unwrap();
    assert_eq!(third.slot(), 2);
    let block = third.claim_block().unwrap();
    first.release_block(block);
    assert_eq!(third.members()[1].blocks, 1);
    third.release_block(block);
    assert_eq!(third.members()[1].blocks, 0);
}

#[test]
fn a_leaver_of_the_same_process_frees_everything() {
    let options = options(11);
    for _ in 0..50 {
        let registry = Registry::join(&options).unwrap();
        assert_eq!(registry.slot(), 1);
        assert!(registry.socket().local_port().unwrap() == options.port);
        assert!(registry.service_fd().as_raw_fd() > 2);
    }
}
