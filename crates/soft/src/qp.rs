//! Queue pairs.

mod ends;
mod short;

pub(crate) use self::ends::Unpublished;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::moment::{Mutex, MutexGuard};
use ironverbs_transport::device::Instant;
use ironverbs_transport::qp::{self as transport, Counters, Output, Payload, PostError, QpConfig};
use ironverbs_transport::verbs::{Access, AttrMask, QpAttr, QpCap, QpState, QpType, SendWr, Sge};
use ironverbs_wire::{Packet, Path};

use crate::comp_cntr::{self, Counting};
use crate::context::{check_port, limits};
use crate::cq::Reads;
use crate::direct::table::{QpLine, line_of_qp};
use crate::direct::{Aim, Thing};
use crate::event::EventCount;
use crate::host::Inner;
use crate::local::Outbound;
use crate::multicast::Attachments;
use crate::neighbours::{DatagramSink, LOCAL_PACKET, LaneSink};
use crate::object::{self, Identity};
use crate::progress::Now;
use crate::status::Waiting;
use crate::surroundings::{Pull, Surroundings};
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

    /// Changes attributes, the state among them (ibv_modify_qp(3)). On an error nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        self.context().check()?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Err {
            // An acknowledgement that is here tells that a request is done. What an adapter has heard is not flushed.
            self.host().take_what_came();
        }
        self.change(attr, mask)
    }

    /// The same, as part of a round of the engine too.
    pub(crate) fn change(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        self.identity.check()?;
        let path = self.validate(attr, mask)?;
        let link = self.link(attr, mask, path.as_ref())?;
        let mut state = self.state.lock();
        if state.removed {
            let device = self.context().device().name().to_owned();
            return Err(Error::Removed { device });
        }
        let now = self.host().now();
        let pkey = match mask.contains(AttrMask::PKEY_INDEX) {
            true => self.context().pkey(1, attr.pkey_index.into())?,
            // Not looked at.
            false => limits::PKEY,
        };
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Err) {
            self.settle_debts(&mut state, now);
        }
        {
            let mut surroundings = Surroundings::of(self);
            state.transport.modify(attr, mask, path, pkey, now, &mut surroundings)?;
        }
        if let Some(link) = link {
            if let Link::Lane(_) = link {
                state.transport.set_packet_size(LOCAL_PACKET);
                state.transport.hold_timeouts();
            }
            state.link = link;
            state.aim = None;
            state.condemned = None;
        }
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            self.access.store(attr.access.bits(), Ordering::Relaxed);
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            state.link = Link::Wire;
            state.aim = None;
            state.condemned = None;
            state.patience = None;
            state.posted = 0;
            self.access.store(0, Ordering::Relaxed);
            self.send_cq.purge(self.qpn);
            self.recv_cq.purge(self.qpn);
            self.read.store(0, Ordering::Release);
        }
        self.pump(&mut state, now);
        self.publish(&state);
        let took = self.tell(&mut state);
        drop(state);
        if took {
            // What a peer does by itself by what it was told before ends before this returns.
            let told = (Waiting::ModifyQp, self.qpn);
            self.host().wait_for_peers(Thing::Qp(line_of_qp(self.qpn)), told);
        }
        Ok(())
    }

    /// The same after packets, which change the PSN and seldom more.
    #[inline]
    fn tell_psn(&self, state: &mut State) {
        match (&mut state.told, state.transport.accepts()) {
            (Some(Told { line, psn }), Some(now))
                if line.access == now.access && line.peer_qpn == now.peer =>
            {
                if let Some(table) = self.host().table.get().filter(|_| *psn != now.psn) {
                    *psn = now.psn;
                    table.set_psn(line_of_qp(self.qpn), now.psn);
                }
            }
            (None, None) => {}
            _ => {
                self.tell(state);
            }
        }
    }

    /// Tells the peer's process what it may do by itself, if that has changed. Whether it was told otherwise before.
    fn tell(&self, state: &mut State) -> bool {
        let Some(table) = self.host().table.get() else { return false };
        let index = line_of_qp(self.qpn);
        let told = match (&state.link, state.transport.accepts()) {
            (Link::Lane(lane), Some(accepts)) if !state.gone && !self.counting.needs_packets() => {
                let peer = lane.peer();
                let line = QpLine {
                    pd: self.pd.handle(),
                    access: accepts.access,
                    peer_qpn: accepts.peer,
                    peer_slot: peer.slot,
                    peer_tenure: peer.tenure,
                };
                Some(Told { line, psn: accepts.psn })
            }
            _ => None,
        };
        if told == state.told {
            return false;
        }
        let before = std::mem::replace(&mut state.told, told);
        if let Some(told) = &told {
            table.set_psn(index, told.psn);
        }
        let line = |told: &Told| told.line;
        if before.as_ref().map(line) == told.as_ref().map(line) {
            return false;
        }
        table.set_qp(index, told.as_ref().map(|told| &told.line));
        before.is_some()
    }

    /// The way to the peer that a transition to RTR names.
    fn link(
        &self,
        attr: &QpAttr,
        mask: AttrMask,
        path: Option<&Path>,
    ) -> Result<Option<Link>, Error> {
        let learns =
            mask.contains(AttrMask::STATE | AttrMask::DEST_QPN) && attr.state == QpState::Rtr;
        let (Some(path), true) = (path, learns && self.qp_type != QpType::Ud) else {
            return Ok(None);
        };
        match self.host().lane_to(&path.dst, attr.dest_qpn) {
            Some(lane) => Ok(Some(Link::Lane(lane?))),
            None => Ok(Some(Link::Wire)),
        }
    }

    /// Whether its packets reach the peer through shared memory.
    pub fn is_local(&self) -> bool {
        matches!(self.state.lock().link, Link::Lane(_))
    }

    /// What only the device can check of a modify: ports, keys, GIDs, MTU.
    fn validate(&self, attr: &QpAttr, mask: AttrMask) -> Result<Option<Path>, Error> {
        if mask.contains(AttrMask::PORT) {
            check_port(attr.port_num)?;
        }
        if mask.contains(AttrMask::PKEY_INDEX) {
            let pkey = self.context().pkey(1, attr.pkey_index.into())?;
            if pkey == 0 {
                let (what, value) = ("pkey_index", attr.pkey_index.into());
                return Err(Error::Invalid { what, value, why: "the entry is empty" });
            }
        }
        if mask.intersects(AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE) {
            return Err(Error::NotSupported { what: "path migration" });
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            return Err(Error::NotSupported { what: "a rate limit" });
        }
        if mask.contains(AttrMask::CAP) {
            return Err(Error::NotSupported { what: "resizing a queue pair" });
        }
        for (bit, what, asked) in [
            (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic),
            (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic),
        ] {
            if mask.contains(bit) && u32::from(asked) > limits::RD_ATOMIC {
                let (asked, max) = (asked.into(), limits::RD_ATOMIC.into());
                return Err(Error::Limit { what, asked, max });
            }
        }
        if mask.contains(AttrMask::PATH_MTU) {
            let active = self.context().device().link().1;
            if attr.path_mtu > active {
                let (asked, max) = (attr.path_mtu.bytes() as u64, active.bytes() as u64);
                return Err(Error::Limit { what: "path_mtu", asked, max });
            }
        }
        match mask.contains(AttrMask::AV) {
            true => self.context().resolve(&attr.ah).map(Some),
            false => Ok(None),
        }
    }

    /// Its attributes (ibv_query_qp(3)).
    pub fn query(&self) -> QpAttr {
        // A fork's copy of the lock may be held for ever; there the QP is as good as reset.
        if self.own().is_err() {
            return QpAttr::default();
        }
        self.state.lock().transport.query()
    }

    /// Posts a send request (ibv_post_send(3)); it is sent at once if it may be.
    pub fn post_send(&self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        self.post_batch().push(wr, data)
    }

    /// Posts several send requests that are sent together when the guard is dropped.
    pub fn post_batch(&self) -> PostGuard<'_> {
        PostGuard { qp: self, state: self.own().map(|()| self.state.lock()) }
    }

    /// A fork's copy of the QP can do nothing, and its locks may be held for ever.
    fn own(&self) -> Result<(), PostError> {
        self.host().check().map_err(|_| PostError::State(QpState::Reset))
    }

    /// Posts a receive request (ibv_post_recv(3)).
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.own()?;
        let mut state = self.state.lock();
        state.takes_work()?;
        state.transport.post_recv(wr_id, sges)?;
        // In the error state it is flushed; otherwise nothing is to be sent.
        if state.transport.state() == QpState::Err {
            self.pump(&mut state, self.host().now());
        }
        Ok(())
    }

    /// Carries out what needs no packets. Whether that was all there was to do: then nobody needs to know the time,
    /// which costs as much as all the rest here.
    fn carry_out(&self, state: &mut State) -> bool {
        let State { transport, link: Link::Lane(lane), gone: false, aim, .. } = state else {
            return false;
        };
        if !lane.is_alive() || !transport.may_go_directly() {
            return false;
        }
        let mut surroundings = Surroundings::without_packets(self, lane, *aim);
        transport.transmit_directly(&mut surroundings);
        *aim = surroundings.aim;
        transport.output() == Output::None
    }

    /// Sends what may be sent now, and tells the timers. The lock is held until the packets have left, so that
    /// packets of one QP keep their order.
    fn pump(&self, state: &mut State, now: Instant) {
        self.pump_at(state, || now);
    }

    /// The same, where the time may not be known yet.
    fn pump_at(&self, state: &mut State, now: impl FnOnce() -> Instant) {
        if state.gone {
            return;
        }
        if state.transport.output() != Output::None {
            let now = now();
            self.carry_out_locals(state);
            self.transmit(state, now);
            // What those held up may go now.
            while self.carry_out_locals(state) {
                self.transmit(state, now);
            }
            self.tell_psn(state);
            self.start_patience(state, || now);
        }
        self.publish_later(state);
        self.set_timer(state);
    }

    /// Carries out requests that send nothing, while no sender is locked: others may have to be waited for.
    #[inline]
    fn carry_out_locals(&self, state: &mut State) -> bool {
        state.transport.uses_locals()
            && state.transport.carry_out_locals(&mut Surroundings::of(self))
    }

    fn transmit(&self, state: &mut State, now: Instant) {
        let host = self.host();
        let State { transport, link, .. } = state;
        let link = &*link;
        let mut surroundings = match link {
            _ if transport.output() == Output::AcksOnly => Surroundings::on_demand(self),
            Link::Lane(lane) if lane.is_alive() => Surroundings::with_lane(self, lane),
            _ => Surroundings::of(self),
        };
        let sender = matches!(link, Link::Wire).then(|| host.sender()).flatten();
        let full = match (link, sender) {
            (Link::Lane(lane), _) if lane.is_alive() => {
                let mut sink = LaneSink::new(lane, &host.cookie);
                transport.transmit(now, &mut surroundings, &mut sink);
                sink.finish()
            }
            (Link::Wire, Some(sender)) if self.qp_type == QpType::Ud => {
                let mut sink = DatagramSink::new(host, sender);
                sink.begin(self.context().device().ifindex());
                transport.transmit(now, &mut surroundings, &mut sink);
                sink.finish()
            }
            (Link::Wire, Some(mut sender)) => {
                sender.begin(self.context().device().ifindex());
                transport.transmit(now, &mut surroundings, &mut *sender);
                sender.flush();
                false
            }
            (Link::Lane(_), _) | (Link::Wire, None) => {
                transport.transmit(now, &mut surroundings, &mut Nowhere::default());
                false
            }
        };
        self.owes.store(transport.owes_acks(), Ordering::Relaxed);
        if full {
            host.blocked.add(self.me());
            // A sleeper has told the receivers of the lanes that were full when it went to sleep, not of this one.
            host.kick.wake_sleeper();
        }
    }

    fn set_timer(&self, state: &mut State) {
        let Some(deadline) = state.next_deadline() else { return };
        if state.timer.is_none_or(|known| deadline < known) {
            state.timer = Some(deadline);
            self.host().add_timer(deadline, self.qpn);
        }
    }

    /// The timer set for `deadline` is due.
    pub(crate) fn timer(&self, deadline: Instant, now: Instant) {
        let mut state = self.state.lock();
        if state.gone || state.timer != Some(deadline) {
            return;
        }
        state.timer = None;
        if state.transport.next_deadline().is_some_and(|d| d <= now) {
            let mut surroundings = Surroundings::of(self);
            state.transport.handle_timeout(now, &mut surroundings);
        }
        let silent = self.silent_lane(&mut state, now);
        if state.condemned.is_some_and(|at| at <= now) {
            state.condemned = None;
            let mut surroundings = Surroundings::of(self);
            state.transport.lose_peer(&mut surroundings);
        }
        self.tell(&mut state);
        self.pump(&mut state, now);
        self.publish(&state);
        drop(state);
        if let (Some(lane), Some(lanes)) = (silent, self.host().lanes()) {
            lanes.doubt(lane.peer());
        }
    }

    /// Takes a packet whose ICRC was right.
    pub(crate) fn handle_packet(
        &self,
        packet: &Packet<'_>,
        path: &Path,
        udp_len: u16,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        if !state.gone {
            let mut surroundings = Surroundings::of(self);
            state.transport.handle_packet(packet, path, udp_len, now, &mut surroundings);
            if let Some(board) = self.host().board() {
                board.expects(self.qpn, state.transport.expected_psn());
            }
        }
    }

    /// Takes a packet that came by a lane from `slot`, its payload to be fetched where there is a `pull`; false if there is
    /// nobody to take it.
    pub(crate) fn handle_record(
        &self,
        slot: u16,
        packet: &Packet<'_>,
        pull: Option<Pull>,
        now: &mut Now<'_>,
    ) -> bool {
        let mut state = self.state.lock();
        let State { transport, link: Link::Lane(lane), gone: false, .. } = &mut *state else {
            return false;
        };
        let Some((path, _)) = transport.peer() else { return false };
        // Who the peer is, the slot says.
        if lane.slot() != slot {
            return false;
        }
        let from = path.reversed();
        let dropped = transport.counters().dropped.unwanted();
        let mut surroundings = Surroundings::on_demand(self);
        if let Some(pull) = pull {
            let len = pull.source.len();
            surroundings.pull = Some(pull);
            surroundings.sender = lane.initiator.remote();
            transport.handle_reference(packet, len, &from, now.get(), &mut surroundings);
        } else {
            // Of no account but for datagrams.
            transport.handle_packet(packet, &from, 0, now.get(), &mut surroundings);
        }
        if let Some(board) = self.host().board() {
            board.expects(self.qpn, transport.expected_psn());
        }
        // It lives, and takes our packets if it answers them.
        if packet.op.is_response() {
            transport.hold_timeouts();
        }
        let taken = transport.counters().dropped.unwanted() == dropped;
        drop(surroundings);
        // Before any acknowledgement leaves: who has it may go on by itself.
        self.tell_psn(&mut state);
        taken
    }

    /// After the packets of a batch: sends what they call for, except acknowledgements where `defer` is set.
    pub(crate) fn settle(&self, defer: bool, now: &mut Now<'_>) -> Left {
        let mut state = self.state.lock();
        if defer && !state.gone && state.transport.output() == Output::AcksOnly {
            self.owes.store(true, Ordering::Relaxed);
            self.publish_later(&mut state);
            self.set_timer(&mut state);
            return Left::Acks;
        }
        if self.send_short_ack(&mut state) {
            self.publish_later(&mut state);
        } else {
            self.pump_at(&mut state, || now.get());
        }
        Left::Nothing
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

/// Send requests that go out together.
#[derive(Debug)]
pub struct PostGuard<'a> {
    qp: &'a Qp,
    /// Why nothing can be posted, in a fork.
    state: Result<MutexGuard<'a, State>, PostError>,
}

