//! What two hosts must have in common.

use serde_json::Value;

use super::Findings;
use super::Level::{Note, Problem, Warning};

/// Compares the facts of this host with another's; None if those are none.
pub(super) fn hosts(here: &Value, there: &Value, findings: &mut Findings) -> Option<()> {
    let (port, other_port) = (here["udp_port"].as_u64()?, there["udp_port"].as_u64()?);
    let (devices, others) = (here["devices"].as_array()?, there["devices"].as_array()?);
    let (adapters, their_adapters) = (usable(here), usable(there));
    if port == other_port {
        findings.good("two hosts", format!("both use UDP port {port}"));
    } else {
        findings.add(
            "two hosts",
            Problem,
            format!("this host uses UDP port {port}, the other {other_port}"),
            "set IRONVERBS_UDP_PORT to the same on both",
        );
    }
    if there["wire"] == Value::Bool(false) {
        let advice = "see what ironverbs doctor says there";
        match their_adapters.is_empty() {
            true => {
                let what = "the other host's devices have no wire";
                findings.add("two hosts", Problem, what, advice);
            }
            false => {
                let what = "the other host is reached by its kernel's devices alone";
                findings.add("two hosts", Note, what, advice);
            }
        }
    }
    let (version, other) = (there["version"].as_str()?, here["version"].as_str()?);
    if version != other {
        let what = format!("this host has version {other}, the other {version}");
        findings.add("two hosts", Warning, what, "");
    }
    let mine = addresses(devices.iter().chain(adapters));
    let theirs = addresses(others.iter().chain(their_adapters));
    if let Some(both) = mine.iter().find(|address| theirs.contains(*address)) {
        findings.add(
            "two hosts",
            Warning,
            format!(
                "both have the address {both}: is the file of this host, or a network translated?"
            ),
            "packets are signed with their addresses, so translation breaks them",
        );
    }
    let common = [false, true].into_iter().any(|v6| {
        let has = |list: &[&str]| list.iter().any(|address| address.contains(':') == v6);
        has(&mine) && has(&theirs)
    });
    if !common {
        let what = "the hosts have no address family in common";
        findings.add("two hosts", Problem, what, "give both an IPv4 or both an IPv6 address");
    }
    if let (Some(mtu), Some(other)) = (mtu(devices), mtu(others))
        && mtu != other
    {
        findings.add(
            "two hosts",
            Note,
            format!("packets carry {mtu} bytes here, {other} there"),
            format!(
                "programs that exchange queue pair numbers must set a path MTU of {}; the connection manager does",
                mtu.min(other)
            ),
        );
    }
    Some(())
}

/// The kernel's devices that programs there can use; older versions told of none.
fn usable(facts: &Value) -> Vec<&Value> {
    let all = facts["kernel_devices"].as_array().into_iter().flatten();
    all.filter(|device| device["usable"] == Value::Bool(true)).collect()
}

/// What others can reach.
fn addresses<'a>(devices: impl Iterator<Item = &'a Value>) -> Vec<&'a str> {
    let lists = devices.filter_map(|device| device["addresses"].as_array());
    let all = lists.flatten().filter_map(Value::as_str);
    all.filter(|address| {
        !address.starts_with("fe80") && !address.starts_with("127.") && *address != "::1"
    })
    .collect()
}

fn mtu(devices: &[Value]) -> Option<u64> {
    devices.first()?["active_mtu"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::super::{Findings, Level};
    use super::hosts;
    use serde_json::{Value, json};

    fn facts(address: &str, port: u16, mtu: u64) -> Value {
        json!({
            "version": "1", "udp_port": port, "wire": true,
            "devices": [{ "active_mtu": mtu, "addresses": [address, "fe80::1"] }],
        })
    }

    /// As `facts`, but that another has the port; with a device of the kernel's.
    fn without_wire(address: &str, usable: bool) -> Value {
        let mut facts = facts(address, 4791, 1024);
        facts["wire"] = false.into();
        facts["kernel_devices"] = json!([{ "usable": usable, "addresses": [address] }]);
        facts
    }

    fn compared(here: &Value, there: &Value) -> Option<Level> {
        let mut findings = Findings::default();
        hosts(here, there, &mut findings)?;
        Some(findings.worst())
    }

    #[test]
    fn what_two_hosts_differ_in() {
        let here = facts("10.0.0.1", 4791, 1024);
        for (there, wanted) in [
            (facts("10.0.0.2", 4791, 1024), Some(Level::Good)),
            (facts("10.0.0.2", 4791, 4096), Some(Level::Note)),
            (facts("10.0.0.1", 4791, 1024), Some(Level::Warning)),
            (facts("10.0.0.2", 4792, 1024), Some(Level::Problem)),
            (facts("fd00::2", 4791, 1024), Some(Level::Problem)),
            (json!({}), None),
            (without_wire("10.0.0.2", false), Some(Level::Problem)),
            (without_wire("10.0.0.2", true), Some(Level::Note)),
        ] {
            assert_eq!(compared(&here, &there), wanted, "{there}");
        }
    }
}
