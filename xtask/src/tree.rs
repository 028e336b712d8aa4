//! Where things are: the source tree and its build directory.

use std::path::PathBuf;

/// Top of the source tree.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// Cargo's build directory, which also holds the stage and the test logs.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// Where `cargo xtask stage` installs.
pub(crate) fn stage() -> PathBuf {
    target().join("stage")
}
