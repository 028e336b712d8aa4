//! The device as one queue pair sees it during a call.

use std::cell::OnceCell;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_sys::marks;
use ironverbs_transport::device::{
    self, Atomic, Carrier, OneSided, Operation, Piece, PullError, QpEvent, Queue, RecvWqe,
};
use ironverbs_transport::verbs::{Access, Bind, Fault, QpType, Sge, Wc};

use crate::direct::{Aim, Local, Remote, Thing};
use crate::event::{AsyncEvent, EventSource};
use crate::local::Outbound;
use crate::memory::{By, Regions, slot_of_key};
use crate::reference::Source;
use crate::{Qp, Srq};

/// How long an invalidation by a peer waits for other peers that use the region at that moment.
const INVALIDATION: Duration = Duration::from_millis(500);

/// Holds the table of regions from its first use for the rest of a call: nothing is deregistered meanwhile.
pub(crate) struct Surroundings<'a> {
    qp: &'a Qp,
    regions: Held<'a>,
    pd: u32,
    /// The SRQ that a request on XRC names.
    selected: Option<Arc<Srq>>,
    /// Requests that the next completion of a send covers.
    covered: u64,
    /// The lane to the peer, where requests may be carried out without packets.
    lane: Option<&'a Outbound>,
    /// Where the last of them went.
    pub(crate) aim: Option<Aim>,
    /// How to come by the payload of the packet in hand.
    pub(crate) pull: Option<Pull>,
    /// The table of the process that sent it.
    pub(crate) sender: Option<&'a Remote>,
}

/// A payload that is to be fetched from another process.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pull {
    pub(crate) pid: u32,
    pub(crate) source: Source,
}

/// The table of regions, locked when it is first asked for: most acknowledgements touch no memory.
pub(crate) struct Held<'a> {
    table: &'a marks::Lock<Regions>,
    guard: OnceCell<marks::ReadGuard<'a, Regions>>,
}

impl Deref for Held<'_> {
    type Target = Regions;

    #[inline]
    fn deref(&self) -> &Regions {
        self.guard.get_or_init(|| self.table.read())
    }
}

impl<'a> Surroundings<'a> {
    pub(crate) fn of(qp: &'a Qp) -> Surroundings<'a> {
        let surroundings = Surroundings::on_demand(qp);
        let _: &Regions = &surroundings.regions;
        surroundings
    }

    /// The same, the table not locked before it is asked for. Not for who sends data: the table comes before the lock of
    /// a lane or a sender, for everyone.
    pub(crate) fn on_demand(qp: &'a Qp) -> Surroundings<'a> {
        let regions = Held { table: &qp.host().regions, guard: OnceCell::new() };
        Surroundings {
            qp,
            regions,
            pd: qp.pd().handle(),
            selected: None,
            covered: 0,
            lane: None,
            aim: None,
            pull: None,
            sender: None,
        }
    }

    /// For sending to a peer that a lane leads to.
    pub(crate) fn with_lane(qp: &'a Qp, lane: &'a Outbound) -> Surroundings<'a> {
        Surroundings { lane: Some(lane), ..Surroundings::of(qp) }
    }

    /// For what needs no packets, and no lock of the lane.
    pub(crate) fn without_packets(
        qp: &'a Qp,
        lane: &'a Outbound,
        aim: Option<Aim>,
    ) -> Surroundings<'a> {
        Surroundings { lane: Some(lane), aim, ..Surroundings::on_demand(qp) }
    }

    fn fetch(&self, from: u64, to: u64, len: u32) -> Result<(), PullError> {
        let pull = self.pull.as_ref().ok_or(PullError::Elsewhere)?;
        let (gauge, len) = (&self.qp.host().gauge, len as usize);
        let process = (pull.pid, self.sender);
        // SAFETY: `to` lies in a registered region that may be written, as who calls has checked, and `self.regions` is
        // borrowed, so no deregistration can finish meanwhile.
        let fetch = || unsafe { pull.source.fetch(process, from, to, len) };
        match gauge.is_on() && gauge.measure(len, fetch) {
            true => Ok(()),
            false => Err(PullError::Elsewhere),
        }
    }

    fn local(&self) -> Local<'_, 'a> {
        Local {
            regions: &self.regions,
            pd: self.pd,
            qpn: self.qp.qpn(),
            mode: self.qp.host().config.onesided.value,
        }
    }

    fn by(&self) -> By {
        By { pd: self.pd, qpn: self.qp.qpn() }
    }

    /// Waits until no peer uses a window's old key any more: the program is about to be told that it is of no use. But the
    /// engine does not wait for a process that was stopped.
    fn left_alone(&self, rkey: u32) {
        let thing = Thing::Region(slot_of_key(rkey));
        self.qp.host().wait_briefly(thing, INVALIDATION);
    }

    /// The QP's own rights come before the region's (IBA 9.7.4.1.4).
    fn granted(&self, need: Access) -> Result<(), Fault> {
        if self.qp.remote_access().contains(need) { Ok(()) } else { Err(Fault::Access) }
    }
}

