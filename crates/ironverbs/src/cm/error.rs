//! Why there is no connection.

use std::io;

use ironverbs_soft::cm::{CmError, CmEvent, CmEventKind, EventParam};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This side refused: an address in use, a value that is not possible.
    #[error(transparent)]
    Refused(#[from] CmError),
    /// The address was not resolved: no route, no device, no answer on the link.
    #[error("the address cannot be resolved: {0}")]
    Unresolved(io::Error),
    /// The peer refused.
    #[error("the peer refused: reason {reason}{}", meaning(*.reason))]
    Rejected {
        /// The reason (IBA 12.6.7.2): 28 is its program's, 8 that nobody listens there.
        reason: u16,
        /// What its program said, zeros behind.
        private_data: Vec<u8>,
    },
    /// The peer has no such datagram service, or its program refused.
    #[error("no such service: status {status}")]
    NoService {
        /// The status (IBA 12.11.2): 1 is a refusal of its program or that nobody offers it.
        status: u8,
        /// What its program said, zeros behind.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    #[error("the peer does not answer: {0}")]
    Unreachable(io::Error),
    /// The connection could not be made for a reason on this side.
    #[error("the connection could not be made: {0}")]
    Failed(io::Error),
    /// The device is gone.
    #[error("the device is gone")]
    DeviceGone,
    /// The connection ended before it was made.
    #[error("the connection has ended")]
    Ended,
}

fn meaning(reason: u16) -> &'static str {
    match reason {
        8 => ", nobody listens there",
        9 => ", not this kind of connection",
        10 => ", its memory of an older connection",
        28 => ", by its program",
        _ => "",
    }
}

impl Error {
    /// What an event that is no success says.
    pub(super) fn of(event: &CmEvent) -> Error {
        let status = event.status();
        let errno = || io::Error::from_raw_os_error(status.saturating_neg());
        match event.kind() {
            CmEventKind::AddrError | CmEventKind::RouteError | CmEventKind::MulticastError => {
                Error::Unresolved(errno())
            }
            CmEventKind::Rejected => {
                let private_data = match event.param() {
                    EventParam::Conn(param) => param.private_data.clone(),
                    _ => Vec::new(),
                };
                Error::Rejected { reason: u16::try_from(status).unwrap_or_default(), private_data }
            }
            CmEventKind::Unreachable if status > 0 => {
                let private_data = match event.param() {
                    EventParam::Ud(param) => param.private_data.clone(),
                    _ => Vec::new(),
                };
                Error::NoService { status: u8::try_from(status).unwrap_or(u8::MAX), private_data }
            }
            CmEventKind::Unreachable => Error::Unreachable(errno()),
            CmEventKind::DeviceRemoval => Error::DeviceGone,
            CmEventKind::ConnectError => Error::Failed(errno()),
            _ => Error::Ended,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Refused(error.into())
    }
}
