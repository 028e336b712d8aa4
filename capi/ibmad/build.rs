//! The soname, the version nodes, and libibverbs.so.1 as a library that is needed.

#[path = "../link.rs"]
mod link;

fn main() {
    link::link("libibmad", 5, |name| name != "ibdebug", &[]);
}
