//! Why things fail, and who was at fault.

use std::fmt;

use ironverbs_soft::{Access, ConfigError, HostError, PostError, VendorErr, WcStatus, WrOpcode};
use thiserror::Error;

use crate::remote::RemoteError;
use crate::{RangeError, RemoteRegion};

/// Any failure of this crate, for programs that do not tell them apart.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is wrong; the error names file, key and value.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device cannot be set up.
    #[error(transparent)]
    Host(#[from] HostError),
    /// There is no such device.
    #[error("no device {name}; there are: {}", list(.present))]
    NoDevice {
        /// What was asked for.
        name: String,
        /// Names of the devices that are present.
        present: Vec<String>,
    },
    /// An object was refused; the error says which attribute, what was asked and what is allowed.
    #[error(transparent)]
    Object(#[from] ironverbs_soft::Error),
    /// Bytes outside a region, or held by a slice.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A peer's region or endpoint makes no sense.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A request was not posted.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A request was posted and failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// There is no connection.
    #[error(transparent)]
    Connection(#[from] crate::cm::Error),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Why a request was not posted: always the caller's doing. Nothing has changed.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The queue does not take it: its state, its depth, the length of the list, inline data.
    #[error(transparent)]
    Queue(#[from] PostError),
    /// The slice belongs to another protection domain than the queue.
    #[error("the slice of region {lkey:#x} belongs to another protection domain than the queue")]
    OtherDomain {
        /// lkey of the slice's region.
        lkey: u32,
    },
    /// Data is to be put into a region that was not made with LOCAL_WRITE.
    #[error("region {lkey:#x} may not be written: its access is {access:?}")]
    NotWritable {
        /// lkey of the slice's region.
        lkey: u32,
        /// What it was made for.
        access: Access,
    },
    /// The message is longer than a message can be.
    #[error("{asked} bytes are more than the {max} of a message")]
    TooLong {
        /// Bytes of the list.
        asked: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The request would reach beyond the remote region.
    #[error("{asked} bytes do not fit the {len} bytes of the remote region")]
    BeyondRemote {
        /// Bytes of the list.
        asked: u64,
        /// Bytes of the remote region.
        len: u64,
    },
    /// An atomic needs eight bytes for the value it brings back.
    #[error("an atomic needs a slice of 8 bytes, not {asked}")]
    AtomicBuffer {
        /// Bytes of the slice.
        asked: usize,
    },
    /// The request was made for another queue pair than the batch.
    #[error("the request was made for another queue pair than the batch")]
    OtherQueuePair,
    /// The address handle belongs to another protection domain than the queue pair.
    #[error("the address handle belongs to another protection domain than the queue pair")]
    OtherDomainAddress,
    /// The window belongs to another protection domain than the queue pair.
    #[error("the window belongs to another protection domain than the queue pair")]
    OtherDomainWindow,
    /// A window cannot be bound to the region with these rights: it needs a region that was made with MW_BIND, and has
    /// remote rights alone, and ZERO_BASED.
    #[error("region {lkey:#x} with {region:?} takes no window with {window:?}")]
    NotBindable {
        /// lkey of the region.
        lkey: u32,
        /// What it was made for.
        region: Access,
        /// Rights asked for.
        window: Access,
    },
    /// What a window is to be bound to is not in the region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A window is bound to a byte at least.
    #[error("a window is bound to a byte at least")]
    EmptyWindow,
    /// A window of type 2 is bound, and has to be invalidated before it is bound again.
    #[error("the window is bound, with the key {rkey:#x}")]
    WindowBound {
        /// Its key.
        rkey: u32,
    },
    /// There is nothing to invalidate.
    #[error("the window is bound to nothing")]
    WindowUnbound,
    /// The queue belongs to the process that this one was forked from.
    #[error("this process is a fork; the queue belongs to its parent")]
    Forked,
    /// The batch was dropped without having been submitted.
    #[error("the batch was not submitted")]
    NotSubmitted,
}

/// A request that was not posted, with its buffers.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Rejected<R> {
    /// Why.
    pub error: RequestError,
    /// The buffers, as they were.
    pub buffer: R,
}

impl<R> From<Rejected<R>> for Error {
    fn from(rejected: Rejected<R>) -> Self {
        rejected.error.into()
    }
}

/// Why a request that was posted did not succeed. The queue pair is in the error state then, unless its service is
/// unreliable.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The queue pair entered the error state before the request was carried out (WR_FLUSH_ERR).
    #[error("flushed: the queue pair is in the error state")]
    Flushed,
    /// A receive's buffers were too small for the message, or a message too long for the path (LOC_LEN_ERR).
    #[error("local length error with {len} bytes of buffers: {why}")]
    LocalLength {
        /// Bytes of the request's buffers.
        len: u64,
        /// What exactly.
        why: Why,
    },
    /// The request's own memory could not be accessed (LOC_PROT_ERR).
    #[error("local protection error: {why}")]
    LocalProtection {
        /// What exactly.
        why: Why,
    },
    /// The queue pair could not carry out the request (LOC_QP_OP_ERR).
    #[error("local operation error: {why}")]
    LocalOperation {
        /// What exactly.
        why: Why,
    },
    /// The peer does not take such a request: its receive is too small, or it does not allow the operation
    /// (REM_INV_REQ_ERR).
    #[error("{opcode:?} of {len} bytes was invalid to the peer: {why}")]
    RemoteInvalidRequest {
        /// The operation.
        opcode: WrOpcode,
        /// Its length in bytes.
        len: u64,
        /// What exactly.
        why: Why,
    },
    /// The peer refused access to its memory: key, range, domain or rights (REM_ACCESS_ERR).
    #[error(
        "the peer refused {opcode:?} of {} bytes at {:#x} with rkey {:#x}: {why}",
        .asked.len, .asked.addr, .asked.rkey
    )]
    RemoteAccess {
        /// The operation.
        opcode: WrOpcode,
        /// The memory it named.
        asked: RemoteRegion,
        /// What exactly.
        why: Why,
    },
    /// The peer failed to carry the request out (REM_OP_ERR).
    #[error("the peer failed at {opcode:?}: {why}")]
    RemoteOperation {
        /// The operation.
        opcode: WrOpcode,
        /// What exactly.
        why: Why,
    },
    /// The peer did not answer (RETRY_EXC_ERR).
    #[error("no answer from the peer: {why}")]
    RetryExceeded {
        /// What exactly.
        why: Why,
    },
    /// The peer had no receive posted, for too long (RNR_RETRY_EXC_ERR).
    #[error("the peer stayed not ready: {why}")]
    RnrRetryExceeded {
        /// What exactly.
        why: Why,
    },
    /// A window could not be bound, or a binding not be ended (MW_BIND_ERR).
    #[error("the window was not bound: {why}")]
    Binding {
        /// What exactly.
        why: Why,
    },
    /// The peer's answer did not fit the request (BAD_RESP_ERR).
    #[error("bad response: {why}")]
    BadResponse {
        /// What exactly.
        why: Why,
    },
    /// Another status.
    #[error("{status:?}: {why}")]
    Other {
        /// The status.
        status: WcStatus,
        /// What exactly.
        why: Why,
    },
    /// The queue pair was dropped or reset with the request in flight. Whether the peer has seen it is unknown.
    #[error("the queue was {how} with the request in flight")]
    Dropped {
        /// What happened to the queue.
        how: Dropped,
    },
    /// The request was in a batch and was not posted.
    #[error("not posted: {0}")]
    NotPosted(RequestError),
}

