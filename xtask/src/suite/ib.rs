//! Devices with InfiniBand links: the distribution's programs by LID, its diagnostics and its subnet manager, on one
//! host and on two that are one subnet.

use super::{Cases, qperf, seconds};
use crate::netns::{End, Family, Joined, Namespace};
use crate::pair::{self, User};
use crate::process::{During, Outcome, Program, Running, pause};
use crate::suite::case::Case;
use crate::tree;
use std::fs;

/// TCP port on which two programs meet.
const PORT: u16 = 18900;

/// GUIDs of the two ports: made of their addresses.
const GUIDS: [&str; 2] = ["0x024952500a420001", "0x024952500a420002"];

/// The GIDs of the ports of two hosts.
const GIDS: [&str; 2] = ["fe80::249:5250:a42:1", "fe80::249:5250:a42:2"];

/// What perftest's options ask of these links: service levels, shared receives, extended connections, GIDs.
const OPTIONS: &[(&str, &str, &[&str])] = &[
    ("service-level", "ib_send_bw", &["-S", "3"]),
    ("shared-receives", "ib_send_bw", &["--use-srq", "-q", "4"]),
    ("extended", "ib_write_lat", &["-c", "XRC"]),
    ("by-gid", "ib_read_lat", &["-x", "0"]),
];

/// Where programs run, and what they are told of the subnet.
#[derive(Clone)]
struct Subnet<'a> {
    user: User,
    ends: [&'a Namespace; 2],
    hosts: String,
    address: &'static str,
    /// A variable that says more, with its values at the two ends.
    setting: Option<(&'static str, [&'static str; 2])>,
}

impl Subnet<'_> {
    /// A program at one of its ends.
    fn runs(&self, end: usize, name: &str) -> Program {
        self.at(end, self.user.runs(name))
    }

    /// The command at one of its ends.
    fn command(&self, end: usize, words: &[&str]) -> Program {
        self.at(end, self.user.command().args(words.iter()))
    }

    fn at(&self, end: usize, program: Program) -> Program {
        let mut program = program.env("IRONVERBS_LINK_LAYER", "InfiniBand");
        if !self.hosts.is_empty() {
            program = program.env("IRONVERBS_HOSTS", &self.hosts);
        }
        if let Some((name, values)) = self.setting {
            program = program.env(name, values[end]);
        }
        self.ends[end].within(program)
    }

    /// The process that makes the host at an end one of the subnet, whatever else runs there.
    fn agent(&self, case: &mut Case, end: usize) -> Outcome<Running> {
        case.start(&self.command(end, &["agent"]))
    }

    /// A server at the first end and a client at the second.
    fn pair(
        &self,
        case: &mut Case,
        name: &str,
        arguments: &[&str],
        waits: bool,
    ) -> Outcome<String> {
        let program = |end| self.runs(end, name).args(arguments.iter());
        let mut server = case.start(&program(0))?;
        if waits {
            pair::wait_for_listener(&mut server, PORT, case.deadline())?;
        }
        let client = case.start(&program(1).arg(self.address))?;
        let output = client.wait(case.deadline())?.success()?.output;
        server.wait(case.deadline())?.success()?;
        Ok(output)
    }

    /// What a program says that ends by itself.
    fn says(&self, case: &mut Case, end: usize, name: &str, arguments: &[&str]) -> Outcome<String> {
        let program = self.runs(end, name).args(arguments.iter());
        Ok(case.start(&program)?.wait(case.deadline())?.success()?.output)
    }

    /// The same, until it says what is expected: a subnet manager takes a moment.
    fn comes_to_say(
        &self,
        case: &mut Case,
        end: usize,
        name: &str,
        arguments: &[&str],
        expected: &[&str],
    ) -> Outcome {
        loop {
            let program = self.runs(end, name).args(arguments.iter());
            let finished = case.start(&program)?.wait(case.deadline())?;
            if expected.iter().all(|text| finished.output.contains(text)) {
                return Ok(());
            }
            pause();
        }
    }
}

