//! Raw packet queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ironverbs_sys::errno;
use ironverbs_sys::packet::{BATCH, FrameSender};
use ironverbs_transport::device::RecvWqe;
use ironverbs_transport::qp::{Payload, PostError};
use ironverbs_transport::verbs::{
    AttrMask, QpAttr, QpCap, QpState, SendFlags, SendWr, Sge, VendorErr, Wc, WcFlags, WcOpcode,
    WcStatus, WrOpcode,
};
use parking_lot::{Mutex, MutexGuard};

use super::checksum;
use super::flow::Arrived;
use super::headers::{ETHERNET, Headers};
use super::queue::{RecvQueue, WqState, place, received, vendor_err};
use super::steering::refused;
use super::wq::{RwqTable, RxHash};
use crate::context::{LinkLayer, check_port};
use crate::cq::Reads;
use crate::object::{self, Identity};
use crate::{Context, Cq, Error, Pd, Srq};

/// How a raw packet queue pair is made.
#[derive(Clone, Debug)]
pub struct RawInit {
    /// CQ of sends.
    pub send_cq: Arc<Cq>,
    /// CQ of receives.
    pub recv_cq: Arc<Cq>,
    /// Shared receive queue; `cap`'s receive fields are then ignored.
    pub srq: Option<Arc<Srq>>,
    /// Capabilities asked for.
    pub cap: QpCap,
    /// Every send completes visibly.
    pub sq_sig_all: bool,
}

/// A queue pair of whole Ethernet frames.
#[derive(Debug)]
pub struct RawQp {
    pub(crate) identity: Identity,
    /// Flows that lead to it.
    pub(crate) users: AtomicUsize,
    qpn: u32,
    pd: Arc<Pd>,
    cap: QpCap,
    sq_sig_all: bool,
    sends: Option<Sends>,
    receiver: Receiver,
    state: Mutex<State>,
}

/// The sending side.
#[derive(Debug)]
struct Sends {
    socket: FrameSender,
    cq: Arc<Cq>,
    /// Requests since RESET whose completions the program has read.
    read: Arc<AtomicU64>,
    /// What it is to its CQ.
    sender: usize,
}

/// Where frames go that come to it.
#[derive(Debug)]
enum Receiver {
    Own(RecvQueue),
    Shared { srq: Arc<Srq>, cq: Arc<Cq>, wqe: Mutex<RecvWqe> },
    Table { table: Arc<RwqTable>, hash: RxHash },
}

#[derive(Debug, Default)]
struct State {
    state: QpState,
    port: u8,
    /// Requests posted since RESET.
    posted: u64,
    /// Frames on their way to the socket, one behind the other.
    frames: Vec<u8>,
    waiting: Vec<Waiting>,
    gone: bool,
}

/// A request whose frame waits.
#[derive(Copy, Clone, Debug)]
struct Waiting {
    wr_id: u64,
    len: usize,
    signaled: bool,
    /// Requests posted with it, since RESET.
    number: u64,
}