/// What became of a queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// Reset.
    Reset,
    /// Destroyed.
    Destroyed,
    /// Its completion queue lost completions.
    Overrun,
    /// It belongs to the process that this one was forked from.
    Forked,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dropped::Reset => "reset",
            Dropped::Destroyed => "destroyed",
            Dropped::Overrun => "cut off by an overrun of its completion queue",
            Dropped::Forked => "left to the parent of this process",
        })
    }
}

/// Who can do something about a failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// This program.
    Caller,
    /// The program at the other end.
    Peer,
    /// The way between, or a peer that is gone.
    Network,
    /// Nobody: a consequence of something before.
    Consequence,
}

impl CompletionError {
    /// The status of the completion (`enum ibv_wc_status`); None where there was none.
    pub fn status(&self) -> Option<WcStatus> {
        Some(match self {
            CompletionError::Flushed => WcStatus::WrFlushErr,
            CompletionError::LocalLength { .. } => WcStatus::LocLenErr,
            CompletionError::LocalProtection { .. } => WcStatus::LocProtErr,
            CompletionError::LocalOperation { .. } => WcStatus::LocQpOpErr,
            CompletionError::RemoteInvalidRequest { .. } => WcStatus::RemInvReqErr,
            CompletionError::RemoteAccess { .. } => WcStatus::RemAccessErr,
            CompletionError::RemoteOperation { .. } => WcStatus::RemOpErr,
            CompletionError::RetryExceeded { .. } => WcStatus::RetryExcErr,
            CompletionError::RnrRetryExceeded { .. } => WcStatus::RnrRetryExcErr,
            CompletionError::Binding { .. } => WcStatus::MwBindErr,
            CompletionError::BadResponse { .. } => WcStatus::BadRespErr,
            CompletionError::Other { status, .. } => *status,
            CompletionError::Dropped { .. } | CompletionError::NotPosted(_) => return None,
        })
    }

