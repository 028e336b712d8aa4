//! What processes of this host leave to be said, and what is said for those that are dead.
//!
//! A process leaves, in its window of the shared state, for each of its connections to other hosts the request to
//! disconnect. Whoever buries it sends them: so the peer of a process that was killed hears of its end at once, and not
//! by its own retries, if ever.

use ironverbs_mad::{Bequest, Parting};
use ironverbs_transport::device::Instant;

use super::manager::{Manager, Session, TIMER};
use super::wire;
use crate::host::Inner;
use crate::status::Will;

/// When it is said again, in nanoseconds from the time before: a packet may be lost, and there is nobody whom the answer
/// reaches.
const AGAIN: [u64; 2] = [250_000_000, 1_000_000_000];

/// Said to one peer for one connection.
#[derive(Debug)]
pub(super) struct LastWords {
    parting: Parting,
    at: Instant,
    /// How often it was said.
    said: usize,
}

impl Session<'_> {
    /// Leaves for this process what is to be left.
    pub(super) fn bequeath(&mut self) {
        while let Some(bequest) = self.cm().poll_bequest() {
            let Some(board) = self.host.board() else { continue };
            match bequest {
                // Those on this host see the death by themselves.
                Bequest::Leave { parting, .. } if self.host.is_local(&parting.path.dst) => {}
                Bequest::Leave { qpn, parting } => board.bequeath(qpn, &parting),
                Bequest::Revoke { qpn, comm_id } => board.disinherit(qpn, comm_id),
            }
        }
    }
}

impl Manager {
    /// Does what the process that had the slot wanted done.
    pub(crate) fn execute(&self, host: &Inner, slot: u16, wills: &[Will]) {
        let now = host.now();
        let partings = wills.iter().filter_map(|will| will.parting(slot, |gid| host.is_local(gid)));
        let words: Vec<_> =
            partings.map(|parting| LastWords { parting, at: now, said: 0 }).collect();
        if !words.is_empty() {
            self.last_words.lock().extend(words);
            self.repeat_last_words(host, now);
        }
    }

    /// Says what is due.
    pub(super) fn repeat_last_words(&self, host: &Inner, now: Instant) {
        let mut all = self.last_words.lock();
        all.retain_mut(|words| {
            if words.at > now {
                return true;
            }
            // Datagrams have no order that anybody minds.
            wire::send(host, &words.parting.transmit(), 0);
            let again = AGAIN.get(words.said);
            words.said += 1;
            words.at = now.after(again.copied().unwrap_or_default());
            again.is_some()
        });
        let next = all.iter().map(|words| words.at).min();
        drop(all);
        if let Some(next) = next {
            host.add_timer(next, TIMER);
        }
    }
}
