//! `ironverbs perf` and `ironverbs ping`: two processes on the real device, and peers that are no
//! such thing.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use support::*;

/// A server on ports of its own.
struct Server {
    process: Background,
    tcp: String,
    udp: String,
    path: &'static str,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        Server::start_by("auto", arguments)
    }

    /// One whose clients it reaches by UDP ("wire") or by shared memory ("auto").
    fn start_by(path: &'static str, arguments: &[&str]) -> Server {
        let udp = udp_port().to_string();
        let mut command = command(IRONVERBS, arguments);
        command.args(["--server", "--port", "0"]).env("IRONVERBS_UDP_PORT", &udp);
        command.env("IRONVERBS_PATH", path);
        let process = Background::start(command);
        let line = process.line();
        let tcp = line.rsplit(' ').next().unwrap().to_owned();
        assert!(line.starts_with("listening on "), "{line}");
        Server { process, tcp, udp, path }
    }

    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = command(IRONVERBS, arguments);
        command.args(["--port", &self.tcp]).env("IRONVERBS_UDP_PORT", &self.udp);
        command.env("IRONVERBS_PATH", self.path);
        command
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        finish(self.client(arguments))
    }
}

fn results(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_str(&output.out()).unwrap();
    report["results"].as_array().unwrap().clone()
}

#[test]
fn every_operation_of_rc_verified() {
    let server = Server::start(&["perf"]);
    let output = server
        .ask(&["perf", "127.0.0.1", "--verify", "--json", "-n", "200", "--size", "1,4096,64K"])
        .ok();
    let rows = results(&output);
    let names: Vec<&str> = rows.iter().map(|r| r["operation"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "send",
            "send",
            "send",
            "write",
            "write",
            "write",
            "read",
            "read",
            "read",
            "fetch_add",
            "compare_swap"
        ]
    );
    for row in &rows {
        assert_eq!(row["verified"], true, "{row}");
        assert_eq!(row["bandwidth"]["messages"], 200, "{row}");
        assert_eq!(row["bandwidth"]["lost"], 0, "{row}");
        assert_eq!(row["latency"]["operations"], 200, "{row}");
        let us = |key: &str| row["latency"][key].as_f64().unwrap();
        assert!(us("min_us") > 0.0, "{row}");
        assert!(us("min_us") <= us("p50_us") && us("p50_us") <= us("p99_us"), "{row}");
        assert!(us("p99_us") <= us("p99_9_us") && us("p99_9_us") <= us("max_us"), "{row}");
        let size = row["size"].as_u64().unwrap();
        assert_eq!(row["bandwidth"]["bytes"].as_u64().unwrap(), size * 200);
        assert!(row["bandwidth"]["bytes_per_second"].as_f64().unwrap() > 0.0);
    }
    // One client was all it was to serve.
    server.process.wait().ok();
}

#[test]
fn unreliable_transports() {
    let server = Server::start(&["perf", "--keep"]);
    for transport in ["uc", "ud"] {
        // One outstanding: nothing is lost for want of room.
        let output = server
            .ask(&[
                "perf",
                "127.0.0.1",
                "--transport",
                transport,
                "--verify",
                "--json",
                "-n",
                "100",
                "-s",
                "512",
                "--depth",
                "1",
            ])
            .ok();
        let rows = results(&output);
        assert_eq!(rows.len(), if transport == "uc" { 2 } else { 1 });
        for row in rows {
            assert_eq!(row["verified"], true, "{row}");
            assert_eq!(row["bandwidth"]["messages"], 100);
        }
    }
}

#[test]
fn zero_bytes_large_messages_and_odd_sizes() {
    let server = Server::start(&["perf", "--keep"]);
    let sizes = "0,7,1023,1025,4097,1000003";
    let output = server.ask(&[
        "perf",
        "127.0.0.1",
        "--op",
        "send,write,read",
        "-n",
        "20",
        "--size",
        sizes,
        "--json",
        "--verify",
    ]);
    assert_eq!(results(&output.ok()).len(), 18);
    let output = server.ask(&[
        "perf",
        "127.0.0.1",
        "--op",
        "write",
        "-n",
        "2",
        "--size",
        "16M",
        "--json",
        "--verify",
        "--bw",
    ]);
    assert_eq!(results(&output.ok())[0]["bandwidth"]["bytes"], 32 << 20);
}

