//! Send requests from posting to completion.

use ironverbs_slots::{Block, Slots, bytes_for};

use super::error::PostError;
use super::seq::Seq;
use crate::verbs::{QpCap, SendFlags, SendWr, Sge, VendorErr, WcStatus, WrOpcode};

/// Data of a send request at posting.
pub enum Payload<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Data to be copied now.
    Inline {
        /// Bytes.
        len: usize,
        /// Fills a buffer of `len` bytes. Called once, if the request is taken.
        copy: &'a mut dyn FnMut(&mut [u8]),
    },
}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Payload::Sges(sges) => f.debug_tuple("Sges").field(sges).finish(),
            Payload::Inline { len, .. } => f.debug_struct("Inline").field("len", len).finish(),
        }
    }
}

/// The length of requests that send nothing: no message is as long.
pub(super) const LOCAL: u64 = u64::MAX;

/// Where the data of a request in the queue is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stored {
    Sges(u32),
    Inline(u32),
}

/// The data of a request in the queue.
#[derive(Copy, Clone, Debug)]
pub(super) enum Data<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
}

/// How far a request has come.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not begun; it has no PSN yet.
    Posted,
    /// It has its PSNs: `packets` from `first` on. Of a READ or an atomic `answered` responses
    /// have arrived.
    Started { first: Seq, packets: u32, answered: u32 },
    /// Cannot be sent, for a local reason; fails when its turn to complete comes.
    Failed(WcStatus, VendorErr),
}

/// A send request in the queue.
#[derive(Copy, Clone, Debug)]
pub(super) struct SendWqe {
    pub(super) wr: SendWr,
    /// Bytes of the message.
    pub(super) len: u64,
    pub(super) progress: Progress,
    stored: Stored,
}

impl SendWqe {
    /// What stands in a place that no request has had yet.
    const NONE: SendWqe = SendWqe {
        wr: SendWr::new(0, WrOpcode::Send, SendFlags::empty()),
        len: 0,
        progress: Progress::Posted,
        stored: Stored::Sges(0),
    };

    /// Whether it does nothing at the responder but read and write memory.
    pub(super) fn is_one_sided(&self) -> bool {
        self.wr.opcode == WrOpcode::Write
            || (self.is_answered() && self.wr.opcode != WrOpcode::AtomicWrite)
    }

    /// Whether it ends with the responder's answer, not with its acknowledgement.
    pub(super) fn is_answered(&self) -> bool {
        self.fetches() || self.wr.opcode == WrOpcode::AtomicWrite
    }

    /// Whether the answer brings data.
    pub(super) fn fetches(&self) -> bool {
        matches!(self.wr.opcode, WrOpcode::Read | WrOpcode::CompareSwap | WrOpcode::FetchAdd)
    }
}

/// A ring whose slots are made as they are first used. Requests are numbered from the beginning;
/// `head..tail` are in the queue.
#[derive(Debug)]
pub(super) struct SendQueue {
    cap: QpCap,
    /// Slots, a power of two.
    size: usize,
    slots: Slots<SendWqe>,
    /// `cap.max_send_sge` elements per slot.
    sges: Slots<Sge>,
    /// `cap.max_inline_data` bytes per slot, made with the first inline request.
    inline: Slots<u8>,
    head: u64,
    tail: u64,
}

impl SendQueue {
    /// In `block`, which is of [`bytes`](SendQueue::bytes) bytes.
    pub(super) fn new(cap: &QpCap, mut block: Block) -> SendQueue {
        let (size, sges, inline) = Self::sizes(cap);
        SendQueue {
            cap: *cap,
            size,
            slots: block.slots(size, SendWqe::NONE),
            sges: block.slots(sges, Sge::default()),
            inline: block.slots(inline, 0),
            head: 0,
            tail: 0,
        }
    }

