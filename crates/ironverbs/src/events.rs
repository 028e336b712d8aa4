//! Asynchronous events: what happens to objects without being asked for.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use ironverbs_soft::{self as soft, EventKind};
use parking_lot::Mutex;

use crate::Gid;
use crate::block;
use crate::device::ContextInner;

/// An asynchronous event (ibv_get_async_event(3)). Reading it acknowledges it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To whom.
    pub source: EventSource,
}

/// Whom an event happened to; objects by number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventSource {
    /// The queue pair of that QPN.
    Qp(u32),
    /// The completion queue of that [id](crate::Cq::id).
    Cq(u32),
    /// The shared receive queue of that [id](crate::Srq::id).
    Srq(u32),
    /// A port, from 1.
    Port(u8),
    /// The whole device.
    Device,
    /// A GID of the subnet, a port's or a multicast group's: [`Context::sm_events`](crate::Context::sm_events).
    Gid(Gid),
}

/// Events that wait for the program; of a program that never asks, the latest.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    wakers: Vec<Waker>,
}

const KEPT: usize = 4096;

impl EventQueue {
    pub(crate) fn push(&self, event: &soft::AsyncEvent) {
        let source = match &event.source {
            soft::EventSource::Qp(qp) => EventSource::Qp(qp.qpn()),
            soft::EventSource::Cq(cq) => EventSource::Cq(cq.handle()),
            soft::EventSource::Srq(srq) => EventSource::Srq(srq.handle()),
            soft::EventSource::Port(port) => EventSource::Port(*port),
            soft::EventSource::Device => EventSource::Device,
            soft::EventSource::Gid(gid) => EventSource::Gid(*gid),
        };
        let wakers = {
            let mut state = self.state.lock();
            if state.events.len() >= KEPT {
                state.events.pop_front();
            }
            state.events.push_back(Event { kind: event.kind, source });
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }
}

/// The next event of a context, as a future; or wait for it. Each event goes to one who asks.
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Debug)]
pub struct NextEvent {
    context: Arc<ContextInner>,
}

impl NextEvent {
    pub(crate) fn new(context: Arc<ContextInner>) -> NextEvent {
        NextEvent { context }
    }

    /// Sleeps until there is one.
    pub fn wait(mut self) -> Event {
        block::on(&mut self)
    }

    /// Sleeps until there is one, at most for `timeout`.
    pub fn wait_for(mut self, timeout: Duration) -> Option<Event> {
        block::on_for(&mut self, timeout)
    }
}

impl Future for NextEvent {
    type Output = Event;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Event> {
        let running = self.context.reactor().ensure_running();
        let fresh = cx.waker().clone();
        let mut state = self.context.events().state.lock();
        if let Some(event) = state.events.pop_front() {
            return Poll::Ready(event);
        }
        if running && !state.wakers.iter().any(|known| known.will_wake(&fresh)) {
            state.wakers.push(fresh);
        } else if !running {
            // No thread to be had: the executor asks again and again, until there is one.
            drop(state);
            fresh.wake();
        }
        Poll::Pending
    }
}
