//! Links a library whose functions are jumps into libibverbs.so.1: its soname, its version nodes, and
//! libibverbs.so.1 as a library that is needed. Part of the build scripts of those libraries.
//!
//! Cargo cannot link one cdylib with another. What the linker has to see of libibverbs.so.1 is its
//! soname and the names that are used of it, so that an empty library with those stands in for it.
//! Its symbols have no versions and ours are weak: another libibverbs.so.1, which lacks them, can be
//! told from ours when the library is loaded, instead of ending the program in the dynamic linker.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// For the library `NAME.so.MAJOR`, of whose exports those jump that `jumps` holds for, and which uses `more` besides.
pub(crate) fn link(name: &str, major: u32, jumps: impl Fn(&str) -> bool, more: &[&str]) {
    let (Ok(dir), Ok(out)) = (env::var("CARGO_MANIFEST_DIR"), env::var("OUT_DIR")) else { return };
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../link.rs");
    println!("cargo::rerun-if-changed={name}.map");
    println!("cargo::rerun-if-changed=exports.txt");
    if let Err(why) = stand_in(Path::new(&dir), Path::new(&out), jumps, more) {
        println!("cargo::error=a stand-in for libibverbs.so.1: {why}");
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}.so.{major}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={dir}/{name}.map");
    // Needed even if the linker thinks that weak references need nothing.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-as-needed");
    println!("cargo::rustc-cdylib-link-arg={out}/libibverbs.so.1");
}

fn stand_in(
    dir: &Path,
    out: &Path,
    jumps: impl Fn(&str) -> bool,
    more: &[&str],
) -> Result<(), String> {
    let exports = fs::read_to_string(dir.join("exports.txt")).map_err(|e| e.to_string())?;
    let names = exports.lines().filter_map(|line| line.split_once("@@")).map(|(name, _)| name);
    let mut source = String::from(".text\n");
    for name in names.filter(|name| jumps(name)).chain(more.iter().copied()) {
        let symbol = format!("ironverbs_{name}");
        source += &format!(".globl {symbol}\n.type {symbol},%function\n{symbol}:\n");
    }
    source += ".section .note.GNU-stack,\"\",%progbits\n";
    let file = out.join("libibverbs.s");
    fs::write(&file, source).map_err(|e| e.to_string())?;
    // The linker that cargo uses is a C compiler, which assembles too.
    let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let done = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-o"])
        .arg(out.join("libibverbs.so.1"))
        .arg(file)
        .status()
        .map_err(|e| format!("{}: {e}", compiler.display()))?;
    if done.success() { Ok(()) } else { Err(format!("{}: {done}", compiler.display())) }
}
