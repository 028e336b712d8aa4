//! The ironverbs command: programs on the stack, what there is, and measurements.

#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod agent;
mod doctor;
mod explain;
mod info;
mod manual;
mod perf;
mod ping;
mod ps;
mod reach;
mod rping;
mod run;
mod verbs;
mod watch;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// RDMA without an adapter: runs programs on a software device, shows it and measures it.
#[derive(Parser)]
#[command(name = "ironverbs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Run(run::RunArgs),
    Info(info::InfoArgs),
    Doctor(doctor::DoctorArgs),
    Ps(ps::PsArgs),
    Agent(agent::AgentArgs),
    Ping(ping::PingArgs),
    Perf(perf::PerfArgs),
    Reach(reach::ReachArgs),
    Paths(reach::PathsArgs),
    Watch(watch::WatchArgs),
    Explain(explain::ExplainArgs),
    #[command(hide = true)]
    Manual(manual::ManualArgs),
}

fn main() -> ExitCode {
    let result = match &Arguments::parse().command {
        Command::Run(args) => return run::run(args),
        Command::Info(args) => info::run(args),
        Command::Doctor(args) => return doctor::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Ping(args) => ping::run(args),
        Command::Perf(args) => perf::run(args),
        Command::Reach(args) => reach::reach(args),
        Command::Paths(args) => reach::paths(args),
        Command::Watch(args) => watch::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Manual(args) => manual::run(args, &Arguments::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain(why);
            ExitCode::FAILURE
        }
    }
}

/// Says on stderr what went wrong.
fn complain(why: impl Display) {
    // Nobody is left to be told when that fails.
    let _ = writeln!(std::io::stderr(), "ironverbs: {why}");
}

/// Says on stderr what might surprise.
fn warn(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "ironverbs: warning: {what}");
}
