//! A whole queue pair under any sequence of packets, posts and time.
//!
//! Whatever comes: no panic, no packet of ours that is malformed or longer than the path MTU
//! allows, no more completions than requests, no write outside the region that was granted.
#![no_main]

#[path = "../src/memory.rs"]
mod memory;
#[path = "../src/script.rs"]
mod script;

use ironverbs_transport::device::Instant;
use ironverbs_transport::qp::{Payload, Qp, QpConfig};
use ironverbs_transport::verbs::{
    Access, AhAttr, AttrMask, QpAttr, QpCap, QpState, QpType, SendFlags, SendWr, Sge, UdDest,
    WrOpcode,
};
use ironverbs_wire::{Gid, Mtu, Packet, Path, psn};
use libfuzzer_sys::fuzz_target;
use memory::{LKEY, Memory, REGION, RKEY, SRQN, Wire};
use script::{Script, Step};

const QPN: u32 = 0x12_3456;
const PEER_QPN: u32 = 0x65_4321;
const PKEY: u16 = 0xffff;
const QKEY: u32 = 0x1111_1111;
/// Near the end, so that numbers wrap.
const RQ_PSN: u32 = 0xff_fff0;
const SQ_PSN: u32 = 0xff_fff8;

fn path() -> Path {
    let gid = |last: u8| Gid::from_ipv4([10, 0, 0, last].into());
    Path { src: gid(1), dst: gid(2), hop_limit: 64, ..Path::default() }
}

fn ready(qp_type: QpType, memory: &mut Memory) -> Qp {
    let cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    let mut qp = Qp::new(QpConfig { qpn: QPN, qp_type, cap, sq_sig_all: true, srq: false });
    qp.set_ud_mtu(Mtu::M1024);
    let attr = QpAttr {
        path_mtu: Mtu::M256,
        qkey: QKEY,
        rq_psn: RQ_PSN,
        sq_psn: SQ_PSN,
        dest_qpn: PEER_QPN,
        access: Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC,
        ah: AhAttr { dgid: path().dst, is_global: true, port_num: 1, ..AhAttr::default() },
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        port_num: 1,
        timeout: 8,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let common = AttrMask::STATE;
    let steps = match qp_type {
        QpType::Ud => [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY),
            (QpState::Rtr, AttrMask::empty()),
            (QpState::Rts, AttrMask::SQ_PSN),
        ],
        QpType::Uc => [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
            ),
            (QpState::Rts, AttrMask::SQ_PSN),
        ],
        QpType::Rc => [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN
                    | AttrMask::MAX_DEST_RD_ATOMIC
                    | AttrMask::MIN_RNR_TIMER,
            ),
            (
                QpState::Rts,
                AttrMask::SQ_PSN
                    | AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC,
            ),
        ],
        QpType::XrcSend => [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
            ),
            (
                QpState::Rts,
                AttrMask::SQ_PSN
                    | AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC,
            ),
        ],
        QpType::XrcRecv => [
            (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
            (
                QpState::Rtr,
                AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN
                    | AttrMask::MAX_DEST_RD_ATOMIC
                    | AttrMask::MIN_RNR_TIMER,
            ),
            (QpState::Rts, AttrMask::SQ_PSN | AttrMask::TIMEOUT),
        ],
    };
    for (state, mask) in steps {
        let resolved = mask.contains(AttrMask::AV).then(path);
        let attr = QpAttr { state, ..attr };
        qp.modify(&attr, common | mask, resolved, PKEY, Instant(0), memory).expect("a legal step");
    }
    qp
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else { return };
    let qp_type = match kind % 8 {
        0 => QpType::Uc,
        1 => QpType::Ud,
        2 => QpType::XrcSend,
        3 => QpType::XrcRecv,
        _ => QpType::Rc,
    };
    let mut memory = Memory::new();
    let mut wire = Wire::new(if qp_type == QpType::Ud { 1024 } else { 256 });
    let mut qp = ready(qp_type, &mut memory);
    let mut now = Instant(1);
    // The PSN that a well-behaved peer would use next.
    let mut next = RQ_PSN;

    for step in Script::new(rest) {
        match step {
            Step::Packet { bytes, psn_delta, adapt } => {
                let mut bytes = bytes.to_vec();
                if let Some(delta) = psn_delta {
                    script::adapt(&mut bytes, QPN, psn::add(next, delta as u32), PKEY, adapt);
                }
                let Ok(packet) = Packet::parse(&bytes) else { continue };
                if packet.op.is_request() && packet.bth.psn == next {
                    next = psn::add(next, script::psns(&packet, 256));
                }
                let back = Path { src: path().dst, dst: path().src, ..path() };
                let udp_len = u16::try_from(bytes.len() + 12).unwrap_or(u16::MAX);
                qp.handle_packet(&packet, &back, udp_len, now, &mut memory);
            }
            Step::Wait { nanoseconds } => {
                now = now.after(nanoseconds);
                qp.handle_timeout(now, &mut memory);
            }
            Step::Receive { len } => {
                let sge = Sge { addr: REGION, len: len.into(), lkey: LKEY };
                if qp.post_recv(1, &[sge]).is_ok() {
                    memory.posted += 1;
                }
            }
            Step::Send { opcode, len } => {
                let opcode = match opcode % 8 {
                    0 => WrOpcode::Send,
                    1 => WrOpcode::SendWithImm,
                    2 => WrOpcode::Write,
                    3 => WrOpcode::WriteWithImm,
                    4 => WrOpcode::Read,
                    5 => WrOpcode::CompareSwap,
                    6 => WrOpcode::FetchAdd,
                    _ => WrOpcode::SendWithInv,
                };
                let atomic = matches!(opcode, WrOpcode::CompareSwap | WrOpcode::FetchAdd);
                let len = if atomic { 8 } else { len.into() };
                let wr = SendWr {
                    wr_id: 2,
                    opcode,
                    flags: SendFlags::SIGNALED,
                    imm: [1, 2, 3, 4],
                    invalidate_rkey: RKEY,
                    remote_addr: 0x1000,
                    rkey: 7,
                    compare_add: 1,
                    swap: 2,
                    ud: (qp_type == QpType::Ud).then(|| UdDest {
                        path: path(),
                        qpn: PEER_QPN,
                        qkey: QKEY,
                    }),
                    xrc_srqn: SRQN,
                };
                let sge = Sge { addr: REGION, len, lkey: LKEY };
                if qp.post_send(&wr, Payload::Sges(&[sge])).is_ok() {
                    memory.posted += 1;
                }
            }
            Step::Transmit { packets } => {
                wire.room = packets.into();
                qp.transmit(now, &mut memory, &mut wire);
            }
        }
        assert!(memory.completed <= memory.posted, "a completion without a request");
        let _ = (qp.output(), qp.next_deadline());
    }
    memory.check();
});