impl RawQp {
    /// Makes one in state RESET.
    ///
    /// # Errors
    /// Io with EPERM where the process may open no packet socket (CAP_NET_RAW); NotSupported on InfiniBand links.
    pub fn new(pd: &Arc<Pd>, init: &RawInit) -> Result<Arc<RawQp>, Error> {
        let context = pd.context();
        check(pd)?;
        for cq in [&init.send_cq, &init.recv_cq] {
            cq.identity.check()?;
            if !Arc::ptr_eq(cq.context(), context) {
                return Err(Error::Foreign { what: "completion queue" });
            }
        }
        if let Some(srq) = &init.srq {
            srq.identity.check()?;
            if !Arc::ptr_eq(srq.context(), context) {
                return Err(Error::Foreign { what: "shared receive queue" });
            }
        }
        let cap = crate::qp::granted(init.cap, init.srq.is_none())?;
        let socket = FrameSender::open(context.device().ifindex()).map_err(refused)?;
        let (host, recv_cq) = (context.inner(), &init.recv_cq);
        let identity = host.counted(&host.quotas.raw_qp)?;
        let qpn = super::number(host)?;
        let receiver = match &init.srq {
            None => Receiver::Own(RecvQueue::new(
                qpn,
                pd,
                recv_cq,
                cap.max_recv_wr.max(1),
                cap.max_recv_sge,
            )),
            Some(srq) => {
                object::take(&srq.users);
                let wqe = Mutex::default();
                Receiver::Shared { srq: srq.clone(), cq: recv_cq.clone(), wqe }
            }
        };
        object::take(&pd.users);
        object::take(&init.send_cq.users);
        object::take(&recv_cq.users);
        let read = Arc::default();
        let sender = init.send_cq.add_sender(&read);
        let sends = Sends { socket, cq: init.send_cq.clone(), read, sender };
        let qp = Arc::new(RawQp {
            identity,
            users: AtomicUsize::new(0),
            qpn,
            pd: pd.clone(),
            cap,
            sq_sig_all: init.sq_sig_all,
            sends: Some(sends),
            receiver,
            state: Mutex::default(),
        });
        context.device().steering.note(&qp);
        Ok(qp)
    }

    /// Makes one that receives only, into the work queues of a table.
    ///
    /// # Errors
    /// As for [`new`](RawQp::new).
    pub fn spread(pd: &Arc<Pd>, table: &Arc<RwqTable>, hash: RxHash) -> Result<Arc<RawQp>, Error> {
        let context = pd.context();
        check(pd)?;
        table.identity.check()?;
        if !Arc::ptr_eq(table.context(), context) {
            return Err(Error::Foreign { what: "table of work queues" });
        }
        // Whoever may not send frames may not receive them either.
        drop(FrameSender::open(context.device().ifindex()).map_err(refused)?);
        let host = context.inner();
        let identity = host.counted(&host.quotas.raw_qp)?;
        let qpn = super::number(host)?;
        object::take(&pd.users);
        object::take(&table.users);
        Ok(Arc::new(RawQp {
            identity,
            users: AtomicUsize::new(0),
            qpn,
            pd: pd.clone(),
            cap: QpCap::default(),
            sq_sig_all: false,
            sends: None,
            receiver: Receiver::Table { table: table.clone(), hash },
            state: Mutex::default(),
        }))
    }

    /// Its number, which completions name.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Capabilities granted.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Whether every send completes visibly.
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// Attributes now.
    pub fn query(&self) -> QpAttr {
        let state = self.state.lock();
        QpAttr {
            state: state.state,
            cur_state: state.state,
            port_num: state.port,
            cap: self.cap,
            ..QpAttr::default()
        }
    }

