//! Operations in flight, as futures.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::block;
use crate::buffer::Returned;
use crate::completion::{Kind, Value, result};
use crate::error::CompletionError;
use crate::queue::{Queue, Ticket};

/// What an operation comes to: its value or why it failed, and its buffers.
pub type Output<R, K> = (Result<Value<K>, CompletionError>, R);

/// An operation that was posted. Await it under any executor, or [`wait`](Op::wait) for it, or
/// [`spin`](Op::spin) for it.
///
/// The queue owns its buffers until it has completed. Dropping this only loses interest: the operation goes on,
/// and its buffers are dropped when it is over.
#[must_use = "a dropped operation goes on, but its result and its buffers are lost"]
pub struct Op<R: Returned, K: Kind> {
    queue: Arc<Queue>,
    /// None once the result was handed out.
    ticket: Option<Ticket>,
    kind: PhantomData<fn() -> (R, K)>,
}

/// How long a blocking wait spins before it sleeps: waking up takes about as long.
const SPIN: Duration = Duration::from_micros(40);

impl<R: Returned, K: Kind> Op<R, K> {
    pub(crate) fn new(queue: &Arc<Queue>, ticket: Ticket) -> Op<R, K> {
        Op { queue: queue.clone(), ticket: Some(ticket), kind: PhantomData }
    }

    /// Waits for the end: spins for a moment, then sleeps.
    pub fn wait(mut self) -> Output<R, K> {
        match self.spin_for(SPIN) {
            Some(output) => output,
            None => block::on(&mut self),
        }
    }

    /// Waits for the end, at most for `timeout`.
    ///
    /// # Errors
    /// The operation itself, which is still in flight.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Output<R, K>, Op<R, K>> {
        if let Some(output) = self.spin_for(SPIN.min(timeout)) {
            return Ok(output);
        }
        block::on_for(&mut self, timeout).ok_or(self)
    }

    /// Waits for the end and never sleeps, driving the device: the lowest latency, for a core.
    pub fn spin(mut self) -> Output<R, K> {
        loop {
            if let Some(output) = self.take() {
                return output;
            }
            self.queue.poll();
        }
    }

    /// The result if it is there, without driving the device: see [`Cq::poll`](crate::Cq::poll).
    ///
    /// # Errors
    /// The operation itself, which is still in flight.
    pub fn try_take(mut self) -> Result<Output<R, K>, Op<R, K>> {
        self.take().ok_or(self)
    }

    fn spin_for(&mut self, time: Duration) -> Option<Output<R, K>> {
        let start = Instant::now();
        loop {
            if let Some(output) = self.take() {
                return Some(output);
            }
            self.queue.poll();
            if start.elapsed() >= time {
                return self.take();
            }
        }
    }

    fn take(&mut self) -> Option<Output<R, K>> {
        let (outcome, mut held, asked) = self.queue.take(self.ticket?)?;
        self.ticket = None;
        let result = result::<K>(&outcome, &held, &asked);
        if result.is_ok() {
            held.settle();
        }
        // What comes back is what was held for this operation, whose type this is.
        R::give_back(held).map(|buffers| (result, buffers))
    }
}

impl<R: Returned, K: Kind> Future for Op<R, K> {
    type Output = Output<R, K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(output) = self.take() {
            return Poll::Ready(output);
        }
        // After the end nothing more comes.
        let Some(ticket) = self.ticket else { return Poll::Pending };
        self.queue.poll();
        if self.queue.register(ticket, cx.waker()) && !self.queue.arm() {
            // Nobody will look while we sleep, so do not sleep.
            cx.waker().wake_by_ref();
        }
        match self.take() {
            Some(output) => Poll::Ready(output),
            None => Poll::Pending,
        }
    }
}

impl<R: Returned, K: Kind> Drop for Op<R, K> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.queue.abandon(ticket);
        }
    }
}

impl<R: Returned, K: Kind> fmt::Debug for Op<R, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
