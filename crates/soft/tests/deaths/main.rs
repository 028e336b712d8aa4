//! Connections whose other process ends: killed, in good order, stopped, or forked.

#[path = "../child/mod.rs"]
mod child;
#[path = "../common/mod.rs"]
mod common;
mod forks;
mod peer;
mod traffic;

use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use ironverbs_soft::*;

use common::*;
use peer::*;
use traffic::*;

/// What is held is counted by the process: the test that counts excludes the others.
static COUNTING: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

/// Not a test: what the peers run.
#[test]
fn peer_process() {
    let Some((side, joined, words)) = role() else { return };
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        // Traffic until it is killed.
        ["busy", what] => {
            let mut traffic = Traffic::new(&side, &joined, Work::parse(what));
            traffic.ready();
            say("busy");
            loop {
                traffic.round();
            }
        }
        ["echo"] => forks::echo(&side, &joined),
        // Takes one message, the others when it is told to.
        ["slow"] => {
            joined.qp.post_recv(0, &[side.sge(0, 64)]).unwrap();
            say("ready");
            told();
            for wr_id in 1..8 {
                joined.qp.post_recv(wr_id, &[side.sge(0, 64)]).unwrap();
            }
            let mut taken = 0;
            eventually("all messages", || {
                taken += side.poll().len();
                taken == 8
            });
            told();
        }
        // Takes one message and ends right after its completion.
        ["take", how] => {
            joined.qp.post_recv(1, &[side.sge(0, 64)]).unwrap();
            // More than come.
            joined.qp.post_recv(2, &[side.sge(64, 64)]).unwrap();
            say("ready");
            eventually("a message", || !side.poll().is_empty());
            end(how);
        }
        // Sends as much as fits, and ends when the last message has been taken.
        ["idle", how] => {
            told();
            end(how);
        }
        _ => panic!("{words:?}"),
    }
}

fn end(how: &str) -> ! {
    if how == "exec" {
        let error = std::process::Command::new("sleep").arg("60").exec();
        panic!("{error}");
    }
    if how == "killed" {
        // As _exit(2): nothing of ours runs any more.
        let _ = ironverbs_sys::process::signal(std::process::id(), 9);
    }
    std::process::exit(0)
}

fn statuses(found: &[Wc]) -> Vec<(u64, WcStatus)> {
    found.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

fn events(side: &Side) -> Vec<EventKind> {
    let mut kinds = Vec::new();
    while let Ok(event) = side.context.next_async_event() {
        event.ack();
        kinds.push(event.kind);
    }
    kinds
}

/// What follows a message that the receiver was not ready for is dropped. That it is says nothing of the receiver's
/// process, which may be stopped as any other.
#[test]
fn a_receiver_that_is_not_ready_may_be_stopped() {
    let _shared = COUNTING.read();
    let side = side(port(10));
    let port = side.host.config().udp_port.value;
    let (mut peer, joined) = Peer::connect(port, &side, &side.init(QpType::Rc), "slow");
    assert_eq!(peer.line(), "ready");
    // While polls are counted nobody else takes what comes: so it is not heard at once that the receiver is not ready, and
    // the last ones arrive after that was said.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        assert!(side.poll().is_empty());
    }
    for wr_id in 0..8 {
        let sge = side.sge(0, 8);
        joined.qp.post_send(&wr(wr_id, WrOpcode::Send), Payload::Sges(&[sge])).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(20) {}
    }
    let mut found = Vec::new();
    eventually("that it is not ready", || {
        found.extend(side.poll());
        joined.qp.counters().rnr_naks_received > 0
    });
    // A part of what it is to be waited for, in which the others arrive there.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        found.extend(side.poll());
    }
    peer.stop();
    // Several times what all retries take.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        found.extend(side.poll());
        std::thread::yield_now();
    }
    peer.signal(SIGCONT);
    peer.tell("go");
    eventually("all completions", || {
        found.extend(side.poll());
        found.len() == 8
    });
    assert!(found.iter().all(|wc| wc.status == WcStatus::Success), "{:?}", statuses(&found));
}

/// Completions until there is one with an error, and how long that took.
fn until_error(side: &Side, found: &mut Vec<Wc>) -> Duration {
    let start = Instant::now();
    eventually("an error", || {
        found.extend(side.poll());
        found.iter().any(|wc| wc.status != WcStatus::Success)
    });
    start.elapsed()
}

