//! Completion queues: they take completions to the requests that they are for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_soft as soft;
use parking_lot::{Mutex, MutexGuard};

use crate::device::ContextInner;
use crate::error::{CompletionError, Dropped};
use crate::queue::{Aftermath, Queue, SHARED};
use crate::{Context, Error};

/// A completion queue (ibv_create_cq(3)). Clones are the same queue.
///
/// Requests are futures, or are waited for: mostly nobody looks at the queue itself. A program that spins calls
/// [`poll`](Cq::poll). It grows with the queue pairs that use it, so that it cannot overrun.
#[derive(Clone, Debug)]
pub struct Cq(pub(crate) Arc<CqInner>);

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) raw: Arc<soft::Cq>,
    /// Requests on queues of QPs that somebody sleeps for.
    waiting: Arc<AtomicUsize>,
    dispatch: Mutex<Dispatch>,
    context: Arc<ContextInner>,
}

/// Held while completions are on their way to their requests: they arrive in order, and whoever holds it knows that
/// none is on its way.
#[derive(Debug, Default)]
pub(crate) struct Dispatch {
    qps: HashMap<u32, Route>,
    srqs: Vec<(usize, Weak<Queue>)>,
    /// Completions that all queues together may have at a time.
    committed: u64,
    batch: Vec<soft::Wc>,
}

/// The queues of a QP.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) qp: Arc<soft::Qp>,
    /// None where the queue completes elsewhere.
    pub(crate) sends: Option<Arc<Queue>>,
    pub(crate) recvs: Option<Arc<Queue>>,
}

/// Completions fetched at a time.
const BATCH: usize = 64;

impl Cq {
    /// A queue of at least `cqe` completions.
    ///
    /// # Errors
    /// Object: more than the device can, or none; no descriptors left.
    pub fn new(context: &Context, cqe: u32) -> Result<Cq, Error> {
        let reactor = context.0.reactor();
        let raw = context.0.raw.create_cq(cqe, Some(reactor.channel()), 0)?;
        let cq = Arc::new(CqInner {
            raw,
            waiting: Arc::default(),
            dispatch: Mutex::default(),
            context: context.0.clone(),
        });
        reactor.add(&cq);
        Ok(Cq(cq))
    }

    /// Completions it holds.
    pub fn cqe(&self) -> u32 {
        self.0.raw.cqe()
    }

    /// Its number; events name it.
    pub fn id(&self) -> u32 {
        self.0.raw.handle()
    }

    /// Drives the device and takes completions to their requests (ibv_poll_cq(3)); the number of them. While another
    /// thread does just that, 0.
    ///
    /// # Errors
    /// Object (Overrun): completions were lost, and all requests concerned have ended with an error.
    pub fn poll(&self) -> Result<usize, Error> {
        Ok(self.0.try_dispatch()?)
    }
}

impl CqInner {
    pub(crate) fn context(&self) -> &ContextInner {
        &self.context
    }

    pub(crate) fn waiting(&self) -> &Arc<AtomicUsize> {
        &self.waiting
    }

    /// Takes completions to their requests, unless another thread is at it.
    pub(crate) fn try_dispatch(&self) -> Result<usize, soft::Error> {
        if self.context.fork().is_child() {
            return Err(soft::Error::Forked);
        }
        match self.dispatch.try_lock() {
            Some(dispatch) => self.run(dispatch),
            None => {
                std::hint::spin_loop();
                Ok(0)
            }
        }
    }

    /// Takes all completions that are there to their requests. When it returns, no other thread has any in hand that
    /// came before.
    pub(crate) fn dispatch(&self) -> Result<usize, soft::Error> {
        if self.context.fork().is_child() {
            return Err(soft::Error::Forked);
        }
        self.run(self.dispatch.lock())
    }

