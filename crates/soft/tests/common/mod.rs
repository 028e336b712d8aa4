//! Queue pairs of simulated Hosts, connected and with memory.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ironverbs_soft::sim::Network;
use ironverbs_soft::*;
use ironverbs_sys::mem::Mapping;

/// One second of virtual time.
pub const SECOND: u64 = 1_000_000_000;

/// A device with a domain, a CQ, and a registered piece of memory.
pub struct Side {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pub memory: Mapping,
    pub host: Host,
}

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

impl Side {
    pub fn new(host: Host, memory: usize) -> Side {
        let device = host.devices().unwrap().remove(0);
        Side::on(host, &device, memory)
    }

    pub fn on(host: Host, device: &Arc<Device>, memory: usize) -> Side {
        let context = device.open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(4096, None, 0).unwrap();
        let memory = Mapping::anonymous(memory).unwrap();
        // SAFETY: the mapping lives as long as the Side, and the region goes first.
        let mr =
            unsafe { pd.reg_mr(memory.addr(), memory.len() as u64, memory.addr(), ALL) }.unwrap();
        Side { context, pd, cq, mr, memory, host }
    }

    pub fn qp(&self, qp_type: QpType) -> Arc<Qp> {
        self.pd.create_qp(&self.init(qp_type)).unwrap()
    }

    pub fn init(&self, qp_type: QpType) -> QpInit {
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

    pub fn gid(&self) -> Gid {
        self.context.gid(1, 0).unwrap().gid
    }

    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.memory.addr() + offset, len, lkey: self.mr.lkey() }
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.len());
        // SAFETY: within the mapping.
        unsafe { ironverbs_sys::mem::write(self.memory.addr() + offset as u64, bytes) }
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.memory.len());
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        unsafe { ironverbs_sys::mem::read(self.memory.addr() + offset as u64, &mut bytes) }
        bytes
    }

    pub fn poll(&self) -> Vec<Wc> {
        let mut found = Vec::new();
        self.cq.poll(1024, |wc| found.push(*wc)).unwrap();
        found
    }
}

pub fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 0, n).into()
}

/// Two Hosts on a clean network.
pub fn two(seed: u64, memory: usize) -> (Network, Side, Side) {
    let network = Network::new(seed);
    let a = Side::new(network.host(&[address(1)]).unwrap(), memory);
    let b = Side::new(network.host(&[address(2)]).unwrap(), memory);
    (network, a, b)
}

/// Attributes that connect a QP to `qpn` at `dgid`.
pub fn attr(dgid: Gid, qpn: u32) -> QpAttr {
    QpAttr {
        path_mtu: Mtu::M1024,
        dest_qpn: qpn,
        rq_psn: 0xff_fff0,
        sq_psn: 0xff_fff0,
        access: ALL,
        port_num: 1,
        qkey: 0x1111_1111,
        max_rd_atomic: 8,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ah: AhAttr { dgid, is_global: true, port_num: 1, hop_limit: 64, ..AhAttr::default() },
        ..QpAttr::default()
    }
}

/// Takes a QP from RESET to RTS.
pub fn connect(qp: &Qp, attr: &QpAttr) {
    to_init(qp, attr);
    to_rtr(qp, attr);
    to_rts(qp, attr);
}

pub fn to_init(qp: &Qp, attr: &QpAttr) {
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let more = if qp.qp_type() == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
    let mut attr = QpAttr { state: QpState::Init, ..*attr };
    if qp.qp_type() == QpType::Uc {
        attr.access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    }
    qp.modify(&attr, mask | more).unwrap();
}

pub fn to_rtr(qp: &Qp, attr: &QpAttr) {
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let more = match qp.qp_type() {
        QpType::Rc => connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::Ud => AttrMask::empty(),
        _ => connected,
    };
    qp.modify(&QpAttr { state: QpState::Rtr, ..*attr }, AttrMask::STATE | more).unwrap();
}

pub fn to_rts(qp: &Qp, attr: &QpAttr) {
    let reliable =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let more = if qp.qp_type() == QpType::Rc { reliable } else { AttrMask::empty() };
    qp.modify(&QpAttr { state: QpState::Rts, ..*attr }, AttrMask::STATE | AttrMask::SQ_PSN | more)
        .unwrap();
}

/// A connected pair of QPs.
pub fn pair(a: &Side, b: &Side, qp_type: QpType) -> (Arc<Qp>, Arc<Qp>) {
    let (x, y) = (a.qp(qp_type), b.qp(qp_type));
    connect(&x, &attr(b.gid(), y.qpn()));
    connect(&y, &attr(a.gid(), x.qpn()));
    (x, y)
}

pub fn wr(wr_id: u64, opcode: WrOpcode) -> SendWr {
    SendWr::new(wr_id, opcode, SendFlags::SIGNALED)
}

/// Steps until a side has `n` completions.
pub fn completions(network: &Network, side: &Side, n: usize) -> Vec<Wc> {
    let mut found = Vec::new();
    let done = network.run_until(60 * SECOND, || {
        found.extend(side.poll());
        found.len() >= n
    });
    assert!(done, "{} of {n} completions came: {found:?}", found.len());
    found
}
