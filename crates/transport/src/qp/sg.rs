//! Messages over scatter/gather lists.

use crate::device::Device;
use crate::verbs::{Fault, Sge};

/// Bytes of a list.
pub(super) fn length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// Checks every element; elements of length 0 may have any key.
pub(super) fn check<D: Device + ?Sized>(
    dev: &mut D,
    sges: &[Sge],
    write: bool,
) -> Result<(), Fault> {
    sges.iter().filter(|sge| sge.len > 0).try_for_each(|sge| dev.check_local(sge, write))
}

/// Fills `dst` from the message at `offset`.
pub(super) fn gather<D: Device + ?Sized>(
    dev: &mut D,
    sges: &[Sge],
    offset: u64,
    dst: &mut [u8],
) -> Result<(), Fault> {
    let mut rest = dst;
    for (sge, at, len) in pieces(sges, offset, rest.len()) {
        let (piece, after) = rest.split_at_mut(len);
        dev.gather(sge, at, piece)?;
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(Fault::Range) }
}

/// Puts `src` into the message at `offset`.
pub(super) fn scatter<D: Device + ?Sized>(
    dev: &mut D,
    sges: &[Sge],
    offset: u64,
    src: &[u8],
) -> Result<(), Fault> {
    let mut rest = src;
    for (sge, at, len) in pieces(sges, offset, rest.len()) {
        let (piece, after) = rest.split_at(len);
        dev.scatter(sge, at, piece)?;
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(Fault::Range) }
}

/// The elements, and the part of each, that hold `len` bytes of the message from `offset` on.
pub(super) fn pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (&Sge, u32, usize)> + use<'_> {
    let mut skip = offset;
    let mut left = len;
    sges.iter().filter_map(move |sge| {
        if skip >= u64::from(sge.len) {
            skip -= u64::from(sge.len);
            return None;
        }
        let at = skip as u32;
        let take = left.min((sge.len - at) as usize);
        skip = 0;
        left -= take;
        (take > 0).then_some((sge, at, take))
    })
}
