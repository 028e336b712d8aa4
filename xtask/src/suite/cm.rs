//! The distribution's programs that find each other through the connection manager: rdmacm-utils, perftest with `-R`,
//! qperf with `-cm 1`.

use super::{Cases, host, qperf, seconds};
use crate::netns::{End, Family, Joined, Namespace};
use crate::pair::{self, User};
use crate::process::{Outcome, Program};
use crate::suite::case::Case;

/// A server and a client, `@` standing for the server's address.
struct Pair {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    /// How the server ends.
    end: Ending,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Ending {
    /// By itself, with success.
    Itself,
    /// Never: it is told to.
    Told,
}

const fn pair(name: &'static str, server: &'static str, client: &'static str) -> Pair {
    Pair { name, server, client, end: Ending::Itself }
}

const fn served(name: &'static str, server: &'static str, client: &'static str) -> Pair {
    Pair { name, server, client, end: Ending::Told }
}

const UTILS: [Pair; 14] = [
    pair("rping", "rping -s -a @ -v -V -C 20 -S 1000", "rping -c -a @ -v -V -C 20 -S 1000"),
    served("rping-persistent", "rping -s -P -a @", "rping -c -a @ -C 20"),
    pair("ucmatose", "ucmatose -b @ -c 3", "ucmatose -s @ -c 3"),
    pair("ucmatose-ib", "ucmatose -b @ -c 3 -P ib", "ucmatose -s @ -c 3 -P ib"),
    pair("ucmatose-large", "ucmatose -b @ -C 10 -S 65536", "ucmatose -s @ -C 10 -S 65536"),
    pair("ucmatose-migrate", "ucmatose -b @ -m -t 32 -a 14", "ucmatose -s @ -m -t 32 -a 14"),
    pair("udaddy", "udaddy -b @", "udaddy -s @"),
    pair("udaddy-several", "udaddy -b @ -c 5 -C 10", "udaddy -s @ -c 5 -C 10"),
    pair("rdma_client", "rdma_server -s @", "rdma_client -s @"),
    pair("rdma_xclient-rc", "rdma_xserver -c r", "rdma_xclient -s @ -c r"),
    pair("rdma_xclient-xrc", "rdma_xserver -c x", "rdma_xclient -s @ -c x"),
    served("cmtime", "cmtime -b @", "cmtime -s @ -c 10"),
    served("cmtime-100", "cmtime -b @", "cmtime -s @ -c 100"),
    pair("rping-blocking", "rping -s -a @ -C 3 -d", "rping -c -a @ -C 3 -d"),
];

/// These listen on IPv4's wildcard.
fn only_v4(pair: &Pair) -> bool {
    pair.server.starts_with("rdma_") && !pair.server.contains('@')
}

/// perftest offers no UC with `-R`. Atomics are of eight bytes. All sizes of the latencies; those of the bandwidths are tried
/// without `-R` (suite step perftest).
const PERFTEST: [Pair; 10] = [
    pair("ib_send_bw", "ib_send_bw -F -R -s 65536 -n 100", "ib_send_bw -F -R -s 65536 -n 100 @"),
    pair("ib_send_lat", "ib_send_lat -F -R -a -n 20", "ib_send_lat -F -R -a -n 20 @"),
    pair(
        "ib_send_bw-ud",
        "ib_send_bw -F -R -c UD -s 1024 -n 100",
        "ib_send_bw -F -R -c UD -s 1024 -n 100 @",
    ),
    pair(
        "ib_send_lat-ud",
        "ib_send_lat -F -R -c UD -a -n 20",
        "ib_send_lat -F -R -c UD -a -n 20 @",
    ),
    pair("ib_write_bw", "ib_write_bw -F -R -s 65536 -n 100", "ib_write_bw -F -R -s 65536 -n 100 @"),
    pair("ib_write_lat", "ib_write_lat -F -R -a -n 20", "ib_write_lat -F -R -a -n 20 @"),
    pair("ib_read_bw", "ib_read_bw -F -R -s 65536 -n 100", "ib_read_bw -F -R -s 65536 -n 100 @"),
    pair("ib_read_lat", "ib_read_lat -F -R -a -n 20", "ib_read_lat -F -R -a -n 20 @"),
    pair("ib_atomic_bw", "ib_atomic_bw -F -R -n 200", "ib_atomic_bw -F -R -n 200 @"),
    pair("ib_atomic_lat", "ib_atomic_lat -F -R -n 200", "ib_atomic_lat -F -R -n 200 @"),
];

/// The same with one size. By wire what is sent
/// one way with UD may be lost, and the program then waits for ever.
const PERFTEST_BRIEF: [Pair; 8] = [
    pair("ib_send_bw", "ib_send_bw -F -R -s 65536 -n 100", "ib_send_bw -F -R -s 65536 -n 100 @"),
    pair("ib_send_lat", "ib_send_lat -F -R -s 8 -n 200", "ib_send_lat -F -R -s 8 -n 200 @"),
    pair(
        "ib_send_lat-ud",
        "ib_send_lat -F -R -c UD -s 1024 -n 200",
        "ib_send_lat -F -R -c UD -s 1024 -n 200 @",
    ),
    pair("ib_write_bw", "ib_write_bw -F -R -s 65536 -n 100", "ib_write_bw -F -R -s 65536 -n 100 @"),
    pair("ib_write_lat", "ib_write_lat -F -R -s 8 -n 200", "ib_write_lat -F -R -s 8 -n 200 @"),
    pair("ib_read_bw", "ib_read_bw -F -R -s 65536 -n 100", "ib_read_bw -F -R -s 65536 -n 100 @"),
    pair("ib_read_lat", "ib_read_lat -F -R -s 8 -n 200", "ib_read_lat -F -R -s 8 -n 200 @"),
    pair("ib_atomic_bw", "ib_atomic_bw -F -R -n 200", "ib_atomic_bw -F -R -n 200 @"),
];

/// Options that the others do not have, on one host and on two.
const MORE: [Pair; 9] = [
    pair("rping-own-qp", "rping -s -a @ -v -C 10 -q", "rping -c -a @ -v -V -C 10 -q"),
    pair("rping-any-largest", "rping -s -a ::0 -C 100 -S 65535", "rping -c -a @ -C 100 -S 65535"),
    pair("rping-port", "rping -s -a @ -p 9999 -C 3", "rping -c -a @ -I @ -p 9999 -C 3"),
    pair("ucmatose-100", "ucmatose -b @ -c 100 -C 3", "ucmatose -s @ -b @ -c 100 -C 3"),
    pair("ucmatose-silent", "ucmatose -b @ -C 0", "ucmatose -s @ -C 0"),
    pair("ucmatose-migrate-large", "ucmatose -b @ -m -S 1000000", "ucmatose -s @ -m -S 1000000"),
    pair("udaddy-ipoib", "udaddy -b @ -P ipoib -t 32", "udaddy -s @ -P ipoib -t 32"),
    pair("rdma_client-any", "rdma_server -p 5555", "rdma_client -s @ -p 5555"),
    served("cmtime-1000", "cmtime -b @ -p 9999", "cmtime -s @ -p 9999 -c 1000 -r 3 -t 5000"),
];

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let alone = Namespace::new()?;
    let joined = Joined::new(1500)?;
    let [(root_name, root), (nobody_name, nobody)] = host::users()?;
    let wire = User::own().on_path("wire");
    for (name, user) in [(root_name, &root), (nobody_name, &nobody), ("root-by-wire", &wire)] {
        let more = if name == root_name { &MORE[..] } else { &[] };
        for (family, address) in [("v4", "127.0.0.1"), ("v6", "::1")] {
            let pairs = UTILS.iter().chain(more);
            for pair in pairs.filter(|pair| family == "v4" || !only_v4(pair)) {
                cases.case(format!("{}-{family}-{name}", pair.name), seconds(60), |case| {
                    pair.run(case, user, [&alone, &alone], address)
                });
            }
        }
        let perftest = if name == root_name { &PERFTEST[..] } else { &PERFTEST_BRIEF };
        for pair in perftest {
            cases.case(format!("{}-{name}", pair.name), seconds(180), |case| {
                pair.run(case, user, [&alone, &alone], "127.0.0.1")
            });
        }
    }
    for (name, places, address) in [
        ("one-host-v4", [&alone, &alone], "127.0.0.1"),
        ("one-host-v6", [&alone, &alone], "::1"),
        ("two-hosts-v4", [&joined.a, &joined.b], Joined::address(End::A, Family::V4)),
        ("two-hosts-v6", [&joined.a, &joined.b], Joined::address(End::A, Family::V6)),
    ] {
        cases.case(format!("ironverbs-ping-rping-{name}"), seconds(60), |case| {
            ping_rping(case, &root, places, address)
        });
    }
    for family in Family::BOTH {
        let address = Joined::address(End::A, family);
        let places = [&joined.a, &joined.b];
        for (user_name, user, pairs) in [
            (root_name, &root, UTILS.iter().chain(&MORE)),
            (nobody_name, &nobody, UTILS.iter().chain(&[])),
        ] {
            for pair in pairs.filter(|pair| family == Family::V4 || !only_v4(pair)) {
                // The address that a client binds is its own.
                if pair.client.contains("-b @") || pair.client.contains("-I @") {
                    continue;
                }
                let name = format!("{}-{}-two-hosts-{user_name}", pair.name, family.name());
                cases.case(name, seconds(60), |case| pair.run(case, user, places, address));
            }
        }
    }
    // The kernel's tables: no route there; a host on the link that does not answer.
    for (name, to, says) in [
        ("no-route-v4", "10.99.0.1", "RDMA_CM_EVENT_ADDR_ERROR, error: -101"),
        ("no-route-v6", "fd99::1", "RDMA_CM_EVENT_ADDR_ERROR, error: -101"),
        ("no-neighbour-v4", "10.66.0.77", "RDMA_CM_EVENT_ADDR_ERROR, error: -110"),
        ("no-neighbour-v6", "fd66::77", "RDMA_CM_EVENT_ADDR_ERROR, error: -110"),
        // The host is there, and no process of it has a device open.
        (
            "nobody-v4",
            Joined::address(End::A, Family::V4),
            "RDMA_CM_EVENT_UNREACHABLE, error: -111",
        ),
        (
            "nobody-v6",
            Joined::address(End::A, Family::V6),
            "RDMA_CM_EVENT_UNREACHABLE, error: -111",
        ),
    ] {
        cases.case(name, seconds(60), |case| {
            let client = joined.b.within(root.runs("ucmatose").args(["-s", to]));
            let finished = case.start(&client)?.wait(case.deadline())?;
            if finished.status.success() {
                return Err("it succeeded".into());
            }
            finished.says(says).map(drop)
        });
    }
    const V4: &str = "239.77.1.1";
    const V6: &str = "ff0e::7701";
    let two = [&joined.a, &joined.b];
    let one = [&alone, &alone];
    for (name, user, places, group, family, options) in [
        ("loopback", &root, one, V4, None, " -c 3 -S 1000"),
        ("loopback-nobody", &nobody, one, V4, None, ""),
        ("loopback-by-wire", &wire, one, V4, None, " -p 0x2"),
        ("two-hosts-v4", &root, two, V4, Some(Family::V4), " -c 3"),
        ("two-hosts-v6", &root, two, V6, Some(Family::V6), ""),
    ] {
        let address = |end| family.map_or("127.0.0.1", |family| Joined::address(end, family));
        let ends = [End::A, End::B].map(address);
        cases.case(format!("mckey-{name}"), seconds(60), |case| {
            mckey(case, user, places, ends, group, options)
        });
    }
    qperf::connected(cases, &[("local", &root), ("wire", &wire)])?;
    Ok(())
}

