//! libibmad.so.5: its symbols, against the list of those of libibmad 44, and what it makes of bytes, against what the
//! distribution's library does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use ironverbs_capi_ibverbs_tests::{
    assert_exports, compile, exported, library, library_directory, listed, names, on_library, text,
};

const EXPORTS: &str = include_str!("../../ibmad/exports.txt");

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn ibmad() -> Vec<u8> {
    library("libibmad.so.5", scratch())
}

#[test]
fn every_symbol_and_no_other() {
    assert_exports(&ibmad(), EXPORTS, 152);
}

#[test]
fn it_has_its_soname_and_needs_libibverbs() {
    let data = ibmad();
    assert!(names(&data, "libibmad.so.5"));
    assert!(names(&data, "libibverbs.so.1"));
}

/// A stub whose function is missing would fail as beside another's libibverbs.so.1.
#[test]
fn every_stub_has_its_function() {
    let behind = exported(&library("libibverbs.so.1", scratch()));
    for line in listed(EXPORTS).iter().filter(|line| line.ends_with("FUNC")) {
        let name = line.split('@').next().unwrap_or_default();
        assert!(behind.contains(&format!("ironverbs_{name}@@IRONVERBS_1 FUNC")), "{name}");
    }
}

/// A directory with these libraries of ours: the others are the distribution's.
fn with(libraries: &[&str]) -> PathBuf {
    let directory = scratch().join(format!("{}-{}", libraries.join("-"), std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    for library in libraries {
        fs::copy(library_directory(scratch()).join(library), directory.join(library))
            .expect("a copy");
    }
    directory
}

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/mads.c");
        compile(&source, &["-libmad", "-Wno-deprecated-declarations"], scratch())
    })
}

fn run(libraries: &Path, argument: &str) -> Output {
    let mut command = on_library(program(), scratch());
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("IRONVERBS_LINK_LAYER", "InfiniBand")
        .arg(argument)
        .output()
        .expect("the program starts")
}

/// What the program says with the distribution's library over our libibumad, and with ours.
fn both(argument: &str) -> [Output; 2] {
    // Once, as a library that is in use must not be written to.
    static BESIDE: OnceLock<PathBuf> = OnceLock::new();
    let beside = BESIDE.get_or_init(|| with(&["libibverbs.so.1", "libibumad.so.3"]));
    [beside, library_directory(scratch())].map(|libraries| {
        let output = run(libraries, argument);
        assert!(output.status.success(), "{}", text(&output));
        output
    })
}

fn assert_alike(theirs: &[u8], ours: &[u8], argument: &str) {
    let lines = |bytes: &[u8]| -> Vec<String> {
        let lines = bytes.split(|byte| *byte == b'\n');
        // Warnings begin with the number of the process.
        let plain = |line: String| match line.split_once("] ") {
            Some((start, rest)) if start.starts_with("ibwarn: [") => rest.to_owned(),
            _ => line,
        };
        lines.map(|line| plain(String::from_utf8_lossy(line).into_owned())).collect()
    };
    let [theirs, ours] = [theirs, ours].map(lines);
    for (at, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
        assert_eq!(theirs, ours, "line {at} of {argument}");
    }
    assert_eq!(theirs.len(), ours.len(), "lines of {argument}");
}

#[test]
fn fields_datagrams_and_text_are_as_the_distributions() {
    let [theirs, ours] = both("1");
    assert_alike(&theirs.stdout, &ours.stdout, "1");
    assert_alike(&theirs.stderr, &ours.stderr, "1");
}

/// What is sent, and what becomes of the answer. Warnings differ, as the distribution's does not send again what was lost.
#[test]
fn requests_are_as_the_distributions() {
    let [theirs, ours] = both("devices");
    assert_alike(&theirs.stdout, &ours.stdout, "devices");
}

#[test]
fn what_is_wrong_does_no_harm() {
    let output = run(library_directory(scratch()), "wrong");
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn beside_a_libibverbs_that_is_not_ours_it_fails_and_says_why() {
    let output = run(&with(&["libibmad.so.5"]), "alone");
    let warned = String::from_utf8_lossy(&output.stderr).matches("ironverbs: ").count();
    assert!(output.status.success() && warned == 1, "{}", text(&output));
}
