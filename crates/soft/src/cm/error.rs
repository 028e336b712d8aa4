//! Why a call of the connection manager failed.

use std::io;
use std::net::SocketAddr;

use ironverbs_sys::errno;

use crate::Error;

/// Why a call of the connection manager failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The address or port is taken by another id of this user.
    #[error("{addr} is in use")]
    AddrInUse {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// The address is not one of this host's.
    #[error("{addr} is not an address of this host")]
    AddrNotAvailable {
        /// What was asked for.
        addr: SocketAddr,
    },
    /// The id is not in a state for that.
    #[error("an id that is {state} cannot {what}")]
    State {
        /// The call.
        what: &'static str,
        /// What the id is.
        state: &'static str,
    },
    /// The connection was established already (rdma_notify(3)).
    #[error("the connection is established already")]
    Connected,
    /// Private data that does not fit its message.
    #[error("{len} bytes of private data, at most {max} are possible")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// The most allowed.
        max: usize,
    },
    /// A value that cannot be.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No device has the address, or there is none.
    #[error("no device for {addr}")]
    NoDevice {
        /// The address.
        addr: SocketAddr,
    },
    /// The device or the system refused something.
    #[error(transparent)]
    Device(#[from] Error),
}

impl CmError {
    /// The errno that librdmacm reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            CmError::AddrInUse { .. } => errno::EADDRINUSE,
            CmError::AddrNotAvailable { .. } => errno::EADDRNOTAVAIL,
            CmError::State { .. } | CmError::PrivateData { .. } | CmError::Invalid { .. } => {
                errno::EINVAL
            }
            CmError::Connected => errno::EISCONN,
            CmError::NoDevice { .. } => errno::ENODEV,
            CmError::Device(error) => error.errno(),
        }
    }
}

impl From<io::Error> for CmError {
    fn from(error: io::Error) -> CmError {
        CmError::Device(Error::Io(error))
    }
}
