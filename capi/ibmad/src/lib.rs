//! libibmad.so.5: every name of libibmad 44 under its exact version, as a jump into libibverbs.so.1,
//! where the process's one device stack is (`capi/ibverbs/src/ibmad`).

mod exports;
#[path = "../../foreign.rs"]
mod foreign;
#[path = "../../stubs.rs"]
mod stubs;

/// What this library is called, and which version of it programs ask for.
const LIBRARY: &str = "libibmad";
const SONAME: &str = "libibmad.so.5";
