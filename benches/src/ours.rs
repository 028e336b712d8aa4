//! The same over the device.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs_soft::*;

use crate::Outcome;

pub(crate) const PORT: u16 = 18_900;
const MEMORY: usize = 1 << 20;
const MESSAGE: u32 = 65_536;
/// Requests kept outstanding.
const DEPTH: u64 = 64;

pub(crate) fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// One end: a QP with memory.
pub(crate) struct End {
    pub(crate) context: Arc<Context>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) mr: Arc<Mr>,
    pub(crate) memory: Memory,
}

pub(crate) const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

impl End {
    pub(crate) fn new(host: &Host) -> Outcome<End> {
        End::with(host, false)
    }

    /// With memory that peers on the host can map, if `shared`.
    pub(crate) fn with(host: &Host, shared: bool) -> Outcome<End> {
        let device = host.devices()?.into_iter().next().ok_or("no device")?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, None, 0)?;
        let memory = Memory::allocate(MEMORY, shared)?;
        // SAFETY: the mapping lives until the process ends.
        let mr = unsafe { pd.reg_mr(memory.addr(), MEMORY as u64, memory.addr(), ACCESS) }?;
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp = pd.create_qp(&QpInit {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap,
            sq_sig_all: true,
        })?;
        Ok(End { context, cq, qp, mr, memory })
    }

    pub(crate) fn connect(&self, gid: Gid, qpn: u32) -> Outcome {
        let active = self.context.port(1)?.active_mtu;
        let mut attr = QpAttr {
            state: QpState::Init,
            path_mtu: active,
            dest_qpn: qpn,
            access: ACCESS,
            port_num: 1,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ah: AhAttr { dgid: gid, is_global: true, port_num: 1, ..AhAttr::default() },
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, AttrMask::STATE | init)?;
        attr.state = QpState::Rtr;
        let rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rtr = rtr | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        self.qp.modify(&attr, AttrMask::STATE | rtr)?;
        attr.state = QpState::Rts;
        let rts = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::SQ_PSN;
        self.qp.modify(&attr, AttrMask::STATE | rts | AttrMask::MAX_QP_RD_ATOMIC)?;
        Ok(())
    }

    /// Tells the peer where we are, hears where it is, and connects. Its memory.
    pub(crate) fn exchange(&self, stream: &mut TcpStream) -> Outcome<(u64, u32)> {
        let gid = self.context.gid(1, 0)?.gid;
        let words = (self.qp.qpn(), self.memory.addr(), self.mr.rkey());
        writeln!(stream, "{} {} {} {gid}", words.0, words.1, words.2)?;
        let line = read_line(stream)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [qpn, addr, rkey, gid] = words[..] else {
            return Err(format!("unexpected: {line}").into());
        };
        self.connect(gid.parse()?, qpn.parse()?)?;
        self.post_recv()?;
        // Both are connected before either sends.
        stream.write_all(b"!")?;
        stream.read_exact(&mut [0])?;
        Ok((addr.parse()?, rkey.parse()?))
    }

    pub(crate) fn sge(&self, len: u32) -> Sge {
        Sge { addr: self.memory.addr(), len, lkey: self.mr.lkey() }
    }

    pub(crate) fn request(opcode: WrOpcode, (remote_addr, rkey): (u64, u32)) -> SendWr {
        SendWr {
            wr_id: 0,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: [0; 4],
            invalidate_rkey: 0,
            remote_addr,
            rkey,
            compare_add: 0,
            swap: 0,
            ud: None,
            xrc_srqn: 0,
        }
    }

    /// Completions of receives among those that are there.
    pub(crate) fn poll(&self) -> Outcome<(u64, u64)> {
        let (mut receives, mut sends, mut failed) = (0, 0, None);
        self.cq.poll(64, |wc| match (wc.status, wc.opcode) {
            (WcStatus::Success, WcOpcode::Recv) => receives += 1,
            (WcStatus::Success, _) => sends += 1,
            (status, _) => failed = Some(status),
        })?;
        failed.map_or(Ok((receives, sends)), |status| {
            Err(format!("completed with {status:?}").into())
        })
    }

    fn post_recv(&self) -> Outcome {
        Ok(self.qp.post_recv(0, &[self.sge(MESSAGE)])?)
    }

    fn post_send(&self) -> Outcome {
        let wr = Self::request(WrOpcode::Send, (0, 0));
        Ok(self.qp.post_send(&wr, Payload::Sges(&[self.sge(8)]))?)
    }
}