#[test]
fn other_addresses() {
    let server = Server::start(&["perf", "--keep"]);
    let mut info = command(IRONVERBS, &["info", "--json"]);
    info.env("IRONVERBS_UDP_PORT", &server.udp);
    let info: Value = serde_json::from_str(&finish(info).ok().out()).unwrap();
    let gids = info["devices"][0]["ports"][0]["gids"].as_array().unwrap().clone();
    for gid in gids {
        let address = gid["address"].as_str().unwrap();
        if address.starts_with("fe80") {
            continue;
        }
        let output =
            server.ask(&["perf", address, "--op", "send", "-n", "50", "--json", "--verify"]).ok();
        let report: Value = serde_json::from_str(&output.out()).unwrap();
        assert_eq!(report["gid"], gid["gid"]);
    }
    let output = server
        .ask(&[
            "perf",
            "localhost",
            "-d",
            "iron0",
            "-g",
            "0",
            "-n",
            "10",
            "--op",
            "write",
            "--mtu",
            "512",
        ])
        .ok();
    assert!(output.out().contains("path MTU 512"), "{}", output.out());
}

#[test]
fn durations_and_progress() {
    let server = Server::start(&["perf"]);
    let output =
        server.ask(&["perf", "127.0.0.1", "--op", "write", "--bw", "-t", "1.3", "-s", "4K"]).ok();
    // Longer than a second: a line tells of it.
    assert!(output.err().contains("write 4096 bytes: "), "{}", output.err());
    let server = Server::start(&["perf"]);
    let output =
        server.ask(&["perf", "127.0.0.1", "--op", "write", "--bw", "-t", "1.3", "-q"]).ok();
    assert_eq!(output.err(), "");
}

#[test]
fn several_clients_at_once() {
    let server = Server::start(&["perf", "--keep"]);
    let start = |_| {
        Background::start(server.client(&[
            "perf",
            "127.0.0.1",
            "--op",
            "send,write",
            "-n",
            "100",
            "--verify",
            "-s",
            "5000",
        ]))
    };
    let clients: Vec<Background> = (0..4).map(start).collect();
    for client in clients {
        client.wait().ok();
    }
}

#[test]
fn wrong_options() {
    for (arguments, says) in [
        (&["perf"][..], "required"),
        (&["perf", "host", "--server"], "cannot be used with"),
        (&["perf", "host", "--op", "sned"], "sned"),
        (&["perf", "host", "--size", "12Q"], "12Q"),
        (&["perf", "host", "--iters", "0"], "0"),
        (&["perf", "host", "--iters", "5", "--duration", "1"], "cannot be used with"),
        (&["perf", "host", "--bw", "--lat"], "cannot be used with"),
        (&["perf", "host", "--depth", "0"], "0"),
        (&["perf", "host", "--mtu", "1500"], "256, 512, 1024"),
        (&["perf", "host", "--transport", "xrc"], "xrc"),
        (&["perf", "host", "--keep"], "cannot be used with"),
        (&["ping"], "required"),
        (&["ping", "host", "-c", "0"], "0"),
        (&["ping", "host", "-i", "-1"], "-1"),
        (&["ping", "--server", "--json"], "cannot be used with"),
        (&["ping", "host", "--rping", "--transport", "ud"], "cannot be used with"),
        (&["pong"], "pong"),
    ] {
        let output = finish(command(IRONVERBS, arguments)).failed_with(2);
        assert!(output.err().contains(says), "{arguments:?}: {}", output.err());
    }
    for (arguments, says) in [
        (&["perf", "127.0.0.1", "--transport", "ud", "--op", "read"][..], "UD has no read"),
        (&["perf", "127.0.0.1", "--transport", "uc", "--op", "write", "--lat"], "not acknowledged"),
        (&["perf", "no.such.host.invalid"], "no.such.host.invalid"),
    ] {
        let output = finish(command(IRONVERBS, arguments)).failed_with(1);
        assert!(output.err().contains(says), "{arguments:?}: {}", output.err());
    }
    let server = Server::start(&["perf", "--keep"]);
    for (arguments, says) in [
        (&["-d", "mlx5_7"][..], "mlx5_7"),
        (&["-g", "99"], "GID 99"),
        (&["--mtu", "4096"], "path MTU"),
        (&["--transport", "ud", "--size", "9000"], "path MTU"),
    ] {
        let mut all = vec!["perf", "127.0.0.1"];
        all.extend(arguments);
        let output = server.ask(&all);
        // On an interface with jumbo frames an MTU of 4096 is right.
        if arguments[0] == "--mtu" && output.status.success() {
            continue;
        }
        let output = output.failed_with(1);
        assert!(output.err().contains(says), "{arguments:?}: {}", output.err());
    }
    // And it still serves.
    server.ask(&["perf", "127.0.0.1", "--op", "send", "-n", "5"]).ok();
}

