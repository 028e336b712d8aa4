//! Hosts that say by ICMP that no process of theirs has the port of RoCEv2.
//!
//! Such a host may have its server in a moment, so what was sent is repeated soon rather than after the connection
//! manager's timeout of seconds; and if it has had the time for one, it is not waited for any longer. Hosts limit how
//! often they say so, and a path may lose it: that nothing came back says nothing.

use ironverbs_wire::Gid;

use super::conn::{Conn, State};
use super::sidr::{Resolution, Side};
use super::{Cm, ConnId, SidrId};
use crate::{Disconnect, Event, Failure, Instant};

/// Nanoseconds before the first repetition; each next takes twice as long, up to the longest.
const FIRST: u64 = 50_000_000;
const LONGEST: u64 = 800_000_000;

/// How long a host that refuses is waited for.
const PATIENCE: u64 = 3_000_000_000;

/// The same where the peer is to agree to an end that it has come to already.
const PATIENCE_AT_THE_END: u64 = 300_000_000;

/// A message that a host has refused.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Refusal {
    since: Instant,
    repeated: u8,
}

impl Refusal {
    /// When to repeat the message after this. None: as often as anything else, from now on.
    pub(super) fn next(&mut self, now: Instant, timeout: u64) -> Option<Instant> {
        let pause = (FIRST << self.repeated.min(6)).min(LONGEST);
        self.repeated = self.repeated.saturating_add(1);
        let over = now.0.saturating_sub(self.since.0) >= timeout.max(PATIENCE);
        (!over && pause < timeout).then(|| now.after(pause))
    }
}

/// What to do about a refusal.
enum Verdict {
    Repeat(Instant),
    GiveUp,
    Nothing,
}

/// Notes a refusal of a message that is repeated each `timeout`.
fn note(known: &mut Option<Refusal>, now: Instant, timeout: u64, patience: u64) -> Verdict {
    match known {
        Some(refusal) if now.0.saturating_sub(refusal.since.0) >= patience => Verdict::GiveUp,
        Some(_) => Verdict::Nothing,
        None => match known.insert(Refusal { since: now, repeated: 0 }).next(now, timeout) {
            Some(at) => Verdict::Repeat(at),
            None => Verdict::Nothing,
        },
    }
}

impl Cm {
    /// The host at `dst` refuses what is sent there (ICMP, port unreachable): what waits for an answer from it is repeated
    /// soon. If it still refuses after 3 s, connections end in [`Failure::Refused`], resolutions likewise; what waits for
    /// a peer to agree to its end is over after 0.3 s.
    pub fn refused(&mut self, now: Instant, dst: &Gid) {
        for id in self.conns.waiting_for(dst) {
            self.conn_refused(now, id);
        }
        for id in self.sidr.waiting_for(dst) {
            self.sidr_refused(now, id);
        }
    }

    fn conn_refused(&mut self, now: Instant, id: u32) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let Conn { state, timeout, .. } = conn;
        let ends = matches!(state, State::DreqSent(_));
        let patience = if ends { PATIENCE_AT_THE_END } else { PATIENCE };
        let (State::ReqSent(resend) | State::RepSent(resend) | State::DreqSent(resend)) = state
        else {
            return;
        };
        match note(&mut resend.refusal, now, *timeout, patience) {
            Verdict::Nothing => {}
            Verdict::Repeat(at) => conn.set_deadline(&mut self.deadlines, Some(at)),
            Verdict::GiveUp if ends => self.enter_timewait(now, id, Disconnect::Lost),
            Verdict::GiveUp => {
                if !conn.released {
                    let failure = Failure::Refused;
                    self.events.push_back(Event::Failed { conn: ConnId(id), failure });
                }
                self.remove(id);
            }
        }
    }

    fn sidr_refused(&mut self, now: Instant, id: u32) {
        let Some(found) = self.sidr.get_mut(id) else { return };
        let Resolution { side: Side::Asking { timeout, refusal, .. }, .. } = found else { return };
        match note(refusal, now, *timeout, PATIENCE) {
            Verdict::Nothing => {}
            Verdict::Repeat(at) => found.set_deadline(&mut self.deadlines, Some(at)),
            Verdict::GiveUp => {
                let failure = Failure::Refused;
                self.events.push_back(Event::SidrFailed { sidr: SidrId(id), failure });
                self.forget(id);
            }
        }
    }
}
