//! Queue pairs, their service in the type.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use ironverbs_soft::{self as soft, Access, AttrMask, QpAttr, QpState, QpType, UdDest, WrOpcode};

use crate::ah::Destination;
use crate::buffer::{Source, Target, sealed::Buffer};
use crate::completion::{Before, Bound, Done, Message};
use crate::cq::{CqInner, Reservation, Route};
use crate::error::{CompletionError, Dropped, Rejected, RequestError};
use crate::pd::PdInner;
use crate::queue::{Aftermath, Queue};
use crate::request::{self, Batch, Plan, Request};
use crate::{
    Cq, Endpoint, Error, Op, Pd, QpBuilder, Region, RemoteRegion, Slice, Srq, TypeOne, TypeTwo,
    Unconnected, Window, WindowType,
};

/// Reliable connection: everything arrives once and in order, or the sender learns that it did not.
#[derive(Copy, Clone, Debug)]
pub enum Rc {}

/// Unreliable connection: messages may be lost as a whole.
#[derive(Copy, Clone, Debug)]
pub enum Uc {}

/// Unreliable datagrams: messages of a packet, to and from anybody.
#[derive(Copy, Clone, Debug)]
pub enum Ud {}

/// A transport service: [`Rc`], [`Uc`] or [`Ud`].
pub trait Transport: sealed::Transport {}

/// A service with one peer: [`Rc`] or [`Uc`].
pub trait Connected: Transport {}

pub(crate) mod sealed {
    use ironverbs_soft::QpType;

    pub trait Transport {
        const TYPE: QpType;
    }
}

impl Transport for Rc {}
impl Transport for Uc {}
impl Transport for Ud {}
impl Connected for Rc {}
impl Connected for Uc {}

impl sealed::Transport for Rc {
    const TYPE: QpType = QpType::Rc;
}

impl sealed::Transport for Uc {
    const TYPE: QpType = QpType::Uc;
}

impl sealed::Transport for Ud {
    const TYPE: QpType = QpType::Ud;
}

/// A queue pair that sends and receives (ibv_create_qp(3)).
///
/// The operations a service does not have do not exist on its queue pairs. Dropping it flushes what is in flight:
/// those operations end with an error, and their buffers come back.
pub struct Qp<T: Transport> {
    shared: QpShared,
    transport: PhantomData<fn() -> T>,
}

/// A queue pair, whatever its service.
#[derive(Debug)]
pub(crate) struct QpShared {
    raw: Arc<soft::Qp>,
    sends: Arc<Queue>,
    /// None where receives come from the SRQ.
    recvs: Option<Arc<Queue>>,
    srq: Option<Srq>,
    send_cq: Arc<CqInner>,
    recv_cq: Arc<CqInner>,
    /// Completions that the CQs have room for on its behalf.
    reserved: (u64, u64),
    pub(crate) gid_index: u8,
    pub(crate) psn: u32,
    pub(crate) access: Access,
    pd: Arc<PdInner>,
}

impl QpShared {
    pub(crate) fn create<T: Transport>(builder: &QpBuilder<T>) -> Result<QpShared, soft::Error> {
        let (send_cq, recv_cq) = (&builder.send_cq.0, &builder.recv_cq.0);
        let srq = builder.srq.as_ref();
        let sends = u64::from(builder.cap.max_send_wr);
        let recvs = if srq.is_some() { 0 } else { u64::from(builder.cap.max_recv_wr) };
        let reserved = reserve(send_cq, recv_cq, sends, recvs, srq)?;
        let init = soft::QpInit {
            qp_type: T::TYPE,
            send_cq: send_cq.raw.clone(),
            recv_cq: recv_cq.raw.clone(),
            srq: srq.map(|srq| srq.0.raw.clone()),
            cap: builder.cap,
            sq_sig_all: false,
        };
        let raw = match builder.pd.0.raw.create_qp(&init) {
            Ok(raw) => raw,
            Err(e) => {
                let (sends, recvs) = reserved;
                send_cq.unreserve(sends);
                recv_cq.unreserve(recvs);
                return Err(e);
            }
        };
        let cap = raw.cap();
        let own = Arc::new(Queue::new(cap.max_send_wr, true, send_cq.clone()));
        let recv = match srq {
            None => Arc::new(Queue::new(cap.max_recv_wr, false, recv_cq.clone())),
            Some(srq) => srq.0.queue.clone(),
        };
        if srq.is_some() {
            recv.attach(recv_cq);
        }
        let shared = QpShared {
            recvs: srq.is_none().then(|| recv.clone()),
            srq: srq.cloned(),
            sends: own.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            reserved: (sends, recvs),
            gid_index: builder.gid_index,
            psn: builder.psn,
            access: builder.access,
            pd: builder.pd.0.clone(),
            raw,
        };
        shared.route(own, recv);
        Ok(shared)
    }