/// The program that a line of words is.
fn program(user: &User, words: &str, address: &str) -> Program {
    let mut words = words.split(' ').map(|word| if word == "@" { address } else { word });
    let program = user.runs("stdbuf").args(["-oL", words.next().unwrap_or_default()]);
    program.args(words)
}

impl Pair {
    fn run(
        &self,
        case: &mut Case,
        user: &User,
        [server, client]: [&Namespace; 2],
        address: &str,
    ) -> Outcome {
        let mut listening = case.start(&server.within(program(user, self.server, address)))?;
        pair::wait_for_service(&mut listening, user, server, case.deadline())?;
        case.run(&client.within(program(user, self.client, address)))?;
        match self.end {
            Ending::Itself => listening.wait(case.deadline())?.success().map(drop),
            Ending::Told => Ok(()),
        }
    }
}

/// The first end is a member and receives, the second sends without being one.
fn mckey(
    case: &mut Case,
    user: &User,
    [to, from]: [&Namespace; 2],
    [receiver, sender]: [&str; 2],
    group: &str,
    options: &str,
) -> Outcome {
    let listen = format!("mckey -m {group} -b @{options}");
    let mut listening = case.start(&to.within(program(user, &listen, receiver)))?;
    listening.wait_until("membership", case.deadline(), |running| {
        running.output().contains("receiving data transfers")
    })?;
    let send = format!("mckey -m {group} -b @ -s -o{options}");
    case.run(&from.within(program(user, &send, sender)))?;
    listening.wait(case.deadline())?.success().map(drop)
}

/// Our client with the server of rping.
fn ping_rping(
    case: &mut Case,
    user: &User,
    [server, client]: [&Namespace; 2],
    address: &str,
) -> Outcome {
    let mut listening = case.start(&server.within(program(user, "rping -s -v -a @", address)))?;
    pair::wait_for_service(&mut listening, user, server, case.deadline())?;
    let ping = ["ping", address, "--rping", "-c", "5", "-i", "0.01"];
    case.run(&client.within(user.command().args(ping)))?;
    let output = listening.wait(case.deadline())?.output;
    match output.contains("server ping data: rdma-ping-4") {
        true => Ok(()),
        false => Err("rping's server did not see the fifth message".into()),
    }
}
