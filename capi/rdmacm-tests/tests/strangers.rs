//! One of the two libraries beside another's: a line says so, and nothing crashes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use ironverbs_capi_ibverbs_tests::{library_directory, text};
use ironverbs_capi_rdmacm_tests::{build_program, on_libraries};

/// Runs a program with only `library` of ours.
fn with_only(library: &str, case: &str) -> Output {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let alone: PathBuf = scratch.join(format!("only-{library}-{}", std::process::id()));
    fs::create_dir_all(&alone).expect("a directory");
    fs::copy(library_directory(scratch).join(library), alone.join(library)).expect("a copy");
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| build_program("stranger", scratch));
    let mut command = on_libraries(program, scratch);
    command.env("LD_LIBRARY_PATH", &alone).arg(case).output().expect("the program starts")
}

fn lines(output: &Output) -> usize {
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.starts_with("ironverbs: ")).count()
}

#[test]
fn our_librdmacm_alone_fails_and_says_why() {
    let output = with_only("librdmacm.so.1", "calls");
    assert!(output.status.success() && lines(&output) == 1, "{}", text(&output));
}

#[test]
fn our_libibverbs_alone_says_whose_librdmacm_is_there() {
    let output = with_only("libibverbs.so.1", "devices");
    assert!(output.status.success() && lines(&output) == 1, "{}", text(&output));
}
