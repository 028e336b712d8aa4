//! libibmad.so.5: every name of libibmad 44 under its exact version, as a jump into libibverbs.so.1,
//! where the process's one device stack is (`capi/ibverbs/src/ibmad`).

mod exports;
mod foreign;
#[path = "../../stubs.rs"]
mod stubs;
