//! `cargo xtask vm`: a command beside the kernel's own RDMA stack.

use crate::process::Program;
use crate::{report, tree};
use std::process::{Command, ExitCode};

/// `vm/run` with the build directory writable in the guest.
pub(crate) fn program() -> Program {
    Program::new(tree::root().join("vm/run").display().to_string())
        .arg("--share")
        .arg(tree::target().display())
}

/// The command line; the exit status is the command's.
pub(crate) fn command(arguments: &[String]) -> ExitCode {
    let run = tree::root().join("vm/run");
    // Not `program()`: the terminal, its signals and the working directory stay the caller's.
    let status = Command::new(&run).arg("--share").arg(tree::target()).args(arguments).status();
    match status {
        Ok(status) => ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(error) => report(Err(format!("{}: {error}", run.display()).into())),
    }
}