    /// Who can do something about it.
    pub fn blame(&self) -> Blame {
        match self {
            CompletionError::Flushed | CompletionError::Dropped { .. } => Blame::Consequence,
            // The peer sent more than this side was ready for; or this side asked for more than can be.
            CompletionError::LocalLength { .. }
            | CompletionError::LocalProtection { .. }
            | CompletionError::LocalOperation { .. }
            | CompletionError::Binding { .. }
            | CompletionError::NotPosted(_)
            | CompletionError::Other { .. } => Blame::Caller,
            // Requests are the caller's, but so are the peer's rules.
            CompletionError::RemoteInvalidRequest { .. }
            | CompletionError::RemoteAccess { .. }
            | CompletionError::RemoteOperation { .. }
            | CompletionError::RnrRetryExceeded { .. }
            | CompletionError::BadResponse { .. } => Blame::Peer,
            CompletionError::RetryExceeded { .. } => Blame::Network,
        }
    }
}

/// A vendor error code, which says more than a status does.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Why(pub u32);

impl Why {
    /// The code, if it is one of this device's.
    pub fn code(self) -> Option<VendorErr> {
        CODES.iter().map(|(code, _)| *code).find(|code| *code as u32 == self.0)
    }

    /// Every code that this device gives, and what it means.
    pub fn all() -> impl Iterator<Item = (VendorErr, &'static str)> {
        CODES.into_iter()
    }

    /// What the code means, in words.
    pub fn text(self) -> Option<&'static str> {
        CODES.iter().find(|(code, _)| *code as u32 == self.0).map(|(_, text)| *text)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "vendor error {}", self.0),
        }
    }
}

impl fmt::Debug for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code() {
            Some(code) => write!(f, "{code:?}"),
            None => write!(f, "{}", self.0),
        }
    }
}

