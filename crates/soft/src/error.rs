//! Why a verb failed: which attribute, what was asked and what is allowed.

use std::io;

use ironverbs_transport::qp::{ModifyError, PostError};

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value is above its limit.
    #[error("{what} is {asked}, at most {max} is possible")]
    Limit {
        /// The attribute.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A value is not one of those allowed.
    #[error("{what} may not be {value:#x}: {why}")]
    Invalid {
        /// The attribute.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Other objects still use this one.
    #[error("the {what} is in use by {users} other object(s)")]
    Busy {
        /// The object.
        what: &'static str,
        /// How many use it.
        users: usize,
    },
    /// The memory is not mapped, or not with the rights asked for.
    #[error("{len} bytes at {addr:#x} are not accessible: {why}")]
    Fault {
        /// Start of the range.
        addr: u64,
        /// Bytes.
        len: u64,
        /// What is missing.
        why: String,
    },
    /// This device cannot do that.
    #[error("{what} is not supported by this device")]
    NotSupported {
        /// The feature.
        what: &'static str,
    },
    /// The objects' rights forbid it.
    #[error("not allowed: {what}")]
    Denied {
        /// What forbids it.
        what: &'static str,
    },
    /// The object was destroyed before.
    #[error("the {what} was destroyed before")]
    Stale {
        /// The object.
        what: &'static str,
    },
    /// The objects belong to different contexts.
    #[error("the {what} belongs to another context")]
    Foreign {
        /// The object that does not belong here.
        what: &'static str,
    },
    /// A table is full or memory ran out.
    #[error("no room for another {what}")]
    NoMemory {
        /// What could not be made.
        what: &'static str,
    },
    /// The process was forked: its handles belong to the parent.
    #[error("this process is a fork; the device belongs to its parent")]
    Forked,
    /// The device cannot be opened or used for something new: its interface is gone. ENODEV.
    #[error("device {device} is gone")]
    Gone {
        /// Name of the device.
        device: String,
    },
    /// The context's device went away while it was open; only destroying and looking is left. EIO, as the kernel
    /// answers whoever holds the file of a device that was removed.
    #[error("device {device} was removed while it was open")]
    Removed {
        /// Name of the device.
        device: String,
    },
    /// The queue overran; entries were lost.
    #[error("the completion queue overran its {cqe} entries")]
    Overrun {
        /// Its size.
        cqe: u32,
    },
    /// A change of a queue pair's attributes was refused.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// The errno the verbs API reports for this error.
    pub fn errno(&self) -> i32 {
        use ironverbs_sys::errno::*;
        match self {
            Error::Limit { .. }
            | Error::Invalid { .. }
            | Error::Stale { .. }
            | Error::Foreign { .. }
            | Error::Modify(_) => EINVAL,
            Error::Busy { .. } => EBUSY,
            Error::Fault { .. } => EFAULT,
            Error::NotSupported { .. } => EOPNOTSUPP,
            Error::NoMemory { .. } => ENOMEM,
            Error::Denied { .. } | Error::Forked => EPERM,
            Error::Gone { .. } => ENODEV,
            Error::Removed { .. } | Error::Overrun { .. } => EIO,
            Error::Io(e) => e.raw_os_error().unwrap_or(EIO),
        }
    }
}

impl From<Error> for io::Error {
    /// For calls that block and tell as read(2) does: the same errno.
    fn from(error: Error) -> io::Error {
        io::Error::from_raw_os_error(error.errno())
    }
}

/// The errno of a refused work request: ENOMEM for a full queue, EIO where the device is gone, EINVAL for all else
/// (ibv_post_send(3)).
pub fn post_errno(error: &PostError) -> i32 {
    match error {
        PostError::DeviceGone => ironverbs_sys::errno::EIO,
        PostError::QueueFull { .. } => ironverbs_sys::errno::ENOMEM,
        _ => ironverbs_sys::errno::EINVAL,
    }
}

/// Why a Host could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The interfaces could not be listed.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(io::Error),
    /// The kernel is to copy (`safe_copy`), and does not.
    #[error("safe_copy: the kernel does not copy for this process: {0}")]
    SafeCopy(io::Error),
    /// An event descriptor or thread could not be made.
    #[error("cannot set up the device: {0}")]
    Io(#[from] io::Error),
}
