//! Event channels: of the software devices' connection manager, of the kernel's, or of both.
//!
//! Where both are to be had, the descriptor that a program polls is an epoll(7) instance that watches theirs. What is
//! told of either is readable there, and `O_NONBLOCK`, which means nothing to such a descriptor, is looked up when an
//! event is asked for. The kernel's connection manager is opened whether or not there are devices: they may come.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use ironverbs::raw as soft;
use ironverbs_sys::cancel;
use ironverbs_sys::event::{self as sys_event, Epoll, Interest};
use ironverbs_sys::process;
use soft::cm::EventChannel;
use soft::config::Soft;

use super::objects::{self, ChannelView};
use super::{event, kernel};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::host::host;
use crate::pool::Object;

/// What stands behind a channel of a program.
pub(super) struct Channel {
    soft: Option<Arc<EventChannel>>,
    kernel: Option<Arc<kernel::Channel>>,
    /// Watches both, where there are both.
    both: Option<Epoll>,
    /// Who is asked first next time, so that neither starves the other.
    kernels_turn: AtomicBool,
    reader: Reader,
}

/// The thread that read last: with [`WAITS`] it waits, without it took an event and has not come back for the next; 0: none.
#[derive(Default)]
struct Reader(AtomicU32);

/// No thread's id has this bit (PID_MAX_LIMIT).
const WAITS: u32 = 1 << 31;

/// How long, and how often, the end of a channel looks whether its reader is back.
const BACK: Duration = Duration::from_micros(250);
const LOOKS: u32 = 200;

impl Reader {
    fn takes(&self) {
        self.0.store(process::thread_id(), Ordering::Release);
    }

    fn waits(&self) {
        self.0.store(process::thread_id() | WAITS, Ordering::Release);
    }

    fn is_gone(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether a thread waits, now that the channel ends. Many programs let a thread read events until they end: one that is
    /// on its way back would find no channel, and say so. It is given a moment, as with the kernel's connection manager,
    /// where the end of an id takes longer than that way.
    fn waits_at_the_end(&self) -> bool {
        for _ in 0..LOOKS {
            let reader = self.0.load(Ordering::Acquire);
            let thread = reader & !WAITS;
            if thread == 0 || thread == process::thread_id() || !process::has_thread(thread) {
                return false;
            }
            if reader != thread {
                return true;
            }
            thread::sleep(BACK);
        }
        false
    }
}

/// An event that was read.
pub(super) struct Read {
    pub(super) c: *mut rdma_cm_event,
    pub(super) event: u32,
    pub(super) status: i32,
}

impl Channel {
    fn open() -> Outcome<Channel> {
        let host = host()?;
        let single = |soft, kernel| Channel {
            soft,
            kernel,
            both: None,
            kernels_turn: AtomicBool::new(false),
            reader: Reader::default(),
        };
        let kernels = match host.config().soft.value {
            Soft::Only => return Ok(single(Some(EventChannel::new(host)?), None)),
            Soft::Off => return Ok(single(None, Some(kernel::Channel::open()?))),
            Soft::Also => kernel::Channel::open(),
        };
        let Ok(kernels) = kernels else {
            return Ok(single(Some(EventChannel::new(host)?), None));
        };
        let soft = match kernel::has_devices() {
            // One may come later.
            true => EventChannel::for_later(host)?,
            false => EventChannel::new(host)?,
        };
        let both = Epoll::new()?;
        // SAFETY: the channel's own descriptor, open as long as the channel.
        both.add(unsafe { BorrowedFd::borrow_raw(soft.fd()) }, 0, Interest::READ)?;
        kernels.share()?;
        both.add(kernels.fd.as_fd(), 1, Interest::READ)?;
        Ok(Channel { both: Some(both), ..single(Some(soft), Some(kernels)) })
    }

    fn fd(&self) -> i32 {
        match self {
            Channel { both: Some(both), .. } => both.as_fd().as_raw_fd(),
            Channel { soft: Some(soft), .. } => soft.fd(),
            Channel { kernel: Some(kernel), .. } => kernel.fd.as_raw_fd(),
            _ => -1,
        }
    }

    /// The software devices' part.
    pub(super) fn soft(&self) -> Option<&Arc<EventChannel>> {
        self.soft.as_ref()
    }

    /// The kernel's part.
    pub(super) fn kernel(&self) -> Option<&Arc<kernel::Channel>> {
        self.kernel.as_ref()
    }

    /// The next event of either, in its C structure. Waits unless the program has set `O_NONBLOCK`.
    pub(super) fn next(&self) -> Outcome<Read> {
        let mut signalled = false;
        loop {
            if let Some(read) = self.try_next(signalled)? {
                return Ok(read);
            }
            let wait = self.prepare()?;
            self.end(&wait, wait.run())?;
            signalled = true;
        }
    }

