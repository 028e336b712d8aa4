//! What the linker made of the export table of libibumad.so.3, against the list of every symbol of libibumad 44.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::{assert_exports, exported, library, listed, names};

const EXPORTS: &str = include_str!("../../ibumad/exports.txt");

fn ibumad() -> Vec<u8> {
    library("libibumad.so.3", Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn every_symbol_and_no_other() {
    assert_exports(&ibumad(), EXPORTS, 39);
}

#[test]
fn it_has_its_soname_and_needs_libibverbs() {
    let data = ibumad();
    assert!(names(&data, "libibumad.so.3"));
    assert!(names(&data, "libibverbs.so.1"));
}

/// A stub whose function is missing would fail as beside another's libibverbs.so.1.
#[test]
fn every_stub_has_its_function() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let behind = exported(&library("libibverbs.so.1", scratch));
    for name in listed(EXPORTS).iter().filter_map(|line| line.split('@').next()) {
        assert!(behind.contains(&format!("ironverbs_{name}@@IRONVERBS_1 FUNC")), "{name}");
    }
}
