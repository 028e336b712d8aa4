//! Multicast over a cable, where Linux gives an IPv4 packet to any process of the host if one alone has joined. Each
//! case runs in a network namespace of its own: the test makes it and runs itself in it. That needs root and iproute2;
//! without them these tests fail and say so.

mod common;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Side, attr, connect, wr};
use ironverbs_soft::config::{Setting, Source};
use ironverbs_soft::*;

/// Tells a run of this program that it is inside already.
const INSIDE: &str = "IN_NAMESPACE_OF_ITS_OWN";

const QKEY: u32 = 0x1111_1111;

fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    struct Namespace(String);
    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
        }
    }
    let namespace = Namespace(format!("ironverbs-group-{}-{test}", std::process::id()));
    let made = Command::new("ip").args(["netns", "add", &namespace.0]).output();
    let made = made.expect("needs `ip` of iproute2");
    let why = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN): {why}");
    let output = Command::new("ip")
        .args(["netns", "exec", &namespace.0])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {why}");
}

/// A cable from `va` to `vb`. Both ends are of this namespace, so `vb` is told to take packets from its own addresses.
fn cable() {
    ip("link set lo up");
    ip("link add va type veth peer name vb");
    std::fs::write("/proc/sys/net/ipv4/conf/vb/accept_local", "1").unwrap();
    for (name, v4, v6) in
        [("va", "10.9.0.1/24", "fd00:9::1/64"), ("vb", "10.9.1.1/24", "fd00:9:1::1/64")]
    {
        ip(&format!("address add {v4} dev {name}"));
        ip(&format!("-6 address add {v6} dev {name} nodad"));
        ip(&format!("link set {name} up"));
    }
    // Until the kernel has made sure that no one else has the addresses it gave, IPv6 is not ready.
    let start = Instant::now();
    let ready = |name| {
        let output = Command::new("ip").args(["-6", "address", "show", "dev", name]).output();
        let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        text.contains("fe80") && !text.contains("tentative")
    };
    while !(ready("va") && ready("vb")) {
        assert!(start.elapsed() < Duration::from_secs(30), "no IPv6");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process's device on one end.
fn side(interface: &str) -> Side {
    let interfaces = Setting { value: vec![interface.to_owned()], source: Source::Default };
    let side = Side::new(Host::start(Config { interfaces, ..Config::default() }).unwrap(), 1 << 20);
    assert_eq!(side.context.wire_problem(), None);
    side
}

/// A UD queue pair that is ready, with receives.
fn member(side: &Side, offset: u64) -> Arc<Qp> {
    let qp = side.qp(QpType::Ud);
    connect(&qp, &attr(side.gid(), 0));
    for i in 0..8 {
        qp.post_recv(i, &[side.sge(offset + i * 4096, 4096)]).unwrap();
    }
    qp
}

fn send(from: &Side, x: &Qp, group: &str, bytes: &[u8]) {
    let dgid: Gid = group.parse().unwrap();
    let entries = from.context.gid_table(1);
    // An IPv6 group is sent to from a global address here.
    let fits = |e: &&GidEntry| e.gid.is_ipv4() == dgid.is_ipv4() && !e.gid.is_link_local();
    let sgid_index = entries.iter().find(fits).unwrap().index as u8;
    let attr = AhAttr {
        dgid,
        is_global: true,
        port_num: 1,
        sgid_index,
        hop_limit: 4,
        ..AhAttr::default()
    };
    let path = from.pd.create_ah(&attr).unwrap().path();
    let ud = Some(UdDest { path, qpn: 0xff_ffff, qkey: QKEY });
    from.fill(0, bytes);
    let sge = from.sge(0, bytes.len() as u32);
    x.post_send(&SendWr { ud, ..wr(99, WrOpcode::Send) }, Payload::Sges(&[sge])).unwrap();
}

/// How many receives each side completes until nothing has come for a while.
fn received(sides: &[&Side], expected: usize) -> Vec<usize> {
    let mut counts = vec![0; sides.len()];
    let (start, mut quiet) = (Instant::now(), Instant::now());
    while start.elapsed() < Duration::from_secs(30)
        && (counts.iter().sum::<usize>() < expected || quiet.elapsed() < Duration::from_millis(100))
    {
        for (side, count) in sides.iter().zip(&mut counts) {
            let receives = side.poll().iter().filter(|wc| wc.opcode == WcOpcode::Recv).count();
            if receives > 0 {
                quiet = Instant::now();
                *count += receives;
            }
        }
    }
    counts
}

/// Each of these is sent to by `va`, with one and then two processes of the other end attached.
fn all_members_hear(group: &str) {
    cable();
    let a = side("va");
    let others: Vec<_> = (0..4).map(|_| side("vb")).collect();
    let sides: Vec<_> = others.iter().chain([&a]).collect();
    let x = member(&a, 65_536);
    let gid = group.parse().unwrap();

    let last = member(&others[3], 0);
    last.attach_mcast(&gid).unwrap();
    for text in [b"1", b"2", b"3"] {
        send(&a, &x, group, text);
        assert_eq!(received(&sides, 1), [0, 0, 0, 1, 0]);
        assert_eq!(last.counters().dropped.total(), 0);
    }
    assert_eq!(others[3].read(2 * 4096 + 40, 1), b"3");

    let (second, third) = (member(&others[1], 0), member(&others[1], 65_536));
    second.attach_mcast(&gid).unwrap();
    third.attach_mcast(&gid).unwrap();
    send(&a, &x, group, b"4");
    assert_eq!(received(&sides, 3), [0, 2, 0, 1, 0]);

    // The sender's own host hears it once too, by a loop inside the kernel.
    x.attach_mcast(&gid).unwrap();
    send(&a, &x, group, b"5");
    assert_eq!(received(&sides, 4), [0, 2, 0, 1, 1]);

    second.detach_mcast(&gid).unwrap();
    third.detach_mcast(&gid).unwrap();
    x.detach_mcast(&gid).unwrap();
    send(&a, &x, group, b"6");
    assert_eq!(received(&sides, 1), [0, 0, 0, 1, 0]);
    last.detach_mcast(&gid).unwrap();
    send(&a, &x, group, b"7");
    assert_eq!(received(&sides, 0), [0; 5]);
    assert!(gid.to_ip().is_multicast());
}

#[test]
fn members_of_an_ipv4_group_hear_once() {
    alone("members_of_an_ipv4_group_hear_once", || all_members_hear("239.7.7.7"));
}

#[test]
fn members_of_an_ipv6_group_hear_once() {
    alone("members_of_an_ipv6_group_hear_once", || all_members_hear("ff15::7:7"));
}

/// Groups that the kernel has `interface` in, as ip(8) lists them.
fn joined(interface: &str, group: &str) -> bool {
    let output = Command::new("ip").args(["maddress", "show", "dev", interface]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let group: IpAddr = group.parse().unwrap();
    text.split_whitespace().any(|word| word.parse() == Ok(group))
}

#[test]
fn groups_are_left_with_the_last_member() {
    alone("groups_are_left_with_the_last_member", || {
        cable();
        let b = side("vb");
        for group in ["239.7.7.8", "ff15::7:8"] {
            let gid = group.parse().unwrap();
            let (x, y) = (member(&b, 0), member(&b, 65_536));
            x.attach_mcast(&gid).unwrap();
            y.attach_mcast(&gid).unwrap();
            assert!(joined("vb", group) && !joined("va", group));
            x.detach_mcast(&gid).unwrap();
            assert!(joined("vb", group));
            drop(y);
            assert!(!joined("vb", group));
        }
    });
}

#[test]
fn what_a_killed_process_had_joined_is_left_by_the_next() {
    const TEST: &str = "what_a_killed_process_had_joined_is_left_by_the_next";
    const VICTIM: &str = "TO_BE_KILLED";
    let (group, gid) = ("239.7.7.9", "239.7.7.9".parse().unwrap());
    if std::env::var_os(VICTIM).is_some() {
        let side = side("vb");
        let qp = member(&side, 0);
        qp.attach_mcast(&gid).unwrap();
        println!("attached");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    alone(TEST, || {
        cable();
        let (a, b) = (side("va"), side("vb"));
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("attached")));
        assert!(joined("vb", group));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // The socket belongs to the slot, and has not noticed. What comes to it is for nobody.
        assert!(joined("vb", group));
        let x = member(&a, 65_536);
        send(&a, &x, group, b"1");
        assert_eq!(received(&[&a, &b], 0), [0, 0]);

        let next = side("vb");
        assert!(!joined("vb", group));
        let y = member(&next, 0);
        y.attach_mcast(&gid).unwrap();
        send(&a, &x, group, b"2");
        assert_eq!(received(&[&a, &b, &next], 1), [0, 0, 1]);
        assert_eq!(next.read(40, 1), b"2");
    });
}
