//! A fixed number of messages through the transport and nothing else, for `valgrind --tool=callgrind` to count the
//! instructions of: the count is the same on every run.
//!
//! `hotpath send|write ROUNDS`: 8-byte SENDs, or 64 KiB WRITEs in packets of 4 KiB, each acknowledged.

use ironverbs_transport::device::{Atomic, Device, Instant, QpEvent, Queue, RecvWqe, Sink};
use ironverbs_transport::qp::{Payload, Qp, QpConfig};
use ironverbs_transport::verbs::*;
use ironverbs_wire::{Gid, Mtu, Packet, Path};

const MEMORY: usize = 1 << 17;

/// One region and a count of completions.
struct Memory {
    bytes: Vec<u8>,
    completions: u64,
}

impl Memory {
    fn slice(&mut self, at: u64, len: usize) -> Result<&mut [u8], Fault> {
        let at = at as usize;
        self.bytes.get_mut(at..at + len).ok_or(Fault::Range)
    }
}

impl Device for Memory {
    fn check_local(&mut self, sge: &Sge, _: bool) -> Result<(), Fault> {
        self.slice(sge.addr, sge.len as usize).map(drop)
    }
    fn gather(&mut self, sge: &Sge, offset: u32, dst: &mut [u8]) -> Result<(), Fault> {
        dst.copy_from_slice(self.slice(sge.addr + u64::from(offset), dst.len())?);
        Ok(())
    }
    fn scatter(&mut self, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), Fault> {
        self.slice(sge.addr + u64::from(offset), src.len())?.copy_from_slice(src);
        Ok(())
    }
    fn check_remote(&mut self, _: u32, va: u64, len: u64, _: Access) -> Result<(), Fault> {
        self.slice(va, len as usize).map(drop)
    }
    fn read_remote(&mut self, _: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault> {
        dst.copy_from_slice(self.slice(va, dst.len())?);
        Ok(())
    }
    fn write_remote(&mut self, _: u32, va: u64, src: &[u8]) -> Result<(), Fault> {
        self.slice(va, src.len())?.copy_from_slice(src);
        Ok(())
    }
    fn atomic(&mut self, _: u32, _: u64, _: Atomic) -> Result<u64, Fault> {
        Err(Fault::Access)
    }
    fn invalidate(&mut self, _: u32) -> Result<(), Fault> {
        Err(Fault::Access)
    }
    fn srq_take(&mut self, _: &mut RecvWqe) -> bool {
        false
    }
    fn complete(&mut self, _: Queue, wc: Wc) {
        assert_eq!(wc.status, WcStatus::Success);
        self.completions += 1;
    }
    fn event(&mut self, _: QpEvent) {}
}

/// Holds the packets of one transmission.
struct Wire {
    buffer: Vec<u8>,
    packets: Vec<std::ops::Range<usize>>,
    reserved: usize,
}

impl Sink for Wire {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        let start = self.packets.last().map_or(0, |last| last.end);
        self.reserved = len;
        self.buffer.get_mut(start..start + len)
    }
    fn commit(&mut self) {
        let start = self.packets.last().map_or(0, |last| last.end);
        self.packets.push(start..start + self.reserved);
    }
}

struct End {
    qp: Qp,
    memory: Memory,
    wire: Wire,
    path: Path,
}

impl End {
    fn new(qpn: u32, peer: u32, path: Path) -> End {
        let cap = QpCap {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut qp =
            Qp::new(QpConfig { qpn, qp_type: QpType::Rc, cap, sq_sig_all: true, srq: false });
        let mut memory = Memory { bytes: vec![0; MEMORY], completions: 0 };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut attr = QpAttr {
            path_mtu: Mtu::M4096,
            dest_qpn: peer,
            access,
            port_num: 1,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rtr = rtr | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        let rts = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::SQ_PSN;
        let rts = rts | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            attr.state = state;
            let resolved = mask.contains(AttrMask::AV).then_some(path);
            let modified =
                qp.modify(&attr, AttrMask::STATE | mask, resolved, 0xffff, Instant(0), &mut memory);
            assert_eq!(modified, Ok(()), "{state:?}");
        }
        let wire = Wire { buffer: vec![0; 1 << 18], packets: Vec::with_capacity(256), reserved: 0 };
        End { qp, memory, wire, path }
    }

    /// Sends what there is to the other end.
    fn pass(&mut self, to: &mut End, now: Instant) {
        self.wire.packets.clear();
        self.qp.transmit(now, &mut self.memory, &mut self.wire);
        for range in &self.wire.packets {
            let bytes = &self.wire.buffer[range.clone()];
            let packet = Packet::parse(bytes).expect("what the transport sends is well formed");
            to.qp.handle_packet(&packet, &self.path, bytes.len() as u16 + 12, now, &mut to.memory);
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (len, opcode) = match words.first().map(String::as_str) {
        Some("send") => (8, WrOpcode::Send),
        Some("write") => (65_536, WrOpcode::Write),
        _ => panic!("usage: hotpath send|write ROUNDS"),
    };
    let rounds: u64 = words.get(1).and_then(|n| n.parse().ok()).expect("a number of rounds");
    let gid = |n| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, n]);
    let path = |src, dst| Path { src: gid(src), dst: gid(dst), hop_limit: 64, ..Path::default() };
    let (mut a, mut b) =
        (End::new(0x1000, 0x2000, path(1, 2)), End::new(0x2000, 0x1000, path(2, 1)));
    let sge = Sge { addr: 0, len, lkey: 1 };
    let wr = SendWr {
        wr_id: 0,
        opcode,
        flags: SendFlags::empty(),
        imm: [0; 4],
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 1,
        compare_add: 0,
        swap: 0,
        ud: None,
        xrc_srqn: 0,
    };
    for round in 0..rounds {
        let now = Instant(1_000 + round * 10_000);
        if opcode == WrOpcode::Send {
            b.qp.post_recv(0, &[sge]).expect("room for a receive");
        }
        a.qp.post_send(&wr, Payload::Sges(&[sge])).expect("room for a send");
        while a.memory.completions <= round {
            a.pass(&mut b, now);
            b.pass(&mut a, now.after(1_000));
        }
    }
    println!("{}", a.memory.completions);
}
