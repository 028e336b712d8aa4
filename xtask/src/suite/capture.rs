//! What we put on the wire, seen by decoders that are not ours.

use super::{Cases, build, seconds, wire};
use crate::demo;
use crate::netns::{End, Family, Joined, Namespace};
use crate::pair::{self, Kind, Pingpong, User};
use crate::process::{Outcome, Program, Running};
use crate::suite::case::Case;
use crate::tree;
use std::fs;
use std::path::Path;

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let user = User::own();
    cases.case("cm-every-message", seconds(300), every_message);
    for family in Family::BOTH {
        let joined = Joined::new(9000)?;
        for end in [End::A, End::B] {
            // A capture shows a batch as the one packet it is for the kernel, unless the kernel
            // must split it before it reaches the interface.
            let program = Program::new("ethtool").args([
                "-K",
                "veth0",
                "gso",
                "off",
                "tx-udp-segmentation",
                "off",
                "gro",
                "off",
            ]);
            joined.end(end).within(program).read()?;
        }
        for kind in Kind::ALL {
            let size = if kind == Kind::Ud { 1000 } else { 10_001 };
            let pingpong = Pingpong { rounds: 10, ..Pingpong::new(kind, size, false) };
            let name = format!("{}-{}", kind.name(), family.name());
            cases.case(name, seconds(120), |case| {
                captured(case, &joined.a, |case| {
                    wire::between(case, pingpong, &user, &joined, family)
                })
            });
        }
        let cm = format!("cm-{}", family.name());
        cases.case(cm, seconds(120), |case| connections(case, &joined, &user, family));
        for operation in demo::OPERATIONS {
            cases.case(format!("perf-{operation}-{}", family.name()), seconds(120), |case| {
                captured(case, &joined.a, |case| {
                    let server = joined.a.within(user.command());
                    let client = joined.b.within(user.command());
                    let host = Joined::address(End::A, family);
                    demo::exchange(
                        case,
                        server,
                        client,
                        host,
                        operation,
                        &["--iters", "25", "--size", "10001"],
                    )
                    .map(drop)
                })
            });
        }
    }
    Ok(())
}

/// Attribute IDs of communication management (IBA 12.6), as tshark shows them.
const REQ: &str = "0x0010";
const MRA: &str = "0x0011";
const REJ: &str = "0x0012";
const REP: &str = "0x0013";
const RTU: &str = "0x0014";
const DREQ: &str = "0x0015";
const DREP: &str = "0x0016";
const SIDR_REQ: &str = "0x0017";
const SIDR_REP: &str = "0x0018";
const LAP: &str = "0x0019";
const APR: &str = "0x001a";

/// Each message that our connection manager can send, some of which take a peer that asks for them.
fn every_message(case: &mut Case) -> Outcome {
    let file = case.file("pcap");
    let path = file.display().to_string();
    let program = Program::new("cargo")
        .args(["test", "--package=ironverbs-mad", "--test=it", "every_message_is_sent"])
        .env("IRONVERBS_PCAP", &path);
    build::cargo_test(case, program)?;
    well_formed(case, &path)?;
    icrcs(case, &file)?;
    let all = [REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR];
    shows(case, &path, &all)
}

/// Connections and datagram services of unmodified programs.
fn connections(case: &mut Case, joined: &Joined, user: &User, family: Family) -> Outcome {
    let address = Joined::address(End::A, family);
    let traffic = |case: &mut Case| {
        let server = |name| joined.a.within(user.runs(name).args(["-b", address]));
        let client = |name| joined.b.within(user.runs(name).args(["-s", address]));
        let mut datagrams = case.start(&server("udaddy"))?;
        pair::wait_for_service(&mut datagrams, user, &joined.a, case.deadline())?;
        // A host that has a server, of another port: whoever asks before that one runs is refused.
        case.start(&client("ucmatose"))?.wait(case.deadline())?;
        let mut connections = case.start(&server("ucmatose"))?;
        pair::wait_for_service(&mut connections, user, &joined.a, case.deadline())?;
        for (name, server) in [("udaddy", datagrams), ("ucmatose", connections)] {
            case.run(&client(name))?;
            server.wait(case.deadline())?.success()?;
        }
        Ok(())
    };
    captured(case, &joined.a, traffic)?;
    let path = case.file("pcap").display().to_string();
    shows(case, &path, &[REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP])
}

