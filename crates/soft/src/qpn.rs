//! Queue pair numbers: given out next-fit from the blocks this process has claimed, and rested before reuse.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ironverbs_transport::device::Instant;

use crate::{Qp, multicast};

/// QPNs of a block share their upper 12 bits.
pub(crate) const BLOCK: usize = 1 << 12;

/// A number rests this long before it names another QP: late packets of the old one have died by then.
const REST: u64 = 60_000_000_000;

/// The QPs of a Host by number.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    blocks: Vec<Block>,
    /// Numbers not in use, those freed longest ago first, with the time from which they may be used again.
    free: VecDeque<(Instant, u32)>,
    count: usize,
}

#[derive(Debug)]
struct Block {
    number: u32,
    /// Who drops its last reference to a QP is rid of it.
    qps: Box<[Option<Weak<Qp>>]>,
}

impl QpTable {
    pub(crate) fn get(&self, qpn: u32) -> Option<Arc<Qp>> {
        let block = self.blocks.iter().find(|b| b.number == qpn >> 12)?;
        block.qps[qpn as usize % BLOCK].as_ref().and_then(Weak::upgrade)
    }

    /// All QPs.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Qp>> {
        self.blocks.iter().flat_map(|block| &block.qps).filter_map(|qp| qp.as_ref()?.upgrade())
    }

    /// Whether `qpn` is in a block of ours.
    pub(crate) fn is_ours(&self, qpn: u32) -> bool {
        self.blocks.iter().any(|b| b.number == qpn >> 12)
    }

    /// Number of QPs.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Takes a number that may be used at `now`; None when another block is needed.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u32> {
        match self.free.front() {
            Some((from, _)) if *from <= now => self.free.pop_front().map(|(_, qpn)| qpn),
            _ => None,
        }
    }

    /// Lets a number rest that no QP of this table has.
    pub(crate) fn rest(&mut self, qpn: u32, now: Instant) {
        self.free.push_back((now.after(REST), qpn));
    }

    /// Takes the number rested longest, rested or not: for when no block can be had.
    pub(crate) fn take_unrested(&mut self) -> Option<u32> {
        self.free.pop_front().map(|(_, qpn)| qpn)
    }

    /// Adds a block; its numbers are given out from `start` on, around.
    pub(crate) fn add_block(&mut self, number: u16, start: u16) {
        self.blocks
            .push(Block { number: number.into(), qps: std::iter::repeat_n(None, BLOCK).collect() });
        for i in 0..BLOCK as u32 {
            let qpn = (u32::from(number) << 12) | ((u32::from(start) + i) % BLOCK as u32);
            // 0 and 1 are the management QPs.
            if qpn > 1 && qpn != multicast::QPN {
                self.free.push_front((Instant(0), qpn));
            }
        }
        self.free.make_contiguous().sort_by_key(|(from, _)| *from);
        // Pushed to the front in reverse: put the new block's numbers in rising order.
        let fresh = self.free.iter().take_while(|(from, _)| from.0 == 0).count();
        self.free.make_contiguous()[..fresh].reverse();
    }

    pub(crate) fn insert(&mut self, qp: &Arc<Qp>) {
        let qpn = qp.qpn();
        if let Some(block) = self.blocks.iter_mut().find(|b| b.number == qpn >> 12) {
            block.qps[qpn as usize % BLOCK] = Some(Arc::downgrade(qp));
            self.count += 1;
        }
    }

    pub(crate) fn remove(&mut self, qpn: u32, now: Instant) {
        let block = self.blocks.iter_mut().find(|b| b.number == qpn >> 12);
        if block.is_some_and(|b| b.qps[qpn as usize % BLOCK].take().is_some()) {
            self.count -= 1;
            self.free.push_back((now.after(REST), qpn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_from_the_start_and_rest_after_use() {
        let mut table = QpTable::default();
        assert_eq!(table.take(Instant(5)), None);
        table.add_block(3, 4094);
        let first: Vec<_> = (0..3).map(|_| table.take(Instant(5)).unwrap()).collect();
        assert_eq!(first, [3 << 12 | 4094, 3 << 12 | 4095, 3 << 12]);
        assert!(table.is_ours(3 << 12 | 17) && !table.is_ours(4 << 12));
    }

    #[test]
    fn the_management_numbers_are_not_given_out() {
        let mut table = QpTable::default();
        table.add_block(0, 0);
        assert_eq!(table.take(Instant(0)), Some(2));
        assert_eq!(std::iter::from_fn(|| table.take(Instant(0))).count(), BLOCK - 3);
    }
}
