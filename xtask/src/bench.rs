//! `cargo xtask bench`: the measurements of benches/, each beside its raw limit.

use crate::process::{Outcome, Program};

/// The command line; arguments go to the measurements.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    Program::new("cargo")
        .args(["run", "--release", "--package=ironverbs-benches", "--"])
        .args(arguments)
        .show()
}
