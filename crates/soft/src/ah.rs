//! Address handles: where UD sends go.

use std::sync::Arc;

use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::Path;

use crate::object::{self, Identity};
use crate::{Context, Error, Pd};

/// An address handle (ibv_create_ah(3)).
#[derive(Debug)]
pub struct Ah {
    pub(crate) identity: Identity,
    pd: Arc<Pd>,
    attr: AhAttr,
    path: Path,
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<Ah>, Error> {
        let path = pd.context().resolve(attr)?;
        let identity = pd.host().counted(&pd.host().quotas.ah)?;
        object::take(&pd.users);
        Ok(Arc::new(Ah { identity, pd: pd.clone(), attr: *attr, path }))
    }

    /// The attributes it was made from.
    pub fn attr(&self) -> AhAttr {
        self.attr
    }

    /// The resolved address.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Destroys the handle; requests already posted with it are not affected (ibv_destroy_ah(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.pd.host().check()?;
        self.identity.retire()?;
        object::give_back(&self.pd.users);
        Ok(())
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

object::accessors!(Ah);
