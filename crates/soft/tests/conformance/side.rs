//! One end of a case: a Host with a device open, a domain, a CQ, memory; and how queue pairs are connected.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_soft::*;
use ironverbs_sys::mem::{self, Mapping};

/// A device with a domain, a CQ, and a registered piece of memory.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) context: Arc<Context>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) mr: Arc<Mr>,
    pub(crate) memory: Mapping,
}

/// Every right that peers can have.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Identifier of what [`Side::bind`] posts.
pub(crate) const BIND: u64 = 7_777;

/// The key after this one of the same window.
pub(crate) fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// The Q_Key of datagram QPs here.
pub(crate) const QKEY: u32 = 0x1111_1111;

impl Side {
    pub(crate) fn new(host: &Host, memory: usize) -> Side {
        let device = host.devices().unwrap().remove(0);
        let context = device.open().unwrap();
        assert_eq!(context.wire_problem(), None);
        let channel = context.create_channel().unwrap();
        nonblocking(channel.fd());
        nonblocking(context.async_fd());
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096, Some(&channel), 0).unwrap();
        let memory = Mapping::anonymous(memory).unwrap();
        let mr = register(&pd, &memory, ALL);
        let side = Side { context, channel, pd, cq, mr, memory };
        // The port of a real device has just come up.
        while side.next_event().is_some() {}
        side
    }

    /// A second domain of the same device with a region over the same memory.
    pub(crate) fn other_domain(&self) -> (Arc<Pd>, Arc<Mr>) {
        let pd = self.context.alloc_pd().unwrap();
        let mr = register(&pd, &self.memory, ALL);
        (pd, mr)
    }

    pub(crate) fn register(&self, access: Access) -> Arc<Mr> {
        register(&self.pd, &self.memory, access)
    }

    /// A region whose memory windows may name.
    pub(crate) fn windowed(&self) -> Arc<Mr> {
        self.register(Access::LOCAL_WRITE | Access::MW_BIND)
    }

    /// Asks `qp` to bind all of `mr` to a window, whose key is then the one returned.
    pub(crate) fn bind(&self, qp: &Qp, mw: &Mw, mr: &Mr, access: Access) -> u32 {
        let rkey = next_key(mw.rkey());
        let bind = Bind { rkey, lkey: mr.lkey(), addr: mr.iova(), len: mr.len(), access };
        let wr = SendWr::bind(BIND, SendFlags::SIGNALED, &bind);
        qp.post_send(&wr, Payload::Sges(&[])).unwrap();
        rkey
    }

    pub(crate) fn qp(&self, qp_type: QpType) -> Arc<Qp> {
        self.pd.create_qp(&self.init(qp_type)).unwrap()
    }

    pub(crate) fn init(&self, qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        }
    }

    /// The first GID: of IPv4.
    pub(crate) fn gid(&self) -> Gid {
        self.context.gid(1, 0).unwrap().gid
    }

    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.memory.addr() + offset, len, lkey: self.mr.lkey() }
    }

    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.len());
        // SAFETY: within the mapping.
        unsafe { mem::write(self.memory.addr() + offset as u64, bytes) }
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.memory.len());
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        unsafe { mem::read(self.memory.addr() + offset as u64, &mut bytes) }
        bytes
    }

    /// The completions there are.
    pub(crate) fn poll(&self) -> Vec<Wc> {
        let mut found = Vec::new();
        while self.cq.poll(1024, |wc| found.push(*wc)).unwrap() > 0 {}
        found
    }

    /// The next asynchronous event, if there is one.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        self.context.next_async_event().ok()
    }

    /// A request that names `offset` of the side's memory as remote.
    pub(crate) fn remote(&self, wr_id: u64, opcode: WrOpcode, offset: u64) -> SendWr {
        SendWr {
            remote_addr: self.memory.addr() + offset,
            rkey: self.mr.rkey(),
            ..wr(wr_id, opcode)
        }
    }
}

/// Registers all of a mapping.
pub(crate) fn register(pd: &Arc<Pd>, memory: &Mapping, access: Access) -> Arc<Mr> {
    let (addr, len) = (memory.addr(), memory.len() as u64);
    // SAFETY: the cases keep a mapping until its regions are deregistered or their Hosts gone.
    unsafe { pd.reg_mr(addr, len, addr, access) }.unwrap()
}

/// Makes a descriptor of the device O_NONBLOCK, as a program would by fcntl(2).
pub(crate) fn nonblocking(fd: RawFd) {
    // A duplicate shares the status flags; FIONBIO sets them of any descriptor.
    UnixStream::from(borrowed(fd).try_clone_to_owned().unwrap()).set_nonblocking(true).unwrap();
}

