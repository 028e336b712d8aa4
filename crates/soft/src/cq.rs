//! Completion queues.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::clock;
use ironverbs_sys::moment::Mutex;
use ironverbs_transport::verbs::{Wc, WcStatus};

use crate::context::limits;
use crate::cq::moderation::{Held, Moderation};
use crate::cq::ring::Ring;
use crate::event::{AsyncEvent, EventCount, EventKind, EventSource};
use crate::object::{self, Identity};
use crate::status::Waiting;
use crate::{Channel, Context, Error, Kind, Pd};

pub(crate) mod moderation;
mod ring;

/// Which completion the CQ waits for to raise an event.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// What reading the completion of a send tells its QP: so many requests are done with, since RESET.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Reads {
    /// See [`Cq::add_sender`].
    pub(crate) sender: usize,
    pub(crate) requests: u64,
}

#[derive(Copy, Clone, Debug)]
struct Entry {
    wc: Wc,
    reads: Option<Reads>,
    stamp: Stamp,
}

/// When a completion was added; zeros on a CQ that does not note it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds of the monotonic clock.
    pub raw: u64,
    /// Nanoseconds since 1970.
    pub wall: u64,
}

/// What a CQ does besides (`struct ibv_cq_init_attr_ex`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CqOptions {
    /// Completions are noted with their time.
    pub stamps: bool,
    /// A completion that finds no room takes the place of the oldest, and the queue goes on.
    pub ignore_overrun: bool,
}

/// Completions that were taken out at one go, to be read one by one: [`Cq::lend`].
#[derive(Debug, Default)]
pub struct Lent {
    entries: Ring,
    /// How many of them were read.
    read: usize,
    lent: bool,
}

impl Lent {
    /// As many as are taken out at once.
    const MOST: usize = 64;

    /// Reads the next; None when there is none.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "what it gives is borrowed from it")]
    pub fn next(&mut self) -> Option<(&Wc, &Stamp)> {
        let entry = self.entries.get(self.read)?;
        self.read += 1;
        Some((&entry.wc, &entry.stamp))
    }

    /// What was read last; None once there was none to be read.
    #[inline]
    pub fn current(&self) -> Option<(&Wc, &Stamp)> {
        let entry = self.entries.get(self.read.wrapping_sub(1))?;
        Some((&entry.wc, &entry.stamp))
    }

    /// Whether something was lent that was not given back.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.lent
    }
}

#[derive(Debug)]
struct Entries {
    queue: Ring,
    /// Where the QPs that complete sends here read how many they are done with. A count per completion would cost more
    /// than the rest of it.
    senders: Vec<Option<Arc<AtomicU64>>>,
    /// Who has completions lent, and QPs whose completions were dropped meanwhile.
    lenders: usize,
    dropped: Vec<u32>,
    cqe: usize,
    armed: Armed,
    moderation: Moderation,
    held: Held,
    overrun: bool,
}

impl Entries {
    /// The event that was asked for is raised, or will not be.
    fn fire(&mut self) -> Armed {
        self.held.fired();
        std::mem::replace(&mut self.armed, Armed::No)
    }

    /// A completion is read: its QP's requests up to there are done with.
    #[inline]
    fn note(&self, entry: &Entry) {
        if let Some(Reads { sender, requests }) = entry.reads
            && let Some(Some(count)) = self.senders.get(sender)
        {
            count.store(requests, Ordering::Release);
        }
    }
}

/// A completion queue (ibv_create_cq(3)).
#[derive(Debug)]
pub struct Cq {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    pub(crate) comp_events: EventCount,
    pub(crate) async_events: EventCount,
    me: Weak<Cq>,
    context: Arc<Context>,
    channel: Option<Arc<Channel>>,
    /// The domain whose memory it may be in.
    domain: Option<Arc<Pd>>,
    options: CqOptions,
    entries: Mutex<Entries>,
    /// Number of entries, readable without the lock: an empty poll takes none.
    len: AtomicUsize,
    /// Copy of the entries' mark, likewise.
    overrun: AtomicBool,
}

