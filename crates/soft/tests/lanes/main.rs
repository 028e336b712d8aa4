//! Lanes between real processes, which are killed, stopped and misbehave.

#[path = "../child/mod.rs"]
mod child;
mod process;
mod transfer;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs_soft::local::{Inbound, Lanes};
use ironverbs_soft::registry::{JoinOptions, Registry};
use ironverbs_sys::unix::{Connection, Datagrams, Name, wait_readable};

use process::*;
use transfer::*;

const SIGCONT: i32 = 18;

/// Not a test: what the members run.
#[test]
fn member_process() {
    let Some((registry, words)) = role() else { return };
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["idle"] => loop {
            let _ = wait_readable(&[registry.service_fd()], WATCHDOG);
            registry.service(&mut |_, _, _| {});
        },
        ["exchange", count] => {
            let slot = told().parse().unwrap();
            exchange(&registry, slot, count.parse().unwrap());
            say("done");
            told();
        }
        ["endless", slot] => {
            endless(&registry, slot.parse().unwrap(), || {});
        }
        ["farewell", slot] => {
            Source::to(&registry, slot.parse().unwrap()).send(20);
            say("sent");
            told();
        }
        ["scribble", slot] => scribble(&registry, slot.parse().unwrap()),
        _ => panic!("{words:?}"),
    }
    std::process::exit(0);
}

fn serve(registry: &Registry) {
    registry.service(&mut |_, _, _| {});
}

/// Sends to the slot and takes from it as fast as it can, until the process there is dead. How much
/// it sent and took.
fn endless(registry: &Registry, slot: u16, mut each_round: impl FnMut()) -> (u32, u32) {
    let mut source = Source::to(registry, slot);
    let mut drain = Drain::default();
    let start = Instant::now();
    for round in 0u32.. {
        source.send(20);
        registry.lanes().for_each_inbound(&mut |lane| {
            drain.take(lane, 20);
        });
        if round % 16 == 0 {
            serve(registry);
            assert!(start.elapsed() < WATCHDOG);
        }
        each_round();
        if !registry.lanes().deaths().is_empty() {
            break;
        }
    }
    assert!(!source.lane.is_alive());
    (source.next, drain.next)
}

fn inbound(lanes: Lanes<'_>) -> Vec<u16> {
    let mut slots = Vec::new();
    lanes.for_each_inbound(&mut |lane: &mut Inbound| slots.push(lane.slot));
    slots
}

/// What the descriptors of this process are, by number.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            // Not by number: that is the lowest that is free.
            Some(fs::read_link(entry.path()).ok()?.display().to_string())
        })
        .collect();
    files.sort();
    files
}

fn mapped_lanes() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches("ironverbs-lane").count()
}

/// Descriptors and lane mappings are counted by the process: those who count exclude the others.
static COUNTING: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

#[test]
fn a_lane_to_ourselves_carries_records() {
    let _shared = COUNTING.read();
    let registry = Registry::join(&options(0)).unwrap();
    let slot = registry.slot();
    assert!(registry.lanes().capable(slot));
    exchange(&registry, slot, 20_000);
    let lane = registry.lanes().to(slot).unwrap();
    assert!(Arc::ptr_eq(&lane, &registry.lanes().to(slot).unwrap()));
    assert!(lane.is_alive() && lane.producer.lock().is_taken());
    assert_eq!((lane.slot(), lane.pid()), (slot, std::process::id()));
    drop(registry);
    assert!(!lane.is_alive());
}

#[test]
fn two_processes_exchange_and_sleep_when_idle() {
    let _shared = COUNTING.read();
    let options = options(1);
    let mut a = Member::start(&options, "exchange 60000", &|| {});
    let mut b = Member::start(&options, "exchange 60000", &|| {});
    a.tell(&b.slot.to_string());
    b.tell(&a.slot.to_string());
    assert_eq!((a.line(), b.line()), ("done".into(), "done".into()));
}

#[test]
fn a_stop_of_either_loses_nothing() {
    let _shared = COUNTING.read();
    let options = options(2);
    let mut a = Member::start(&options, "exchange 150000", &|| {});
    let mut b = Member::start(&options, "exchange 150000", &|| {});
    a.tell(&b.slot.to_string());
    b.tell(&a.slot.to_string());
    for member in [&a, &b] {
        std::thread::sleep(Duration::from_millis(20));
        member.stop();
        std::thread::sleep(Duration::from_secs(1));
        member.signal(SIGCONT);
    }
    assert_eq!((a.line(), b.line()), ("done".into(), "done".into()));
}

