//! `ironverbs doctor`: what is found is so, and the exit status tells how bad it is.

mod support;

use std::net::UdpSocket;

use serde_json::Value;
use support::*;

fn doctor(port: u16, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = command(IRONVERBS, &["doctor", "--json"]);
    command.args(arguments).env("IRONVERBS_UDP_PORT", port.to_string());
    let output = finish(command);
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), report)
}

fn level<'a>(report: &'a Value, check: &str) -> &'a str {
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no finding {check}"))["level"].as_str().unwrap()
}

#[test]
fn where_nothing_is_wrong() {
    let (status, report) = doctor(udp_port(), &[]);
    assert_eq!(level(&report, "port"), "good");
    assert_eq!(level(&report, "default"), "good");
    assert_eq!(level(&report, "shared memory"), "good");
    assert_eq!(report["facts"]["wire"], true);
    // The machine may have interfaces without addresses; nothing of that is a problem.
    assert!(matches!(status, Some(0 | 1)), "{status:?}: {report}");
}

#[test]
fn a_port_that_is_taken() {
    let taken = UdpSocket::bind("[::]:0").unwrap();
    let (status, report) = doctor(taken.local_addr().unwrap().port(), &[]);
    assert_eq!(level(&report, "port"), "warning");
    assert_eq!(report["facts"]["wire"], false);
    assert_eq!(status, Some(1), "{report}");
}

#[test]
fn two_hosts_that_use_different_ports() {
    let scratch = Scratch::new("doctor");
    let (_, other) = doctor(udp_port(), &[]);
    let file = scratch.write("other.json", &other.to_string());
    let (status, report) = doctor(udp_port(), &["--compare", file.to_str().unwrap()]);
    assert_eq!((level(&report, "two hosts"), status), ("problem", Some(2)));
    let (status, _) = doctor(udp_port(), &["--compare", "/dev/null"]);
    assert_eq!(status, Some(3));
}
