//! Two connected queue pairs and what drives them.

use ironverbs_transport::device::{Instant, Queue};
use ironverbs_transport::qp::{Output, Payload, Qp, QpConfig};
use ironverbs_transport::verbs::{
    Access, AttrMask, QpAttr, QpCap, QpState, QpType, SendWr, Sge, UdDest, Wc,
};
use ironverbs_wire::{Gid, Mtu, Path};

use super::memory::{ALL, Memory};
use super::net::{Faults, Net, Outbox};

/// One queue pair and its device.
#[derive(Debug)]
pub struct Host {
    pub qp: Qp,
    pub dev: Memory,
    pub gid: Gid,
    /// Until when a lone acknowledgement is put off.
    ack_at: Option<Instant>,
}

/// What both sides are set up with.
#[derive(Copy, Clone, Debug)]
pub struct Options {
    /// XRC_SEND stands for a pair of it and XRC_RECV.
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub cap: QpCap,
    pub psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub access: Access,
    pub sq_sig_all: bool,
    pub srq: bool,
    pub pkey: u16,
    pub seed: u64,
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            qp_type: QpType::Rc,
            mtu: Mtu::M256,
            cap: QpCap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            psn: 0xff_fffa,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: ALL,
            sq_sig_all: false,
            srq: false,
            pkey: PKEY,
            seed: 1,
            faults: Faults::default(),
        }
    }
}

impl Options {
    fn qp_type_of(&self, side: usize) -> QpType {
        match (self.qp_type, side) {
            (QpType::XrcSend, 1) => QpType::XrcRecv,
            (qp_type, _) => qp_type,
        }
    }
}

/// Two hosts, 0 and 1, and the network between them.
#[derive(Debug)]
pub struct Pair {
    pub hosts: [Host; 2],
    pub net: Net,
    pub options: Options,
    /// Packets a transmit call may send.
    pub sink_room: usize,
}

pub const QKEY: u32 = 0x1111_1111;
pub const PKEY: u16 = 0xffff;

impl Pair {
    /// Two queue pairs in RTS that know each other.
    pub fn connected(options: Options) -> Pair {
        let mut pair = Pair::reset(options);
        pair.connect();
        pair
    }

    /// Two queue pairs in RESET.
    pub fn reset(options: Options) -> Pair {
        let host = |index: u8| Host {
            qp: Qp::new(QpConfig {
                qpn: 0x11 + u32::from(index),
                qp_type: options.qp_type_of(index.into()),
                cap: options.cap,
                sq_sig_all: options.sq_sig_all,
                srq: options.srq,
            }),
            dev: Memory::default(),
            gid: Gid::from_ipv4([10, 0, 0, index + 1].into()),
            ack_at: None,
        };
        Pair {
            hosts: [host(0), host(1)],
            net: Net::new(options.seed, options.faults),
            options,
            sink_room: 32,
        }
    }

    pub fn connect(&mut self) {
        self.connect_side(0);
        self.connect_side(1);
    }

    /// Takes one side from RESET to RTS.
    pub fn connect_side(&mut self, side: usize) {
        self.enter_init(side);
        self.enter_rtr(side);
        self.enter_rts(side);
    }

    /// From `side` to the other.
    pub fn path(&self, side: usize) -> Path {
        Path {
            src: self.hosts[side].gid,
            dst: self.hosts[1 - side].gid,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            ib: None,
        }
    }

    pub fn destination(&self, side: usize) -> UdDest {
        UdDest { path: self.path(side), qpn: self.hosts[1 - side].qp.qpn(), qkey: QKEY }
    }

