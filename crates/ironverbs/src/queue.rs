//! Requests in flight: a table per queue, which keeps their buffers until they complete.
//!
//! The table belongs to the queue, not to the futures: a future that is dropped only loses interest, and one that
//! is leaked leaks nothing but the table's entry. A request's identifier is the entry's place and a generation, so
//! that a completion that comes late finds nobody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;

use ironverbs_soft::{PostError, Wc, WrOpcode};
use ironverbs_sys::process::ForkGuard;
use parking_lot::{Mutex, MutexGuard};

use crate::buffer::Held;
use crate::cq::CqInner;
use crate::error::{CompletionError, Dropped, RequestError};

/// How a request ended.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Outcome {
    /// With a completion of its own.
    Completed(Wc),
    /// With success, as a later request's completion tells.
    Implied,
    /// Without a completion.
    Lost(CompletionError),
}

/// What a request asked for, to be told when it fails.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Asked {
    /// None for a receive.
    pub(crate) opcode: Option<WrOpcode>,
    pub(crate) len: u64,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// The identifiers of an SRQ's receives have this bit set.
pub(crate) const SHARED: u64 = 1 << 63;

/// Names an entry of a table for as long as it stands for one request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    index: u32,
    generation: u32,
}

impl Ticket {
    fn wr_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of(wr_id: u64) -> Ticket {
        Ticket { index: wr_id as u32, generation: (wr_id >> 32) as u32 & GENERATIONS }
    }
}

const GENERATIONS: u32 = u32::MAX >> 1;

#[derive(Debug)]
enum State {
    /// Not in use; the next entry that is not.
    Free(Option<u32>),
    /// In flight. Abandoned when nobody waits for it any more.
    Pending { waker: Option<Waker>, abandoned: bool },
    /// Ended, and not yet asked for.
    Done(Outcome),
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    state: State,
    held: Held,
    asked: Asked,
}

/// What is to be done once no lock is held: programs' wakers run arbitrary code, and dropping a buffer may
/// deregister its region.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    wakers: Vec<Waker>,
    dropped: Vec<Held>,
}

impl Aftermath {
    pub(crate) fn run(self) {
        for waker in self.wakers {
            waker.wake();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    free: Option<u32>,
    /// Sends in flight, oldest first. Not kept for receives.
    order: VecDeque<u32>,
    ordered: bool,
    pending: usize,
    max: usize,
    /// Sends posted in a row that ask for no completion.
    silent: usize,
}

impl Table {
    fn new(max: usize, ordered: bool) -> Table {
        Table {
            entries: Vec::new(),
            free: None,
            order: VecDeque::new(),
            ordered,
            pending: 0,
            max,
            silent: 0,
        }
    }

    /// Whether the queue has as many requests in flight as it may.
    fn is_full(&self) -> bool {
        self.pending >= self.max
    }

    /// Whether a send that asks for no completion must have one all the same: a queue of nothing but such sends
    /// could never be found empty.
    pub(crate) fn must_signal(&mut self, silent: bool) -> bool {
        self.silent = if silent { self.silent + 1 } else { 0 };
        if self.silent >= self.max.div_ceil(2) {
            self.silent = 0;
        }
        self.silent == 0
    }

    /// Enters a request that is about to be posted.
    pub(crate) fn insert(&mut self, held: Held, asked: Asked) -> Ticket {
        let state = State::Pending { waker: None, abandoned: false };
        self.pending += 1;
        if let Some(index) = self.free
            && let Some(entry) = self.entries.get_mut(index as usize)
            && let State::Free(next) = entry.state
        {
            self.free = next;
            let generation = entry.generation.wrapping_add(1) & GENERATIONS;
            *entry = Entry { generation, state, held, asked };
            return Ticket { index, generation };
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, state, held, asked });
        Ticket { index, generation: 0 }
    }

    /// Notes that a send was posted after all those before.
    pub(crate) fn posted(&mut self, ticket: Ticket) {
        if self.ordered {
            self.order.push_back(ticket.index);
        }
    }

    /// The buffers of a request that has not ended.
    pub(crate) fn held(&self, ticket: Ticket) -> Option<&Held> {
        let entry = self.find(ticket)?;
        matches!(entry.state, State::Pending { .. }).then_some(&entry.held)
    }

    fn find(&self, ticket: Ticket) -> Option<&Entry> {
        let entry = self.entries.get(ticket.index as usize)?;
        (entry.generation == ticket.generation).then_some(entry)
    }

    fn find_mut(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(ticket.index as usize)?;
        (entry.generation == ticket.generation).then_some(entry)
    }

    /// Takes a request back that was not posted.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> Option<Held> {
        if !matches!(self.find(ticket)?.state, State::Pending { .. }) {
            return None;
        }
        self.pending -= 1;
        self.release(ticket.index)
    }