#[test]
fn who_only_waits_for_messages_hears_of_a_kill() {
    let _shared = COUNTING.read();
    for (n, qp_type) in [QpType::Rc, QpType::Uc].into_iter().enumerate() {
        let side = side(port(n as u16));
        nonblocking(&side);
        let (mut peer, joined) =
            Peer::connect(side.host.config().udp_port.value, &side, &side.init(qp_type), "idle x");
        for wr_id in 1..4 {
            joined.qp.post_recv(wr_id, &[side.sge(0, 64)]).unwrap();
        }
        peer.kill();
        let mut found = Vec::new();
        until_error(&side, &mut found);
        let flushed = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::WrFlushErr));
        assert_eq!(statuses(&found), flushed);
        assert_eq!(joined.qp.state(), QpState::Err);
        assert!(events(&side).contains(&EventKind::QpFatal));
    }
}

#[test]
fn what_was_asked_of_a_killed_process_fails_with_the_reason() {
    let _shared = COUNTING.read();
    let side = side(port(2));
    let (mut peer, joined) =
        Peer::connect(side.host.config().udp_port.value, &side, &side.init(QpType::Rc), "idle x");
    joined.qp.post_recv(9, &[side.sge(0, 64)]).unwrap();
    peer.stop();
    for wr_id in 1..4 {
        joined.qp.post_send(&wr(wr_id, WrOpcode::Send), Payload::Sges(&[side.sge(0, 8)])).unwrap();
    }
    peer.kill();
    let mut found = Vec::new();
    until_error(&side, &mut found);
    let expected = [
        (1, WcStatus::RetryExcErr),
        (2, WcStatus::WrFlushErr),
        (3, WcStatus::WrFlushErr),
        (9, WcStatus::WrFlushErr),
    ];
    assert_eq!(statuses(&found), expected);
    assert_eq!(found[0].vendor_err, VendorErr::PeerKilled as u32);
}

#[test]
fn a_process_that_becomes_another_program_is_missed() {
    let _shared = COUNTING.read();
    let side = side(port(9));
    let port = side.host.config().udp_port.value;
    let (mut peer, joined) = Peer::connect(port, &side, &side.init(QpType::Rc), "idle exec");
    joined.qp.post_recv(9, &[side.sge(0, 64)]).unwrap();
    peer.tell("go");
    eventually("the other program", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", peer.pid()));
        name.is_ok_and(|name| name.trim() == "sleep")
    });
    // It lives; but nobody is there who could take anything.
    joined.qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[side.sge(0, 8)])).unwrap();
    let mut found = Vec::new();
    until_error(&side, &mut found);
    assert_eq!(statuses(&found), [(1, WcStatus::RetryExcErr), (9, WcStatus::WrFlushErr)]);
    // Nor does anybody wait for it.
    joined.qp.destroy().unwrap();
    side.mr.destroy().unwrap();
    peer.kill();
}

#[test]
fn who_ends_in_good_order_leaves_no_error_behind() {
    let _shared = COUNTING.read();
    for (n, how) in ["exit", "killed"].into_iter().enumerate() {
        let side = side(port(3 + n as u16));
        nonblocking(&side);
        let port = side.host.config().udp_port.value;
        for _ in 0..10 {
            let (mut peer, joined) =
                Peer::connect(port, &side, &side.init(QpType::Rc), &format!("take {how}"));
            joined.qp.post_recv(9, &[side.sge(0, 64)]).unwrap();
            assert_eq!(peer.line(), "ready");
            let sge = side.sge(0, 64);
            joined.qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[sge])).unwrap();
            // What the peer has taken is a success, whatever came of the peer.
            let mut found = Vec::new();
            eventually("a completion", || {
                found.extend(side.poll());
                !found.is_empty()
            });
            // Who was away for longer than a killed process is mourned finds that its connection has failed, too.
            let late = how == "killed" && found.len() > 1;
            let flushed = late.then_some((9, WcStatus::WrFlushErr));
            let expected: Vec<_> = [(1, WcStatus::Success)].into_iter().chain(flushed).collect();
            assert_eq!(statuses(&found), expected, "{how}");
            let code = peer.wait();
            assert_eq!(code, (how == "exit").then_some(0));
            if how == "exit" {
                // Who waits for its messages waits, as on a network.
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(400) {
                    assert!(side.poll().is_empty());
                    std::thread::yield_now();
                }
                assert_eq!(joined.qp.state(), QpState::Rts);
                assert!(events(&side).is_empty());
            }
        }
    }
}

