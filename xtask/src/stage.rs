//! `cargo xtask stage`: a release build laid out as lib/, bin/, include/ and share/man/; pkg-config finds it by
//! PKG_CONFIG_PATH=STAGE/lib/pkgconfig.

use crate::process::{During, Outcome, Program};
use crate::tree;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Built file, and where it goes.
const FILES: [(&str, &str); 6] = [
    ("libibverbs.so", "lib/libibverbs.so.1"),
    ("librdmacm.so", "lib/librdmacm.so.1"),
    ("libibumad.so", "lib/libibumad.so.3"),
    ("libibmad.so", "lib/libibmad.so.5"),
    ("libironverbs_paths.so", "lib/libironverbs_paths.so"),
    ("ironverbs", "bin/ironverbs"),
];

/// File of the tree, and where it goes.
const TEXTS: [(&str, &str); 8] = [
    ("capi/ibverbs/include/infiniband/ironverbs.h", "include/infiniband/ironverbs.h"),
    ("capi/ibverbs/man/ibv_gid_reachable.3", "share/man/man3/ibv_gid_reachable.3"),
    ("capi/ibverbs/man/ibv_register_sm_events.3", "share/man/man3/ibv_register_sm_events.3"),
    ("capi/ibverbs/pkgconfig/libibverbs.pc", "lib/pkgconfig/libibverbs.pc"),
    ("capi/rdmacm/pkgconfig/librdmacm.pc", "lib/pkgconfig/librdmacm.pc"),
    ("capi/ibumad/pkgconfig/libibumad.pc", "lib/pkgconfig/libibumad.pc"),
    ("capi/ibmad/pkgconfig/libibmad.pc", "lib/pkgconfig/libibmad.pc"),
    // One page for both calls.
    ("capi/ibverbs/man/ibv_register_sm_events.3", "share/man/man3/ibv_unregister_sm_events.3"),
];

/// Names beside them, each a link to a file of the same folder. Programs are linked with the first.
const LINKS: [(&str, &str); 4] = [
    ("lib/libibverbs.so", "libibverbs.so.1"),
    ("lib/librdmacm.so", "librdmacm.so.1"),
    ("lib/libibumad.so", "libibumad.so.3"),
    ("lib/libibmad.so", "libibmad.so.5"),
];

/// The command line.
pub(crate) fn command(arguments: &[String]) -> Outcome {
    let prefix = match arguments {
        [] => tree::stage(),
        [option, directory] if option == "--prefix" => PathBuf::from(directory),
        _ => return Err("usage: cargo xtask stage [--prefix DIR]".into()),
    };
    build().show()?;
    install(&prefix)?;
    println!("staged in {}", prefix.display());
    Ok(())
}

/// The build that [`install`] takes its files from.
pub(crate) fn build() -> Program {
    Program::new("cargo").args(["build", "--release"]).args([
        "--package=ironverbs-capi-ibverbs",
        "--package=ironverbs-capi-rdmacm",
        "--package=ironverbs-capi-ibumad",
        "--package=ironverbs-capi-ibmad",
        "--package=ironverbs-paths",
        "--package=ironverbs-cli",
    ])
}

/// Copies what was built, and has the command write its manual. A file in use is replaced, never written into.
pub(crate) fn install(prefix: &Path) -> Outcome {
    let built = tree::target().join("release");
    for (from, to) in FILES {
        copy(&built.join(from), &prefix.join(to), 0o755)?;
    }
    for (from, to) in TEXTS {
        copy(&tree::root().join(from), &prefix.join(to), 0o644)?;
    }
    let command = Program::new(prefix.join("bin/ironverbs").display().to_string());
    command.arg("manual").arg(prefix.join("share/man/man1").display()).read()?;
    for (name, target) in LINKS {
        let name = prefix.join(name);
        if fs::read_link(&name).is_ok_and(|found| found == Path::new(target)) {
            continue;
        }
        let _ = fs::remove_file(&name);
        symlink(target, &name).during(name.display())?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Outcome {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).during(directory.display())?;
    }
    let new = to.with_extension("new");
    fs::copy(from, &new).during(from.display())?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).during(new.display())?;
    fs::rename(&new, to).during(to.display())
}
