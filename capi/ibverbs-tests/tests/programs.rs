//! The distribution's unmodified programs on this library.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ironverbs_capi_ibverbs_tests::{on_library, text};

/// Nothing here takes long; what hangs is ended after this.
const WATCHDOG: Duration = Duration::from_secs(120);

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = on_library(program, scratch());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(program: &str, package: &str, arguments: &[&str]) -> Child {
    command(program, arguments)
        .spawn()
        .unwrap_or_else(|error| panic!("{program} (package {package}): {error}"))
}

fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + WATCHDOG;
    while child.try_wait().expect("wait").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("kill");
            panic!("hangs: {}", text(&child.wait_with_output().expect("its output")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

/// With every symbol bound at the start: one that is missing ends the program.
fn loads(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = finish(spawn(program, package, arguments));
    let text = text(&output);
    for word in ["symbol lookup error", "undefined symbol", "version `", "cannot open shared"] {
        assert!(!text.contains(word), "{program}: {text}");
    }
    assert!(output.status.code().is_some(), "{program} was ended by a signal: {text}");
    text
}

#[test]
fn devinfo_shows_the_device_and_its_gids() {
    let text = loads("ibv_devinfo", "ibverbs-utils", &["-v"]);
    for word in ["hca_id:\tiron0", "PORT_ACTIVE", "Ethernet", "::ffff:127.0.0.1, RoCE v2"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

#[test]
fn devices_are_listed() {
    let text = loads("ibv_devices", "ibverbs-utils", &[]);
    assert!(text.contains("iron0"), "{text}");
}

#[test]
fn perftest_loads_beside_the_drivers_it_links() {
    let text = loads("ib_write_bw", "perftest", &["--version"]);
    assert!(text.contains("Version"), "{text}");
}

#[test]
fn libfabric_finds_the_device() {
    let text = loads("fi_info", "libfabric-bin", &["-p", "verbs"]);
    assert!(text.contains("iron0"), "{text}");
}

#[test]
fn ucx_loads() {
    let text = loads("ucx_info", "ucx-utils", &["-d"]);
    assert!(text.contains("Transport"), "{text}");
}

#[test]
fn qperf_loads() {
    let text = loads("qperf", "qperf", &["--version"]);
    assert!(text.contains("qperf"), "{text}");
}

/// A port that is free now; the programs take theirs as a number.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// Whether somebody listens on a TCP port: local address, remote address, and state 0A.
fn listens(port: u16) -> bool {
    let local = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(|path| {
        std::fs::read_to_string(path).unwrap_or_default().lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|f| f.ends_with(&local)) && fields.nth(1) == Some("0A")
        })
    })
}

/// Runs a program as server and as client until both end well; what the client said.
fn server_and_client(program: &str, package: &str, arguments: &[&str]) -> String {
    let port = free_port();
    let number = port.to_string();
    let common = [&["-p", &number], arguments].concat();
    let server = spawn(program, package, &common);
    // It listens once it has made its queue pairs. A connection that says nothing would be taken
    // for the client, so that the kernel's table is read instead.
    let deadline = Instant::now() + WATCHDOG;
    while !listens(port) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let client = finish(spawn(program, package, &[&common[..], &["127.0.0.1"]].concat()));
    let server = finish(server);
    assert!(client.status.success(), "client: {}", text(&client));
    assert!(server.status.success(), "server: {}", text(&server));
    text(&client)
}

fn pingpong(kind: &str, arguments: &[&str]) {
    let arguments = [&["-g", "0", "-n", "200"], arguments].concat();
    let said = server_and_client(&format!("ibv_{kind}_pingpong"), "ibverbs-utils", &arguments);
    assert!(said.contains("200 iters"), "{said}");
}

#[test]
fn rc_pingpong() {
    pingpong("rc", &[]);
    pingpong("rc", &["-e"]);
    pingpong("rc", &["-s", "1"]);
    pingpong("rc", &["-s", "1048576", "-e"]);
}

#[test]
fn uc_pingpong() {
    pingpong("uc", &[]);
    pingpong("uc", &["-e"]);
}

#[test]
fn ud_pingpong() {
    pingpong("ud", &["-s", "1024"]);
    pingpong("ud", &["-s", "1", "-e"]);
}

#[test]
fn srq_pingpong() {
    pingpong("srq", &[]);
    pingpong("srq", &["-e"]);
}

#[test]
fn xsrq_pingpong() {
    let arguments = ["-g", "0", "-n", "200"];
    let said = server_and_client("ibv_xsrq_pingpong", "ibverbs-utils", &arguments);
    assert!(said.contains("success"), "{said}");
    let arguments = ["-g", "0", "-n", "50", "-e", "-s", "65536"];
    let said = server_and_client("ibv_xsrq_pingpong", "ibverbs-utils", &arguments);
    assert!(said.contains("success"), "{said}");
}

#[test]
fn perftest_runs_every_operation() {
    for (program, more) in [
        ("ib_write_bw", [].as_slice()),
        ("ib_read_bw", &[]),
        ("ib_send_bw", &["-c", "UC"]),
        ("ib_send_lat", &["-c", "UD"]),
        ("ib_atomic_lat", &["-A", "CMP_AND_SWAP"]),
    ] {
        let arguments = [&["-d", "iron0", "-n", "100"], more].concat();
        let said = server_and_client(program, "perftest", &arguments);
        assert!(said.contains("#iterations"), "{program}: {said}");
    }
}

#[test]
fn failures_are_explained_on_request() {
    let mut command = command("ibv_rc_pingpong", &["-r", "1000000"]);
    let output = finish(command.env("IRONVERBS_EXPLAIN", "1").spawn().expect("ibv_rc_pingpong"));
    let text = text(&output);
    assert!(!output.status.success());
    assert!(text.contains("ironverbs: ibv_create_qp: max_recv_wr is 1000000"), "{text}");
    let output = finish(self::command("ibv_rc_pingpong", &["-r", "1000000"]).spawn().expect("it"));
    assert!(!self::text(&output).contains("ironverbs:"), "{}", self::text(&output));
}

#[test]
fn wrong_configuration_is_named() {
    let mut command = command("ibv_devices", &[]);
    let output = finish(command.env("IRONVERBS_UDP_PORT", "banana").spawn().expect("ibv_devices"));
    let text = text(&output);
    assert!(!output.status.success());
    assert!(text.contains("IRONVERBS_UDP_PORT") && text.contains("banana"), "{text}");
}