#[test]
fn nobody_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let udp = udp_port().to_string();
    for subcommand in ["perf", "ping"] {
        for how in [&["--tcp"][..], &[]] {
            let mut client = command(IRONVERBS, &[subcommand, "127.0.0.1", "-p", &free]);
            client.args(how).env("IRONVERBS_UDP_PORT", &udp);
            let output = finish(client).failed_with(1);
            assert!(output.err().contains("connection refused"), "{}", output.err());
            assert!(output.err().contains("--server"), "{}", output.err());
        }
    }
    let mut client = command(IRONVERBS, &["ping", "--rping", "127.0.0.1", "-p", &free]);
    client.env("IRONVERBS_UDP_PORT", &udp);
    let output = finish(client).failed_with(1);
    assert!(output.err().contains("start `rping -s"), "{}", output.err());
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = finish(command(IRONVERBS, &["perf", "--server", "-p", &port])).failed_with(1);
    assert!(output.err().contains("in use"), "{}", output.err());
}

/// A server that says `answer` to whoever comes, and what the client makes of it.
fn fake_server(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        let _ = BufReader::new(stream.try_clone().unwrap()).read_line(&mut line);
        assert!(line.contains("\"protocol\""), "{line}");
        let _ = stream.write_all(answer);
    });
    let mut client = command(IRONVERBS, &["perf", "127.0.0.1", "--tcp", "-p", &port]);
    client.env("IRONVERBS_UDP_PORT", udp_port().to_string());
    let output = finish(client).failed_with(1);
    thread.join().unwrap();
    output.err()
}

