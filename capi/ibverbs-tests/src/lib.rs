//! Where the libraries under test are, what they export, and how C programs are built against the
//! distribution's headers and run on them.

pub mod coverage;

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, Object, ObjectSection};

/// The directory that holds `libibverbs.so.1` and the libraries that jump into it: what `IRONVERBS_LIB_DIR` names,
/// or one below `scratch` to which they are built and copied.
///
/// # Panics
/// When the library cannot be built: every test then fails, with what cargo said.
pub fn library_directory(scratch: &Path) -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| match env::var_os("IRONVERBS_LIB_DIR").filter(|d| !d.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => build_library(scratch),
    })
}

fn build_library(scratch: &Path) -> PathBuf {
    // `scratch` is target/tmp, whose neighbour target/debug is.
    let target = scratch.parent().expect("the scratch directory lies below the target directory");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "ironverbs-capi-ibverbs"])
        .args(["--package", "ironverbs-capi-rdmacm", "--package", "ironverbs-capi-ibumad"])
        .args(["--package", "ironverbs-capi-ibmad"])
        .arg("--target-dir")
        .arg(target)
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "{}", text(&built));
    let directory = scratch.join(format!("ibverbs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the libraries");
    for (name, soname) in [
        ("libibverbs.so", "libibverbs.so.1"),
        ("librdmacm.so", "librdmacm.so.1"),
        ("libibumad.so", "libibumad.so.3"),
        ("libibmad.so", "libibmad.so.5"),
    ] {
        std::fs::copy(target.join("debug").join(name), directory.join(soname))
            .expect("the library is where cargo puts it");
    }
    directory
}

/// The bytes of a library under test.
///
/// # Panics
/// When it is not there.
pub fn library(name: &str, scratch: &Path) -> Vec<u8> {
    std::fs::read(library_directory(scratch).join(name)).expect("the library")
}

/// Every defined dynamic symbol of a library as `name@@VERSION KIND`, the forms of `exports.txt`.
///
/// # Panics
/// When it is no ELF file with versions.
pub fn exported(data: &[u8]) -> BTreeSet<String> {
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
            // The nodes themselves are absolute symbols in some linkers' output.
            _ => continue,
        };
        let version = version.map_or("", |v| std::str::from_utf8(v.name()).unwrap_or("?"));
        out.insert(format!("{}{at}{version} {kind}", String::from_utf8_lossy(name)));
    }
    out
}

/// The lines of an `exports.txt`.
pub fn listed(exports: &str) -> BTreeSet<String> {
    exports.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Whether the strings of the dynamic linker have this one, as a soname or a library's name.
///
/// # Panics
/// When it is no ELF file.
pub fn names(data: &[u8], name: &str) -> bool {
    let file = object::File::parse(data).expect("an ELF file");
    assert!(file.section_by_name(".dynamic").is_some());
    let strings = file.section_by_name(".dynstr").expect(".dynstr").data().expect("its bytes");
    let wanted = format!("\0{name}\0");
    strings.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

/// Builds the C program `c/NAME.c` against the distribution's headers and library.
///
/// # Panics
/// When gcc or libibverbs-dev is missing, or the program does not compile.
pub fn build_program(name: &str, scratch: &Path) -> PathBuf {
    compile(&source(name), &["-libverbs"], scratch)
}

/// As [`build_program`], with the header and the names of this project's own beside them.
///
/// # Panics
/// As [`build_program`].
pub fn build_program_on_ours(name: &str, scratch: &Path) -> PathBuf {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ibverbs/include");
    let library = library_directory(scratch).join("libibverbs.so.1");
    let include = format!("-I{}", include.display());
    compile(&source(name), &[&include, &library.to_string_lossy()], scratch)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"))
}

/// Builds a C program against the distribution's headers and `libraries`.
///
/// # Panics
/// When gcc or a package with headers is missing, or the program does not compile.
pub fn compile(source: &Path, libraries: &[&str], scratch: &Path) -> PathBuf {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let program = scratch.join(format!("{name}-{}", std::process::id()));
    let built = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(libraries)
        .arg("-ldl")
        .output()
        .expect("gcc runs (package gcc)");
    assert!(
        built.status.success(),
        "(packages libibverbs-dev, librdmacm-dev, libibmad-dev)\n{}",
        text(&built)
    );
    program
}

/// A command that runs on the library under test, with a device on the loopback interface alone.
pub fn on_library(program: impl AsRef<OsStr>, scratch: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", library_directory(scratch))
        .env("LD_BIND_NOW", "1")
        .env("IRONVERBS_INTERFACES", "lo")
        .env_remove("IRONVERBS_LIB_DIR");
    command
}

/// What a finished command printed.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{out}{err}", output.status)
}

/// Fails unless the library exports what its `exports.txt` lists and nothing else.
///
/// # Panics
/// With what is missing and what is too much.
pub fn assert_exports(data: &[u8], exports: &str, count: usize) {
    let wanted = listed(exports);
    assert_eq!(wanted.len(), count);
    let exported = exported(data);
    let missing: Vec<_> = wanted.difference(&exported).collect();
    let surplus: Vec<_> = exported.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

/// The names that have a row in the table of all functions.
pub fn covered() -> BTreeSet<&'static str> {
    coverage::rows().iter().map(|row| row.function).collect()
}

/// A module for each C program and in it a test for each of its cases, and one that holds the list of
/// cases here and the program's own together. `$build` makes the program of a name, `$on` a command that runs
/// it, `$run` runs one case.
#[macro_export]
macro_rules! programs {
    ($build:path, $on:path, $run:path; $($name:ident { $($case:ident)* })*) => {$(
        mod $name {
            fn program() -> &'static std::path::Path {
                static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
                PROGRAM.get_or_init(|| $build(stringify!($name), super::scratch()))
            }

            #[test]
            fn every_case_is_a_test() {
                let output = $on(program(), super::scratch()).arg("--list").output();
                let output = output.expect("the program starts");
                let listed = String::from_utf8_lossy(&output.stdout);
                let ours = [$(stringify!($case)),*];
                assert_eq!(listed.lines().collect::<Vec<_>>(), ours);
            }

            $(
                #[test]
                fn $case() {
                    $run(program(), stringify!($case));
                }
            )*
        }
    )*};
}