    /// Tells the CQs where completions of this QP go.
    fn route(&self, sends: Arc<Queue>, recvs: Arc<Queue>) {
        let (qpn, qp) = (self.raw.qpn(), &self.raw);
        let route = |sends, recvs| Route { qp: qp.clone(), sends, recvs };
        if Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.send_cq.add(qpn, route(Some(sends), Some(recvs)));
        } else {
            self.send_cq.add(qpn, route(Some(sends), None));
            self.recv_cq.add(qpn, route(None, Some(recvs)));
        }
    }

    pub(crate) fn raw(&self) -> &Arc<soft::Qp> {
        &self.raw
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        &self.pd
    }

    pub(crate) fn sends(&self) -> &Arc<Queue> {
        &self.sends
    }

    pub(crate) fn recv<B: Buffer>(
        &self,
        buffer: B,
    ) -> Result<Op<B::Returned, Message>, Rejected<B::Returned>> {
        match &self.recvs {
            Some(queue) => request::post_receive(queue, &self.pd, buffer, |wr_id, sges| {
                self.raw.post_recv(wr_id, sges)
            }),
            None => Err(request::refuse_receive(buffer)),
        }
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let gid = self.pd.context.raw.gid(1, self.gid_index.into())?.gid;
        Ok(Endpoint { gid, qpn: self.raw.qpn(), psn: self.psn })
    }

    /// Back to the state it was created in: what is in flight ends.
    pub(crate) fn reset(&self) -> Result<(), soft::Error> {
        self.stop();
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        self.raw.modify(&attr, AttrMask::STATE)?;
        self.lose(Dropped::Reset);
        Ok(())
    }

    /// Into the error state: what is in flight is flushed, and its completions fetched.
    pub(crate) fn stop(&self) {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let _ = self.raw.modify(&attr, AttrMask::STATE);
        let _ = self.send_cq.dispatch();
        let _ = self.recv_cq.dispatch();
    }

    /// Ends what no completion will end any more.
    fn lose(&self, how: Dropped) {
        let mut after = Aftermath::default();
        for queue in [Some(&self.sends), self.recvs.as_ref()].into_iter().flatten() {
            queue.lose(CompletionError::Dropped { how }, &mut after);
        }
        after.run();
    }
}

/// Room in both CQs, or in neither.
fn reserve(
    send_cq: &CqInner,
    recv_cq: &CqInner,
    sends: u64,
    recvs: u64,
    srq: Option<&Srq>,
) -> Result<(Reservation, Reservation), soft::Error> {
    let first = send_cq.reserve(sends, None)?;
    match recv_cq.reserve(recvs, srq.map(|srq| &srq.0.queue)) {
        Ok(second) => Ok((first, second)),
        Err(e) => {
            send_cq.unreserve(first);
            Err(e)
        }
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        let forked = self.pd.context.fork().is_child();
        if !forked {
            // Flushed first, and fetched, so that receives it took from an SRQ come back.
            self.stop();
        }
        // After this it touches no buffer any more.
        self.pd.context.end(&self.raw, |raw| drop(raw.destroy()));
        if forked {
            return;
        }
        let (sends, recvs) = self.reserved;
        self.send_cq.remove(self.raw.qpn(), sends);
        self.recv_cq.remove(self.raw.qpn(), recvs);
        self.lose(Dropped::Destroyed);
    }
}

impl<T: Transport> Qp<T> {
    pub(crate) fn new(shared: QpShared) -> Qp<T> {
        Qp { shared, transport: PhantomData }
    }

    /// Starts to make a queue pair with these two; `cq` is told of sends and receives.
    pub fn builder(pd: &Pd, cq: &Cq) -> QpBuilder<T> {
        QpBuilder::new(pd, cq)
    }

    pub(crate) fn raw(&self) -> &Arc<soft::Qp> {
        self.shared.raw()
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        self.shared.pd()
    }

