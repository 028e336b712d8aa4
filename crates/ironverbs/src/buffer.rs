//! What requests take as buffers.

use std::sync::Arc;

use ironverbs_soft::{Access, Sge};

use crate::error::RequestError;
use crate::pd::PdInner;
use crate::{SharedSlice, Slice, window};

/// Elements of a scatter/gather list, at most.
pub(crate) const MAX_SGE: usize = 32;

/// What data is taken from: [`Slice`], [`SharedSlice`], a list of slices (gathered in order), [`Inline`] bytes, or
/// `()` for none.
pub trait Source: Buffer {}

/// What data is put into: [`Slice`], a list of slices (filled in order), or `()` for no room at all.
pub trait Target: Buffer {}

/// What comes back with a result: a slice, a list of them, a window, or `()`.
pub trait Returned: GiveBack {}

/// Bytes that are copied when the request is posted, at most as many as the queue pair was made for. They need not
/// be registered.
#[derive(Copy, Clone, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Buffers of a request, kept by the queue that it was posted to.
#[derive(Debug, Default)]
pub enum Held {
    /// No data, or inline data.
    #[default]
    Nothing,
    /// One slice.
    One(Slice),
    /// One slice that other requests read, too.
    Shared(SharedSlice),
    /// A list.
    List(Vec<Slice>),
    /// No data: a window that the request binds, or ends the binding of.
    Window(Box<window::State>),
}

impl Held {
    pub(crate) fn slices(&self) -> &[Slice] {
        match self {
            Held::Nothing | Held::Window(_) => &[],
            Held::One(slice) => std::slice::from_ref(slice),
            Held::Shared(shared) => std::slice::from_ref(&*shared.0),
            Held::List(list) => list,
        }
    }

    /// The request that it was held for has succeeded.
    pub(crate) fn settle(&mut self) {
        if let Held::Window(window) = self {
            window.settle();
        }
    }

    /// Bytes of the list.
    pub(crate) fn len(&self) -> u64 {
        self.slices().iter().map(|slice| slice.len() as u64).sum()
    }

    /// Checks what can be known before posting: that a list is not too long, and that the regions are of the
    /// queue's domain and may be written where they are to be.
    pub(crate) fn check(&self, pd: &Arc<PdInner>, write: bool) -> Result<(), RequestError> {
        let slices = self.slices();
        if slices.len() > MAX_SGE {
            let (asked, max) = (slices.len(), MAX_SGE as u32);
            return Err(ironverbs_soft::PostError::TooManySges { asked, max }.into());
        }
        for slice in slices {
            let region = slice.region_inner();
            if !Arc::ptr_eq(region.pd(), pd) {
                return Err(RequestError::OtherDomain { lkey: region.lkey() });
            }
            if write && !region.access().contains(Access::LOCAL_WRITE) {
                return Err(RequestError::NotWritable {
                    lkey: region.lkey(),
                    access: region.access(),
                });
            }
        }
        match self.len() {
            asked if asked > MAX_MESSAGE => Err(RequestError::TooLong { asked, max: MAX_MESSAGE }),
            _ => Ok(()),
        }
    }
}

/// Bytes of a message (IBA 9.7.1).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// A scatter/gather list on the stack.
#[derive(Debug)]
pub(crate) struct SgeList {
    sges: [Sge; MAX_SGE],
    len: usize,
}

impl SgeList {
    /// The list of `held`, which was [checked](Held::check), cut at `limit` bytes.
    pub(crate) fn new(held: &Held, limit: u64) -> SgeList {
        let mut list = SgeList { sges: [Sge::default(); MAX_SGE], len: 0 };
        let mut left = limit;
        for (sge, slice) in list.sges.iter_mut().zip(held.slices()) {
            let len = left.min(slice.len() as u64);
            left -= len;
            // Below 2^31: a message is not longer.
            *sge = Sge { addr: slice.addr(), len: len as u32, lkey: slice.region_inner().lkey() };
            list.len += 1;
        }
        list
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        self.sges.get(..self.len).unwrap_or_default()
    }
}

pub(crate) mod sealed {
    use super::{Held, Returned};

    /// A buffer that a queue can keep while a request is in flight.
    pub trait Buffer: Sized {
        /// What comes back with the result.
        type Returned: Returned;

        /// Hands it over to a queue; inline data apart.
        fn hold<'a>(self) -> (Held, Option<&'a [u8]>)
        where
            Self: 'a;
    }

    /// How it comes back.
    pub trait GiveBack: Sized {
        /// Takes it back out of what [`Buffer::hold`] gave; None for what another buffer gave.
        fn give_back(held: Held) -> Option<Self>;
    }
}

use sealed::{Buffer, GiveBack};

impl Source for Slice {}
impl Target for Slice {}
impl Buffer for Slice {
    type Returned = Slice;

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>) {
        (Held::One(self), None)
    }
}
impl Returned for Slice {}
impl GiveBack for Slice {
    fn give_back(held: Held) -> Option<Slice> {
        if let Held::One(slice) = held { Some(slice) } else { None }
    }
}

impl Source for SharedSlice {}
impl Buffer for SharedSlice {
    type Returned = SharedSlice;

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>) {
        (Held::Shared(self), None)
    }
}
impl Returned for SharedSlice {}
impl GiveBack for SharedSlice {
    fn give_back(held: Held) -> Option<SharedSlice> {
        if let Held::Shared(shared) = held { Some(shared) } else { None }
    }
}

impl Source for Vec<Slice> {}
impl Target for Vec<Slice> {}
impl Buffer for Vec<Slice> {
    type Returned = Vec<Slice>;

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>) {
        (Held::List(self), None)
    }
}
impl Returned for Vec<Slice> {}
impl GiveBack for Vec<Slice> {
    fn give_back(held: Held) -> Option<Vec<Slice>> {
        if let Held::List(list) = held { Some(list) } else { None }
    }
}

impl Source for () {}
impl Target for () {}
impl Buffer for () {
    type Returned = ();

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>) {
        (Held::Nothing, None)
    }
}
impl Returned for () {}
impl GiveBack for () {
    fn give_back(_: Held) -> Option<()> {
        Some(())
    }
}

impl Source for Inline<'_> {}
impl Buffer for Inline<'_> {
    type Returned = ();

    fn hold<'a>(self) -> (Held, Option<&'a [u8]>)
    where
        Self: 'a,
    {
        (Held::Nothing, Some(self.0))
    }
}
