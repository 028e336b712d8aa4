//! Payloads by reference: the sender names its memory, the receiving device fetches it.
//!
//! A packet by reference stands for all the packets that its payload would make by value, and has the PSN of the first, so
//! that either end can go back to any of them. Whoever cannot fetch a payload answers as to a gap in the sequence; as
//! nothing is lost where payloads go by reference, the requester takes that for the wish to have it by value.

use super::completion::local;
use super::message::Refusal;
use super::send_queue::{Data, Progress};
use super::seq::Seq;
use super::{Qp, emit, sg};
use crate::device::{Device, PIECES, Piece, PullError, Sink};
use crate::verbs::{Fault, Sge, WcStatus};

/// Wishes for payloads by value after which all go so: the peer cannot fetch them, or that is slow.
const REFUSALS: u8 = 4;

/// The payload of a packet.
#[derive(Copy, Clone, Debug)]
pub(super) enum Body<'a> {
    Here(&'a [u8]),
    /// So many bytes that the device can fetch.
    Elsewhere(u32),
}

impl Body<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Body::Here(bytes) => bytes.len(),
            Body::Elsewhere(len) => len as usize,
        }
    }

    /// Puts it into the message at `offset`.
    pub(super) fn scatter<D: Device + ?Sized>(
        self,
        dev: &mut D,
        sges: &[Sge],
        offset: u64,
    ) -> Result<(), Refusal> {
        let len = match self {
            Body::Here(bytes) => {
                return sg::scatter(dev, sges, offset, bytes).map_err(Refusal::Local);
            }
            Body::Elsewhere(len) => len as usize,
        };
        let mut done = 0;
        for (sge, at, len) in sg::pieces(sges, offset, len) {
            dev.pull(done, sge, at, len as u32).map_err(|error| match error {
                PullError::Fault(fault) => Refusal::Local(fault),
                PullError::Elsewhere => Refusal::Elsewhere,
            })?;
            done += len as u64;
        }
        Ok(())
    }

    /// Writes it for an RDMA WRITE.
    pub(super) fn write<D: Device + ?Sized>(
        self,
        dev: &mut D,
        rkey: u32,
        va: u64,
    ) -> Result<(), Refusal> {
        match self {
            Body::Here([]) => Ok(()),
            Body::Here(bytes) => dev.write_remote(rkey, va, bytes).map_err(Refusal::Access),
            Body::Elsewhere(len) => dev.pull_remote(rkey, va, len).map_err(|error| match error {
                PullError::Fault(fault) => Refusal::Access(fault),
                PullError::Elsewhere => Refusal::Elsewhere,
            }),
        }
    }
}

/// What the requester has named.
#[derive(Debug, Default)]
pub(super) struct References {
    /// The PSN after the last one that was named, unless all that was named is taken back.
    named: Option<Seq>,
    /// Before this PSN payloads go by value.
    by_value: Option<Seq>,
    refusals: u8,
}

impl Qp {
    /// Takes back what was named and is not acknowledged. To be called before the program learns that its memory is its
    /// own again; the end of the queue pair is one such moment.
    pub fn revoke_references<D: Device + ?Sized>(&mut self, dev: &mut D) {
        let una = self.requester.una;
        if self.requester.references.named.take().is_some_and(|end| una < end) {
            dev.revoke();
        }
    }

    /// How many packets by value a packet stands for.
    pub(super) fn extent_of(&self, body: Body<'_>) -> u32 {
        match body {
            Body::Here(_) => 1,
            Body::Elsewhere(len) => self.packets(len.into()),
        }
    }