fn expect(output: &str, expected: &[&str]) -> Outcome {
    match expected.iter().find(|text| !output.contains(**text)) {
        None => Ok(()),
        Some(text) => Err(format!("{text:?} is not in\n{output}").into()),
    }
}

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let own = Namespace::new()?;
    for (name, user) in [("local", User::own()), ("wire", User::own().on_path("wire"))] {
        let ends = [&own, &own];
        let subnet =
            Subnet { user, ends, hosts: String::new(), address: "127.0.0.1", setting: None };
        programs(cases, name, &subnet);
    }
    let (local, wire) = (User::own(), User::own().on_path("wire"));
    qperf::by_lid(cases, &[("local", &local), ("wire", &wire)])?;
    let joined = Joined::new(4400)?;
    let [a, b] = [End::A, End::B].map(|end| Joined::address(end, Family::V4));
    let ends = [&joined.a, &joined.b];
    let subnet =
        Subnet { user: User::own(), ends, hosts: format!("{a},{b}"), address: a, setting: None };
    programs(cases, "hosts", &subnet);
    cases.case("hosts-rping", seconds(60), |case| {
        let server = ["-s", "-a", a, "-C", "10", "-v"];
        let client = ["-c", "-a", a, "-C", "10", "-v"];
        meet(case, &subnet, "rping", &server, &client, "rdma-ping-9")
    });
    // By the GID of the server's port and the ID of its service, without an IP address.
    for (name, program, space) in [
        ("hosts-gid", "ucmatose", &[][..]),
        ("hosts-gid-any-service", "ucmatose", &["-P", "ib"]),
        ("hosts-gid-datagrams", "udaddy", &[]),
    ] {
        cases.case(name, seconds(60), |case| {
            let server = [&["-f", "gid", "-b", GIDS[0]], space].concat();
            let client = [&["-f", "gid", "-s", GIDS[0]], space].concat();
            meet(case, &subnet, program, &server, &client, "return status 0")
        });
    }
    cases.case("hosts-mckey", seconds(60), |case| multicast(case, &subnet));
    for (name, program, arguments) in OPTIONS {
        cases.case(format!("hosts-{name}"), seconds(60), |case| {
            let port = PORT.to_string();
            let arguments = [&["-F", "-n", "100", "-p", &port], *arguments].concat();
            let output = subnet.pair(case, program, &arguments, true)?;
            expect(&output, &["Link type       : IB"])
        });
    }
    let set = |name, values| Subnet { setting: Some((name, values)), ..subnet.clone() };
    let ucx = set("UCX_TLS", ["rc_verbs,ud_verbs:aux,self"; 2]);
    cases.case("hosts-ucx", seconds(60), |case| {
        let port = PORT.to_string();
        let arguments = ["-p", &port, "-t", "tag_bw", "-s", "65536", "-n", "50", "-w", "5"];
        let output = ucx.pair(case, "ucx_perftest", &arguments, true)?;
        expect(&output, &["Final:"])
    });
    cases.case("hosts-qperf", seconds(60), |case| {
        let port = PORT.to_string();
        let mut server = case.start(&subnet.runs(0, "qperf").args(["-lp", &port]))?;
        pair::wait_for_listener(&mut server, PORT, case.deadline())?;
        for (options, test) in [(&[][..], "ud_lat"), (&["-cm", "1"], "rc_lat")] {
            let options = [&["-lp", &port, "-t", "1"], options, &[subnet.address, test]].concat();
            expect(&subnet.says(case, 1, "qperf", &options)?, &["latency"])?;
        }
        Ok(())
    });
    cases.case("paths", seconds(60), |case| paths(case, &subnet));
    let several = set("IRONVERBS_LMC", ["2", "2"]);
    cases.case("several-lids", seconds(60), |case| several_lids(case, &several));
    // The partition that both are in is at different places of their tables.
    let shared = set("IRONVERBS_PKEYS", ["0x8002,0x8003", "0x8001,0x0003"]);
    cases.case("partitions", seconds(60), |case| partitions(case, &shared));
    let limited = set("IRONVERBS_PKEYS", ["0x7fff", "0x7fff"]);
    cases.case("limited-members", seconds(60), |case| strangers(case, &limited));
    let apart = set("IRONVERBS_PKEYS", ["0x8001", "0x8002"]);
    cases.case("partitions-apart", seconds(60), |case| strangers(case, &apart));
    cases.case("unasked", seconds(60), |case| unasked(case, &subnet));
    cases.case("death", seconds(60), |case| death(case, &subnet));
    cases.case("takeover", seconds(60), |case| takeover(case, &subnet));
    cases.case("diagnostics", seconds(90), |case| diagnostics(case, &subnet));
    cases.case("administrator", seconds(60), |case| administrator(case, &subnet));
    cases.case("opensm", seconds(90), |case| opensm(case, &subnet));
    cases.case("opensm-death", seconds(90), |case| opensm_death(case, &subnet));
    cases.case("opensm-handover", seconds(90), |case| opensm_handover(case, &subnet));
    Ok(())
}

