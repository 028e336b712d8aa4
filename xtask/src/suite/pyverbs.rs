//! The tests of the distribution's pyverbs, which drive the C ABI object by object.

use super::{Cases, seconds};
use crate::netns::Joined;
use crate::pair::User;
use crate::process::{During, Outcome, Program};
use crate::tree;
use std::fs;
use std::path::Path;

const INSTALLED: &str = "/usr/share/doc/rdma-core/tests";

/// Its modules that are about no vendor's hardware.
const MODULES: [&str; 20] = [
    "addr",
    "atomic",
    "cq",
    "cq_events",
    "cqex",
    "cuda_dmabuf",
    "device",
    "flow",
    "fork",
    "mr",
    "odp",
    "parent_domain",
    "pd",
    "qp",
    "qpex",
    "rdmacm",
    "relaxed_ordering",
    "rss_traffic",
    "shared_pd",
    "tag_matching",
];

/// Tests that may skip themselves: module, part of the reason, and why that is.
const SKIPS: &str = include_str!("../../../docs/pyverbs-skips.tsv");

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let directory = tree::target().join("pyverbs");
    unpack(&directory)?;
    let joined = Joined::new(1500)?;
    let _pages = HugePages::set_aside();
    for (path, user) in [("auto", User::own()), ("wire", User::own().on_path("wire"))] {
        for module in MODULES {
            cases.case(format!("{module}-{path}"), seconds(180), |case| {
                let program = user
                    .runs("/usr/bin/python3")
                    .arg(directory.join("tests/run_tests.py").display())
                    .args(["-v", "--dev", "iron0", &format!("tests.test_{module}")]);
                let output = case.run(&joined.a.within(program))?;
                let (ran, skipped) = counts(&output).ok_or("no count of tests at the end")?;
                case.note(format!("{ran} tests, {skipped} of them skipped"));
                check_skips(module, &output)
            });
        }
    }
    Ok(())
}

/// Huge pages that some tests want, where this user may set them aside; given back when it is dropped.
struct HugePages {
    before: Option<String>,
}

impl HugePages {
    const NUMBER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    /// 32 MiB, unless the machine has some.
    fn set_aside() -> HugePages {
        let before = fs::read_to_string(Self::NUMBER).ok();
        let before = before.filter(|number| number.trim() == "0");
        let set = before.filter(|_| fs::write(Self::NUMBER, "16").is_ok());
        HugePages { before: set }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(Self::NUMBER, before);
        }
    }
}

/// Copies the tests, which are installed compressed.
fn unpack(directory: &Path) -> Outcome {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).during(directory.display())?;
    Program::new("cp").args(["-r", INSTALLED]).arg(directory.display()).read()?;
    let tests = directory.join("tests");
    Program::new("gunzip").args(["-r", "-f"]).arg(tests.display()).read().map(drop)
}

/// An error where a test skipped itself for a reason that is not on the list.
fn check_skips(module: &str, output: &str) -> Outcome {
    for line in output.lines() {
        let Some((_, reason)) = line.split_once("... skipped ") else { continue };
        let known = SKIPS.lines().filter(|line| !line.starts_with('#')).any(|line| {
            let mut fields = line.split('\t');
            fields.next() == Some(module) && fields.next().is_some_and(|part| reason.contains(part))
        });
        if !known {
            return Err(format!("skipped, and not in docs/pyverbs-skips.tsv: {line}").into());
        }
    }
    Ok(())
}

/// `Ran 26 tests in 0.020s`, and then `OK` or `OK (skipped=5)`.
fn counts(output: &str) -> Option<(u32, u32)> {
    let ran = output.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next());
    let skipped = output.lines().find_map(|line| line.strip_prefix("OK (skipped="));
    let skipped = skipped.and_then(|rest| rest.split([')', ',']).next()).unwrap_or("0");
    Some((ran?.parse().ok()?, skipped.parse().ok()?))
}
