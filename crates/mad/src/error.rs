//! Why a call fails.

use crate::{ConnId, LocalAddr};
use ironverbs_wire::mad::cm::ServiceId;

/// More private data than the message has room for.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
#[error("{len} bytes of private data, at most {max}")]
pub struct PrivateDataError {
    /// Bytes given.
    pub len: usize,
    /// Bytes that fit.
    pub max: usize,
}

/// Why no connection or resolution is begun.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// More private data than fits beside the addresses.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// As many connections as may be.
    #[error("{max} connections, which is the limit")]
    Limit {
        /// The limit.
        max: usize,
    },
}

/// Why nobody listens.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum ListenError {
    /// Someone listens on this service ID for these or some of these addresses.
    #[error("{service_id:?} is listened on for {by:?}, which includes or is part of {addr:?}")]
    InUse {
        /// The service ID asked for.
        service_id: ServiceId,
        /// The addresses asked for.
        addr: LocalAddr,
        /// Those of the other listener.
        by: LocalAddr,
    },
}

/// Why a connection or resolution does not take a call.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// It has ended, or never was.
    #[error("no connection or request has ID {id:#010x}")]
    Unknown {
        /// The ID given.
        id: u32,
    },
    /// Not at this time of its life.
    #[error("{call} does not fit a connection that is {state}")]
    State {
        /// The call.
        call: &'static str,
        /// Where the connection is.
        state: &'static str,
    },
    /// More private data than the message has room for.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
}

impl AnswerError {
    pub(crate) fn unknown(conn: ConnId) -> Self {
        Self::Unknown { id: conn.comm_id() }
    }
}

/// The data, zero-padded to the whole field after the first `used` bytes of it.
pub(crate) fn padded<const N: usize>(
    data: &[u8],
    used: usize,
) -> Result<[u8; N], PrivateDataError> {
    let too_long = PrivateDataError { len: data.len(), max: N.saturating_sub(used) };
    let mut field = [0; N];
    let room = field.get_mut(used..).and_then(|room| room.get_mut(..data.len()));
    room.ok_or(too_long)?.copy_from_slice(data);
    Ok(field)
}