    fn run(&self, mut guard: MutexGuard<'_, Dispatch>) -> Result<usize, soft::Error> {
        let mut after = Aftermath::default();
        let mut taken = 0;
        let result = loop {
            let dispatch = &mut *guard;
            let batch = &mut dispatch.batch;
            // Out of the device's lock first: what follows takes locks of its own.
            match self.raw.poll(BATCH, |wc| batch.push(*wc)) {
                Ok(n) => taken += n,
                Err(e) => {
                    dispatch.overrun(&mut after);
                    break Err(e);
                }
            }
            let n = dispatch.deliver(&mut after);
            if n < BATCH {
                break Ok(taken);
            }
        };
        drop(guard);
        after.run();
        result
    }

    /// Asks the reactor to look for completions, and fetches those that came before. False when there is no reactor.
    pub(crate) fn arm(&self) -> bool {
        let armed =
            self.context.reactor().ensure_running() && self.raw.request_notify(false).is_ok();
        // SYNC POINT: the waker was registered, then the queue armed, now it is read; a completion comes, then the
        // device looks whether the queue is armed. One of the two sees the other.
        let _ = self.dispatch();
        armed
    }

    /// On the reactor's thread, after an event: completions to their requests, and armed again while anybody sleeps.
    pub(crate) fn serve(&self) {
        let _ = self.dispatch();
        if self.has_sleepers() && self.raw.request_notify(false).is_ok() {
            let _ = self.dispatch();
        }
    }

    fn has_sleepers(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 || {
            let dispatch = self.dispatch.lock();
            dispatch.srqs.iter().any(|(_, srq)| srq.upgrade().is_some_and(|q| q.has_sleepers()))
        }
    }

    /// Makes room for a QP's completions before it is made: `sends` of its own, and `recvs` of its own or of an SRQ.
    pub(crate) fn reserve(
        &self,
        own: u64,
        srq: Option<&Arc<Queue>>,
    ) -> Result<Reservation, soft::Error> {
        let mut dispatch = self.dispatch.lock();
        dispatch.srqs.retain(|(_, srq)| srq.strong_count() > 0);
        let key = srq.map(|srq| Arc::as_ptr(srq) as usize);
        let new = srq.filter(|_| !dispatch.srqs.iter().any(|(known, _)| Some(*known) == key));
        let more = own + new.map_or(0, |srq| u64::from(srq.max()));
        let want = dispatch.committed + more;
        if want > u64::from(self.raw.cqe()) {
            let cqe = u32::try_from(want).unwrap_or(u32::MAX);
            self.raw.resize(cqe)?;
        }
        dispatch.committed = want;
        if let (Some(srq), Some(key)) = (new, key) {
            dispatch.srqs.push((key, Arc::downgrade(srq)));
        }
        Ok(Reservation { own })
    }

    /// Gives back what a QP that was not made had reserved.
    pub(crate) fn unreserve(&self, reservation: Reservation) {
        let mut dispatch = self.dispatch.lock();
        dispatch.committed = dispatch.committed.saturating_sub(reservation.own);
    }

    pub(crate) fn add(&self, qpn: u32, route: Route) {
        self.dispatch.lock().qps.insert(qpn, route);
    }

    pub(crate) fn remove(&self, qpn: u32, own: u64) {
        let mut dispatch = self.dispatch.lock();
        let route = dispatch.qps.remove(&qpn);
        dispatch.committed = dispatch.committed.saturating_sub(own);
        drop(dispatch);
        drop(route);
    }
}

/// Completions that a CQ made room for.
#[derive(Debug)]
pub(crate) struct Reservation {
    own: u64,
}

impl Dispatch {
    /// Takes the batch to its requests; how many there were.
    fn deliver(&mut self, after: &mut Aftermath) -> usize {
        let Dispatch { qps, srqs, batch, .. } = self;
        let n = batch.len();
        for wc in batch.drain(..) {
            if wc.wr_id & SHARED != 0 {
                deliver_shared(srqs, qps, &wc, after);
            } else if let Some(route) = qps.get(&wc.qpn) {
                let queue = if is_receive(&wc) { &route.recvs } else { &route.sends };
                if let Some(queue) = queue {
                    queue.complete(&wc, after);
                }
            }
        }
        n
    }

