//! `docs/coverage.tsv`: one row for each function, from which `docs/coverage.md` is made.

use std::fmt::Write;

/// What is known of a function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// `libibverbs`, `newer` for what it got after version 44, `librdmacm`, `ironverbs` for names of our own, `private` for what drivers import.
    pub library: &'static str,
    /// Its name.
    pub function: &'static str,
    /// `exported`, or `inline`: compiled into programs from the headers.
    pub kind: &'static str,
    /// Version nodes that export it.
    pub versions: &'static str,
    /// What a device of ours does.
    pub ours: &'static str,
    /// Whether it means something on the kernel's rxe.
    pub rxe: &'static str,
    /// The test that shows it: `program::case`, or another's name.
    pub test: &'static str,
}

/// Every row, in the order of the file.
///
/// # Panics
/// When a line does not have seven fields.
pub fn rows() -> Vec<Row> {
    table(include_str!("../../../docs/coverage.tsv"))
        .map(|fields| {
            let [library, function, kind, versions, ours, rxe, test] = fields[..] else {
                panic!("not seven fields: {fields:?}");
            };
            Row { library, function, kind, versions, ours, rxe, test }
        })
        .collect()
}

/// The lines behind the comments and the names of the columns.
fn table(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.skip(1).map(|line| line.split('\t').collect())
}

const HEAD: &str = "\
# What works

Made from `docs/coverage.tsv` and `docs/pyverbs-skips.tsv`, which the tests use: change those, and then run
`COVERAGE_BLESS=1 cargo test -p ironverbs-capi-ibverbs-tests --test coverage`.

Every name that libibverbs 44 and librdmacm 44 export is here, under its exact versions. A name whose function is
not there yet, or has no meaning on a software device, fails as its man page allows; none pretends
to have succeeded. Each function of libibverbs is also asked wrongly, by a row of `capi/ibverbs-tests/c/wrong.c`.

Columns: `1.1` and so on are nodes `IBVERBS_1.1` (`RDMACM_1.0` of librdmacm), `-` a function that is compiled into programs
from the headers; `(old)` marks a version that only programs linked long ago ask for; `SUBNET_1.0` is `IRONVERBS_SUBNET_1.0`,
names that Linux lacks, declared by `infiniband/ironverbs.h`. Those of node 1.0 belong to an interface that ended in 2007 and
whose structures are laid out differently; they do the same as today's, with objects of their own. rxe: whether the function
means something on the kernel's software RoCE. Tests are cases of the programs in `capi/*-tests/c`, or files of
`capi/*-tests/tests`, or steps of `cargo xtask test`.
";

const SECTIONS: [(&str, &str, &str); 5] = [
    ("libibverbs", "libibverbs", ""),
    (
        "newer",
        "Newer than version 44",
        "Names that libibverbs got later, for programs that look for them. On a device of the kernel all fail.\n",
    ),
    ("ironverbs", "Names of our own", ""),
    (
        "librdmacm",
        "librdmacm",
        "Every name that librdmacm 44 exports is in `librdmacm.so.1`, as a jump into our `libibverbs.so.1`: both\n\
         libraries are needed, and beside another's they say so.\n",
    ),
    (
        "private",
        "The private node",
        "`IBVERBS_PRIVATE_34` is what driver plug-ins import: those of rdma-core 44 drive the kernel's devices through it.\n\
         Programs also link libmlx5 and libefa for their direct verbs.\n",
    ),
];

const MANAGEMENT: &str = "
## libibumad and libibmad

Every name that libibumad 44 and libibmad 44 export is in `libibumad.so.3` and `libibmad.so.5`, as a jump into our
`libibverbs.so.1`, and works on devices whose links are InfiniBand; the fields of datagrams and their text everywhere.
`tests/ibmad.rs` compares bytes, texts and requests with those of the distribution's libibmad. Where they differ: a request that
was lost is sent again, as often as the program says (the distribution's gives up with the first wait); what a buffer has no
room for is cut, never written behind it; a route of more hops than there can be is refused; errno says why a request failed;
a responder refers to others at most eight times.
";

/// The text of `docs/coverage.md`.
pub fn render() -> String {
    let (rows, mut out) = (rows(), String::from(HEAD));
    for (library, title, text) in SECTIONS {
        let _ = write!(out, "\n## {title}\n\n");
        if !text.is_empty() {
            let _ = writeln!(out, "{text}");
        }
        out.push_str("| name | versions | what it does | rxe | test |\n|---|---|---|---|---|\n");
        for row in rows.iter().filter(|row| row.library == library) {
            let Row { function, versions, ours, rxe, test, .. } = row;
            let _ = writeln!(out, "| `{function}` | {versions} | {ours} | {rxe} | {test} |");
        }
    }
    out.push_str(MANAGEMENT);
    out.push_str("\n## What pyverbs skips\n\n");
    out.push_str("Of the distribution's pyverbs, all generic modules run (`cargo xtask test pyverbs`). Skipped are:\n\n");
    out.push_str("| module | because | that is |\n|---|---|---|\n");
    for fields in table(include_str!("../../../docs/pyverbs-skips.tsv")) {
        let _ = writeln!(out, "| {} |", fields.join(" | "));
    }
    out
}
