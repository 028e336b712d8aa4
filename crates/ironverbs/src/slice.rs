//! Slices of a region: what requests take, own while they are in flight, and give back.

use std::sync::Arc;

use crate::region::{RangeError, RegionInner};
use crate::{Region, RemoteRegion};

/// A part of a [`Region`] that nobody else has a slice of.
///
/// A request takes its slices by value and gives them back with its result, so that the program cannot touch bytes
/// that are in flight. Like a `Vec`, a slice has a length within its capacity: requests use the bytes up to the
/// length. Dropping it returns the range to the region.
#[derive(Debug)]
pub struct Slice {
    region: Arc<RegionInner>,
    start: usize,
    end: usize,
    len: usize,
}

impl Slice {
    /// Takes over the lease `start..end`.
    pub(crate) fn new(region: Arc<RegionInner>, start: usize, end: usize) -> Slice {
        Slice { region, start, end, len: end - start }
    }

    /// Bytes that a request uses.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a request would use no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes it could have.
    pub fn capacity(&self) -> usize {
        self.end - self.start
    }

    /// Where it starts in its region.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// The region it is part of.
    pub fn region(&self) -> Region {
        Region(self.region.clone())
    }

    /// Sets how many bytes a request uses.
    ///
    /// # Errors
    /// Outside, when that is more than the capacity; the length stays.
    pub fn set_len(&mut self, len: usize) -> Result<(), RangeError> {
        if len > self.capacity() {
            return Err(RangeError::Outside { offset: 0, len, size: self.capacity() });
        }
        self.len = len;
        Ok(())
    }

    /// What a peer needs to reach these bytes, as far as the length goes.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { addr: self.addr(), rkey: self.region.rkey(), len: self.len as u64 }
    }

    /// Copies bytes out; the offset counts from the start of the slice.
    ///
    /// # Errors
    /// Outside the capacity.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.check(offset, into.len())?;
        self.region.read(self.start + offset, into)
    }

    /// Copies bytes in; the offset counts from the start of the slice.
    ///
    /// # Errors
    /// Outside the capacity.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.check(offset, bytes.len())?;
        self.region.write(self.start + offset, bytes)
    }

    /// Copies `bytes` to the start and makes them all that a request uses.
    ///
    /// # Errors
    /// Outside the capacity.
    pub fn assign(&mut self, bytes: &[u8]) -> Result<(), RangeError> {
        self.write_at(0, bytes)?;
        self.set_len(bytes.len())
    }

    /// A copy of the bytes up to the length.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // Within the capacity, always.
        let _ = self.read_at(0, &mut bytes);
        bytes
    }

    /// Cuts it in two; both parts are as long as they can be.
    ///
    /// # Errors
    /// Outside, when `mid` is more than the capacity: with the slice as it was.
    pub fn split_at(self, mid: usize) -> Result<(Slice, Slice), (RangeError, Slice)> {
        if mid > self.capacity() {
            let size = self.capacity();
            return Err((RangeError::Outside { offset: mid, len: 0, size }, self));
        }
        let (region, start, end) = (self.region.clone(), self.start, self.end);
        let mid = start + mid;
        region.split(start, mid, end);
        // The two take over its lease.
        self.forget();
        Ok((Slice::new(region.clone(), start, mid), Slice::new(region, mid, end)))
    }

    /// Makes it readable by many requests at a time.
    pub fn share(self) -> SharedSlice {
        SharedSlice(Arc::new(self))
    }

    pub(crate) fn region_inner(&self) -> &Arc<RegionInner> {
        &self.region
    }

    pub(crate) fn addr(&self) -> u64 {
        self.region.iova() + self.start as u64
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), RangeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity() => Ok(()),
            _ => Err(RangeError::Outside { offset, len, size: self.capacity() }),
        }
    }

    /// Drops it, but not its lease.
    fn forget(mut self) {
        self.end = self.start;
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.region.give_back(self.start, self.end);
    }
}

/// A slice that several requests send from at a time; nobody changes it meanwhile. Clones are the same slice.
#[derive(Clone, Debug)]
pub struct SharedSlice(pub(crate) Arc<Slice>);

impl SharedSlice {
    /// Bytes that a request uses.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a request would use no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// Outside the capacity.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), RangeError> {
        self.0.read_at(offset, into)
    }

    /// The slice itself, if this is the last that shares it and no request reads it.
    ///
    /// # Errors
    /// This one back, when there are others.
    pub fn into_slice(self) -> Result<Slice, SharedSlice> {
        Arc::try_unwrap(self.0).map_err(SharedSlice)
    }
}
