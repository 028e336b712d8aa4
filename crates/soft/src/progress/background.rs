//! The thread that works when nobody polls, and what wakes it.

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ironverbs_sys::event::{Epoll, Event, EventFd, EventMode, Interest, spawn_thread};
use ironverbs_sys::netlink::Monitor;
use ironverbs_sys::udp::RxBatch;
use ironverbs_transport::device::Instant;

use super::{DATAGRAMS, Now};
use crate::Host;
use crate::host::Inner;

/// How long the background thread leaves a polling program alone before it looks again.
const NAP: u64 = 500_000;

/// How long the background thread looks for more before it sleeps.
const LINGER: u64 = 20_000;

/// How long after a failure to open the wire it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Wakes the background thread.
#[derive(Debug)]
pub(crate) struct Kick {
    fd: EventFd,
    /// When the thread wakes by itself: 0 while it is awake.
    wakes_at: AtomicU64,
    napping: AtomicBool,
    stop: AtomicBool,
}

impl Kick {
    pub(crate) fn new() -> io::Result<Kick> {
        let fd = EventFd::new(EventMode::Counter, true)?;
        Ok(Kick {
            fd,
            wakes_at: AtomicU64::new(0),
            napping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        let _ = self.fd.signal();
    }

    /// Wakes the thread if it would sleep beyond `deadline`.
    pub(super) fn wake_before(&self, deadline: Instant) {
        // SYNC POINT: the thread publishes when it will wake, then looks at the timers once more; we add the timer,
        // then look when it will wake. One of the two sees the other.
        if self.wakes_at.load(Ordering::SeqCst) > deadline.0 {
            self.wakes_at.store(0, Ordering::SeqCst);
            self.wake();
        }
    }

    /// Wakes the thread if it sleeps, not from a nap.
    pub(crate) fn wake_sleeper(&self) {
        // A look first: this is asked far more often than anybody sleeps.
        if self.wakes_at.load(Ordering::SeqCst) != 0 && self.wakes_at.swap(0, Ordering::SeqCst) != 0
        {
            self.wake();
        }
    }

    pub(super) fn wake_if_napping(&self) {
        if self.napping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

const TOKEN_KICK: u64 = 0;
const TOKEN_MONITOR: u64 = 1;
const TOKEN_REGISTRY: u64 = 2;
const TOKEN_CONTROL: u64 = 3;
const TOKEN_SOCKET: u64 = 4;
const TOKEN_MANAGEMENT: u64 = 5;

/// The background thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    kick: Arc<Kick>,
}

impl Background {
    pub(crate) fn start(host: &Arc<Inner>) -> io::Result<Background> {
        let kick = host.kick.clone();
        let worker = Worker::new(host)?;
        spawn_thread("ironverbs", move || worker.run())?;
        Ok(Background { kick })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kick.stop.store(true, Ordering::Release);
        self.kick.wake();
    }
}

struct Worker {
    /// Held only while there is something to do: a Host that nobody uses any more goes.
    host: Weak<Inner>,
    kick: Arc<Kick>,
    monitor: Monitor,
    /// Kick, interfaces, registry.
    control: Epoll,
    /// All of `control`, and the socket.
    everything: Epoll,
    has_wire: bool,
    batch: RefCell<RxBatch>,
    /// When the wire was last tried to be opened.
    tried: std::time::Instant,
    polls: u64,
}

impl Worker {
    fn new(host: &Arc<Inner>) -> io::Result<Worker> {
        let (control, everything) = (Epoll::new()?, Epoll::new()?);
        let (monitor, kick) = (Monitor::new()?, host.kick.clone());
        control.add(kick.fd.as_fd(), TOKEN_KICK, Interest::READ)?;
        control.add(monitor.as_fd(), TOKEN_MONITOR, Interest::READ)?;
        everything.add(control.as_fd(), TOKEN_CONTROL, Interest::READ)?;
        let host = Arc::downgrade(host);
        let tried = std::time::Instant::now();
        let batch = RefCell::new(RxBatch::new(DATAGRAMS));
        let (has_wire, polls) = (false, 0);
        Ok(Worker { host, kick, monitor, control, everything, has_wire, batch, tried, polls })
    }

    fn run(mut self) {
        // Peers see by it that the process lives; no others are carried out by themselves.
        let table = self.host.upgrade().and_then(|host| host.table.get().cloned());
        let _life = table.and_then(|table| table.keep_alive().ok());
        while !self.kick.stop.load(Ordering::Acquire) {
            let Some(host) = self.host.upgrade() else { return };
            // A defect that shows here must not leave the device dead without a word.
            let turn = std::panic::AssertUnwindSafe(|| self.turn(host));
            if std::panic::catch_unwind(turn).is_err() {
                let _ = writeln!(
                    io::stderr(),
                    "ironverbs: a defect in the background thread; it goes on"
                );
            }
        }
    }

    fn turn(&mut self, host: Arc<Inner>) {
        self.add_wire(&host);
        self.retry_wire(&host);
        host.unpublished.publish();
        let polls = host.polls.load(Ordering::Relaxed);
        // A round that takes long is one that is under way.
        let polled = std::mem::replace(&mut self.polls, polls) != polls || host.engine.is_locked();
        if polled && host.armed.load(Ordering::Acquire) == 0 {
            self.nap(host);
        } else if self.work(&host) {
            host.unpublished.publish();
            self.sleep(host);
        }
    }

    fn add_wire(&mut self, host: &Arc<Inner>) {
        if let (false, Some(wire)) = (self.has_wire, host.wire.get()) {
            let Some(registry) = &wire.registry else { return };
            let service = self.control.add(registry.service_fd(), TOKEN_REGISTRY, Interest::READ);
            let socket =
                self.everything.add(registry.socket().as_fd(), TOKEN_SOCKET, Interest::READ);
            // One process is woken for a MAD, not all of them, as far as the kernel can.
            let interest = Interest::READ | Interest::EXCLUSIVE;
            let management = registry.management_socket().as_fd();
            let management = self.control.add(management, TOKEN_MANAGEMENT, interest);
            self.has_wire = service.is_ok() && socket.is_ok() && management.is_ok();
            // Those whose slots were found to be free when we came.
            host.inherit(registry);
        }
    }

    /// The port may have become free.
    fn retry_wire(&mut self, host: &Arc<Inner>) {
        if !self.has_wire && self.tried.elapsed() >= RETRY {
            self.tried = std::time::Instant::now();
            // A failure is told once, and not by this thread again.
            let _ = Host(host.clone()).join();
        }
    }

    /// Leaves a polling program alone for a while.
    fn nap(&self, host: Arc<Inner>) {
        self.kick.napping.store(true, Ordering::SeqCst);
        // SYNC POINT: whoever arms a CQ counts it, then looks whether we nap; we say that we nap, then look at the
        // count. One of the two sees the other.
        if host.armed.load(Ordering::SeqCst) == 0 {
            // Timers do not end a nap: the program that polls runs them, or we do when it is over.
            drop(host);
            self.wait_for_control(Some(Duration::from_nanos(NAP)));
        }
        self.kick.napping.store(false, Ordering::SeqCst);
    }

    /// Does what there is to do, until there has been nothing for a moment. False: the program polls by itself.
    fn work(&self, host: &Inner) -> bool {
        let mut last = host.clock.now();
        loop {
            let did = host.round(&mut host.engine.lock(), false);
            let now = host.clock.now();
            if did {
                last = now;
            } else if host.clock.real(now.since(last)) >= LINGER {
                return true;
            }
            if host.polls.load(Ordering::Relaxed) != self.polls
                && host.armed.load(Ordering::Acquire) == 0
            {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a packet, a timer or something else comes.
    fn sleep(&self, host: Arc<Inner>) {
        // SYNC POINT: see Kick::wake_before.
        let wakes_at = host.timers.next();
        self.kick.wakes_at.store(wakes_at.0, Ordering::SeqCst);
        let next = host.timers.next().min(wakes_at);
        let wait = next.since(host.clock.now());
        let timeout = (next.0 != u64::MAX).then(|| Duration::from_nanos(host.clock.real(wait)));
        let timeout =
            if self.has_wire { timeout } else { Some(timeout.unwrap_or(RETRY).min(RETRY)) };
        if self.may_sleep(&host) {
            drop(host);
            self.sleep_until(timeout);
        } else {
            self.kick.wakes_at.store(0, Ordering::SeqCst);
        }
        if let Some(host) = self.host.upgrade()
            && let Some(lanes) = host.lanes()
        {
            lanes.awake();
        }
    }

    /// Has everybody wake us from here on. False: there is something to do first.
    fn may_sleep(&self, host: &Inner) -> bool {
        let Some(lanes) = host.lanes() else { return true };
        // Those who send by lanes; what came before is taken first.
        if !lanes.prepare_sleep() {
            return false;
        }
        // SYNC POINT: see the end of a round.
        let engine = host.engine.lock();
        if !engine.owing.is_empty() {
            return false;
        }
        // The receivers of full lanes. Those who wait for room try once more: their lane may have been found full, told of
        // by another thread, and then found to have room for somebody else.
        !host.blocked.any()
            || !host.blocked.retry(&mut Now::of(&host.clock)) && lanes.waits_are_told()
    }

    fn sleep_until(&self, timeout: Option<Duration>) {
        let mut events = [Event::EMPTY; 2];
        let n = self.everything.wait(&mut events, timeout).unwrap_or(0);
        self.kick.wakes_at.store(0, Ordering::SeqCst);
        if events.iter().take(n).any(|event| event.token() == TOKEN_CONTROL) {
            self.wait_for_control(Some(Duration::ZERO));
        }
    }

    fn wait_for_control(&self, timeout: Option<Duration>) {
        let mut events = [Event::EMPTY; 4];
        let n = self.control.wait(&mut events, timeout).unwrap_or(0);
        self.kick.wakes_at.store(0, Ordering::SeqCst);
        if let Some(host) = self.host.upgrade() {
            self.control_events(&host, events.get(..n).unwrap_or_default());
        }
    }

    fn control_events(&self, host: &Arc<Inner>, events: &[Event]) {
        for event in events {
            match event.token() {
                TOKEN_KICK => {
                    let _ = host.kick.fd.try_read();
                }
                // A listing that fails is made up for by the next change, or the next look.
                TOKEN_MONITOR if self.monitor.drain().unwrap_or(true) => {
                    let _ = host.follow_interfaces();
                    host.cm.look_for_removals();
                    host.fabric.look(host);
                    host.steward.look(host);
                }
                TOKEN_REGISTRY => self.serve_registry(host),
                TOKEN_MANAGEMENT => host.take_management(&mut self.batch.borrow_mut()),
                _ => {}
            }
        }
    }

    fn serve_registry(&self, host: &Arc<Inner>) {
        let Some(registry) = host.wire.get().and_then(|wire| wire.registry.as_ref()) else {
            return;
        };
        registry.service(&mut |path, src_port, packet| host.take_packet(path, src_port, packet));
        let dead = registry.take_dead();
        let any_dead = !dead.is_empty();
        host.cm.mourn(host, &dead);
        host.fabric.look(host);
        if any_dead {
            host.steward.look(host);
        }
        host.inherit(registry);
    }
}
