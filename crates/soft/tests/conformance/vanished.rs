//! Memory that a program takes away, makes read-only or truncates while it is registered: what needs it fails with an
//! error that says so, and nothing else does.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use ironverbs_soft::*;
use ironverbs_sys::mem::Mapping;

use crate::fabric::{Fabric, WATCHDOG};
use crate::side::{ALL, QKEY, Side, outcomes, pair, pattern, register, wr};

cases![
    the_senders_memory,
    the_receivers_memory,
    the_memory_of_remote_operations,
    where_answers_are_to_go,
    unreliable_services,
    memory_that_comes_and_goes_under_traffic,
];

const LEN: usize = 256 * 1024;

/// Where in it the memory ends.
const GONE: u64 = 128 * 1024;

/// A region whose memory is gone from [`GONE`] on.
struct Victim {
    what: &'static str,
    region: Arc<Mr>,
    memory: Mapping,
}

impl Victim {
    fn new(what: &'static str, side: &Side, memory: Mapping) -> Victim {
        Victim { what, region: register(&side.pd, &memory, ALL), memory }
    }

    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.memory.addr() + offset, len, lkey: self.region.lkey() }
    }
}

/// Memory that is gone, truncated and, if it is to be `written`, read-only.
fn victims(side: &Side, written: bool) -> Vec<Victim> {
    let gone = Victim::new("gone", side, Mapping::anonymous(LEN).unwrap());
    gone.memory.protect_from(GONE as usize, false, false).unwrap();
    let file = file();
    let truncated = Victim::new("truncated", side, Mapping::of_file(file.as_fd(), LEN).unwrap());
    file.set_len(GONE).unwrap();
    let mut all = vec![gone, truncated];
    if written {
        let fixed = Victim::new("read-only", side, Mapping::anonymous(LEN).unwrap());
        fixed.memory.protect_from(GONE as usize, true, false).unwrap();
        all.push(fixed);
    }
    all
}

/// A file of [`LEN`] bytes without a name.
fn file() -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("vanished-{}-{count}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(LEN as u64).unwrap();
    file
}

/// Beginning and length of messages that need what is gone: within one packet, in the last of several, and beginning
/// in what is there.
const PLACES: [(u64, u32); 4] =
    [(GONE, 8), (GONE + 4096, 30_000), (GONE - 3, 8), (GONE - 100_000, 100_001)];

/// The Hosts are none the worse for it.
#[track_caller]
fn others_work(f: &Fabric, a: &Side, b: &Side) {
    let (x, y) = pair(a, b, QpType::Rc);
    let data = pattern(50_000, 9);
    a.fill(0, &data);
    y.post_recv(1, &[b.sge(0, 50_000)]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 50_000)])).unwrap();
    assert_eq!(f.completion(a).status, WcStatus::Success);
    assert_eq!(f.completion(b).status, WcStatus::Success);
    assert!(b.read(0, 50_000) == data);
    f.nothing_more(&[a, b]);
}

fn the_senders_memory(f: &Fabric) {
    let (a, b) = f.two();
    for victim in victims(&a, false) {
        for (offset, len) in PLACES {
            for opcode in [WrOpcode::Send, WrOpcode::Write] {
                let what = format!("{opcode:?} of {len} bytes from {offset}, {}", victim.what);
                let (x, y) = pair(&a, &b, QpType::Rc);
                y.post_recv(70, &[b.sge(0, 1 << 19)]).unwrap();
                x.post_send(&b.remote(1, opcode, 0), Payload::Sges(&[victim.sge(offset, len)]))
                    .unwrap();
                x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
                let found = f.completions(&a, 2);
                let want = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
                assert_eq!(outcomes(&found), want, "{what}");
                assert_eq!(found[0].vendor_err, VendorErr::MemoryFault as u32, "{what}");
                f.settle();
                assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Rts), "{what}");
                assert_eq!(b.poll(), [], "{what}");
            }
        }
    }
    others_work(f, &a, &b);
}

