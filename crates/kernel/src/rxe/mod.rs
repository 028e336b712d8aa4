//! The data path of the kernel's soft-RoCE (`rdma/rdma_user_rxe.h`): queues in memory that the program shares with the
//! kernel, and what stands in their elements.
//!
//! A send queue, a receive queue and a shared receive queue are written by the program and read by the kernel, a completion
//! queue the other way round. Where an element lies and whether there is room is [`ring`]'s; what a request is in bytes,
//! [`send`]'s and [`recv`]'s. Both work on a [`Slot`]: what the memory is and how it is reached is the caller's.

pub mod recv;
pub mod ring;
pub mod send;

use crate::command::Response;

/// The driver's number (`RDMA_DRIVER_RXE`).
pub const DRIVER: u32 = 14;

/// Versions of the driver's own part of the interface that this is about (`RXE_UVERBS_ABI_VERSION`).
pub const ABI: std::ops::RangeInclusive<u32> = 2..=2;

/// Whether a device is one that this is about: by the number of its driver, or, of kernels before 5.1, which tell none, by
/// its name; and by the version of its driver's part of the interface.
pub fn knows(driver: u32, name: &str, abi: u32) -> bool {
    (driver == DRIVER || driver == 0 && name.starts_with("rxe")) && ABI.contains(&abi)
}

/// An element of a queue, to be written. Places are bytes from its start, within the element as long as the caller keeps to
/// the limits of [`send`] and [`recv`].
pub trait Slot {
    /// Writes a number in host order at a place that is a multiple of 4.
    fn put32(&mut self, at: usize, value: u32);
    /// Writes a number in host order at a place that is a multiple of 8.
    fn put64(&mut self, at: usize, value: u64);
}

/// Where a queue is to be mapped from the device's file (`struct mminfo`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Area {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes; 0 where there is no such queue.
    pub size: u32,
}

impl Area {
    /// Bytes of the structure.
    pub const SIZE: usize = 16;

    /// What a response has at that place.
    pub fn read(response: Response<'_>, at: usize) -> Area {
        Area { offset: response.u64(at), size: response.u32(at + 8) }
    }
}

/// Bytes of the driver's part of responses: to creating and resizing a completion queue.
pub const CQ_RESPONSE: usize = Area::SIZE;
/// To creating a queue pair: the receive queue's area, then the send queue's.
pub const QP_RESPONSE: usize = 2 * Area::SIZE;
/// To creating a shared receive queue: its area and its number.
pub const SRQ_RESPONSE: usize = Area::SIZE + 8;
/// To creating an address handle: its number, which kernels before 5.15 do not give.
pub const AH_RESPONSE: usize = 8;

/// What a completion's `wc_flags` are for programs: the kernel's numbers differ from the header's from bit 2 on, where the
/// kernel has "with invalidation" and the header, one bit further. The only other flag there is of checksums, which this
/// driver never sets.
#[inline]
pub fn wc_flags(flags: u32) -> u32 {
    if !is_translated(flags) {
        return flags;
    }
    flags & !WITH_INVALIDATE | WITH_INVALIDATE << 1
}

const WITH_INVALIDATE: u32 = 1 << 2;

/// Whether [`wc_flags`] makes anything else of them: hardly ever, and a look is cheaper than the change.
#[inline]
pub fn is_translated(flags: u32) -> bool {
    flags & WITH_INVALIDATE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_is_an_offset_and_a_size() {
        let mut bytes = [0; 24];
        bytes[8..16].copy_from_slice(&0x1_0000_2000_u64.to_ne_bytes());
        bytes[16..20].copy_from_slice(&4096_u32.to_ne_bytes());
        let area = Area { offset: 0x1_0000_2000, size: 4096 };
        assert_eq!(Area::read(Response(&bytes), 8), area);
        assert_eq!(Area::read(Response(&bytes), 24), Area::default());
    }

    #[test]
    fn an_invalidation_is_where_programs_look_for_it() {
        assert_eq!([0, 1, 2, 3].map(wc_flags), [0, 1, 2, 3]);
        assert_eq!(wc_flags(4), 8);
        assert_eq!(wc_flags(5), 9);
    }
}
