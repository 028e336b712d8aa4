//! The instructions that a message costs in the transport, and a request or completion by each of the interfaces of
//! libibverbs, which no machine's noise touches.

use super::case::Case;
use super::{Cases, seconds};
use crate::pair::User;
use crate::process::{Outcome, Program};
use crate::tree;
use std::fs;

/// More than this above what is recorded is a loss that somebody decides on; as far below it, the record is updated.
const TOLERANCE: f64 = 0.04;

/// The same of a function of the interfaces: what is inlined into what, in a whole library, changes with anything in it.
const TOLERANCE_OF_INTERFACES: f64 = 0.15;

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let mut built = false;
    cases.always("build", seconds(1200), |case| {
        let build = ["build", "--release", "--package=ironverbs-benches", "--bin=hotpath"];
        case.run(&Program::new("cargo").args(build))?;
        let (source, program) = (tree::root().join("benches/interfaces.c"), interfaces());
        let gcc = Program::new("gcc").args(["-O2", "-Wall", "-o", &program]);
        case.run(&gcc.arg(source.display()).arg("-libverbs"))?;
        built = true;
        Ok(())
    });
    let table = fs::read_to_string(tree::root().join("benches/instructions.tsv"))?;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let Some((message, recorded)) = line.split_once('\t') else { continue };
        let recorded: f64 =
            recorded.trim().parse().map_err(|_| format!("{line:?} is no record"))?;
        cases.case(message, seconds(300), |case| {
            if !built {
                return Err("not built".into());
            }
            let (now, tolerance) = match message.split_once(':') {
                Some((_, function)) => (by_interface(case, function)?, TOLERANCE_OF_INTERFACES),
                None => {
                    let more = count(case, message, 2_000)? - count(case, message, 1_000)?;
                    (more / 1_000.0, TOLERANCE)
                }
            };
            case.note(format!("{now:.0} instructions, {recorded:.0} recorded"));
            let change = now / recorded - 1.0;
            if change.abs() > tolerance {
                let share = change * 100.0;
                return Err(
                    format!("{now:.0} instructions a message, {share:+.0}% of the record").into()
                );
            }
            Ok(())
        });
    }
    Ok(())
}

/// Where the program of the interfaces is built to.
fn interfaces() -> String {
    tree::target().join("interfaces").display().to_string()
}

/// Instructions of a request or completion in that function of benches/interfaces.c, by the libraries that are staged.
fn by_interface(case: &mut Case, function: &str) -> Outcome<f64> {
    const BATCH: f64 = 64.0;
    const TURNS: u32 = 16;
    // Requests are posted twice in a turn, to be polled for in two ways.
    let calls = if function.starts_with("post") { 2.0 } else { 1.0 };
    let program = User::own()
        .runs("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", &format!("--toggle-collect={function}")])
        .arg(interfaces())
        .arg(TURNS);
    Ok(collected(&case.run(&program)?)? / (f64::from(TURNS) * calls * BATCH))
}

/// Instructions of a run of so many messages.
fn count(case: &mut Case, message: &str, rounds: u32) -> Outcome<f64> {
    let program = tree::target().join("release/hotpath");
    let output = case.run(
        &Program::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program.display())
            .arg(message)
            .arg(rounds),
    )?;
    collected(&output)
}

fn collected(output: &str) -> Outcome<f64> {
    let collected = output.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| "callgrind told no count".into())
}
