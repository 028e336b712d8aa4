//! Asynchronous events: a queue behind a pollable descriptor, and the count of those unacknowledged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use ironverbs_sys::event::{EventFd, EventMode};
use ironverbs_transport::device::QpEvent;
use parking_lot::{Condvar, Mutex};

use crate::{Cq, Qp, Srq};

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
}

impl EventSource {
    fn count(&self) -> Option<&EventCount> {
        match self {
            EventSource::Qp(qp) => Some(&qp.events),
            EventSource::Cq(cq) => Some(&cq.async_events),
            EventSource::Srq(srq) => Some(&srq.events),
            EventSource::Port(_) | EventSource::Device => None,
        }
    }

    fn is(&self, object: *const ()) -> bool {
        match self {
            EventSource::Qp(qp) => std::ptr::eq(Arc::as_ptr(qp).cast(), object),
            EventSource::Cq(cq) => std::ptr::eq(Arc::as_ptr(cq).cast(), object),
            EventSource::Srq(srq) => std::ptr::eq(Arc::as_ptr(srq).cast(), object),
            EventSource::Port(_) | EventSource::Device => false,
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
        if *count == 0 {
            self.none_left.notify_all();
        }
    }

    /// Blocks until every event handed out is acknowledged, as the man pages of the destroy verbs ask.
    pub(crate) fn wait(&self) {
        let mut count = self.unacknowledged.lock();
        while *count > 0 {
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

    pub(crate) fn push(&self, item: T) {
        let mut queue = self.queue.lock();
        queue.push_back(item);
        // A failed signal (descriptor closed behind our back) leaves the entry for a later read.
        let _ = self.fd.signal();
    }

    /// The next entry; waits for one unless the descriptor is O_NONBLOCK. `taken` runs before anyone
    /// can see the queue without the entry.
    pub(crate) fn next(&self, taken: impl Fn(&T)) -> io::Result<T> {
        loop {
            self.fd.read()?;
            let mut queue = self.queue.lock();
            if let Some(item) = queue.pop_front() {
                taken(&item);
                return Ok(item);
            }
        }
    }

    /// Takes out the entries that `gone` names.
    pub(crate) fn remove(&self, gone: impl Fn(&T) -> bool) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|item| !gone(item));
        for _ in queue.len()..before {
            let _ = self.fd.try_read();
        }
    }
}

/// The asynchronous events of a context.
pub(crate) type AsyncQueue = FdQueue<AsyncEvent>;

impl FdQueue<AsyncEvent> {
    pub(crate) fn next_event(&self) -> io::Result<AsyncEvent> {
        self.next(|event| {
            if let Some(count) = event.source.count() {
                count.hand_out();
            }
        })
    }

    pub(crate) fn forget<T>(&self, object: *const T) {
        self.remove(|event| event.source.is(object.cast()));
    }
}
