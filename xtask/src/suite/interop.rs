//! Against the kernel's soft-RoCE, and with that and its software iWARP as devices, in a VM.

use super::case::Case;
use super::{Cases, capture, seconds};
use crate::process::{Outcome, Program};
use crate::{tree, vm};
use std::fs;
use std::path::Path;

/// REQ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP.
const ATTRIBUTES: [&str; 7] =
    ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016", "0x0017", "0x0018"];

/// Of namespace `peer` in the guest.
const OUR_ADDRESSES: [&str; 2] = ["10.79.0.2", "fd79::2"];

fn script() -> Program {
    Program::new("bash").arg(tree::root().join("tests/interop.sh").display())
}

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let names = script().arg("--list").read()?;
    let mut output = String::new();
    // Built here: in the guest, which is emulated, the compiler takes long.
    let [data, cm] = ["exchange.pcap", "exchange.cm.pcap"].map(|name| tree::target().join(name));
    cases.always("guest", seconds(1800), |case| {
        let _ = (fs::remove_file(&data), fs::remove_file(&cm));
        for name in ["exchange", "driver", "worlds", "kernel", "ids"] {
            let source = tree::root().join(format!("tests/{name}.c"));
            let build = Program::new("gcc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
            let build = build.arg(tree::target().join(name).display()).arg(source.display());
            case.run(&build.args(["-libverbs", "-lrdmacm", "-libumad"]))?;
        }
        let guest = script().arg(tree::stage().display()).arg(tree::target().display());
        let program = guest
            .under(vm::program().args(["--siw", "yes", "--timeout", "1700", "--"]).into_words());
        // A case that failed has its own line; here only the guest itself counts.
        output = case.start(&program)?.wait(case.deadline())?.output;
        if output.contains("interop: done") {
            Ok(())
        } else {
            Err("the guest did not finish".into())
        }
    });
    for name in names.lines() {
        cases.case(name, seconds(1), |_| {
            let lines = || output.lines().map(str::trim);
            let failed = format!("FAILED {name}: ");
            match lines().find_map(|line| line.strip_prefix(&failed)) {
                Some(why) => Err(why.into()),
                None if lines().any(|line| line == format!("ok {name}")) => Ok(()),
                None => Err("the guest reported nothing".into()),
            }
        });
    }
    cases.case("capture", seconds(300), |case| capture::icrcs(case, &data));
    cases.case("capture-cm", seconds(300), |case| {
        capture::icrcs(case, &cm)?;
        connections(case, &cm)
    });
    Ok(())
}

/// tshark names every message of the connection manager, and of ours there is each kind that a connection and a
/// look-up of a datagram service have.
fn connections(case: &mut Case, capture: &Path) -> Outcome {
    let path = capture.display().to_string();
    let fields = [
        "-T",
        "fields",
        "-e",
        "ip.src",
        "-e",
        "ipv6.src",
        "-e",
        "infiniband.mad.attributeid",
        "-e",
        "_ws.col.Info",
    ];
    let messages = Program::new("tshark")
        .args(["-r", &path, "-Y", "infiniband.mad.mgmtclass == 7"])
        .args(fields);
    let messages = case.run(&messages)?;
    for line in messages.lines().filter(|line| line.contains("0x")) {
        if !line.contains("CM: ") {
            return Err(format!("tshark does not know {line}").into());
        }
    }
    for address in OUR_ADDRESSES {
        for attribute in ATTRIBUTES {
            let mut lines = messages.lines();
            if !lines.any(|line| line.contains(address) && line.contains(attribute)) {
                return Err(format!("no message {attribute} from {address}").into());
            }
        }
    }
    Ok(())
}
