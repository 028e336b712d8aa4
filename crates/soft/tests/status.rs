//! What a process tells of itself, as others read it.

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::*;
use ironverbs_soft::config::{Setting, Source};
use ironverbs_soft::registry::{JoinOptions, Observer};
use ironverbs_soft::*;

fn side(port: u16) -> Side {
    let udp_port = Setting { value: port, source: Source::Default };
    let interfaces = Setting { value: vec!["lo".to_owned()], source: Source::Default };
    let config = Config { udp_port, interfaces, ..Config::default() };
    Side::new(Host::start(config).unwrap(), 1 << 16)
}

fn port(test: u16) -> u16 {
    23_500 + (std::process::id() % 100) as u16 * 10 + test
}

fn processes(port: u16) -> Vec<ProcessStatus> {
    let options = JoinOptions { port, ..JoinOptions::default() };
    let uid = ironverbs_sys::process::uid();
    Observer::find(&options, uid).unwrap().map(|group| group.processes()).unwrap_or_default()
}

/// One test at a time: what shared memory one of them holds is of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn queue_pairs_are_told_from_first_to_last() {
    let _alone = ALONE.lock();
    let port = port(0);
    assert!(processes(port).is_empty());
    let (a, b) = (side(port), side(port));
    let (x, y) = pair(&a, &b, QpType::Rc);
    let spare = b.qp(QpType::Ud);
    for wr_id in 0..5 {
        y.post_recv(wr_id, &[b.sge(0, 100)]).unwrap();
        x.post_send(&wr(wr_id, WrOpcode::Send), Payload::Sges(&[a.sge(0, 100)])).unwrap();
    }
    let mut done = 0;
    until("completions", || {
        done += a.poll().len() + b.poll().len();
        done == 10
    });
    // What was counted is told soon, not at once.
    let told = || {
        let [of_a, of_b] = processes(port).try_into().ok()?;
        let counters = |process: &ProcessStatus, qp: &Qp| {
            process.qps.iter().find(|told| told.qpn == qp.qpn()).map(|told| told.counters)
        };
        let all =
            counters(&of_a, &x) == Some(x.counters()) && counters(&of_b, &y) == Some(y.counters());
        all.then_some(())
    };
    until("all that was counted", || told().is_some());
    let found = processes(port);
    let [of_a, of_b] = found.as_slice() else { panic!("{found:?}") };
    assert!(of_a.slot < of_b.slot);
    assert_eq!(of_a.pid, std::process::id());
    assert!(of_a.same_pid_namespace && of_a.since > 0 && of_a.command.starts_with("status"));
    let [qp] = of_a.qps.as_slice() else { panic!("{of_a:?}") };
    assert_eq!((qp.qpn, qp.qp_type, qp.state), (x.qpn(), QpType::Rc, QpState::Rts));
    assert_eq!((qp.peer, qp.peer_slot, qp.srq), (Some((b.gid(), y.qpn())), Some(of_b.slot), false));
    assert_eq!(qp.counters, x.counters());
    assert_eq!(qp.counters.tx_messages, 5);
    let told = |qpn: u32| of_b.qps.iter().find(|qp| qp.qpn == qpn).cloned();
    assert_eq!(told(y.qpn()).unwrap().counters.rx_messages, 5);
    let ud = told(spare.qpn()).unwrap();
    assert_eq!((ud.qp_type, ud.state, ud.peer), (QpType::Ud, QpState::Reset, None));

    spare.destroy().unwrap();
    x.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    let found = processes(port);
    assert_eq!((found[0].qps[0].state, found[1].qps.len()), (QpState::Err, 1));
    drop((x, a));
    until("it is gone", || processes(port).len() == 1);
}

#[test]
fn ten_thousand_looks_at_many_queue_pairs_cost_no_memory() {
    let _alone = ALONE.lock();
    let port = port(1);
    let side = side(port);
    let qps: Vec<_> = (0..600).map(|_| side.qp(QpType::Rc)).collect();
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let shared = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
        shared.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    for _ in 0..20 {
        let found = processes(port);
        assert_eq!(found[0].qps.len(), 600);
        assert!(qps.iter().zip(&found[0].qps).all(|(qp, told)| told.state == qp.state()));
    }
    assert!(resident() <= before + 64, "{before} to {} KiB", resident());
}

#[test]
fn what_blocks_a_destroy_is_told() {
    let _alone = ALONE.lock();
    let port = port(2);
    let side = side(port);
    let channel = side.context.create_channel().unwrap();
    let cq = side.context.create_cq(4, Some(&channel), 0).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..side.init(QpType::Rc) };
    let qp = side.pd.create_qp(&init).unwrap();
    cq.request_notify(false).unwrap();
    connect(&qp, &attr(side.gid(), qp.qpn()));
    qp.post_recv(1, &[]).unwrap();
    qp.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    let event = channel.next_event().unwrap();
    drop(event);
    qp.destroy().unwrap();
    drop((qp, init));
    assert!(processes(port)[0].waits.is_empty());
    std::thread::scope(|scope| {
        let destroy = scope.spawn(|| cq.destroy());
        let mut waits = Vec::new();
        until("the wait is told", || {
            waits = processes(port).remove(0).waits;
            !waits.is_empty()
        });
        let wait = &waits[0];
        assert_eq!((wait.verb, wait.object, wait.number), ("ibv_destroy_cq", "CQ", cq.handle()));
        assert_eq!((wait.missing, wait.count), ("unacknowledged completion event", 1));
        cq.ack_events(1);
        destroy.join().unwrap().unwrap();
    });
    assert!(processes(port)[0].waits.is_empty());
}
