//! `cargo xtask test`: every test of the project in one command.

mod build;
mod capture;
mod captured;
pub(crate) mod case;
mod clients;
mod cm;
mod faults;
mod host;
mod ib;
mod instructions;
mod interop;
mod load;
mod long;
mod perftest;
mod pyverbs;
mod qperf;
mod wire;

use crate::process::{Failure, Outcome};
use crate::tools::{self, Tool};
use crate::{netns, stage, tree};
use case::{Case, Verdict};
use std::time::{Duration, Instant};

/// Tests that share their preparations.
struct Step {
    name: &'static str,
    about: &'static str,
    /// What it usually takes at most on two cores; shown beside the time taken, never enforced.
    budget: Duration,
    needs: &'static [Tool],
    /// Needs the staged library and command.
    staged: bool,
    /// Makes network namespaces.
    root: bool,
    run: fn(&mut Cases<'_>) -> Outcome,
}

/// The tests of a step as they run.
pub(crate) struct Cases<'a> {
    step: &'static str,
    filter: &'a Filter,
    verdicts: Vec<Verdict>,
}

impl Cases<'_> {
    /// Runs one test, unless it was not asked for. Past `limit` the watchdog ends it.
    fn case(
        &mut self,
        name: impl AsRef<str>,
        limit: Duration,
        body: impl FnOnce(&mut Case) -> Outcome,
    ) {
        if self.filter.case(self.step, name.as_ref()) {
            self.always(name.as_ref(), limit, body);
        }
    }

    /// Runs one test only if it was asked for by its name: it takes long for what it says.
    fn on_request(
        &mut self,
        name: impl AsRef<str>,
        limit: Duration,
        body: impl FnOnce(&mut Case) -> Outcome,
    ) {
        if self.filter.names(self.step, name.as_ref()) {
            self.always(name.as_ref(), limit, body);
        }
    }

    /// Runs one test that others of the step need.
    fn always(&mut self, name: &str, limit: Duration, body: impl FnOnce(&mut Case) -> Outcome) {
        self.verdicts.push(case::run(self.step, name, limit, body));
    }

    /// Adds a failure of the step itself.
    fn failed(&mut self, name: &str, failure: Failure) {
        self.always(name, seconds(1), |_| Err(failure));
    }
}

/// Words of the command line: `STEP`, or `STEP/CASE`; each a part of the name it stands for.
struct Filter(Vec<String>);

impl Filter {
    fn step(&self, step: &str) -> bool {
        let step_of = |word: &String| word.split('/').next().unwrap_or_default().to_owned();
        self.0.is_empty() || self.0.iter().any(|word| step.contains(&step_of(word)))
    }

    /// Whether a case was asked for by its own name.
    fn names(&self, step: &str, case: &str) -> bool {
        let named = |word: &String| {
            word.split_once('/').is_some_and(|(of, part)| step.contains(of) && case.contains(part))
        };
        self.0.iter().any(named)
    }