fn the_receivers_memory(f: &Fabric) {
    let (a, b) = f.two();
    for victim in victims(&b, true) {
        for (offset, len) in PLACES {
            let what = format!("{len} bytes to {offset}, {}", victim.what);
            let (x, y) = pair(&a, &b, QpType::Rc);
            y.post_recv(70, &[victim.sge(offset, len)]).unwrap();
            y.post_recv(71, &[b.sge(0, 8)]).unwrap();
            x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, len)])).unwrap();
            x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
            let want = [(1, WcStatus::RemOpErr), (2, WcStatus::WrFlushErr)];
            assert_eq!(outcomes(&f.completions(&a, 2)), want, "{what}");
            let received = f.completions(&b, 2);
            let want = [(70, WcStatus::LocProtErr), (71, WcStatus::WrFlushErr)];
            assert_eq!(outcomes(&received), want, "{what}");
            assert_eq!(received[0].vendor_err, VendorErr::MemoryFault as u32, "{what}");
            assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err), "{what}");
        }
    }
    others_work(f, &a, &b);
}

fn the_memory_of_remote_operations(f: &Fabric) {
    let (a, b) = f.two();
    let atomics = [WrOpcode::CompareSwap, WrOpcode::FetchAdd];
    for victim in victims(&b, true) {
        let read_only = victim.what == "read-only";
        for opcode in
            [WrOpcode::Write, WrOpcode::WriteWithImm, WrOpcode::Read].iter().chain(&atomics)
        {
            if read_only && *opcode == WrOpcode::Read {
                continue;
            }
            for (offset, len) in PLACES {
                let (offset, len) = match atomics.contains(opcode) {
                    true => (offset.next_multiple_of(8).max(GONE), 8),
                    false => (offset, len),
                };
                let what = format!("{opcode:?} of {len} bytes at {offset}, {}", victim.what);
                let (x, y) = pair(&a, &b, QpType::Rc);
                y.post_recv(70, &[b.sge(0, 8)]).unwrap();
                let request = SendWr {
                    remote_addr: victim.memory.addr() + offset,
                    rkey: victim.region.rkey(),
                    ..wr(1, *opcode)
                };
                x.post_send(&request, Payload::Sges(&[a.sge(0, len)])).unwrap();
                let refused = [(1, WcStatus::RemAccessErr)];
                assert_eq!(outcomes(&f.completions(&a, 1)), refused, "{what}");
                let flushed = [(70, WcStatus::WrFlushErr)];
                assert_eq!(outcomes(&f.completions(&b, 1)), flushed, "{what}");
                assert_eq!(f.event(&b).kind, EventKind::QpAccessErr, "{what}");
                assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err), "{what}");
            }
        }
    }
    others_work(f, &a, &b);
}

fn where_answers_are_to_go(f: &Fabric) {
    let (a, b) = f.two();
    for victim in victims(&a, true) {
        for (offset, len) in PLACES {
            for opcode in [WrOpcode::Read, WrOpcode::FetchAdd] {
                let len = if opcode == WrOpcode::Read { len } else { 8 };
                let offset = if opcode == WrOpcode::Read { offset } else { offset.max(GONE - 3) };
                let what = format!("{opcode:?} of {len} bytes to {offset}, {}", victim.what);
                let (x, _y) = pair(&a, &b, QpType::Rc);
                let sges = [victim.sge(offset, len)];
                x.post_send(&b.remote(1, opcode, 0), Payload::Sges(&sges)).unwrap();
                let found = f.completions(&a, 1);
                assert_eq!(outcomes(&found), [(1, WcStatus::LocProtErr)], "{what}");
                assert_eq!(found[0].vendor_err, VendorErr::MemoryFault as u32, "{what}");
                assert_eq!(x.state(), QpState::Err, "{what}");
                f.settle();
            }
        }
    }
    others_work(f, &a, &b);
}

