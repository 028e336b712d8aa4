//! What the linker made of the export tables, against the list of every symbol of librdmacm 44 and of the newer ones.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::{assert_exports, covered, exported, library, listed, names};

const EXPORTS: &str = include_str!("../../rdmacm/exports.txt");

fn rdmacm() -> Vec<u8> {
    library("librdmacm.so.1", Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn every_symbol_and_no_other() {
    assert_exports(&rdmacm(), EXPORTS, 68 + 6);
}

#[test]
fn it_has_its_soname_and_needs_libibverbs() {
    let data = rdmacm();
    assert!(names(&data, "librdmacm.so.1"));
    assert!(names(&data, "libibverbs.so.1"));
}

/// A stub whose function is missing would fail as beside another's libibverbs.so.1.
#[test]
fn every_stub_has_its_function() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let behind = exported(&library("libibverbs.so.1", scratch));
    let stubs = listed(EXPORTS);
    let functions: Vec<_> =
        stubs.iter().filter_map(|line| line.split_once('@')).map(|(name, _)| name).collect();
    for name in functions.iter().filter(|name| name.starts_with("rdma_")) {
        assert!(behind.contains(&format!("ironverbs_{name}@@IRONVERBS_1 FUNC")), "{name}");
    }
}

#[test]
fn every_name_has_a_row_in_the_coverage_table() {
    let rows = covered();
    for line in listed(EXPORTS) {
        let name = line.split('@').next().unwrap_or_default();
        assert!(rows.contains(name), "{name} is not in docs/coverage.md");
    }
}
