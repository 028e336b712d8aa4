//! Asynchronous events: a queue behind a pollable descriptor, and the count of those unacknowledged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use ironverbs_sys::event::{EventFd, EventMode};
use ironverbs_transport::device::QpEvent;
use ironverbs_wire::Gid;
use parking_lot::{Condvar, Mutex};

use crate::status::Wait;
use crate::{Context, Cq, Qp, Srq};

/// What happened (`enum ibv_event_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum EventKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
    /// A GID came into service; this and the next three are of this project, with numbers clear of rdma-core's.
    GidAvail = 0x1_0000,
    GidUnavail = 0x1_0001,
    McgCreated = 0x1_0002,
    McgDeleted = 0x1_0003,
}

impl From<QpEvent> for EventKind {
    fn from(event: QpEvent) -> Self {
        match event {
            QpEvent::Fatal => EventKind::QpFatal,
            QpEvent::RequestError => EventKind::QpReqErr,
            QpEvent::AccessError => EventKind::QpAccessErr,
            QpEvent::CommunicationEstablished => EventKind::CommEst,
            QpEvent::SendQueueDrained => EventKind::SqDrained,
            QpEvent::LastWqeReached => EventKind::QpLastWqeReached,
        }
    }
}

/// Whom it happened to.
#[derive(Clone, Debug)]
pub enum EventSource {
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A shared receive queue.
    Srq(Arc<Srq>),
    /// A port, from 1.
    Port(u8),
    /// The whole device.
    Device,
    /// A GID of the subnet: a port's, or a multicast group's.
    Gid(Gid),
}

impl EventSource {
    fn context(&self) -> Option<&Context> {
        match self {
            EventSource::Qp(qp) => Some(qp.context()),
            EventSource::Cq(cq) => Some(cq.context()),
            EventSource::Srq(srq) => Some(srq.context()),
            EventSource::Port(_) | EventSource::Device | EventSource::Gid(_) => None,
        }
    }

    fn count(&self) -> Option<&EventCount> {
        match self {
            EventSource::Qp(qp) => Some(&qp.events),
            EventSource::Cq(cq) => Some(&cq.async_events),
            EventSource::Srq(srq) => Some(&srq.events),
            EventSource::Port(_) | EventSource::Device | EventSource::Gid(_) => None,
        }
    }
}

/// An asynchronous event (`struct ibv_async_event`). Its source cannot be destroyed before it is acknowledged.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// To whom.
    pub source: EventSource,
}

impl AsyncEvent {
    /// Acknowledges the event (ibv_ack_async_event(3)); call it once for each event read.
    pub fn ack(&self) {
        // A fork's copy of the lock may be held for ever.
        if let Some(context) = self.source.context()
            && context.inner().check().is_err()
        {
            return;
        }
        if let Some(count) = self.source.count() {
            count.acknowledge(1);
        }
    }
}

/// Events handed out for an object and not yet acknowledged.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    unacknowledged: Mutex<u32>,
    none_left: Condvar,
}

impl EventCount {
    pub(crate) fn hand_out(&self) {
        *self.unacknowledged.lock() += 1;
    }

    pub(crate) fn acknowledge(&self, n: u32) {
        let mut count = self.unacknowledged.lock();
        *count = count.saturating_sub(n);
        self.none_left.notify_all();
    }

    /// Blocks until every event handed out is acknowledged, as the man pages of the destroy verbs ask; if it does,
    /// `tell` says so to others.
    pub(crate) fn wait<'a>(&self, tell: impl FnOnce() -> Option<Wait<'a>>) {
        let mut count = self.unacknowledged.lock();
        let told = if *count > 0 { tell() } else { None };
        while *count > 0 {
            if let Some(told) = &told {
                told.remaining(*count);
            }
            self.none_left.wait(&mut count);
        }
    }
}

