//! Completion channels: where a CQ says that completions have come.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use crate::event::FdQueue;
use crate::object::Identity;
use crate::{Context, Cq, Error};

/// A completion channel (ibv_create_comp_channel(3)).
#[derive(Debug)]
pub struct Channel {
    pub(crate) identity: Identity,
    pub(crate) queue: FdQueue<Weak<Cq>>,
    pub(crate) users: AtomicUsize,
    context: Arc<Context>,
}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Channel>, Error> {
        Ok(Arc::new(Channel {
            identity: context.inner().identity("completion channel"),
            queue: FdQueue::new()?,
            users: AtomicUsize::new(0),
            context: context.clone(),
        }))
    }

    /// Readable while an event waits; the caller may poll it and set O_NONBLOCK.
    pub fn fd(&self) -> RawFd {
        self.queue.fd()
    }

    /// The CQ of the next event, to be acknowledged with [`Cq::ack_events`]. Blocks unless the descriptor is
    /// O_NONBLOCK (then EAGAIN); EINTR when a signal came; EPERM in a fork, which must not take its parent's events.
    pub fn next_event(&self) -> io::Result<Arc<Cq>> {
        self.context.inner().check()?;
        self.queue.next(|cq| cq.upgrade().inspect(|cq| cq.comp_events.hand_out()))
    }

    /// The descriptor, for who reads the eight bytes of an event from it by himself, and then calls
    /// [`Channel::signalled_event`].
    ///
    /// # Errors
    /// EPERM in a fork, which must not take its parent's events.
    pub fn event_fd(&self) -> io::Result<RawFd> {
        self.context.inner().check()?;
        Ok(self.fd())
    }

    /// The CQ of the event whose eight bytes the caller has read from the descriptor; None: it has gone meanwhile.
    ///
    /// # Errors
    /// As [`Channel::event_fd`].
    pub fn signalled_event(&self) -> io::Result<Option<Arc<Cq>>> {
        self.context.inner().check()?;
        Ok(self.queue.signalled(|cq| cq.upgrade().inspect(|cq| cq.comp_events.hand_out())))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Destroys the channel; Busy while a CQ uses it (ibv_destroy_comp_channel(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire_unless_used(&self.users)
    }
}

crate::object::accessors!(Channel);
