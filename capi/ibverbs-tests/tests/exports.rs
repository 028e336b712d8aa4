//! What the linker made of the export tables, against the list of every symbol of libibverbs 44.
//! Mistakes there are silent: a name without a version, a version without a name.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::{assert_exports, covered, library, listed, names};

const EXPORTS: &str = include_str!("../../ibverbs/exports.txt");

fn ibverbs() -> Vec<u8> {
    library("libibverbs.so.1", Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn every_symbol_and_no_other() {
    // The public interface has 109 versioned names, the private node 71; 44 functions of librdmacm
    // are here, and one by which it tells that it is ours; three are for the subnet, 19 newer than version 44.
    // libibumad has 39, libibmad 151 functions.
    assert_exports(&ibverbs(), EXPORTS, 109 + 71 + 45 + 3 + 19 + 39 + 151);
}

#[test]
fn the_soname_is_that_of_the_distribution() {
    assert!(names(&ibverbs(), "libibverbs.so.1"));
}

#[test]
fn every_name_has_a_row_in_the_coverage_table() {
    let rows = covered();
    for line in listed(EXPORTS) {
        let (name, version) = line.split_once('@').unwrap_or_default();
        let ours = version.contains("IRONVERBS_1");
        assert!(ours || rows.contains(name), "{name} is not in docs/coverage.md");
    }
}