    /// Completions were lost: requests that may never be told of again end now. First their queue pairs are stopped,
    /// so that nobody touches the buffers any more.
    #[cold]
    fn overrun(&mut self, after: &mut Aftermath) {
        let why = CompletionError::Dropped { how: Dropped::Overrun };
        let attr = soft::QpAttr { state: soft::QpState::Err, ..soft::QpAttr::default() };
        for route in self.qps.values() {
            if route.qp.modify(&attr, soft::AttrMask::STATE).is_ok() {
                for queue in [&route.sends, &route.recvs].into_iter().flatten() {
                    queue.lose(why, after);
                }
            }
        }
    }
}

fn is_receive(wc: &soft::Wc) -> bool {
    matches!(wc.opcode, soft::WcOpcode::Recv | soft::WcOpcode::RecvWriteWithImm)
}

/// A receive of an SRQ: the QP knows which.
fn deliver_shared(
    srqs: &[(usize, Weak<Queue>)],
    qps: &HashMap<u32, Route>,
    wc: &soft::Wc,
    after: &mut Aftermath,
) {
    match (srqs, qps.get(&wc.qpn)) {
        // The common case, and right even after the QP is gone.
        ([(_, only)], _) => {
            if let Some(queue) = only.upgrade() {
                queue.complete(wc, after);
            }
        }
        (_, Some(Route { recvs: Some(queue), .. })) => queue.complete(wc, after),
        _ => {}
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Nothing uses it any more, and its events are acknowledged: this neither fails nor waits.
        self.context.end(&self.raw, |raw| drop(raw.destroy()));
        if !self.context.fork().is_child() {
            self.context.reactor().remove(self.raw.handle());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        ConnectOptions, Devices, EventKind, EventSource, Pd, Qp, QpState, Rc, connect_pair,
    };

    const LIMIT: Duration = Duration::from_secs(60);

    /// Queues grow with their users, so that this cannot happen: unless one is cut behind their back.
    #[test]
    fn an_overrun_ends_requests_and_returns_their_buffers() {
        let devices = Devices::with(crate::Config::default()).unwrap();
        let context = devices.first().unwrap().open().unwrap();
        let pd = Pd::new(&context).unwrap();
        let (near, far) = (Cq::new(&context, 1).unwrap(), Cq::new(&context, 1).unwrap());
        let a = Qp::<Rc>::builder(&pd, &near).build().unwrap();
        let b = Qp::<Rc>::builder(&pd, &far).build().unwrap();
        let (a, b) = connect_pair(a, b, &ConnectOptions::default()).unwrap();
        let region = pd.region(80, crate::Access::LOCAL_WRITE).unwrap();
        far.0.raw.resize(2).unwrap();
        let slices = (0..10).map(|i| region.slice(8 * i..8 * i + 8).unwrap());
        let mut recvs: Vec<_> = slices.map(|slice| b.recv(slice).unwrap()).collect();
        for _ in 0..3 {
            let (result, ()) = a.send(()).post().unwrap().wait_for(LIMIT).unwrap();
            result.unwrap();
        }
        let mut lost = 0;
        for recv in recvs.drain(..) {
            let (result, slice) = recv.wait_for(LIMIT).unwrap();
            assert_eq!(slice.len(), 8);
            lost += usize::from(result == Err(CompletionError::Dropped { how: Dropped::Overrun }));
        }
        assert_eq!((lost, b.state()), (8, QpState::Err));
        assert!(far.poll().unwrap_err().to_string().contains("overran its 2 entries"));
        let event = context.next_event().wait_for(LIMIT).unwrap();
        assert_eq!((event.kind, event.source), (EventKind::CqErr, EventSource::Cq(far.id())));
    }
}