/// tshark: there is a message with each of these attributes, and of the connection manager's class all are.
fn shows(case: &mut Case, path: &str, attributes: &[&str]) -> Outcome {
    let read = Program::new("tshark").args(["-r", path, "-Y", "infiniband.mad", "-T", "fields"]);
    let fields = ["-e", "infiniband.mad.mgmtclass", "-e", "infiniband.mad.attributeid"];
    let output = case.run(&read.args(fields).args(["-e", "_ws.col.Info"]))?;
    let lines = || output.lines().filter_map(|line| line.strip_prefix("0x07\t"));
    for attribute in attributes {
        let of = |line: &&str| line.starts_with(attribute);
        let line = lines().find(of).ok_or_else(|| format!("tshark sees no {attribute}"))?;
        if !line.contains("CM: ") || line.contains("Unknown") {
            return Err(format!("tshark does not know what {line:?} is").into());
        }
    }
    Ok(())
}

/// The decoders themselves: they find the kernel's packets right, and a damaged one wrong.
pub(super) fn decoders(cases: &mut Cases<'_>) -> Outcome {
    let data = tree::root().join("crates/wire/tests/data");
    for name in ["ib_send_bw_rc.pcap", "ib_send_bw_ud.pcap", "rping_ipv6.pcap"] {
        cases.case(name, seconds(60), |case| {
            let capture = data.join(name);
            well_formed(case, &capture.display().to_string())?;
            icrcs(case, &capture)?;
            let mut bytes = fs::read(&capture)?;
            // The last packet ends the file with its payload and, in the last four bytes, its ICRC.
            let last = bytes.len().checked_sub(5).and_then(|at| bytes.get_mut(at));
            *last.ok_or("an empty capture")? ^= 0x10;
            let damaged = case.file("damaged.pcap");
            fs::write(&damaged, bytes)?;
            if icrcs(case, &damaged).is_ok() {
                return Err("a flipped bit is found right".into());
            }
            Ok(())
        });
    }
    Ok(())
}

/// Runs `traffic` under a capture of `veth0` and has it judged.
fn captured(
    case: &mut Case,
    namespace: &Namespace,
    traffic: impl FnOnce(&mut Case) -> Outcome,
) -> Outcome {
    let file = case.file("pcap");
    let path = file.display().to_string();
    let capture = Program::new("tshark").args(["-i", "veth0", "-F", "pcap", "-w", &path]);
    let capture = capture.args(["-f", "udp port 4791"]);
    let mut capture = case.start(&namespace.within(capture))?;
    // It names its file when it has opened the interface.
    capture.wait_until("the capture to start", case.deadline(), |running| {
        running.output().contains("Capturing on") && file.exists()
    })?;
    std::thread::sleep(seconds(1));
    let outcome = traffic(case);
    // The kernel hands over captured packets in blocks; the last one when its timer runs out.
    std::thread::sleep(seconds(1));
    stop(case, capture)?;
    outcome?;
    well_formed(case, &path)?;
    icrcs(case, &file)
}

fn stop(case: &Case, capture: Running) -> Outcome {
    capture.signal("INT")?;
    capture.wait(case.deadline())?.success().map(drop)
}

/// tshark: every packet is InfiniBand, none malformed.
fn well_formed(case: &mut Case, path: &str) -> Outcome {
    let read = |filter: &str| {
        Program::new("tshark").args([
            "-r",
            path,
            "-Y",
            filter,
            "-T",
            "fields",
            "-e",
            "frame.number",
        ])
    };
    let count =
        |output: String| output.lines().filter(|line| line.trim().parse::<u64>().is_ok()).count();
    let all = count(case.run(&read("infiniband"))?);
    let wrong = count(case.run(&read("_ws.malformed || _ws.short || !infiniband"))?);
    case.note(format!("{all} packets"));
    match (all, wrong) {
        (0, _) => Err("tshark saw no InfiniBand packet".into()),
        (_, 0) => Ok(()),
        (all, wrong) => Err(format!("tshark finds {wrong} of {all} packets wrong").into()),
    }
}

/// scapy: every ICRC is right.
pub(super) fn icrcs(case: &mut Case, file: &Path) -> Outcome {
    let script = tree::root().join("tests/icrc.py").display().to_string();
    case.run(&Program::new("/usr/bin/python3").arg(script).arg(file.display())).map(drop)
}
