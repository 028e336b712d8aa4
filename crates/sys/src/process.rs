//! Processes: identity, life and death, and what becomes of us in a child of fork(2).

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::mem::Mapping;

/// The result of a system call that returns -1 and sets errno.
pub(crate) fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Takes possession of a descriptor that a system call just made.
///
/// # Safety
/// `ret` is the return value of a call that creates a descriptor, and nobody else owns it.
pub(crate) unsafe fn owned(ret: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(ret)?;
    // SAFETY: not negative, and ours by the caller's word.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The effective user id: the one that the kernel reports of us to a unix socket's peer.
pub fn uid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// This process's id, in its own PID namespace.
pub fn pid() -> u32 {
    std::process::id()
}

/// The calling thread's id, in its own PID namespace.
pub fn thread_id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() as u32 }
}

/// Whether this process has a thread of that id.
pub fn has_thread(id: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, pid(), id, 0) == 0 }
}

/// When a process started, in clock ticks since boot (of the caller's time namespace): with the pid,
/// it names a process for good.
///
/// # Errors
/// NotFound when there is no such process, or it is hidden from us; Unsupported when /proc is of
/// another PID namespace, where the number means another process; InvalidData when the file does not
/// read as proc_pid_stat(5) says.
pub fn start_time(pid: u32) -> io::Result<u64> {
    let own = self::pid();
    if pid == own {
        // Right in any /proc.
        return read_start_time("/proc/self/stat");
    }
    proc_is_ours()?;
    read_start_time(&format!("/proc/{pid}/stat"))
}

/// Unsupported where /proc is of another PID namespace than this process.
fn proc_is_ours() -> io::Result<()> {
    let link = fs::read_link("/proc/self")?;
    match link.to_str().and_then(|link| link.parse().ok()) == Some(pid()) {
        true => Ok(()),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Whether a process is stopped, by a signal or a debugger (proc_pid_stat(5): states T and t).
///
/// # Errors
/// As [`start_time`].
pub fn is_stopped(pid: u32) -> io::Result<bool> {
    proc_is_ours()?;
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let end = stat.iter().rposition(|&byte| byte == b')').ok_or(io::ErrorKind::InvalidData)?;
    Ok(matches!(stat.get(end + 2), Some(b'T' | b't')))
}

/// Opens, anew, what a process has open under the number `fd` (/proc/PID/fd, proc_pid_fd(5)): the kernel
/// allows it where it would let us look at the process by ptrace(2). Close-on-exec.
///
/// # Errors
/// As open(2); PermissionDenied where that is not so. Unsupported where /proc is of another PID
/// namespace.
pub fn open_descriptor(pid: u32, fd: u32, write: bool) -> io::Result<OwnedFd> {
    proc_is_ours()?;
    let path = format!("/proc/{pid}/fd/{fd}");
    Ok(fs::OpenOptions::new().read(true).write(write).open(path)?.into())
}

fn read_start_time(path: &str) -> io::Result<u64> {
    parse_start_time(&fs::read(path)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Field 22. The second, the name, may hold blanks and parentheses: the last ")" ends it.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    text.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The inode number that identifies this process's namespace of a kind: `net`, `pid`, `user`, …
/// (namespaces(7)).
pub fn namespace(kind: &str) -> io::Result<u64> {
    Ok(fs::metadata(format!("/proc/self/ns/{kind}"))?.ino())
}

/// A process, by a descriptor that never comes to mean another one (pidfd_open(2)).
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process with this id. ESRCH: there is none.
    pub fn open(pid: u32) -> io::Result<PidFd> {
        let pid =
            libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        // SAFETY: no pointers; a success returns a new descriptor, close-on-exec.
        unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int) }.map(PidFd)
    }

    /// Whether the process still runs; a zombie does not.
    pub fn alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 0 }
    }

    /// A duplicate of the descriptor numbered `fd` in that process (pidfd_getfd(2)), whether it runs,
    /// is stopped or hangs. EPERM where ptrace of it is not allowed; EBADF when it has no such
    /// descriptor.
    pub fn duplicate(&self, fd: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: no pointers; a success returns a new descriptor, close-on-exec.
        unsafe {
            owned(libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), fd, 0) as libc::c_int)
        }
    }
}

