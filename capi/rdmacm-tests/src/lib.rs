//! How the C programs of these tests are built and run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use ironverbs_capi_ibverbs_tests::{compile, on_library};

/// Builds the C program `c/NAME.c` against the distribution's headers and libraries.
///
/// # Panics
/// As [`compile`].
pub fn build_program(name: &str, scratch: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    compile(&source, &["-lrdmacm", "-libverbs"], scratch)
}

/// A command that runs on the libraries under test, with a device on the loopback interface alone.
pub fn on_libraries(program: impl AsRef<OsStr>, scratch: &Path) -> Command {
    on_library(program, scratch)
}