/// Makes a descriptor blocking again.
pub(crate) fn blocking(fd: RawFd) {
    UnixStream::from(borrowed(fd).try_clone_to_owned().unwrap()).set_nonblocking(false).unwrap();
}

/// Whether poll(2) finds a descriptor readable now.
pub(crate) fn readable(fd: RawFd) -> bool {
    ironverbs_sys::unix::wait_readable(&[borrowed(fd)], Duration::ZERO).unwrap()
}

fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: descriptors of objects that the case holds, used for the length of a call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Attributes that connect a QP to `qpn` at `dgid`.
pub(crate) fn attr(dgid: Gid, qpn: u32) -> QpAttr {
    QpAttr {
        path_mtu: Mtu::M1024,
        dest_qpn: qpn,
        // Close to the wrap.
        rq_psn: 0xff_fff0,
        sq_psn: 0xff_fff0,
        access: ALL,
        port_num: 1,
        qkey: QKEY,
        max_rd_atomic: 8,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 1,
        timeout: 16,
        retry_cnt: 7,
        rnr_retry: 7,
        ah: AhAttr { dgid, is_global: true, port_num: 1, hop_limit: 64, ..AhAttr::default() },
        ..QpAttr::default()
    }
}

/// Takes a QP from RESET to RTS.
pub(crate) fn connect(qp: &Qp, attr: &QpAttr) {
    to_init(qp, attr);
    to_rtr(qp, attr);
    to_rts(qp, attr);
}

pub(crate) fn to_init(qp: &Qp, attr: &QpAttr) {
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let more = if qp.qp_type() == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
    qp.modify(&QpAttr { state: QpState::Init, ..*attr }, mask | more).unwrap();
}

pub(crate) fn to_rtr(qp: &Qp, attr: &QpAttr) {
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let more = match qp.qp_type() {
        QpType::Ud => AttrMask::empty(),
        QpType::Uc | QpType::XrcSend => connected,
        _ => connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
    };
    qp.modify(&QpAttr { state: QpState::Rtr, ..*attr }, AttrMask::STATE | more).unwrap();
}

pub(crate) fn to_rts(qp: &Qp, attr: &QpAttr) {
    let reliable =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let more = match qp.qp_type() {
        QpType::Rc | QpType::XrcSend => reliable,
        QpType::XrcRecv => AttrMask::TIMEOUT,
        QpType::Uc | QpType::Ud => AttrMask::empty(),
    };
    let mask = AttrMask::STATE | AttrMask::SQ_PSN | more;
    qp.modify(&QpAttr { state: QpState::Rts, ..*attr }, mask).unwrap();
}

/// Moves a QP to ERR or RESET.
pub(crate) fn move_to(qp: &Qp, state: QpState) {
    qp.modify(&QpAttr { state, ..QpAttr::default() }, AttrMask::STATE).unwrap();
}

/// A connected pair of QPs (UD: two that are ready).
pub(crate) fn pair(a: &Side, b: &Side, qp_type: QpType) -> (Arc<Qp>, Arc<Qp>) {
    pair_with(a, b, qp_type, |_| {})
}

/// A pair whose attributes were changed.
pub(crate) fn pair_with(
    a: &Side,
    b: &Side,
    qp_type: QpType,
    change: impl Fn(&mut QpAttr),
) -> (Arc<Qp>, Arc<Qp>) {
    let (x, y) = (a.qp(qp_type), b.qp(qp_type));
    join(a, &x, b, &y, change);
    (x, y)
}

/// Connects two QPs to each other.
pub(crate) fn join(a: &Side, x: &Qp, b: &Side, y: &Qp, change: impl Fn(&mut QpAttr)) {
    for (qp, gid, peer) in [(x, b.gid(), y.qpn()), (y, a.gid(), x.qpn())] {
        let mut attr = attr(gid, peer);
        change(&mut attr);
        connect(qp, &attr);
    }
}

/// A signaled request without flags or remote address.
pub(crate) fn wr(wr_id: u64, opcode: WrOpcode) -> SendWr {
    SendWr::new(wr_id, opcode, SendFlags::SIGNALED)
}

/// Posts an inline request.
pub(crate) fn post_inline(qp: &Qp, wr: &SendWr, data: &[u8]) -> Result<(), PostError> {
    let mut copy = |to: &mut [u8]| to.copy_from_slice(data);
    let wr = SendWr { flags: wr.flags | SendFlags::INLINE, ..*wr };
    qp.post_send(&wr, Payload::Inline { len: data.len(), copy: &mut copy })
}

/// Identifiers and statuses.
pub(crate) fn outcomes(found: &[Wc]) -> Vec<(u64, WcStatus)> {
    found.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}
