//! Build, stage, test and demonstrate ironverbs: `cargo xtask help`.

mod bench;
mod check;
mod demo;
mod netns;
mod pair;
mod process;
mod soak;
mod stage;
mod suite;
mod tools;
mod tree;
mod vm;

use process::Outcome;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  stage [--prefix DIR]         build for release into lib/ and bin/ under target/stage, or under DIR
  demo                         stage, then move verified data between two processes on the embedded device
  test [STEP[/CASE]]...        all tests, or the steps (and cases) whose names contain these words
       [--list]                only name the steps
       [--as-staged]           test what is staged already, without building it again
  soak [RUNS] [--busy] [SUITE...]
                               what dies, stops, forks and scribbles, 100 times in a row; with every core kept busy
  check                        formatting, lints and, where cargo-deny is installed, licences and advisories
  bench [ARG...]               measurements of benches/, each beside its raw limit, and SENDs beside UCX
  vm [OPTION...] -- COMMAND... a command beside the kernel's own RDMA stack in a VM (see vm/run)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let outcome = match command.as_str() {
        "stage" => stage::command(&rest),
        "demo" => demo::command(&rest),
        "test" => suite::command(&rest),
        "soak" => soak::command(&rest),
        "check" => check::command(&rest),
        "bench" => bench::command(&rest),
        "vm" => return vm::command(&rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("unknown command {other:?}\n\n{USAGE}").into()),
    };
    report(outcome)
}

fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_told() {
                eprintln!("xtask: {failure}");
            }
            ExitCode::FAILURE
        }
    }
}
