//! Safe RDMA verbs in Rust, with a software device that needs no adapter.
