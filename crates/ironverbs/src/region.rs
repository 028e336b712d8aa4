//! Memory regions: memory that the crate allocates, registers, and gives access to by copying.

use std::collections::BTreeMap;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ironverbs_soft::Access;
use parking_lot::Mutex;
use thiserror::Error;

use crate::pd::PdInner;
use crate::trusted::Registered;
use crate::{Error, Pd, RemoteRegion, Slice};

/// Why bytes of a region cannot be had.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The range does not lie within the region or slice.
    #[error("{len} bytes at offset {offset} reach outside the {size} bytes there are")]
    Outside {
        /// Start of the range asked for.
        offset: usize,
        /// Its length in bytes.
        len: usize,
        /// Bytes there are.
        size: usize,
    },
    /// An atomic access needs an offset that is a multiple of 8.
    #[error("offset {offset} of an atomic access is not a multiple of 8")]
    Misaligned {
        /// The offset asked for.
        offset: usize,
    },
    /// Part of the range belongs to a [`Slice`], which somebody holds or a request in flight owns.
    #[error("{len} bytes at offset {offset} overlap the slice {start}..{end}")]
    Taken {
        /// Start of the range asked for.
        offset: usize,
        /// Its length in bytes.
        len: usize,
        /// Start of the slice in the way.
        start: usize,
        /// Its end.
        end: usize,
    },
}

/// A memory region (ibv_reg_mr(3)): zeroed, page-aligned memory of its own, registered as long as the region or a
/// slice of it exists. Clones are the same region.
///
/// Peers with the rkey may write it at any time, as its [`Access`] allows. So it is never seen as `&[u8]`: bytes
/// are copied out and in, and what a peer writes meanwhile may appear in part. Requests take [`Slice`]s of it.
#[derive(Clone, Debug)]
pub struct Region(pub(crate) Arc<RegionInner>);

#[derive(Debug)]
pub(crate) struct RegionInner {
    registered: Registered,
    lkey: u32,
    iova: u64,
    access: Access,
    leases: Mutex<BTreeMap<usize, usize>>,
    /// Entries of `leases`, readable without the lock.
    leased: AtomicUsize,
    /// Last, so that it outlives the registration.
    pd: Arc<PdInner>,
}

impl Region {
    pub(crate) fn new(pd: &Pd, len: usize, access: Access) -> Result<Region, Error> {
        let registered = Registered::new(&pd.0.raw, pd.0.context.fork(), len, access)?;
        Ok(Region(Arc::new(RegionInner {
            lkey: registered.mr().lkey(),
            iova: registered.mr().iova(),
            registered,
            access,
            leases: Mutex::default(),
            leased: AtomicUsize::new(0),
            pd: pd.0.clone(),
        })))
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // a region has at least a byte
    pub fn len(&self) -> usize {
        self.0.registered.len()
    }

    /// What it may be used for.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Key for local use; the crate fills it in where one is needed.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// What a peer needs to reach the whole region.
    pub fn remote(&self) -> RemoteRegion {
        let rkey = self.0.registered.mr().rkey();
        RemoteRegion { addr: self.0.iova, rkey, len: self.len() as u64 }
    }

    /// Takes a part of the region for requests: no other slice may overlap it until it is dropped.
    ///
    /// # Errors
    /// Outside, or Taken by another slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, RangeError> {
        let Range { start, end } = self.range(range)?;
        self.0.lease(start, end)?;
        Ok(Slice::new(self.0.clone(), start, end))
    }

    /// Start and end of a range that lies within.
    pub(crate) fn range(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, RangeError> {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len(),
        };
        if start > end || end > self.len() {
            let len = end.saturating_sub(start);
            return Err(RangeError::Outside { offset: start, len, size: self.len() });
        }
        Ok(start..end)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// Outside, or Taken by a slice: read those through the slice.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.0.check_free(offset, into.len())?;
        self.0.read(offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// Outside, or Taken by a slice: write those through the slice.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.0.check_free(offset, bytes.len())?;
        self.0.write(offset, bytes)
    }

    /// Loads the native-endian word at `offset` atomically (acquire): how to look for what a peer writes.
    ///
    /// # Errors
    /// Outside, or Misaligned.
    pub fn load_u64(&self, offset: usize) -> Result<u64, RangeError> {
        Ok(self.0.registered.word(offset)?.load())
    }

    /// Stores a native-endian word at `offset` atomically (release).
    ///
    /// # Errors
    /// Outside, or Misaligned.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), RangeError> {
        self.0.registered.word(offset)?.store(value);
        Ok(())
    }

    /// Adds to the word at `offset` and returns its value before; atomic towards peers' atomics, too.
    ///
    /// # Errors
    /// Outside, or Misaligned.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, RangeError> {
        Ok(self.0.registered.word(offset)?.fetch_add(add))
    }

    /// Replaces the word at `offset` by `swap` if it equals `compare`, and returns its value before; atomic towards
    /// peers' atomics, too.
    ///
    /// # Errors
    /// Outside, or Misaligned.
    pub fn compare_swap_u64(
        &self,
        offset: usize,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RangeError> {
        Ok(self.0.registered.word(offset)?.compare_swap(compare, swap))
    }
}

impl RegionInner {
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.registered.mr().rkey()
    }

    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        &self.pd
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.registered.read(offset, into)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.registered.write(offset, bytes)
    }

    fn lease(&self, start: usize, end: usize) -> Result<(), RangeError> {
        if start == end {
            return Ok(());
        }
        let mut leases = self.leases.lock();
        if let Some(taken) = overlap(&leases, start, end) {
            return Err(taken);
        }
        leases.insert(start, end);
        self.leased.store(leases.len(), Ordering::Release);
        Ok(())
    }

    pub(crate) fn give_back(&self, start: usize, end: usize) {
        if start != end {
            let mut leases = self.leases.lock();
            leases.remove(&start);
            self.leased.store(leases.len(), Ordering::Release);
        }
    }

    /// Cuts the lease `start..end` in two.
    pub(crate) fn split(&self, start: usize, mid: usize, end: usize) {
        if start != mid && mid != end {
            let mut leases = self.leases.lock();
            leases.insert(start, mid);
            leases.insert(mid, end);
            self.leased.store(leases.len(), Ordering::Release);
        }
    }

    /// An error if a slice holds any of these bytes.
    fn check_free(&self, offset: usize, len: usize) -> Result<(), RangeError> {
        let Some(end) = offset.checked_add(len) else { return Ok(()) };
        if len == 0 || self.leased.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        overlap(&self.leases.lock(), offset, end).map_or(Ok(()), Err)
    }
}

/// The slice that overlaps `start..end`, as an error. Leases do not overlap each other, so that the last one that
/// starts before `end` tells.
fn overlap(leases: &BTreeMap<usize, usize>, start: usize, end: usize) -> Option<RangeError> {
    let (&taken, &taken_end) = leases.range(..end).next_back()?;
    (taken_end > start).then_some(RangeError::Taken {
        offset: start,
        len: end - start,
        start: taken,
        end: taken_end,
    })
}
