//! Formatting, lints, cargo's own tests, the stage and the demo.

use super::case::Case;
use super::{Cases, seconds};
use crate::pair::User;
use crate::process::{Outcome, Program};
use crate::{check, demo, tree};

pub(super) fn format(cases: &mut Cases<'_>) -> Outcome {
    cases.case("fmt", seconds(120), |case| case.run(&check::format()).map(drop));
    cases.case("fmt-fuzz", seconds(120), |case| case.run(&check::format_fuzz()).map(drop));
    Ok(())
}

pub(super) fn lints(cases: &mut Cases<'_>) -> Outcome {
    cases.case("clippy", seconds(1800), |case| case.run(&check::lints()).map(drop));
    Ok(())
}

pub(super) fn unit(cases: &mut Cases<'_>) -> Outcome {
    cases.case("workspace", seconds(2400), |case| {
        cargo_test(case, Program::new("cargo").args(["test", "--workspace", "--no-fail-fast"]))
    });
    Ok(())
}

/// Runs cargo's tests; that none ran is a failure.
pub(super) fn cargo_test(case: &mut Case, program: Program) -> Outcome {
    let output = case.run(&program)?;
    // test result: ok. 12 passed; 0 failed; …
    let counts = output.lines().filter_map(|line| {
        let count = line.strip_prefix("test result: ok. ")?.split(' ').next()?;
        count.parse::<u32>().ok()
    });
    let total: u32 = counts.sum();
    case.note(format!("{total} tests of cargo's"));
    if total > 0 { Ok(()) } else { Err("cargo ran no test".into()) }
}

pub(super) fn stage(cases: &mut Cases<'_>) -> Outcome {
    cases.case("layout", seconds(30), |case| {
        for name in [
            "lib/libibverbs.so.1",
            "lib/libibverbs.so",
            "lib/libironverbs_paths.so",
            "bin/ironverbs",
        ] {
            if !tree::stage().join(name).is_file() {
                return Err(format!("the stage lacks {name}").into());
            }
        }
        case.run(&User::own().command().arg("--version")).map(drop)
    });
    Ok(())
}

pub(super) fn demo(cases: &mut Cases<'_>) -> Outcome {
    cases.case("demo", seconds(300), |case| {
        let xtask = std::env::current_exe()?.display().to_string();
        let output = case.run(&Program::new(xtask).arg("demo"))?;
        for operation in demo::OPERATIONS {
            let verified = |line: &str| line.contains(operation) && line.contains("verified");
            if !output.lines().any(verified) {
                return Err(format!("the demo shows no verified {operation}").into());
            }
        }
        Ok(())
    });
    Ok(())
}
