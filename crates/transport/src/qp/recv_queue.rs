//! Receive requests: the QP's own queue, or what it took from a shared one.

use ironverbs_slots::{Block, Slots, bytes_for};

use super::error::PostError;
use crate::device::{Device, RecvWqe};
use crate::verbs::{QpCap, Sge};

/// Where receive requests come from.
#[derive(Debug)]
pub(super) enum RecvQueue {
    /// The queue of the QP.
    Own(Ring),
    /// A shared receive queue, on XRC the one that the message names. `wqe` is reused from one message to the next; it is a request in
    /// hand only while `held`.
    Shared { wqe: RecvWqe, held: bool },
}

impl RecvQueue {
    /// A queue of its own is in `block`, which is of [`bytes`](RecvQueue::bytes) bytes.
    pub(super) fn new(cap: &QpCap, shared: bool, mut block: Block) -> RecvQueue {
        if shared {
            return RecvQueue::Shared { wqe: RecvWqe::default(), held: false };
        }
        let size = (cap.max_recv_wr as usize).next_power_of_two();
        RecvQueue::Own(Ring {
            max: cap.max_recv_wr,
            max_sge: cap.max_recv_sge,
            size,
            slots: block.slots(size, Slot { wr_id: 0, sges: 0 }),
            sges: block.slots(size * cap.max_recv_sge as usize, Sge::default()),
            head: 0,
            tail: 0,
        })
    }

    /// The memory of a queue that is full. None is needed for one that takes no requests.
    pub(super) fn bytes(cap: &QpCap, shared: bool) -> usize {
        let size = (cap.max_recv_wr as usize).next_power_of_two();
        match shared || cap.max_recv_wr == 0 {
            true => 0,
            false => bytes_for::<Slot>(size) + bytes_for::<Sge>(size * cap.max_recv_sge as usize),
        }
    }

    /// Whether its memory was given.
    pub(super) fn is_given(&self) -> bool {
        matches!(self, RecvQueue::Own(ring) if ring.slots.is_given())
    }

    pub(super) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        match self {
            RecvQueue::Own(ring) => ring.post(wr_id, sges),
            RecvQueue::Shared { .. } => Err(PostError::SharedReceives),
        }
    }

    /// Makes sure that a request is in hand; false if there is none.
    pub(super) fn acquire<D: Device + ?Sized>(&mut self, dev: &mut D) -> bool {
        match self {
            RecvQueue::Own(ring) => ring.head != ring.tail,
            RecvQueue::Shared { wqe, held } => {
                if !*held {
                    *held = dev.srq_take(wqe);
                }
                *held
            }
        }
    }

    /// The request in hand: the oldest not finished. None if there is none.
    pub(super) fn current(&self) -> Option<(u64, &[Sge])> {
        match self {
            RecvQueue::Own(ring) => ring.front(),
            RecvQueue::Shared { wqe, held } => held.then_some((wqe.wr_id, &wqe.sges[..])),
        }
    }

    /// Finishes the request in hand and gives its identifier.
    pub(super) fn finish(&mut self) -> Option<u64> {
        let wr_id = self.current().map(|(wr_id, _)| wr_id);
        match self {
            RecvQueue::Own(ring) if wr_id.is_some() => ring.head += 1,
            RecvQueue::Own(_) => {}
            RecvQueue::Shared { held, .. } => *held = false,
        }
        wr_id
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        match self {
            RecvQueue::Own(ring) => ring.head = ring.tail,
            RecvQueue::Shared { held, .. } => *held = false,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self, RecvQueue::Shared { .. })
    }
}

/// A ring whose slots are made as they are first used.
#[derive(Debug)]
pub(super) struct Ring {
    max: u32,
    max_sge: u32,
    /// Slots, a power of two.
    size: usize,
    slots: Slots<Slot>,
    /// `max_sge` elements per slot.
    sges: Slots<Sge>,
    /// Requests finished and posted since the beginning.
    head: u64,
    tail: u64,
}

#[derive(Copy, Clone, Debug)]
struct Slot {
    wr_id: u64,
    sges: u32,
}

impl Ring {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge as usize {
            return Err(PostError::TooManySges { asked: sges.len(), max: self.max_sge });
        }
        if self.tail - self.head >= u64::from(self.max) {
            return Err(PostError::QueueFull { max: self.max });
        }
        let slot = Slot { wr_id, sges: sges.len() as u32 };
        let at = self.slot(self.tail);
        let first = at * self.max_sge as usize;
        if at == self.slots.len() {
            self.slots.push(slot);
            self.sges.resize(first + self.max_sge as usize, Sge::default());
        } else {
            self.slots[at] = slot;
        }
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.tail += 1;
        Ok(())
    }

    fn front(&self) -> Option<(u64, &[Sge])> {
        if self.head == self.tail {
            return None;
        }
        let at = self.slot(self.head);
        let slot = self.slots[at];
        let first = at * self.max_sge as usize;
        Some((slot.wr_id, &self.sges[first..first + slot.sges as usize]))
    }

    fn slot(&self, index: u64) -> usize {
        index as usize & (self.size - 1)
    }
}