impl Cq {
    pub(crate) fn new(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<&Arc<Channel>>,
        comp_vector: u32,
        options: CqOptions,
        domain: Option<&Arc<Pd>>,
    ) -> Result<Arc<Cq>, Error> {
        check_cqe(cqe)?;
        if comp_vector >= limits::COMP_VECTORS {
            return Err(Error::Limit {
                what: "comp_vector",
                asked: comp_vector.into(),
                max: u64::from(limits::COMP_VECTORS) - 1,
            });
        }
        let host = context.inner();
        let identity = host.counted(&host.quotas.cq)?;
        if let Some(channel) = channel {
            channel.identity.check()?;
            if !Arc::ptr_eq(channel.context(), context) {
                return Err(Error::Foreign { what: "completion channel" });
            }
        }
        let queue = match domain {
            Some(domain) => Ring::new(cqe, domain.memory(Kind::Completions, Ring::bytes(cqe))?),
            None => Ring::default(),
        };
        if let Some(channel) = channel {
            object::take(&channel.users);
        }
        let entries = Entries {
            queue,
            senders: Vec::new(),
            lenders: 0,
            dropped: Vec::new(),
            cqe: cqe as usize,
            armed: Armed::No,
            moderation: Moderation::default(),
            held: Held::default(),
            overrun: false,
        };
        Ok(Arc::new_cyclic(|me| Cq {
            identity,
            users: AtomicUsize::new(0),
            comp_events: EventCount::default(),
            async_events: EventCount::default(),
            me: me.clone(),
            context: context.clone(),
            channel: channel.cloned(),
            domain: domain.cloned(),
            options,
            entries: Mutex::new(entries),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
        }))
    }

    /// Completions it holds.
    pub fn cqe(&self) -> u32 {
        self.entries.lock().cqe as u32
    }

    /// The channel it raises events on.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Hands at most `max` completions to `take`, oldest first, and drives the device when there are none
    /// (ibv_poll_cq(3)). Overrun once the entries that were left are read.
    pub fn poll(&self, max: usize, mut take: impl FnMut(&Wc)) -> Result<usize, Error> {
        self.poll_stamped(max, |wc, _| take(wc))
    }

    /// The same, with the time at which each was added, where that is noted.
    #[inline]
    pub fn poll_stamped(
        &self,
        max: usize,
        mut take: impl FnMut(&Wc, &Stamp),
    ) -> Result<usize, Error> {
        self.context.inner().check()?;
        if self.len.load(Ordering::Acquire) == 0 {
            self.context.inner().poll_inline();
            if self.len.load(Ordering::Acquire) == 0 {
                return if self.overrun.load(Ordering::Acquire) { self.empty() } else { Ok(0) };
            }
        }
        let mut entries = self.entries.lock();
        let n = max.min(entries.queue.len());
        for _ in 0..n {
            let Some(entry) = entries.queue.pop_front() else { break };
            entries.note(&entry);
            take(&entry.wc, &entry.stamp);
        }
        self.len.store(entries.queue.len(), Ordering::Release);
        Ok(n)
    }

    /// Takes out what is there, as much as is read at once, for who reads it one by one. Whether there is something; the
    /// device is not driven, which who began to read has done. What is not read goes back by [`take_back`](Cq::take_back).
    pub fn lend(&self, lent: &mut Lent) -> Result<bool, Error> {
        self.context.inner().check()?;
        // What was lent before is read: its place is for the queue's next.
        lent.entries.clear();
        lent.read = 0;
        if self.len.load(Ordering::Acquire) == 0 {
            let overrun = self.overrun.load(Ordering::Acquire);
            return if overrun { self.empty().map(|_| false) } else { Ok(false) };
        }
        let mut entries = self.entries.lock();
        if !lent.lent {
            lent.lent = true;
            if entries.lenders == 0 {
                entries.dropped.clear();
            }
            entries.lenders += 1;
        }
        let entries = &mut *entries;
        if entries.queue.len() <= Lent::MOST && !entries.queue.is_given() {
            std::mem::swap(&mut lent.entries, &mut entries.queue);
        } else {
            entries.queue.move_to(Lent::MOST, &mut lent.entries);
        }
        lent.entries.iter().for_each(|entry| entries.note(entry));
        self.len.store(entries.queue.len(), Ordering::Release);
        Ok(!lent.entries.is_empty())
    }

