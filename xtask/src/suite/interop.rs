//! Against the kernel's soft-RoCE, in a VM.

use super::{Cases, seconds};
use crate::process::Outcome;
use crate::{tree, vm};

/// The guest's script prints `ok NAME` or `FAILED NAME: WHY` for each of these.
fn expected() -> Vec<String> {
    let mut names = Vec::new();
    for family in ["v4", "v6"] {
        for kind in ["rc", "uc", "ud", "srq"] {
            for role in ["server", "client"] {
                names.push(format!("{kind}-{role}-{family}"));
            }
        }
        for role in ["server", "client"] {
            names.push(format!("rc-{role}-loss-{family}"));
        }
    }
    names
}

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let mut output = String::new();
    cases.always("guest", seconds(1500), |case| {
        let script = tree::root().join("tests/interop.sh");
        let program = vm::program()
            .args(["--timeout", "1200", "--", "bash"])
            .arg(script.display())
            .arg(tree::stage().display());
        // A case that failed has its own line; here only the guest itself counts.
        output = case.start(&program)?.wait(case.deadline())?.output;
        if output.contains("interop: done") {
            Ok(())
        } else {
            Err("the guest did not finish".into())
        }
    });
    for name in expected() {
        cases.case(&name, seconds(1), |_| {
            let lines = || output.lines().map(str::trim);
            let failed = format!("FAILED {name}: ");
            match lines().find_map(|line| line.strip_prefix(&failed)) {
                Some(why) => Err(why.into()),
                None if lines().any(|line| line == format!("ok {name}")) => Ok(()),
                None => Err("the guest reported nothing".into()),
            }
        });
    }
    Ok(())
}