#[test]
fn kills_at_random_moments_leave_the_survivor_whole() {
    let _alone = COUNTING.write();
    let options = options(3);
    let registry = Registry::join(&options).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut moved = (0u64, 0u64);
    let before = open_files();
    for round in 0..200 {
        let mut victim =
            Member::start(&options, &format!("endless {}", registry.slot()), &|| serve(&registry));
        let due = Instant::now() + Duration::from_micros(random.u64(..6000));
        let mut killed = false;
        let (sent, taken) = endless(&registry, victim.slot, || {
            if !killed && Instant::now() >= due {
                victim.kill();
                killed = true;
            }
        });
        moved = (moved.0 + u64::from(sent), moved.1 + u64::from(taken));
        assert!(killed, "round {round}: an end before the death");
        assert!(inbound(registry.lanes()).is_empty());
        drop(victim);
    }
    assert_eq!(mapped_lanes(), 0);
    // The threads that read what the victims say close their pipes in their own time, those of other tests' victims too.
    let start = Instant::now();
    let fewer =
        |now: &[String]| now.len() <= before.len() && now.iter().all(|file| before.contains(file));
    while !fewer(&open_files()) {
        serve(&registry);
        assert!(start.elapsed() < WATCHDOG, "from {before:#?} to {:#?}", open_files());
        std::thread::yield_now();
    }
    assert!(moved.0 > 1000 && moved.1 > 1000, "{moved:?}: nothing was going on");
}

#[test]
fn what_a_dead_process_sent_is_taken_before_its_death_is_told() {
    let _shared = COUNTING.read();
    let options = options(4);
    let registry = Registry::join(&options).unwrap();
    let mut sender =
        Member::start(&options, &format!("farewell {}", registry.slot()), &|| serve(&registry));
    assert_eq!(sender.line(), "sent");
    let slot = sender.slot;
    sender.kill();
    drop(sender);
    let mut drain = Drain::default();
    let mut deaths = Vec::new();
    eventually("the death is told", || {
        serve(&registry);
        registry.lanes().for_each_inbound(&mut |lane| {
            assert_eq!(lane.slot, slot);
            // Reluctantly: it stays until it is empty.
            drain.take(lane, 1);
        });
        deaths.extend(registry.lanes().deaths());
        assert!(deaths.is_empty() || drain.next == 20);
        !deaths.is_empty()
    });
    assert_eq!(deaths, [slot]);
    assert!(inbound(registry.lanes()).is_empty());
}

#[test]
fn a_newcomer_in_the_slot_has_lanes_of_its_own() {
    let _shared = COUNTING.read();
    let options = options(5);
    let registry = Registry::join(&options).unwrap();
    let mut first = Member::start(&options, "idle", &|| serve(&registry));
    let slot = first.slot;
    let lane = registry.lanes().to(slot).unwrap();
    eventually("the lane is taken", || lane.producer.lock().is_taken());
    first.kill();
    drop(first);
    // Before its death has been looked for.
    let second = Member::start(&options, "idle", &|| serve(&registry));
    assert_eq!(second.slot, slot);
    let other = registry.lanes().to(slot).unwrap();
    assert!(!Arc::ptr_eq(&lane, &other));
    assert_eq!(other.pid(), second.pid());
    eventually("the first's death is told", || {
        serve(&registry);
        inbound(registry.lanes());
        registry.lanes().deaths() == [slot]
    });
    eventually("the lane is taken", || other.producer.lock().is_taken());
    assert!(other.is_alive());
    assert!(Arc::ptr_eq(&other, &registry.lanes().to(slot).unwrap()));
}

#[test]
fn who_takes_no_lanes_gets_none() {
    let _shared = COUNTING.read();
    let options = options(6);
    let registry = Registry::join(&options).unwrap();
    let wire = JoinOptions { lanes: false, ..options.clone() };
    let other = Registry::join(&wire).unwrap();
    assert!(!registry.lanes().capable(other.slot()) && !other.lanes().capable(registry.slot()));
    assert!(!other.lanes().capable(other.slot()));
    for (from, slot) in [(&registry, other.slot()), (&other, registry.slot()), (&registry, 900)] {
        let error = from.lanes().to(slot).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    }
    assert!(registry.lanes().capable(registry.slot()));
}

