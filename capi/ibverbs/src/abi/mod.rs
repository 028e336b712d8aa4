//! The structures of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, version 44, under their C
//! names.
//!
//! Fields are the header's, in its order; what is never read or written here is kept for its size
//! alone. `layout` holds every offset and size to what a C compiler makes of the header.
#![allow(non_camel_case_types)]

mod attr;
mod cm;
mod consts;
mod context;
mod kern;
mod layout;
mod objects;
mod raw;
mod work;

pub(crate) use attr::*;
pub(crate) use cm::*;
pub(crate) use consts::*;
pub(crate) use context::*;
pub(crate) use kern::*;
pub(crate) use objects::*;
pub(crate) use raw::*;
pub(crate) use work::*;
