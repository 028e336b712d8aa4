//! The soname, the version nodes, and libibverbs.so.1 as a library that is needed.

#[path = "../link.rs"]
mod link;

fn main() {
    link::link("librdmacm", 1, |name| name.starts_with("rdma_"), &["rdmacm_announce"]);
}