    fn case(&self, step: &str, case: &str) -> bool {
        self.0.is_empty()
            || self.0.iter().any(|word| match word.split_once('/') {
                Some((of, part)) => step.contains(of) && case.contains(part),
                None => step.contains(word.as_str()),
            })
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// In order: what is cheap and says most comes first.
const STEPS: [Step; 21] = [
    Step {
        name: "format",
        about: "cargo fmt --check",
        budget: seconds(10),
        needs: &[],
        staged: false,
        root: false,
        run: build::format,
    },
    Step {
        name: "lints",
        about: "clippy over everything, warnings denied",
        budget: seconds(120),
        needs: &[tools::CC, tools::VERBS_HEADERS],
        staged: false,
        root: false,
        run: build::lints,
    },
    Step {
        name: "unit",
        about: "cargo test --workspace: wire, transport under simulated networks, device, exports of the C ABI",
        budget: seconds(420),
        needs: &[tools::CC, tools::VERBS_HEADERS, tools::CM_HEADERS, tools::MAD_HEADERS],
        staged: false,
        root: false,
        run: build::unit,
    },
    Step {
        name: "stage",
        about: "cargo xtask stage",
        budget: seconds(120),
        needs: &[tools::CC],
        staged: true,
        root: false,
        run: build::stage,
    },
    Step {
        name: "load",
        about: "the distribution's programs bind every symbol against our library",
        budget: seconds(30),
        needs: &[tools::IBVERBS_UTILS, tools::PERFTEST, tools::LIBFABRIC, tools::UCX, tools::QPERF],
        staged: true,
        root: false,
        run: load::run,
    },
    Step {
        name: "devices",
        about: "ibv_devices, ibv_devinfo -v and ibv_asyncwatch, by interface and user",
        budget: seconds(30),
        needs: &[tools::IBVERBS_UTILS, tools::IPROUTE, tools::SETPRIV],
        staged: true,
        root: true,
        run: host::devices,
    },
    Step {
        name: "pyverbs",
        about: "the tests of the distribution's pyverbs, by every path",
        budget: seconds(60),
        needs: &[tools::PYVERBS, tools::IPROUTE],
        staged: true,
        root: true,
        run: pyverbs::run,
    },
    Step {
        name: "host",
        about: "pingpongs of every kind between processes of one host, by every path, as root and as nobody",
        budget: seconds(180),
        needs: &[tools::IBVERBS_UTILS, tools::PERFTEST, tools::IPROUTE, tools::SETPRIV],
        staged: true,
        root: true,
        run: host::pingpongs,
    },
    Step {
        name: "wire",
        about: "pingpongs of every kind between two namespaces, over IPv4 and IPv6, as root and as nobody",
        budget: seconds(180),
        needs: &[tools::IBVERBS_UTILS, tools::IPROUTE, tools::SETPRIV],
        staged: true,
        root: true,
        run: wire::pingpongs,
    },
    Step {
        name: "perftest",
        about: "perftest's programs of every kind between processes of one host, by every path, as root and as nobody",
        budget: seconds(120),
        needs: &[tools::PERFTEST, tools::IPROUTE, tools::SETPRIV],
        staged: true,
        root: true,
        run: perftest::run,
    },
    Step {
        name: "cm",
        about: "rdmacm-utils, perftest -R and qperf -cm 1: one host by every path, two hosts, IPv4 and IPv6, as root and as nobody",
        budget: seconds(300),
        needs: &[
            tools::RDMACM_UTILS,
            tools::PERFTEST,
            tools::QPERF,
            tools::IPROUTE,
            tools::SETPRIV,
        ],
        staged: true,
        root: true,
        run: cm::run,
    },
    Step {
        name: "clients",
        about: "UCX, Open MPI, libfabric, fio and more: tests/clients, on one host as root and as nobody, and between two",
        budget: seconds(300),
        needs: &[tools::IPROUTE, tools::SETPRIV],
        staged: true,
        root: true,
        run: clients::run,
    },
    Step {
        name: "ib",
        about: "InfiniBand links: the distribution's programs by LID on one host and on two, infiniband-diags, opensm",
        budget: seconds(90),
        needs: &[
            tools::QPERF,
            tools::IBVERBS_UTILS,
            tools::PERFTEST,
            tools::RDMACM_UTILS,
            tools::DIAGS,
            tools::OPENSM,
            tools::UCX,
            tools::IPROUTE,
        ],
        staged: true,
        root: true,
        run: ib::run,
    },
    Step {
        name: "faults",
        about: "processes killed, UDP 4791 taken, wrong configuration",
        budget: seconds(120),
        needs: &[
            tools::IBVERBS_UTILS,
            tools::PERFTEST,
            tools::IPROUTE,
            tools::PYTHON,
            tools::SETPRIV,
        ],
        staged: true,
        root: true,
        run: faults::run,
    },
    Step {
        name: "decoders",
        about: "tshark and scapy, with which we check ourselves, on the kernel's packets",
        budget: seconds(20),
        needs: &[tools::TSHARK, tools::PYTHON, tools::SCAPY],
        staged: false,
        root: false,
        run: capture::decoders,
    },
    Step {
        name: "capture",
        about: "what we send, as tshark and scapy decode it: no malformed packet, no wrong ICRC",
        budget: seconds(120),
        needs: &[
            tools::IBVERBS_UTILS,
            tools::RDMACM_UTILS,
            tools::IPROUTE,
            tools::ETHTOOL,
            tools::TSHARK,
            tools::PYTHON,
            tools::SCAPY,
        ],
        staged: true,
        root: true,
        run: capture::run,
    },
    Step {
        name: "demo",
        about: "cargo xtask demo",
        budget: seconds(30),
        needs: &[],
        staged: true,
        root: false,
        run: build::demo,
    },
    Step {
        name: "interop",
        about: "in a VM: the kernel's devices by our driver and by a plug-in; our device and the kernel's soft-RoCE: every operation, rdma_cm, perftest, packets lost, repeated, out of order and damaged",
        budget: seconds(420),
        needs: &[
            tools::CC,
            tools::VERBS_HEADERS,
            tools::CM_HEADERS,
            tools::UMAD_HEADERS,
            tools::IBVERBS_UTILS,
            tools::RDMACM_UTILS,
            tools::PERFTEST,
            tools::ETHTOOL,
            tools::TSHARK,
            tools::PYTHON,
            tools::SCAPY,
            tools::IPROUTE,
            tools::QEMU,
            tools::BUSYBOX,
            tools::CPIO,
            tools::KMOD,
        ],
        staged: true,
        root: true,
        run: interop::run,
    },
    Step {
        name: "instructions",
        about: "what a message costs in the transport, counted",
        budget: seconds(60),
        needs: &[tools::CC, tools::VALGRIND],
        staged: false,
        root: false,
        run: instructions::run,
    },
    Step {
        name: "seeds",
        about: "10,000 seeds of random operations and of connections under loss, duplication, reordering and corruption",
        budget: seconds(240),
        needs: &[],
        staged: false,
        root: false,
        run: long::seeds,
    },
    Step {
        name: "fuzz",
        about: "each fuzz target for 20 seconds from its seeds",
        budget: seconds(120),
        needs: &[tools::CXX],
        staged: false,
        root: false,
        run: long::fuzz,
    },
];

/// The command line.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let (list, as_staged) = (has("--list"), has("--as-staged"));
    let options = ["--list", "--as-staged"];
    let words = arguments.iter().filter(|argument| !options.contains(&argument.as_str())).cloned();
    let words: Vec<_> = words.collect();
    if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
        return Err(format!("unknown option {option}; see cargo xtask help").into());
    }
    let filter = Filter(words);
    let steps: Vec<_> = STEPS.iter().filter(|step| filter.step(step.name)).collect();
    if list {
        for step in steps {
            println!("{:<10} {}", step.name, step.about);
        }
        return Ok(());
    }
    if steps.is_empty() {
        return Err(format!("no step is named like {}", filter.0.join(", ")).into());
    }
    let _ = std::fs::remove_dir_all(case::logs());
    if tools::is_root() && tools::on_path("ip") {
        netns::sweep()?;
    }
    let mut staged = as_staged.then_some(true);
    let finished: Vec<_> = steps.iter().map(|step| run(step, &filter, &mut staged)).collect();
    summary(&finished)
}

