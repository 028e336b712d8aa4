//! Which transitions there are, and which attributes each needs and takes (IBA 10.3.1, table of
//! `ibv_modify_qp(3)`).

use super::error::ModifyError;
use crate::verbs::{AttrMask, QpState, QpType};

/// Attributes of a transition.
struct Transition {
    required: AttrMask,
    optional: AttrMask,
}

/// Attributes of the side that an XRC QP lacks. The kernel takes them out of any mask.
pub(super) fn meaningless(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        _ => AttrMask::empty(),
    }
}

/// Checks that a QP may go from `from` to `to` with exactly these attributes.
pub(super) fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), ModifyError> {
    let transition =
        find(qp_type, from, to).ok_or(ModifyError::Transition { from, to, qp_type })?;
    let missing = transition.required - mask;
    if !missing.is_empty() {
        return Err(ModifyError::MissingAttr(missing));
    }
    let extra = mask - transition.required - transition.optional - AttrMask::STATE;
    if !extra.is_empty() {
        return Err(ModifyError::ExtraAttr(extra));
    }
    Ok(())
}

fn find(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = AttrMask::empty();
    let (required, optional) = match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (AttrMask::PKEY_INDEX | AttrMask::PORT | identity(qp_type), none),
        (Init, Init) => (none, AttrMask::PKEY_INDEX | AttrMask::PORT | identity(qp_type)),
        (Init, Rtr) => (to_rtr(qp_type), AttrMask::PKEY_INDEX | alternate(qp_type)),
        (Rtr, Rts) => (to_rts(qp_type), running(qp_type)),
        (Rts, Rts) | (Sqd, Rts) => (none, running(qp_type)),
        (Rts, Sqd) => (none, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (none, drained(qp_type)),
        (Sqe, Rts) if !qp_type.is_reliable() => (none, AttrMask::CUR_STATE | identity(qp_type)),
        _ => return None,
    };
    Some(Transition { required, optional })
}

/// What a QP lets in by: the Q_Key of a datagram QP, the access rights of a connected one.
fn identity(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::Ud => AttrMask::QKEY,
        _ => AttrMask::ACCESS_FLAGS,
    }
}

fn alternate(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::Ud => AttrMask::QKEY,
        _ => AttrMask::ACCESS_FLAGS | AttrMask::ALT_PATH,
    }
}

fn to_rtr(qp_type: QpType) -> AttrMask {
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    match qp_type {
        QpType::Ud => AttrMask::empty(),
        QpType::Uc | QpType::XrcSend => connected,
        QpType::Rc | QpType::XrcRecv => {
            connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER
        }
    }
}

fn to_rts(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::Ud | QpType::Uc => AttrMask::SQ_PSN,
        QpType::XrcRecv => AttrMask::SQ_PSN | AttrMask::TIMEOUT,
        QpType::Rc | QpType::XrcSend => {
            AttrMask::SQ_PSN
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC
        }
    }
}

/// What may change on the way to RTS and in it.
fn running(qp_type: QpType) -> AttrMask {
    let connected = AttrMask::CUR_STATE
        | AttrMask::ACCESS_FLAGS
        | AttrMask::ALT_PATH
        | AttrMask::PATH_MIG_STATE;
    match qp_type {
        QpType::Ud => AttrMask::CUR_STATE | AttrMask::QKEY,
        QpType::Uc | QpType::XrcSend => connected,
        QpType::Rc | QpType::XrcRecv => connected | AttrMask::MIN_RNR_TIMER,
    }
}

/// What may change while the send queue stands still.
fn drained(qp_type: QpType) -> AttrMask {
    if qp_type == QpType::Ud {
        return AttrMask::PKEY_INDEX | AttrMask::QKEY;
    }
    let mut mask = AttrMask::PKEY_INDEX
        | AttrMask::AV
        | AttrMask::ACCESS_FLAGS
        | AttrMask::ALT_PATH
        | AttrMask::PATH_MIG_STATE;
    if qp_type.is_reliable() {
        mask |= AttrMask::PORT | AttrMask::TIMEOUT;
    }
    if qp_type.is_reliable() && qp_type.has_requester() {
        mask |= AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    }
    if qp_type.is_reliable() && qp_type.has_responder() {
        mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    }
    mask
}