    /// Changes its state (ibv_modify_qp(3)); to INIT with the port. On an error nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        use QpState::{Err as Error_, Init, Reset, Rtr, Rts, Sqd, Sqe};
        self.context().check()?;
        self.identity.check()?;
        let invalid = |what, value: u64, why| Err(Error::Invalid { what, value, why });
        let mut state = self.state.lock();
        if state.gone {
            return Err(Error::Removed { device: self.context().device().name().to_owned() });
        }
        let now = state.state;
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != now {
            return invalid("cur_qp_state", attr.cur_state as u64, "it is in another state");
        }
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { now };
        let mut known = AttrMask::STATE | AttrMask::CUR_STATE;
        match (now, to) {
            (_, Reset | Error_) | (Rtr, Rts) | (Rts, Rts | Sqd) | (Sqd, Sqd | Rts) | (Sqe, Rts) => {
            }
            (Init, Rtr) => {}
            (Reset | Init, Init) => known |= AttrMask::PORT,
            _ => return invalid("qp_state", to as u64, "there is no way there from its state"),
        }
        let unknown = mask.difference(known);
        if unknown.contains(AttrMask::RATE_LIMIT) {
            return Err(Error::NotSupported { what: "a rate limit" });
        }
        if !unknown.is_empty() {
            let why = "not of this transition of a raw packet queue pair";
            return invalid("attr_mask", unknown.bits().into(), why);
        }
        if mask.contains(AttrMask::PORT) {
            check_port(attr.port_num)?;
        } else if (now, to) == (Reset, Init) {
            return invalid("attr_mask", mask.bits().into(), "it has to name the port");
        }
        if mask.contains(AttrMask::PORT) {
            state.port = attr.port_num;
        }
        self.enter(&mut state, to);
        Ok(())
    }

    fn enter(&self, state: &mut State, to: QpState) {
        state.state = to;
        if to == QpState::Reset {
            state.posted = 0;
            if let Some(sends) = &self.sends {
                sends.cq.purge(self.qpn);
                sends.read.store(0, Ordering::Release);
            }
        }
        match (&self.receiver, to) {
            (Receiver::Own(queue), QpState::Reset) => queue.set_state(WqState::Reset, false),
            (Receiver::Own(queue), QpState::Err) => queue.set_state(WqState::Error, false),
            (Receiver::Own(queue), to) => queue.set_state(WqState::Ready, to == QpState::Init),
            (Receiver::Shared { cq, .. }, QpState::Reset) => cq.purge(self.qpn),
            _ => {}
        }
    }

    /// Posts a receive (ibv_post_recv(3)).
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.context().inner().check().map_err(|_| PostError::State(QpState::Reset))?;
        if !self.context().device().is_present() {
            return Err(PostError::DeviceGone);
        }
        match &self.receiver {
            Receiver::Own(_) if self.cap.max_recv_wr == 0 => Err(PostError::QueueFull { max: 0 }),
            Receiver::Own(queue) => queue.post(wr_id, sges),
            Receiver::Shared { .. } | Receiver::Table { .. } => Err(PostError::SharedReceives),
        }
    }

    /// Gives it a frame.
    pub(crate) fn receive(&self, arrived: &Arrived<'_>, headers: Option<&Headers>, tag: u32) {
        let flags = if arrived.checked { WcFlags::IP_CSUM_OK } else { WcFlags::empty() };
        match &self.receiver {
            Receiver::Own(queue) => {
                if queue.take(arrived.frame, flags, tag) {
                    let mut state = self.state.lock();
                    if queue.state() == WqState::Error {
                        state.state = QpState::Err;
                    }
                }
            }
            Receiver::Shared { srq, cq, wqe } => {
                let is_ready = {
                    let state = self.state.lock().state;
                    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
                };
                let mut wqe = wqe.lock();
                if is_ready && srq.take(&mut wqe) {
                    let wc = place(srq.pd(), self.qpn, &wqe, arrived.frame, flags, tag);
                    let failed = wc.status != WcStatus::Success;
                    cq.complete(wc, None);
                    if failed {
                        self.state.lock().state = QpState::Err;
                    }
                }
            }
            Receiver::Table { table, hash } => {
                let hash = headers.map_or(0, |headers| hash.of(arrived.frame, headers));
                if let Some(wq) = table.of(hash) {
                    wq.queue.take(arrived.frame, flags, tag);
                }
            }
        }
    }

    /// Starts a list of sends, which go out together when the guard is dropped.
    pub fn post_batch(&self) -> RawPost<'_> {
        let forked = self.context().inner().check().is_err();
        let state = match forked {
            true => Err(PostError::State(QpState::Reset)),
            false => Ok(self.state.lock()),
        };
        RawPost { qp: self, state }
    }

    /// Flushes if its device is gone.
    pub(crate) fn follow_device(&self) {
        if self.context().device().is_present() {
            return;
        }
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.gone, true) && state.state != QpState::Reset {
            self.enter(&mut state, QpState::Err);
        }
    }

    /// Destroys it; Busy while flows lead to it (ibv_destroy_qp(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context().inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        self.end();
        Ok(())
    }

    fn end(&self) {
        self.enter(&mut self.state.lock(), QpState::Reset);
        object::give_back(&self.pd.users);
        if let Some(sends) = &self.sends {
            sends.cq.remove_sender(sends.sender);
            object::give_back(&sends.cq.users);
        }
        match &self.receiver {
            Receiver::Own(queue) => object::give_back(&queue.cq().users),
            Receiver::Shared { srq, cq, .. } => {
                object::give_back(&srq.users);
                object::give_back(&cq.users);
            }
            Receiver::Table { table, .. } => object::give_back(&table.users),
        }
        super::give_back(self.context().inner(), self.qpn);
    }

    /// The longest frame: with a VLAN tag.
    fn longest(&self) -> usize {
        const TAG: usize = 4;
        self.context().device().interface_mtu() as usize + ETHERNET + TAG
    }

    /// Hands waiting frames to the interface, and completes their requests.
    fn flush(&self, state: &mut State, sends: &Sends) {
        let mut from = 0;
        let mut next = 0;
        while let Some(waiting) = state.waiting.get(next..).filter(|waiting| !waiting.is_empty()) {
            let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
            let mut count = 0;
            let mut at = from;
            for (frame, waiting) in frames.iter_mut().zip(waiting) {
                *frame = state.frames.get(at..at + waiting.len).unwrap_or_default();
                at += waiting.len;
                count += 1;
            }
            // What the interface does not take is lost, as on a cable that is not plugged in.
            let taken = match sends.socket.send(&frames[..count]) {
                Ok(taken) => taken.max(1),
                Err(error) if error.raw_os_error() == Some(errno::ENOBUFS) => {
                    std::thread::yield_now();
                    1
                }
                Err(_) => 1,
            };
            for waiting in waiting.iter().take(taken) {
                from += waiting.len;
                if waiting.signaled {
                    let reads = Reads { sender: sends.sender, requests: waiting.number };
                    sends.cq.complete(sent(self.qpn, waiting.wr_id), Some(reads));
                }
            }
            next += taken;
        }
        state.waiting.clear();
        state.frames.clear();
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        if self.context().inner().check().is_ok() && self.identity.retire().is_ok() {
            self.end();
        }
    }
}

