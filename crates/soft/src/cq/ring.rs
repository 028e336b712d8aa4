//! The entries of a completion queue: a ring that grows as it fills, in memory of the library, or has its whole size from the
//! start, in memory that was given.

use ironverbs_slots::{Block, Slots, bytes_for};
use ironverbs_transport::verbs::{Wc, WcOpcode};

use super::{Entry, Lent, Stamp};

/// Slots at first.
const FIRST: usize = 64;

impl Entry {
    /// What stands in a slot that no completion has had yet.
    const NONE: Entry =
        Entry { wc: Wc::new(0, WcOpcode::Send, 0), reads: None, stamp: Stamp { raw: 0, wall: 0 } };
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// A power of two, or none yet.
    slots: Slots<Entry>,
    head: usize,
    len: usize,
}

impl Ring {
    /// For `cqe` entries, in `block`, which is of [`bytes`](Ring::bytes) bytes.
    pub(super) fn new(cqe: u32, mut block: Block) -> Ring {
        Ring { slots: block.slots(size_for(cqe), Entry::NONE), head: 0, len: 0 }
    }

    /// The memory of one that never grows.
    pub(super) fn bytes(cqe: u32) -> usize {
        bytes_for::<Entry>(size_for(cqe))
    }

    /// Whether its memory was given.
    pub(super) fn is_given(&self) -> bool {
        self.slots.is_given()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Entry> {
        if index >= self.len {
            return None;
        }
        self.slots.get(self.slot(index))
    }

    #[inline]
    pub(super) fn push_back(&mut self, entry: Entry) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = self.slot(self.len);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = entry;
            self.len += 1;
        }
    }

    /// Takes out the first.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<Entry> {
        let entry = *self.get(0)?;
        self.forget(1);
        Some(entry)
    }

    /// Drops the first `n`, or all.
    #[inline]
    pub(super) fn forget(&mut self, n: usize) {
        let n = n.min(self.len);
        self.head = self.head.wrapping_add(n);
        self.len -= n;
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.len) = (0, 0);
    }

    /// Moves the first `n`, or all, behind what `into` has.
    pub(super) fn move_to(&mut self, n: usize, into: &mut Ring) {
        self.iter().take(n).for_each(|entry| into.push_back(*entry));
        self.forget(n);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        let all = std::mem::take(&mut self.len);
        for index in 0..all {
            let entry = self.slots.get(self.slot(index)).copied();
            if let Some(entry) = entry.filter(&keep) {
                self.push_back(entry);
            }
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        let size = self.slots.len().max(1);
        let (before, from) = self.slots.split_at(self.head & (size - 1));
        from.iter().chain(before).take(self.len)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        let size = self.slots.len().max(1);
        let (first, len) = (self.head & (size - 1), self.len);
        let (before, from) = self.slots.split_at_mut(first);
        from.iter_mut().chain(before).take(len)
    }

    fn slot(&self, index: usize) -> usize {
        self.head.wrapping_add(index) & self.slots.len().wrapping_sub(1)
    }

    /// Doubles it, in memory of the library.
    #[cold]
    fn grow(&mut self) {
        let mut slots = Slots::new();
        self.iter().for_each(|entry| slots.push(*entry));
        slots.resize((2 * self.slots.len()).max(FIRST), Entry::NONE);
        (self.slots, self.head) = (slots, 0);
    }
}

fn size_for(cqe: u32) -> usize {
    // What is lent comes back behind as much as there may be.
    (cqe as usize + Lent::MOST).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn entry(wr_id: u64) -> Entry {
        Entry { wc: Wc { wr_id, qpn: wr_id as u32 % 3, ..Entry::NONE.wc }, ..Entry::NONE }
    }

    fn ids(ring: &Ring) -> Vec<u64> {
        (0..ring.len()).map(|index| ring.get(index).unwrap().wc.wr_id).collect()
    }

    /// Against the standard library's queue.
    #[test]
    fn it_is_a_queue() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let (mut ring, mut model) = (Ring::default(), VecDeque::new());
            let (mut other, mut other_model) = (Ring::default(), VecDeque::new());
            for n in 0..400 {
                match random.u8(0..10) {
                    0..5 => {
                        ring.push_back(entry(n));
                        model.push_back(n);
                    }
                    5..8 => {
                        assert_eq!(ring.pop_front().map(|e| e.wc.wr_id), model.pop_front());
                    }
                    8 => {
                        let some = random.usize(0..5);
                        ring.move_to(some, &mut other);
                        other_model.extend(model.drain(..some.min(model.len())));
                    }
                    _ => {
                        let gone = random.u32(0..3);
                        ring.retain(|e| e.wc.qpn != gone);
                        model.retain(|n| *n as u32 % 3 != gone);
                    }
                }
                assert_eq!(ids(&ring), *model.make_contiguous());
            }
            ring.iter_mut().for_each(|e| e.wc.wr_id += 1);
            model.iter_mut().for_each(|n| *n += 1);
            assert_eq!(ids(&ring), *model.make_contiguous());
            assert_eq!(ids(&other), *other_model.make_contiguous());
        }
    }
}
