//! Why a call on a queue pair is refused.

use thiserror::Error;

use crate::verbs::{AttrMask, QpState, QpType, WrOpcode};

/// Why a modify is refused; nothing was changed. All are EINVAL to `ibv_modify_qp(3)`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum ModifyError {
    /// IBA 10.3.1 has no such transition.
    #[error("a {qp_type:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Type of the QP.
        qp_type: QpType,
    },
    /// The transition needs attributes that were not given.
    #[error("the transition needs {0:?} too")]
    MissingAttr(AttrMask),
    /// Attributes were given that the transition does not take.
    #[error("the transition does not take {0:?}")]
    ExtraAttr(AttrMask),
    /// `cur_state` is not the state the QP is in.
    #[error("cur_state is {asked:?}, the queue pair is in {actual:?}")]
    CurState {
        /// State the caller believed in.
        asked: QpState,
        /// State it is in.
        actual: QpState,
    },
    /// A value is out of range.
    #[error("{what} is {asked}, at most {max} is allowed")]
    Value {
        /// Attribute, by its name in `struct ibv_qp_attr`.
        what: &'static str,
        /// Value given.
        asked: u64,
        /// Largest value allowed.
        max: u64,
    },
}

/// Why a work request is not taken; the queue is as before.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// Nothing may be posted in this state (IBA 10.3.1). EINVAL.
    #[error("nothing may be posted here in state {0:?}")]
    State(QpState),
    /// The queue holds as many requests as it was created for. ENOMEM.
    #[error("the queue is full with {max} requests")]
    QueueFull {
        /// Requests it holds at most.
        max: u32,
    },
    /// The list has more elements than the queue was created for. EINVAL.
    #[error("the list has {asked} elements, at most {max} are allowed")]
    TooManySges {
        /// Elements given.
        asked: usize,
        /// Elements allowed.
        max: u32,
    },
    /// More inline data than the queue was created for. EINVAL.
    #[error("{asked} bytes of inline data, at most {max} are allowed")]
    InlineTooLong {
        /// Bytes given.
        asked: usize,
        /// Bytes allowed.
        max: u32,
    },
    /// READs and atomics bring data, they cannot send it inline. EINVAL.
    #[error("{0:?} cannot be inline")]
    ReadInline(WrOpcode),
    /// The service has no such operation (ibv_post_send(3)). EINVAL.
    #[error("{opcode:?} is not an operation of {qp_type:?} queue pairs")]
    OpNotAllowed {
        /// Operation asked for.
        opcode: WrOpcode,
        /// Type of the QP.
        qp_type: QpType,
    },
    /// The list of an atomic is not 8 bytes long. EINVAL.
    #[error("an atomic needs a list of 8 bytes, not {asked}")]
    AtomicLength {
        /// Bytes of the list.
        asked: u64,
    },
    /// A raw packet queue pair sends frames, and one that spreads what it receives sends nothing. EINVAL. Never said by
    /// this crate, which knows no such queue pairs.
    #[error("{opcode:?} is not an operation of this raw packet queue pair")]
    OnlyFrames {
        /// Operation asked for.
        opcode: WrOpcode,
    },
    /// A UD send has no address. EINVAL.
    #[error("a UD send needs a destination")]
    NoDestination,
    /// The QP sends only. EINVAL.
    #[error("an XRC_SEND queue pair has no receives")]
    NoReceives,
    /// The receives of this QP are posted to its SRQ, or to those of its XRC domain. EINVAL.
    #[error("the queue pair takes its receives from a shared receive queue")]
    SharedReceives,
    /// The device was removed: what was posted has been flushed, and nothing more is taken. EIO. Never said by this
    /// crate, which knows no devices.
    #[error("the device was removed")]
    DeviceGone,
}
