//! Where the library under test is, and how C programs are built against the distribution's headers
//! and run on it.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The directory that holds `libibverbs.so.1`: what `IRONVERBS_LIB_DIR` names, or one below
/// `scratch` to which the library is built and copied.
///
/// # Panics
/// When the library cannot be built: every test then fails, with what cargo said.
pub fn library_directory(scratch: &Path) -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| match env::var_os("IRONVERBS_LIB_DIR").filter(|d| !d.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => build_library(scratch),
    })
}

fn build_library(scratch: &Path) -> PathBuf {
    // `scratch` is target/tmp, whose neighbour target/debug is.
    let target = scratch.parent().expect("the scratch directory lies below the target directory");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "ironverbs-capi-ibverbs", "--target-dir"])
        .arg(target)
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", text(&built));
    let directory = scratch.join(format!("ibverbs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the library");
    std::fs::copy(target.join("debug/libibverbs.so"), directory.join("libibverbs.so.1"))
        .expect("the library is where cargo puts it");
    directory
}

/// Builds the C program `c/NAME.c` against the distribution's headers and library.
///
/// # Panics
/// When gcc or libibverbs-dev is missing, or the program does not compile.
pub fn build_program(name: &str, scratch: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let program = scratch.join(format!("{name}-{}", std::process::id()));
    let built = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(["-libverbs", "-ldl"])
        .output()
        .expect("gcc runs (package gcc)");
    assert!(built.status.success(), "(package libibverbs-dev)\n{}", text(&built));
    program
}

/// A command that runs on the library under test, with a device on the loopback interface alone.
pub fn on_library(program: impl AsRef<OsStr>, scratch: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", library_directory(scratch))
        .env("LD_BIND_NOW", "1")
        .env("IRONVERBS_INTERFACES", "lo")
        .env_remove("IRONVERBS_LIB_DIR");
    command
}

/// What a finished command printed.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{out}{err}", output.status)
}
