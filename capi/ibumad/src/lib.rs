//! libibumad.so.3: every name of libibumad 44 under its exact version, as a jump into libibverbs.so.1,
//! where the process's one device stack is (`capi/ibverbs/src/umad`).

mod exports;
mod foreign;
#[path = "../../stubs.rs"]
mod stubs;
