//! The table of all functions, against the tests that it names, and every function asked wrongly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ironverbs_capi_ibverbs_tests::coverage::{self, Row};
use ironverbs_capi_ibverbs_tests::{build_program, on_library, text};

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn the_page_is_what_the_table_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coverage.md");
    let wanted = coverage::render();
    if std::env::var_os("COVERAGE_BLESS").is_some() {
        fs::write(&path, &wanted).expect("the page can be written");
    }
    let found = fs::read_to_string(&path).expect("the page");
    assert!(found == wanted, "docs/coverage.md: see its second paragraph for how to make it");
}

#[test]
fn no_row_is_empty_and_none_is_there_twice() {
    let mut seen = BTreeSet::new();
    for row in coverage::rows() {
        let Row { library, function, kind, versions, ours, rxe, test } = row;
        let fields = [library, function, kind, versions, ours, rxe, test];
        assert!(fields.iter().all(|field| !field.trim().is_empty()), "{row:?}");
        assert!(["exported", "inline"].contains(&kind), "{row:?}");
        assert!(["yes", "no", "unknown", "-"].contains(&rxe), "{row:?}");
        assert!(seen.insert((library, function)), "{row:?} is there twice");
    }
}

/// The cases that the C programs of a directory list in their tables.
fn cases(directory: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory);
    let programs =
        fs::read_dir(path).expect("the programs").map(|entry| entry.expect("one").path());
    programs
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).expect("a program"))
        })
        .collect()
}

#[test]
fn every_test_that_is_named_is_there() {
    let ibverbs = cases("ibverbs-tests/c");
    let rdmacm = cases("rdmacm-tests/c");
    for row in coverage::rows() {
        let Some((program, case)) = row.test.split_once("::") else {
            assert!(row.test.starts_with("xtask "), "{row:?}");
            continue;
        };
        match program {
            "exports" => continue,
            "wrong" => assert_eq!(case, "every_function", "{row:?}"),
            _ => {
                let source = ibverbs.get(program).or_else(|| rdmacm.get(program));
                let found = source.is_some_and(|source| source.contains(&format!("TEST({case})")));
                assert!(found, "{row:?}");
            }
        }
    }
}

#[test]
fn every_function_is_asked_wrongly() {
    let program = build_program("wrong", scratch());
    let output = on_library(&program, scratch()).arg("--list").output().expect("it starts");
    let tried: BTreeSet<_> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    let rows = coverage::rows();
    let functions = rows.iter().filter(|row| row.library == "libibverbs");
    let wanted: BTreeSet<_> = functions.map(|row| row.function.to_owned()).collect();
    let missing: Vec<_> = wanted.difference(&tried).collect();
    let surplus: Vec<_> = tried.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
    let output = on_library(&program, scratch()).arg("all").output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
}
