//! Communication IDs and transaction IDs that a stranger cannot guess.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The slot of the process that gave out `comm_id`, where slots have `slot_bits` bits.
pub const fn slot_of(comm_id: u32, slot_bits: u8) -> u32 {
    match slot_bits {
        0 => 0,
        32.. => comm_id,
        bits => comm_id >> (32 - bits),
    }
}

/// Gives out communication IDs: a slot in the upper bits and below it numbers in an order that
/// the seed decides, each once before any comes again. Their predecessors thus rest as long as
/// can be, and knowing some tells nothing of the next.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: u128,
    slot: u32,
    /// Bits below the slot.
    bits: u32,
    count: u64,
}

impl Ids {
    /// A slot of more than `slot_bits` bits is cut; `slot_bits` above 16 count as 16.
    pub(crate) fn new(seed: u128, slot: u32, slot_bits: u8) -> Self {
        let slot_bits = u32::from(slot_bits.min(16));
        let slot = slot & ((1 << slot_bits) - 1);
        Self { seed, slot, bits: 32 - slot_bits, count: 0 }
    }

    /// How many IDs there are.
    pub(crate) fn capacity(&self) -> u64 {
        1 << self.bits
    }

    /// The next ID, never 0, which in messages means none.
    pub(crate) fn next(&mut self) -> u32 {
        loop {
            let number = self.permuted((self.count % self.capacity()) as u32);
            self.count += 1;
            let id = (u64::from(self.slot) << self.bits) as u32 | number;
            if id != 0 {
                return id;
            }
        }
    }

    /// The transaction ID of what `comm_id` asks for. Half of it is the ID itself, for who reads a
    /// trace; the other half an answer must know.
    pub(crate) fn tid(&self, comm_id: u32) -> u64 {
        self.random(0xffff, u64::from(comm_id)) << 32 | u64::from(comm_id)
    }

    /// An ID of this slot and a transaction ID that follow from `epoch` and `bytes` by the seed.
    pub(crate) fn secret(&self, epoch: u64, bytes: &[u8]) -> (u32, u64) {
        let secret = |purpose: u64| {
            let mut hasher = DefaultHasher::new();
            (self.seed, purpose, epoch, bytes).hash(&mut hasher);
            hasher.finish()
        };
        let number = secret(0x1_0000) & (self.capacity() - 1);
        ((u64::from(self.slot) << self.bits | number) as u32, secret(0x1_0001))
    }

    /// A permutation of the numbers below the capacity: a Feistel network over an even number of
    /// bits, repeated until the result is in range, which takes two turns at the most on average.
    fn permuted(&self, number: u32) -> u32 {
        let half = self.bits.div_ceil(2);
        let mask = (1 << half) - 1;
        let mut value = u64::from(number);
        loop {
            let (mut left, mut right) = (value >> half, value & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ self.random(round, right) & mask);
            }
            value = left << half | right;
            if value < self.capacity() {
                return value as u32;
            }
        }
    }

    fn random(&self, purpose: u64, value: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, purpose, value).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_id_comes_once_and_carries_its_slot() {
        for slot_bits in [15, 16] {
            let mut ids = Ids::new(7, 0x1234, slot_bits);
            let count = ids.capacity();
            let seen: HashSet<_> = (0..count).map(|_| ids.next()).collect();
            assert_eq!(seen.len() as u64, count);
            assert!(seen.iter().all(|&id| slot_of(id, slot_bits) == 0x1234));
        }
    }

    #[test]
    fn zero_is_never_given_out() {
        let mut ids = Ids::new(1, 0, 16);
        let seen: HashSet<_> = (0..ids.capacity()).map(|_| ids.next()).collect();
        assert!(!seen.contains(&0));
        assert_eq!(seen.len() as u64, ids.capacity() - 1);
    }

    #[test]
    fn a_seed_decides() {
        let first = |seed| {
            let mut ids = Ids::new(seed, 5, 10);
            let id = ids.next();
            (id, ids.tid(id))
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert_eq!(slot_of(first(1).0, 10), 5);
        assert_eq!(slot_of(u32::MAX, 0), 0);
    }
}