    /// The memory of a queue that is full. None is needed for one that takes no requests.
    pub(super) fn bytes(cap: &QpCap) -> usize {
        let (size, sges, inline) = Self::sizes(cap);
        match cap.max_send_wr {
            0 => 0,
            _ => bytes_for::<SendWqe>(size) + bytes_for::<Sge>(sges) + bytes_for::<u8>(inline),
        }
    }

    /// Slots, a power of two, and the elements and bytes that they may have.
    fn sizes(cap: &QpCap) -> (usize, usize, usize) {
        let size = (cap.max_send_wr as usize).next_power_of_two();
        (size, size * cap.max_send_sge as usize, size * cap.max_inline_data as usize)
    }

    /// Whether its memory was given.
    pub(super) fn is_given(&self) -> bool {
        self.slots.is_given()
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(super) fn post(&mut self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        let max = self.cap.max_send_wr;
        if self.tail - self.head >= u64::from(max) {
            return Err(PostError::QueueFull { max });
        }
        let (stored, len) = match &data {
            Payload::Sges(sges) => {
                let max = self.cap.max_send_sge;
                if sges.len() > max as usize {
                    return Err(PostError::TooManySges { asked: sges.len(), max });
                }
                (Stored::Sges(sges.len() as u32), super::sg::length(sges))
            }
            Payload::Inline { len, .. } => {
                let max = self.cap.max_inline_data;
                if *len > max as usize {
                    return Err(PostError::InlineTooLong { asked: *len, max });
                }
                (Stored::Inline(*len as u32), *len as u64)
            }
        };
        let at = self.slot(self.tail);
        let mut wqe = SendWqe { wr: *wr, len, progress: Progress::Posted, stored };
        if wr.opcode.is_local() {
            // So marked it is begun by nobody who sends, and waits for those before it, at no cost to others.
            wqe.len = LOCAL;
            wqe.wr.flags.insert(SendFlags::FENCE);
        }
        if at == self.slots.len() {
            self.slots.push(wqe);
            self.sges.resize((at + 1) * self.cap.max_send_sge as usize, Sge::default());
        } else {
            self.slots[at] = wqe;
        }
        match data {
            Payload::Sges(sges) => {
                let first = at * self.cap.max_send_sge as usize;
                self.sges[first..first + sges.len()].copy_from_slice(sges);
            }
            Payload::Inline { len, copy } => {
                let room = self.cap.max_inline_data as usize;
                let all = self.size * room;
                if self.inline.len() < all {
                    self.inline.resize(all, 0);
                }
                copy(&mut self.inline[at * room..at * room + len]);
            }
        }
        self.tail += 1;
        Ok(())
    }

    /// The request of this number. It must be in the queue.
    pub(super) fn wqe(&self, index: u64) -> &SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        &self.slots[self.slot(index)]
    }

    /// The request of this number. It must be in the queue.
    pub(super) fn wqe_mut(&mut self, index: u64) -> &mut SendWqe {
        debug_assert!((self.head..self.tail).contains(&index));
        let at = self.slot(index);
        &mut self.slots[at]
    }

    /// The data of a request in the queue.
    pub(super) fn data(&self, index: u64) -> Data<'_> {
        let at = self.slot(index);
        match self.slots[at].stored {
            Stored::Sges(count) => {
                let first = at * self.cap.max_send_sge as usize;
                Data::Sges(&self.sges[first..first + count as usize])
            }
            Stored::Inline(len) => {
                let first = at * self.cap.max_inline_data as usize;
                Data::Inline(&self.inline[first..first + len as usize])
            }
        }
    }

    /// Removes the oldest request.
    pub(super) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = (!self.is_empty()).then(|| *self.wqe(self.head))?;
        self.head += 1;
        Some(wqe)
    }

    /// Forgets everything; requests are numbered from the start again, as a new requester does.
    pub(super) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Requests that can be posted now.
    pub(super) fn room(&self) -> usize {
        self.cap.max_send_wr as usize - (self.tail - self.head) as usize
    }

    fn slot(&self, index: u64) -> usize {
        index as usize & (self.size - 1)
    }
}