impl AsFd for PidFd {
    /// Readable from the process's death on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for PidFd {
    /// Of a descriptor that the kernel gave as a pidfd (SO_PEERPIDFD).
    fn from(fd: OwnedFd) -> PidFd {
        PidFd(fd)
    }
}

const HANDLERS: usize = 16;
static CHILD_HANDLERS: [AtomicPtr<()>; HANDLERS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; HANDLERS];

/// Has `handler` run in every child of fork(3), before fork returns there, after the descriptors of
/// [`ClosedOnFork`] are closed. Registering the same function twice has no effect.
///
/// The child of a process with threads may only make async-signal-safe calls: no allocation, no
/// lock. Not run by posix_spawn(3), vfork(2) and a raw clone(2): see [`ForkGuard`].
///
/// # Errors
/// OutOfMemory when pthread_atfork(3) fails, or after 16 handlers.
pub fn at_fork_child(handler: fn()) -> io::Result<()> {
    install_fork_handler()?;
    let handler = handler as *mut ();
    for slot in &CHILD_HANDLERS {
        match slot.compare_exchange(
            std::ptr::null_mut(),
            handler,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Ok(()),
            Err(present) if present == handler => return Ok(()),
            Err(_) => {}
        }
    }
    Err(io::ErrorKind::OutOfMemory.into())
}

