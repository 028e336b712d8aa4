//! What only a real machine has: its interfaces, its ports, other programs.

use std::net::UdpSocket;

use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_soft::*;

use crate::fabric::{Fabric, config, port};
use crate::side::{Side, attr, connect, outcomes, pair, wr};

#[test]
fn an_interface_that_is_not_there_gives_no_device() {
    let interfaces = Setting { value: vec!["nosuch0".to_owned()], source: Source::Default };
    let host = Host::start(Config { interfaces, ..config(port(), DataPath::Wire) }).unwrap();
    assert!(host.devices().unwrap().is_empty());
    assert!(host.members().is_empty());
}

#[test]
fn there_is_always_a_device() {
    // Whatever this machine has, were it only a loopback interface.
    let interfaces = Setting { value: Vec::new(), source: Source::Default };
    let host = Host::start(Config { interfaces, ..config(port(), DataPath::Wire) }).unwrap();
    let devices = host.devices().unwrap();
    assert!(!devices.is_empty());
    let mut guids: Vec<_> = devices.iter().map(|device| device.guid()).collect();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), devices.len());
    assert!(!guids.contains(&0));
    for (index, device) in devices.iter().enumerate() {
        assert_eq!(device.index() as usize, index);
        assert_eq!(device.name(), format!("iron{index}"));
        // Looking at it joins nothing and starts nothing.
        let context = device.inspect().unwrap();
        assert_eq!(context.port(1).unwrap().state, PortState::Down);
        assert!(!context.gid_table(1).is_empty());
    }
    assert!(host.members().is_empty());
}

#[test]
fn a_port_that_is_taken_leaves_the_device_down_and_says_by_whom() {
    let port = port();
    let taken = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    let host = Host::start(config(port, DataPath::Wire)).unwrap();
    let device = host.devices().unwrap().remove(0);
    let context = device.open().unwrap();
    assert_eq!(context.port(1).unwrap().state, PortState::Down);
    let why = context.wire_problem().unwrap();
    let me = std::process::id().to_string();
    assert!(why.contains(&port.to_string()) && why.contains(&me), "{why}");
    // Objects can be made all the same, and requests end in errors.
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, None, 0).unwrap();
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() },
        sq_sig_all: true,
    };
    let qp = pd.create_qp(&init).unwrap();
    let gid = context.gid(1, 0).unwrap().gid;
    connect(&qp, &QpAttr { timeout: 8, retry_cnt: 1, ..attr(gid, 0x1234) });
    qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[])).unwrap();
    let mut found = Vec::new();
    let start = std::time::Instant::now();
    while found.is_empty() {
        assert!(start.elapsed() < crate::fabric::WATCHDOG);
        cq.poll(1, |wc| found.push(*wc)).unwrap();
    }
    assert_eq!(outcomes(&found), [(1, WcStatus::RetryExcErr)]);
    drop(taken);
}

#[test]
fn a_port_that_becomes_free_is_taken() {
    let port = port();
    let taken = UdpSocket::bind(("0.0.0.0", port)).unwrap();
    let host = Host::start(config(port, DataPath::Wire)).unwrap();
    let context = host.devices().unwrap()[0].open().unwrap();
    assert_eq!(context.port(1).unwrap().state, PortState::Down);
    drop(taken);
    let start = std::time::Instant::now();
    loop {
        // Opening tries again, as a program does that is started anew.
        let other = host.devices().unwrap()[0].open().unwrap();
        if other.port(1).unwrap().state == PortState::Active {
            break;
        }
        assert!(start.elapsed() < crate::fabric::WATCHDOG);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(context.port(1).unwrap().state, PortState::Active);
    assert_eq!(context.wire_problem(), None);
}

#[test]
fn members_come_and_go() {
    let f = Fabric::udp();
    let first = f.host();
    let a = Side::new(&first, 4096);
    assert_eq!(first.members().len(), 1);
    let port = first.config().udp_port.value;
    for _ in 0..5 {
        let second = Host::start(config(port, DataPath::Wire)).unwrap();
        let b = Side::new(&second, 4096);
        assert_eq!((first.members().len(), second.members().len()), (2, 2));
        let (x, y) = pair(&a, &b, QpType::Rc);
        y.post_recv(1, &[]).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[])).unwrap();
        f.until("both", || {
            second.progress();
            x.counters().tx_messages == 1
        });
        a.poll();
        drop((x, y, b, second));
        f.until("it is gone", || first.members().len() == 1);
    }
}

