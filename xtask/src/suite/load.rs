//! Programs of the distribution find every symbol they want in our library, at load time.

use super::{Cases, seconds};
use crate::pair::User;
use crate::process::{Outcome, Program};
use crate::tree;
use std::fs;

/// Programs with arguments that make them load all they ever load, and end. UCX opens its
/// InfiniBand module, which needs libmlx5, only when it lists devices.
const PROGRAMS: [&[&str]; 7] = [
    &["ibv_devinfo", "--list"],
    &["ib_write_bw", "--version"],
    &["ib_send_lat", "--help"],
    &["fi_info", "--version"],
    &["fi_info", "--list"],
    &["ucx_info", "-d"],
    &["qperf", "--version"],
];

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    for program in PROGRAMS {
        cases.case(program.join(" "), seconds(60), |case| {
            let [name, arguments @ ..] = program else { return Err("no program".into()) };
            let ours = fs::canonicalize(tree::stage().join("lib/libibverbs.so.1"))?;
            let program = User::own()
                .runs(name)
                .args(arguments)
                .env("LD_BIND_NOW", "1")
                .env("LD_DEBUG", "libs");
            // Some tools exit with 1 after --help; what the loader says is what counts.
            let output = case.start(&program)?.wait(case.deadline())?.output;
            complaints(&output)?;
            if !output.contains(&format!("calling init: {}", ours.display())) {
                return Err(format!("{name} did not load {}", ours.display()).into());
            }
            let ours = ours.display().to_string();
            let foreign = |line: &&str| {
                line.contains("calling init")
                    && line.contains("/libibverbs.so")
                    && !line.ends_with(&ours)
            };
            if let Some(line) = output.lines().find(foreign) {
                return Err(format!("{name} loaded another libibverbs too: {line}").into());
            }
            Ok(())
        });
    }
    // The loader's own list of what stays unresolved, for the programs themselves.
    for name in ["ibv_devinfo", "ib_write_bw", "fi_info", "qperf", "ucx_info"] {
        cases.case(format!("{name} relocations"), seconds(60), |case| {
            let path = Program::new("which").arg(name).read()?;
            let lib = tree::stage().join("lib").display().to_string();
            let program =
                Program::new("ldd").arg("-r").arg(path.trim()).env("LD_LIBRARY_PATH", lib);
            complaints(&case.run(&program)?)
        });
    }
    Ok(())
}

/// What ld.so says when something is missing.
fn complaints(output: &str) -> Outcome {
    const WORDS: [&str; 5] = [
        "symbol lookup error",
        "undefined symbol",
        "not defined in",
        "cannot open shared",
        "not found",
    ];
    let complaint = output
        .lines()
        .find(|line| WORDS.iter().any(|word| line.contains(word)) && line.contains("ibverbs"));
    match complaint {
        None => Ok(()),
        Some(line) => Err(line.trim().to_owned().into()),
    }
}
