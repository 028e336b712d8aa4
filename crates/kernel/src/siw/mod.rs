//! The data path of the kernel's software iWARP (`rdma/siw-abi.h`): queues in memory that the program shares with the kernel,
//! and what stands in their elements.
//!
//! No index is shared. Every element has a word of its own that tells whose it is: a request is the kernel's from when its
//! writer stores the word with [`VALID`] in it until the kernel clears that; a completion is the program's the other way
//! round. Each side goes through the elements in turn. What the memory is and how it is reached is the caller's.

pub mod complete;
pub mod request;

use crate::command::Response;

/// The driver's number (`RDMA_DRIVER_SIW`).
pub const DRIVER: u32 = 18;

/// Versions of the driver's own part of the interface that this is about (`SIW_ABI_VERSION`).
pub const ABI: std::ops::RangeInclusive<u32> = 1..=1;

/// Whether a device is one that this is about. Every kernel that has siw tells its driver's number.
pub fn knows(driver: u32, abi: u32) -> bool {
    driver == DRIVER && ABI.contains(&abi)
}

/// Elements of scatter and gather lists that a request has room for (`SIW_MAX_SGE`).
pub const MAX_SGE: usize = 6;

/// The element holds a request, or a completion (`SIW_WQE_VALID`).
pub const VALID: u16 = 1;

/// Where an element has its word: flags, and what is written with them.
pub const WORD: usize = 8;

/// Where a queue is to be mapped from the device's file, and how many elements it has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Area {
    /// Offset in the file.
    pub offset: u64,
    /// A power of two.
    pub elements: u32,
    /// Bytes that are to be mapped, no more and no less but for the rest of a page.
    pub bytes: usize,
}

impl Area {
    /// Of so many elements of `element` bytes, with `more` bytes behind them. `None` when that cannot be: no power of two,
    /// or more than there can be.
    fn new(offset: u64, elements: u32, element: usize, more: usize) -> Option<Area> {
        let bytes = usize::try_from(elements).ok()?.checked_mul(element)?.checked_add(more)?;
        let sound = elements.is_power_of_two() && isize::try_from(bytes).is_ok();
        sound.then_some(Area { offset, elements, bytes })
    }
}

/// Bytes of the driver's part of responses: to opening a device (`siw_uresp_alloc_ctx`).
pub const CONTEXT_RESPONSE: usize = 8;
/// To registering memory, as many as its part of the command (`siw_ureq_reg_mr`, `siw_uresp_reg_mr`).
pub const MR_RESPONSE: usize = 8;
/// To creating a completion queue (`siw_uresp_create_cq`).
pub const CQ_RESPONSE: usize = 16;
/// To creating a queue pair (`siw_uresp_create_qp`).
pub const QP_RESPONSE: usize = 32;
/// To creating a shared receive queue (`siw_uresp_create_srq`).
pub const SRQ_RESPONSE: usize = 16;

/// The completion queue of a response whose driver's part begins at `at`.
pub fn cq(response: Response<'_>, at: usize) -> Option<Area> {
    let (elements, key) = (response.u32(at + 4), response.u64(at + 8));
    Area::new(key, elements, complete::SIZE, complete::CONTROL)
}

/// The send queue, likewise.
pub fn sends(response: Response<'_>, at: usize) -> Option<Area> {
    Area::new(response.u64(at + 16), response.u32(at + 4), request::SEND, 0)
}

/// The receive queue, likewise; without elements where a shared one takes its place, or none was asked for.
pub fn receives(response: Response<'_>, at: usize) -> Option<Area> {
    let (offset, elements) = (response.u64(at + 24), response.u32(at + 8));
    Area::new(offset, elements, request::RECEIVE, 0)
}

/// The shared receive queue, likewise.
pub fn srq(response: Response<'_>, at: usize) -> Option<Area> {
    Area::new(response.u64(at + 8), response.u32(at), request::RECEIVE, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_driver_and_version() {
        assert!(knows(DRIVER, 1));
        assert!(!knows(DRIVER, 2) && !knows(14, 1) && !knows(0, 1));
    }

    #[test]
    fn areas_are_where_the_header_has_them() {
        let mut bytes = [0_u8; 40];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(8, &0x33_u32.to_ne_bytes());
        put(12, &16_u32.to_ne_bytes());
        put(16, &64_u32.to_ne_bytes());
        put(24, &0x1000_u64.to_ne_bytes());
        put(32, &0x9000_u64.to_ne_bytes());
        let response = Response(&bytes);
        let area = |offset, elements, bytes| Some(Area { offset, elements, bytes });
        assert_eq!(sends(response, 8), area(0x1000, 16, 16 * 120));
        assert_eq!(receives(response, 8), area(0x9000, 64, 64 * 112));
        assert_eq!(cq(response, 8), area(64, 16, 16 * 32 + 8));
        assert_eq!(srq(response, 16), area(0x1000, 64, 64 * 112));
    }

    #[test]
    fn what_is_no_power_of_two_is_no_queue() {
        for elements in [0, 3, u32::MAX] {
            assert_eq!(Area::new(0, elements, 8, 0), None, "{elements}");
        }
        assert_eq!(Area::new(0, 1 << 31, usize::MAX, 0), None);
        assert_eq!(Area::new(0, 1 << 31, 1 << 33, 0), None);
    }
}
