//! Waiting for what the connection manager tells.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ironverbs_soft::cm::{CmEvent, EventChannel};

use super::Error;
use crate::block;

/// Something that takes time: a future, or wait for it. Dropping it takes back what was begun.
#[must_use = "what is begun is taken back when this is dropped"]
pub struct Pending<O: Operation> {
    operation: Option<O>,
}

/// What a [`Pending`] waits for. Only this crate has some.
pub trait Operation: sealed::Operation {}

pub(super) mod sealed {
    use super::{CmEvent, Error, EventChannel};

    /// Sealed.
    pub trait Operation: Unpin + Sized {
        type Output;
        fn channel(&self) -> &EventChannel;
        /// What an event makes of it: the result, or more to wait for.
        fn event(self, event: CmEvent) -> Result<Step<Self>, Error>;
        fn name() -> &'static str;
    }

    /// How far an operation is.
    #[derive(Debug)]
    pub enum Step<O: Operation> {
        Done(O::Output),
        More(O),
    }
}

use sealed::Step;

impl<O: sealed::Operation> Operation for O {}

impl<O: Operation> Pending<O> {
    pub(super) fn new(operation: O) -> Pending<O> {
        Pending { operation: Some(operation) }
    }

    /// Sleeps until it is done.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub fn wait(mut self) -> Result<O::Output, Error> {
        while let Some(operation) = self.operation.take() {
            let event = match operation.channel().next_event() {
                Ok(event) => event,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                    self.operation = Some(operation);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match operation.event(event)? {
                Step::Done(output) => return Ok(output),
                Step::More(operation) => self.operation = Some(operation),
            }
        }
        Err(Error::Ended)
    }

    /// Sleeps until it is done, at most for `timeout`: then it comes back, to be waited for again or dropped.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub fn wait_for(mut self, timeout: Duration) -> Result<Result<O::Output, Error>, Self> {
        block::on_for(&mut self, timeout).ok_or(self)
    }
}

impl<O: Operation> Future for Pending<O> {
    type Output = Result<O::Output, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(operation) = self.operation.take() {
            let event = match operation.channel().poll_event(cx) {
                Poll::Ready(Ok(event)) => event,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => {
                    self.operation = Some(operation);
                    return Poll::Pending;
                }
            };
            match operation.event(event) {
                Ok(Step::Done(output)) => return Poll::Ready(Ok(output)),
                Ok(Step::More(operation)) => self.operation = Some(operation),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Err(Error::Ended))
    }
}

impl<O: Operation> fmt::Debug for Pending<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(O::name()).finish_non_exhaustive()
    }
}