const CODES: [(VendorErr, &str); 36] = [
    (VendorErr::None, "no reason given"),
    (VendorErr::Flushed, "the queue pair is in the error state"),
    (VendorErr::LkeyUnknown, "the lkey names no region"),
    (VendorErr::LkeyPd, "the region belongs to another protection domain"),
    (VendorErr::LkeyRange, "the list reaches outside its region"),
    (VendorErr::LkeyAccess, "the region may not be written locally"),
    (VendorErr::TooLong, "the message is longer than the port or path allows"),
    (VendorErr::RecvTooSmall, "the receive is too small for the message"),
    (VendorErr::RetryExceeded, "no acknowledgement within the retries"),
    (VendorErr::RnrRetryExceeded, "no receive was posted within the RNR retries"),
    (VendorErr::NakInvalidRequest, "it answered NAK invalid request"),
    (VendorErr::NakRemoteAccess, "it answered NAK remote access error"),
    (VendorErr::NakRemoteOperational, "it answered NAK remote operational error"),
    (VendorErr::NakInvalidRdRequest, "it answered NAK invalid RD request"),
    (VendorErr::BadResponse, "the response did not fit the request"),
    (VendorErr::InvalidateRefused, "the rkey may not be invalidated by this queue pair"),
    (VendorErr::MemoryFault, "the memory under the region is gone"),
    (VendorErr::OpNotAllowed, "the queue pair does not allow the operation"),
    (VendorErr::RemoteAccessHere, "this side refused the peer's access"),
    (VendorErr::PeerKilled, "the peer's process on this host was killed"),
    (
        VendorErr::BindKey,
        "the window's key is not its own, or it is bound, or the region's key is none",
    ),
    (VendorErr::BindPd, "window, region and queue pair are not of one protection domain"),
    (VendorErr::BindRange, "the window reaches outside its region, or is empty"),
    (VendorErr::BindAccess, "the region allows no windows, or none with these rights"),
    (
        VendorErr::PeerKey,
        "the peer has no region with that rkey, nor a window bound for its queue pair",
    ),
    (
        VendorErr::PeerPd,
        "the peer's region belongs to another protection domain than its queue pair",
    ),
    (VendorErr::PeerRange, "the range reaches outside the peer's region"),
    (VendorErr::PeerRegionAccess, "the peer's region does not give the right"),
    (VendorErr::PeerQpAccess, "the peer's queue pair does not give the right"),
    (VendorErr::PeerAlignment, "the address of the atomic is no multiple of 8"),
    (VendorErr::PeerMemory, "the memory under the peer's region is gone"),
    (VendorErr::PeerResources, "the peer holds fewer READs and atomics than were sent"),
    (VendorErr::PeerRecvTooSmall, "the peer's receive is too small for the message"),
    (VendorErr::PeerRecvMemory, "the memory of the peer's receive cannot be written"),
    (VendorErr::PeerInvalidate, "the peer's window may not be invalidated by this queue pair"),
    (VendorErr::PeerQueue, "the peer's XRC domain has no such shared receive queue"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_decoded_under_its_number() {
        for (number, (code, text)) in CODES.iter().enumerate() {
            assert_eq!(*code as usize, number);
            assert_eq!(Why(number as u32).code(), Some(*code));
            assert_eq!(Why(number as u32).to_string(), *text);
        }
        assert_eq!(Why(4711).code(), None);
        assert_eq!(Why(4711).to_string(), "vendor error 4711");
    }

    #[test]
    fn errors_name_what_was_asked_and_what_is_allowed() {
        let error = RequestError::BeyondRemote { asked: 65, len: 64 };
        assert_eq!(error.to_string(), "65 bytes do not fit the 64 bytes of the remote region");
        let asked = RemoteRegion { addr: 0x1000, rkey: 0x2a, len: 8 };
        let why = Why(VendorErr::NakRemoteAccess as u32);
        let error = CompletionError::RemoteAccess { opcode: WrOpcode::Read, asked, why };
        assert_eq!(
            error.to_string(),
            "the peer refused Read of 8 bytes at 0x1000 with rkey 0x2a: it answered NAK remote access error"
        );
        assert_eq!((error.status(), error.blame()), (Some(WcStatus::RemAccessErr), Blame::Peer));
    }
}
