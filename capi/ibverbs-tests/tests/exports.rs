//! What the linker made of the export tables, against the list of every symbol of libibverbs 44.
//! Mistakes there are silent: a name without a version, a version without a name.

use std::collections::BTreeSet;
use std::path::Path;

use ironverbs_capi_ibverbs_tests::{exported, library, listed, names};

const EXPORTS: &str = include_str!("../../ibverbs/exports.txt");

fn ibverbs() -> Vec<u8> {
    library("libibverbs.so.1", Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn every_symbol_and_no_other() {
    let wanted = listed(EXPORTS);
    // The public interface has 109 versioned names, the private node 71; 41 functions of librdmacm
    // are here, and one by which it tells that it is ours.
    assert_eq!(wanted.len(), 109 + 71 + 42);
    let exported = exported(&ibverbs());
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let surplus: Vec<_> = exported.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

#[test]
fn the_soname_is_that_of_the_distribution() {
    assert!(names(&ibverbs(), "libibverbs.so.1"));
}

#[test]
fn every_name_has_a_row_in_the_coverage_table() {
    let table = include_str!("../../../docs/coverage.md");
    let rows: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    for line in listed(EXPORTS) {
        let (name, version) = line.split_once('@').unwrap_or_default();
        let ours = version.contains("IRONVERBS_1");
        assert!(ours || rows.contains(name), "{name} is not in docs/coverage.md");
    }
}
