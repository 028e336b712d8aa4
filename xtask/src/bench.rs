//! `cargo xtask bench`: the measurements of benches/, each beside its raw limit, and real programs beside each other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::pair::{self, User};
use crate::process::{Outcome, Program};
use crate::{stage, tools, tree};

const USAGE: &str =
    "usage: cargo xtask bench [ucx] [--rounds N] | cargo xtask bench copies|onesided|interfaces";

/// What one program may take, from its start to its end.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Bytes of a message, and how many are sent in a round.
const MESSAGES: [(u32, u32); 2] = [(64 << 10, 50_000), (1 << 20, 6_000)];

/// The command line; arguments go to the measurements.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().map_err(|_| USAGE);
    match words[..] {
        ["copies" | "onesided"] => measure(&words),
        ["interfaces"] => interfaces(),
        ["ucx"] => beside_ucx(5),
        ["ucx", "--rounds", rounds] => beside_ucx(number(rounds)?),
        [] => measure(&[]).and_then(|()| beside_ucx(5)),
        ["--rounds", rounds] => measure(&words).and_then(|()| beside_ucx(number(rounds)?)),
        _ => Err(USAGE.into()),
    }
}

fn measure(arguments: &[&str]) -> Outcome {
    Program::new("cargo")
        .args(["run", "--release", "--package=ironverbs-benches", "--"])
        .args(arguments)
        .show()
}

/// The extended interfaces beside the classic ones, by turns, in the processor's time of one thread.
fn interfaces() -> Outcome {
    const WHAT: [&str; 3] = [
        "ibv_wr_* / ibv_post_send, posting a WRITE of 8 bytes on one host",
        "ibv_start_poll, ibv_end_poll / ibv_poll_cq of one",
        "ibv_start_poll, ibv_next_poll, ibv_end_poll / ibv_poll_cq of 64",
    ];
    tools::need(&[tools::CC, tools::VERBS_HEADERS])?;
    stage::build().show()?;
    stage::install(&tree::stage())?;
    let (source, program) =
        (tree::root().join("benches/interfaces.c"), tree::target().join("interfaces"));
    let (source, program) = (source.display().to_string(), program.display().to_string());
    Program::new("gcc").args(["-O2", "-Wall", "-o", &program, &source, "-libverbs"]).read()?;
    let output = User::own().runs(&program).read()?;
    let rounds: Vec<Vec<f64>> = output
        .lines()
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    println!(
        "| extended / classic, time a request | ratio | min | max | ns, extended and classic |"
    );
    println!("|---|---|---|---|---|");
    for (i, what) in WHAT.into_iter().enumerate() {
        let pairs =
            rounds.iter().filter_map(|round| Some((*round.get(2 * i)?, *round.get(2 * i + 1)?)));
        let mut pairs: Vec<_> = pairs.collect();
        let ratio = |(classic, extended): &(f64, f64)| extended / classic;
        pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let [min, .., max] = pairs[..] else {
            return Err(format!("no rounds in\n{output}").into());
        };
        let median = pairs[pairs.len() / 2];
        println!(
            "| {what} | {:.2} | {:.2} | {:.2} | {:.0}, {:.0} |",
            ratio(&median),
            ratio(&min),
            ratio(&max),
            median.1,
            median.0
        );
    }
    Ok(())
}

/// Large SENDs of perftest on our library, and tagged messages of the same length of UCX on shared memory and
/// process_vm_readv (UCX_TLS=posix,cma), in turns.
fn beside_ucx(rounds: usize) -> Outcome {
    tools::need(&[tools::UCX, tools::PERFTEST])?;
    stage::build().show()?;
    stage::install(&tree::stage())?;
    let log = tree::target().join("bench-ucx.log");
    println!("| SEND beside UCX posix,cma, bytes per second | ours to UCX | min | max |");
    println!("|---|---|---|---|");
    for (bytes, count) in MESSAGES {
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            let ours = run(&perftest(bytes, count), &["127.0.0.1"], &log)?;
            let ours = figure(&ours, &bytes.to_string(), 3)?;
            let ucx = run(&ucx(), &tag_bw(bytes, count), &log)?;
            let ucx = figure(&ucx, "Final:", 6)?;
            eprintln!("round {round}: {bytes} bytes: ours {ours:.0} MiB/s, UCX {ucx:.0} MiB/s");
            ratios.push(ours / ucx);
        }
        ratios.sort_by(f64::total_cmp);
        if let [min, .., max] = ratios[..] {
            let median = ratios[ratios.len() / 2];
            println!("| {bytes} bytes | {median:.2} | {min:.2} | {max:.2} |");
        }
    }
    Ok(())
}

/// Where the programs meet: one run at a time.
fn port() -> u16 {
    20_000 + (std::process::id() % 10_000) as u16
}

fn perftest(bytes: u32, count: u32) -> Program {
    User::own()
        .runs("ib_send_bw")
        .args(["-F", "-s"])
        .arg(bytes)
        .arg("-n")
        .arg(count)
        .args(["-p"])
        .arg(port())
}

fn ucx() -> Program {
    Program::new("ucx_perftest").env("UCX_TLS", "posix,cma").arg("-p").arg(port())
}

fn tag_bw(bytes: u32, count: u32) -> Vec<String> {
    let (bytes, count) = (bytes.to_string(), count.to_string());
    ["127.0.0.1", "-t", "tag_bw", "-s", &bytes, "-n", &count].map(String::from).to_vec()
}

/// Runs a server, and the same with more arguments as its client, whose output it gives.
fn run<S: ToString>(program: &Program, client: &[S], log: &Path) -> Outcome<String> {
    let deadline = Instant::now() + WATCHDOG;
    let beside = |name: &str| -> PathBuf { log.with_extension(name) };
    let mut server = program.start(&beside("server.log"))?;
    pair::wait_for_listener(&mut server, port(), deadline)?;
    let arguments = client.iter().map(ToString::to_string);
    let client = program.clone().args(arguments).start(&beside("client.log"))?;
    let output = client.wait(deadline)?.success()?.output;
    server.wait(deadline)?.success()?;
    Ok(output)
}

/// The number in a column of the last line that begins with a word.
fn figure(output: &str, first: &str, column: usize) -> Outcome<f64> {
    let lines = output.lines().rev().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = lines
        .filter(|words| words.first() == Some(&first))
        .find_map(|words| words.get(column).and_then(|word| word.parse().ok()));
    found.ok_or_else(|| format!("no figure in\n{output}").into())
}
