//! Waiting: eventfd, epoll, and threads that take no signals.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bitflags::bitflags;
use libc::c_int;

use crate::cancel;

/// What a successful read of an [`EventFd`] takes away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventMode {
    /// Everything: reads the sum of all signals.
    Counter,
    /// One signal: reads 1.
    Semaphore,
}

/// An eventfd(2), close-on-exec.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A new one with no signals pending.
    ///
    /// # Errors
    /// As eventfd(2): out of descriptors or memory.
    pub fn new(mode: EventMode, nonblocking: bool) -> io::Result<Self> {
        let mut flags = libc::EFD_CLOEXEC;
        if mode == EventMode::Semaphore {
            flags |= libc::EFD_SEMAPHORE;
        }
        if nonblocking {
            flags |= libc::EFD_NONBLOCK;
        }
        // SAFETY: takes no pointers.
        owned(unsafe { libc::eventfd(0, flags) }).map(Self::from)
    }

    /// Adds one signal and wakes who waits. At 2^64-2 pending signals, which only a write of that
    /// number reaches, it adds none, or waits for a reader if the descriptor blocks.
    ///
    /// # Errors
    /// As write(2), which fails only when the descriptor is no eventfd.
    pub fn signal(&self) -> io::Result<()> {
        let one = 1u64.to_ne_bytes();
        let _held = cancel::held();
        loop {
            // SAFETY: reads the eight bytes of `one`.
            let n = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            if n >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }

    /// Waits until there is a signal, at most for `timeout`, and leaves it; whether there is one.
    ///
    /// # Errors
    /// `Interrupted` when a signal handler ran meanwhile; otherwise as poll(2).
    pub fn wait_for(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable_for(self.fd.as_fd(), timeout)
    }

    /// Takes signals if there are any, else `None`; never blocks, whatever the `O_NONBLOCK` flag.
    ///
    /// # Errors
    /// As preadv2(2), which fails only when the descriptor is no eventfd.
    pub fn try_read(&self) -> io::Result<Option<u64>> {
        let mut value = [0u8; 8];
        let _held = cancel::held();
        let iov = libc::iovec { iov_base: value.as_mut_ptr().cast(), iov_len: value.len() };
        // SAFETY: `iov` describes the eight bytes of `value`, both alive during the call.
        let n = unsafe { libc::preadv2(self.fd.as_raw_fd(), &iov, 1, -1, libc::RWF_NOWAIT) };
        let error = match n {
            8 => return Ok(Some(u64::from_ne_bytes(value))),
            _ => io::Error::last_os_error(),
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            // Kernels before 5.8, and sandboxes, know no RWF_NOWAIT on an eventfd.
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE | libc::EPERM) => {
                self.try_read_polled()
            }
            _ => Err(error),
        }
    }

    /// [`EventFd::try_read`] by poll(2) and read(2): a second reader may make it wait.
    fn try_read_polled(&self) -> io::Result<Option<u64>> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, alive during the call.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready <= 0 {
            return Ok(None);
        }
        match self.read() {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether its user has set `O_NONBLOCK`.
    pub fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.fd.as_fd())
    }

    /// Takes signals; with none pending waits for them, or fails if the descriptor has
    /// `O_NONBLOCK`, which its user may set at any time by fcntl(2).
    ///
    /// # Errors
    /// `WouldBlock`; `Interrupted` by a signal handler; otherwise as read(2).
    pub fn read(&self) -> io::Result<u64> {
        let mut value = [0u8; 8];
        // SAFETY: writes at most the eight bytes of `value`.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
        if n == 8 { Ok(u64::from_ne_bytes(value)) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.fd
    }
}

