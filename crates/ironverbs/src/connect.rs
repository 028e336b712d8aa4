//! Making queue pairs and connecting them.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;

use ironverbs_soft::{self as soft, Access, AhAttr, AttrMask, Mtu, QpAttr, QpCap, QpState, QpType};

use crate::buffer::Target;
use crate::completion::Message;
use crate::qp::{Connected, Qp, QpShared, Rc, Transport, Uc, Ud};
use crate::remote::MAX_24;
use crate::{Cq, Endpoint, Error, Op, Pd, Rejected, Srq};

/// Makes a queue pair: 128 sends and receives of one slice each, no inline data, unless told otherwise.
#[must_use]
#[derive(Clone, Debug)]
pub struct QpBuilder<T: Transport> {
    pub(crate) pd: Pd,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) cap: QpCap,
    pub(crate) gid_index: u8,
    pub(crate) psn: u32,
    pub(crate) access: Access,
    qkey: u32,
    transport: PhantomData<fn() -> T>,
}

impl<T: Transport> QpBuilder<T> {
    pub(crate) fn new(pd: &Pd, cq: &Cq) -> QpBuilder<T> {
        QpBuilder {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            gid_index: 0,
            psn: RandomState::new().build_hasher().finish() as u32 & MAX_24,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            qkey: 0,
            transport: PhantomData,
        }
    }

    /// Another CQ for receives.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Receives from a shared queue; what is asked for receives of its own is ignored then.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sends and receives it can hold.
    pub fn depth(mut self, sends: u32, recvs: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (sends, recvs);
        self
    }

    /// Slices in the list of a send and of a receive, at most.
    pub fn slices(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (send, recv);
        self
    }

    /// Bytes of inline data, at most.
    pub fn inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// What the peer may do, in addition to a region's own rights: READ, WRITE and atomics unless told otherwise.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Which of the port's GIDs it sends from: the first unless told otherwise.
    pub fn gid_index(mut self, index: u8) -> Self {
        self.gid_index = index;
        self
    }

    /// The first PSN it sends, 24 bits: a random one unless told otherwise.
    pub fn psn(mut self, psn: u32) -> Self {
        self.psn = psn & MAX_24;
        self
    }
}

impl<T: Connected> QpBuilder<T> {
    /// Makes it.
    ///
    /// # Errors
    /// Object: Limit names the capability, what was asked and what is allowed; Foreign, when a CQ or SRQ belongs to
    /// another context; NotSupported for an SRQ of a UC queue pair.
    pub fn build(self) -> Result<Unconnected<T>, Error> {
        let shared = QpShared::create(&self)?;
        Unconnected::begin(shared)
    }
}

impl QpBuilder<Ud> {
    /// The Q_Key that senders must know.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self
    }

    /// Makes it, ready to send and receive.
    ///
    /// # Errors
    /// Object: Limit names the capability, what was asked and what is allowed; Foreign, when a CQ or SRQ belongs to
    /// another context.
    pub fn build(self) -> Result<Qp<Ud>, Error> {
        let shared = QpShared::create(&self)?;
        let init =
            QpAttr { state: QpState::Init, port_num: 1, qkey: self.qkey, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        shared.raw().modify(&init, mask)?;
        let rtr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
        shared.raw().modify(&rtr, AttrMask::STATE)?;
        let rts = QpAttr { state: QpState::Rts, sq_psn: self.psn, ..QpAttr::default() };
        shared.raw().modify(&rts, AttrMask::STATE | AttrMask::SQ_PSN)?;
        Ok(Qp::new(shared))
    }
}

/// A queue pair before it is connected: receives may be posted.
pub struct Unconnected<T: Connected> {
    shared: QpShared,
    transport: PhantomData<fn() -> T>,
}

/// How a connection behaves. The default suits two peers anywhere; both should choose the same MTU.
#[derive(Copy, Clone, Debug)]
pub struct ConnectOptions {
    /// Path MTU; the port's own unless told otherwise.
    pub mtu: Option<Mtu>,
    /// Time to wait for an acknowledgement: 4.096 us * 2^n, n up to 31; 0 is for ever (RC).
    pub timeout: u8,
    /// Retries after a timeout, up to 7 (RC).
    pub retry_count: u8,
    /// Retries when the peer has no receive posted, up to 6; 7 is for ever (RC).
    pub rnr_retry: u8,
    /// Time the peer waits before it tries again where no receive is posted here: code of IBA table 45, up to 31; 0
    /// is 655.36 ms (RC).
    pub min_rnr_timer: u8,
    /// READs and atomics in flight to the peer, at most; no more than its `responder_resources` (RC).
    pub initiator_depth: u8,
    /// READs and atomics of the peer that can be in flight (RC).
    pub responder_resources: u8,
    /// Traffic class of the IP header.
    pub traffic_class: u8,
    /// Hop limit; 0 counts as 64.
    pub hop_limit: u8,
    /// Flow label, 20 bits (IPv6).
    pub flow_label: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            mtu: None,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            initiator_depth: 16,
            responder_resources: 16,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
        }
    }
}

