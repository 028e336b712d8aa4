//! One-sided operations between real processes, which are killed, stopped, replaced and misbehave.

#[path = "../child/mod.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod peer;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ironverbs_soft::registry::{JoinOptions, Observer};
use ironverbs_soft::*;
use ironverbs_sys::mem::Mapping;
use ironverbs_sys::process;
use ironverbs_sys::shm::{Memfd, Shared};

use common::{ALL, Side};
use peer::*;

const SIGCONT: i32 = 18;

/// What an initiator that never ends WRITEs at a time.
const LONG: u32 = 2 << 20;

/// Not a test: what the other process runs.
#[test]
fn peer_process() {
    let Some((port, role)) = role() else { return };
    let words: Vec<_> = role.split(' ').collect();
    if let ["stranger", pid] = *words.as_slice() {
        return stranger(pid.parse().unwrap());
    }
    let side = Side::new(host(port), MEMORY);
    let shared = Memory::allocate(MEMORY, true).unwrap();
    let (addr, len) = (shared.addr(), shared.len() as u64);
    // SAFETY: the process ends by `exit`, with the memory still there.
    let mr = unsafe { side.pd.reg_mr(addr, len, addr, ALL) }.unwrap();
    let (qp, there) = match words.contains(&"mapped") {
        true => meet(&side, addr, mr.rkey()),
        false => meet(&side, side.memory.addr(), side.mr.rkey()),
    };
    match *words.as_slice() {
        ["target"] => {
            told();
        }
        ["mapped"] => {
            told();
            mr.destroy().unwrap();
            let read = || {
                let mut bytes = vec![0; LONG as usize];
                // SAFETY: within what was allocated.
                unsafe { ironverbs_sys::mem::read(addr, &mut bytes) };
                bytes
            };
            let then = read();
            std::thread::sleep(Duration::from_millis(20));
            say(if read() == then { "left alone" } else { "touched" });
            told();
        }
        ["exec"] => {
            told();
            let error = std::process::Command::new("sleep").arg("60").exec();
            panic!("{error}");
        }
        ["write"] => write_for_ever(&side, &qp, &there),
        ["scribble"] => {
            warm(&side, &qp, &there);
            scribble();
            say("scribbled");
            told();
        }
        _ => panic!("{role}"),
    }
    std::process::exit(0);
}

/// WRITEs all the time, each time something else.
fn write_for_ever(side: &Side, qp: &Qp, there: &Address) {
    warm(side, qp, there);
    say("writing");
    for fill in 0u32.. {
        side.fill(0, &vec![fill as u8; LONG as usize]);
        let wc = run(side, qp, &there.remote(1, WrOpcode::Write, 0), &[side.sge(0, LONG)]);
        if wc.status != WcStatus::Success {
            break;
        }
    }
    say("refused");
    told();
}

/// A region of its own over the side's memory, to be taken back.
fn region(side: &Side) -> Arc<Mr> {
    let (addr, len) = (side.memory.addr(), side.memory.len() as u64);
    // SAFETY: the mapping outlives the region.
    unsafe { side.pd.reg_mr(addr, len, addr, ALL) }.unwrap()
}

#[test]
fn a_target_that_is_stopped_is_written_and_read() {
    let side = Side::new(host(48_010), MEMORY);
    let mut target = Peer::start(48_010, "target");
    let (qp, there) = target.connect(&side, &side.mr);
    warm(&side, &qp, &there);
    // It does not even run.
    target.stop();
    let before = qp.counters();
    for len in [1u32, 8, 1000, 65_536, 1_000_000] {
        let data: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(len) >> 3) as u8).collect();
        side.fill(0, &data);
        let sges = [side.sge(0, len / 3), side.sge(u64::from(len / 3), len - len / 3)];
        let wc = run(&side, &qp, &there.remote(1, WrOpcode::Write, 5), &sges);
        assert_eq!(wc.status, WcStatus::Success);
        let into = side.sge(2 << 20, len);
        let wc = run(&side, &qp, &there.remote(2, WrOpcode::Read, 5), &[into]);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len));
        assert!(side.read(2 << 20, len as usize) == data, "{len} bytes");
    }
    let now = qp.counters();
    assert_eq!(now.direct.kernel.messages - before.direct.kernel.messages, 10);
    assert_eq!(now.tx_packets, before.tx_packets);
    target.signal(SIGCONT);
    // Atomics are its engine's.
    side.fill(0, &[0; 8]);
    let write = run(&side, &qp, &there.remote(3, WrOpcode::Write, 64), &[side.sge(0, 8)]);
    let add = SendWr { compare_add: 5, ..there.remote(4, WrOpcode::FetchAdd, 64) };
    let first = run(&side, &qp, &add, &[side.sge(8, 8)]);
    let second = run(&side, &qp, &add, &[side.sge(8, 8)]);
    let done = [write, first, second].map(|wc| wc.status);
    assert_eq!(done, [WcStatus::Success; 3]);
    assert_eq!(side.read(8, 8), 5u64.to_ne_bytes());
    assert_eq!(qp.counters().direct.total().messages - now.direct.total().messages, 1);
    // What is wrong with a request, packets find out.
    let bad = SendWr { rkey: there.rkey ^ 1, ..there.remote(5, WrOpcode::Write, 0) };
    assert_eq!(run(&side, &qp, &bad, &[side.sge(0, 8)]).status, WcStatus::RemAccessErr);
}

