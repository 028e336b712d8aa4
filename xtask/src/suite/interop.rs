//! Against the kernel's soft-RoCE, in a VM.

use super::{Cases, seconds};
use crate::process::{Outcome, Program};
use crate::{tree, vm};

fn script() -> Program {
    Program::new("bash").arg(tree::root().join("tests/interop.sh").display())
}

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let names = script().arg("--list").read()?;
    let mut output = String::new();
    cases.always("guest", seconds(1500), |case| {
        // Built here: in the guest, which is emulated, the compiler takes long.
        let exchange = tree::target().join("exchange");
        let source = tree::root().join("tests/exchange.c");
        let build = Program::new("gcc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        case.run(&build.arg(exchange.display()).arg(source.display()).arg("-libverbs"))?;
        let guest = script().arg(tree::stage().display()).arg(exchange.display());
        let program = guest.under(vm::program().args(["--timeout", "1200", "--"]).into_words());
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
    Ok(())
}