object::accessors!(RawQp);

fn check(pd: &Arc<Pd>) -> Result<(), Error> {
    let context = pd.context();
    context.check()?;
    pd.identity.check()?;
    let simulated = context.inner().is_simulated();
    if simulated || context.port(1)?.link_layer != LinkLayer::Ethernet {
        return Err(Error::NotSupported { what: "a raw packet queue pair on this link" });
    }
    Ok(())
}

/// A completion of a send.
fn sent(qpn: u32, wr_id: u64) -> Wc {
    Wc { opcode: WcOpcode::Send, ..received(qpn, wr_id) }
}

/// Sends of a raw packet queue pair that go out together.
#[derive(Debug)]
pub struct RawPost<'a> {
    qp: &'a RawQp,
    state: Result<MutexGuard<'a, State>, PostError>,
}

impl RawPost<'_> {
    /// How many more can be posted now.
    pub fn room(&self) -> usize {
        let (Ok(state), Some(sends)) = (&self.state, &self.qp.sends) else { return 0 };
        self.qp.room(state, sends)
    }

    /// Posts one more: a SEND of a whole frame, from the destination's address on.
    pub fn push(&mut self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        let qp = self.qp;
        let state = self.state.as_mut().map_err(|error| *error)?;
        let Some(sends) = &qp.sends else {
            return Err(PostError::OnlyFrames { opcode: wr.opcode });
        };
        if state.gone || !qp.context().device().is_present() {
            return Err(PostError::DeviceGone);
        }
        if matches!(state.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(state.state));
        }
        if wr.opcode != WrOpcode::Send {
            return Err(PostError::OnlyFrames { opcode: wr.opcode });
        }
        match &data {
            Payload::Sges(sges) if sges.len() > qp.cap.max_send_sge as usize => {
                let (asked, max) = (sges.len(), qp.cap.max_send_sge);
                return Err(PostError::TooManySges { asked, max });
            }
            Payload::Inline { len, .. } if *len > qp.cap.max_inline_data as usize => {
                return Err(PostError::InlineTooLong { asked: *len, max: qp.cap.max_inline_data });
            }
            _ => {}
        }
        if qp.room(state, sends) == 0 {
            return Err(PostError::QueueFull { max: qp.cap.max_send_wr });
        }
        state.posted += 1;
        let waiting = Waiting {
            wr_id: wr.wr_id,
            len: 0,
            signaled: qp.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED),
            number: state.posted,
        };
        if state.state == QpState::Err {
            qp.fail(state, sends, &waiting, WcStatus::WrFlushErr, VendorErr::Flushed);
            return Ok(());
        }
        let start = state.frames.len();
        match qp.gather(&mut state.frames, data) {
            Ok(()) => {
                let frame = state.frames.get_mut(start..).unwrap_or_default();
                if wr.flags.contains(SendFlags::IP_CSUM) {
                    checksum::fill(frame);
                }
                let len = frame.len();
                state.waiting.push(Waiting { len, ..waiting });
            }
            Err((status, why)) => {
                state.frames.truncate(start);
                // Those before it are sent, and complete before it.
                qp.flush(state, sends);
                qp.fail(state, sends, &waiting, status, why);
                qp.enter(state, QpState::Err);
            }
        }
        Ok(())
    }
}

