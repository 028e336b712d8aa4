//! The layouts of our structures, against what gcc makes of the distribution's headers.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use ironverbs_capi_ibverbs_tests::text;

/// `structure`, field or `-`, size or offset, as `src/abi/layout.rs` asserts them of ours.
fn asserted() -> Vec<(String, String, u64)> {
    let source = include_str!("../../ibverbs/src/abi/layout.rs");
    let table = source.split("layout! {").nth(1).expect("the table");
    let mut words = table.split_whitespace();
    let mut out = Vec::new();
    while let Some(structure) = words.next().filter(|&word| word != "}") {
        let number = |word: Option<&str>| word.and_then(|w| w.parse().ok()).expect("a number");
        out.push((structure.to_owned(), "-".to_owned(), number(words.next())));
        let open = words.next().expect("fields in braces");
        if open == "{}" {
            continue;
        }
        while let Some(field) = words.next().filter(|&word| word != "}") {
            out.push((structure.to_owned(), field.to_owned(), number(words.next())));
        }
    }
    out
}

/// The field's name in C, where Rust's differs.
fn c_name<'a>(structure: &str, field: &'a str) -> &'a str {
    match (structure, field) {
        ("ibv_context_ops", "_compat") => "_compat_query_device",
        ("ibv_send_wr", "remote_srqn") => "qp_type.xrc.remote_srqn",
        (_, "abi_placeholder1") => "ABI_placeholder1",
        (_, "abi_placeholder2") => "ABI_placeholder2",
        (_, "_abi_placeholder3") => "_ABI_placeholder3",
        _ => field.strip_suffix('_').unwrap_or(field),
    }
}

#[test]
fn sizes_and_offsets_are_those_of_the_headers() {
    let asserted = asserted();
    assert!(asserted.len() > 200, "the table has shrunk: {}", asserted.len());
    let (mut probes, mut wanted) = (String::new(), String::new());
    for (structure, field, value) in &asserted {
        let field = c_name(structure, field);
        let probe = match field {
            "-" => writeln!(probes, "SIZE({structure});"),
            field => writeln!(probes, "OFFSET({structure}, {field});"),
        };
        probe.and_then(|()| writeln!(wanted, "{structure} {field} {value}")).expect("a string");
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let header = scratch.join("layout-probes.h");
    std::fs::write(&header, probes).expect("the probes");
    let program = scratch.join("layout");
    let built = Command::new("gcc")
        .arg(format!("-DLAYOUT=\"{}\"", header.display()))
        .arg("-o")
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("c/layout.c"))
        .output()
        .expect("gcc runs (package gcc)");
    assert!(built.status.success(), "(package libibverbs-dev)\n{}", text(&built));
    let printed = Command::new(&program).output().expect("the program starts");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let different: Vec<_> =
        printed.lines().zip(wanted.lines()).filter(|(is, should)| is != should).collect();
    assert!(different.is_empty(), "(gcc's, ours): {different:?}");
    assert_eq!(printed.lines().count(), asserted.len());
}
