//! The thread that wakes sleeping programs: one for a context, from the first sleeper on.
//!
//! It waits for events of completion queues and of the device. The futures and blocking waits of this crate need
//! nothing else, so that they work under any executor.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ironverbs_soft as soft;
use ironverbs_sys::event::{Epoll, Event, EventFd, EventMode, Interest, spawn_thread};
use parking_lot::Mutex;

use crate::cq::CqInner;
use crate::events::EventQueue;
use crate::trusted;

#[derive(Debug)]
pub(crate) struct Reactor {
    shared: Arc<Shared>,
    running: Mutex<bool>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<soft::Context>,
    channel: Arc<soft::Channel>,
    cqs: Mutex<HashMap<u32, Weak<CqInner>>>,
    events: Arc<EventQueue>,
    /// Held while an event is read and acknowledged, and while an object is destroyed, which takes its events back:
    /// so neither waits for the other.
    reading: Mutex<()>,
    wake: EventFd,
    stop: AtomicBool,
}

impl Reactor {
    pub(crate) fn new(
        context: &Arc<soft::Context>,
        events: Arc<EventQueue>,
    ) -> Result<Reactor, soft::Error> {
        let shared = Shared {
            context: context.clone(),
            channel: context.create_channel()?,
            cqs: Mutex::default(),
            events,
            reading: Mutex::new(()),
            wake: EventFd::new(EventMode::Counter, true)?,
            stop: AtomicBool::new(false),
        };
        Ok(Reactor { shared: Arc::new(shared), running: Mutex::new(false) })
    }

    pub(crate) fn channel(&self) -> &Arc<soft::Channel> {
        &self.shared.channel
    }

    pub(crate) fn add(&self, cq: &Arc<CqInner>) {
        self.shared.cqs.lock().insert(cq.raw.handle(), Arc::downgrade(cq));
    }

    pub(crate) fn remove(&self, handle: u32) {
        self.shared.cqs.lock().remove(&handle);
    }

    /// Runs `destroy`, which takes an object's events back, while no event is being read.
    pub(crate) fn quietly(&self, destroy: impl FnOnce()) {
        let _reading = self.shared.reading.lock();
        destroy();
    }

    /// Starts the thread if it does not run; false when the system refuses.
    pub(crate) fn ensure_running(&self) -> bool {
        let mut running = self.running.lock();
        if !*running {
            let started = Worker::new(self.shared.clone())
                .and_then(|worker| spawn_thread("ironverbs-wake", move || worker.run()));
            *running = started.is_ok();
        }
        *running
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // The thread ends by itself: waiting for it here could be waiting for ourselves.
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.shared.wake.signal();
    }
}

struct Worker {
    shared: Arc<Shared>,
    /// Watches the channel.
    channel: Epoll,
    /// Watches the device's events.
    device: Epoll,
    all: Epoll,
}

impl Worker {
    fn new(shared: Arc<Shared>) -> io::Result<Worker> {
        let (channel, device, all) = (Epoll::new()?, Epoll::new()?, Epoll::new()?);
        channel.add(trusted::channel_fd(&shared.channel), 0, Interest::READ)?;
        device.add(trusted::events_fd(&shared.context), 0, Interest::READ)?;
        all.add(channel.as_fd(), 0, Interest::READ)?;
        all.add(device.as_fd(), 0, Interest::READ)?;
        all.add(shared.wake.as_fd(), 0, Interest::READ)?;
        Ok(Worker { shared, channel, device, all })
    }

    fn run(self) {
        let mut events = [Event::EMPTY; 3];
        while !self.shared.stop.load(Ordering::Acquire) {
            // An error is the descriptors' end, behind our back: whoever sleeps then sleeps on, as any program whose
            // descriptors are closed.
            if self.all.wait(&mut events, None).is_err() {
                return;
            }
            while let Some(handle) = self.cq_event() {
                let cq = self.shared.cqs.lock().get(&handle).and_then(Weak::upgrade);
                if let Some(cq) = cq {
                    cq.serve();
                }
            }
            while let Some(event) = self.device_event() {
                self.shared.events.push(&event);
            }
        }
    }

    /// The CQ of an event that waits, acknowledged.
    fn cq_event(&self) -> Option<u32> {
        let _reading = self.shared.reading.lock();
        if !is_ready(&self.channel) {
            return None;
        }
        let cq = self.shared.channel.next_event().ok()?;
        cq.ack_events(1);
        Some(cq.handle())
    }

    /// An event of the device that waits, acknowledged.
    fn device_event(&self) -> Option<soft::AsyncEvent> {
        let _reading = self.shared.reading.lock();
        if !is_ready(&self.device) {
            return None;
        }
        let event = self.shared.context.next_async_event().ok()?;
        event.ack();
        Some(event)
    }
}

fn is_ready(epoll: &Epoll) -> bool {
    let mut event = [Event::EMPTY];
    epoll.wait(&mut event, Some(Duration::ZERO)).is_ok_and(|n| n > 0)
}
