//! librdmacm.so.1: every name of librdmacm 44 under its exact version, as a jump into libibverbs.so.1,
//! where the process's one device stack is (`capi/ibverbs/src/cm`).

mod exports;
mod foreign;
mod refusals;
#[path = "../../stubs.rs"]
mod stubs;
