//! What the cases of `c/subnet.c` need a network namespace for. Needs root and iproute2.

use std::path::Path;
use std::process::Command;

use ironverbs_capi_ibverbs_tests::{build_program_on_ours, library_directory, on_library, text};

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.expect("needs `ip` of iproute2");
    assert!(output.status.success(), "ip {arguments} (needs root): {}", text(&output));
}

/// On InfiniBand links: no answer is EIO, a GID of nobody's ENXIO, a signal EINTR.
#[test]
fn an_administrator_that_is_silent() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let output = on_library(build_program_on_ours("subnet", scratch), scratch)
        .arg("--silent")
        .env("IRONVERBS_LINK_LAYER", "InfiniBand")
        .env("IRONVERBS_INTERFACES", "lo")
        .env("IRONVERBS_HOSTS", "127.0.0.1,127.0.0.2")
        .env("IRONVERBS_SUBNET_MANAGER", "off")
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_signal_ends_the_wait_for_an_answer() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = build_program_on_ours("subnet", scratch);
    let namespace = Namespace(format!("ironverbs-capi-{}", std::process::id()));
    let name = &namespace.0;
    ip(&format!("netns add {name}"));
    ip(&format!("-n {name} link add v type veth peer name w"));
    ip(&format!("-n {name} address add 10.79.0.1/24 dev v"));
    for interface in ["v", "w"] {
        ip(&format!("-n {name} link set {interface} up"));
    }
    let output = Command::new("ip")
        .args(["netns", "exec", name])
        .arg(program)
        .arg("--in-namespace")
        .env("LD_LIBRARY_PATH", library_directory(scratch))
        .env("IRONVERBS_INTERFACES", "v")
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
}
