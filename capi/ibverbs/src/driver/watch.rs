//! Devices that go while they are open.
//!
//! Of a device whose driver can let go of programs at any time the kernel says DEVICE_FATAL itself. Those of rxe and siw cannot:
//! their end waits until nobody has them open, and nobody is told. So the descriptor of their contexts for events is an epoll(7)
//! instance, which hears both the kernel's events and that the device's file has lost its name (inotify(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use ironverbs_kernel::event;
use ironverbs_kernel::rxe;
use ironverbs_sys::event::{Epoll, EventFd, EventMode, Interest, set_nonblocking};
use ironverbs_sys::{cancel, uverbs};

use crate::abi::*;

/// `RDMA_DRIVER_SIW`.
const SIW: u32 = 18;
const DEVICE_FATAL: u32 = 8;

/// What stands behind the descriptor for events of a context.
pub(super) struct Watch {
    both: Epoll,
    /// The kernel's events.
    kernel: OwnedFd,
    /// What happens to the device's file.
    file: OwnedFd,
    /// DEVICE_FATAL is told once.
    told: AtomicBool,
}

impl Watch {
    /// For a context that has its descriptors, which from then on has another one for events. None where the kernel says it
    /// itself, and where this user may watch no more files.
    ///
    /// # Safety
    /// `context` is a driver's, used by nobody else yet.
    pub(super) unsafe fn begin(context: *mut ibv_context, driver_id: u32) -> Option<Watch> {
        if driver_id != rxe::DRIVER && driver_id != SIW {
            return None;
        }
        // SAFETY: the caller's promise; the descriptors are the context's.
        unsafe {
            let file = watched((*context).cmd_fd).ok()?;
            let both = Epoll::new().ok()?;
            let kernel = BorrowedFd::borrow_raw((*context).async_fd);
            both.add(kernel, 0, Interest::READ).ok()?;
            both.add(file.as_fd(), 1, Interest::READ).ok()?;
            // Several threads may wait for one event.
            set_nonblocking(kernel).ok()?;
            let kernel = OwnedFd::from_raw_fd((*context).async_fd);
            (*context).async_fd = both.as_fd().as_raw_fd();
            Some(Watch { both, kernel, file, told: AtomicBool::new(false) })
        }
    }

    /// The next event, for which it waits unless the program has set O_NONBLOCK: as [`uverbs::read_event`]. `cmd_fd` is the
    /// context's.
    pub(super) fn next(&self, cmd_fd: i32, record: &mut [u8; event::ASYNC]) -> Result<(), i32> {
        loop {
            match uverbs::read_event(self.kernel.as_fd(), record) {
                Err(libc::EAGAIN) => {}
                Ok(()) if event::asynchronous(record).1 == DEVICE_FATAL => {
                    // Not said here already.
                    if !self.told.swap(true, Ordering::AcqRel) {
                        return Ok(());
                    }
                }
                other => return other,
            }
            self.drain();
            if is_nameless(cmd_fd) && !self.told.swap(true, Ordering::AcqRel) {
                *record = event::of_device(DEVICE_FATAL);
                return Ok(());
            }
            if self.both.is_nonblocking() {
                return Err(libc::EAGAIN);
            }
            cancel::wait_readable(self.both.as_fd().as_raw_fd(), -1)?;
        }
    }

    /// What is told of the file is that something has changed: what it is now is looked at.
    fn drain(&self) {
        let mut bytes = [0_u8; 512];
        // SAFETY: the descriptor is ours, and does not block; the bytes are there.
        while unsafe { libc::read(self.file.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) }
            > 0
        {}
    }

    /// Closes the kernel's file: nothing comes any more.
    pub(super) fn let_go(&self) {
        nowhere(self.kernel.as_raw_fd());
    }
}

/// Makes a descriptor lead to nothing that ever happens.
pub(super) fn nowhere(fd: i32) {
    if let (Ok(nothing), true) = (EventFd::new(EventMode::Counter, true), fd >= 0) {
        // SAFETY: takes no pointers; both are open.
        unsafe { libc::dup2(nothing.as_fd().as_raw_fd(), fd) };
    }
}

/// An inotify(7) instance for the very file behind a descriptor.
fn watched(fd: i32) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{fd}\0");
    // SAFETY: the path is a string that ends; a descriptor that was made is ours.
    unsafe {
        let made = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        let made = OwnedFd::from_raw_fd(made);
        // The loss of a name is a change of the number of names.
        if libc::inotify_add_watch(made.as_raw_fd(), path.as_ptr().cast(), libc::IN_ATTRIB) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(made)
    }
}

/// Whether the file behind a descriptor has no name any more.
fn is_nameless(fd: i32) -> bool {
    // SAFETY: zeroes are a valid structure of numbers, which is there.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut stat) == 0 && stat.st_nlink == 0
    }
}
