//! Protection domains.

use std::sync::Arc;

use ironverbs_soft::{self as soft, Access};

use crate::device::ContextInner;
use crate::{Context, Error, Region};

/// A protection domain (ibv_alloc_pd(3)): regions, queue pairs and address handles work together within one. Clones
/// are the same; it exists as long as anything made from it.
#[derive(Clone, Debug)]
pub struct Pd(pub(crate) Arc<PdInner>);

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) raw: Arc<soft::Pd>,
    pub(crate) context: Arc<ContextInner>,
}

impl Pd {
    /// A new domain.
    ///
    /// # Errors
    /// Object, in a fork of the process that opened the device.
    pub fn new(context: &Context) -> Result<Pd, Error> {
        let raw = context.0.raw.alloc_pd()?;
        Ok(Pd(Arc::new(PdInner { raw, context: context.0.clone() })))
    }

    /// The context it belongs to.
    pub fn context(&self) -> Context {
        Context(self.0.context.clone())
    }

    /// Allocates `len` bytes, zeroed, and registers them (ibv_reg_mr(3)). Nothing is pinned, and pages take room only
    /// once they are used.
    ///
    /// # Errors
    /// Object: Invalid for a length of 0 or REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE; NoMemory or Io when
    /// there is no room.
    pub fn region(&self, len: usize, access: Access) -> Result<Region, Error> {
        Region::new(self, len, access)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Whatever belongs to it holds it: nothing does any more.
        self.context.end(&self.raw, |raw| drop(raw.destroy()));
    }
}