#[test]
fn many_hosts_of_one_process() {
    let f = Fabric::udp();
    let sides: Vec<_> = (0..8).map(|_| f.side()).collect();
    // Everyone with everyone.
    for (i, a) in sides.iter().enumerate() {
        for b in &sides[i + 1..] {
            let (x, y) = pair(a, b, QpType::Rc);
            y.post_recv(1, &[b.sge(0, 8000)]).unwrap();
            x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8000)])).unwrap();
            assert_eq!(outcomes(&f.completions(a, 1)), [(2, WcStatus::Success)]);
            assert_eq!(outcomes(&f.completions(b, 1)), [(1, WcStatus::Success)]);
        }
    }
}

#[test]
fn a_stretched_clock_stretches_the_timers() {
    let port = port();
    let timeout_scale = Setting { value: 10, source: Source::Default };
    let host = Host::start(Config { timeout_scale, ..config(port, DataPath::Wire) }).unwrap();
    let side = Side::new(&host, 4096);
    let qp = side.qp(QpType::Rc);
    // Nobody there: two timeouts of 4.2 ms, ten times as long.
    connect(&qp, &QpAttr { timeout: 10, retry_cnt: 1, ..attr(side.gid(), 0x1234) });
    let start = std::time::Instant::now();
    qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[])).unwrap();
    while side.poll().is_empty() {
        assert!(start.elapsed() < crate::fabric::WATCHDOG);
    }
    assert!(start.elapsed() >= std::time::Duration::from_micros(83_000));
}

#[test]
fn a_fork_can_do_nothing_and_disturbs_nobody() {
    let f = Fabric::udp();
    let (a, b) = f.two();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let host = f.host();
    let srq = a.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap();
    let spare = a.context.create_cq(1, Some(&a.channel), 0).unwrap();
    // In use by other threads at the time of the fork.
    a.cq.request_notify(false).unwrap();
    x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let (context, pd, mr, cq, qp) =
        (a.context.clone(), a.pd.clone(), a.mr.clone(), a.cq.clone(), x.clone());
    let (addr, lkey) = (a.memory.addr(), a.mr.lkey());
    let attempts = move || -> std::io::Result<()> {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        let sge = Sge { addr, len: 8, lkey };
        let refused = [
            host.devices().is_err(),
            context.alloc_pd().is_err(),
            context.create_channel().is_err(),
            context.create_cq(1, None, 0).is_err(),
            pd.create_qp(&init).is_err(),
            qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[sge])).is_err(),
            qp.post_recv(1, &[sge]).is_err(),
            qp.modify(&QpAttr::default(), AttrMask::STATE).is_err(),
            cq.poll(1, |_| {}).is_err(),
            cq.request_notify(false).is_err(),
            qp.destroy().is_err(),
            srq.destroy().is_err(),
            mr.destroy().is_err(),
            spare.destroy().is_err(),
            context.destroy().is_err(),
            !host.progress(),
            host.members().is_empty(),
        ];
        match refused.iter().position(|refused| !refused) {
            None => Ok(()),
            // The number of the attempt comes out as an errno.
            Some(n) => Err(std::io::Error::from_raw_os_error(1000 + n as i32)),
        }
    };
    for _ in 0..5 {
        let mut child = std::process::Command::new("true");
        let attempts = attempts.clone();
        // SAFETY: what it calls is meant to fail at once in a fork, without locks or the heap; that it does is
        // what is tested, and the child ends whatever comes.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut child, attempts) };
        assert!(child.status().unwrap().success());
    }
    drop(attempts);
    assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::Success)]);
    y.post_recv(3, &[b.sge(0, 8)]).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&a, 1)), [(2, WcStatus::Success)]);
    assert_eq!(outcomes(&f.completions(&b, 1)), [(3, WcStatus::Success)]);
}

#[test]
fn as_many_queue_pairs_as_advertised() {
    let f = Fabric::udp();
    // The first member of a group, and one that came later.
    for side in [f.side(), f.side()] {
        let max = side.context.attr().max_qp as usize;
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
        let init = QpInit { cap, ..side.init(QpType::Rc) };
        let mut qps: Vec<_> = (0..max).map(|_| side.pd.create_qp(&init).unwrap()).collect();
        let numbers: std::collections::HashSet<_> = qps.iter().map(|qp| qp.qpn()).collect();
        assert_eq!(numbers.len(), max);
        let error = side.pd.create_qp(&init).unwrap_err();
        assert_eq!(error.errno(), ironverbs_sys::errno::ENOMEM, "{error}");
        qps.pop().unwrap().destroy().unwrap();
        // None is left that has rested: better one that has not than none.
        side.pd.create_qp(&init).unwrap();
    }
}
