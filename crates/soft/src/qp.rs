//! Queue pairs.

mod ends;
mod modify;
mod short;
mod traffic;

pub(crate) use self::ends::Unpublished;
pub use self::traffic::PostGuard;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::moment::Mutex;
use ironverbs_transport::device::Instant;
use ironverbs_transport::qp::{self as transport, Counters, PostError, QpConfig};
use ironverbs_transport::verbs::{Access, QpCap, QpState, QpType, Sge};

use crate::comp_cntr::{self, Counting};
use crate::context::limits;
use crate::cq::Reads;
use crate::direct::table::{QpLine, line_of_qp};
use crate::direct::{Aim, Thing};
use crate::event::EventCount;
use crate::host::Inner;
use crate::local::Outbound;
use crate::multicast::Attachments;
use crate::object::{self, Identity};
use crate::status::Waiting;
use crate::surroundings::Surroundings;
use crate::xrcd::{Opened, Xrcd};
use crate::{Context, Cq, Error, Kind, Pd, QpInit, Srq};

/// A queue pair (ibv_create_qp(3)).
#[derive(Debug)]
pub struct Qp {
    pub(crate) identity: Identity,
    pub(crate) events: EventCount,
    me: Weak<Qp>,
    qpn: u32,
    qp_type: QpType,
    sq_sig_all: bool,
    cap: QpCap,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    xrcd: Option<Arc<Xrcd>>,
    opened: Opened,
    pub(crate) attachments: Attachments,
    pub(crate) counting: Counting,
    /// Copy of the access attribute, read on every remote access.
    access: AtomicU32,
    /// Send requests since RESET whose completions, or later ones, the program has read.
    read: Arc<AtomicU64>,
    /// What it is to the CQ of its sends.
    sender: usize,
    /// Whether it owes its peer acknowledgements, readable without the lock.
    owes: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    transport: transport::Qp,
    /// The deadline the timers know of.
    timer: Option<Instant>,
    link: Link,
    /// Send requests posted since RESET.
    posted: u64,
    /// When the QP fails, because its peer's process was killed.
    condemned: Option<Instant>,
    /// Until when the peer's process may be silent, and the oldest packet that waited for it then.
    patience: Option<(Instant, u64)>,
    /// Where its last request went that it carried out by itself.
    aim: Option<Aim>,
    /// What peers on this host were told of it.
    told: Option<Told>,
    /// Whether others are to be shown anew what it counted, and the last state they were shown.
    unpublished: bool,
    shown_state: QpState,
    /// Destroyed: nothing happens any more.
    gone: bool,
    /// Its device was removed: it has flushed, and takes nothing more.
    removed: bool,
}

/// What the peer's process reads of a QP to carry out requests by itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Told {
    line: QpLine,
    psn: u32,
}

/// How packets of a connected QP reach its peer.
#[derive(Debug)]
enum Link {
    /// By UDP; also for QPs that have no peer.
    Wire,
    /// Through shared memory.
    Lane(Arc<Outbound>),
}

impl State {
    fn is_connected(&self, slot: u16) -> bool {
        matches!(&self.link, Link::Lane(lane) if lane.slot() == slot)
    }

    /// An error once nothing can be posted any more.
    fn takes_work(&self) -> Result<(), PostError> {
        match (self.gone, self.removed) {
            (false, false) => Ok(()),
            (true, _) => Err(PostError::State(QpState::Reset)),
            (false, true) => Err(PostError::DeviceGone),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let patience = self.patience.map(|(until, _)| until);
        [self.transport.next_deadline(), self.condemned, patience].into_iter().flatten().min()
    }
}

/// What is left to do after packets were handled.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    Nothing,
    /// Only acknowledgements, which may wait for the next round or ride along with the next send.
    Acks,
    /// What [`Qp::settle`] finds out.
    Unknown,
}

impl Qp {
    pub(crate) fn new(pd: &Arc<Pd>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        if init.qp_type == QpType::XrcRecv {
            return Err(Error::Invalid {
                what: "qp_type",
                value: QpType::XrcRecv as u64,
                why: "an XRC_RECV queue pair belongs to an XRC domain, not to a protection domain",
            });
        }
        Qp::with_domain(pd, init, None)
    }

