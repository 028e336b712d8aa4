//! The distribution's perftest programs between processes of one host, their queue pairs exchanged over TCP.

use super::{Cases, host, seconds};
use crate::netns::Namespace;
use crate::pair::{self, User};
use crate::process::{Outcome, Program};
use crate::suite::case::Case;

/// TCP port on which the two programs meet.
const PORT: u16 = 18700;

/// What a program is told to send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Sizes {
    /// Every power of two up to 8 MiB, or the MTU on UD.
    All,
    /// Messages of so many bytes.
    One(u32),
}

/// One of the programs and its transport.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Perftest {
    operation: &'static str,
    /// `bw` or `lat`.
    what: &'static str,
    service: &'static str,
}

impl Perftest {
    /// Every program with every transport it offers.
    fn every() -> Vec<Perftest> {
        let offered = [
            ("send", &["RC", "UC", "UD", "XRC"][..]),
            ("write", &["RC", "UC", "XRC"]),
            ("read", &["RC", "XRC"]),
            ("atomic", &["RC", "XRC"]),
        ];
        let mut all = Vec::new();
        for (operation, services) in offered {
            for service in services {
                all.extend(["bw", "lat"].map(|what| Perftest { operation, what, service }));
            }
        }
        all
    }

    fn name(&self, sizes: Sizes) -> String {
        let Perftest { operation, what, service } = self;
        let sizes = match sizes {
            _ if *operation == "atomic" => String::new(),
            Sizes::All => "-all-sizes".into(),
            Sizes::One(size) => format!("-{size}"),
        };
        format!("{operation}-{what}-{}{sizes}", service.to_lowercase())
    }

    /// Whether a message may be lost on the way without anybody being at fault, and the program then waits for ever.
    fn may_stall_by_wire(&self) -> bool {
        self.service != "RC" && self.what == "bw"
    }

    /// The server's command line.
    fn program(&self, user: &User, sizes: Sizes) -> Program {
        let Perftest { operation, what, service } = self;
        let program = user.runs(&format!("ib_{operation}_{what}")).args([
            "-F",
            "-x",
            "0",
            "-p",
            &PORT.to_string(),
            "-c",
            service,
        ]);
        match sizes {
            // Atomics are of eight bytes; the programs know no option for it.
            _ if *operation == "atomic" => program.args(["-n", "1000"]),
            // More would only take longer: between two sizes the programs measure the clock for half a second.
            Sizes::All => program.args(["-a", "-n", "20"]),
            Sizes::One(size) => program.args(["-s", &size.to_string(), "-n", "200"]),
        }
    }

    /// The last size that the table must have a line for.
    fn largest(&self, sizes: Sizes) -> u32 {
        match sizes {
            _ if self.operation == "atomic" => 8,
            Sizes::All if self.service == "UD" => 4096,
            Sizes::All => 8 << 20,
            Sizes::One(size) => size,
        }
    }

    fn run(&self, case: &mut Case, user: &User, namespace: &Namespace, sizes: Sizes) -> Outcome {
        let program = || namespace.within(self.program(user, sizes));
        let mut server = case.start(&program())?;
        pair::wait_for_listener(&mut server, PORT, case.deadline())?;
        let client = case.start(&program().arg("127.0.0.1"))?;
        let output = client.wait(case.deadline())?.success()?.output;
        server.wait(case.deadline())?.success()?;
        let largest = self.largest(sizes).to_string();
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        match output.lines().any(|line| first(line).is_some_and(|word| word == largest)) {
            true => Ok(()),
            false => Err(format!("its table has no line for {largest} bytes").into()),
        }
    }
}

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let namespace = Namespace::new()?;
    let [(root_name, root), (nobody_name, nobody)] = host::users()?;
    let wire = User::own().on_path("wire");
    let mut runs = Vec::new();
    for perftest in Perftest::every() {
        // All sizes take long: the latencies of what `-R` offers have them there (suite step cm), the others here.
        let all = perftest.what == "bw" || perftest.service == "UC";
        let all = all && perftest.service != "XRC";
        let sizes = if all { Sizes::All } else { Sizes::One(8) };
        runs.push((root_name, &root, perftest, sizes));
        // The programs keep one file of their XRC domains, in a place that is whose ran first.
        if perftest.service != "XRC" {
            runs.push((nobody_name, &nobody, perftest, Sizes::One(64 << 10)));
        }
        let sizes = match (perftest.service, perftest.what) {
            ("RC", "bw") if perftest.operation == "send" => Sizes::All,
            _ => Sizes::One(1024),
        };
        if !perftest.may_stall_by_wire() {
            runs.push(("root-by-wire", &wire, perftest, sizes));
        }
    }
    for (user_name, user, perftest, sizes) in runs {
        // A datagram is at most one packet.
        let sizes = match sizes {
            Sizes::One(size) if perftest.service == "UD" => Sizes::One(size.min(2048)),
            sizes => sizes,
        };
        cases.case(format!("{}-{user_name}", perftest.name(sizes)), seconds(120), |case| {
            perftest.run(case, user, &namespace, sizes)
        });
    }
    Ok(())
}
