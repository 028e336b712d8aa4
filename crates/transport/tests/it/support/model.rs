//! What a sequence of operations is to do, and whether two queue pairs do it.

use std::collections::VecDeque;

use ironverbs_transport::device::{Queue, RecvWqe};
use ironverbs_transport::qp::{Counters, Payload, PostError};
use ironverbs_transport::verbs::{
    QpCap, QpType, SendFlags, SendWr, Sge, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode,
};
use ironverbs_wire::Mtu;

use super::memory::{ALL, XrcSrq};
use super::net::Faults;
use super::pair::{Options, Pair};
use super::rng::Rng;
use super::wr;

/// What the network does to packets.
#[derive(Copy, Clone, Debug)]
pub enum Setting {
    /// Nothing.
    Clean,
    /// 10 % of each fault.
    Harsh,
}

/// Regions of each side, by index.
const SOURCE: usize = 0;
const TARGET: usize = 1;
const RECEIVED: usize = 2;
const RESULT: usize = 3;
const COUNTERS: usize = 4;
const AREA: usize = 600_000;
const COUNTER_COUNT: u64 = 4;
const SRQNS: [u32; 3] = [1, 2, 0xff_ffff];

#[derive(Debug)]
struct Operation {
    wr: SendWr,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
}

/// What one side does, and what is to come of it.
#[derive(Debug, Default)]
struct Side {
    to_post: VecDeque<Operation>,
    /// With the SRQ, on XRC.
    receives: VecDeque<(u64, Vec<Sge>, u32)>,
    sends_expected: VecDeque<Wc>,
    receives_expected: VecDeque<Wc>,
    /// The SRQ of each receive, on XRC.
    received_on: Vec<u32>,
    /// Regions as they are to be at the end.
    memory: Vec<Vec<u8>>,
    /// Bytes given out of each region.
    used: Vec<usize>,
    atomics_expected: u64,
    invalidated: Vec<usize>,
}

pub struct Model {
    pair: Pair,
    sides: [Side; 2],
    rng: Rng,
    mtu: usize,
    next_id: u64,
    srq: bool,
    xrc: bool,
}