fn install_fork_handler() -> io::Result<()> {
    static ONCE: Once = Once::new();
    static RESULT: AtomicI32 = AtomicI32::new(0);
    ONCE.call_once(|| {
        // SAFETY: `in_fork_child` lives as long as this library, and pthread_atfork ties its
        // registration to the library.
        RESULT.store(
            unsafe { libc::pthread_atfork(None, None, Some(in_fork_child)) },
            Ordering::Release,
        );
    });
    match RESULT.load(Ordering::Acquire) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

unsafe extern "C" fn in_fork_child() {
    for slot in &FORK_CLOSED {
        let fd = slot.swap(0, Ordering::AcqRel);
        if fd != 0 {
            // SAFETY: the parent registered a descriptor of its own; in the child nothing uses it
            // any more, see ClosedOnFork.
            unsafe { libc::close(fd - 1) };
        }
    }
    for slot in &CHILD_HANDLERS {
        let handler = slot.load(Ordering::Acquire);
        if !handler.is_null() {
            // SAFETY: only `at_fork_child` stores here, and what it stores is a `fn()`.
            unsafe { std::mem::transmute::<*mut (), fn()>(handler)() };
        }
    }
}

const CLOSED: usize = 1024;
/// Descriptors plus one; 0 is a free entry.
static FORK_CLOSED: [AtomicI32; CLOSED] = [const { AtomicI32::new(0) }; CLOSED];

/// While this lives, a child of fork(3) finds the descriptor closed.
///
/// A child that keeps a socket open keeps its port and its name taken after the parent's death, and
/// one that changes a shared epoll instance changes the parent's. In the child the object that owns
/// the descriptor must not close it again: ask [`ForkGuard::is_child`] and forget it.
///
/// There is room for 1,024 descriptors a process; one beyond that stays open in children.
#[derive(Debug)]
pub struct ClosedOnFork {
    entry: Option<usize>,
}

impl ClosedOnFork {
    /// Registers a descriptor.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<ClosedOnFork> {
        install_fork_handler()?;
        let value = fd.as_raw_fd() + 1;
        let entry = FORK_CLOSED.iter().position(|slot| {
            slot.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        Ok(ClosedOnFork { entry })
    }
}

impl Drop for ClosedOnFork {
    fn drop(&mut self) {
        if let Some(slot) = self.entry.and_then(|entry| FORK_CLOSED.get(entry)) {
            slot.store(0, Ordering::Release);
        }
    }
}

/// Tells a process from a copy of it made by fork(2) or a raw clone(2): a page that the kernel wipes
/// in the copy (MADV_WIPEONFORK).
///
/// A child by vfork(2) or posix_spawn(3) shares the page as it shares all memory, and counts as its
/// parent.
#[derive(Debug)]
pub struct ForkGuard {
    page: Mapping,
    /// Where the kernel cannot wipe (before 4.14): compare process ids.
    pid: Option<u32>,
}

impl ForkGuard {
    /// Marks the present process.
    pub fn new() -> io::Result<ForkGuard> {
        let page = Mapping::anonymous(1)?;
        // SAFETY: the page is ours and private.
        let wiped =
            unsafe { libc::madvise(page.as_ptr().cast(), page.len(), libc::MADV_WIPEONFORK) == 0 };
        let guard = ForkGuard { page, pid: (!wiped).then(pid) };
        guard.mark().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this is a copy of the process that made the guard.
    #[inline]
    pub fn is_child(&self) -> bool {
        match self.pid {
            None => self.mark().load(Ordering::Relaxed) == 0,
            Some(owner) => owner != pid(),
        }
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: the mapping is page-aligned, at least a page long and lives as long as `self`; the
        // word is only accessed as this atomic.
        unsafe { NonNull::new_unchecked(self.page.as_ptr()).cast::<AtomicU32>().as_ref() }
    }
}

/// Runs `child` in a fork(2) of this process and returns its exit code, which is what `child`
/// returned; 101 if it panicked. For tests of what a forked child may do.
///
/// # Safety
/// What `child` calls is sound in a process in which the other threads have vanished, wherever they
/// were.
///
/// # Errors
/// As fork(2) and waitpid(2); Interrupted when a signal ended the child.
pub unsafe fn exit_code_of_fork(child: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: the caller answers for what runs in the child, which ends by _exit: it runs none of
    // the parent's exit handlers and unwinds none of its frames.
    unsafe { exit_code(libc::fork(), child) }
}

/// The same by a clone(2) that the C library does not know of: no handler of pthread_atfork(3) runs.
///
/// # Safety
/// As [`exit_code_of_fork`].
///
/// # Errors
/// As [`exit_code_of_fork`].
pub unsafe fn exit_code_of_clone(child: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: without CLONE_VM the child has a copy of this stack, as after fork(2); the pointers are
    // null. The caller answers for what runs in the child, as above.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
        exit_code(pid as libc::pid_t, child)
    }
}

/// # Safety
/// `forked` is what a call just returned that made a copy of this process; else as [`exit_code_of_fork`].
unsafe fn exit_code(forked: libc::pid_t, child: impl FnOnce() -> i32) -> io::Result<i32> {
    let pid = check(forked)?;
    if pid == 0 {
        let run = std::panic::AssertUnwindSafe(child);
        let code = std::panic::catch_unwind(run).unwrap_or(101);
        // SAFETY: the child ends; nothing of it is used any more.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a live integer; the child is ours.
    check(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        Err(io::ErrorKind::Interrupted.into())
    }
}

/// Gives up root for good: real, effective and saved group and user ids, and the supplementary
/// groups. For tests of what another user may do.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no pointers but a null list of length 0.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))?;
    }
    Ok(())
}

/// Has `handler` run when the process ends by exit(3) or a return from main, before the handlers that
/// were registered earlier; not when it ends by _exit(2) or a signal. In a child of fork(2) it runs
/// as well.
///
/// # Errors
/// OutOfMemory when atexit(3) fails, or after 16 handlers.
pub fn at_exit(handler: fn()) -> io::Result<()> {
    static HANDLERS: [AtomicPtr<()>; 16] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 16];
    static ONCE: Once = Once::new();
    static RESULT: AtomicI32 = AtomicI32::new(0);
    extern "C" fn run() {
        for slot in &HANDLERS {
            let handler = slot.load(Ordering::Acquire);
            if !handler.is_null() {
                // SAFETY: only `at_exit` stores here, and what it stores is a `fn()`.
                let handler = unsafe { std::mem::transmute::<*mut (), fn()>(handler) };
                // A panic must not cross the C library.
                let _ = std::panic::catch_unwind(handler);
            }
        }
    }
    let free = HANDLERS.iter().any(|slot| {
        let (empty, handler) = (std::ptr::null_mut(), handler as *mut ());
        slot.compare_exchange(empty, handler, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    // SAFETY: `run` lives as long as this library, to which the C library ties the registration.
    ONCE.call_once(|| RESULT.store(unsafe { libc::atexit(run) }, Ordering::Release));
    match RESULT.load(Ordering::Acquire) {
        0 if free => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

/// Sends a signal to a process (kill(2)).
pub fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    if pid == 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::process::{Command, Stdio};

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = |name: &str| format!("17 ({name}) S {} 4711 9 9", "0 ".repeat(18).trim());
        assert_eq!(parse_start_time(stat("a").as_bytes()), Some(4711));
        assert_eq!(parse_start_time(stat("a) R (b 1 2").as_bytes()), Some(4711));
        assert_eq!(parse_start_time(b"17 (a"), None);
        assert_eq!(parse_start_time(b"17 (a) S 1 2"), None);
        assert_eq!(start_time(pid()).unwrap(), start_time(pid()).unwrap());
        assert!(start_time(u32::MAX).is_err());
    }

    #[test]
    fn a_pidfd_sees_death_even_of_a_zombie() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pidfd = PidFd::open(child.id()).unwrap();
        assert!(pidfd.alive());
        signal(child.id(), libc::SIGKILL).unwrap();
        while pidfd.alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!pidfd.alive());
        let error = PidFd::open(child.id()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_descriptor_of_a_process_can_be_duplicated() {
        let file = File::open("/proc/self/status").unwrap();
        let pidfd = PidFd::open(pid()).unwrap();
        let copy = pidfd.duplicate(file.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
        assert!(pidfd.duplicate(-1).is_err());
    }

    #[test]
    fn a_descriptor_of_a_process_can_be_opened_by_its_number() {
        let memfd = crate::shm::Memfd::create(c"test", 4096).unwrap();
        let number = memfd.as_fd().as_raw_fd() as u32;
        let other = crate::shm::Memfd::received(open_descriptor(pid(), number, false).unwrap());
        assert_eq!(other.unwrap().size().unwrap(), 4096);
        assert!(open_descriptor(pid(), u32::MAX, false).is_err());
    }

    #[test]
    fn a_stopped_process_is_seen_to_be() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        assert!(!is_stopped(child.id()).unwrap());
        signal(child.id(), libc::SIGSTOP).unwrap();
        while !is_stopped(child.id()).unwrap() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_stopped(child.id()).is_err());
    }

    #[test]
    fn namespaces_have_numbers() {
        assert_ne!(namespace("net").unwrap(), 0);
        assert!(namespace("nonsense").is_err());
    }

    fn fork(child: fn() -> i32) -> i32 {
        // SAFETY: the children here touch atomics and descriptors only.
        unsafe { exit_code_of_fork(child) }.unwrap()
    }

    static GUARD: std::sync::OnceLock<ForkGuard> = std::sync::OnceLock::new();

    #[test]
    fn a_child_knows_that_it_is_one() {
        assert!(!GUARD.get_or_init(|| ForkGuard::new().unwrap()).is_child());
        assert_eq!(fork(|| i32::from(GUARD.get().is_some_and(ForkGuard::is_child))), 1);
        assert!(!GUARD.get().unwrap().is_child());
    }

    static KEPT: AtomicI32 = AtomicI32::new(-1);
    static CLOSED: AtomicI32 = AtomicI32::new(-1);
    static RAN: AtomicU32 = AtomicU32::new(0);

    fn is_open(fd: &AtomicI32) -> bool {
        // SAFETY: F_GETFD has no pointers.
        unsafe { libc::fcntl(fd.load(Ordering::Relaxed), libc::F_GETFD) >= 0 }
    }

    #[test]
    fn a_child_finds_the_registered_descriptors_closed_and_runs_handlers_once() {
        let kept = File::open("/dev/null").unwrap();
        let closed = File::open("/dev/null").unwrap();
        KEPT.store(kept.as_raw_fd(), Ordering::Relaxed);
        CLOSED.store(closed.as_raw_fd(), Ordering::Relaxed);
        let _token = ClosedOnFork::new(closed.as_fd()).unwrap();
        drop(ClosedOnFork::new(kept.as_fd()).unwrap());
        fn handler() {
            RAN.fetch_add(1, Ordering::Relaxed);
        }
        at_fork_child(handler).unwrap();
        at_fork_child(handler).unwrap();
        let code = fork(|| {
            i32::from(is_open(&KEPT))
                + 2 * i32::from(is_open(&CLOSED))
                + 4 * RAN.load(Ordering::Relaxed) as i32
        });
        assert_eq!(code, 1 + 4);
        assert!(is_open(&KEPT) && is_open(&CLOSED));
        assert_eq!(RAN.load(Ordering::Relaxed), 0);
    }
}
