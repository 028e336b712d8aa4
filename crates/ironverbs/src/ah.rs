//! Address handles: where datagrams go.

use std::sync::Arc;

use ironverbs_soft::{self as soft, AhAttr, Gid, Path};
use ironverbs_wire::grh;

use crate::completion::{GRH_LEN, Received};
use crate::pd::PdInner;
use crate::{Error, Pd, Slice};

/// An address handle (ibv_create_ah(3)). Clones are the same.
#[derive(Clone, Debug)]
pub struct Ah(Arc<AhInner>);

#[derive(Debug)]
struct AhInner {
    raw: Arc<soft::Ah>,
    pd: Arc<PdInner>,
}

/// A queue pair that datagrams are sent to.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The way there.
    pub ah: Ah,
    /// Its number.
    pub qpn: u32,
    /// Its Q_Key; one with the top bit set stands for the sender's own (IBA 10.2.5).
    pub qkey: u32,
}

impl Ah {
    /// A handle for a port with that GID, from this port's GID at `gid_index`.
    ///
    /// # Errors
    /// Object (Invalid, Limit): there is no such GID here, or the two are of different IP versions.
    pub fn new(pd: &Pd, gid: Gid, gid_index: u8) -> Result<Ah, Error> {
        let sgid_index = gid_index;
        Ah::with(pd, &AhAttr { dgid: gid, sgid_index, ..AhAttr::default() })
    }

    /// A handle with attributes of the caller's choice; port and GRH are filled in.
    ///
    /// # Errors
    /// Object (Invalid, Limit): as for [`new`](Ah::new).
    pub fn with(pd: &Pd, attr: &AhAttr) -> Result<Ah, Error> {
        let attr = AhAttr { is_global: true, port_num: 1, ..*attr };
        let raw = pd.0.raw.create_ah(&attr)?;
        Ok(Ah(Arc::new(AhInner { raw, pd: pd.0.clone() })))
    }

    /// A handle for the sender of a datagram, from the header before its data (ibv_init_ah_from_wc(3)); None when it
    /// is no datagram, or was sent to an address that this port does not have any more.
    pub fn reply(pd: &Pd, received: &Received, slice: &Slice) -> Option<Ah> {
        let mut header = [0; GRH_LEN];
        if !received.grh || slice.read_at(0, &mut header).is_err() {
            return None;
        }
        let path = grh::path_of(&header)?;
        let entries = pd.0.context.raw.gid_table(1);
        let here = entries.iter().find(|entry| entry.gid == path.dst)?;
        let attr = AhAttr {
            dgid: path.src,
            sgid_index: u8::try_from(here.index).ok()?,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            ..AhAttr::default()
        };
        Ah::with(pd, &attr).ok()
    }

    /// Its attributes.
    pub fn attr(&self) -> AhAttr {
        self.0.raw.attr()
    }

    pub(crate) fn path(&self) -> Path {
        self.0.raw.path()
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        &self.0.pd
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        self.pd.context.end(&self.raw, |raw| drop(raw.destroy()));
    }
}
