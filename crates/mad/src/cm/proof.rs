//! Whose requests go before those of strangers when there are more than a program can answer.
//!
//! The sender of a flood can write any address into its packets. So where a request is dropped because too many wait, its
//! address is asked something that whoever has it answers and keeps nothing of: a SIDR_REQ for a service that nobody
//! offers ([`Prober`](crate::Prober) asks the same). Its ID and transaction follow from the address by a secret, so nothing
//! is remembered here, either, and each request costs its sender as much as us. Who answers has proven that the address is
//! its own; when it repeats its request, as it will, that goes before those of strangers.

use std::collections::{HashMap, VecDeque};

use ironverbs_wire::Gid;
use ironverbs_wire::mad::cm::{Message, SidrRep, SidrReq};

use super::{Cm, Origin};
use crate::Instant;
use crate::probe::SERVICE;

/// Time for which a question is good, or the next one, in nanoseconds.
const EPOCH: u64 = 60_000_000_000;

/// How long an answer is remembered, in nanoseconds.
const MEMORY: u64 = 300_000_000_000;

/// Addresses that are remembered.
const MOST: usize = 1 << 12;

/// Addresses that have answered.
#[derive(Debug, Default)]
pub(super) struct Proven {
    until: HashMap<Gid, Instant>,
    /// Oldest first.
    order: VecDeque<(Instant, Gid)>,
}

impl Proven {
    fn add(&mut self, now: Instant, gid: Gid) {
        let until = now.after(MEMORY);
        self.until.insert(gid, until);
        self.order.push_back((until, gid));
        while self.order.len() > MOST || self.order.front().is_some_and(|(until, _)| *until <= now)
        {
            let Some((until, gid)) = self.order.pop_front() else { break };
            // It may have answered again since.
            if self.until.get(&gid) == Some(&until) {
                self.until.remove(&gid);
            }
        }
    }

    pub(super) fn has(&self, now: Instant, gid: &Gid) -> bool {
        self.until.get(gid).is_some_and(|until| now < *until)
    }
}

impl Cm {
    /// Whether somebody is known to have this address.
    pub(super) fn is_proven(&self, now: Instant, gid: &Gid) -> bool {
        self.proven.has(now, gid)
    }

    /// A request was dropped: asks its sender for a proof.
    pub(super) fn ask_for_proof(&mut self, now: Instant, from: &Origin) {
        if self.is_proven(now, &from.path.src) {
            return;
        }
        self.counters.challenged += 1;
        let (request_id, tid) = self.question(now.0 / EPOCH, &from.path.src);
        let question = SidrReq {
            request_id,
            pkey: from.pkey,
            service_id: SERVICE,
            private_data: [0; SidrReq::PRIVATE_DATA],
        };
        self.out.push(from.route(), Message::SidrReq(question).emit(tid));
    }

    /// An answer to no resolution of a program: whether it is a proof.
    pub(super) fn takes_proof(&mut self, now: Instant, from: &Origin, rep: &SidrRep) -> bool {
        let epoch = now.0 / EPOCH;
        let asked = [epoch, epoch.wrapping_sub(1)]
            .iter()
            .any(|epoch| self.question(*epoch, &from.path.src) == (rep.request_id, from.tid));
        if asked {
            self.counters.proven += 1;
            self.proven.add(now, from.path.src);
        }
        asked
    }

    /// What an address is asked: the request's ID and transaction.
    fn question(&self, epoch: u64, of: &Gid) -> (u32, u64) {
        self.ids.secret(epoch, &of.0)
    }
}