impl Model {
    pub fn new(seed: u64, setting: Setting) -> Model {
        let mut rng = Rng(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let faults = match setting {
            Setting::Clean => Faults::default(),
            Setting::Harsh => Faults { loss: 10, duplication: 10, reordering: 10, corruption: 10 },
        };
        let mtu = *rng.pick(&[Mtu::M256, Mtu::M256, Mtu::M1024]);
        let srq = rng.percent(30);
        let xrc = rng.percent(15);
        let depth = *rng.pick(&[1, 3, 16, 64]);
        let reads = *rng.pick(&[1, 2, 16]);
        let options = Options {
            qp_type: if xrc { QpType::XrcSend } else { QpType::Rc },
            mtu,
            cap: QpCap {
                max_send_wr: depth,
                max_recv_wr: *rng.pick(&[1, 4, 64]),
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 600,
            },
            psn: *rng.pick(&[0xff_fffa, 0, 0x7f_fff0, 0x12_3456]),
            timeout: *rng.pick(&[0, 10, 14, 14]),
            min_rnr_timer: *rng.pick(&[1, 5, 12]),
            max_rd_atomic: reads,
            max_dest_rd_atomic: reads,
            sq_sig_all: rng.percent(20),
            srq,
            seed: rng.next(),
            faults,
            ..Options::default()
        };
        let mut pair = Pair::connected(options);
        pair.sink_room = *rng.pick(&[1, 5, 32, 64]);
        let mut model = Model {
            pair,
            sides: [Side::default(), Side::default()],
            rng,
            mtu: mtu.bytes(),
            next_id: 1,
            srq,
            xrc,
        };
        for side in 0..2 {
            for len in [AREA, AREA, AREA, AREA, COUNTER_COUNT as usize * 8] {
                let dev = &mut model.pair.hosts[side].dev;
                let index = dev.register(len, ALL);
                if index == SOURCE {
                    model.rng.fill(&mut dev.regions[index].bytes);
                }
                model.sides[side].memory.push(dev.regions[index].bytes.clone());
                model.sides[side].used.push(0);
            }
        }
        if xrc {
            let srqs = SRQNS.map(|srqn| (srqn, XrcSrq::default()));
            model.pair.hosts[1].dev.xrc.extend(srqs);
        }
        let [first, second] = *model.rng.pick(&[[40, 0], [25, 25], [60, 5]]);
        for _ in 0..first {
            model.plan(0);
        }
        for _ in 0..second {
            model.plan(usize::from(!xrc));
        }
        model
    }

    /// Runs it all and checks what came of it.
    pub fn run(mut self) -> [Counters; 2] {
        for _ in 0..5_000_000 {
            self.post();
            self.poll();
            if self.sides.iter().all(Side::is_done) {
                return self.finish();
            }
            if !self.pair.step() && self.sides.iter().all(Side::is_posted) {
                panic!("nothing happens any more\n{:?}\n{:?}", self.pair.hosts, self.sides);
            }
        }
        panic!("no end within five million steps\n{:?}", self.sides);
    }

    fn finish(mut self) -> [Counters; 2] {
        self.pair.settle();
        self.poll();
        for (side, host) in self.pair.hosts.iter().enumerate() {
            let expected = &self.sides[side];
            for (index, bytes) in expected.memory.iter().enumerate() {
                let found = &host.dev.regions[index].bytes;
                let differs = bytes.iter().zip(found).position(|(a, b)| a != b);
                assert_eq!(differs, None, "first wrong byte of region {index} at side {side}");
            }
            for &index in &expected.invalidated {
                assert!(!host.dev.regions[index].rkey_valid, "region {index} is invalidated");
            }
            assert_eq!(host.dev.atomics, expected.atomics_expected, "atomics at side {side}");
            assert_eq!(host.dev.received_on, expected.received_on, "SRQs at side {side}");
            assert_eq!(host.dev.events, [], "events at side {side}");
        }
        [0, 1].map(|side| *self.pair.hosts[side].qp.counters())
    }

    fn post(&mut self) {
        for side in 0..2 {
            while let Some(operation) = self.sides[side].to_post.front() {
                if self.rng.percent(30) {
                    break;
                }
                let posted = match &operation.inline {
                    Some(data) => self.pair.hosts[side].qp.post_send(
                        &operation.wr,
                        Payload::Inline {
                            len: data.len(),
                            copy: &mut |room| room.copy_from_slice(data),
                        },
                    ),
                    None => self.pair.hosts[side]
                        .qp
                        .post_send(&operation.wr, Payload::Sges(&operation.sges)),
                };
                match posted {
                    Ok(()) => self.sides[side].to_post.pop_front(),
                    Err(PostError::QueueFull { .. }) => break,
                    Err(other) => panic!("{other}"),
                };
            }
            // Receives are late now and then, so that the peer is told to wait.
            while let Some((wr_id, sges, srqn)) = self.sides[side].receives.front() {
                if self.rng.percent(60) {
                    break;
                }
                let host = &mut self.pair.hosts[side];
                let wqe = RecvWqe { wr_id: *wr_id, sges: sges.clone() };
                if let Some(srq) = host.dev.xrc.get_mut(srqn) {
                    srq.receives.push_back(wqe);
                } else if self.srq {
                    host.dev.srq.push_back(wqe);
                } else if host.qp.post_recv(*wr_id, sges).is_err() {
                    break;
                }
                self.sides[side].receives.pop_front();
            }
        }
    }

    fn poll(&mut self) {
        for side in 0..2 {
            for queue in [Queue::Send, Queue::Recv] {
                while let Some(wc) = self.pair.poll(side, queue) {
                    let expected = match queue {
                        Queue::Send => self.sides[side].sends_expected.pop_front(),
                        Queue::Recv => self.sides[side].receives_expected.pop_front(),
                    };
                    assert_eq!(Some(wc), expected, "{queue:?} completion at side {side}");
                }
            }
        }
    }

    /// Adds an operation, or a few that belong together, of `side`.
    fn plan(&mut self, side: usize) {
        match self.rng.below(12) {
            0..=2 => self.plan_send(side, WrOpcode::Send),
            3 => self.plan_send(side, WrOpcode::SendWithImm),
            4 => self.plan_send(side, WrOpcode::SendWithInv),
            5..=6 => self.plan_write(side, WrOpcode::Write),
            7 => self.plan_write(side, WrOpcode::WriteWithImm),
            8..=9 => {
                let len = self.length();
                let from = self.rng.below((AREA - len) as u64) as usize;
                let data = self.sides[1 - side].memory[SOURCE][from..from + len].to_vec();
                self.plan_read(side, SOURCE, from, &data);
            }
            10 => self.plan_atomic(side),
            _ => self.plan_fenced(side),
        }
    }

    fn plan_send(&mut self, side: usize, opcode: WrOpcode) {
        let len = self.length();
        let (operation, data) = self.source(side, opcode, len);
        self.plan_send_of(side, operation, &data);
    }

    fn plan_send_of(&mut self, side: usize, mut operation: Operation, data: &[u8]) {
        let len = data.len();
        let spare = self.rng.below(100) as usize;
        let at = self.place(1 - side, RECEIVED, data, spare);
        let sges = self.split(1 - side, RECEIVED, at, len + spare);
        let mut wc = self.expect_receive(side, &mut operation, sges);
        wc.byte_len = len as u32;
        if operation.wr.opcode == WrOpcode::SendWithInv {
            let dev = &mut self.pair.hosts[1 - side].dev;
            let index = dev.register(8, ALL);
            operation.wr.invalidate_rkey = dev.regions[index].rkey;
            wc.invalidated_rkey = operation.wr.invalidate_rkey;
            wc.flags |= WcFlags::WITH_INV;
            self.sides[1 - side].invalidated.push(index);
        }
        self.sides[1 - side].receives_expected.push_back(wc);
        self.expect_send(side, operation, 0);
    }

    fn plan_write(&mut self, side: usize, opcode: WrOpcode) {
        let len = self.length();
        let (mut operation, data) = self.source(side, opcode, len);
        let at = self.place(1 - side, TARGET, &data, 0);
        self.aim(side, &mut operation.wr, TARGET, at);
        if opcode == WrOpcode::WriteWithImm {
            let mut wc = self.expect_receive(side, &mut operation, Vec::new());
            wc.byte_len = len as u32;
            wc.opcode = WcOpcode::RecvWriteWithImm;
            self.sides[1 - side].receives_expected.push_back(wc);
        }
        self.expect_send(side, operation, 0);
    }

    /// A READ of `data`, which is what will then be at `from`. Where it was put.
    fn plan_read(&mut self, side: usize, region: usize, from: usize, data: &[u8]) -> usize {
        let mut operation = self.operation(WrOpcode::Read);
        let at = self.place(side, RESULT, data, 0);
        operation.sges = self.split(side, RESULT, at, data.len());
        self.aim(side, &mut operation.wr, region, from);
        self.expect_send(side, operation, data.len() as u32);
        at
    }

    fn plan_atomic(&mut self, side: usize) {
        let counter = self.rng.below(COUNTER_COUNT) as usize * 8;
        let place = counter..counter + 8;
        let swap = self.rng.percent(50);
        let opcode = if swap { WrOpcode::CompareSwap } else { WrOpcode::FetchAdd };
        let mut operation = self.operation(opcode);
        let counters = &mut self.sides[1 - side].memory[COUNTERS];
        let before = u64::from_ne_bytes(counters[place.clone()].try_into().unwrap());
        operation.wr.compare_add = if self.rng.percent(70) { before } else { 77 };
        operation.wr.swap = self.rng.next();
        let after = match opcode {
            WrOpcode::FetchAdd => before.wrapping_add(operation.wr.compare_add),
            _ if operation.wr.compare_add == before => operation.wr.swap,
            _ => before,
        };
        counters[place].copy_from_slice(&after.to_ne_bytes());
        self.sides[1 - side].atomics_expected += 1;
        let at = self.place(side, RESULT, &before.to_ne_bytes(), 0);
        operation.sges = self.split(side, RESULT, at, 8);
        self.aim(side, &mut operation.wr, COUNTERS, counter);
        self.expect_send(side, operation, 8);
    }

    /// What only a fence makes certain: a READ, then a WRITE over what it reads; or a READ, then a
    /// SEND of what it brought.
    fn plan_fenced(&mut self, side: usize) {
        let len = self.length();
        if self.rng.percent(50) {
            let (mut first, before) = self.source(side, WrOpcode::Write, len);
            let at = self.place(1 - side, TARGET, &before, 0);
            self.aim(side, &mut first.wr, TARGET, at);
            self.expect_send(side, first, 0);
            self.plan_read(side, TARGET, at, &before);
            let (mut second, after) = self.source(side, WrOpcode::Write, len);
            second.wr.flags |= SendFlags::FENCE;
            self.sides[1 - side].memory[TARGET][at..at + len].copy_from_slice(&after);
            self.aim(side, &mut second.wr, TARGET, at);
            self.expect_send(side, second, 0);
        } else {
            let from = self.rng.below((AREA - len) as u64) as usize;
            let data = self.sides[1 - side].memory[SOURCE][from..from + len].to_vec();
            let at = self.plan_read(side, SOURCE, from, &data);
            let mut send = self.operation(WrOpcode::Send);
            send.sges = self.split(side, RESULT, at, len);
            send.wr.flags |= SendFlags::FENCE;
            self.plan_send_of(side, send, &data);
        }
    }

    fn operation(&mut self, opcode: WrOpcode) -> Operation {
        let mut wr = wr(self.next_id, opcode);
        self.next_id += 1;
        wr.flags.set(SendFlags::SIGNALED, self.rng.percent(60));
        wr.flags.set(SendFlags::SOLICITED, self.rng.percent(30));
        wr.flags.set(SendFlags::FENCE, self.rng.percent(10));
        wr.imm = (self.rng.next() as u32).to_be_bytes();
        wr.xrc_srqn = *self.rng.pick(&SRQNS);
        Operation { wr, sges: Vec::new(), inline: None }
    }

    /// An operation that takes `len` bytes out of the source.
    fn source(&mut self, side: usize, opcode: WrOpcode, len: usize) -> (Operation, Vec<u8>) {
        let mut operation = self.operation(opcode);
        let from = self.rng.below((AREA - len) as u64) as usize;
        let data = self.sides[side].memory[SOURCE][from..from + len].to_vec();
        if len <= 600 && self.rng.percent(25) {
            operation.inline = Some(data.clone());
            operation.wr.flags |= SendFlags::INLINE;
        } else {
            operation.sges = self.split(side, SOURCE, from, len);
        }
        (operation, data)
    }

    fn length(&mut self) -> usize {
        let mtu = self.mtu as u64;
        let len = match self.rng.below(12) {
            0 => 0,
            1 => self.rng.below(8),
            2 => mtu,
            3 => mtu * self.rng.below(4) + 1,
            4 => self.rng.below(mtu * 40),
            _ => self.rng.below(mtu * 5),
        };
        len as usize
    }

    /// Notes that `data` will be in `region` of `side`, at an address not used before, with `spare`
    /// bytes after it.
    fn place(&mut self, side: usize, region: usize, data: &[u8], spare: usize) -> usize {
        let gap = self.rng.below(9) as usize;
        let side = &mut self.sides[side];
        let at = side.used[region] + gap;
        side.used[region] = at + data.len() + spare;
        side.memory[region][at..at + data.len()].copy_from_slice(data);
        at
    }

    /// A list of up to four elements, some of them empty, that is `len` bytes at `at`.
    fn split(&mut self, side: usize, region: usize, at: usize, len: usize) -> Vec<Sge> {
        let mut sges = Vec::new();
        let (mut at, mut left) = (at as u32, len as u32);
        for last in [false, false, false, true] {
            let take = if last || self.rng.percent(40) {
                left
            } else {
                self.rng.below(u64::from(left) + 1) as u32
            };
            if take > 0 || self.rng.percent(10) {
                sges.push(self.pair.hosts[side].dev.regions[region].sge(at, take));
            }
            at += take;
            left -= take;
        }
        sges
    }

    fn aim(&mut self, side: usize, wr: &mut SendWr, region: usize, at: usize) {
        let region = &self.pair.hosts[1 - side].dev.regions[region];
        wr.remote_addr = region.base + at as u64;
        wr.rkey = region.rkey;
    }

    /// Provides the receive that an operation of `side` will use.
    fn expect_receive(&mut self, side: usize, operation: &mut Operation, sges: Vec<Sge>) -> Wc {
        let wr_id = self.next_id;
        self.next_id += 1;
        let srqn = operation.wr.xrc_srqn;
        self.sides[1 - side].receives.push_back((wr_id, sges, srqn));
        if self.xrc {
            self.sides[1 - side].received_on.push(srqn);
        }
        let imm = matches!(operation.wr.opcode, WrOpcode::SendWithImm | WrOpcode::WriteWithImm);
        Wc {
            wr_id,
            opcode: WcOpcode::Recv,
            imm: if imm { operation.wr.imm } else { [0; 4] },
            flags: if imm { WcFlags::WITH_IMM } else { WcFlags::empty() },
            solicited: operation.wr.flags.contains(SendFlags::SOLICITED),
            ..self.success(1 - side)
        }
    }

    fn expect_send(&mut self, side: usize, operation: Operation, byte_len: u32) {
        let wc = Wc {
            wr_id: operation.wr.wr_id,
            opcode: match operation.wr.opcode {
                WrOpcode::Write | WrOpcode::WriteWithImm => WcOpcode::Write,
                WrOpcode::Read => WcOpcode::Read,
                WrOpcode::CompareSwap => WcOpcode::CompareSwap,
                WrOpcode::FetchAdd => WcOpcode::FetchAdd,
                _ => WcOpcode::Send,
            },
            byte_len,
            ..self.success(side)
        };
        if self.pair.options.sq_sig_all || operation.wr.flags.contains(SendFlags::SIGNALED) {
            self.sides[side].sends_expected.push_back(wc);
        }
        self.sides[side].to_post.push_back(operation);
    }

    fn success(&self, side: usize) -> Wc {
        Wc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            vendor_err: 0,
            byte_len: 0,
            imm: [0; 4],
            invalidated_rkey: 0,
            qpn: self.pair.hosts[side].qp.qpn(),
            src_qpn: self.pair.hosts[1 - side].qp.qpn(),
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            slid: 0,
            dlid_path_bits: 0,
            solicited: false,
        }
    }
}

impl Side {
    fn is_posted(&self) -> bool {
        self.to_post.is_empty() && self.receives.is_empty()
    }

    fn is_done(&self) -> bool {
        self.is_posted() && self.sends_expected.is_empty() && self.receives_expected.is_empty()
    }
}
