//! How verbs fail towards C: one type for every reason, one place where it becomes a return value.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ironverbs::raw as soft;
use ironverbs_sys::cancel;
use parking_lot::Mutex;

/// Why a verb failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The device refused.
    Device(soft::Error),
    /// A work request was refused.
    Post(soft::PostError),
    /// The connection manager refused.
    Cm(soft::cm::CmError),
    /// A GID was not found to be reachable.
    Reach(soft::ReachError),
    /// A pointer is NULL.
    Null { what: &'static str },
    /// A pointer leads to no living object of the type: destroyed, foreign or overwritten.
    Unknown { what: &'static str, handle: u32 },
    /// The objects of one call belong to different contexts.
    OtherContext { what: &'static str },
    /// The objects of one call belong to different protection domains.
    OtherDomain { what: &'static str },
    /// An argument has a value that is not allowed.
    Argument { what: &'static str, value: u64 },
    /// This library or its device cannot do that.
    Unsupported { what: &'static str },
    /// The kernel, or this library for devices of the kernel, has no such function.
    Missing { what: &'static str },
    /// An entry of a table is empty.
    NoEntry { what: &'static str, index: u64 },
    /// A number of objects is at its end.
    Full { what: &'static str },
    /// The system or a blocking call refused.
    Io(io::Error),
    /// A device of the kernel whose driver plug-in is not there.
    Driver { device: String, needs: &'static str },
    /// The file of a device of the kernel cannot be opened.
    Open { path: String, errno: i32, error: io::Error },
    /// An interface of the kernel is of another version than the one that is known.
    Version { what: &'static str, other: u32, known: u32 },
    /// There is no Host; the reason was printed when it failed to start.
    NoHost { errno: i32 },
    /// A defect of ours; its message was printed by the panic hook.
    Panic,
}

impl Failure {
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Failure::Device(error) => error.errno(),
            Failure::Post(error) => soft::post_errno(error),
            Failure::Cm(error) => error.errno(),
            Failure::Reach(error) => error.errno(),
            Failure::Null { .. }
            | Failure::OtherContext { .. }
            | Failure::OtherDomain { .. }
            | Failure::Argument { .. } => libc::EINVAL,
            Failure::Unknown { .. } => libc::ENOENT,
            Failure::Unsupported { .. } => libc::EOPNOTSUPP,
            Failure::NoEntry { .. } => libc::ENODATA,
            Failure::Full { .. } => libc::ENOMEM,
            Failure::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
            Failure::Driver { .. } | Failure::Version { .. } | Failure::Missing { .. } => {
                libc::ENOSYS
            }
            Failure::Open { errno, .. } => *errno,
            Failure::NoHost { errno } => *errno,
            Failure::Panic => libc::EIO,
        }
    }

    /// Whether this is how the verb says "try again": not a failure to explain.
    fn is_routine(&self) -> bool {
        matches!(self.errno(), libc::EAGAIN | libc::EINTR)
    }
}

impl From<soft::Error> for Failure {
    fn from(error: soft::Error) -> Self {
        Failure::Device(error)
    }
}

impl From<soft::PostError> for Failure {
    fn from(error: soft::PostError) -> Self {
        Failure::Post(error)
    }
}

impl From<soft::cm::CmError> for Failure {
    fn from(error: soft::cm::CmError) -> Self {
        Failure::Cm(error)
    }
}

impl From<soft::ReachError> for Failure {
    fn from(error: soft::ReachError) -> Self {
        Failure::Reach(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Device(error) => error.fmt(f),
            Failure::Post(error) => error.fmt(f),
            Failure::Cm(error) => error.fmt(f),
            Failure::Reach(error) => error.fmt(f),
            Failure::Null { what } => write!(f, "the {what} is NULL"),
            Failure::Unknown { what, handle } => write!(
                f,
                "the {what} with handle {handle:#x} does not exist: destroyed before, \
                 copied, or overwritten"
            ),
            Failure::OtherContext { what } => write!(f, "the {what} belongs to another context"),
            Failure::OtherDomain { what } => {
                write!(f, "the {what} belongs to another protection domain")
            }
            Failure::Argument { what, value } => write!(f, "{what} may not be {value:#x}"),
            Failure::Unsupported { what } => write!(f, "{what} is not supported"),
            Failure::Missing { what } => write!(f, "{what} is not possible"),
            Failure::NoEntry { what, index } => write!(f, "{what} {index} is empty"),
            Failure::Full { what } => write!(f, "no room for another {what}"),
            Failure::Io(error) => error.fmt(f),
            Failure::Driver { device, needs: "" } => {
                write!(f, "no driver plug-in that is installed knows the kernel's device {device}")
            }
            Failure::Driver { device, needs } => write!(
                f,
                "the kernel's device {device} needs the driver plug-in lib{needs}-rdmav34.so of \
                 rdma-core 44, which is not installed (Debian: ibverbs-providers)"
            ),
            Failure::Open { path, error, .. } => write!(f, "{path}: {error}"),
            Failure::Version { what, other, known } => write!(
                f,
                "the kernel's interface for {what} is of version {other}, of which only {known} is known"
            ),
            Failure::NoHost { .. } => f.write_str("the device stack did not start"),
            Failure::Panic => f.write_str("internal error, see above"),
        }
    }
}

/// Result of what a verb does.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// For verbs that return 0 or the value of errno.
pub(crate) fn status(verb: &'static str, work: impl FnOnce() -> Outcome<()>) -> c_int {
    returned(verb, work).map_or_else(|errno| errno, |()| 0)
}

/// For verbs that return an object, or NULL and errno.
pub(crate) fn object<T>(verb: &'static str, work: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    returned(verb, work).unwrap_or(ptr::null_mut())
}

/// For verbs that return a number from 0, or -1 and errno.
pub(crate) fn number(verb: &'static str, work: impl FnOnce() -> Outcome<c_int>) -> c_int {
    returned(verb, work).unwrap_or(-1)
}

/// For verbs that return nothing.
pub(crate) fn silent(verb: &'static str, work: impl FnOnce() -> Outcome<()>) {
    let _ = returned(verb, work);
}

/// For verbs that wait on a descriptor, in which a program may cancel the thread: `work` takes what the eight bytes
/// stand for that were read from the descriptor, or finds that it is gone (None). 0, or -1 and errno.
///
/// Neither closure may own anything: a cancellation unwinds this frame.
pub(crate) fn waiting(
    verb: &'static str,
    descriptor: impl Fn() -> Outcome<RawFd>,
    work: impl Fn() -> Outcome<Option<()>>,
) -> c_int {
    loop {
        let Ok(fd) = returned(verb, &descriptor) else { return -1 };
        if let Err(errno) = cancel::read(fd, &mut [0; 8]) {
            return number(verb, || Err(io::Error::from_raw_os_error(errno).into()));
        }
        match returned(verb, &work) {
            Ok(Some(())) => return 0,
            Ok(None) => {}
            Err(_) => return -1,
        }
    }
}

/// For verbs of the data path: as [`status`], [`number`], [`silent`] and [`returned`], but a cancellation is put off only by what
/// they call where that makes a call of the system (`ironverbs_sys::cancel`).
pub(crate) mod swift {
    use super::*;

    #[inline]
    pub(crate) fn status(verb: &'static str, work: impl FnOnce() -> Outcome<()>) -> c_int {
        returned(verb, work).map_or_else(|errno| errno, |()| 0)
    }

    #[inline]
    pub(crate) fn number(verb: &'static str, work: impl FnOnce() -> Outcome<c_int>) -> c_int {
        returned(verb, work).unwrap_or(-1)
    }

    #[inline]
    pub(crate) fn silent(verb: &'static str, work: impl FnOnce() -> Outcome<()>) {
        let _ = returned(verb, work);
    }

    pub(crate) use super::caught as returned;
}

/// The way out of all verbs but those of the data path: a cancellation of the thread (pthread_cancel(3)) waits until it is
/// through. The error is the value of errno.
pub(crate) fn returned<T>(
    verb: &'static str,
    work: impl FnOnce() -> Outcome<T>,
) -> Result<T, c_int> {
    let _held = cancel::held();
    caught(verb, work)
}

/// No panic crosses into C, errno is set, and the failure is explained when that was asked for.
#[inline]
pub(crate) fn caught<T>(verb: &'static str, work: impl FnOnce() -> Outcome<T>) -> Result<T, c_int> {
    // What a panic may leave half done is behind locks that do not poison; the caller is told EIO.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(failed(verb, &failure)),
        Err(_) => Err(failed(verb, &Failure::Panic)),
    }
}

#[cold]
fn failed(verb: &'static str, failure: &Failure) -> c_int {
    let _held = cancel::held();
    let errno = failure.errno();
    if crate::host::explains() && !failure.is_routine() {
        explain(verb, failure, "");
    }
    set_errno(errno);
    errno
}

/// Says something that is no failure of the call, where failures are explained.
#[cold]
pub(crate) fn note(verb: &'static str, failure: &Failure, consequence: &str) {
    if crate::host::explains() {
        explain(verb, failure, consequence);
    }
}

/// One line for each failure; a verb that keeps failing in the same way is explained once.
fn explain(verb: &'static str, failure: &Failure, consequence: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    let errno = errno_name(failure.errno());
    let line = format!("ironverbs: {verb}: {failure} ({errno}){consequence}");
    let mut last = LAST.lock();
    if *last != line {
        eprintln!("{line}");
        *last = line;
    }
}

fn errno_name(errno: c_int) -> std::borrow::Cow<'static, str> {
    match errno {
        libc::EINVAL => "EINVAL".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::ENOENT => "ENOENT".into(),
        libc::EBUSY => "EBUSY".into(),
        libc::EFAULT => "EFAULT".into(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".into(),
        libc::ENOSYS => "ENOSYS".into(),
        libc::ENODATA => "ENODATA".into(),
        libc::ENODEV => "ENODEV".into(),
        libc::EPERM => "EPERM".into(),
        libc::EIO => "EIO".into(),
        libc::ENXIO => "ENXIO".into(),
        other => format!("errno {other}").into(),
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: errno is a thread-local int that always exists.
    unsafe { *libc::__errno_location() = errno };
}