#[test]
fn memory_that_both_have_mapped_takes_everything() {
    let side = Side::new(host(48_020), MEMORY);
    let mut target = Peer::start(48_020, "mapped");
    let (qp, there) = target.connect(&side, &side.mr);
    warm(&side, &qp, &there);
    target.stop();
    let before = qp.counters();
    for len in [1u32, 8, 1000, 65_536, 1_000_000] {
        let data: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(len) >> 3) as u8).collect();
        side.fill(0, &data);
        let wc = run(&side, &qp, &there.remote(1, WrOpcode::Write, 5), &[side.sge(0, len)]);
        assert_eq!(wc.status, WcStatus::Success);
        let into = side.sge(2 << 20, len);
        let wc = run(&side, &qp, &there.remote(2, WrOpcode::Read, 5), &[into]);
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len));
        assert!(side.read(2 << 20, len as usize) == data, "{len} bytes");
    }
    side.fill(0, &40u64.to_ne_bytes());
    let write = run(&side, &qp, &there.remote(3, WrOpcode::Write, 64), &[side.sge(0, 8)]);
    let add = SendWr { compare_add: 2, ..there.remote(4, WrOpcode::FetchAdd, 64) };
    let swap = SendWr { compare_add: 42, swap: 9, ..there.remote(5, WrOpcode::CompareSwap, 64) };
    let added = run(&side, &qp, &add, &[side.sge(8, 8)]);
    let swapped = run(&side, &qp, &swap, &[side.sge(16, 8)]);
    let back = run(&side, &qp, &there.remote(6, WrOpcode::Read, 64), &[side.sge(24, 8)]);
    assert_eq!([write, added, swapped, back].map(|wc| wc.status), [WcStatus::Success; 4]);
    let values: Vec<_> = [40u64, 42, 9].iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(side.read(8, 24), values);
    let now = qp.counters();
    assert_eq!(now.direct.mapped.messages - before.direct.mapped.messages, 14);
    assert_eq!(now.tx_packets, before.tx_packets);
    target.signal(SIGCONT);
    // Its owner takes it back while it is written.
    target.tell("back");
    let mut fill = 0u8;
    let status = loop {
        fill = fill.wrapping_add(1);
        side.fill(0, &vec![fill; LONG as usize]);
        let wc = run(&side, &qp, &there.remote(7, WrOpcode::Write, 0), &[side.sge(0, LONG)]);
        if wc.status != WcStatus::Success {
            break wc.status;
        }
    };
    assert_eq!(status, WcStatus::RemAccessErr);
    assert_eq!(target.line(), "left alone");
}

#[test]
fn kills_of_the_initiator_keep_no_deregistration() {
    let mut random = fastrand::Rng::with_seed(4);
    let side = Side::new(host(48_011), MEMORY);
    for round in 0..40 {
        let mr = region(&side);
        let mut initiator = Peer::start(48_011, "write");
        let (qp, _) = initiator.connect(&side, &mr);
        assert_eq!(initiator.line(), "writing");
        std::thread::sleep(Duration::from_micros(random.u64(..3000)));
        // By turns before, and while.
        initiator.kill();
        std::thread::sleep(Duration::from_micros(random.u64(..2) * random.u64(..300)));
        mr.destroy().unwrap();
        let then = side.read(0, LONG as usize);
        std::thread::sleep(Duration::from_millis(2));
        assert!(side.read(0, LONG as usize) == then, "round {round}: touched afterwards");
        qp.destroy().unwrap();
    }
}

