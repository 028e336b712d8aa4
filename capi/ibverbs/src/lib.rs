//! libibverbs.so.1: the C ABI over ironverbs.
//!
//! Tables and shims: every exported name stands in `exports` with the function behind it, which
//! checks what the program passed (`objects`), converts (`convert`), calls the device, and turns
//! its answer into what the man page says (`fail`). C objects live in `pool`s.
//!
//! All functions here are called from C. Where one is `unsafe`, the caller's promise is the man
//! page's: pointers are null or point to what their types say.
#![allow(clippy::missing_safety_doc)]

mod abi;
mod ah;
mod cm;
mod comp_cntr;
mod convert;
mod cq;
mod cq_ex;
mod device;
mod dispatch;
mod dm;
mod domain;
mod driver;
mod events;
mod exports;
mod fail;
mod host;
mod ibmad;
mod import;
mod kern;
mod misc;
mod mr;
mod mw;
mod newer;
mod objects;
mod old;
mod ops;
mod pool;
mod post;
mod qp;
mod qp_ex;
mod query;
mod rate;
mod raw;
mod srq;
mod strings;
mod subnet;
mod symver;
mod sysfs;
mod umad;
mod xrcd;