    /// Puts back what was lent and not read.
    pub fn take_back(&self, lent: &mut Lent) {
        if !std::mem::take(&mut lent.lent) || self.context.inner().check().is_err() {
            return;
        }
        let mut entries = self.entries.lock();
        let entries = &mut *entries;
        lent.entries.forget(lent.read);
        lent.read = 0;
        if !entries.dropped.is_empty() {
            lent.entries.retain(|entry| !entries.dropped.contains(&entry.wc.qpn));
        }
        if !lent.entries.is_empty() {
            lent.entries.iter_mut().for_each(|entry| entry.reads = None);
            // What came meanwhile goes behind it, and all of it back to where the queue is.
            entries.queue.move_to(usize::MAX, &mut lent.entries);
            if entries.queue.is_given() {
                lent.entries.move_to(usize::MAX, &mut entries.queue);
            } else {
                std::mem::swap(&mut lent.entries, &mut entries.queue);
            }
        }
        entries.lenders -= 1;
        self.len.store(entries.queue.len(), Ordering::Release);
    }

    #[cold]
    fn empty(&self) -> Result<usize, Error> {
        let entries = self.entries.lock();
        if entries.overrun && entries.queue.is_empty() {
            return Err(Error::Overrun { cqe: entries.cqe as u32 });
        }
        Ok(0)
    }