impl ConnectOptions {
    /// Checks all values before anything is changed.
    fn check(&self, peer: &Endpoint) -> Result<(), soft::Error> {
        let limits = [
            ("peer QPN", peer.qpn, MAX_24),
            ("peer PSN", peer.psn, MAX_24),
            ("timeout", self.timeout.into(), 31),
            ("retry_count", self.retry_count.into(), 7),
            ("rnr_retry", self.rnr_retry.into(), 7),
            ("min_rnr_timer", self.min_rnr_timer.into(), 31),
            ("flow_label", self.flow_label, 0xf_ffff),
        ];
        for (what, asked, max) in limits {
            if asked > max {
                return Err(soft::Error::Limit { what, asked: asked.into(), max: max.into() });
            }
        }
        Ok(())
    }
}

impl<T: Connected> Unconnected<T> {
    /// A queue pair that is new, or was reset.
    pub(crate) fn begin(shared: QpShared) -> Result<Unconnected<T>, Error> {
        let unconnected = Unconnected { shared, transport: PhantomData };
        unconnected.init()?;
        Ok(unconnected)
    }

    fn init(&self) -> Result<(), soft::Error> {
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            access: self.shared.access,
            ..QpAttr::default()
        };
        self.shared.raw().modify(&attr, mask)
    }

    pub(crate) fn into_shared(self) -> QpShared {
        self.shared
    }

    /// What the peer needs to connect to this queue pair.
    ///
    /// # Errors
    /// Object (Limit, Invalid): there is no GID at the index it was made with.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.shared.endpoint()
    }

    /// Posts a receive: before the peer can send, so that none of its messages has to wait.
    ///
    /// # Errors
    /// Why it cannot be posted, with its buffers.
    pub fn recv<B: Target>(
        &self,
        buffer: B,
    ) -> Result<Op<B::Returned, Message>, Rejected<B::Returned>> {
        self.shared.recv(buffer)
    }

    /// Connects it to `peer`, which does the same: through RTR to RTS (ibv_modify_qp(3)). Nothing is exchanged.
    ///
    /// # Errors
    /// Which value is not possible, and the queue pair to try again with; it has changed only if the device was
    /// lost on the way.
    #[allow(clippy::result_large_err)] // it carries the queue pair, which is no larger in a success
    pub fn connect(
        self,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Qp<T>, ConnectError<T>> {
        match self.establish(peer, options) {
            Ok(()) => Ok(Qp::new(self.shared)),
            Err(error) => Err(ConnectError { error: error.into(), qp: self }),
        }
    }

    fn establish(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), soft::Error> {
        options.check(peer)?;
        let raw = self.shared.raw();
        if raw.state() != QpState::Init {
            self.shared.reset()?;
            self.init()?;
        }
        let mut attr = self.attr(peer, options)?;
        attr.state = QpState::Rtr;
        let mut mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        if T::TYPE == QpType::Rc {
            mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        }
        raw.modify(&attr, mask)?;
        attr.state = QpState::Rts;
        mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if T::TYPE == QpType::Rc {
            mask |= AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC;
        }
        raw.modify(&attr, mask)
    }

    fn attr(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<QpAttr, soft::Error> {
        let context = &self.shared.pd().context.raw;
        let ah = AhAttr {
            dgid: peer.gid,
            flow_label: options.flow_label,
            sgid_index: self.shared.gid_index,
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        Ok(QpAttr {
            path_mtu: match options.mtu {
                Some(mtu) => mtu,
                None => context.port(1)?.active_mtu,
            },
            rq_psn: peer.psn,
            sq_psn: self.shared.psn,
            dest_qpn: peer.qpn,
            ah,
            max_rd_atomic: options.initiator_depth,
            max_dest_rd_atomic: options.responder_resources,
            min_rnr_timer: options.min_rnr_timer,
            timeout: options.timeout,
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry,
            ..QpAttr::default()
        })
    }
}

impl<T: Connected> fmt::Debug for Unconnected<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unconnected<{:?}>({:#x})", T::TYPE, self.shared.raw().qpn())
    }
}

/// Why a queue pair could not be connected, and the queue pair itself.
pub struct ConnectError<T: Connected> {
    /// Why.
    pub error: Error,
    /// The queue pair, to try again with.
    pub qp: Unconnected<T>,
}

impl<T: Connected> fmt::Debug for ConnectError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectError").field("error", &self.error).field("qp", &self.qp).finish()
    }
}

impl<T: Connected> fmt::Display for ConnectError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: Connected> std::error::Error for ConnectError<T> {}

impl<T: Connected> From<ConnectError<T>> for Error {
    fn from(e: ConnectError<T>) -> Self {
        e.error
    }
}

/// Connects two queue pairs of this process to each other.
///
/// # Errors
/// As [`Unconnected::connect`].
pub fn connect_pair<T: Connected>(
    a: Unconnected<T>,
    b: Unconnected<T>,
    options: &ConnectOptions,
) -> Result<(Qp<T>, Qp<T>), Error> {
    let (to_a, to_b) = (a.endpoint()?, b.endpoint()?);
    Ok((a.connect(&to_b, options)?, b.connect(&to_a, options)?))
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Qp<Rc>>();
    is_send_and_sync::<Unconnected<Uc>>();
    is_send_and_sync::<Op<crate::Slice, Message>>();
};