#[test]
fn a_region_is_left_alone_by_a_process_that_goes_on() {
    let side = Side::new(host(48_012), MEMORY);
    for _ in 0..10 {
        let mr = region(&side);
        let mut initiator = Peer::start(48_012, "write");
        let (qp, _) = initiator.connect(&side, &mr);
        assert_eq!(initiator.line(), "writing");
        std::thread::sleep(Duration::from_millis(3));
        mr.destroy().unwrap();
        let then = side.read(0, LONG as usize);
        assert_eq!(initiator.line(), "refused");
        assert!(side.read(0, LONG as usize) == then);
        qp.destroy().unwrap();
    }
}

#[test]
fn an_initiator_stopped_in_the_middle_is_waited_for() {
    let side = Side::new(host(48_013), MEMORY);
    let start = Instant::now();
    let mut waited = false;
    // It is in the middle of a copy most of the time, not always.
    while !waited {
        assert!(start.elapsed() < WATCHDOG, "never stopped in a copy");
        let mr = region(&side);
        let mut initiator = Peer::start(48_013, "write");
        let (qp, _) = initiator.connect(&side, &mr);
        assert_eq!(initiator.line(), "writing");
        std::thread::sleep(Duration::from_millis(5));
        initiator.stop();
        let (done, lkey) = (AtomicBool::new(false), mr.lkey());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mr.destroy().unwrap();
                done.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(300));
            waited = !done.load(Ordering::Acquire);
            if waited {
                // Others see what it waits for.
                let wait = waits(48_013).pop().expect("it is told");
                let told = (wait.verb, wait.object, wait.number, wait.pid);
                assert_eq!(told, ("ibv_dereg_mr", "MR", lkey, Some(initiator.pid())));
            }
            initiator.signal(SIGCONT);
        });
        let then = side.read(0, LONG as usize);
        assert_eq!(initiator.line(), "refused");
        assert!(side.read(0, LONG as usize) == then);
        qp.destroy().unwrap();
    }
}

/// What this process tells that it waits for.
fn waits(port: u16) -> Vec<WaitStatus> {
    let options = JoinOptions { port, ..JoinOptions::default() };
    let group = Observer::find(&options, process::uid()).unwrap().expect("we are in it");
    let of_us = group.processes().into_iter().find(|one| one.pid == std::process::id());
    of_us.map(|status| status.waits).unwrap_or_default()
}

#[test]
fn a_target_that_is_killed_fails_what_comes_after() {
    let side = Side::new(host(48_014), MEMORY);
    for round in 0..10u64 {
        let mut target = Peer::start(48_014, "target");
        let (qp, there) = target.connect(&side, &side.mr);
        warm(&side, &qp, &there);
        let due = Instant::now() + Duration::from_micros(round * 300);
        let mut killed = false;
        let status = loop {
            if !killed && Instant::now() >= due {
                target.kill();
                killed = true;
            }
            let wc = run(&side, &qp, &there.remote(1, WrOpcode::Write, 0), &[side.sge(0, LONG)]);
            if wc.status != WcStatus::Success {
                break wc.status;
            }
        };
        // The second where the connection had failed before the request was posted.
        let defined = matches!(status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
        assert!(killed && defined, "{status:?}");
        qp.destroy().unwrap();
    }
}

#[test]
fn a_target_that_becomes_another_program_is_left_alone() {
    let side = Side::new(host(48_015), MEMORY);
    let mut target = Peer::start(48_015, "exec");
    let (qp, there) = target.connect(&side, &side.mr);
    warm(&side, &qp, &there);
    target.tell("go");
    eventually("the other program", || {
        fs::read_to_string(format!("/proc/{}/comm", target.pid())).unwrap().trim() == "sleep"
    });
    let before = qp.counters().direct.kernel.messages;
    qp.post_send(&there.remote(1, WrOpcode::Write, 0), Payload::Sges(&[side.sge(0, LONG)]))
        .unwrap();
    assert_eq!(qp.counters().direct.kernel.messages, before);
    // Nor can the new program be waited for.
    side.mr.destroy().unwrap();
    qp.destroy().unwrap();
}

/// Claims in every slot of every lane of this process to use every region there may be, by way of /proc/self/mem.
fn scribble() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    for line in maps.lines().filter(|line| line.contains("ironverbs-lane")) {
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        for slot in 0..8 {
            // The second region that is registered: see the test.
            let name = 1u64 << 63 | 2;
            memory.write_at(&name.to_ne_bytes(), start + 256 + slot * 64).unwrap();
        }
    }
}

