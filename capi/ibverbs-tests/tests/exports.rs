//! What the linker made of the export tables, against the list of every symbol of libibverbs 44.
//! Mistakes there are silent: a name without a version, a version without a name.

use std::collections::BTreeSet;
use std::path::Path;

use ironverbs_capi_ibverbs_tests::library_directory;
use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, Sym};
use object::{Endianness, Object};

fn library() -> Vec<u8> {
    let directory = library_directory(Path::new(env!("CARGO_TARGET_TMPDIR")));
    std::fs::read(directory.join("libibverbs.so.1")).expect("the library")
}

/// Every defined dynamic symbol as `name@@VERSION KIND`, the forms of `exports.txt`.
fn exported(data: &[u8]) -> BTreeSet<String> {
    let header = FileHeader64::<Endianness>::parse(data).expect("an ELF file");
    let endian = header.endian().expect("its byte order");
    let sections = header.sections(endian, data).expect("sections");
    let versions = sections.versions(endian, data).expect("versions").expect("a version table");
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).expect(".dynsym");
    let mut out = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if index.0 == 0 || symbol.is_undefined(endian) {
            continue;
        }
        let name = symbols.symbol_name(endian, symbol).expect("a name");
        let version_index = versions.version_index(endian, index);
        let version = versions.version(version_index).expect("a version of that number");
        let at = if version_index.is_hidden() { "@" } else { "@@" };
        let kind = match symbol.st_type() {
            elf::STT_FUNC => "FUNC",
            elf::STT_OBJECT => "OBJECT",
            _ => "?",
        };
        let version = version.map_or("", |v| std::str::from_utf8(v.name()).unwrap_or("?"));
        out.insert(format!("{}{at}{version} {kind}", String::from_utf8_lossy(name)));
    }
    out
}

#[test]
fn every_symbol_and_no_other() {
    let wanted: BTreeSet<String> = include_str!("../../ibverbs/exports.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    // The public interface has 109 versioned names, the private node 71.
    assert_eq!(wanted.len(), 109 + 71);
    let exported = exported(&library());
    // The nodes themselves are absolute symbols in some linkers' output.
    let exported: BTreeSet<_> = exported.into_iter().filter(|s| !s.ends_with(" ?")).collect();
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let surplus: Vec<_> = exported.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

#[test]
fn the_soname_is_that_of_the_distribution() {
    let data = library();
    let file = ElfFile64::<Endianness>::parse(data.as_slice()).expect("an ELF file");
    let dynamic = file.section_by_name_bytes(b".dynamic");
    assert!(dynamic.is_some());
    // Programs look for exactly this name; it stands in .dynstr once, as the soname.
    let strings = file.section_by_name_bytes(b".dynstr").expect(".dynstr");
    use object::ObjectSection;
    let strings = strings.data().expect("its bytes");
    let soname = b"\0libibverbs.so.1\0";
    assert!(strings.windows(soname.len()).any(|window| window == soname));
}

#[test]
fn every_name_has_a_row_in_the_coverage_table() {
    let table = include_str!("../../../docs/coverage.md");
    let rows: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    for line in include_str!("../../ibverbs/exports.txt").lines().filter(|l| !l.starts_with('#')) {
        let name = line.split('@').next().unwrap_or_default();
        assert!(rows.contains(name), "{name} is not in docs/coverage.md");
    }
}