impl PostGuard<'_> {
    /// How many more can be posted now.
    pub fn room(&self) -> usize {
        let room =
            |state: &MutexGuard<'_, State>| self.qp.room(state).min(state.transport.send_room());
        self.state.as_ref().map_or(0, room)
    }

    /// Posts one more.
    pub fn push(&mut self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        let state = self.state.as_mut().map_err(|e| *e)?;
        state.takes_work()?;
        // A request keeps its place until the program has read its completion, or a later one (IBA 10.8.5.1): that
        // is what keeps a program that does not poll from overrunning its CQ.
        if self.qp.room(state) == 0 {
            return Err(PostError::QueueFull { max: self.qp.cap.max_send_wr });
        }
        state.transport.post_send(wr, data)?;
        state.posted += 1;
        Ok(())
    }
}

impl Drop for PostGuard<'_> {
    fn drop(&mut self) {
        let Ok(state) = &mut self.state else { return };
        if self.qp.carry_out(state) || self.qp.send_short(state) {
            self.qp.publish_later(state);
        } else {
            let now = self.qp.host().now();
            self.qp.pump(state, now);
        }
    }
}

/// The sink of a device without a wire: what it sends is lost.
#[derive(Debug, Default)]
struct Nowhere(Vec<u8>);

impl ironverbs_transport::device::Sink for Nowhere {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        self.0.resize(len, 0);
        Some(&mut self.0)
    }

    fn commit(&mut self) {}
}

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
