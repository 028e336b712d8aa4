//! Posting, polling and receiving allocate nothing once they have run for a moment.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use common::*;
use ironverbs_soft::config::{DataPath, OneSided};
use ironverbs_soft::*;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn counted() {
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        counted();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Polls `from` and `to` until each has a completion.
fn both_complete(from: &Side, to: &Side) {
    let (start, mut sent, mut received) = (Instant::now(), 0, 0);
    while sent == 0 || received == 0 {
        sent += from.cq.poll(16, |wc| assert_eq!(wc.status, WcStatus::Success)).unwrap();
        received += to.cq.poll(16, |wc| assert_eq!(wc.status, WcStatus::Success)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(30), "{sent} sent, {received} received");
    }
}

/// Allocations of this thread while it sends `rounds` messages of each kind between two Hosts.
fn allocations(a: &Side, b: &Side, x: &Qp, y: &Qp, rounds: u32) -> u64 {
    let before = COUNT.get();
    let write = SendWr {
        remote_addr: b.memory.addr(),
        rkey: b.mr.rkey(),
        imm: [1; 4],
        ..wr(2, WrOpcode::WriteWithImm)
    };
    for _ in 0..rounds {
        y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        both_complete(a, b);
        y.post_recv(1, &[b.sge(0, 4096)]).unwrap();
        x.post_send(&write, Payload::Sges(&[a.sge(0, 60_000)])).unwrap();
        both_complete(a, b);
    }
    COUNT.get() - before
}

/// Allocations of this thread while it posts `rounds` of each kind of one-sided requests.
fn one_sided_allocations(a: &Side, b: &Side, x: &Qp, rounds: u32) -> u64 {
    let before = COUNT.get();
    let opcodes = [WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd];
    for round in 0..rounds {
        for opcode in opcodes {
            let len = if round % 2 == 0 || opcode == WrOpcode::FetchAdd { 8 } else { 60_000 };
            let request =
                SendWr { remote_addr: b.memory.addr(), rkey: b.mr.rkey(), ..wr(3, opcode) };
            x.post_send(&request, Payload::Sges(&[a.sge(0, len)])).unwrap();
            let (start, mut done) = (Instant::now(), 0);
            while done == 0 {
                done = a.cq.poll(16, |wc| assert_eq!(wc.status, WcStatus::Success)).unwrap();
                b.cq.poll(16, |_| {}).unwrap();
                assert!(start.elapsed() < Duration::from_secs(30));
            }
        }
    }
    COUNT.get() - before
}

fn assert_none(path: DataPath, onesided: OneSided) {
    let config = || {
        let mut config = Config::default();
        config.path.value = path;
        config.onesided.value = onesided;
        config
    };
    let a = Side::new(Host::start(config()).unwrap(), 1 << 17);
    let b = Side::new(Host::start(config()).unwrap(), 1 << 17);
    let (x, y) = pair(&a, &b, QpType::Rc);
    assert_eq!(x.is_local(), path == DataPath::Auto);
    allocations(&a, &b, &x, &y, 200);
    let some = allocations(&a, &b, &x, &y, 500);
    // A queue may still grow when the background thread comes between; what each message costs shows 1,000 times.
    assert!(some < 20, "{some} allocations for 1,000 messages");
    one_sided_allocations(&a, &b, &x, 200);
    let some = one_sided_allocations(&a, &b, &x, 500);
    assert!(some < 20, "{some} allocations for 1,500 one-sided requests");
    let direct = x.counters().direct.total().messages;
    assert_eq!(direct > 900, path == DataPath::Auto && onesided != OneSided::Off);
}

#[test]
fn messages_over_udp_allocate_nothing() {
    assert_none(DataPath::Wire, OneSided::Auto);
}

#[test]
fn messages_through_shared_memory_allocate_nothing() {
    assert_none(DataPath::Auto, OneSided::Off);
}

#[test]
fn one_sided_requests_without_packets_allocate_nothing() {
    assert_none(DataPath::Auto, OneSided::Auto);
    assert_none(DataPath::Auto, OneSided::Kernel);
}