#[test]
fn servers_that_are_none() {
    let says = |answer, part: &str| {
        let error = fake_server(answer);
        assert!(error.contains(part), "{part}: {error}");
        assert!(!error.contains("panic") && !error.contains('\u{1b}'), "{error:?}");
    };
    says(b"", "closed the connection");
    says(b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2");
    says(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak our protocol");
    says(b"\x1b[31m\x00\xff\xfe\n", "does not speak our protocol");
    says(b"{\"type\":\"welcome\"", "does not speak our protocol");
    says(b"{\"type\":\"welcome\",\"program\":\"ironverbs\",\"protocol\":99,\"version\":\"9.9\",\"mtu\":3}\n", "protocol 99");
    says(
        b"{\"type\":\"salve\",\"program\":\"ironverbs\",\"protocol\":99,\"version\":\"9.9\"}\n",
        "same version",
    );
    says(b"{\"type\":\"welcome\",\"program\":\"ironverbs\",\"protocol\":1,\"version\":\"1\",\"mtu\":77}\n", "77");
    says(b"{\"type\":\"error\",\"message\":\"go away\"}\n", "go away");
    says(b"{\"type\":\"bye\"}\n", "out of turn");
    says(&[b'x'; 200_000], "does not speak our protocol");
}

/// Through the connection manager, by names and addresses of both families, and over TCP, of one server.
#[test]
fn ways_to_meet() {
    for path in ["auto", "wire"] {
        let server = Server::start_by(path, &["ping", "--keep"]);
        for host in ["127.0.0.1", "::1", "localhost"] {
            for how in [&[][..], &["--tcp"]] {
                let mut arguments = vec!["ping", host, "-c", "2", "-i", "0.01", "--json"];
                arguments.extend(how);
                let output = server.ask(&arguments);
                // A machine may have no IPv6.
                if host == "::1" && !output.status.success() && !has_ipv6() {
                    continue;
                }
                let report: Value = serde_json::from_str(&output.ok().out()).unwrap();
                assert_eq!(report["received"], 2, "{report}");
                assert_eq!(report["host"], host);
                assert!(report["min_us"].as_f64().unwrap() > 0.0, "{report}");
            }
        }
        for transport in ["rc", "uc", "ud"] {
            let transport = ["--transport", transport, "--op", "send", "-n", "20", "-s", "100"];
            let mut arguments = vec!["perf", "localhost", "--json", "--verify", "--depth", "1"];
            arguments.extend(transport);
            assert_eq!(results(&server.ask(&arguments).ok())[0]["verified"], true);
        }
    }
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

/// What a server answers to `said`, line by line; it must survive all of it.
#[test]
fn clients_that_are_none() {
    let server = Server::start(&["perf", "--keep"]);
    let hello = r#"{"type":"hello","program":"ironverbs","protocol":1,"version":"0"}"#;
    let start = |test: &str, endpoint: &str| {
        format!("{hello}\n{{\"type\":\"start\",\"test\":{test},\"endpoint\":{endpoint}}}\n")
    };
    let endpoint =
        r#"{"qpn":17,"psn":1,"qkey":1,"gid":"::ffff:127.0.0.1","addr":0,"rkey":0,"len":4096}"#;
    let test = |transport: &str, operation: &str, size: u64, window: u64, mtu: u64| {
        format!(
            r#"{{"transport":"{transport}","operation":"{operation}","mode":"bandwidth","size":{size},"window":{window},"verify":true,"seed":1,"mtu":{mtu}}}"#
        )
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\n".to_vec(), "does not speak"),
        (b"\0\0\0\n".to_vec(), "does not speak"),
        (vec![b'a'; 1 << 20], "does not speak"),
        (
            b"{\"type\":\"hello\",\"program\":\"ironverbs\",\"protocol\":2,\"version\":\"2\"}\n"
                .to_vec(),
            "protocol 2",
        ),
        (b"{\"type\":\"bye\"}\n".to_vec(), "out of turn"),
        (format!("{hello}\n{{\"type\":\"finish\",\"sent\":1}}\n").into(), "out of turn"),
        (start(&test("rc", "send", 1 << 31, 1, 3), endpoint).into(), "at most"),
        (start(&test("rc", "send", 1 << 30, 4096, 3), endpoint).into(), "window"),
        (start(&test("rc", "send", 8, 0, 3), endpoint).into(), "window"),
        (start(&test("rc", "send", 8, 1 << 31, 3), endpoint).into(), "window"),
        (start(&test("rc", "send", 8, 1, 0), endpoint).into(), "MTU"),
        (start(&test("rc", "fetch_add", 9, 1, 3), endpoint).into(), "8"),
        (start(&test("ud", "read", 8, 1, 3), endpoint).into(), "no read"),
        (start(&test("ud", "send", 100_000, 1, 3), endpoint).into(), "at most"),
        (
            start(&test("rc", "send", 8, 1, 3), &endpoint.replace("::ffff", "nonsense")).into(),
            "GID",
        ),
        (
            start(&test("rc", "send", 8, 1, 3), &endpoint.replace("17", "999999999")).into(),
            "24 bits",
        ),
        (start(&test("rc", "send", 8, 1, 3), &endpoint.replace("17", "0")).into(), "24 bits"),
        (
            format!(
                "{}{{\"type\":\"check\",\"first\":18446744073709551615,\"count\":5}}\n",
                start(&test("rc", "write", 8, 1, 1), endpoint)
            )
            .into(),
            "asked to check",
        ),
    ];
    for (said, expected) in cases {
        let mut stream = TcpStream::connect(("127.0.0.1", server.tcp.parse().unwrap())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // It may hang up before all is said.
        let _ = stream.write_all(&said);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        // After a reset the answer may be gone.
        assert!(answer.is_empty() || answer.contains(expected), "{expected}: {answer}");
    }
    // One that says nothing, and one that goes away in the middle.
    let _silent = TcpStream::connect(("127.0.0.1", server.tcp.parse().unwrap())).unwrap();
    drop(TcpStream::connect(("127.0.0.1", server.tcp.parse().unwrap())).unwrap());
    let mut halfway = TcpStream::connect(("127.0.0.1", server.tcp.parse().unwrap())).unwrap();
    halfway.write_all(start(&test("rc", "send", 8, 1, 1), endpoint).as_bytes()).unwrap();
    drop(halfway);
    server.ask(&["perf", "127.0.0.1", "--op", "send", "-n", "5", "--verify"]).ok();
}

#[test]
fn a_server_that_is_killed() {
    let mut server = Server::start(&["perf"]);
    let client = Background::start(server.client(&[
        "perf",
        "127.0.0.1",
        "--op",
        "write",
        "--bw",
        "-t",
        "100",
        "-s",
        "8",
    ]));
    std::thread::sleep(Duration::from_millis(700));
    server.process.kill();
    let output = client.wait().failed_with(1);
    let text = output.err();
    // Whichever is noticed first: the TCP connection that ends, or the retries that do.
    assert!(text.contains("closed the connection") || text.contains("RETRY_EXC_ERR"), "{text}");
}

/// The path is cut while TCP lives on: the completion tells, with reason and hint.
#[test]
fn a_server_that_is_stopped() {
    let server = Server::start_by("wire", &["perf"]);
    let client = Background::start(server.client(&[
        "perf",
        "127.0.0.1",
        "--op",
        "write",
        "--bw",
        "-t",
        "100",
        "-s",
        "8",
    ]));
    std::thread::sleep(Duration::from_millis(700));
    let pid = server.process.id().to_string();
    let signal =
        |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    let output = client.wait();
    signal("-CONT");
    let text = output.failed_with(1).err();
    for part in ["RETRY_EXC_ERR (12)", "vendor_err 8", "hint: ", "RC write of 8 bytes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// On one host it is known to live: it is slow, not dead.
#[test]
fn a_server_that_is_stopped_for_a_while() {
    let server = Server::start(&["perf"]);
    let client = Background::start(server.client(&[
        "perf",
        "127.0.0.1",
        "--op",
        "write",
        "--bw",
        "-t",
        "3",
        "-s",
        "8",
    ]));
    std::thread::sleep(Duration::from_millis(700));
    let pid = server.process.id().to_string();
    for name in ["-STOP", "-CONT"] {
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        // Longer than the retries of a network last.
        std::thread::sleep(Duration::from_millis(1_500));
    }
    client.wait().ok();
}

#[test]
fn a_client_that_is_killed() {
    let server = Server::start(&["perf", "--keep"]);
    let mut client =
        Background::start(server.client(&["perf", "127.0.0.1", "--op", "send", "-t", "100"]));
    std::thread::sleep(Duration::from_millis(500));
    client.kill();
    drop(client);
    server.ask(&["perf", "127.0.0.1", "--op", "send", "-n", "10", "--verify"]).ok();
}

#[test]
fn ping_counts_and_sums_up() {
    let server = Server::start(&["ping", "--keep"]);
    for transport in ["ud", "rc", "uc"] {
        let output = server
            .ask(&[
                "ping",
                "127.0.0.1",
                "-c",
                "3",
                "-i",
                "0.05",
                "-s",
                "100",
                "--transport",
                transport,
            ])
            .ok();
        let text = output.out();
        for part in [
            "PING 127.0.0.1",
            "100 bytes from 127.0.0.1: seq=1 time=",
            "seq=3",
            "3 messages transmitted, 3 received, 0.0000% loss",
            "rtt min/avg/max/mdev = ",
        ] {
            assert!(text.contains(part), "{transport}: {part}: {text}");
        }
    }
    // A perf server answers too, and a ping server a perf client.
    server.ask(&["perf", "127.0.0.1", "--op", "send", "-n", "5"]).ok();
    let output = server
        .ask(&["ping", "127.0.0.1", "-c", "1", "-s", "100000", "--transport", "rc", "-q"])
        .ok();
    assert!(
        output.out().contains("1 received") && !output.out().contains("seq="),
        "{}",
        output.out()
    );
    let output = server.ask(&["ping", "127.0.0.1", "-c", "1", "-s", "100000"]).failed_with(1);
    assert!(output.err().contains("path MTU"), "{}", output.err());
}

#[test]
fn ping_ends_at_ctrl_c_with_a_summary() {
    let server = Server::start(&["ping"]);
    let client = Background::start(server.client(&["ping", "127.0.0.1", "-i", "0.1"]));
    assert!(client.line().starts_with("PING "));
    assert!(client.line().contains("seq=1"));
    let pid = client.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = client.wait().ok();
    assert!(output.out().contains("% loss"), "{}", output.out());
}

#[test]
fn ping_of_a_server_that_is_stopped_shows_loss() {
    let server = Server::start(&["ping"]);
    let client = Background::start(server.client(&[
        "ping",
        "127.0.0.1",
        "-c",
        "3",
        "-i",
        "0.3",
        "-W",
        "0.2",
    ]));
    assert!(client.line().starts_with("PING "));
    assert!(client.line().contains("seq=1"));
    let pid = server.process.id().to_string();
    let signal =
        |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    assert!(client.line().contains("no answer"));
    signal("-CONT");
    let output = client.wait().ok();
    assert!(
        output.out().contains("3 messages transmitted") && !output.out().contains(" 0.0000%"),
        "{}",
        output.out()
    );
}
