//! The hazard slots of a lane: the initiator's, in the memory of its ring to the target, so that the target
//! has them mapped for as long as it takes the lane.
//!
//! The target could write them, too: that would cheat nobody but itself.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ironverbs_sys::shm::Shared;

use super::Thing;

/// Slots of a lane: threads that touch one target's memory at a time.
pub(crate) const COUNT: usize = 8;

/// Bytes from one slot to the next.
pub(crate) const STRIDE: usize = 64;

/// Where the slots are in the ring's memory.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    memory: Arc<Shared>,
    /// Of the first slot.
    first: usize,
    /// Of the word by which the target says that it watches them.
    watched: usize,
}

/// A name: what an operation touches, which is never 0. Its upper bits count, so that one who is busy can be told from
/// one who is stuck.
pub(crate) fn name(region: usize, qp: usize, count: u32) -> u64 {
    1 << 63
        | u64::from(count & 0x7f_ffff) << 40
        | (qp as u64 & 0xffff) << 24
        | region as u64 & 0xff_ffff
}

/// Whether a slot with that value names the thing.
pub(crate) fn names(value: u64, thing: Thing) -> bool {
    value != 0
        && match thing {
            Thing::Region(index) => value & 0xff_ffff == index as u64,
            Thing::Qp(index) => value >> 24 & 0xffff == index as u64,
        }
}

impl Slots {
    /// Over a ring's memory, in which [`COUNT`] slots begin at byte `first`.
    pub(crate) fn new(memory: Arc<Shared>, first: usize, watched: usize) -> Slots {
        Slots { memory, first, watched }
    }

    #[inline]
    pub(crate) fn load(&self, slot: usize, order: Ordering) -> u64 {
        self.memory.load_u64(self.first + slot * STRIDE, order).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn store(&self, slot: usize, value: u64, order: Ordering) {
        if let Some(word) = self.memory.u64(self.first + slot * STRIDE) {
            word.store(value, order);
        }
    }

    /// Stores into a slot that is free, with a sequentially consistent fence behind it. False: it is not.
    #[inline]
    pub(crate) fn claim(&self, slot: usize, value: u64) -> bool {
        let Some(word) = self.memory.u64(self.first + slot * STRIDE) else { return false };
        let claimed = word.compare_exchange(0, value, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // Here the exchange is such a fence.
        if claimed && !cfg!(target_arch = "x86_64") {
            fence(Ordering::SeqCst);
        }
        claimed
    }

    /// Whether the target watches the slots.
    #[inline]
    pub(crate) fn watched(&self, order: Ordering) -> bool {
        self.memory.load_u32(self.watched, order) == Some(1)
    }

    pub(crate) fn set_watched(&self, watched: bool, order: Ordering) {
        if let Some(word) = self.memory.u32(self.watched) {
            word.store(watched.into(), order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_names_its_lines_and_no_others() {
        for (region, qp) in [(0, 0), (1, 2), (0xff_ffff, 0xffff), (0xffff, 0x3fff)] {
            for count in [0, 1, u32::MAX] {
                let name = name(region, qp, count);
                assert!(names(name, Thing::Region(region)) && names(name, Thing::Qp(qp)));
                assert!(!names(name, Thing::Region(region ^ 1)));
                assert!(!names(name, Thing::Qp(qp ^ 1)));
            }
        }
        assert!(!names(0, Thing::Region(0)) && !names(0, Thing::Qp(0)));
        assert_ne!(name(1, 1, 1), name(1, 1, 2));
    }
}
