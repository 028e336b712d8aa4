//! Random operations by the thousand, and fuzzers for a bounded time.

use super::{Cases, build, captured, seconds};
use crate::process::{Outcome, Program};
use crate::tree;
use std::fs;

pub(super) fn seeds(cases: &mut Cases<'_>) -> Outcome {
    for name in ["transport", "mad"] {
        cases.case(name, seconds(2400), |case| {
            let program = Program::new("cargo")
                .args(["test", "--release", &format!("--package=ironverbs-{name}"), "--tests"])
                .env("IRONVERBS_SEEDS", "10000");
            build::cargo_test(case, program)
        });
    }
    // Both sides' event channels over simulated Hosts; the profile of the unit tests, whose binary it is.
    cases.case("connections", seconds(1200), |case| {
        let program = Program::new("cargo")
            .args(["test", "--package=ironverbs-soft", "--test=conformance"])
            .arg("both_sides_agree_on_a_bad_network")
            .env("IRONVERBS_SEEDS", "10000");
        build::cargo_test(case, program)
    });
    Ok(())
}

/// Fuzz targets: `fuzz/targets/NAME.rs`; inputs that once crashed one stay in `fuzz/seeds/NAME/`.
const TARGETS: [&str; 4] = ["packet", "icrc", "responder", "cm"];

/// Seconds for each target.
const FUZZ_TIME: u32 = 20;

pub(super) fn fuzz(cases: &mut Cases<'_>) -> Outcome {
    let target = tree::target().join("fuzz");
    let mut built = false;
    cases.always("build", seconds(1200), |case| {
        case.run(&Program::new("fuzz/build").arg(target.display()))?;
        built = true;
        Ok(())
    });
    for name in TARGETS {
        cases.case(name, seconds(300), |case| {
            if !built {
                return Err("not built".into());
            }
            let corpus = target.join("corpus").join(name);
            fs::create_dir_all(&corpus)?;
            let packets = target.join("seeds").join(name);
            captured::seeds(name, &packets)?;
            let kept = tree::root().join("fuzz/seeds").join(name);
            let artifacts = target.join(format!("{name}-")).display().to_string();
            let program = Program::new(target.join("bin").join(name).display().to_string())
                .arg(format!("-max_total_time={FUZZ_TIME}"))
                .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"])
                .args(["-print_final_stats=1", "-verbosity=0"])
                .arg(format!("-artifact_prefix={artifacts}"))
                .arg(corpus.display())
                .arg(packets.display())
                .args(kept.is_dir().then(|| kept.display()));
            let output = case.run(&program)?;
            let executed = output.lines().find_map(|line| {
                line.strip_prefix("stat::number_of_executed_units:").map(str::trim)
            });
            case.note(format!("{} executions", executed.unwrap_or("?")));
            Ok(())
        });
    }
    Ok(())
}
