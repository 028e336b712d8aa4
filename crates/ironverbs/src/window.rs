//! Memory windows: rights to part of a region for peers, given and taken back by requests.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use ironverbs_soft::{self as soft, Access, Bind, MwType, SendFlags, SendWr};

use crate::buffer::sealed::{Buffer, GiveBack};
use crate::buffer::{Held, Returned};
use crate::error::RequestError;
use crate::pd::PdInner;
use crate::region::RegionInner;
use crate::{Error, Pd, Region, RemoteRegion};

/// Windows that any queue pair of their domain binds, any number of times, for all of its peers (type 1).
#[derive(Copy, Clone, Debug)]
pub enum TypeOne {}

/// Windows for the peer of the one queue pair that binds them, until they are invalidated: by it, or by the peer (type 2B).
#[derive(Copy, Clone, Debug)]
pub enum TypeTwo {}

/// A type of windows: [`TypeOne`] or [`TypeTwo`].
pub trait WindowType: sealed::WindowType {}

pub(crate) mod sealed {
    use ironverbs_soft::MwType;

    pub trait WindowType {
        const TYPE: MwType;
    }
}

impl WindowType for TypeOne {}
impl sealed::WindowType for TypeOne {
    const TYPE: MwType = MwType::One;
}

impl WindowType for TypeTwo {}
impl sealed::WindowType for TypeTwo {
    const TYPE: MwType = MwType::Two;
}

/// A memory window (ibv_alloc_mw(3)): bound to part of a [`Region`] it gives peers that part, with rights of its own and
/// a key that differs from binding to binding.
///
/// [`Qp::bind`](crate::Qp::bind) and the requests that end a binding take it by value and give it back with their result.
/// What it was bound to last stays registered. Dropping it ends its key, and so does dropping its operation, once that is
/// over. Like a region's, its memory is never seen as `&[u8]`.
pub struct Window<W: WindowType> {
    state: Box<State>,
    kind: PhantomData<fn() -> W>,
}

/// A window, whatever its type.
#[derive(Debug)]
pub struct State {
    mw: Arc<soft::Mw>,
    /// What it was asked to be bound to last.
    asked: RemoteRegion,
    /// What it may be bound to: more than one only where it is not known which.
    regions: Vec<Arc<RegionInner>>,
    /// Last, so that it outlives the window.
    pd: Arc<PdInner>,
}

impl<W: WindowType> Window<W> {
    /// A window that is bound to nothing yet.
    ///
    /// # Errors
    /// Object: there are as many as there can be, or this is a fork of the process that opened the device.
    pub fn new(pd: &Pd) -> Result<Window<W>, Error> {
        let mw = pd.0.raw.alloc_mw(W::TYPE)?;
        let asked = RemoteRegion { addr: 0, rkey: mw.rkey(), len: 0 };
        let state = State { mw, asked, regions: Vec::new(), pd: pd.0.clone() };
        Ok(Window { state: Box::new(state), kind: PhantomData })
    }

    /// What a peer needs to reach what it is bound to; None when it is bound to nothing, as after the peer has
    /// [invalidated](crate::Qp::send_with_inv) it.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.state.mw.bound().map(|(addr, len, rkey)| RemoteRegion { addr, rkey, len })
    }

    /// The request that binds it, or why that cannot be.
    pub(crate) fn bind(
        &mut self,
        region: &Region,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> (SendWr, Option<RequestError>) {
        let mut bind =
            Bind { rkey: self.state.next_key(), lkey: region.lkey(), addr: 0, len: 0, access };
        let why = match self.check(region, range, access) {
            Ok(range) => {
                bind.addr = region.0.iova() + range.start as u64;
                bind.len = (range.end - range.start) as u64;
                let addr = if access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
                self.state.asked = RemoteRegion { addr, rkey: bind.rkey, len: bind.len };
                self.state.regions.push(region.0.clone());
                None
            }
            Err(why) => Some(why),
        };
        (SendWr::bind(0, SendFlags::empty(), &bind), why)
    }

    fn check(
        &self,
        region: &Region,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Range<usize>, RequestError> {
        let (lkey, given) = (region.lkey(), region.access());
        if !Arc::ptr_eq(region.0.pd(), &self.state.pd) {
            return Err(RequestError::OtherDomain { lkey });
        }
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let possible = writes | Access::REMOTE_READ | Access::ZERO_BASED;
        if !given.contains(Access::MW_BIND) || !possible.contains(access) {
            return Err(RequestError::NotBindable { lkey, region: given, window: access });
        }
        if access.intersects(writes) && !given.contains(Access::LOCAL_WRITE) {
            return Err(RequestError::NotWritable { lkey, access: given });
        }
        let range = region.range(range)?;
        if range.is_empty() {
            return Err(RequestError::EmptyWindow);
        }
        match self.state.mw.bound() {
            Some((_, _, rkey)) if W::TYPE == MwType::Two => Err(RequestError::WindowBound { rkey }),
            _ => Ok(range),
        }
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        &self.state.pd
    }
}

impl Window<TypeOne> {
    /// The request that binds it to nothing.
    pub(crate) fn unbind(&mut self) -> SendWr {
        let rkey = self.state.next_key();
        self.state.asked = RemoteRegion { addr: 0, rkey, len: 0 };
        let bind = Bind { rkey, lkey: 0, addr: 0, len: 0, access: Access::empty() };
        SendWr::bind(0, SendFlags::empty(), &bind)
    }
}

impl Window<TypeTwo> {
    /// The key that is to be invalidated, if it is bound.
    pub(crate) fn invalidate(&mut self) -> Result<u32, RequestError> {
        let (_, _, rkey) = self.state.mw.bound().ok_or(RequestError::WindowUnbound)?;
        self.state.asked = RemoteRegion { addr: 0, rkey, len: 0 };
        Ok(rkey)
    }
}

impl State {
    /// The lowest byte is the key's own; what is above names the window.
    fn next_key(&self) -> u32 {
        let rkey = self.asked.rkey;
        rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
    }

    pub(crate) fn asked(&self) -> RemoteRegion {
        self.asked
    }

    /// Its request has succeeded: what it was bound to before is free.
    pub(crate) fn settle(&mut self) {
        let bound = if self.asked.len == 0 { None } else { self.regions.pop() };
        self.regions = bound.into_iter().collect();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Before the regions that it is bound to go.
        self.pd.context.end(&self.mw, |mw| drop(mw.destroy()));
    }
}

impl<W: WindowType> fmt::Debug for Window<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window<{:?}>({:?})", W::TYPE, self.remote())
    }
}

impl<W: WindowType> Buffer for Window<W> {
    type Returned = Window<W>;

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>)
    where
        Self: 'a,
    {
        (Held::Window(self.state), None)
    }
}

impl<W: WindowType> Returned for Window<W> {}
impl<W: WindowType> GiveBack for Window<W> {
    fn give_back(held: Held) -> Option<Window<W>> {
        if let Held::Window(state) = held {
            Some(Window { state, kind: PhantomData })
        } else {
            None
        }
    }
}
