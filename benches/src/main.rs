//! Measurements, each beside its raw limit in the same run: `cargo xtask bench`.
//!
//! The raw limit and ours take turns, round by round, between two network namespaces joined by a veth pair; what
//! counts is the ratio of each round, since the speed of a shared machine drifts.

mod copies;
mod machine;
mod memory;
mod net;
mod onesided;
mod ours;
mod raw;
mod simulated;

use std::process::ExitCode;

use machine::Machine;
use net::Joined;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("benches: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Outcome {
    match words {
        ["role", "raw-sink", seconds] => raw::sink(seconds.parse()?),
        ["role", "raw-stream", from, to, seconds] => {
            raw::stream(from.parse()?, to.parse()?, seconds.parse()?)
        }
        ["role", "raw-pong"] => raw::pong(),
        ["role", "raw-ping", from, to, rounds] => {
            raw::ping(from.parse()?, to.parse()?, rounds.parse()?)
        }
        ["role", "target", at] => ours::target(at),
        ["role", "write", to, seconds] => ours::write(to, seconds.parse()?),
        ["role", "send", to, rounds] => ours::send(to, rounds.parse()?),
        ["role", "loss", loss] => {
            println!("{:.3}", simulated::goodput_share(loss.parse()?)?);
            Ok(())
        }
        ["role", "stream", to, seconds] => ours::stream(to, seconds.parse()?),
        ["role", "copy"] => raw::copy(),
        ["copies"] => copies::compare(),
        ["role", "handover"] => raw::handover(),
        ["role", "mailbox", at, kind] => onesided::target(at, kind),
        ["role", "mail", to, kind, rounds] => onesided::ping(to, kind, rounds.parse()?),
        ["role", "word", at] => onesided::word(at),
        ["role", "writev", to, rounds] => onesided::writev(to, rounds.parse()?),
        ["onesided"] => one_sided(&Joined::new()?, 5),
        ["role", "memory"] => memory::measure(),
        [] => all(5),
        ["--rounds", n] => all(n.parse()?),
        _ => Err("usage: benches [--rounds N] | benches copies | benches onesided".into()),
    }
}

fn all(rounds: usize) -> Outcome {
    let machine = Machine::start();
    let joined = Joined::new()?;
    let (mut stream, mut ping) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let raw = joined.pair(&["raw-sink", "2"], &["raw-stream", net::A, net::B, "2"], true)?;
        let ours = joined.pair(&["target", net::B], &["write", net::B, "2"], false)?;
        eprintln!("round {round}: raw stream {raw:.2} GB/s, WRITE 64 KiB {ours:.2} GB/s");
        stream.push(ours / raw);
        let raw = joined.pair(&["raw-pong"], &["raw-ping", net::A, net::B, "50000"], false)?;
        let ours = joined.pair(&["target", net::B], &["send", net::B, "50000"], false)?;
        eprintln!("round {round}: raw ping-pong {raw:.0} ns, SEND 8 bytes {ours:.0} ns");
        ping.push(ours / raw);
    }
    let (mut near, mut copy) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let raw = net::alone(&["handover"])?;
        let ours = joined.together(&["target", net::A], &["send", net::A, "200000"])? / 2.0;
        eprintln!(
            "round {round}: cache line {raw:.0} ns, SEND 8 bytes on one host {ours:.0} ns one way"
        );
        near.push(ours / raw);
        let raw = net::alone(&["copy"])?;
        let ours = joined.together(&["target", net::A], &["stream", net::A, "2"])?;
        eprintln!("round {round}: memcpy {raw:.2} GB/s, SEND 64 KiB on one host {ours:.2} GB/s");
        copy.push(ours / raw);
    }
    let memory = net::alone(&["memory"])?;
    println!("{}", machine.describe());
    println!("| what | ours to the raw limit | min | max |");
    println!("|---|---|---|---|");
    row("WRITE 64 KiB at MTU 4096 / UDP GSO+GRO stream, bytes per second", &mut stream);
    row("SEND 8 bytes round trip / spinning UDP round trip, time", &mut ping);
    row("SEND 8 bytes one way on one host / a cache line handed over, time", &mut near);
    row("SEND 64 KiB on one host / memcpy of one core, bytes per second", &mut copy);
    one_sided(&joined, rounds)?;
    for loss in [0.001, 0.01, 0.05] {
        let share = simulated::goodput_share(loss)?;
        println!(
            "| goodput at {:.1}% loss / without, in virtual time | {share:.2} | | |",
            loss * 100.0
        );
    }
    println!(
        "| resident memory of 1,000 connected QPs (128 + 128 requests), MiB | {memory:.1} | | |"
    );
    Ok(())
}

/// WRITEs on one host, to the program's own memory and to memory that we allocated.
fn one_sided(joined: &Joined, rounds: usize) -> Outcome {
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let raw = joined.together(&["word", net::A], &["writev", net::A, "100000"])?;
        let ping = ["mail", net::A, "own", "100000"];
        let ours = joined.together(&["mailbox", net::A, "own"], &ping)?;
        eprintln!(
            "round {round}: process_vm_writev {raw:.0} ns, WRITE 8 bytes {ours:.0} ns one way"
        );
        own.push(ours / raw);
        let raw = net::alone(&["handover"])?;
        let ping = ["mail", net::A, "shared", "100000"];
        let ours = joined.together(&["mailbox", net::A, "shared"], &ping)?;
        eprintln!("round {round}: cache line {raw:.0} ns, WRITE 8 bytes {ours:.0} ns one way");
        shared.push(ours / raw);
    }
    row("WRITE 8 bytes one way on one host / one process_vm_writev, time", &mut own);
    row("the same, to memory that we allocated / a cache line handed over, time", &mut shared);
    Ok(())
}

fn row(what: &str, ratios: &mut [f64]) {
    ratios.sort_by(f64::total_cmp);
    if let (Some(min), Some(max)) = (ratios.first(), ratios.last()) {
        println!("| {what} | {:.2} | {min:.2} | {max:.2} |", ratios[ratios.len() / 2]);
    }
}
