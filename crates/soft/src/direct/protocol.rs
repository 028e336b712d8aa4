//! How an initiator touches what its owner may take away at any moment: over any memory, that of the
//! processes or a model checker's.
//!
//! A line of the table has a sequence number, odd while it is being written, and a slot names the two lines
//! that an operation depends on. The initiator reads the lines, names them in a slot that is free ([`enter`]), looks at
//! their numbers again, and only then touches memory; [`leave`] ends it. The owner changes a line
//! ([`change`]) and then waits until no slot names it ([`value`]): either the initiator sees the change, or
//! the owner sees the slot.
//!
//! The owner waits only for slots that it has said to watch; before that, and after it has said that it does
//! no more, nobody enters.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The words of one operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Word {
    /// What is being touched; 0: nothing. Written by the initiator.
    Slot,
    /// 1: the owner watches the slots. Written by the owner.
    Watched,
    /// The sequence number of the region's line. Written by the owner.
    Region,
    /// The sequence number of the queue pair's line. Written by the owner.
    Qp,
}

/// Memory with the words of one operation.
pub trait Memory {
    /// Loads a word.
    fn load(&self, word: Word, order: Ordering) -> u64;
    /// Stores a word.
    fn store(&self, word: Word, value: u64, order: Ordering);
    /// A fence of this order.
    fn fence(&self, order: Ordering);
    /// Stores into [`Word::Slot`] if that is 0, with a sequentially consistent fence behind it. False: it is not, as
    /// another thread of the initiator has the slot, or this is not the initiator's side.
    fn claim(&self, value: u64) -> bool {
        let _ = value;
        false
    }
}

/// What became of [`enter`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry {
    /// The lines do what they said until [`leave`].
    Entered,
    /// Something has changed: nothing may be touched.
    Changed,
    /// The slot is taken: with another it may be tried again.
    Taken,
}

/// The sequence number of a line, to be read before what it says; None: it is being written.
#[inline]
pub fn begin<M: Memory>(memory: &M, line: Word) -> Option<u64> {
    // SYNC POINT: with the last store in `change`: what the line says is as of this number, or newer.
    let number = memory.load(line, Acquire);
    number.is_multiple_of(2).then_some(number)
}

/// Says in the slot that what `name` stands for is about to be touched, if the lines still have the numbers given.
#[inline]
pub fn enter<M: Memory>(memory: &M, name: u64, region: u64, qp: u64) -> Entry {
    // SYNC POINT: with the fence in `change`: either we see its number, or the owner sees our slot. It also
    // keeps the loads of what the lines say before the loads here.
    if !memory.claim(name) {
        return Entry::Taken;
    }
    let same = memory.load(Word::Watched, Relaxed) == 1
        && memory.load(Word::Region, Relaxed) == region
        && memory.load(Word::Qp, Relaxed) == qp;
    if !same {
        leave(memory);
        return Entry::Changed;
    }
    Entry::Entered
}

/// Ends what [`enter`] began, and gives the slot to whoever wants it next.
#[inline]
pub fn leave<M: Memory>(memory: &M) {
    // SYNC POINT: with the load in `value`: the memory is no longer touched.
    memory.store(Word::Slot, 0, Release);
}

/// Changes a line by `write`, which stores what it says. Only the owner does so, one thread at a time. Afterwards
/// nobody enters by what it said before; who has entered is found by [`value`].
pub fn change<M: Memory>(memory: &M, line: Word, write: impl FnOnce()) {
    let number = memory.load(line, Relaxed);
    memory.store(line, number.wrapping_add(1), Relaxed);
    // Who sees something of what is written sees that it is being written.
    memory.fence(Release);
    write();
    // SYNC POINT: with the load in `begin`.
    memory.store(line, number.wrapping_add(2), Release);
    // SYNC POINT: with the fence in `enter`.
    memory.fence(Ordering::SeqCst);
}

/// Lets nobody enter any more; who has entered is found by [`value`].
pub fn revoke<M: Memory>(memory: &M) {
    memory.store(Word::Watched, 0, Relaxed);
    // SYNC POINT: with the fence in `enter`.
    memory.fence(Ordering::SeqCst);
}

/// What the slot names; 0: nothing.
#[inline]
pub fn value<M: Memory>(memory: &M) -> u64 {
    // SYNC POINT: with the store in `leave`.
    memory.load(Word::Slot, Acquire)
}