    fn release(&mut self, index: u32) -> Option<Held> {
        let free = self.free;
        let entry = self.entries.get_mut(index as usize)?;
        entry.state = State::Free(free);
        self.free = Some(index);
        Some(std::mem::take(&mut entry.held))
    }

    /// Ends the request that `wc` is for, and those before it that success is implied of.
    fn complete(&mut self, wc: &Wc, waiting: &AtomicUsize, after: &mut Aftermath) {
        let ticket = Ticket::of(wc.wr_id);
        match self.find(ticket) {
            Some(Entry { state: State::Pending { .. }, .. }) => {}
            _ => return,
        }
        if self.ordered {
            while let Some(index) = self.order.pop_front() {
                if index == ticket.index {
                    break;
                }
                self.finish(index, Outcome::Implied, waiting, after);
            }
        }
        self.finish(ticket.index, Outcome::Completed(*wc), waiting, after);
    }

    fn finish(
        &mut self,
        index: u32,
        outcome: Outcome,
        waiting: &AtomicUsize,
        after: &mut Aftermath,
    ) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        let State::Pending { waker, abandoned } = &mut entry.state else { return };
        if let Some(waker) = waker.take() {
            waiting.fetch_sub(1, Ordering::SeqCst);
            after.wakers.push(waker);
        }
        let abandoned = *abandoned;
        entry.state = State::Done(outcome);
        self.pending -= 1;
        if abandoned && let Some(held) = self.release(index) {
            // Most hold nothing that needs care, but which do is not known here.
            if !matches!(held, Held::Nothing) {
                after.dropped.push(held);
            }
        }
    }
}

/// The CQs that tell of a queue's completions.
#[derive(Debug)]
enum Cqs {
    /// The queue is a QP's own.
    One(Arc<CqInner>),
    /// The queue is an SRQ: the CQs of the QPs that use it.
    Many(Mutex<Vec<Weak<CqInner>>>),
}

/// A queue's table, and where its completions come from.
#[derive(Debug)]
pub(crate) struct Queue {
    table: Mutex<Table>,
    cqs: Cqs,
    /// Requests somebody sleeps for.
    waiting: Arc<AtomicUsize>,
    fork: Arc<ForkGuard>,
}

impl Queue {
    /// A QP's own queue, whose completions come to `cq`.
    pub(crate) fn new(max: u32, ordered: bool, cq: Arc<CqInner>) -> Queue {
        let (waiting, fork) = (cq.waiting().clone(), cq.context().fork().clone());
        let table = Mutex::new(Table::new(max as usize, ordered));
        Queue { table, cqs: Cqs::One(cq), waiting, fork }
    }

    /// An SRQ's queue.
    pub(crate) fn shared(max: u32, fork: Arc<ForkGuard>) -> Queue {
        let table = Mutex::new(Table::new(max as usize, false));
        Queue { table, cqs: Cqs::Many(Mutex::default()), waiting: Arc::default(), fork }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// The table with room for a request.
    pub(crate) fn table_with_room(&self) -> Result<MutexGuard<'_, Table>, RequestError> {
        if self.fork.is_child() {
            return Err(RequestError::Forked);
        }
        let mut table = self.table.lock();
        if table.is_full() {
            // There may be completions that nobody fetched.
            drop(table);
            self.poll();
            table = self.table.lock();
        }
        if table.is_full() {
            return Err(PostError::QueueFull { max: table.max as u32 }.into());
        }
        Ok(table)
    }