#[test]
fn who_only_claims_to_use_a_region_is_cut_off() {
    let side = Side::new(host(48_016), MEMORY);
    let mut liar = Peer::start(48_016, "scribble");
    let (qp, _) = liar.connect(&side, &side.mr);
    let mut good = Peer::start(48_016, "target");
    let (other, there) = good.connect(&side, &side.mr);
    warm(&side, &other, &there);
    assert_eq!(liar.line(), "scribbled");
    let mr = region(&side);
    assert_eq!(mr.lkey() >> 9, 2, "the region that the liar names");
    mr.destroy().unwrap();
    // What is left of its connection fails, that of others does not.
    qp.post_send(&common::wr(1, WrOpcode::Send), Payload::Sges(&[])).unwrap();
    let mut found = Vec::new();
    eventually("the end of the connection", || {
        found.extend(side.poll());
        !found.is_empty()
    });
    assert_eq!(found[0].status, WcStatus::RetryExcErr);
    let before = other.counters().direct.kernel.messages;
    let wc = run(&side, &other, &there.remote(2, WrOpcode::Write, 0), &[side.sge(0, 8)]);
    assert_eq!(wc.status, WcStatus::Success);
    assert_eq!(other.counters().direct.kernel.messages, before + 1);
    other.destroy().unwrap();
    side.mr.destroy().unwrap();
}

/// The tables that a process has open, by the numbers of their descriptors.
fn tables(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let table = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        let is_table = target.to_string_lossy().contains("ironverbs-table");
        is_table.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    entries.filter_map(table).collect()
}

#[test]
fn nobody_else_can_write_a_table() {
    let side = Side::new(host(48_017), 4096);
    let mut target = Peer::start(48_017, "target");
    let (_qp, _) = target.connect(&side, &side.mr);
    let mut tried = 0;
    for number in tables(target.pid()) {
        for write in [false, true] {
            let fd = match process::open_descriptor(target.pid(), number, write) {
                // That of somebody else, which it had open to map it.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.unwrap(),
            };
            tried += 1;
            let memfd = Memfd::received(fd).unwrap();
            let size = memfd.size().unwrap() as usize;
            assert!(Shared::map(&memfd, size, true).is_err(), "mapped to be written");
            assert!(Shared::map(&memfd, size, false).is_ok());
            let file = fs::File::from(OwnedFd::from(memfd));
            assert!(file.write_at(&[1], 0).is_err() && file.set_len(0).is_err());
        }
    }
    assert!(tried >= 2);
}

/// Of another user: looks for what it could open.
fn stranger(pid: u32) {
    process::become_user(65_534, 65_534).unwrap();
    let opened = (0..256).filter(|&fd| process::open_descriptor(pid, fd, false).is_ok()).count();
    say(&format!("opened {opened}"));
    told();
}

#[test]
fn another_user_opens_no_table() {
    if process::uid() != 0 {
        eprintln!("skipped: becoming another user takes root");
        return;
    }
    let _side = Side::new(host(48_018), 4096);
    assert!(!tables(process::pid()).is_empty());
    let stranger = Peer::start(48_018, &format!("stranger {}", process::pid()));
    assert_eq!(stranger.line(), "opened 0");
}

#[test]
fn a_table_costs_little_memory() {
    let side = Side::new(host(48_019), 4096);
    let small = Mapping::anonymous(64).unwrap();
    let regions: Vec<_> = (0..1000)
        // SAFETY: the mapping outlives the regions.
        .map(|_| unsafe { side.pd.reg_mr(small.addr(), 64, small.addr(), ALL) }.unwrap())
        .collect();
    let fd = tables(process::pid());
    let blocks: u64 = fd
        .iter()
        .map(|fd| {
            std::os::unix::fs::MetadataExt::blocks(
                &fs::metadata(format!("/proc/self/fd/{fd}")).unwrap(),
            )
        })
        .sum();
    // Other tests of this process have tables, too.
    assert!(blocks * 512 < 1 << 20, "{} KiB", blocks / 2);
    drop(regions);
}