    /// Its number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.shared.raw.qpn()
    }

    /// Where peers find it.
    ///
    /// # Errors
    /// Object: its GID is gone.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.shared.endpoint()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.raw.state()
    }

    /// Its attributes (ibv_query_qp(3)).
    pub fn attr(&self) -> QpAttr {
        self.shared.raw.query()
    }

    /// What it was made for, at least what was asked for.
    pub fn cap(&self) -> soft::QpCap {
        self.shared.raw.cap()
    }

    /// What it counted.
    pub fn counters(&self) -> soft::Counters {
        self.shared.raw.counters()
    }

    /// Its shared receive queue, if it has one.
    pub fn srq(&self) -> Option<&Srq> {
        self.shared.srq.as_ref()
    }

    /// Posts a receive (ibv_post_recv(3)). A datagram takes 40 bytes before its data.
    ///
    /// # Errors
    /// Why it cannot be posted, with its buffers.
    pub fn recv<B: Target>(
        &self,
        buffer: B,
    ) -> Result<Op<B::Returned, Message>, Rejected<B::Returned>> {
        self.shared.recv(buffer)
    }

    /// Starts a batch of requests that are posted together.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(&self.shared)
    }

    /// Moves it to the error state: everything in flight is flushed, in order, and so is what is posted afterwards.
    ///
    /// # Errors
    /// Object, in a fork of the process that made it.
    pub fn flush(&self) -> Result<(), Error> {
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        Ok(self.shared.raw.modify(&attr, AttrMask::STATE)?)
    }

    /// Holds back sends that have not begun (state SQD). The event SQ_DRAINED comes when all that had begun have
    /// ended.
    ///
    /// # Errors
    /// Object (Modify): it is not in state RTS.
    pub fn pause(&self) -> Result<(), Error> {
        let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
        Ok(self.shared.raw.modify(&attr, mask)?)
    }

    /// Sends on after a [`pause`](Qp::pause), or after a send of an unreliable queue pair has failed, which then
    /// receives but flushes what is sent (state SQE).
    ///
    /// # Errors
    /// Object (Modify): it is in no such state.
    pub fn resume(&self) -> Result<(), Error> {
        let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
        Ok(self.shared.raw.modify(&attr, AttrMask::STATE)?)
    }

    fn request<B: Buffer, K: crate::completion::Kind>(
        &self,
        buffer: B,
        plan: Plan,
    ) -> Request<'_, B, K> {
        Request::new(&self.shared, buffer, plan)
    }
}

impl<T: Connected> Qp<T> {
    /// Changes what the peer may do from now on.
    ///
    /// # Errors
    /// Object (Modify): it is in a state that does not take it.
    pub fn set_access(&self, access: Access) -> Result<(), Error> {
        let attr = QpAttr { access, ..QpAttr::default() };
        Ok(self.shared.raw.modify(&attr, AttrMask::ACCESS_FLAGS)?)
    }

    /// Back to before it was connected; operations in flight end with an error, and their buffers come back.
    ///
    /// # Errors
    /// Object, in a fork of the process that made it.
    pub fn reset(self) -> Result<Unconnected<T>, Error> {
        self.shared.reset()?;
        Unconnected::begin(self.shared)
    }

    /// SEND: the peer receives the bytes.
    pub fn send<B: Source>(&self, data: B) -> Request<'_, B, Done> {
        self.request(data, Plan::new(WrOpcode::Send))
    }

    /// SEND with four bytes of immediate data, which arrive as they are.
    pub fn send_with_imm<B: Source>(&self, data: B, immediate: [u8; 4]) -> Request<'_, B, Done> {
        self.request(data, Plan::new(WrOpcode::SendWithImm).immediate(immediate))
    }

    /// RDMA WRITE to the start of `remote`: the peer's program is not told.
    pub fn write<B: Source>(&self, data: B, remote: &RemoteRegion) -> Request<'_, B, Done> {
        self.request(data, Plan::new(WrOpcode::Write).remote(remote))
    }

    /// RDMA WRITE that also completes a receive of the peer, with immediate data.
    pub fn write_with_imm<B: Source>(
        &self,
        data: B,
        remote: &RemoteRegion,
        immediate: [u8; 4],
    ) -> Request<'_, B, Done> {
        let plan = Plan::new(WrOpcode::WriteWithImm).remote(remote).immediate(immediate);
        self.request(data, plan)
    }
}