    /// The identifier to post a request of this queue with.
    pub(crate) fn wr_id(&self, ticket: Ticket) -> u64 {
        match self.cqs {
            Cqs::One(_) => ticket.wr_id(),
            Cqs::Many(_) => ticket.wr_id() | SHARED,
        }
    }

    pub(crate) fn max(&self) -> u32 {
        self.table.lock().max as u32
    }

    pub(crate) fn has_sleepers(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// A QP whose receives complete to `cq` uses this SRQ now.
    pub(crate) fn attach(&self, cq: &Arc<CqInner>) {
        if let Cqs::Many(cqs) = &self.cqs {
            let mut cqs = cqs.lock();
            cqs.retain(|known| known.strong_count() > 0);
            if !cqs.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(cq))) {
                cqs.push(Arc::downgrade(cq));
            }
        }
    }

    fn each_cq(&self, mut f: impl FnMut(&Arc<CqInner>)) {
        match &self.cqs {
            Cqs::One(cq) => f(cq),
            Cqs::Many(cqs) => {
                let cqs: Vec<_> = cqs.lock().iter().filter_map(Weak::upgrade).collect();
                cqs.iter().for_each(f);
            }
        }
    }

    /// Fetches completions, unless somebody else is doing just that.
    pub(crate) fn poll(&self) {
        // An overrun has ended the requests it concerns.
        self.each_cq(|cq| drop(cq.try_dispatch()));
    }

    /// Sees to it that somebody looks for completions while the caller sleeps, then fetches those that came before.
    /// False where that cannot be had, so that the caller must go on polling.
    pub(crate) fn arm(&self) -> bool {
        let mut armed = true;
        self.each_cq(|cq| armed &= cq.arm());
        armed
    }

    pub(crate) fn complete(&self, wc: &Wc, after: &mut Aftermath) {
        self.table.lock().complete(wc, &self.waiting, after);
    }

    /// Ends all that is in flight without completions.
    pub(crate) fn lose(&self, why: CompletionError, after: &mut Aftermath) {
        let mut table = self.table.lock();
        table.order.clear();
        for index in 0..table.entries.len() as u32 {
            table.finish(index, Outcome::Lost(why), &self.waiting, after);
        }
    }

    /// Ends one request without a completion.
    pub(crate) fn lose_one(&self, ticket: Ticket, why: CompletionError, after: &mut Aftermath) {
        let mut table = self.table.lock();
        if table.find(ticket).is_some() {
            table.finish(ticket.index, Outcome::Lost(why), &self.waiting, after);
        }
    }

    /// How the request ended, with its buffers, once it has.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<(Outcome, Held, Asked)> {
        if self.fork.is_child() {
            // Nobody ends it here. There are no wakers to call: their threads are the parent's.
            let why = CompletionError::Dropped { how: Dropped::Forked };
            self.lose_one(ticket, why, &mut Aftermath::default());
        }
        let mut table = self.table.lock();
        let entry = table.find(ticket)?;
        let State::Done(outcome) = entry.state else { return None };
        let asked = entry.asked;
        Some((outcome, table.release(ticket.index)?, asked))
    }

    /// Leaves a waker to be called when the request ends; false when it has ended already.
    pub(crate) fn register(&self, ticket: Ticket, waker: &Waker) -> bool {
        // Cloned before and dropped after the lock is held: both run code that is not ours.
        let fresh = waker.clone();
        let old = {
            let mut table = self.table.lock();
            match table.find_mut(ticket).map(|entry| &mut entry.state) {
                Some(State::Pending { waker, .. }) => waker.replace(fresh),
                _ => return false,
            }
        };
        if old.is_none() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// Nobody waits for the request any more: its buffers go when it ends.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        let mut table = self.table.lock();
        let Some(entry) = table.find_mut(ticket) else { return };
        let (waker, held) = match &mut entry.state {
            State::Pending { waker, abandoned } => {
                *abandoned = true;
                (waker.take(), None)
            }
            State::Done(_) => (None, table.release(ticket.index)),
            State::Free(_) => (None, None),
        };
        drop(table);
        if waker.is_some() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        // Only now: dropping them runs code that is not ours.
        drop((waker, held));
    }
}