    /// The next event if there is one, for who waits by himself: `signalled` after a [`Wait`] has ended well. Where there is
    /// one part only, that may have to come first.
    fn try_next(&self, signalled: bool) -> Outcome<Option<Read>> {
        match self {
            Channel { both: Some(_), soft: Some(soft), kernel: Some(kernel), .. } => {
                self.take(soft, kernel)
            }
            Channel { soft: Some(soft), .. } if signalled => {
                let signal = Cell::new(true);
                event::next(|| match signal.replace(false) {
                    true => soft.signalled_event(),
                    false => soft.try_next_event(),
                })
            }
            // Whose descriptor blocks would wait here, where the thread cannot be cancelled.
            Channel { soft: None, kernel: Some(kernel), .. }
                if signalled || sys_event::is_nonblocking(kernel.fd.as_fd()) =>
            {
                kernel::next(kernel).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Begins to wait for an event.
    fn prepare(&self) -> Outcome<Wait> {
        if self.both.as_ref().is_some_and(Epoll::is_nonblocking) {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN).into());
        }
        let by_soft = self.soft.as_ref().map(|soft| soft.prepare_to_wait()).transpose()?;
        let reads = self.both.is_none() && by_soft.is_some();
        Ok(Wait { fd: self.fd(), by_soft, reads })
    }

    /// Ends a wait that came out so.
    fn end(&self, wait: &Wait, waited: Result<(), i32>) -> Outcome<()> {
        if let (Some(soft), Some(prepared)) = (&self.soft, wait.by_soft) {
            soft.waited(prepared);
        }
        waited.map_err(|errno| io::Error::from_raw_os_error(errno).into())
    }

    fn take(
        &self,
        soft: &Arc<EventChannel>,
        kernel: &Arc<kernel::Channel>,
    ) -> Outcome<Option<Read>> {
        let turn = self.kernels_turn.load(Ordering::Relaxed);
        for kernels in [turn, !turn] {
            let read = match kernels {
                true => kernel::try_next(kernel)?,
                false => event::next(|| soft.try_next_event())?,
            };
            if read.is_some() {
                self.kernels_turn.store(!kernels, Ordering::Relaxed);
                return Ok(read);
            }
        }
        Ok(None)
    }
}

/// rdma_create_event_channel(3): NULL with ENODEV where there is no device.
pub(crate) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    fail::object("rdma_create_event_channel", || Ok(create()?.0))
}

/// A channel and its C structure.
pub(super) fn create() -> Outcome<(*mut rdma_event_channel, Arc<Channel>)> {
    let channel = Arc::new(Channel::open()?);
    let fd = channel.fd();
    let view = ChannelView(channel.clone());
    let object = rdma_event_channel::pool().insert(view, |object, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(rdma_event_channel { fd }) };
    })?;
    Ok((object.as_ptr(), channel))
}

/// The channel that a program gives for an id, or one of the id's own, which then works synchronously.
///
/// # Safety
/// As for [`objects::find`].
pub(super) unsafe fn given_or_own(
    c: *mut rdma_event_channel,
) -> Outcome<(*mut rdma_event_channel, Arc<Channel>)> {
    match c.is_null() {
        true => create(),
        // SAFETY: the caller's promise.
        false => Ok((c, unsafe { objects::channel(c)? })),
    }
}

/// rdma_get_cm_event(3).
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a pointer.
pub(crate) unsafe extern "C-unwind" fn get_cm_event(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_event,
) -> i32 {
    let find = || {
        objects::given("event", out)?;
        // SAFETY: the caller's promise.
        unsafe { objects::channel(channel) }
    };
    next_event("rdma_get_cm_event", find, |event| {
        // SAFETY: the caller's promise.
        unsafe { out.write(event.c) };
        Ok(())
    })
}

/// How a thread waits for an event.
#[derive(Copy, Clone)]
struct Wait {
    fd: i32,
    /// What the software devices' part has begun.
    by_soft: Option<soft::cm::Prepared>,
    /// Reads an event's eight bytes, instead of waiting until there is something to read.
    reads: bool,
}

impl Wait {
    /// The errno of why it failed. A thread that may be cancelled is, here.
    fn run(&self) -> Result<(), i32> {
        match self.reads {
            true => cancel::read(self.fd, &mut [0; 8]).map(|_| ()),
            false => cancel::wait_readable(self.fd, -1).map(|_| ()),
        }
    }
}