impl<T: Connected> Qp<T> {
    /// Binds a window to part of a region that was made with MW_BIND: from then on peers reach it with these rights, and
    /// no longer what it was bound to before. The rights are remote ones; ZERO_BASED has peers' addresses start at 0.
    /// Brings what a peer needs. It is carried out when all requests before it are complete.
    pub fn bind<W: WindowType>(
        &self,
        mut window: Window<W>,
        region: &Region,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Request<'_, Window<W>, Bound> {
        let (wr, refused) = window.bind(region, range, access);
        let plan = Plan::of(wr).refused(self.refuses(&window)).refused(refused);
        self.request(window, plan)
    }

    /// Ends what a window of type 1 is bound to.
    pub fn unbind(&self, mut window: Window<TypeOne>) -> Request<'_, Window<TypeOne>, Done> {
        let plan = Plan::of(window.unbind()).refused(self.refuses(&window));
        self.request(window, plan)
    }

    /// Ends what a window of type 2 is bound to, which this queue pair has bound.
    pub fn invalidate(&self, mut window: Window<TypeTwo>) -> Request<'_, Window<TypeTwo>, Done> {
        let (rkey, refused) = match window.invalidate() {
            Ok(rkey) => (rkey, None),
            Err(why) => (0, Some(why)),
        };
        let plan = Plan::new(WrOpcode::LocalInv).invalidate(rkey);
        let plan = plan.refused(self.refuses(&window)).refused(refused);
        self.request(window, plan)
    }

    fn refuses<W: WindowType>(&self, window: &Window<W>) -> Option<RequestError> {
        let ours = Arc::ptr_eq(window.pd(), &self.shared.pd);
        (!ours).then_some(RequestError::OtherDomainWindow)
    }
}

impl Qp<Rc> {
    /// RDMA READ from the start of `remote`, as many bytes as `into` is long.
    pub fn read<B: Target>(&self, into: B, remote: &RemoteRegion) -> Request<'_, B, Done> {
        self.request(into, Plan::new(WrOpcode::Read).remote(remote))
    }

    /// Replaces the 64-bit word at the start of `remote` by `swap` if it equals `compare`; brings its value before,
    /// also into the first eight bytes of `into`.
    pub fn compare_swap(
        &self,
        into: Slice,
        remote: &RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Request<'_, Slice, Before> {
        self.request(into, Plan::new(WrOpcode::CompareSwap).remote(remote).atomic(compare, swap))
    }

    /// Adds to the 64-bit word at the start of `remote`, wrapping; brings its value before, also into the first eight
    /// bytes of `into`.
    pub fn fetch_add(
        &self,
        into: Slice,
        remote: &RemoteRegion,
        add: u64,
    ) -> Request<'_, Slice, Before> {
        self.request(into, Plan::new(WrOpcode::FetchAdd).remote(remote).atomic(add, 0))
    }

    /// SEND that ends a memory window of the peer, which is bound to its end of this connection and has the key `rkey`.
    /// Regions are refused.
    pub fn send_with_inv<B: Source>(&self, data: B, rkey: u32) -> Request<'_, B, Done> {
        self.request(data, Plan::new(WrOpcode::SendWithInv).invalidate(rkey))
    }
}

impl Qp<Ud> {
    /// Sends a datagram of at most the path MTU.
    pub fn send<B: Source>(&self, data: B, to: &Destination) -> Request<'_, B, Done> {
        self.datagram(data, to, Plan::new(WrOpcode::Send))
    }

    /// Sends a datagram with immediate data.
    pub fn send_with_imm<B: Source>(
        &self,
        data: B,
        to: &Destination,
        immediate: [u8; 4],
    ) -> Request<'_, B, Done> {
        self.datagram(data, to, Plan::new(WrOpcode::SendWithImm).immediate(immediate))
    }

    fn datagram<B: Source>(&self, data: B, to: &Destination, plan: Plan) -> Request<'_, B, Done> {
        let ud = UdDest { path: to.ah.path(), qpn: to.qpn, qkey: to.qkey };
        let ours = Arc::ptr_eq(to.ah.pd(), &self.shared.pd);
        self.request(data, plan.to(ud, ours))
    }
}

impl<T: Transport> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp<{:?}>({:#x}, {:?})", T::TYPE, self.qpn(), self.state())
    }
}
