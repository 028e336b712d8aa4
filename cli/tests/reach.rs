//! `ironverbs reach`, `paths` and `watch`.

mod support;

use serde_json::Value;
use support::*;

fn on_loopback(arguments: &[&str], port: u16) -> std::process::Command {
    let mut command = command(IRONVERBS, arguments);
    command.env("IRONVERBS_UDP_PORT", port.to_string()).env("IRONVERBS_INTERFACES", "lo");
    command
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn what_can_be_reached() {
    let port = udp_port();
    let reached = finish(on_loopback(&["reach", "127.0.0.1", "--json"], port)).ok().out();
    let reached = json(&reached);
    assert_eq!(reached["reachable"], true);
    assert_eq!(reached["gid"], "0000:0000:0000:0000:0000:ffff:7f00:0001");
    assert_eq!(reached["device"], "iron0");
    let text = finish(on_loopback(&["reach", "::ffff:127.0.0.1", "-d", "iron0"], port)).ok().out();
    assert!(text.contains("is reachable from iron0"), "{text}");

    let output = finish(on_loopback(&["reach", "192.0.2.1", "--json", "-W", "0.2"], port));
    assert_eq!(output.status.code(), Some(1));
    let refused = json(&output.out());
    assert_eq!((&refused["reachable"], &refused["errors"][0]["errno"]), (&false.into(), &6.into()));
    for wrong in [&["reach", "no such name"][..], &["reach", "::"], &["reach", "::1", "-d", "no"]] {
        let output = finish(on_loopback(wrong, port));
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
    }
}

#[test]
fn paths_to_others_and_to_oneself() {
    let port = udp_port();
    let own = json(&finish(on_loopback(&["paths", "--json"], port)).ok().out());
    let path = &own["paths"][0];
    assert_eq!(path["sgid"], path["dgid"]);
    assert_eq!((&path["device"], &path["pkey"]), (&"iron0".into(), &"0xffff".into()));
    assert_eq!(path["mtu"], 4096);
    let text = finish(on_loopback(&["paths", "127.0.0.1"], port)).ok().out();
    assert!(text.starts_with("iron0: ") && text.contains("MTU 4096"), "{text}");
    assert_eq!(finish(on_loopback(&["paths", "192.0.2.1"], port)).status.code(), Some(1));
}

#[test]
fn a_process_that_comes_and_is_killed() {
    let port = udp_port();
    let watch = on_loopback(&["watch", "--json"], port);
    let watch = Background::start(watch);
    let next = |watch: &Background, kind: &str, change: &str| loop {
        let line = json(&watch.line());
        if line["kind"] == kind && line["change"] == change {
            return line;
        }
    };
    let device = next(&watch, "device", "present");
    assert_eq!((&device["name"], &device["interface"]), (&"iron0".into(), &"lo".into()));
    next(&watch, "watch", "ready");
    let mut agent = Background::start(on_loopback(&["agent"], port));
    let process = next(&watch, "process", "appeared");
    assert_eq!(process["name"], agent.id().to_string());
    agent.kill();
    let gone = next(&watch, "process", "disappeared");
    assert_eq!(gone["name"], process["name"]);
}
