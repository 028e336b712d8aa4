//! Waiting for those who touch what is being taken away from them.
//!
//! Where the slots of initiators are is noted here before they are told that they are watched, and until they
//! are dead, or have been told otherwise and have left.

use std::io::{self, Write};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_sys::process;
use parking_lot::Mutex;

use super::Thing;
use super::protocol::{self, Memory, Word};
use super::slots::{self, Slots};
use crate::registry::{Membership, Peer};
use crate::status::Wait;

/// For how long a slot may stay the same while its process runs. What is done under a slot takes a tenth of a
/// millisecond.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often is looked what became of the process.
const LOOK: Duration = Duration::from_millis(10);

/// Loads before the core is offered to others, and then before sleeping.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 100;

/// The slots of the initiators.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    peer: Peer,
    slots: Slots,
    /// They have been told that they are not watched any more; they are, until they have left.
    revoked: bool,
}

impl Entry {
    fn is_idle(&self) -> bool {
        (0..slots::COUNT).all(|slot| self.slots.load(slot, Ordering::Acquire) == 0)
    }

    fn revoke(&mut self) {
        self.revoked = true;
        protocol::revoke(&Owner(&self.slots));
    }
}

/// A lane's word that says that its slots are watched.
struct Owner<'a>(&'a Slots);

impl Memory for Owner<'_> {
    fn load(&self, _: Word, order: Ordering) -> u64 {
        self.0.watched(order).into()
    }

    fn store(&self, _: Word, value: u64, order: Ordering) {
        self.0.set_watched(value == 1, order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

/// What came of waiting for one slot.
enum Outcome {
    Left,
    Dead,
    /// Its process runs, and the slot does not change: it says what is not so.
    Liar,
    OutOfTime,
}

impl Watch {
    /// Watches a lane's slots from now on, and tells the initiator so.
    pub(crate) fn add(&self, peer: &Peer, slots: Slots) {
        self.entries.lock().push(Entry { peer: *peer, slots: slots.clone(), revoked: false });
        // SYNC POINT: with the load in `Outbound::target`: whoever enters from now on is found in the list, and sees
        // what was changed before.
        slots.set_watched(true, Ordering::Release);
    }

    /// Lets the process do nothing by itself any more.
    pub(crate) fn revoke(&self, peer: &Peer) {
        self.entries.lock().retain_mut(|entry| {
            if entry.peer != *peer {
                return true;
            }
            entry.revoke();
            !entry.is_idle()
        });
    }

    /// The process is dead: whatever its slots say, it touches nothing any more.
    pub(crate) fn bury(&self, peer: &Peer) {
        self.entries.lock().retain(|entry| entry.peer != *peer);
    }

    /// Waits until nobody touches `thing`, whose line has been changed. A stopped process is waited for, and named on
    /// stderr; one that runs and does not leave is not believed any more, and loses its lanes. At most for
    /// `limit`, where there is one: false if that was not enough. `tell` tells others of a process that is waited for.
    pub(crate) fn wait<'w>(
        &self,
        member: &Membership,
        thing: Thing,
        limit: Option<Duration>,
        tell: &dyn Fn(u32) -> Option<Wait<'w>>,
    ) -> bool {
        let mut busy = Vec::new();
        {
            let mut entries = self.entries.lock();
            entries.retain(|entry| !entry.revoked || !entry.is_idle());
            for entry in entries.iter() {
                let named =
                    |slot: &usize| slots::names(entry.slots.load(*slot, Ordering::Acquire), thing);
                busy.extend((0..slots::COUNT).filter(named).map(|slot| (entry.clone(), slot)));
            }
        }
        let end = limit.map(|limit| Instant::now() + limit);
        let mut void = Vec::new();
        for (entry, slot) in &busy {
            if void.contains(&entry.peer) {
                continue;
            }
            match self.wait_for(member, entry, *slot, thing, end, tell) {
                Outcome::Left => {}
                Outcome::Dead => {
                    self.bury(&entry.peer);
                    void.push(entry.peer);
                }
                Outcome::Liar => {
                    self.cut_off(member, entry);
                    void.push(entry.peer);
                }
                Outcome::OutOfTime => return false,
            }
        }
        true
    }

    fn cut_off(&self, member: &Membership, entry: &Entry) {
        let Peer { slot, pid, .. } = entry.peer;
        say(&format!("process {pid} (slot {slot}) claims to use memory and does not: cut off"));
        protocol::revoke(&Owner(&entry.slots));
        self.bury(&entry.peer);
        member.lanes().depart(&entry.peer);
    }

    fn wait_for<'w>(
        &self,
        member: &Membership,
        entry: &Entry,
        slot: usize,
        thing: Thing,
        end: Option<Instant>,
        tell: &dyn Fn(u32) -> Option<Wait<'w>>,
    ) -> Outcome {
        let mut seen = 0;
        let mut since = Instant::now();
        let mut looked = since;
        let mut told = false;
        // Until it is over.
        let mut shown = None;
        for round in 0u32.. {
            let value = entry.slots.load(slot, Ordering::Acquire);
            if !slots::names(value, thing) {
                break;
            }
            match round {
                0..SPINS => {
                    std::hint::spin_loop();
                    continue;
                }
                SPINS.. if round < SPINS + YIELDS => thread::yield_now(),
                _ => thread::sleep(Duration::from_micros(200)),
            }
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                return Outcome::OutOfTime;
            }
            if value != seen {
                (seen, since) = (value, now);
            }
            if now - looked < LOOK {
                continue;
            }
            looked = now;
            shown.get_or_insert_with(|| tell(entry.peer.pid));
            let gone = |error: io::Error| error.kind() == io::ErrorKind::NotConnected;
            if member.pidfd(&entry.peer).err().is_some_and(gone) {
                return Outcome::Dead;
            }
            if process::is_stopped(entry.peer.pid).unwrap_or(false) {
                since = now;
                if !std::mem::replace(&mut told, true) {
                    let pid = entry.peer.pid;
                    say(&format!("waiting for process {pid}, which was stopped while it copied"));
                }
            } else if now - since >= PATIENCE {
                return Outcome::Liar;
            }
        }
        Outcome::Left
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "ironverbs: {line}");
}