impl RawQp {
    /// Places of the send queue that are the program's.
    fn room(&self, state: &State, sends: &Sends) -> usize {
        let taken = state.posted.saturating_sub(sends.read.load(Ordering::Acquire));
        (self.cap.max_send_wr as usize).saturating_sub(taken as usize)
    }

    fn fail(&self, state: &State, sends: &Sends, of: &Waiting, status: WcStatus, why: VendorErr) {
        debug_assert_eq!(of.number, state.posted);
        let wc = Wc { status, vendor_err: why as u32, ..sent(self.qpn, of.wr_id) };
        let reads = Reads { sender: sends.sender, requests: of.number };
        sends.cq.complete(wc, Some(reads));
    }

    /// Puts a frame behind those that wait.
    fn gather(&self, frames: &mut Vec<u8>, data: Payload<'_>) -> Result<(), (WcStatus, VendorErr)> {
        let (start, longest) = (frames.len(), self.longest());
        let fits = |len: usize| match len {
            len if len < ETHERNET => Err((WcStatus::LocQpOpErr, VendorErr::OpNotAllowed)),
            len if len > longest => Err((WcStatus::LocLenErr, VendorErr::TooLong)),
            _ => Ok(()),
        };
        match data {
            Payload::Inline { len, copy } => {
                fits(len)?;
                frames.resize(start + len, 0);
                copy(frames.get_mut(start..).unwrap_or_default());
            }
            Payload::Sges(sges) => {
                let len = sges.iter().fold(0usize, |sum, sge| sum.saturating_add(sge.len as usize));
                fits(len)?;
                frames.resize(start + len, 0);
                let regions = self.pd.host().regions.read();
                let mut at = start;
                for sge in sges.iter().filter(|sge| sge.len > 0) {
                    let end = at + sge.len as usize;
                    let to = frames.get_mut(at..end).unwrap_or_default();
                    regions
                        .gather(self.pd.handle(), sge.lkey, sge.addr, to)
                        .map_err(|fault| (WcStatus::LocProtErr, vendor_err(fault)))?;
                    at = end;
                }
            }
        }
        Ok(())
    }
}

impl Drop for RawPost<'_> {
    fn drop(&mut self) {
        if let (Ok(state), Some(sends)) = (&mut self.state, &self.qp.sends) {
            self.qp.flush(state, sends);
        }
    }
}
