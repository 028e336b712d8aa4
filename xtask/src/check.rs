//! `cargo xtask check`: what a change must pass before it is sent.

use crate::process::{Outcome, Program};
use crate::tools;

/// Formatting of every crate.
pub(crate) fn format() -> Program {
    Program::new("cargo").args(["fmt", "--all", "--check"])
}

/// Formatting of the fuzz targets, which are no members of the workspace.
pub(crate) fn format_fuzz() -> Program {
    Program::new("cargo").args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])
}

/// Lints of everything that is compiled, tests included.
pub(crate) fn lints() -> Program {
    Program::new("cargo").args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ])
}

/// The command line.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask check".into());
    }
    format().show()?;
    format_fuzz().show()?;
    lints().show()?;
    if tools::on_path("cargo-deny") {
        Program::new("cargo").args(["deny", "check"]).show()
    } else {
        println!("cargo-deny is not installed: licences and advisories were not checked");
        Ok(())
    }
}
