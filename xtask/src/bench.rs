//! `cargo xtask bench`: the measurements of benches/, each beside its raw limit.

use crate::process::{Outcome, Program};
use crate::{stage, tree};

/// The command line; arguments go to the measurements.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    if !tree::root().join("benches/Cargo.toml").exists() {
        return Err("this tree has no benches/".into());
    }
    stage::build().show()?;
    stage::install(&tree::stage())?;
    Program::new("cargo")
        .args(["run", "--release", "--manifest-path", "benches/Cargo.toml", "--"])
        .args(arguments)
        .show()
}
