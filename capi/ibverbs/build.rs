//! The soname, the version nodes, and that the library stays once loaded.

use std::env;

fn main() {
    let Ok(dir) = env::var("CARGO_MANIFEST_DIR") else { return };
    println!("cargo::rerun-if-changed=libibverbs.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // Threads and thread-local destructors of ours outlive a dlclose().
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={dir}/libibverbs.map");
}
