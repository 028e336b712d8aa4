//! `ironverbs info`: what is shown is so, and errors say what is wrong.

mod support;

use std::net::UdpSocket;

use serde_json::Value;
use support::*;

fn info(arguments: &[&str], variables: &[(&str, &str)]) -> std::process::Output {
    let mut command = command(IRONVERBS, &["info"]);
    command.args(arguments).env("IRONVERBS_UDP_PORT", udp_port().to_string());
    command.envs(variables.iter().copied());
    finish(command)
}

fn json(variables: &[(&str, &str)]) -> Value {
    serde_json::from_str(&info(&["--json"], variables).ok().out()).unwrap()
}

fn setting<'a>(info: &'a Value, key: &str) -> &'a Value {
    let list = info["configuration"].as_array().unwrap();
    list.iter().find(|e| e["key"] == key).unwrap_or_else(|| panic!("no setting {key}"))
}

#[test]
fn devices_ports_and_limits() {
    let info = json(&[]);
    let device = &info["devices"][0];
    assert_eq!(device["name"], "iron0");
    assert_ne!(device["node_guid"], "0000:0000:0000:0000");
    assert!(device["limits"]["max_qp"].as_u64().unwrap() >= 1024);
    let port = &device["ports"][0];
    assert_eq!(port["state"], "ACTIVE");
    assert_eq!(port["link_layer"], "Ethernet");
    let gid = &port["gids"][0];
    assert_eq!((gid["index"].as_u64(), gid["kind"].as_str()), (Some(0), Some("RoCE v2")));
    assert_eq!(gid["interface"], device["interface"]);
    assert_eq!(info["udp_port"]["state"], "ours");
    assert_eq!(info["members"].as_array().unwrap().len(), 1);
    assert_eq!(info["members"][0]["command"], "ironverbs");
}

#[test]
fn text_says_the_same() {
    let text = info(&[], &[("IRONVERBS_NAME_PREFIX", "rxe")]).ok().out();
    for part in
        ["rxe0 on ", "ACTIVE", "GID 0", "RoCE v2", "max_qp ", "IRONVERBS_NAME_PREFIX", "slot "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn sources_of_settings() {
    let scratch = Scratch::new("sources");
    let file = scratch.write("c.toml", "timeout_scale = 3\nname_prefix = \"steel\"\n");
    let file = file.to_str().unwrap();
    let info = json(&[("IRONVERBS_CONFIG", file), ("IRONVERBS_NAME_PREFIX", "tin")]);
    assert_eq!(setting(&info, "timeout_scale")["value"], "3");
    assert_eq!(setting(&info, "timeout_scale")["source"], file);
    assert_eq!(setting(&info, "name_prefix")["source"], "IRONVERBS_NAME_PREFIX");
    assert_eq!(setting(&info, "soft")["source"], "default");
    assert_eq!(info["devices"][0]["name"], "tin0");
}

#[test]
fn the_users_file_is_found() {
    let scratch = Scratch::new("user");
    scratch.write("ironverbs.toml", "vendor_id = 0x2c9\n");
    let mut command = command(IRONVERBS, &["info", "--json"]);
    command.env_remove("IRONVERBS_CONFIG").env("XDG_CONFIG_HOME", &scratch.0);
    command.env("IRONVERBS_UDP_PORT", udp_port().to_string());
    let info: Value = serde_json::from_str(&finish(command).ok().out()).unwrap();
    assert_eq!(setting(&info, "vendor_id")["value"], "0x2c9");
    assert_eq!(info["devices"][0]["vendor_id"], 0x2c9);
}

#[test]
fn wrong_settings_are_named() {
    let scratch = Scratch::new("wrong");
    let file = scratch.write("c.toml", "\n\nudp_port = \"many\"\n");
    let file = file.to_str().unwrap();
    for (name, value, parts) in [
        ("IRONVERBS_SOFT", "maybe", ["IRONVERBS_SOFT", "maybe"]),
        ("IRONVERBS_EXPLIAN", "1", ["IRONVERBS_EXPLIAN", "IRONVERBS_EXPLAIN"]),
        ("IRONVERBS_CONFIG", "/nonexistent.toml", ["/nonexistent.toml", "IRONVERBS_CONFIG"]),
        ("IRONVERBS_CONFIG", file, [":3: udp_port", "\"many\""]),
    ] {
        let output = info(&[], &[(name, value)]).failed_with(1);
        for part in parts {
            assert!(output.err().contains(part), "{part}: {}", output.err());
        }
        assert_eq!(output.out(), "");
    }
    info(&["--nonsense"], &[]).failed_with(2);
}

#[test]
fn a_taken_port_is_down_and_says_by_whom() {
    let taken = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let info = json(&[("IRONVERBS_UDP_PORT", &port)]);
    assert_eq!(info["devices"][0]["ports"][0]["state"], "DOWN");
    assert_eq!(info["udp_port"]["state"], "taken");
    assert_eq!(info["udp_port"]["owner"]["pid"], std::process::id());
    let problem = info["udp_port"]["problem"].as_str().unwrap();
    assert!(problem.contains(&format!("process {}", std::process::id())), "{problem}");
}

#[test]
fn no_devices() {
    let output = info(&[], &[("IRONVERBS_INTERFACES", "nosuch0")]).ok();
    assert!(output.out().contains("no devices") && output.out().contains("nosuch0"));
    assert!(json(&[("IRONVERBS_INTERFACES", "nosuch0")])["devices"].as_array().unwrap().is_empty());
}

#[test]
fn output_that_cannot_be_written() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = command(IRONVERBS, &["info"]);
    command.env("IRONVERBS_UDP_PORT", udp_port().to_string()).stdout(full);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.err().contains("cannot write"), "{}", output.err());
    // A reader that has gone.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = support::command(IRONVERBS, &["info"])
        .env("IRONVERBS_UDP_PORT", udp_port().to_string())
        .stdout(writer)
        .output()
        .unwrap();
    assert!(!output.err().contains("panic"), "{}", output.err());
}