fn unreliable_services(f: &Fabric) {
    let (a, b) = f.two();
    let datagram = |to: &Side, qp: &Qp| {
        let ah = AhAttr { dgid: to.gid(), is_global: true, port_num: 1, ..AhAttr::default() };
        let path = a.pd.create_ah(&ah).unwrap().path();
        let dest = UdDest { path, qpn: qp.qpn(), qkey: QKEY };
        SendWr { ud: Some(dest), ..wr(1, WrOpcode::Send) }
    };
    for victim in victims(&a, false) {
        for qp_type in [QpType::Uc, QpType::Ud] {
            let (x, y) = pair(&a, &b, qp_type);
            let request =
                if qp_type == QpType::Ud { datagram(&b, &y) } else { wr(1, WrOpcode::Send) };
            x.post_send(&request, Payload::Sges(&[victim.sge(GONE - 3, 8)])).unwrap();
            let what = format!("{qp_type:?}, {}", victim.what);
            assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::LocProtErr)], "{what}");
            assert_eq!((x.state(), y.state()), (QpState::Sqe, QpState::Rts), "{what}");
        }
    }
    for victim in victims(&b, true) {
        for qp_type in [QpType::Uc, QpType::Ud] {
            let (x, y) = pair(&a, &b, qp_type);
            let request =
                if qp_type == QpType::Ud { datagram(&b, &y) } else { wr(1, WrOpcode::Send) };
            y.post_recv(70, &[victim.sge(GONE - 42, 64)]).unwrap();
            y.post_recv(71, &[b.sge(0, 64)]).unwrap();
            x.post_send(&request, Payload::Sges(&[a.sge(0, 24)])).unwrap();
            let what = format!("{qp_type:?}, {}", victim.what);
            let sent = [(1, WcStatus::Success)];
            assert_eq!(outcomes(&f.completions(&a, 1)), sent, "{what}");
            if qp_type == QpType::Uc {
                // There it takes more to reach what is gone.
                x.post_send(&request, Payload::Sges(&[a.sge(0, 64)])).unwrap();
                y.post_recv(72, &[victim.sge(GONE - 42, 64)]).unwrap();
                x.post_send(&request, Payload::Sges(&[a.sge(0, 64)])).unwrap();
                f.completions(&a, 2);
                let want =
                    [(70, WcStatus::Success), (71, WcStatus::Success), (72, WcStatus::LocProtErr)];
                assert_eq!(outcomes(&f.completions(&b, 3)), want, "{what}");
            } else {
                let want = [(70, WcStatus::LocProtErr), (71, WcStatus::WrFlushErr)];
                assert_eq!(outcomes(&f.completions(&b, 2)), want, "{what}");
            }
            assert_eq!((x.state(), y.state()), (QpState::Rts, QpState::Err), "{what}");
        }
    }
    others_work(f, &a, &b);
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whatever the moment: a request completes with what it is to bring, or fails with the error of the side whose memory
/// it was, which a thread changes all the time.
fn memory_that_comes_and_goes_under_traffic(f: &Fabric) {
    let (a, b) = f.two();
    let mine = Victim::new("mine", &a, Mapping::anonymous(LEN).unwrap());
    let yours = Victim::new("yours", &b, Mapping::anonymous(LEN).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0u32;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let there = !round.is_multiple_of(3);
                mine.memory.protect_from(GONE as usize, there, there).unwrap();
                yours.memory.protect_from(GONE as usize, there, there).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        // Also when an assertion fails, or the scope waits for ever.
        let _stop = Stop(&stop);
        let (start, mut counts, mut round) = (Instant::now(), [0; 2], 0);
        while round < 200 || counts.contains(&0) {
            assert!(start.elapsed() < WATCHDOG, "{counts:?} of {round}");
            round += 1;
            let (x, y) = pair(&a, &b, QpType::Rc);
            y.post_recv(70, &[yours.sge(0, LEN as u32)]).unwrap();
            let opcode = [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read][round % 3];
            let request = SendWr {
                remote_addr: yours.memory.addr(),
                rkey: yours.region.rkey(),
                ..wr(1, opcode)
            };
            x.post_send(&request, Payload::Sges(&[mine.sge(0, LEN as u32)])).unwrap();
            let status = f.completion(&a).status;
            let expected = [
                WcStatus::Success,
                WcStatus::LocProtErr,
                if opcode == WrOpcode::Send { WcStatus::RemOpErr } else { WcStatus::RemAccessErr },
            ];
            assert!(expected.contains(&status), "{opcode:?}: {status:?}");
            counts[usize::from(status == WcStatus::Success)] += 1;
            x.destroy().unwrap();
            y.destroy().unwrap();
            f.settle();
            b.poll();
            while let Some(event) = b.next_event() {
                event.ack();
            }
        }
    });
    others_work(f, &a, &b);
}