#[test]
fn a_process_that_is_stopped_takes_one_offer_but_not_without_end() {
    let _shared = COUNTING.read();
    let options = options(7);
    let registry = Registry::join(&options).unwrap();
    let stopped = Member::start(&options, "idle", &|| serve(&registry));
    // Another of this process, so that there are two that offer.
    let second = Registry::join(&options).unwrap();
    stopped.stop();
    let lane = registry.lanes().to(stopped.slot).unwrap();
    for _ in 0..5000 {
        lane.wake();
    }
    let error = second.lanes().to(stopped.slot).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    stopped.signal(SIGCONT);
    eventually("the lane is taken", || lane.producer.lock().is_taken());
    eventually("the mailbox is read", || second.lanes().to(stopped.slot).is_ok());
}

#[test]
fn who_leaves_ends_its_lanes() {
    let _shared = COUNTING.read();
    let options = options(8);
    let (here, there) = (Registry::join(&options).unwrap(), Registry::join(&options).unwrap());
    let slot = there.slot();
    let lane = here.lanes().to(slot).unwrap();
    let mut back = Source::to(&there, here.slot());
    assert_eq!(back.send(5), 5);
    serve(&there);
    assert_eq!(inbound(there.lanes()), [here.slot()]);
    drop(there);
    let mut drain = Drain::default();
    eventually("the end is told", || {
        serve(&here);
        here.lanes().for_each_inbound(&mut |lane| {
            drain.take(lane, 1);
        });
        let deaths = here.lanes().deaths();
        assert!(deaths.is_empty() || deaths == [slot]);
        !deaths.is_empty()
    });
    assert_eq!(drain.next, 5);
    assert!(!lane.is_alive() && !back.lane.is_alive());
    assert!(here.lanes().deaths().is_empty() && inbound(here.lanes()).is_empty());
}

/// What the mail of the registry looks like: kind, slot, its tenure, the receiver's tenure, and that there is no
/// table.
fn offer(slot: u16, tenure: u32, to: u32) -> Vec<u8> {
    let mut bytes = vec![3];
    bytes.extend(slot.to_le_bytes());
    bytes.extend(tenure.to_le_bytes());
    bytes.extend(to.to_le_bytes());
    bytes.extend([0; 12]);
    bytes
}

#[test]
fn an_offer_in_anothers_name_is_not_taken() {
    let _shared = COUNTING.read();
    let options = options(9);
    let registry = Registry::join(&options).unwrap();
    let other = Member::start(&options, "idle", &|| serve(&registry));
    let own = registry.slot();
    let uid = ironverbs_sys::process::uid();
    let name = format!("{}:{}/{uid}/{own}/mail", options.namespace, options.port);
    let name = Name::new(name.as_bytes()).unwrap();
    let from = Datagrams::unbound().unwrap();
    let send = |bytes: &[u8], sound: bool| {
        let (_producer, ring) = ironverbs_soft::local::Producer::create().unwrap();
        let null = fs::File::open("/dev/null").unwrap();
        let fds = [if sound { ring.as_fd() } else { null.as_fd() }];
        let parts = [io::IoSlice::new(bytes)];
        from.send_with(&name, &parts, &fds).unwrap();
        from.send_with(&name, &parts, &[]).unwrap();
        serve(&registry);
        inbound(registry.lanes())
    };
    // We are not that process.
    assert!(send(&offer(other.slot, 1, 1), true).is_empty());
    assert!(send(&offer(999, 1, 1), true).is_empty());
    // In our own name, but from or to another tenant, or something that is no ring, or no offer.
    assert!(send(&offer(own, 2, 1), true).is_empty());
    assert!(send(&offer(own, 1, 2), true).is_empty());
    assert!(send(&offer(own, 1, 1), false).is_empty());
    assert!(send(&offer(own, 1, 1)[..9], true).is_empty());
    // As a whole it is taken, or the above would prove nothing.
    assert_eq!(send(&offer(own, 1, 1), true), [own]);
}

/// Of another user: tries to be given the group, to have a lane taken, and to wake a member.
fn stranger(options: &JoinOptions, uid: u32) {
    ironverbs_sys::process::become_user(65_534, 65_534).unwrap();
    let name = |last: &str| {
        let name = format!("{}:{}/{uid}/1{last}", options.namespace, options.port);
        Name::new(name.as_bytes()).unwrap()
    };
    let entry = Connection::connect(&name("")).unwrap();
    let from = Datagrams::unbound().unwrap();
    let (_producer, ring) = ironverbs_soft::local::Producer::create().unwrap();
    for (bytes, fds) in
        [(offer(0, 1, 1), vec![ring.as_fd()]), (offer(1, 1, 1), vec![]), (vec![5], vec![])]
    {
        from.send_with(&name("/mail"), &[io::IoSlice::new(&bytes)], &fds).unwrap();
    }
    assert!(wait_readable(&[entry.as_fd()], WATCHDOG).unwrap());
    let answer = entry.recv(&mut [0; 64]).map(|answer| answer.map(|answer| answer.len));
    say(&format!("tried {answer:?}"));
    told();
}