/// A queue of `T` with a descriptor that is readable while the queue holds something.
#[derive(Debug)]
pub(crate) struct FdQueue<T> {
    fd: EventFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> FdQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(FdQueue {
            fd: EventFd::new(EventMode::Semaphore, false)?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }

    /// As [`FdQueue::next`], but None instead of waiting.
    pub(crate) fn try_next<U>(&self, take: impl Fn(T) -> Option<U>) -> io::Result<Option<U>> {
        while self.fd.try_read()?.is_some() {
            if let Some(item) = self.signalled(&take) {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Whether the caller has made the descriptor O_NONBLOCK.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.fd.is_nonblocking()
    }

    pub(crate) fn push(&self, item: T) {
        let mut queue = self.queue.lock();
        queue.push_back(item);
        // A failed signal (descriptor closed behind our back) leaves the entry for a later read.
        let _ = self.fd.signal();
    }

    /// What `take` makes of the next entry of which it makes anything; waits for one unless the descriptor is
    /// O_NONBLOCK. `take` runs before anyone can see the queue without the entry.
    pub(crate) fn next<U>(&self, take: impl Fn(T) -> Option<U>) -> io::Result<U> {
        loop {
            self.fd.read()?;
            if let Some(item) = self.signalled(&take) {
                return Ok(item);
            }
        }
    }

    /// The entry of which one signal was read from the descriptor, if `take` makes anything of it.
    pub(crate) fn signalled<U>(&self, take: impl Fn(T) -> Option<U>) -> Option<U> {
        self.queue.lock().pop_front().and_then(take)
    }

    /// Takes out the entries that `gone` names.
    pub(crate) fn remove(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = self.queue.lock();
        let (removed, kept): (Vec<T>, Vec<T>) = queue.drain(..).partition(&gone);
        queue.extend(kept);
        for _ in &removed {
            let _ = self.fd.try_read();
        }
        removed
    }
}

fn hand_out((kind, source): (EventKind, Source)) -> Option<AsyncEvent> {
    let source = source.present()?;
    if let Some(count) = source.count() {
        count.hand_out();
    }
    Some(AsyncEvent { kind, source })
}

/// The asynchronous events of a context that nobody has read. They do not keep their objects.
#[derive(Debug)]
pub(crate) struct AsyncQueue(FdQueue<(EventKind, Source)>);

/// An [`EventSource`] that may be gone.
#[derive(Debug)]
enum Source {
    Qp(Weak<Qp>),
    Cq(Weak<Cq>),
    Srq(Weak<Srq>),
    Port(u8),
    Device,
    Gid(Gid),
}

impl Source {
    fn of(source: &EventSource) -> Source {
        match source {
            EventSource::Qp(qp) => Source::Qp(Arc::downgrade(qp)),
            EventSource::Cq(cq) => Source::Cq(Arc::downgrade(cq)),
            EventSource::Srq(srq) => Source::Srq(Arc::downgrade(srq)),
            EventSource::Port(port) => Source::Port(*port),
            EventSource::Device => Source::Device,
            EventSource::Gid(gid) => Source::Gid(*gid),
        }
    }

    fn present(self) -> Option<EventSource> {
        match self {
            Source::Qp(qp) => qp.upgrade().map(EventSource::Qp),
            Source::Cq(cq) => cq.upgrade().map(EventSource::Cq),
            Source::Srq(srq) => srq.upgrade().map(EventSource::Srq),
            Source::Port(port) => Some(EventSource::Port(port)),
            Source::Device => Some(EventSource::Device),
            Source::Gid(gid) => Some(EventSource::Gid(gid)),
        }
    }

    fn is(&self, object: *const ()) -> bool {
        match self {
            Source::Qp(qp) => std::ptr::eq(qp.as_ptr().cast(), object),
            Source::Cq(cq) => std::ptr::eq(cq.as_ptr().cast(), object),
            Source::Srq(srq) => std::ptr::eq(srq.as_ptr().cast(), object),
            Source::Port(_) | Source::Device | Source::Gid(_) => false,
        }
    }
}

impl AsyncQueue {
    pub(crate) fn new() -> io::Result<Self> {
        FdQueue::new().map(AsyncQueue)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.fd()
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        self.0.push((event.kind, Source::of(&event.source)));
    }

    pub(crate) fn next_event(&self) -> io::Result<AsyncEvent> {
        self.0.next(hand_out)
    }

    /// The event of which one signal was read from the descriptor, if its object is there.
    pub(crate) fn signalled(&self) -> Option<AsyncEvent> {
        self.0.signalled(hand_out)
    }

    /// Takes out the events of an object.
    pub(crate) fn forget<T>(&self, object: *const T) {
        drop(self.0.remove(|(_, source)| source.is(object.cast())));
    }
}