    /// Asks for one event at the next completion, or the next solicited or failed one (ibv_req_notify_cq(3)).
    pub fn request_notify(&self, solicited_only: bool) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.check()?;
        if self.channel.is_none() {
            return Ok(());
        }
        let ask = if solicited_only { Armed::Solicited } else { Armed::Any };
        let before = {
            let mut entries = self.entries.lock();
            let before = entries.armed;
            entries.armed = before.max(ask);
            before
        };
        if before == Armed::No {
            self.context.inner().armed();
        }
        Ok(())
    }

    /// Acknowledges `n` events (ibv_ack_cq_events(3)).
    pub fn ack_events(&self, n: u32) {
        // A fork's copy of the lock may be held for ever.
        if self.context.inner().check().is_err() {
            return;
        }
        self.comp_events.acknowledge(n);
    }

    /// Changes the size (ibv_resize_cq(3)); refused when more completions than that are waiting.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        self.context.check()?;
        self.identity.check()?;
        check_cqe(cqe)?;
        // Asked for before anything is locked, as whoever gives it may do as he likes.
        let block = self.domain.as_ref().map(|pd| pd.memory(Kind::Completions, Ring::bytes(cqe)));
        let queue = block.transpose()?.map(|block| Ring::new(cqe, block));
        let mut entries = self.entries.lock();
        if (cqe as usize) < entries.queue.len() {
            return Err(Error::Invalid {
                what: "cqe",
                value: cqe.into(),
                why: "more completions than that are waiting",
            });
        }
        entries.cqe = cqe as usize;
        let before = queue.map(|mut queue| {
            entries.queue.move_to(usize::MAX, &mut queue);
            std::mem::replace(&mut entries.queue, queue)
        });
        drop(entries);
        drop(before);
        Ok(())
    }

    /// Adds a completion. When there is no room, the queue is of no more use: it says so, and its QPs go to the error
    /// state (IBA 10.8.3, 11.6.3.1).
    pub(crate) fn complete(&self, wc: Wc, reads: Option<Reads>) {
        let mut entries = self.entries.lock();
        if entries.overrun {
            return;
        }
        if entries.queue.len() >= entries.cqe && self.options.ignore_overrun {
            entries.queue.pop_front();
        } else if entries.queue.len() >= entries.cqe {
            entries.overrun = true;
            self.overrun.store(true, Ordering::Release);
            drop(entries);
            self.raise(EventKind::CqErr);
            self.context.inner().overran(self.me.clone());
            return;
        }
        let stamp = if self.options.stamps { now() } else { Stamp::default() };
        entries.queue.push_back(Entry { wc, reads, stamp });
        self.len.store(entries.queue.len(), Ordering::Release);
        let failed = wc.status != WcStatus::Success;
        let wanted = match entries.armed {
            Armed::No => false,
            Armed::Solicited => wc.solicited || failed,
            Armed::Any => true,
        };
        if !wanted {
            return;
        }
        if entries.moderation != Moderation::default() && !failed {
            return self.hold(entries);
        }
        entries.fire();
        drop(entries);
        self.notify();
    }

    fn notify(&self) {
        self.context.inner().disarmed();
        if let Some(channel) = &self.channel {
            channel.queue.push(self.me.clone());
        }
    }

    fn raise(&self, kind: EventKind) {
        if let Some(me) = self.me.upgrade() {
            self.context.events.push(AsyncEvent { kind, source: EventSource::Cq(me) });
        }
    }

    /// From now on reading the completions of sends that name what this gives stores into `count`.
    pub(crate) fn add_sender(&self, count: &Arc<AtomicU64>) -> usize {
        let senders = &mut self.entries.lock().senders;
        let free = senders.iter().position(Option::is_none).unwrap_or(senders.len());
        if free == senders.len() {
            senders.push(None);
        }
        senders[free] = Some(count.clone());
        free
    }

    /// A QP whose completions are gone is no sender any more.
    pub(crate) fn remove_sender(&self, sender: usize) {
        if let Some(place) = self.entries.lock().senders.get_mut(sender) {
            *place = None;
        }
    }

    /// Drops the completions of a QP that was reset or destroyed.
    pub(crate) fn purge(&self, qpn: u32) {
        let mut entries = self.entries.lock();
        entries.queue.retain(|entry| entry.wc.qpn != qpn);
        if entries.lenders > 0 {
            entries.dropped.push(qpn);
        }
        self.len.store(entries.queue.len(), Ordering::Release);
    }

    /// Destroys it; Busy while a QP uses it; waits for unacknowledged events (ibv_destroy_cq(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.release()?;
        let (host, handle) = (self.context.inner(), self.handle());
        self.comp_events.wait(|| host.waiting(Waiting::Completions, handle));
        self.async_events.wait(|| host.waiting(Waiting::Cq, handle));
        Ok(())
    }

    fn release(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        let (armed, queue) = {
            let mut entries = self.entries.lock();
            self.len.store(0, Ordering::Release);
            (entries.fire(), std::mem::take(&mut entries.queue))
        };
        // Whoever gave its memory is called with nothing locked.
        drop(queue);
        if armed != Armed::No {
            self.context.inner().disarmed();
        }
        self.context.events.forget(self);
        if let Some(channel) = &self.channel {
            channel.queue.remove(|cq| std::ptr::eq(cq.as_ptr(), self));
            object::give_back(&channel.users);
        }
        Ok(())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Events that nobody acknowledged have no object to wait for any more.
        let _ = self.release();
    }
}

object::accessors!(Cq);

#[cold]
fn now() -> Stamp {
    Stamp { raw: clock::monotonic_ns(), wall: clock::wall_ns() }
}

fn check_cqe(cqe: u32) -> Result<(), Error> {
    match cqe {
        0 => Err(Error::Invalid {
            what: "cqe",
            value: 0,
            why: "a queue holds at least one completion",
        }),
        n if n > limits::CQE => {
            Err(Error::Limit { what: "cqe", asked: n.into(), max: limits::CQE.into() })
        }
        _ => Ok(()),
    }
}