/// As [`Channel::next`], for a thread that the program may cancel; does `take` with the event. 0, or -1 and errno.
///
/// Neither closure may own anything: a cancellation unwinds this frame.
pub(super) fn next_event(
    verb: &'static str,
    find: impl Fn() -> Outcome<Arc<Channel>>,
    take: impl Fn(Read) -> Outcome<()>,
) -> i32 {
    let mut signalled = false;
    loop {
        let begun = fail::returned(verb, || {
            let channel = find()?;
            match channel.try_next(signalled)? {
                Some(event) => {
                    take(event)?;
                    channel.reader.takes();
                    Ok(None)
                }
                None => {
                    let wait = channel.prepare().inspect_err(|_| channel.reader.is_gone())?;
                    channel.reader.waits();
                    Ok(Some(wait))
                }
            }
        });
        let wait = match begun {
            Ok(Some(wait)) => wait,
            Ok(None) => return 0,
            Err(_) => return -1,
        };
        let waited = wait.run();
        let end = || {
            let channel = find()?;
            channel.reader.takes();
            channel.end(&wait, waited).inspect_err(|_| channel.reader.is_gone())
        };
        if fail::returned(verb, end).is_err() {
            return -1;
        }
        signalled = true;
    }
}

/// rdma_destroy_event_channel(3). Its descriptor is closed with the last id that uses it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    fail::silent("rdma_destroy_event_channel", || destroy(channel));
}

pub(super) fn destroy(channel: *mut rdma_event_channel) -> Outcome<()> {
    // SAFETY: channels have no handle to be read; the address is compared.
    let ending = unsafe { objects::channel(channel)? };
    if ending.reader.waits_at_the_end() {
        // Its descriptor stays: the number may be another's before the thread has begun to wait for it.
        mem::forget(ending);
    }
    // SAFETY: as above.
    let number = unsafe { rdma_event_channel::pool().find(channel)? }.number();
    rdma_event_channel::pool().remove(number);
    Ok(())
}

/// rdma_migrate_id(3): to no channel makes an id synchronous.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn migrate_id(
    id: *mut rdma_cm_id,
    to: *mut rdma_event_channel,
) -> i32 {
    // SAFETY: the caller's promise.
    fail::number("rdma_migrate_id", || unsafe { migrate(id, to) }.map(|()| 0))
}

/// Moves an id to a channel, or to one of its own: what of it lives in either world.
///
/// # Safety
/// As for [`objects::find`].
pub(super) unsafe fn migrate(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let halves = unsafe { objects::halves(id)? };
    let soft = halves.soft.clone().map(|half| objects::Handle { c: id, id: half });
    let kernels = halves.kernel.clone().map(|half| kernel::Handle { c: id, id: half });
    let was_sync = soft.as_ref().is_some_and(objects::Handle::is_sync)
        || kernels.as_ref().is_some_and(kernel::Handle::is_sync);
    if was_sync && to.is_null() {
        return Err(Failure::Null { what: "event channel of a synchronous id" });
    }
    // SAFETY: the caller's promise.
    let (c, channel) = unsafe { given_or_own(to)? };
    if let Some(soft) = &soft {
        soft.drop_event();
    } else if let Some(kernels) = &kernels {
        kernels.drop_event();
    }
    let moved = moved(&channel, soft.as_ref(), kernels.as_ref());
    if moved.is_err() && to.is_null() {
        let _ = destroy(c);
    }
    moved?;
    if let Some(soft) = &soft {
        soft.id.parts.lock().sync = to.is_null();
    }
    if let Some(kernels) = &kernels {
        kernels.id.parts.lock().sync = to.is_null();
    }
    objects::change(id, |halves| halves.channel = channel)?;
    // SAFETY: the place was found alive; a program does not touch an id while it calls us with it.
    let shown = unsafe { ptr::replace(&raw mut (*id).channel, c) };
    if was_sync {
        let _ = destroy(shown);
    }
    Ok(())
}

fn moved(
    to: &Channel,
    soft: Option<&objects::Handle>,
    kernels: Option<&kernel::Handle>,
) -> Outcome<()> {
    let lacks = || Failure::Io(io::Error::from_raw_os_error(libc::ENODEV));
    let mut back = None;
    if let Some(kernels) = kernels {
        let target = to.kernel.as_ref().ok_or_else(lacks)?;
        back = Some((kernels, kernels.migrate(target)?));
    }
    let Some(soft) = soft else { return Ok(()) };
    let moved = match &to.soft {
        Some(target) => soft.id.soft.migrate(target).map_err(Failure::from),
        None => Err(lacks()),
    };
    if moved.is_err()
        && let Some((kernels, old)) = back
    {
        let _ = kernels.migrate(&old);
    }
    moved
}