bitflags! {
    /// What an [`Epoll`] waits for, and what it reports, as in epoll_ctl(2).
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Interest: u32 {
        /// Something to read.
        const READ = libc::EPOLLIN as u32;
        /// Room to write.
        const WRITE = libc::EPOLLOUT as u32;
        /// The peer will write no more. Asked for explicitly.
        const READ_CLOSED = libc::EPOLLRDHUP as u32;
        /// An error. Always reported.
        const ERROR = libc::EPOLLERR as u32;
        /// Both directions are closed. Always reported.
        const CLOSED = libc::EPOLLHUP as u32;
        /// Report a change once instead of a state for as long as it lasts.
        const EDGE = libc::EPOLLET as u32;
        /// Where several instances watch a descriptor, wake only some of them; only with [`Epoll::add`].
        const EXCLUSIVE = libc::EPOLLEXCLUSIVE as u32;
        /// Report once, then wait for [`Epoll::modify`].
        const ONCE = libc::EPOLLONESHOT as u32;
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Event(libc::epoll_event);

impl Event {
    /// A value to fill the array of [`Epoll::wait`] with.
    pub const EMPTY: Self = Self(libc::epoll_event { events: 0, u64: 0 });

    /// The token that the descriptor was added with.
    pub fn token(&self) -> u64 {
        self.0.u64
    }

    /// What it is ready for.
    pub fn ready(&self) -> Interest {
        Interest::from_bits_truncate(self.0.events)
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("token", &self.token()).field("ready", &self.ready()).finish()
    }
}

/// An epoll(7) instance, close-on-exec. It is itself pollable: readable while a wait would return.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// A new one that watches nothing.
    ///
    /// # Errors
    /// As epoll_create1(2): out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(|fd| Self { fd })
    }

    /// Watches a descriptor. Closing it ends that only if no duplicate of it exists, here or in
    /// another process: call [`Epoll::remove`] first.
    ///
    /// # Errors
    /// As epoll_ctl(2): `EEXIST` when it is watched already.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Changes token and interest of a watched descriptor.
    ///
    /// # Errors
    /// As epoll_ctl(2): `ENOENT` when it is not watched.
    pub fn modify(&self, fd: BorrowedFd<'_>, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    /// Stops watching a descriptor. An epoll instance shared by fork(2) is one: a child that
    /// removes from it takes the descriptor away from its parent.
    ///
    /// # Errors
    /// As epoll_ctl(2): `ENOENT` when it is not watched.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::empty())
    }

    fn control(
        &self,
        operation: c_int,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token };
        // SAFETY: `event` is alive during the call, which only reads it.
        let rc =
            unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until a descriptor is ready or `timeout` has passed, for ever with `None`. Returns how
    /// many of `events` it filled, 0 after the timeout and after a signal handler ran.
    ///
    /// # Errors
    /// `InvalidInput` when `events` is empty; otherwise as epoll_wait(2), save `EINTR`.
    pub fn wait(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        static NO_PWAIT2: AtomicBool = AtomicBool::new(false);
        if !NO_PWAIT2.load(Ordering::Relaxed) {
            match uninterrupted(self.pwait2(events, timeout)) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    NO_PWAIT2.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        uninterrupted(self.wait_ms(events, timeout))
    }

    /// Whether its user has set `O_NONBLOCK`, which means nothing to the kernel.
    pub fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.fd.as_fd())
    }

    /// By epoll_pwait2(2), Linux 5.11: nanoseconds.
    fn pwait2(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        // SAFETY: Event is an epoll_event, so the array has room for as many as its length; the
        // time and the signal mask are alive or null.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                events.as_mut_ptr(),
                c_int::try_from(events.len()).unwrap_or(c_int::MAX),
                timeout.as_ref().map_or(ptr::null(), ptr::from_ref),
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// By epoll_wait(2): whole milliseconds, rounded up lest a caller spin on a short time.
    fn wait_ms(&self, events: &mut [Event], timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map_or(-1, |t| {
            c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
        });
        let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        // SAFETY: Event is an epoll_event, so the array has room for as many as its length.
        let n = unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), room, timeout)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Epoll> for OwnedFd {
    fn from(epoll: Epoll) -> Self {
        epoll.fd
    }
}

/// Waits until a descriptor is readable, at most for so long: whether it is.
///
/// # Errors
/// `Interrupted` when a signal handler ran meanwhile; otherwise as poll(2).
pub fn wait_readable_for(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(c_int::MAX);
    // SAFETY: one pollfd, alive during the call.
    match unsafe { libc::poll(&raw mut poll, 1, timeout) } {
        ready @ 0.. => Ok(ready > 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether `O_NONBLOCK` is set.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Sets `O_NONBLOCK`.
///
/// # Errors
/// As fcntl(2), which fails only for what is no descriptor.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: likewise.
    let done =
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags.max(0) | libc::O_NONBLOCK) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn uninterrupted(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The signals that an instruction of the thread itself raises. They stay deliverable: blocked,
/// they kill the process without asking its handlers.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// A thread's signal mask before it was changed.
pub struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Makes it the calling thread's mask again.
    pub fn restore(&self) {
        // SAFETY: reads a mask that the kernel wrote.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalMask")
    }
}

/// Blocks, in the calling thread, every signal but those that its own faults raise, so that the
/// program's handlers never run on it. Returns the mask there was.
pub fn block_all_signals() -> SignalMask {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`; sigdelset and pthread_sigmask get initialised sets; the
    // latter, whose arguments are valid, initialises `old`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::sigemptyset(old.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
        SignalMask(old.assume_init())
    }
}

/// Starts a thread on which no signal handler of the program ever runs, from its first instruction
/// on. Linux keeps the first 15 bytes of `name`.
///
/// # Errors
/// As pthread_create(3): `EAGAIN` at a limit on threads. `InvalidInput` when the name has a NUL.
pub fn spawn_thread<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    if name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A thread starts with its creator's mask.
    let before = block_all_signals();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(f);
    before.restore();
    thread
}

#[cfg(test)]
mod tests;