/// A server at the first end, and a client at the second until it says what is expected: it may be there before the server
/// listens.
fn meet(
    case: &mut Case,
    subnet: &Subnet<'_>,
    name: &str,
    server: &[&str],
    client: &[&str],
    expected: &str,
) -> Outcome {
    let server = case.start(&subnet.runs(0, name).args(server))?;
    loop {
        let finished = case.start(&subnet.runs(1, name).args(client))?.wait(case.deadline())?;
        if finished.output.contains(expected) {
            break;
        }
        pause();
    }
    server.wait(case.deadline())?.success().map(drop)
}

fn programs(cases: &mut Cases<'_>, place: &str, subnet: &Subnet<'_>) {
    let port = PORT.to_string();
    for kind in ["rc", "uc", "ud", "srq", "xsrq"] {
        for (way, option) in [("", "-p"), ("-events", "-ep")] {
            cases.case(format!("{place}-{kind}{way}"), seconds(60), |case| {
                let arguments = [option, &port, "-n", "500"];
                let output =
                    subnet.pair(case, &format!("ibv_{kind}_pingpong"), &arguments, true)?;
                // The one for XRC tells nothing.
                if kind == "xsrq" { Ok(()) } else { expect(&output, &["LID 0x0001", "usec/iter"]) }
            });
        }
    }
    for operation in ["send", "write", "read", "atomic"] {
        cases.case(format!("{place}-{operation}-bw"), seconds(60), |case| {
            let arguments = ["-F", "-p", &port, "-n", "200"];
            let output = subnet.pair(case, &format!("ib_{operation}_bw"), &arguments, true)?;
            expect(&output, &["Link type       : IB", "BW average"])
        });
    }
}

