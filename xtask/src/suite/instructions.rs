//! The instructions that a message costs in the transport, which no machine's noise touches.

use super::case::Case;
use super::{Cases, seconds};
use crate::process::{Outcome, Program};
use crate::tree;
use std::fs;

/// More than this above what is recorded is a loss that somebody decides on; as far below it, the record is updated.
const TOLERANCE: f64 = 0.04;

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let mut built = false;
    cases.always("build", seconds(1200), |case| {
        let build = ["build", "--release", "--package=ironverbs-benches", "--bin=hotpath"];
        case.run(&Program::new("cargo").args(build))?;
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
            let now = (count(case, message, 2_000)? - count(case, message, 1_000)?) / 1_000.0;
            case.note(format!("{now:.0} instructions, {recorded:.0} recorded"));
            let change = now / recorded - 1.0;
            if change.abs() > TOLERANCE {
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
    let collected = output.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| "callgrind told no count".into())
}
