//! What requests bring back.

use std::ops::Range;

use ironverbs_soft::{Wc, WcFlags, WcOpcode, WcStatus, WrOpcode};

use crate::buffer::Held;
use crate::error::{CompletionError, Why};
use crate::queue::{Asked, Outcome};
use crate::{RemoteRegion, Slice};

/// A message that arrived.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes; for a datagram with the 40 bytes before its data, for a WRITE with immediate data those written.
    pub len: usize,
    /// Which operation of the peer it was.
    pub kind: ReceivedKind,
    /// Immediate data: four bytes as the peer gave them, without byte order.
    pub immediate: Option<[u8; 4]>,
    /// The rkey of this side that the peer invalidated.
    pub invalidated_rkey: Option<u32>,
    /// Number of the queue pair it arrived on: tells them apart behind a shared receive queue.
    pub qpn: u32,
    /// Number of the sender's queue pair.
    pub src_qpn: u32,
    /// 40 bytes of header precede the data (UD).
    pub grh: bool,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

/// The operation that consumed a receive.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReceivedKind {
    /// SEND: the data is in the receive's buffers.
    Send,
    /// WRITE with immediate data: the data is where the peer wrote it.
    WriteWithImm,
}

/// Bytes of header before the data of a datagram.
pub const GRH_LEN: usize = 40;

impl Received {
    /// Where in the receive's buffers the data is.
    pub fn payload(&self) -> Range<usize> {
        match self.kind {
            ReceivedKind::WriteWithImm => 0..0,
            ReceivedKind::Send if self.grh => GRH_LEN.min(self.len)..self.len,
            ReceivedKind::Send => 0..self.len,
        }
    }

    /// A copy of the data.
    pub fn data(&self, slice: &Slice) -> Vec<u8> {
        let mut bytes = vec![0; self.payload().len()];
        // The data lies within the buffer that it was received into; of another, as much as there is.
        match slice.read_at(self.payload().start, &mut bytes) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }
}

/// What an operation brings back besides its buffers.
pub trait Kind: sealed::Kind {}

/// What an operation of kind `K` brings: `()`, the value before, what a window is bound to, or a message.
pub type Value<K> = <K as sealed::Kind>::Value;

/// SEND and WRITE bring nothing, READ only the data.
#[derive(Copy, Clone, Debug)]
pub struct Done;

/// An atomic brings the value before.
#[derive(Copy, Clone, Debug)]
pub struct Before;

/// Binding a window brings what a peer needs to reach what it is bound to.
#[derive(Copy, Clone, Debug)]
pub struct Bound;

/// A receive brings a message.
#[derive(Copy, Clone, Debug)]
pub struct Message;

pub(crate) mod sealed {
    use ironverbs_soft::Wc;

    use super::Held;

    pub trait Kind {
        /// What it brings.
        type Value;

        /// Makes it of a completion; None for a success told of by a later completion.
        fn value(wc: Option<&Wc>, held: &Held) -> Self::Value;
    }
}

impl Kind for Done {}
impl sealed::Kind for Done {
    type Value = ();

    fn value(_: Option<&Wc>, _: &Held) {}
}

impl Kind for Before {}
impl sealed::Kind for Before {
    type Value = u64;

    fn value(_: Option<&Wc>, held: &Held) -> u64 {
        let mut bytes = [0; 8];
        if let [slice] = held.slices() {
            // Checked when the request was posted.
            let _ = slice.read_at(0, &mut bytes);
        }
        u64::from_ne_bytes(bytes)
    }
}

impl Kind for Bound {}
impl sealed::Kind for Bound {
    type Value = RemoteRegion;

    fn value(_: Option<&Wc>, held: &Held) -> RemoteRegion {
        match held {
            Held::Window(window) => window.asked(),
            // A request of this kind holds a window.
            _ => RemoteRegion { addr: 0, rkey: 0, len: 0 },
        }
    }
}

impl Kind for Message {}
impl sealed::Kind for Message {
    type Value = Received;

    fn value(wc: Option<&Wc>, _: &Held) -> Received {
        // Receives are never told of by a later completion.
        let flags = wc.map_or(WcFlags::empty(), |wc| wc.flags);
        let write = wc.is_some_and(|wc| wc.opcode == WcOpcode::RecvWriteWithImm);
        Received {
            len: wc.map_or(0, |wc| wc.byte_len as usize),
            kind: if write { ReceivedKind::WriteWithImm } else { ReceivedKind::Send },
            immediate: wc.filter(|_| flags.contains(WcFlags::WITH_IMM)).map(|wc| wc.imm),
            invalidated_rkey: wc
                .filter(|_| flags.contains(WcFlags::WITH_INV))
                .map(|wc| wc.invalidated_rkey),
            qpn: wc.map_or(0, |wc| wc.qpn),
            src_qpn: wc.map_or(0, |wc| wc.src_qpn),
            grh: flags.contains(WcFlags::GRH),
            solicited: wc.is_some_and(|wc| wc.solicited),
        }
    }
}

/// The result of a request, from how it ended.
pub(crate) fn result<K: sealed::Kind>(
    outcome: &Outcome,
    held: &Held,
    asked: &Asked,
) -> Result<K::Value, CompletionError> {
    match outcome {
        Outcome::Implied => Ok(K::value(None, held)),
        Outcome::Completed(wc) if wc.status == WcStatus::Success => Ok(K::value(Some(wc), held)),
        Outcome::Completed(wc) => Err(failure(wc, held, asked)),
        Outcome::Lost(error) => Err(*error),
    }
}

fn failure(wc: &Wc, held: &Held, asked: &Asked) -> CompletionError {
    let why = Why(wc.vendor_err);
    let (opcode, len) = (asked.opcode.unwrap_or(WrOpcode::Send), asked.len);
    match wc.status {
        WcStatus::WrFlushErr => CompletionError::Flushed,
        WcStatus::LocLenErr => CompletionError::LocalLength { len: held.len(), why },
        WcStatus::LocProtErr => CompletionError::LocalProtection { why },
        WcStatus::LocQpOpErr => CompletionError::LocalOperation { why },
        WcStatus::RemInvReqErr => CompletionError::RemoteInvalidRequest { opcode, len, why },
        WcStatus::RemAccessErr => {
            let asked = RemoteRegion { addr: asked.remote_addr, rkey: asked.rkey, len };
            CompletionError::RemoteAccess { opcode, asked, why }
        }
        WcStatus::RemOpErr => CompletionError::RemoteOperation { opcode, why },
        WcStatus::RetryExcErr => CompletionError::RetryExceeded { why },
        WcStatus::RnrRetryExcErr => CompletionError::RnrRetryExceeded { why },
        WcStatus::MwBindErr => CompletionError::Binding { why },
        WcStatus::BadRespErr => CompletionError::BadResponse { why },
        status => CompletionError::Other { status, why },
    }
}