/// What the administrator says of ways, by GID, address and LID.
fn paths(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    let (gid, long) = ("fe80::249:5250:a42:2", "fe80:0000:0000:0000:0249:5250:0a42:0002");
    let address = Joined::address(End::B, Family::V4);
    let way = format!("{long}  LID 0x0001 -> 0x0002, MTU ");
    command_says(case, subnet, &["paths"], &[&way, "P_Key 0xffff, SL 0"])?;
    for word in [gid, address, "2"] {
        command_says(case, subnet, &["reach", word], &[&format!("{long} is reachable")])?;
        command_says(case, subnet, &["paths", word], &[&way])?;
        let json = [r#""dlid":2"#, r#""slid":1"#, &format!(r#""dgid":"{long}""#)];
        command_says(case, subnet, &["paths", "--json", word], &json)?;
    }
    for (word, why) in [("9", "LID 0x0009 is no port's"), ("fe80::9", "no path to")] {
        let finished = case.start(&subnet.command(0, &["reach", word]))?.wait(case.deadline())?;
        expect(&finished.output, &[why])?;
    }
    Ok(())
}

/// What our command comes to say at the first end: the peer takes a moment.
fn command_says(
    case: &mut Case,
    subnet: &Subnet<'_>,
    words: &[&str],
    expected: &[&str],
) -> Outcome {
    loop {
        let finished = case.start(&subnet.command(0, words))?.wait(case.deadline())?;
        if expected.iter().all(|text| finished.output.contains(text)) {
            return Ok(());
        }
        pause();
    }
}

/// Ports that have four LIDs each.
fn several_lids(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    for lid in ["8", "9", "10", "11"] {
        let way = format!("LID 0x0004 -> {:#06x}, ", lid.parse::<u16>().unwrap_or(0));
        command_says(case, subnet, &["paths", lid], &[&way])?;
    }
    expect(&subnet.says(case, 0, "ibaddr", &[])?, &["LID start 0x4 end 0x7"])?;
    expect(&subnet.says(case, 0, "ibtracert", &["5", "9"])?, &["lid 8-11"])?;
    expect(&subnet.says(case, 0, "perfquery", &["10", "1"])?, &["PortXmitPkts"])?;
    let record = ["-p", "--src-to-dst", "5:11"];
    // It asks once, and a question that is under way as managers change may be lost.
    subnet.comes_to_say(case, 0, "saquery", &record, &["dlid....................11"])?;
    rping(case, subnet)?;
    let port = PORT.to_string();
    let output = subnet.pair(case, "ibv_rc_pingpong", &["-p", &port, "-n", "100"], true)?;
    expect(&output, &["LID 0x0004", "LID 0x0008"])
}

/// The server's own end is not looked at: its two threads race there.
fn rping(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let address = subnet.address;
    let _server = case.start(&subnet.runs(0, "rping").args(["-s", "-P", "-a", address]))?;
    let client = ["-c", "-a", address, "-C", "10", "-v"];
    subnet.comes_to_say(case, 1, "rping", &client, &["rdma-ping-9"])
}

/// A full member and a limited one of a partition that neither has first.
fn partitions(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    command_says(case, subnet, &["paths", "2"], &["P_Key 0x8003"])?;
    expect(&subnet.says(case, 1, "smpquery", &["pkeys", "1"])?, &["0x8002 0x8003 0x0000"])?;
    expect(&subnet.says(case, 1, "ibv_devinfo", &["-v"])?, &["max_pkeys:\t\t\t32"])?;
    rping(case, subnet)
}

/// Two limited members of a partition, and members of different ones, have no path.
fn strangers(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    subnet.comes_to_say(case, 0, "saquery", &[], &["0249524e0a42", "ironverbs switch"])?;
    let finished = case.start(&subnet.command(0, &["reach", "2"]))?.wait(case.deadline())?;
    expect(&finished.output, &["the subnet administrator knows none"])?;
    let _server = case.start(&subnet.runs(0, "rping").args(["-s", "-a", subnet.address]))?;
    let client = ["-c", "-a", subnet.address, "-C", "1"];
    let finished = case.start(&subnet.runs(1, "rping").args(client))?.wait(case.deadline())?;
    expect(&finished.output, &["RDMA_CM_EVENT_ROUTE_ERROR, error -22"])
}

/// Programs of infiniband-diags that need no administrator, at the first end, and what they say of the second and of the
/// switch between.
const DIAGNOSTICS: &[(&str, &[&str], &[&str])] = &[
    ("ibaddr", &["-g", "2"], &["fe80::249:5250:a42:2"]),
    ("smpquery", &["nodeinfo", "3"], &["NodeType:........................Switch"]),
    ("smpquery", &["nodedesc", "3"], &["Node Description:................ironverbs switch"]),
    ("smpquery", &["switchinfo", "3"], &["LinearFdbCap:....................49151"]),
    ("smpquery", &["sl2vl", "2"], &["ports: in  0, out  0: | 0| 0|"]),
    ("smpquery", &["vlarb", "2"], &["VLArbitration tables: Lid 2"]),
    ("ibroute", &["3"], &["0x0002 002 : (Channel Adapter portguid 0x024952500a420002"]),
    ("ibroute", &["-M", "3"], &["Multicast mlids [0xc000-0xc3ff]"]),
    ("ibportstate", &["3", "1", "query"], &["PhysLinkState:...................LinkUp"]),
    ("ibswitches", &[], &["Switch\t: 0x0249525300000001 ports 2"]),
    ("ibnodes", &[], &["Ca\t: 0x0249524e0a420002 ports 1"]),
    ("perfquery", &["-x", "2", "1"], &["PortXmitData:"]),
    ("perfquery", &["-a", "3"], &["port 255"]),
    ("smpdump", &["2", "0x11"], &["0249 524e 0a42 0002"]),
    ("smpdump", &["-D", "0,1", "0x11"], &["0249 5253 0000 0001"]),
    ("ibnetdiscover", &["-p"], &["SW     3  2 0x0249525300000001"]),
    ("dump_fts", &[], &["0x0001 001 : (Channel Adapter portguid 0x024952500a420001"]),
];

fn diagnostics(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    let nodes = GUIDS.map(|guid| guid.replace("0x02495250", "0249524e"));
    subnet.comes_to_say(case, 0, "ibnetdiscover", &[], &[&nodes[0], &nodes[1], "Switch\t2"])?;
    expect(
        &subnet.says(case, 1, "ibstat", &[])?,
        &["State: Active", "Base lid: 2", "Link layer: InfiniBand", GUIDS[1]],
    )?;
    expect(&subnet.says(case, 0, "ibaddr", &["2"])?, &["LID start 0x2 end 0x2"])?;
    expect(&subnet.says(case, 0, "smpquery", &["portinfo", "2"])?, &["Active", "4096"])?;
    expect(&subnet.says(case, 0, "smpquery", &["-D", "nodeinfo", "0,1,2"])?, &["Channel Adapter"])?;
    expect(&subnet.says(case, 0, "smpquery", &["pkeys", "2"])?, &["0xffff"])?;
    expect(&subnet.says(case, 0, "iblinkinfo", &[])?, &["ironverbs switch", "Active/"])?;
    expect(&subnet.says(case, 0, "ibhosts", &[])?, &[&nodes[0], &nodes[1]])?;
    expect(&subnet.says(case, 0, "ibtracert", &["1", "2"])?, &["To ca"])?;
    expect(&subnet.says(case, 0, "perfquery", &["2", "1"])?, &["PortXmitPkts"])?;
    let _echo = case.start(&subnet.runs(1, "ibping").arg("-S"))?;
    subnet.comes_to_say(case, 0, "ibping", &["-c", "1", "2"], &["1 received"])?;
    let _sysstat = case.start(&subnet.runs(1, "ibsysstat").arg("-S"))?;
    subnet.comes_to_say(case, 0, "ibsysstat", &["2", "ping"], &["sysstat ping succeeded"])?;
    let ours = tree::stage().join("lib/libibmad.so.5").display().to_string();
    expect(&subnet.says(case, 0, "ldd", &["/usr/sbin/sminfo"])?, &[&ours])?;
    for (name, arguments, expected) in DIAGNOSTICS {
        expect(&subnet.says(case, 0, name, arguments)?, expected)?;
    }
    drop(agents);
    Ok(())
}

/// Kinds of records, and what is in the administrator's answers.
const RECORDS: &[(&[&str], &[&str])] = &[
    (&["CPI"], &["ClassPortInfo", "Class version............2"]),
    (&["-s"], &["IsSM ports", "EndPortLid..............1", "EndPortLid..............2"]),
    (&["--list"], &["     1  \"", "     2  \""]),
    (&["PIR", "3/1"], &["EndPortLid..............3", "PortNum.................1"]),
    (&["SL2VL", "3"], &["InPort.....................1", "OutPort....................2"]),
    (&["VLAR", "1/1"], &["Block......................4"]),
    (&["--smkey", "1", "PKTR", "3"], &["LID........................3", "0xffff"]),
    (&["LR", "3/1"], &["ToLID......................1"]),
    (&["LFTR", "3/0"], &["LFT Record dump", "Block......................0"]),
    (&["GIR", "2/0"], &["0x024952500a420002"]),
    (&["SWIR"], &["SwitchInfoRecord"]),
    (&["SMIR"], &["LID...................1", "LID...................2"]),
    (&["PR", "--slid", "1", "--dlid", "2"], &["dlid....................2"]),
];

/// Our administrator, asked for all it knows, and by the flows of opensm's own test-suite for administrators that opensm
/// passes itself on such a subnet: an inventory, events, virtual lanes.
fn administrator(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    let managers = ["LID...................1", "LID...................2"];
    subnet.comes_to_say(case, 0, "saquery", &["SMIR"], &managers)?;
    let [inventory, log] = ["inventory", "osmtest"].map(|name| case.file(name));
    let [inventory, log] = [inventory, log].map(|path| path.display().to_string());
    for flow in ["c", "e", "q"] {
        let arguments = ["-f", flow, "-g", GUIDS[0], "-i", &inventory, "-l", &log];
        subnet.says(case, 0, "osmtest", &arguments)?;
    }
    for (arguments, expected) in RECORDS {
        expect(&subnet.says(case, 0, "saquery", arguments)?, expected)?;
    }
    Ok(())
}

/// Two hosts have a group, which their subnet's administrator knows.
fn multicast(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let group = "239.77.1.1";
    let receiver = subnet.runs(0, "mckey").args(["-m", group, "-b", subnet.address]);
    let listening = case.start(&receiver)?;
    // As IPoIB maps groups, with the signature of rdma_cm(7).
    let mgid = "ff12:4001:ffff::f4d:101";
    subnet.comes_to_say(case, 1, "saquery", &["-g"], &[mgid, "0xC000"])?;
    let other = Joined::address(End::B, Family::V4);
    subnet.says(case, 1, "mckey", &["-m", group, "-b", other, "-s"])?;
    listening.wait(case.deadline())?.success().map(drop)
}

/// Whoever has a device open manages the subnet, the diagnostics themselves if nobody else is there.
fn unasked(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    expect(&subnet.says(case, 0, "sminfo", &[])?, &["sm lid 1", "SMINFO_MASTER"])?;
    let nodes = GUIDS.map(|guid| guid.replace("0x02495250", "0249524e"));
    expect(&subnet.says(case, 0, "saquery", &[])?, &[&nodes[0], "ironverbs switch"])?;
    expect(&subnet.says(case, 0, "ibnetdiscover", &[])?, &[&nodes[0], "Switch\t2"])?;
    let _peer = case.start(&subnet.runs(1, "ibping").arg("-S"))?;
    subnet.comes_to_say(case, 0, "ibnetdiscover", &[], &[&nodes[0], &nodes[1]])?;
    subnet.comes_to_say(case, 0, "saquery", &[], &[&nodes[0], &nodes[1]])?;
    expect(&subnet.says(case, 0, "saquery", &["-x"])?, &["ToLID"])?;
    expect(&subnet.says(case, 0, "saquery", &["-c"])?, &["ClassPortInfo"])?;
    // If the manager is the one that asks, nobody has subscribed when it begins.
    subnet.comes_to_say(case, 0, "saquery", &["-I"], &["trap_num................65"])?;
    expect(&subnet.says(case, 0, "saquery", &["PKTR"])?, &["0xffff"])?;
    expect(&subnet.says(case, 0, "saquery", &["SWIR"])?, &["SwitchInfoRecord"])
}

/// A host is killed: the other is told, and nobody is reached there any more.
fn death(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let agent = subnet.agent(case, 1)?;
    dies(case, subnet, 0, vec![agent])
}

/// The host at the end that is not `end` dies with its processes: who watches there is told.
fn dies(case: &mut Case, subnet: &Subnet<'_>, end: usize, others: Vec<Running>) -> Outcome {
    let gid = GIDS[1 - end];
    let own = |words: &[&str]| subnet.command(end, words);
    let mut watch = case.start(&own(&["watch", gid]))?;
    watch.wait_until("watch", case.deadline(), |watch| watch.output().contains("ready"))?;
    while !case.start(&own(&["reach", gid]))?.wait(case.deadline())?.output.contains("is reachable")
    {
        pause();
    }
    drop(others);
    watch.wait_until("notice", case.deadline(), |watch| watch.output().contains("unavailable"))?;
    // opensm tells before it forgets.
    while !case.start(&own(&["reach", gid]))?.wait(case.deadline())?.output.contains("no path to") {
        pause();
    }
    Ok(())
}

/// The same with opensm as the manager, on the host that stays and on the one that dies.
fn opensm_death(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    for (watches, manages) in [(0, 0), (1, 1), (0, 1)] {
        let stays = subnet.agent(case, watches)?;
        let mut dying = vec![subnet.agent(case, 1 - watches)?];
        let manager = start_opensm(case, subnet, manages, &["-p", "3"])?;
        let lid = format!("sm lid {}", manages + 1);
        subnet.comes_to_say(case, watches, "sminfo", &[], &[&lid, "priority 3", "MASTER"])?;
        let other = (2 - manages).to_string();
        subnet.comes_to_say(case, watches, "sminfo", &[&other], &["priority 0", "STANDBY"])?;
        let manager = match manages == watches {
            true => Some(manager),
            false => {
                dying.push(manager);
                None
            }
        };
        dies(case, subnet, watches, dying)?;
        drop((stays, manager));
    }
    Ok(())
}

/// Ours hands the subnet over to an opensm of higher priority at another host, and has it back when that ends; one of
/// lower priority stands by.
fn opensm_handover(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let _agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 1", "priority 0", "MASTER"])?;
    let manager = start_opensm(case, subnet, 1, &["-p", "9"])?;
    subnet.comes_to_say(case, 0, "sminfo", &[], &["sm lid 2", "priority 9", "MASTER"])?;
    subnet.comes_to_say(case, 0, "sminfo", &["1"], &["priority 0", "STANDBY"])?;
    let nodes = GUIDS.map(|guid| guid.replace("0x02495250", "0x0249524e"));
    subnet.comes_to_say(case, 0, "saquery", &[], &[&nodes[0], &nodes[1], "ironverbs switch"])?;
    drop(manager);
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 1", "priority 0", "MASTER"])?;
    // The GUID of the one at the first end is lower.
    let _manager = start_opensm(case, subnet, 1, &["-p", "0"])?;
    subnet.comes_to_say(case, 0, "sminfo", &["2"], &["priority 0", "STANDBY"])?;
    expect(&subnet.says(case, 1, "sminfo", &[])?, &["sm lid 1", "MASTER"])?;
    subnet.comes_to_say(case, 1, "saquery", &[], &[&nodes[0], &nodes[1], "ironverbs switch"])
}

/// Of two hosts' managers one is the master, and the other when that one's host is killed.
fn takeover(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let second = subnet.agent(case, 1)?;
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 2", "SMINFO_MASTER"])?;
    let first = subnet.agent(case, 0)?;
    // The lower GUID wins.
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 1", "SMINFO_MASTER"])?;
    subnet.comes_to_say(case, 1, "sminfo", &["2"], &["SMINFO_STANDBY"])?;
    drop(first);
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 2", "SMINFO_MASTER"])?;
    drop(second);
    Ok(())
}

fn start_opensm(
    case: &mut Case,
    subnet: &Subnet<'_>,
    end: usize,
    options: &[&str],
) -> Outcome<Running> {
    let log = case.file("opensm").display().to_string();
    // What it remembers of other subnets would have it assign other LIDs.
    let cache = case.file("cache");
    let _ = fs::remove_dir_all(&cache);
    fs::create_dir_all(&cache).during(cache.display())?;
    let manager = subnet.runs(end, "opensm").args(["-g", GUIDS[end], "-f", &log]);
    let manager = manager.args(options.iter());
    case.start(&manager.env("OSM_CACHE_DIR", cache.display().to_string()))
}

fn opensm(case: &mut Case, subnet: &Subnet<'_>) -> Outcome {
    let agents = [subnet.agent(case, 0)?, subnet.agent(case, 1)?];
    // Ours has priority 0: its own is what tells them apart.
    let _manager = start_opensm(case, subnet, 0, &["-p", "3"])?;
    subnet.comes_to_say(case, 1, "sminfo", &[], &["sm lid 1", "priority 3", "SMINFO_MASTER"])?;
    subnet.comes_to_say(case, 1, "ibstat", &[], &["SM lid: 1"])?;
    // What the diagnostics ask the administrator by themselves.
    expect(&subnet.says(case, 1, "ibaddr", &["-G", GUIDS[0]])?, &["LID start 0x1 end 0x1"])?;
    expect(
        &subnet.says(case, 1, "smpquery", &["-G", "nodeinfo", GUIDS[0]])?,
        &["# Node info: Lid 1"],
    )?;
    expect(&subnet.says(case, 1, "ibqueryerrors", &[])?, &["3 nodes checked, 0 bad nodes found"])?;
    // Records of all nodes are longer than a datagram.
    let nodes = GUIDS.map(|guid| guid.replace("0x02495250", "0x0249524e"));
    subnet.comes_to_say(case, 1, "saquery", &[], &[&nodes[0], &nodes[1], "ironverbs switch"])?;
    expect(
        &subnet.says(case, 1, "saquery", &["-p", "--src-to-dst", "2:1"])?,
        &["dlid....................1", "slid....................2"],
    )?;
    // Of each cable both ends, and nothing behind them: an answer that is shorter than a MAD keeps its length.
    let links = subnet.says(case, 1, "saquery", &["-x"])?;
    if links.matches("LinkRecord dump").count() != 4 {
        return Err(format!("not four ends of cables:\n{links}").into());
    }
    let server = ["-s", "-a", subnet.address, "-C", "10", "-v"];
    let client = ["-c", "-a", subnet.address, "-C", "10", "-v"];
    meet(case, subnet, "rping", &server, &client, "rdma-ping-9")?;
    drop(agents);
    Ok(())
}
