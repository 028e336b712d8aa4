//! Event channels.

use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::event::{Queued, Subject};
use super::{CmError, CmEvent, CmId};
use crate::Host;
use crate::event::FdQueue;
use crate::host::Inner;

/// How long a reader makes progress itself before it sleeps, in nanoseconds: about what waking it costs.
const LINGER: u64 = 50_000;

/// Somebody sleeps whom only the background thread can wake.
struct Awake<'a>(&'a Inner);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.disarmed();
    }
}

/// Where events are told (rdma_create_event_channel(3)). A process may have several.
#[derive(Debug)]
pub struct EventChannel {
    host: Host,
    queue: FdQueue<Queued>,
    /// Tasks that wait for an event.
    wakers: Mutex<Vec<Waker>>,
    /// Waits that were begun and have not ended.
    sleepers: AtomicU32,
}

/// A wait that has begun.
#[derive(Copy, Clone, Debug)]
pub struct Prepared {
    /// The channel's descriptor.
    pub fd: RawFd,
    armed: bool,
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // Threads that were cancelled as they waited.
        for _ in 0..*self.sleepers.get_mut() {
            drop(Awake(&self.host.0));
        }
    }
}

impl EventChannel {
    /// A channel of this Host.
    ///
    /// # Errors
    /// ENODEV: the Host has no device. Otherwise as eventfd(2).
    pub fn new(host: &Host) -> Result<Arc<EventChannel>, CmError> {
        super::address::require_device(host)?;
        EventChannel::for_later(host)
    }

    /// A channel of this Host, which may have no device yet.
    ///
    /// # Errors
    /// As eventfd(2) and [`Host::devices`].
    pub fn for_later(host: &Host) -> Result<Arc<EventChannel>, CmError> {
        // What comes for an id is looked up among the devices that were seen.
        host.devices()?;
        let (queue, wakers) = (FdQueue::new()?, Mutex::default());
        let sleepers = AtomicU32::new(0);
        Ok(Arc::new(EventChannel { host: host.clone(), queue, wakers, sleepers }))
    }

    /// Its Host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Readable while an event waits; the caller may poll it and set O_NONBLOCK.
    pub fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    /// The next event (rdma_get_cm_event(3)). Blocks unless the descriptor is O_NONBLOCK (then EAGAIN); EINTR when a
    /// signal came; EPERM in a fork, which must not take its parent's events.
    ///
    /// Where a queue pair is attached, it is made ready before its [`CmEventKind::Established`] is returned.
    ///
    /// [`CmEventKind::Established`]: super::CmEventKind::Established
    pub fn next_event(&self) -> io::Result<CmEvent> {
        self.host.0.check()?;
        let orphans = Orphans::default();
        let _sleeps = self.linger();
        let mut event = self.queue.next(|queued| orphans.hand_out(queued))?;
        event.prepare();
        Ok(event)
    }

    /// The next event if there is one, whatever the descriptor's mode.
    pub fn try_next_event(&self) -> io::Result<Option<CmEvent>> {
        self.host.0.check()?;
        let orphans = Orphans::default();
        let mut event = self.queue.try_next(|queued| orphans.hand_out(queued))?;
        if let Some(event) = &mut event {
            event.prepare();
        }
        Ok(event)
    }

    /// Begins what [`EventChannel::next_event`] does, for who waits by himself, as C programs do whose threads may be
    /// cancelled: reads the eight bytes of an event from the descriptor, or only waits until it is readable. Then comes
    /// [`EventChannel::waited`]; where it never does, what this has begun ends with the channel.
    ///
    /// # Errors
    /// EPERM in a fork.
    pub fn prepare_to_wait(&self) -> io::Result<Prepared> {
        self.host.0.check()?;
        let sleeps = self.linger();
        let armed = sleeps.is_some();
        if armed {
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            std::mem::forget(sleeps);
        }
        Ok(Prepared { fd: self.fd(), armed })
    }

    /// Ends a wait that [`EventChannel::prepare_to_wait`] has begun.
    pub fn waited(&self, prepared: Prepared) {
        if prepared.armed {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
            drop(Awake(&self.host.0));
        }
    }

    /// The event whose eight bytes the caller has read from the descriptor; None: its id has gone meanwhile.
    ///
    /// # Errors
    /// EPERM in a fork.
    pub fn signalled_event(&self) -> io::Result<Option<CmEvent>> {
        self.host.0.check()?;
        let orphans = Orphans::default();
        let mut event = self.queue.signalled(|queued| orphans.hand_out(queued));
        if let Some(event) = &mut event {
            event.prepare();
        }
        Ok(event)
    }

    /// The next event, for a future: the task is woken when there is one.
    pub fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<CmEvent>> {
        {
            let mut wakers = self.wakers.lock();
            if !wakers.iter().any(|known| known.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
        }
        // Looked at after the waker is there: what comes from now on wakes it.
        match self.try_next_event() {
            Ok(Some(event)) => Poll::Ready(Ok(event)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Makes progress on this thread for a moment before it sleeps, as that often spares two threads their wake-ups.
    /// While the result lives, the background thread does not leave the work to others.
    fn linger(&self) -> Option<Awake<'_>> {
        let host = &self.host.0;
        if !self.queue.is_empty() || self.queue.is_nonblocking() || host.is_simulated() {
            return None;
        }
        let start = host.now();
        while host.clock.real(host.now().since(start)) < LINGER {
            host.poll_inline();
            if !self.queue.is_empty() {
                return None;
            }
        }
        host.armed();
        Some(Awake(host))
    }

    pub(super) fn push(&self, event: Queued) {
        self.queue.push(event);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes out the unread events of an id; of one that listens, the requests to it.
    pub(super) fn take(&self, id: &CmId) -> Vec<Queued> {
        self.queue.remove(|event| match &event.listen_id {
            Some(listener) => std::ptr::eq(listener.as_ptr(), id),
            None => event.id.is(id),
        })
    }

    /// Takes out the unread request that made an id.
    pub(super) fn take_request(&self, id: &CmId) -> Vec<Queued> {
        self.queue.remove(|event| matches!(event.id, Subject::New(_)) && event.id.is(id))
    }

    /// Takes out the unread events of one join.
    pub(super) fn take_tagged(&self, id: &CmId, tag: u64) {
        drop(self.queue.remove(|event| event.tag == tag && event.id.is(id)));
    }
}

/// Requests whose listener has gone meanwhile. They are dropped only when the queue is not locked any more.
#[derive(Default)]
struct Orphans(RefCell<Vec<Arc<CmId>>>);

impl Orphans {
    /// The event, if there is still somebody whom it is about.
    fn hand_out(&self, mut queued: Queued) -> Option<CmEvent> {
        let known = Subject::Known(Weak::new());
        let id = match std::mem::replace(&mut queued.id, known) {
            Subject::Known(id) => id.upgrade()?,
            Subject::New(id) => id,
        };
        let listener = queued.listen_id.as_ref().map(Weak::upgrade);
        if let Some(None) = listener {
            self.0.borrow_mut().push(id);
            return None;
        }
        Some(CmEvent::hand_out(queued, id, listener.flatten()))
    }
}
