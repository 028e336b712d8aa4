//! Shared receive queues.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use ironverbs_slots::{Block, Slots, bytes_for};
use ironverbs_transport::device::RecvWqe;
use ironverbs_transport::qp::PostError;
use ironverbs_transport::verbs::{QpState, Sge};
use parking_lot::Mutex;

use crate::context::limits;
use crate::event::{AsyncEvent, EventCount, EventKind, EventSource};
use crate::object::{self, Identity};
use crate::status::Waiting;
use crate::{Context, Cq, Error, Kind, Pd, SrqInit, Xrcd};

/// What an SRQ holds (`struct ibv_srq_attr`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives it holds at most.
    pub max_wr: u32,
    /// Elements of a receive's list.
    pub max_sge: u32,
    /// The limit event fires when fewer receives are left; 0 when disarmed.
    pub limit: u32,
}

/// A ring of receive requests.
#[derive(Debug)]
pub(crate) struct Ring {
    wqes: Slots<Wqe>,
    sges: Slots<Sge>,
    max_sge: usize,
    head: usize,
    len: usize,
    limit: usize,
}

#[derive(Copy, Clone, Debug, Default)]
struct Wqe {
    wr_id: u64,
    sges: usize,
}

impl Ring {
    /// In `block`, which is of [`bytes`](Ring::bytes) bytes, or in memory of the library.
    pub(crate) fn new(max_wr: usize, max_sge: usize, mut block: Block) -> Ring {
        let mut wqes = block.slots(max_wr, Wqe::default());
        let mut sges = block.slots(max_wr * max_sge, Sge::default());
        wqes.resize(max_wr, Wqe::default());
        sges.resize(max_wr * max_sge, Sge::default());
        Ring { wqes, sges, max_sge, head: 0, len: 0, limit: 0 }
    }

    /// The memory of one of that size.
    fn bytes(max_wr: usize, max_sge: usize) -> usize {
        bytes_for::<Wqe>(max_wr) + bytes_for::<Sge>(max_wr * max_sge)
    }

    pub(crate) fn push(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.max_sge {
            return Err(PostError::TooManySges { asked: sges.len(), max: self.max_sge as u32 });
        }
        if self.len >= self.wqes.len() {
            return Err(PostError::QueueFull { max: self.len as u32 });
        }
        let slot = (self.head + self.len) % self.wqes.len();
        self.wqes[slot] = Wqe { wr_id, sges: sges.len() };
        let first = slot * self.max_sge;
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.len += 1;
        Ok(())
    }

    pub(crate) fn pop(&mut self, into: &mut RecvWqe) -> bool {
        if self.len == 0 {
            return false;
        }
        let wqe = self.wqes[self.head];
        let first = self.head * self.max_sge;
        into.wr_id = wqe.wr_id;
        into.sges.clear();
        into.sges.extend_from_slice(&self.sges[first..first + wqe.sges]);
        self.head = (self.head + 1) % self.wqes.len();
        self.len -= 1;
        true
    }

    fn resized(&mut self, max_wr: usize, block: Block) -> Ring {
        let mut ring = Ring::new(max_wr, self.max_sge, block);
        ring.limit = self.limit;
        let mut wqe = RecvWqe::default();
        while self.pop(&mut wqe) {
            // There is room: the caller checked that `max_wr` holds what is posted.
            let _ = ring.push(wqe.wr_id, &wqe.sges);
        }
        ring
    }
}

/// A shared receive queue (ibv_create_srq(3)).
#[derive(Debug)]
pub struct Srq {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    pub(crate) events: EventCount,
    me: Weak<Srq>,
    pd: Arc<Pd>,
    xrc: Option<Xrc>,
    ring: Mutex<Ring>,
}

/// What an SRQ for XRC has besides.
#[derive(Debug)]
struct Xrc {
    number: u32,
    domain: Arc<Xrcd>,
    cq: Arc<Cq>,
}

impl Srq {
    pub(crate) fn new(pd: &Arc<Pd>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        check_init(init)?;
        let identity = pd.host().counted(&pd.host().quotas.srq)?;
        Ok(Srq::make(identity, pd, ring(pd, init)?, None))
    }

    pub(crate) fn new_xrc(
        pd: &Arc<Pd>,
        init: SrqInit,
        domain: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, Error> {
        check_init(init)?;
        domain.identity.check()?;
        cq.identity.check()?;
        for (what, context) in
            [("XRC domain", domain.context()), ("completion queue", cq.context())]
        {
            if !Arc::ptr_eq(context, pd.context()) {
                return Err(Error::Foreign { what });
            }
        }
        let identity = pd.host().counted(&pd.host().quotas.srq)?;
        let ring = ring(pd, init)?;
        let number = domain.take_number().ok_or(Error::NoMemory { what: "XRC SRQ number" })?;
        object::take(&domain.users);
        object::take(&cq.users);
        let xrc = Xrc { number, domain: domain.clone(), cq: cq.clone() };
        let srq = Srq::make(identity, pd, ring, Some(xrc));
        domain.add(number, &srq);
        Ok(srq)
    }

    fn make(identity: Identity, pd: &Arc<Pd>, ring: Ring, xrc: Option<Xrc>) -> Arc<Srq> {
        object::take(&pd.users);
        Arc::new_cyclic(|me| Srq {
            identity,
            users: AtomicUsize::new(0),
            events: EventCount::default(),
            me: me.clone(),
            pd: pd.clone(),
            xrc,
            ring: Mutex::new(ring),
        })
    }

    /// Posts a receive (ibv_post_srq_recv(3)).
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // A fork's copy of the lock may be held for ever.
        self.context().inner().check().map_err(|_| PostError::State(QpState::Reset))?;
        if !self.context().device().is_present() {
            return Err(PostError::DeviceGone);
        }
        self.ring.lock().push(wr_id, sges)
    }