impl device::Device for Surroundings<'_> {
    fn check_local(&mut self, sge: &Sge, write: bool) -> Result<(), Fault> {
        if sge.len == 0 {
            return Ok(());
        }
        self.regions.check_local(self.pd, sge.lkey, sge.addr, sge.len.into(), write)
    }

    fn gather(&mut self, sge: &Sge, offset: u32, dst: &mut [u8]) -> Result<(), Fault> {
        let va = sge.addr.wrapping_add(offset.into());
        self.regions.gather(self.pd, sge.lkey, va, dst)
    }

    fn scatter(&mut self, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), Fault> {
        let va = sge.addr.wrapping_add(offset.into());
        self.regions.scatter(self.pd, sge.lkey, va, src)
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, need: Access) -> Result<(), Fault> {
        self.granted(need)?;
        self.regions.check_remote(self.by(), rkey, va, len, need)
    }

    fn read_remote(&mut self, rkey: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault> {
        self.granted(Access::REMOTE_READ)?;
        self.regions.read_remote(self.by(), rkey, va, dst)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        self.granted(Access::REMOTE_WRITE)?;
        self.regions.write_remote(self.by(), rkey, va, src)
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault> {
        self.granted(Access::REMOTE_ATOMIC)?;
        self.regions.atomic(self.by(), rkey, va, op)
    }

    fn carry_out(&mut self, request: &OneSided<'_>) -> Option<Carrier> {
        let lane = self.lane?;
        if self.qp.qp_type() == QpType::Uc {
            // What was sent on an unreliable connection is complete, but perhaps not yet carried out. Who has the ring
            // locked, perhaps our own sink, has put something into it.
            let drained = lane.producer.try_lock().is_some_and(|producer| producer.is_drained());
            drained.then_some(())?;
        }
        let mut aim = self.aim.take();
        let carrier = lane.initiator.carry_out(&self.local(), request, &mut aim);
        self.aim = aim;
        carrier
    }

    fn could_carry_out(&mut self, request: &OneSided<'_>) -> bool {
        self.lane.is_some_and(|lane| lane.initiator.could_carry_out(&self.local(), request))
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault> {
        self.regions.invalidate(self.by(), rkey)?;
        self.left_alone(rkey);
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), Fault> {
        self.regions.bind(self.by(), bind)?;
        self.left_alone(bind.rkey);
        Ok(())
    }

    fn invalidate_local(&mut self, rkey: u32) -> Result<(), Fault> {
        self.invalidate(rkey)
    }

    fn locate(&mut self, sge: &Sge, offset: u32, len: u32) -> Result<Piece, Fault> {
        let va = sge.addr.wrapping_add(offset.into());
        let addr = self.regions.local(self.pd, sge.lkey, va, len.into(), false)?;
        Ok(Piece { addr, len })
    }

    fn revoke(&mut self) {
        let host = self.qp.host();
        host.cookie.change(host.table.get().map(|table| &**table));
    }

    fn pull(&mut self, from: u64, sge: &Sge, offset: u32, len: u32) -> Result<(), PullError> {
        let va = sge.addr.wrapping_add(offset.into());
        let to = match self.regions.local(self.pd, sge.lkey, va, len.into(), true) {
            Ok(to) => to,
            Err(fault) => {
                // Into a null region nothing need be fetched.
                return self.regions.null(self.pd, sge.lkey, fault).map_err(PullError::Fault);
            }
        };
        self.fetch(from, to, len)
    }

    fn pull_remote(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), PullError> {
        self.granted(Access::REMOTE_WRITE).map_err(PullError::Fault)?;
        let (by, write) = (self.by(), Access::REMOTE_WRITE);
        let fetched =
            self.regions.remote(by, rkey, va, len.into(), write, |to| self.fetch(0, to, len));
        fetched.map_err(PullError::Fault)?
    }

    fn select_srq(&mut self, srqn: u32) -> bool {
        if self.selected.as_ref().and_then(|srq| srq.number()) == Some(srqn) {
            return true;
        }
        self.selected = self.qp.xrcd().and_then(|xrcd| xrcd.srq(srqn));
        if let Some(srq) = &self.selected {
            self.pd = srq.pd().handle();
        }
        self.selected.is_some()
    }

    fn srq_take(&mut self, wqe: &mut RecvWqe) -> bool {
        self.selected.as_ref().or(self.qp.srq()).is_some_and(|srq| srq.take(wqe))
    }

    fn covers(&mut self, requests: u64) {
        self.covered = requests;
    }

    fn complete(&mut self, queue: Queue, wc: Wc) {
        match queue {
            Queue::Send => self.qp.send_cq().complete(wc, Some(self.qp.reads(self.covered))),
            Queue::Recv if self.qp.qp_type() == QpType::XrcRecv => {
                if let Some(cq) = self.selected.as_ref().and_then(|srq| srq.cq()) {
                    cq.complete(wc, None);
                }
            }
            Queue::Recv => self.qp.recv_cq().complete(wc, None),
        }
    }

    fn ended(&mut self, operation: Operation, bytes: Option<u64>) {
        self.qp.counting.ended(operation, bytes);
    }

    fn event(&mut self, event: QpEvent) {
        if let Some(qp) = self.qp.me() {
            let event = AsyncEvent { kind: event.into(), source: EventSource::Qp(qp) };
            self.qp.context().events.push(event);
        }
    }
}