    pub fn init_attr(&self) -> (QpAttr, AttrMask) {
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            access: self.options.access,
            qkey: QKEY,
            ..QpAttr::default()
        };
        let identity = match self.options.qp_type {
            QpType::Ud => AttrMask::QKEY,
            _ => AttrMask::ACCESS_FLAGS,
        };
        (attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | identity)
    }

    pub fn rtr_attr(&self, side: usize) -> (QpAttr, AttrMask) {
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: self.options.mtu,
            dest_qpn: self.hosts[1 - side].qp.qpn(),
            rq_psn: self.options.psn,
            max_dest_rd_atomic: self.options.max_dest_rd_atomic,
            min_rnr_timer: self.options.min_rnr_timer,
            ..QpAttr::default()
        };
        let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let mask = match self.options.qp_type_of(side) {
            QpType::Rc | QpType::XrcRecv => {
                connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER
            }
            QpType::Uc | QpType::XrcSend => connected,
            QpType::Ud => AttrMask::empty(),
        };
        (attr, mask | AttrMask::STATE)
    }

    pub fn rts_attr(&self, side: usize) -> (QpAttr, AttrMask) {
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: self.options.psn,
            timeout: self.options.timeout,
            retry_cnt: self.options.retry_cnt,
            rnr_retry: self.options.rnr_retry,
            max_rd_atomic: self.options.max_rd_atomic,
            ..QpAttr::default()
        };
        let reliable = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        let mask = match self.options.qp_type_of(side) {
            QpType::Rc | QpType::XrcSend => AttrMask::SQ_PSN | reliable,
            QpType::XrcRecv => AttrMask::SQ_PSN | AttrMask::TIMEOUT,
            QpType::Uc | QpType::Ud => AttrMask::SQ_PSN,
        };
        (attr, mask | AttrMask::STATE)
    }

    pub fn enter_init(&mut self, side: usize) {
        let (attr, mask) = self.init_attr();
        self.modify(side, attr, mask);
    }

    pub fn enter_rtr(&mut self, side: usize) {
        let (attr, mask) = self.rtr_attr(side);
        self.modify(side, attr, mask);
        let mtu = self.options.mtu;
        self.hosts[side].qp.set_ud_mtu(mtu);
    }

    pub fn enter_rts(&mut self, side: usize) {
        let (attr, mask) = self.rts_attr(side);
        self.modify(side, attr, mask);
    }

    /// Changes the state alone.
    pub fn enter(&mut self, side: usize, state: QpState) {
        self.modify(side, QpAttr { state, ..QpAttr::default() }, AttrMask::STATE);
    }

    pub fn modify(&mut self, side: usize, attr: QpAttr, mask: AttrMask) {
        self.try_modify(side, attr, mask).unwrap();
    }

    pub fn try_modify(
        &mut self,
        side: usize,
        attr: QpAttr,
        mask: AttrMask,
    ) -> Result<(), ironverbs_transport::qp::ModifyError> {
        let resolved = mask.contains(AttrMask::AV).then(|| self.path(side));
        let now = self.net.now;
        let host = &mut self.hosts[side];
        host.dev.selected = None;
        host.qp.modify(&attr, mask, resolved, self.options.pkey, now, &mut host.dev)
    }

    pub fn send(&mut self, side: usize, wr: &SendWr, sges: &[Sge]) {
        self.hosts[side].qp.post_send(wr, Payload::Sges(sges)).unwrap();
    }

    pub fn recv(&mut self, side: usize, wr_id: u64, sges: &[Sge]) {
        self.hosts[side].qp.post_recv(wr_id, sges).unwrap();
    }

    /// The next completion of a queue, if there is one.
    pub fn poll(&mut self, side: usize, queue: Queue) -> Option<Wc> {
        self.hosts[side].dev.take(queue)
    }

    /// Runs until the next completion of a queue.
    pub fn wait(&mut self, side: usize, queue: Queue) -> Wc {
        for _ in 0..1_000_000 {
            if let Some(wc) = self.poll(side, queue) {
                return wc;
            }
            if !self.step() {
                let wc = self.poll(side, queue);
                return wc.unwrap_or_else(|| panic!("nothing happens: {:?}", self.hosts[side].qp));
            }
        }
        panic!("no completion within a million steps: {:?}", self.hosts[side].qp);
    }

    /// Runs until nothing happens any more.
    pub fn settle(&mut self) {
        for _ in 0..10_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("still not settled: {:?}", self.hosts);
    }

    /// Runs for `nanoseconds`.
    pub fn run_for(&mut self, nanoseconds: u64) {
        let end = self.net.now.after(nanoseconds);
        loop {
            self.transmit();
            if self.next_event().is_none_or(|at| at > end) {
                break;
            }
            self.step();
        }
        self.net.now = end;
    }

    /// Lets time pass to the next event and handles it. False if there is none.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let Some(at) = self.next_event() else { return false };
        self.net.now = self.net.now.max(at);
        self.handle();
        true
    }

    /// Sends what there is to send.
    pub fn transmit(&mut self) {
        for host in &mut self.hosts {
            loop {
                match host.qp.output() {
                    Output::None => host.ack_at = None,
                    Output::AcksOnly => {
                        let rng = &mut self.net.rng;
                        let now = self.net.now;
                        let at = *host.ack_at.get_or_insert_with(|| now.after(rng.below(5_000)));
                        if at <= now {
                            host.ack_at = None;
                        }
                    }
                    Output::Data => host.ack_at = None,
                }
                if host.qp.output() == Output::None || host.ack_at.is_some() {
                    break;
                }
                let mut outbox = Outbox::new(self.sink_room);
                host.dev.selected = None;
                host.qp.transmit(self.net.now, &mut host.dev, &mut outbox);
                for sent in outbox.packets {
                    self.net.send(sent);
                }
            }
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let timers = self.hosts.iter().flat_map(|host| [host.qp.next_deadline(), host.ack_at]);
        timers.chain([self.net.next_arrival()]).flatten().min()
    }

    fn handle(&mut self) {
        while let Some(sent) = self.net.arrived() {
            let path = sent.path();
            let Some(host) = self
                .hosts
                .iter_mut()
                .find(|host| host.gid == path.dst && host.qp.qpn() == sent.dest_qpn)
            else {
                continue;
            };
            let (packet, now) = (sent.packet(), self.net.now);
            host.dev.selected = None;
            host.qp.handle_packet(&packet, &path, sent.udp_len(), now, &mut host.dev);
        }
        let now = self.net.now;
        for host in &mut self.hosts {
            if host.qp.next_deadline().is_some_and(|at| at <= now) {
                host.dev.selected = None;
                host.qp.handle_timeout(now, &mut host.dev);
            }
        }
    }
}
