//! `cargo xtask soak`: the suites in which processes die, stop, fork and scribble, many times in a row.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::netns::Namespace;
use crate::process::{Outcome, Program};
use crate::tree;

const USAGE: &str = "usage: cargo xtask soak [RUNS] [--busy] [SUITE...]";

/// Test programs of crates/soft.
const SUITES: [&str; 7] =
    ["registry", "onesided", "lanes", "wills", "interfaces", "connections", "deaths"];

const RUNS: u32 = 100;

/// What one run may take, on a machine that is busy with other things.
const WATCHDOG: Duration = Duration::from_secs(400);

/// What the command line asks for.
struct Asked {
    runs: u32,
    /// Every core is kept busy meanwhile.
    busy: bool,
    suites: Vec<&'static str>,
}

/// The command line.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    let Asked { runs, busy, suites } = parse(arguments)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..if busy { cores } else { 0 } {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = soak(runs, &suites);
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn parse(arguments: &[String]) -> Outcome<Asked> {
    let mut asked = Asked { runs: RUNS, busy: false, suites: Vec::new() };
    for word in arguments {
        match (word.as_str(), word.parse()) {
            ("--busy", _) => asked.busy = true,
            (_, Ok(runs)) => asked.runs = runs,
            (name, _) => {
                let known = SUITES.into_iter().find(|suite| *suite == name);
                asked.suites.push(known.ok_or(USAGE)?);
            }
        }
    }
    if asked.suites.is_empty() {
        asked.suites = SUITES.to_vec();
    }
    Ok(asked)
}

fn soak(runs: u32, suites: &[&str]) -> Outcome {
    let logs = tree::target().join("soak-logs");
    fs::create_dir_all(&logs)?;
    let programs = build(suites, &logs)?;
    let mut failures = 0;
    // All of them in turns: the first says early whether anything is wrong.
    for run in 1..=runs {
        for (suite, program) in &programs {
            let log = logs.join(format!("{suite}.{run}.log"));
            let _ = fs::remove_file(&log);
            // Ports and names that nothing else on this machine has.
            let namespace = Namespace::new()?;
            let program = namespace.within(Program::new(program.display().to_string()));
            let finished = program.start(&log)?.wait(Instant::now() + WATCHDOG);
            match finished.and_then(|finished| finished.success()) {
                Ok(_) => fs::remove_file(&log)?,
                Err(failure) => {
                    failures += 1;
                    println!("{suite}, run {run}: {failure}; see {}", log.display());
                }
            }
        }
        println!("{run} of {runs} runs, {failures} failures");
    }
    match failures {
        0 => Ok(()),
        _ => Err(format!("{failures} failures in {runs} runs of {}", suites.join(", ")).into()),
    }
}

/// Builds the suites; where cargo says that their programs are.
fn build<'a>(suites: &[&'a str], logs: &Path) -> Outcome<Vec<(&'a str, PathBuf)>> {
    let log = logs.join("build.log");
    let mut cargo = Program::new("cargo").args(["test", "--package=ironverbs-soft", "--no-run"]);
    for suite in suites {
        cargo = cargo.arg(format!("--test={suite}"));
    }
    let finished = cargo.start(&log)?.wait(Instant::now() + Duration::from_secs(3600))?;
    let output = finished.success()?.output;
    // `  Executable tests/lanes/main.rs (target/debug/deps/lanes-0123456789abcdef)`
    let path = |suite: &str| {
        output.lines().find_map(|line| {
            let (_, path) = line.trim_end().strip_suffix(')')?.rsplit_once('(')?;
            let name = Path::new(path).file_name()?.to_str()?;
            (name.rsplit_once('-')?.0 == suite).then(|| tree::root().join(path))
        })
    };
    suites
        .iter()
        .map(|suite| Ok((*suite, path(suite).ok_or(format!("cargo names no program of {suite}"))?)))
        .collect()
}