/// A step that ran.
struct Finished {
    step: &'static Step,
    time: Duration,
    verdicts: Vec<Verdict>,
}

fn run(step: &'static Step, filter: &Filter, staged: &mut Option<bool>) -> Finished {
    println!("{}: {}", step.name, step.about);
    let started = Instant::now();
    let mut cases = Cases { step: step.name, filter, verdicts: Vec::new() };
    // Installing what is missing is not the test's time, but is bounded by apt's own patience.
    let outcome = prepare(step, staged).and_then(|()| (step.run)(&mut cases));
    if let Err(failure) = outcome {
        cases.failed("preparations", failure);
    }
    Finished { step, time: started.elapsed(), verdicts: cases.verdicts }
}

fn prepare(step: &Step, staged: &mut Option<bool>) -> Outcome {
    tools::need(step.needs)?;
    if step.root && !tools::is_root() {
        return Err("makes network namespaces, which takes root".into());
    }
    if step.staged {
        let ready = *staged.get_or_insert_with(|| {
            let built = case::run(step.name, "build", seconds(1800), |case| {
                case.run(&stage::build())?;
                stage::install(&tree::stage())
            });
            built.failure.is_none()
        });
        if !ready {
            return Err("what it needs could not be built and staged".into());
        }
    }
    Ok(())
}

/// The table, what failed, and the closing line.
fn summary(finished: &[Finished]) -> Outcome {
    println!("\n{:<10} {:>6} {:>6} {:>8} {:>8}", "step", "passed", "failed", "time", "budget");
    let (mut passed, mut failed) = (0, 0);
    for Finished { step, time, verdicts } in finished {
        let wrong = verdicts.iter().filter(|verdict| verdict.failure.is_some()).count();
        let right = verdicts.len() - wrong;
        println!(
            "{:<10} {right:>6} {wrong:>6} {:>6.0} s {:>6} s",
            step.name,
            time.as_secs_f64(),
            step.budget.as_secs()
        );
        passed += right;
        failed += wrong;
    }
    let all = finished.iter().flat_map(|finished| &finished.verdicts);
    for verdict in all.filter(|verdict| verdict.failure.is_some()) {
        let Verdict { name, time, failure, .. } = verdict;
        let failure = failure.as_deref().unwrap_or_default();
        println!("FAILED {name} after {:.0} s: {failure}", time.as_secs_f64());
    }
    println!("logs: {}", case::logs().display());
    println!("\n{passed} passed, {failed} failed");
    // A run of no tests proves nothing.
    if failed == 0 && passed > 0 { Ok(()) } else { Err(Failure::TOLD) }
}
