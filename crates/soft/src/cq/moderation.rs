//! Events that wait for more completions (ibv_modify_cq(3)).
//!
//! From the first completion that would raise the event that was asked for, it waits until there are `count` of them or until
//! `period` is over, whichever comes first; 0 leaves that bound out. A completion with an error waits for nothing.

use std::sync::Weak;

use ironverbs_sys::moment::MutexGuard;
use ironverbs_transport::device::Instant;
use parking_lot::Mutex;

use super::{Armed, Cq, Entries};
use crate::Error;
use crate::host::Inner;

/// The number that the Host's timers know moderated events by; no QP has it.
pub(crate) const TIMER: u32 = 5;

/// What an event waits for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moderation {
    /// Completions; 0: any number.
    count: u16,
    /// Microseconds; 0: any time.
    period: u16,
}

impl Moderation {
    /// Whether an event that has waited for so many completions is raised now.
    fn is_over(self, completions: u32) -> bool {
        let unbounded = self.count == 0 && self.period == 0;
        unbounded || (self.count > 0 && completions >= self.count.into())
    }
}

/// The event that waits.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Completions that would have raised it.
    completions: u32,
    until: Option<Instant>,
    /// The time for which it is in the list of those that wait; it stays there, once, however often it is raised earlier.
    listed: Option<Instant>,
}

impl Held {
    pub(super) fn fired(&mut self) {
        self.completions = 0;
        self.until = None;
    }
}

/// The CQs of a Host whose events wait for a time.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Vec<(Instant, Weak<Cq>)>>);

impl Waiting {
    /// Raises the events whose time has come.
    pub(crate) fn timeout(&self, host: &Inner, now: Instant) {
        let due: Vec<_> = self.0.lock().extract_if(.., |(at, _)| *at <= now).collect();
        for cq in due.iter().filter_map(|(_, cq)| cq.upgrade()) {
            if let Some(later) = cq.is_due(now) {
                self.add(host, later, cq.me.clone());
            }
        }
    }

    fn add(&self, host: &Inner, at: Instant, cq: Weak<Cq>) {
        self.0.lock().push((at, cq));
        host.add_timer(at, TIMER);
    }
}

impl Cq {
    /// How many completions (0: any number) an event waits for, and for how many microseconds (0: any time), whichever
    /// comes first (ibv_modify_cq(3)). A failed completion raises it at once.
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.check()?;
        let mut entries = self.entries.lock();
        entries.moderation = Moderation { count, period };
        if entries.armed != Armed::No && entries.held.completions > 0 {
            // What waits does so by the new rule from now on.
            entries.held.completions -= 1;
            entries.held.until = None;
            self.hold(entries);
        }
        Ok(())
    }

    /// A completion has come that would raise the event: raises it, or lets it wait for more.
    #[cold]
    pub(super) fn hold(&self, mut entries: MutexGuard<'_, Entries>) {
        let moderation = entries.moderation;
        let held = &mut entries.held;
        held.completions = held.completions.saturating_add(1);
        if moderation.is_over(held.completions) {
            entries.fire();
            drop(entries);
            return self.notify();
        }
        if moderation.period == 0 || held.until.is_some() {
            return;
        }
        let host = self.context.inner();
        let until = host.now().after(host.clock.ticks(u64::from(moderation.period) * 1000));
        held.until = Some(until);
        if held.listed.is_none_or(|at| at > until) {
            held.listed = Some(until);
            drop(entries);
            host.moderated.add(host, until, self.me.clone());
        }
    }

    /// Raises the event if its time has come; else when that is, if it waits still.
    fn is_due(&self, now: Instant) -> Option<Instant> {
        let mut entries = self.entries.lock();
        match entries.held.until {
            Some(until) if until > now => {
                entries.held.listed = Some(until);
                return Some(until);
            }
            Some(_) => {
                entries.held.listed = None;
                entries.fire();
                drop(entries);
                self.notify();
            }
            None => entries.held.listed = None,
        }
        None
    }
}