    /// A QP of an XRC domain, or without one.
    pub(crate) fn with_domain(
        pd: &Arc<Pd>,
        init: &QpInit,
        xrcd: Option<&Arc<Xrcd>>,
    ) -> Result<Arc<Qp>, Error> {
        let context = pd.context();
        let host = context.inner();
        context.check()?;
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
            if matches!(init.qp_type, QpType::Uc | QpType::XrcSend) {
                return Err(Error::NotSupported {
                    what: "a shared receive queue of a queue pair of this type",
                });
            }
        }
        let cap = grant(init)?;
        if host.qps.read().len() >= limits::QP as usize {
            return Err(Error::NoMemory { what: "queue pair" });
        }
        let qpn = host.take_qpn(host.now()).ok_or(Error::NoMemory { what: "queue pair number" })?;
        let config = QpConfig {
            qpn,
            qp_type: init.qp_type,
            cap,
            sq_sig_all: init.sq_sig_all,
            srq: init.srq.is_some(),
        };
        let mut transport = match pd.qp_memory() {
            None => transport::Qp::new(config),
            Some(memory) => transport::Qp::in_memory(config, &memory)
                .map_err(|_| Kind::Sends.refused())
                .inspect_err(|_| host.qps.write().rest(qpn, host.now()))?,
        };
        transport.set_ud_mtu(context.device().link().1);
        object::take(&pd.users);
        object::take(&init.send_cq.users);
        object::take(&init.recv_cq.users);
        if let Some(srq) = &init.srq {
            object::take(&srq.users);
        }
        if let Some(xrcd) = xrcd {
            object::take(&xrcd.users);
        }
        let read = Arc::default();
        let sender = init.send_cq.add_sender(&read);
        let qp = Arc::new_cyclic(|me| Qp {
            identity: host.identity("queue pair"),
            events: EventCount::default(),
            me: me.clone(),
            qpn,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            cap,
            pd: pd.clone(),
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            srq: init.srq.clone(),
            xrcd: xrcd.cloned(),
            opened: Opened::default(),
            attachments: Attachments::default(),
            counting: Counting::default(),
            access: AtomicU32::new(0),
            read,
            sender,
            owes: AtomicBool::new(false),
            state: Mutex::new(State {
                transport,
                timer: None,
                link: Link::Wire,
                posted: 0,
                condemned: None,
                patience: None,
                aim: None,
                told: None,
                unpublished: false,
                shown_state: QpState::Reset,
                gone: false,
                removed: false,
            }),
        });
        host.qps.write().insert(&qp);
        host.fabric.qps_changed(host);
        if let Some(board) = host.board() {
            board.begin(&qp.facts(&qp.state.lock()));
        }
        Ok(qp)
    }

    /// Its number, 24 bits.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Transport service.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// State now.
    pub fn state(&self) -> QpState {
        self.query().state
    }

    /// Capabilities granted, each at least what was asked for.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// CQ of sends.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// CQ of receives.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Shared receive queue, if it has one.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// XRC domain, of an XRC_RECV queue pair.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }

    /// Whether its packets reach the peer through shared memory.
    pub fn is_local(&self) -> bool {
        matches!(self.state.lock().link, Link::Lane(_))
    }

    /// Counts one more reference to it, for [`Xrcd::open_qp`]; false when it was destroyed.
    pub(crate) fn open_again(&self) -> bool {
        let alive = self.identity.check().is_ok();
        if alive {
            self.opened.add();
        }
        alive
    }

    /// Whether every send completes visibly.
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// What it counted.
    pub fn counters(&self) -> Counters {
        *self.state.lock().transport.counters()
    }

    /// Whether it has that number, and was not destroyed.
    pub(crate) fn is(&self, qpn: u32) -> bool {
        self.qpn == qpn && !self.identity.is_retired()
    }

    pub(crate) fn host(&self) -> &Inner {
        self.pd.host()
    }

    pub(crate) fn me(&self) -> Option<Arc<Qp>> {
        self.me.upgrade()
    }

    /// What reading the next completion of a send says to the queue.
    pub(crate) fn reads(&self, requests: u64) -> Reads {
        Reads { sender: self.sender, requests }
    }

    /// Places of the send queue that are the program's.
    fn room(&self, state: &State) -> usize {
        let taken = state.posted.saturating_sub(self.read.load(Ordering::Acquire));
        match (self.cap.max_send_wr as usize).saturating_sub(taken as usize) {
            0 => self.room_of_counted(state),
            room => room,
        }
    }

    /// The same, where no completion tells the program what a counter does.
    #[cold]
    fn room_of_counted(&self, state: &State) -> usize {
        let read = self.read.load(Ordering::Acquire);
        let Some(ended) = state.transport.ended_unseen(read) else { return 0 };
        // A completion that is read at this moment says less; the next who asks for room finds out.
        let read = self.read.fetch_max(ended, Ordering::AcqRel).max(ended);
        let taken = state.posted.saturating_sub(read);
        (self.cap.max_send_wr as usize).saturating_sub(taken as usize)
    }

    /// Has operations counted as `attach` says, if the state allows it.
    pub(crate) fn begin_counting(
        &self,
        attach: impl FnOnce(&Counting) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(Error::Stale { what: "queue pair" });
        }
        comp_cntr::check_state(state.transport.state())?;
        attach(&self.counting)?;
        state.transport.watch();
        Ok(())
    }

    /// Whether completions of it go there.
    pub(crate) fn completes_to(&self, cq: &Cq) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.send_cq), cq) || std::ptr::eq(Arc::as_ptr(&self.recv_cq), cq)
    }

    pub(crate) fn remote_access(&self) -> Access {
        Access::from_bits_retain(self.access.load(Ordering::Relaxed))
    }

    /// A fork's copy of the QP can do nothing, and its locks may be held for ever.
    fn own(&self) -> Result<(), PostError> {
        self.host().check().map_err(|_| PostError::State(QpState::Reset))
    }

    /// Destroys it, in whatever state (ibv_destroy_qp(3)): what is posted is dropped, its completions with it, and
    /// its number rests. Waits for unacknowledged events. One that was opened again only loses a
    /// reference; one that is attached to a multicast group is Busy.
    pub fn destroy(&self) -> Result<(), Error> {
        self.host().check()?;
        if self.opened.give_back() {
            return Ok(());
        }
        self.check_detached()?;
        self.release()?;
        let told = (Waiting::DestroyQp, self.qpn);
        self.host().wait_for_peers(Thing::Qp(line_of_qp(self.qpn)), told);
        self.events.wait(|| self.host().waiting(Waiting::Qp, self.qpn));
        Ok(())
    }

    fn release(&self) -> Result<(), Error> {
        let host = self.host();
        host.check()?;
        self.identity.retire()?;
        self.detach_all_mcast();
        host.qps.write().remove(self.qpn, host.now());
        host.fabric.qps_changed(host);
        let queues = {
            let mut state = self.state.lock();
            self.settle_debts(&mut state, host.now());
            if let Some(board) = host.board() {
                board.expects(self.qpn, state.transport.expected_psn());
                board.end(self.qpn);
            }
            state.transport.revoke_references(&mut Surroundings::of(self));
            state.gone = true;
            self.tell(&mut state);
            self.counting.end();
            if state.unpublished {
                host.unpublished.forget(self);
            }
            state.transport.give_back()
        };
        // Whoever gave their memory is called with nothing locked.
        drop(queues);
        self.send_cq.purge(self.qpn);
        self.recv_cq.purge(self.qpn);
        self.send_cq.remove_sender(self.sender);
        for users in [&self.pd.users, &self.send_cq.users, &self.recv_cq.users] {
            object::give_back(users);
        }
        if let Some(srq) = &self.srq {
            object::give_back(&srq.users);
        }
        if let Some(xrcd) = &self.xrcd {
            object::give_back(&xrcd.users);
        }
        self.context().events.forget(self);
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // Destroyed before: nothing to do. Events that nobody acknowledged have no object to wait for any more.
        let _ = self.release();
    }
}

object::accessors!(Qp);

/// The capabilities of a new QP: what was asked for, if the device can.
fn grant(init: &QpInit) -> Result<QpCap, Error> {
    granted(init.cap, init.srq.is_none() && init.qp_type.has_responder())
}

/// The same, of a QP with receives of its own or without.
pub(crate) fn granted(mut cap: QpCap, receives: bool) -> Result<QpCap, Error> {
    if !receives {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let asked = [
        ("max_send_wr", cap.max_send_wr, limits::WR),
        ("max_recv_wr", cap.max_recv_wr, limits::WR),
        ("max_send_sge", cap.max_send_sge, limits::SGE),
        ("max_recv_sge", cap.max_recv_sge, limits::SGE),
        ("max_inline_data", cap.max_inline_data, limits::INLINE),
    ];
    for (what, asked, max) in asked {
        if asked > max {
            return Err(Error::Limit { what, asked: asked.into(), max: max.into() });
        }
    }
    // A request that holds so many SGEs holds as many bytes in their place. Programs count on it.
    let in_place_of_sges = cap.max_send_sge * size_of::<Sge>() as u32;
    cap.max_inline_data = cap.max_inline_data.max(in_place_of_sges.min(limits::INLINE));
    Ok(cap)
}