    /// How many packets of the request from `at` on can go as one by reference; None: they go by value.
    pub(super) fn referable<S: Sink + ?Sized>(&self, index: u64, at: Seq, sink: &S) -> Option<u32> {
        let limits = sink.by_reference()?;
        let wqe = self.sends.wqe(index);
        let references = &self.requester.references;
        if wqe.len < limits.least
            || wqe.is_answered()
            || !self.config.qp_type.is_reliable()
            || references.refusals >= REFUSALS
            || references.by_value.is_some_and(|until| at < until)
        {
            return None;
        }
        let (Progress::Started { first, packets, .. }, Data::Sges(sges)) =
            (wqe.progress, self.sends.data(index))
        else {
            return None;
        };
        let left = packets - at.since(first);
        let room = self.requester.window.size().saturating_sub(self.requester.in_flight());
        let most = limits.most / self.mtu.bytes() as u32;
        let count = left.min(room).min(most).max(1);
        let (offset, len) = self.range(wqe.len, at.since(first), count);
        (sg::pieces(sges, offset, len).count() <= PIECES).then_some(count)
    }

    /// False where what these packets carry can be read, but is no memory that could be named.
    pub(super) fn is_somewhere<D: Device + ?Sized>(
        &self,
        index: u64,
        at: Seq,
        count: u32,
        dev: &mut D,
    ) -> bool {
        let wqe = self.sends.wqe(index);
        let (Progress::Started { first, .. }, Data::Sges(sges)) =
            (wqe.progress, self.sends.data(index))
        else {
            return false;
        };
        let (offset, len) = self.range(wqe.len, at.since(first), count);
        locate(dev, sges, offset, len).is_ok() || sg::check(dev, sges, false).is_err()
    }

    /// Which bytes of a message of `len` the packets from `place` on carry.
    fn range(&self, len: u64, place: u32, count: u32) -> (u64, usize) {
        let mtu = self.mtu.bytes() as u64;
        let offset = u64::from(place) * mtu;
        (offset, len.saturating_sub(offset).min(u64::from(count) * mtu) as usize)
    }

    /// Sends `count` packets of a request that has begun as one, by reference. False if the sink is full, or the
    /// request's memory is gone, in which case the request fails.
    pub(super) fn emit_reference<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        index: u64,
        at: Seq,
        count: u32,
        ack_req: bool,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        let wqe = self.sends.wqe(index);
        let Progress::Started { first, packets, .. } = wqe.progress else { return false };
        let Data::Sges(sges) = self.sends.data(index) else { return false };
        let place = at.since(first);
        let (offset, len) = self.range(wqe.len, place, count);
        let located = locate(dev, sges, offset, len);
        let (pieces, used) = match located {
            Ok(located) => located,
            Err(fault) => {
                // The region went away after the request had begun.
                self.fail_request(index, WcStatus::LocProtErr, local(fault), dev);
                return false;
            }
        };
        let header = self.data_header(wqe, at, place == 0, place + count == packets, ack_req);
        let pieces = pieces.get(..used).unwrap_or_default();
        if !emit::reference(sink, &self.path, header, pieces) {
            return false;
        }
        sink.commit();
        let references = &mut self.requester.references;
        references.named = references.named.max(Some(at.plus(count)));
        self.counters.tx_packets += 1;
        self.counters.tx_references += 1;
        self.counters.tx_bytes += len as u64;
        true
    }

    /// The responder asks for what follows `seq` once more; if that was named, by value.
    pub(super) fn references_refused(&mut self, seq: Seq) {
        let requester = &mut self.requester;
        if requester.references.named.is_none_or(|end| end <= seq) {
            return;
        }
        requester.references.refusals = requester.references.refusals.saturating_add(1);
        requester.references.by_value = Some(requester.next);
        // Whatever was gone back for before, this time it goes another way.
        requester.rewound = None;
    }
}

/// The pieces of this process's memory that are `len` bytes of the message from `offset` on, and how many.
fn locate<D: Device + ?Sized>(
    dev: &mut D,
    sges: &[Sge],
    offset: u64,
    len: usize,
) -> Result<([Piece; PIECES], usize), Fault> {
    let (mut pieces, mut used) = ([Piece::default(); PIECES], 0);
    for ((sge, at, len), piece) in sg::pieces(sges, offset, len).zip(&mut pieces) {
        *piece = dev.locate(sge, at, len as u32)?;
        used += 1;
    }
    Ok((pieces, used))
}