/// Waits for WRITEs (not polling, as a target of them would) or answers SENDs, until the client goes.
pub(crate) fn target(at: &str) -> Outcome {
    let listener = TcpListener::bind((at, PORT))?;
    let host = Host::start(Config::default())?;
    let end = End::new(&host)?;
    println!("ready");
    let (mut stream, _) = listener.accept()?;
    end.exchange(&mut stream)?;
    let mut job = [0];
    stream.read_exact(&mut job)?;
    if job == *b"b" {
        for _ in 1..DEPTH {
            end.post_recv()?;
        }
        stream.write_all(b"!")?;
        loop {
            for _ in 0..end.poll()?.0 {
                end.post_recv()?;
            }
        }
    }
    if job == *b"w" {
        let _ = stream.read_exact(&mut job);
        return Ok(());
    }
    loop {
        for _ in 0..end.poll()?.0 {
            end.post_recv()?;
            end.post_send()?;
        }
    }
}

/// A line, and not a byte more.
fn read_line(stream: &mut TcpStream) -> Outcome<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(String::from_utf8(line)?)
}

fn start(to: &str) -> Outcome<(End, TcpStream, (u64, u32))> {
    let host = Host::start(Config::default())?;
    let end = End::new(&host)?;
    let mut stream = TcpStream::connect((to, PORT))?;
    let memory = end.exchange(&mut stream)?;
    Ok((end, stream, memory))
}

/// WRITEs of 64 KiB for `seconds`; tells GB/s.
pub(crate) fn write(to: &str, seconds: u64) -> Outcome {
    let (end, mut stream, memory) = start(to)?;
    stream.write_all(b"w")?;
    let wr = End::request(WrOpcode::Write, memory);
    let (mut posted, mut done) = (0u64, 0u64);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds) {
        while posted - done < DEPTH {
            end.qp.post_send(&wr, Payload::Sges(&[end.sge(MESSAGE)]))?;
            posted += 1;
        }
        done += end.poll()?.1;
    }
    let rate = (done * u64::from(MESSAGE)) as f64 / begin.elapsed().as_secs_f64() / 1e9;
    println!("figure {rate}");
    Ok(())
}

/// SENDs of 64 KiB for `seconds`; tells GB/s.
pub(crate) fn stream(to: &str, seconds: u64) -> Outcome {
    let (end, mut stream, _) = start(to)?;
    stream.write_all(b"b")?;
    stream.read_exact(&mut [0])?;
    let wr = End::request(WrOpcode::Send, (0, 0));
    let (mut posted, mut done) = (0u64, 0u64);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds) {
        while posted - done < DEPTH / 2 {
            end.qp.post_send(&wr, Payload::Sges(&[end.sge(MESSAGE)]))?;
            posted += 1;
        }
        done += end.poll()?.1;
    }
    let rate = (done * u64::from(MESSAGE)) as f64 / begin.elapsed().as_secs_f64() / 1e9;
    println!("figure {rate}");
    Ok(())
}

/// Round trips of 8-byte SENDs; tells the median in nanoseconds.
pub(crate) fn send(to: &str, rounds: usize) -> Outcome {
    let (end, mut stream, _) = start(to)?;
    stream.write_all(b"s")?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begin = Instant::now();
        end.post_send()?;
        while end.poll()?.0 == 0 {}
        times.push(begin.elapsed().as_nanos() as u64);
        end.post_recv()?;
    }
    println!("figure {}", median(&mut times));
    Ok(())
}