#[test]
fn another_user_finds_no_way_in() {
    let _shared = COUNTING.read();
    let uid = ironverbs_sys::process::uid();
    if uid != 0 {
        eprintln!("skipped: becoming another user takes root");
        return;
    }
    let options = options(12);
    let registry = Registry::join(&options).unwrap();
    assert_eq!(registry.slot(), 1);
    let stranger = Member::start(&options, &format!("stranger {uid}"), &|| serve(&registry));
    let mut answer = None;
    eventually("the stranger is turned away", || {
        serve(&registry);
        answer = answer.take().or_else(|| stranger.try_line());
        answer.is_some()
    });
    // The connection was closed without a message.
    assert_eq!(answer.unwrap(), "tried Ok(Some(0))");
    serve(&registry);
    assert!(inbound(registry.lanes()).is_empty());
    assert!(registry.lanes().deaths().is_empty());
}

#[test]
fn a_forked_child_has_no_lanes_and_disturbs_none() {
    let _shared = COUNTING.read();
    let registry = Registry::join(&options(10)).unwrap();
    let slot = registry.slot();
    let mut source = Source::to(&registry, slot);
    assert_eq!(source.send(3), 3);
    // SAFETY: the child looks at a page and allocates nothing.
    let code = unsafe {
        ironverbs_sys::process::exit_code_of_fork(|| {
            let lanes = registry.lanes();
            let mut any = lanes.capable(slot) || lanes.to(slot).is_ok();
            lanes.for_each_inbound(&mut |_| any = true);
            lanes.wake(slot);
            lanes.awake();
            i32::from(any || !lanes.deaths().is_empty())
        })
    };
    assert_eq!(code.unwrap(), 0);
    let mut drain = Drain::default();
    registry.lanes().for_each_inbound(&mut |lane| {
        drain.take(lane, 10);
    });
    assert_eq!(drain.next, 3);
}

/// Writes random words over its own end of the lane for ever, by way of /proc/self/mem.
fn scribble(registry: &Registry, slot: u16) {
    use std::os::unix::fs::FileExt;
    let mut source = Source::to(registry, slot);
    source.send(10);
    eventually("the lane is taken", || source.lane.producer.lock().is_taken());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("ironverbs-lane")).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    let mut random = fastrand::Rng::new();
    say("scribbling");
    let started = Instant::now();
    while started.elapsed() < WATCHDOG {
        let word = match random.bool() {
            true => random.u32(..),
            false => 1 << 31 | random.u32(..0x4100),
        };
        let offset = random.u64(..128 * 1024 / 64) * 64 + random.u64(..2) * 4;
        memory.write_at(&word.to_le_bytes(), start + offset).unwrap();
        source.lane.producer.lock().push(1, &[0x80; 100]);
        if random.u8(..200) == 0 {
            serve(registry);
        }
    }
}

#[test]
fn a_peer_that_scribbles_loses_its_lane_and_hurts_nobody() {
    let _shared = COUNTING.read();
    let options = options(11);
    let registry = Registry::join(&options).unwrap();
    let bystander = Registry::join(&options).unwrap();
    let mut good = Source::to(&bystander, registry.slot());
    let mut drain = Drain::default();
    for _ in 0..20 {
        let scribbler =
            Member::start(&options, &format!("scribble {}", registry.slot()), &|| serve(&registry));
        eventually("the lane has come", || {
            serve(&registry);
            inbound(registry.lanes()).contains(&scribbler.slot)
        });
        assert_eq!(scribbler.line(), "scribbling");
        let mut copy = [0; ironverbs_soft::local::MAX_RECORD];
        eventually("the lane is broken", || {
            serve(&registry);
            good.send(3);
            registry.lanes().for_each_inbound(&mut |lane| {
                if lane.slot == bystander.slot() {
                    drain.take(lane, 10);
                    return;
                }
                while let Ok(Some(record)) = lane.consumer.next() {
                    assert_eq!(record.copy_prefix(&mut copy), record.len);
                    lane.consumer.release();
                }
            });
            registry.lanes().deaths() == [scribbler.slot]
        });
        assert_eq!(inbound(registry.lanes()), [bystander.slot()]);
    }
    assert!(good.lane.is_alive() && drain.next > 20);
}
