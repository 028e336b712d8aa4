//! Where elements lie in a queue, and how full it is.
//!
//! A queue starts with a header (`struct rxe_queue_buf`): sizes, and the indices of who writes and who reads, each of which
//! stands in a cache line of its own. Indices stay below the number of elements, of which one is always left empty.

/// Where the header has the power of two of an element's size.
pub const LOG2_ELEMENT: usize = 0;
/// Where it has the number of elements less one.
pub const INDEX_MASK: usize = 4;
/// Where it has the index that is written next.
pub const PRODUCER: usize = 128;
/// Where it has the index that is read next.
pub const CONSUMER: usize = 256;
/// Where the elements begin.
pub const DATA: usize = 384;

/// The sizes of a queue, of which it is certain that they fit into its memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ring {
    mask: u32,
    shift: u32,
}

impl Ring {
    /// Of a queue that is not known yet: one element of nothing.
    pub const EMPTY: Ring = Ring { mask: 0, shift: 0 };

    /// By the header of a queue in `mapped` bytes of memory, whose elements have at least `least` bytes. `None` when that
    /// cannot be: no power of two elements, or more than the memory has. A single one is a queue for nothing.
    pub fn new(log2_element: u32, index_mask: u32, mapped: usize, least: usize) -> Option<Ring> {
        let elements = usize::try_from(index_mask.checked_add(1)?).ok()?;
        let element = 1_usize.checked_shl(log2_element)?;
        let data = elements.checked_mul(element)?;
        let fits = DATA.checked_add(data)? <= mapped;
        let sound = elements.is_power_of_two() && element >= least.max(8);
        (fits && sound).then_some(Ring { mask: index_mask, shift: log2_element })
    }

    /// An index as it is, or its remainder: below the number of elements.
    #[inline]
    pub fn wrapped(self, index: u32) -> u32 {
        index & self.mask
    }

    /// The index behind that one.
    #[inline]
    pub fn next(self, index: u32) -> u32 {
        self.wrapped(index.wrapping_add(1))
    }

    /// Where an element begins, from the start of the memory. All of it is there, whatever the index.
    #[inline]
    pub fn place(self, index: u32) -> usize {
        DATA + self.offset(index)
    }

    /// Where an element begins, from the first one.
    #[inline]
    pub fn offset(self, index: u32) -> usize {
        (self.wrapped(index) as usize) << self.shift
    }

    /// Bytes of an element.
    #[inline]
    pub fn element(self) -> usize {
        1 << self.shift
    }

    /// Elements that can be in use at a time.
    pub fn capacity(self) -> u32 {
        self.mask
    }

    /// Elements that are written and not yet read.
    #[inline]
    pub fn used(self, producer: u32, consumer: u32) -> u32 {
        self.wrapped(producer.wrapping_sub(consumer))
    }

    /// Whether nothing more can be written.
    #[inline]
    pub fn is_full(self, producer: u32, consumer: u32) -> bool {
        self.used(producer, consumer) == self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_cannot_be_is_refused() {
        let whole = DATA + 4 * 256;
        assert!(Ring::new(8, 3, whole, 208).is_some());
        // Elements beyond the memory, too small ones, no power of two, absurd sizes.
        for (log2, mask, mapped, least) in [
            (8, 3, whole - 1, 208),
            (7, 3, whole, 208),
            (8, 2, whole, 208),
            (8, u32::MAX, usize::MAX, 208),
            (64, 3, usize::MAX, 208),
            (63, 3, usize::MAX, 208),
            (2, 3, whole, 0),
        ] {
            assert_eq!(
                Ring::new(log2, mask, mapped, least),
                None,
                "{log2} {mask} {mapped} {least}"
            );
        }
    }

    #[test]
    fn one_element_is_always_left_empty() {
        let ring = Ring::new(6, 7, DATA + 8 * 64, 48).unwrap();
        assert_eq!((ring.capacity(), ring.element()), (7, 64));
        let (mut producer, consumer) = (5, 5);
        for used in 0..7 {
            assert_eq!(ring.used(producer, consumer), used);
            assert!(!ring.is_full(producer, consumer));
            producer = ring.next(producer);
        }
        assert!(ring.is_full(producer, consumer));
        assert_eq!(producer, 4);
        let none = Ring::new(8, 0, DATA + 256, 208).unwrap();
        assert!(none.is_full(0, 0));
    }

    #[test]
    fn any_index_leads_to_a_whole_element() {
        let mapped = DATA + 8 * 64;
        let ring = Ring::new(6, 7, mapped, 48).unwrap();
        for index in [0, 7, 8, 12345, u32::MAX] {
            let at = ring.place(index);
            assert!(at >= DATA && at + 64 <= mapped, "{index}: {at}");
        }
        assert_eq!(ring.place(9), DATA + 64);
        // Whoever shares the memory may write anything there.
        assert!(ring.used(3, u32::MAX) <= ring.capacity());
    }
}