#[test]
fn a_stop_of_ten_seconds_loses_nothing() {
    let _shared = COUNTING.read();
    let side = side(port(5));
    let port = side.host.config().udp_port.value;
    let (peer, joined) = Peer::connect(port, &side, &side.init(QpType::Rc), "busy send");
    let mut traffic = Traffic::new(&side, &joined, Work::Send);
    traffic.ready();
    assert_eq!(peer.line(), "busy");
    let goes_on = |traffic: &mut Traffic<'_>| {
        let failed = traffic.round();
        assert!(failed.is_empty(), "{failed:?}");
    };
    eventually("traffic", || {
        goes_on(&mut traffic);
        traffic.received > 100
    });
    peer.stop();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        goes_on(&mut traffic);
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = (traffic.received, traffic.sent);
    peer.signal(SIGCONT);
    let start = Instant::now();
    while traffic.received <= before.0 + 1000 || traffic.sent <= before.1 + 1000 {
        goes_on(&mut traffic);
        let counters = joined.qp.counters();
        assert!(start.elapsed() < WATCHDOG, "{before:?}, {traffic:?}, {counters:?}");
        std::thread::yield_now();
    }
}

/// How many rounds: `IRONVERBS_KILLS`, else enough to show a fault.
fn rounds() -> u32 {
    std::env::var("IRONVERBS_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

#[test]
fn kills_at_random_moments_cost_the_survivor_nothing_but_the_connection() {
    let _alone = COUNTING.write();
    let side = side(port(6));
    nonblocking(&side);
    let port = side.host.config().udp_port.value;
    let seed = std::env::var("IRONVERBS_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = fastrand::Rng::with_seed(seed.unwrap_or(6));
    let mut delays = Vec::new();
    let mut moved = 0;
    let mut start = None;
    for round in 0..rounds() {
        let (ours, theirs) = (Work::random(&mut random), Work::random(&mut random));
        let srq =
            random.bool().then(|| side.pd.create_srq(SrqInit { max_wr: 64, max_sge: 1 }).unwrap());
        let init = QpInit { srq, ..side.init(QpType::Rc) };
        let (mut peer, joined) = Peer::connect(port, &side, &init, &format!("busy {theirs}"));
        let mut traffic = Traffic::new(&side, &joined, ours);
        traffic.ready();
        assert_eq!(peer.line(), "busy");
        let due = Instant::now() + Duration::from_micros(random.u64(..3000));
        while Instant::now() < due {
            assert!(traffic.round().is_empty(), "{ours} and {theirs}: an error before the death");
        }
        peer.kill();
        let killed = Instant::now();
        let mut failed = Vec::new();
        eventually("an error", || {
            failed.extend(traffic.round());
            // With an SRQ nothing may be posted that could fail.
            !failed.is_empty() || events(&side).contains(&EventKind::QpFatal)
        });
        delays.push(killed.elapsed());
        for wc in &failed {
            let defined = matches!(wc.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr);
            assert!(defined, "round {round}, {ours} and {theirs}: {wc:?}");
        }
        assert_eq!(joined.qp.state(), QpState::Err);
        moved += traffic.sent + traffic.received;
        // Deregistration returns.
        let region = unsafe_region(&side);
        region.destroy().unwrap();
        let srq = init.srq.clone();
        joined.qp.destroy().unwrap();
        drop(joined);
        drop(init);
        if let Some(srq) = srq {
            srq.destroy().unwrap();
        }
        side.poll();
        peer.wait();
        peer.drained();
        drop(peer);
        if round == 9 {
            start = Some(Holdings::now());
        }
    }
    eventually("the dead are forgotten", || {
        side.poll();
        side.host.members().len() == 1
    });
    delays.sort();
    let (median, longest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    let end = Holdings::settled(start);
    eprintln!(
        "{} kills, {moved} messages: an error after {median:?} (median), {longest:?} (longest); {start:?} to {end:?}",
        delays.len()
    );
    assert!(moved > u64::from(rounds()), "{moved}: nothing was going on");
    if let Some(start) = start {
        // What other tests' peers said may still have been read when it was counted.
        assert!(end.files <= start.files, "{start:?} to {end:?}");
        assert_eq!(end.lanes, 0);
        // Some pages of the tables of freed numbers, and the allocator's.
        assert!(end.kib < start.kib + 2048, "{start:?} to {end:?}");
    }
}
