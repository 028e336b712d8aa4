//! The cases of `c/routes.c`, each with what it says of the subnet in its environment.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::text;
use ironverbs_capi_rdmacm_tests::{build_program, on_libraries};

fn run(case: &str, variables: &[(&str, &str)]) {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = build_program("routes", scratch);
    let mut command = on_libraries(&program, scratch);
    command.env("IRONVERBS_LINK_LAYER", "InfiniBand").envs(variables.iter().copied());
    let output = command.arg(case).output().expect("the program starts");
    assert!(output.status.success(), "{case}: {}", text(&output));
}

#[test]
fn the_administrators_paths() {
    run("what_the_administrator_says", &[]);
    run("what_the_administrator_says", &[("IRONVERBS_LMC", "3")]);
}

#[test]
fn a_gid_that_nobody_has() {
    run("nobody_has_the_gid", &[]);
}

#[test]
fn an_administrator_that_is_silent() {
    run("nobody_answers", &[("IRONVERBS_SUBNET_MANAGER", "off")]);
}

#[test]
fn names() {
    run("names_and_hints", &[]);
}
