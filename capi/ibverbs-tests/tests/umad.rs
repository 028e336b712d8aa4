//! What the linker made of the export table of libibumad.so.3, against the list of every symbol of libibumad 44, and
//! what programs do with it.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::{
    assert_exports, compile, exported, library, listed, names, on_library, text,
};

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

/// The cases of `c/umad.c`, on a subnet of the loopback interface.
#[test]
fn agents_questions_and_answers() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/umad.c");
    let program = compile(&source, &["-libumad", "-libverbs"], scratch);
    for case in [
        "names_and_ports",
        "a_question_and_its_answer",
        "no_answer",
        "a_long_answer",
        "a_server_of_ones_own",
        "agents_by_attributes",
        "asked_wrongly",
    ] {
        let mut command = on_library(&program, scratch);
        let command = command.arg(case).env("IRONVERBS_LINK_LAYER", "InfiniBand");
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{case}: {}", text(&output));
    }
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
