//! READs and atomics that a responder keeps, so that it can answer them again (IBA 9.7.4.1).

use std::collections::VecDeque;

use super::seq::Seq;

/// The last READs and atomics, oldest first, no more than were agreed.
#[derive(Debug, Default)]
pub(super) struct Resources {
    kept: VecDeque<Resource>,
    limit: usize,
    /// How many of them have something to send.
    pending: usize,
}

/// A READ or atomic.
#[derive(Copy, Clone, Debug)]
pub(super) struct Resource {
    pub(super) answer: Answer,
    /// PSN of the request, and how many its responses take.
    pub(super) first: Seq,
    packets: u32,
    /// The SRQ it named, on XRC.
    pub(super) srqn: u32,
    /// MSN at its arrival.
    pub(super) msn: u32,
    /// What is being sent: from `start` on, `next` is next, `end` not any more.
    pub(super) start: Seq,
    pub(super) next: Seq,
    pub(super) end: Seq,
    /// Bytes of the message up to which it is sent.
    pub(super) end_offset: u64,
    /// All of it has been sent once.
    answered: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Read {
        va: u64,
        rkey: u32,
        len: u32,
    },
    Atomic {
        value: u64,
    },
    /// Of an atomic WRITE.
    Written,
}

/// What a repeated request asks for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Read { va: u64, rkey: u32, len: u32, packets: u32 },
    Atomic,
    Written,
}

impl Resource {
    fn is_pending(&self) -> bool {
        self.next < self.end
    }

    /// Whether all of it has been sent once.
    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    /// Whether the packet that is next is the last of its first answer.
    pub(super) fn ends(&self) -> bool {
        !self.answered && self.next.plus(1) == self.first.plus(self.packets)
    }

    fn contains(&self, seq: Seq) -> bool {
        self.first <= seq && seq < self.first.plus(self.packets)
    }

    /// The bytes before which a repetition from `seq` ends; None if it asks for something else
    /// than, or more than, the original did.
    fn end_of(&self, seq: Seq, again: Again, mtu: u64) -> Option<u64> {
        let offset = u64::from(seq.since(self.first)) * mtu;
        match (self.answer, again) {
            (Answer::Atomic { .. }, Again::Atomic) | (Answer::Written, Again::Written) => Some(0),
            (
                Answer::Read { va, rkey, len },
                Again::Read { va: from, rkey: key, len: part, .. },
            ) => {
                let end = offset + u64::from(part);
                let same = from == va.wrapping_add(offset) && (key == rkey || len == 0);
                (same && end <= len.into()).then_some(end)
            }
            _ => None,
        }
    }
}

impl Resources {
    pub(super) fn new(limit: u8) -> Resources {
        Resources { limit: limit.into(), ..Resources::default() }
    }

    /// Changes how many are kept.
    pub(super) fn set_limit(&mut self, limit: u8) {
        self.limit = limit.into();
    }

    /// Makes room for one more. False if the peer has more outstanding than agreed (IBA 9.7.4.1).
    /// What has been answered may go: its requester asks for no more before it has all answers to
    /// that.
    pub(super) fn make_room(&mut self) -> bool {
        while self.kept.len() >= self.limit {
            match self.kept.front() {
                Some(oldest) if oldest.answered => {
                    self.pending -= usize::from(oldest.is_pending());
                    self.kept.pop_front();
                }
                _ => return false,
            }
        }
        true
    }

    /// Keeps a new request, to be answered with `packets` packets from `first` on.
    pub(super) fn keep(&mut self, answer: Answer, first: Seq, packets: u32, srqn: u32, msn: u32) {
        let end_offset = match answer {
            Answer::Read { len, .. } => len.into(),
            Answer::Atomic { .. } | Answer::Written => 0,
        };
        self.pending += 1;
        self.kept.push_back(Resource {
            answer,
            first,
            packets,
            srqn,
            msn,
            start: first,
            next: first,
            end: first.plus(packets),
            end_offset,
            answered: false,
        });
    }

    /// Whether the last request before `seq` is one of them.
    pub(super) fn end_at(&self, seq: Seq) -> bool {
        self.kept.back().is_some_and(|last| last.first.plus(last.packets) == seq)
    }

    /// Whether there is something to send.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// The oldest that has something to send.
    pub(super) fn pending(&self) -> Option<Resource> {
        if self.pending == 0 {
            return None;
        }
        self.kept.iter().find(|resource| resource.is_pending()).copied()
    }

    /// The next packet of the pending one has been sent.
    pub(super) fn sent(&mut self) {
        if let Some(resource) = self.kept.iter_mut().find(|resource| resource.is_pending()) {
            resource.next = resource.next.plus(1);
            if !resource.is_pending() {
                resource.answered = true;
                self.pending -= 1;
            }
        }
    }

    /// The pending one cannot be answered: it and what came after are not.
    pub(super) fn abandon(&mut self) {
        if let Some(at) = self.kept.iter().position(Resource::is_pending) {
            self.kept.truncate(at);
        }
        self.pending = 0;
    }

    /// Answers a READ, or the part of it that is asked for, or an atomic again (IBA 9.7.5.1).
    /// False if it is not one that is kept.
    pub(super) fn again(&mut self, seq: Seq, again: Again, mtu: u64) -> bool {
        let Some(resource) = self.kept.iter_mut().find(|kept| kept.contains(seq)) else {
            return false;
        };
        let Some(end_offset) = resource.end_of(seq, again, mtu) else { return false };
        if resource.answered {
            let packets = match again {
                Again::Read { packets, .. } => packets,
                Again::Atomic | Again::Written => 1,
            };
            self.pending += usize::from(!resource.is_pending());
            resource.start = seq;
            resource.next = seq;
            resource.end = seq.plus(packets);
            resource.end_offset = end_offset;
        } else if seq < resource.next {
            // Not through with it yet: from there on once more, to the end.
            resource.start = seq;
            resource.next = seq;
        }
        true
    }
}