    /// Takes the next receive for a message; raises the limit event when fewer than the limit are left.
    pub(crate) fn take(&self, into: &mut RecvWqe) -> bool {
        let mut ring = self.ring.lock();
        if !ring.pop(into) {
            return false;
        }
        if ring.len < ring.limit {
            ring.limit = 0;
            if let Some(me) = self.me.upgrade() {
                let source = EventSource::Srq(me);
                self.context().events.push(AsyncEvent { kind: EventKind::SrqLimitReached, source });
            }
        }
        true
    }

    /// Resizes the queue, arms the limit, or both (ibv_modify_srq(3)). On an error nothing has changed.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        self.context().check()?;
        self.identity.check()?;
        let mut block = Block::default();
        if let Some(max_wr) = max_wr {
            check_wr(max_wr)?;
            // Asked for before anything is locked, as whoever gives it may do as he likes.
            let max_sge = self.ring.lock().max_sge;
            let bytes = Ring::bytes(max_wr as usize, max_sge);
            block = self.pd.memory(Kind::SharedReceives, bytes)?;
        }
        let mut ring = self.ring.lock();
        if let Some(max_wr) = max_wr
            && (max_wr as usize) < ring.len
        {
            return Err(Error::Invalid {
                what: "max_wr",
                value: max_wr.into(),
                why: "more receives than that are posted",
            });
        }
        let capacity = max_wr.map_or(ring.wqes.len(), |n| n as usize);
        if let Some(limit) = limit
            && limit as usize > capacity
        {
            return Err(Error::Limit {
                what: "srq_limit",
                asked: limit.into(),
                max: capacity as u64,
            });
        }
        let mut before = None;
        if max_wr.is_some() && capacity != ring.wqes.len() {
            let resized = ring.resized(capacity, block);
            before = Some(std::mem::replace(&mut *ring, resized));
        }
        if let Some(limit) = limit {
            ring.limit = limit as usize;
        }
        drop(ring);
        drop(before);
        Ok(())
    }

    /// Its attributes (ibv_query_srq(3)).
    pub fn query(&self) -> SrqAttr {
        // A fork's copy of the lock may be held for ever; there the SRQ is as good as none.
        if self.context().inner().check().is_err() {
            return SrqAttr { max_wr: 0, max_sge: 0, limit: 0 };
        }
        let ring = self.ring.lock();
        SrqAttr {
            max_wr: ring.wqes.len() as u32,
            max_sge: ring.max_sge as u32,
            limit: ring.limit as u32,
        }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The number that peers name it by, 24 bits; XRC only (ibv_get_srq_num(3)).
    pub fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// Its XRC domain, if it has one.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrc.as_ref().map(|xrc| &xrc.domain)
    }

    /// The CQ of what is received into it; XRC only.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Destroys it; Busy while a QP uses it; waits for unacknowledged events (ibv_destroy_srq(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.release()?;
        let (host, handle) = (self.context().inner(), self.handle());
        self.events.wait(|| host.waiting(Waiting::Srq, handle));
        Ok(())
    }

    fn release(&self) -> Result<(), Error> {
        self.context().inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        // Nobody comes any more. Whoever gave its memory is called with nothing locked.
        let ring = std::mem::replace(&mut *self.ring.lock(), Ring::new(0, 0, Block::default()));
        drop(ring);
        if let Some(xrc) = &self.xrc {
            xrc.domain.remove(xrc.number);
            object::give_back(&xrc.domain.users);
            object::give_back(&xrc.cq.users);
        }
        self.context().events.forget(self);
        object::give_back(&self.pd.users);
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

object::accessors!(Srq);

fn ring(pd: &Pd, init: SrqInit) -> Result<Ring, Error> {
    let (max_wr, max_sge) = (init.max_wr as usize, init.max_sge.max(1) as usize);
    let block = pd.memory(Kind::SharedReceives, Ring::bytes(max_wr, max_sge))?;
    Ok(Ring::new(max_wr, max_sge, block))
}

fn check_init(init: SrqInit) -> Result<(), Error> {
    check_wr(init.max_wr)?;
    if init.max_sge > limits::SGE {
        return Err(Error::Limit {
            what: "max_sge",
            asked: init.max_sge.into(),
            max: limits::SGE.into(),
        });
    }
    Ok(())
}

fn check_wr(max_wr: u32) -> Result<(), Error> {
    match max_wr {
        0 => Err(Error::Invalid {
            what: "max_wr",
            value: 0,
            why: "a queue holds at least one request",
        }),
        n if n > limits::WR => {
            Err(Error::Limit { what: "max_wr", asked: n.into(), max: limits::WR.into() })
        }
        _ => Ok(()),
    }
}
