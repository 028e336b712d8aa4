//! Commands about completion queues, queue pairs, shared receive queues and work queues.

use crate::command::{Bytes, Command, Path, Response};

fn answered() -> Bytes {
    Bytes::new().u64(0)
}

fn first(bytes: Bytes, number: u32, response: usize) -> Command {
    Command { number, extended: false, request: bytes.0, response }
}

fn second(bytes: Bytes, number: u32, response: usize) -> Command {
    Command { number, extended: true, request: bytes.0, response }
}

/// A completion queue that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct CreateCq {
    /// The program's name for it, which events have.
    pub user: u64,
    /// Entries.
    pub cqe: u32,
    /// Which vector.
    pub vector: u32,
    /// The channel's descriptor.
    pub channel: Option<i32>,
    /// `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
}

impl CreateCq {
    /// Handle and granted entries are first in the response. Flags need the second generation.
    pub fn command(&self) -> Command {
        let channel = self.channel.unwrap_or(-1) as u32;
        if self.flags == 0 {
            let what = answered().u64(self.user).u32(self.cqe).u32(self.vector);
            return first(what.u32(channel).u32(0), 18, 8);
        }
        let what = Bytes::new().u64(self.user).u32(self.cqe).u32(self.vector).u32(channel);
        second(what.u32(0).u32(self.flags).u32(0), 18, 16)
    }
}

/// Bytes of the fixed parts of creating a completion queue: request and response of each generation.
pub const CREATE_CQ: [(usize, usize); 2] = [(32, 8), (32, 16)];

/// The entries granted.
pub fn resize_cq(handle: u32, cqe: u32) -> Command {
    first(answered().u32(handle).u32(cqe), 19, 8)
}

/// Completion events and asynchronous events that were reported.
pub fn destroy_cq(handle: u32) -> Command {
    first(answered().u32(handle).u32(0), 20, 8)
}

/// How many came, and from byte 8 on each in [`WC`] bytes.
pub fn poll_cq(handle: u32, max: u32) -> Command {
    first(answered().u32(handle).u32(max), 21, 8 + max as usize * WC)
}

/// Bytes of `struct ib_uverbs_wc`.
pub const WC: usize = 48;

/// Asks for an event.
pub fn req_notify_cq(handle: u32, solicited: bool) -> Command {
    first(Bytes::new().u32(handle).u32(solicited.into()), 23, 0)
}

/// Moderates events.
pub fn modify_cq(handle: u32, mask: u32, count: u16, period: u16) -> Command {
    second(Bytes::new().u32(handle).u32(mask).u16(count).u16(period).u32(0), 57, 0)
}

/// A queue pair that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateQp {
    /// The program's name for it, which events have.
    pub user: u64,
    /// Handle of the protection domain; for the receiving end of XRC, of the XRC domain.
    pub pd: u32,
    /// Handle of the send queue's completion queue.
    pub send_cq: u32,
    /// Handle of the receive queue's completion queue.
    pub recv_cq: u32,
    /// Handle of the shared receive queue.
    pub srq: Option<u32>,
    /// Work requests and entries: send, receive.
    pub max_wr: [u32; 2],
    /// Scatter/gather entries: send, receive.
    pub max_sge: [u32; 2],
    /// Bytes.
    pub max_inline: u32,
    /// Whether each send completes.
    pub signal_all: bool,
    /// `enum ibv_qp_type`.
    pub kind: u8,
    /// `enum ibv_qp_create_flags`.
    pub create_flags: u32,
    /// The QPN that packets are to have as their source.
    pub source_qpn: u32,
    /// Handle of a table of work queues.
    pub table: Option<u32>,
}

impl CreateQp {
    /// Handle, QPN, and from byte 8 on what was granted. Flags and tables need the second generation.
    pub fn command(&self, extended: bool) -> Command {
        let start = if extended { Bytes::new() } else { answered() };
        let [send_wr, recv_wr] = self.max_wr;
        let [send_sge, recv_sge] = self.max_sge;
        let what = start.u64(self.user).u32(self.pd).u32(self.send_cq).u32(self.recv_cq);
        let what = what.u32(self.srq.unwrap_or_default()).u32(send_wr).u32(recv_wr);
        let what = what.u32(send_sge).u32(recv_sge).u32(self.max_inline);
        let what =
            what.u8(self.signal_all.into()).u8(self.kind).u8(self.srq.is_some().into()).u8(0);
        if !extended {
            return first(what, 24, 32);
        }
        let what = what.u32(self.table.is_some().into()).u32(self.create_flags);
        second(what.u32(self.table.unwrap_or_default()).u32(self.source_qpn), 24, 40)
    }
}

/// Bytes of the fixed parts of creating a queue pair: request and response of each generation.
pub const CREATE_QP: [(usize, usize); 2] = [(56, 32), (64, 40)];

/// A queue pair of an XRC domain, made elsewhere: its handle.
pub fn open_qp(user: u64, xrcd: u32, qpn: u32, kind: u8) -> Command {
    first(answered().u64(user).u32(xrcd).u32(qpn).u8(kind).zeros(7), 40, 32)
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QpAttr {
    /// Where to.
    pub path: Path,
    /// The alternate path.
    pub alternate: Path,
    /// Q_Key.
    pub qkey: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// Rights.
    pub access: u32,
    /// Index of the P_Key, and of the alternate path's.
    pub pkey_index: [u16; 2],
    /// State, and current state.
    pub state: [u8; 2],
    /// `enum ibv_mtu`.
    pub path_mtu: u8,
    /// State of migration.
    pub path_mig_state: u8,
    /// Modify: whether to tell of SQD. Query: whether it drains.
    pub drain: u8,
    /// READs and atomics under way: as initiator, as target.
    pub max_rd_atomic: [u8; 2],
    /// Code of the RNR timer.
    pub min_rnr_timer: u8,
    /// Port.
    pub port: u8,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// Retries after RNR.
    pub rnr_retry: u8,
    /// The alternate path's port.
    pub alt_port: u8,
    /// The alternate path's local ACK timeout.
    pub alt_timeout: u8,
}

fn destination(bytes: Bytes, path: &Path) -> Bytes {
    let what = bytes.bytes(&path.dgid).u32(path.flow_label).u16(path.dlid).u16(0);
    let what = what.u8(path.sgid_index).u8(path.hop_limit).u8(path.traffic_class).u8(path.sl);
    what.u8(path.src_path_bits).u8(path.static_rate).u8(path.is_global).u8(path.port_num)
}

fn destination_of(response: Response<'_>, at: usize) -> Path {
    Path {
        dgid: response.part(at).unwrap_or_default(),
        flow_label: response.u32(at + 16),
        dlid: response.u16(at + 20),
        sgid_index: response.u8(at + 24),
        hop_limit: response.u8(at + 25),
        traffic_class: response.u8(at + 26),
        sl: response.u8(at + 27),
        src_path_bits: response.u8(at + 28),
        static_rate: response.u8(at + 29),
        is_global: response.u8(at + 30),
        port_num: response.u8(at + 31),
    }
}

impl QpAttr {
    /// Modifies a queue pair. With a rate it is of the second generation.
    pub fn modify(&self, handle: u32, mask: u32, rate: Option<u32>) -> Command {
        let what = destination(destination(Bytes::new(), &self.path), &self.alternate);
        let what = what.u32(handle).u32(mask).u32(self.qkey).u32(self.rq_psn).u32(self.sq_psn);
        let what = what.u32(self.dest_qpn).u32(self.access);
        let what = what.u16(self.pkey_index[0]).u16(self.pkey_index[1]);
        let what = what.u8(self.state[0]).u8(self.state[1]).u8(self.path_mtu);
        let what = what.u8(self.path_mig_state).u8(self.drain);
        let what = what.u8(self.max_rd_atomic[0]).u8(self.max_rd_atomic[1]).u8(self.min_rnr_timer);
        let what = what.u8(self.port).u8(self.timeout).u8(self.retry_cnt).u8(self.rnr_retry);
        let what = what.u8(self.alt_port).u8(self.alt_timeout).zeros(2);
        match rate {
            None => first(what, 26, 0),
            Some(rate) => second(what.u32(rate).u32(0), 26, 8),
        }
    }

    /// What [`query_qp`] answered, and from byte 64 on the capacities.
    pub fn read(response: Response<'_>) -> QpAttr {
        let [qkey, rq_psn, sq_psn, dest_qpn, access] =
            [84, 88, 92, 96, 100].map(|at| response.u32(at));
        QpAttr {
            path: destination_of(response, 0),
            alternate: destination_of(response, 32),
            qkey,
            rq_psn,
            sq_psn,
            dest_qpn,
            access,
            pkey_index: [response.u16(104), response.u16(106)],
            state: [response.u8(108), response.u8(109)],
            path_mtu: response.u8(110),
            path_mig_state: response.u8(111),
            drain: response.u8(112),
            max_rd_atomic: [response.u8(113), response.u8(114)],
            min_rnr_timer: response.u8(115),
            port: response.u8(116),
            timeout: response.u8(117),
            retry_cnt: response.u8(118),
            rnr_retry: response.u8(119),
            alt_port: response.u8(120),
            alt_timeout: response.u8(121),
        }
    }
}

/// Where [`query_qp`]'s response says whether each send completes.
pub const QUERY_QP_SIGNAL_ALL: usize = 122;

/// A queue pair's attributes.
pub fn query_qp(handle: u32, mask: u32) -> Command {
    first(answered().u32(handle).u32(mask), 25, 128)
}

/// Asynchronous events that were reported.
pub fn destroy_qp(handle: u32) -> Command {
    first(answered().u32(handle).u32(0), 27, 4)
}

/// A shared receive queue that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct CreateSrq {
    /// The program's name for it, which events have.
    pub user: u64,
    /// Handle of the protection domain.
    pub pd: u32,
    /// Entries.
    pub max_wr: u32,
    /// Scatter/gather entries.
    pub max_sge: u32,
    /// When to tell.
    pub limit: u32,
    /// Type, tags, and handles of the XRC domain and of the completion queue, for one that is not basic.
    pub special: Option<[u32; 4]>,
}

impl CreateSrq {
    /// Handle, entries, scatter/gather entries, and the number that XRC has.
    pub fn command(&self) -> Command {
        match self.special {
            None => {
                let what = answered().u64(self.user).u32(self.pd).u32(self.max_wr);
                first(what.u32(self.max_sge).u32(self.limit), 32, 16)
            }
            Some([kind, tags, xrcd, cq]) => {
                let what = answered().u64(self.user).u32(kind).u32(self.pd).u32(self.max_wr);
                first(what.u32(self.max_sge).u32(self.limit).u32(tags).u32(xrcd).u32(cq), 39, 16)
            }
        }
    }
}

/// Changes size or limit.
pub fn modify_srq(handle: u32, mask: u32, max_wr: u32, limit: u32) -> Command {
    first(Bytes::new().u32(handle).u32(mask).u32(max_wr).u32(limit), 33, 0)
}

/// Entries, scatter/gather entries, limit.
pub fn query_srq(handle: u32) -> Command {
    first(answered().u32(handle).u32(0), 34, 16)
}

/// Asynchronous events that were reported.
pub fn destroy_srq(handle: u32) -> Command {
    first(answered().u32(handle).u32(0), 35, 4)
}

/// Which queue work requests are posted to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Queue {
    /// A queue pair's send queue.
    Send,
    /// A queue pair's receive queue.
    Recv,
    /// A shared receive queue.
    Srq,
}

/// Posts work requests through the kernel, encoded by [`send_wr`] or [`recv_wr`]. The response is the number of the
/// first that was refused, from 1 on.
pub fn post(queue: Queue, handle: u32, requests: &[Vec<u8>], sges: &[u8]) -> Command {
    let (number, size) = match queue {
        Queue::Send => (28, SEND_WR),
        Queue::Recv => (29, RECV_WR),
        Queue::Srq => (36, RECV_WR),
    };
    let what = answered().u32(handle).u32(requests.len() as u32);
    let what = what.u32((sges.len() / SGE) as u32).u32(size as u32);
    first(requests.iter().fold(what, |what, wr| what.bytes(wr)).bytes(sges), number, 4)
}

/// The whole command for write(2) by which a driver whose requests lie in memory of its own tells of sends, answered
/// with 4 bytes at that address.
#[inline]
pub fn doorbell(handle: u32, response: u64) -> [u8; 32] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = response.to_ne_bytes();
    let [h0, h1, h2, h3] = handle.to_ne_bytes();
    let [c0, c1, c2, c3] = 28_u32.to_ne_bytes();
    // Words of the command and of its answer.
    let ([i0, i1], [o0, o1]) = (8_u16.to_ne_bytes(), 1_u16.to_ne_bytes());
    let [s0, s1, s2, s3] = (SEND_WR as u32).to_ne_bytes();
    [
        c0, c1, c2, c3, i0, i1, o0, o1, r0, r1, r2, r3, r4, r5, r6, r7, h0, h1, h2, h3, 0, 0, 0, 0,
        0, 0, 0, 0, s0, s1, s2, s3,
    ]
}

/// Bytes of `struct ib_uverbs_send_wr`, `ib_uverbs_recv_wr` and `ib_uverbs_sge`.
const SEND_WR: usize = 56;
const RECV_WR: usize = 16;
/// See above.
pub const SGE: usize = 16;

/// A send request, with the 32 bytes that its kind has.
pub fn send_wr(id: u64, sges: u32, opcode: u32, flags: u32, imm: u32, rest: [u8; 32]) -> Vec<u8> {
    Bytes::new().u64(id).u32(sges).u32(opcode).u32(flags).u32(imm).bytes(&rest).0
}

/// A receive request.
pub fn recv_wr(id: u64, sges: u32) -> Vec<u8> {
    Bytes::new().u64(id).u32(sges).u32(0).0
}

/// A work queue that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct CreateWq {
    /// The program's name for it, which events have.
    pub user: u64,
    /// Its type.
    pub kind: u32,
    /// Handle of the protection domain.
    pub pd: u32,
    /// Handle of the completion queue.
    pub cq: u32,
    /// Entries.
    pub max_wr: u32,
    /// Scatter/gather entries.
    pub max_sge: u32,
    /// Flags.
    pub flags: u32,
}

impl CreateWq {
    /// From byte 8 on: handle, entries, scatter/gather entries, number.
    pub fn command(&self) -> Command {
        let what = Bytes::new().u32(0).u32(self.kind).u64(self.user).u32(self.pd).u32(self.cq);
        second(what.u32(self.max_wr).u32(self.max_sge).u32(self.flags).u32(0), 52, 24)
    }
}

/// Changes a work queue.
pub fn modify_wq(mask: u32, handle: u32, state: u32, current: u32, flags: [u32; 2]) -> Command {
    let what = Bytes::new().u32(mask).u32(handle).u32(state).u32(current);
    second(what.u32(flags[0]).u32(flags[1]), 53, 0)
}

/// From byte 8 on: events that were reported.
pub fn destroy_wq(handle: u32) -> Command {
    second(Bytes::new().u32(0).u32(handle), 54, 16)
}

/// A table of work queues. From byte 8 on: handle, number.
pub fn create_table(log_size: u32, handles: &[u32]) -> Command {
    let what = handles.iter().fold(Bytes::new().u32(0).u32(log_size), |what, &h| what.u32(h));
    let odd = what.0.len() % 8;
    second(if odd == 0 { what } else { what.zeros(8 - odd) }, 55, 16)
}

/// Ends a table.
pub fn destroy_table(handle: u32) -> Command {
    second(Bytes::new().u32(0).u32(handle), 56, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_long_as_the_headers_structures() {
        let cq = CreateCq { user: 0, cqe: 1, vector: 0, channel: None, flags: 0 };
        let qp = CreateQp::default();
        let srq = CreateSrq { user: 0, pd: 0, max_wr: 1, max_sge: 1, limit: 0, special: None };
        let wq = CreateWq { user: 0, kind: 0, pd: 0, cq: 0, max_wr: 1, max_sge: 1, flags: 0 };
        let sizes = [
            (cq.command(), 32),
            (CreateCq { flags: 1, ..cq }.command(), 32),
            (qp.command(false), 56),
            (qp.command(true), 64),
            (open_qp(0, 0, 0, 0), 32),
            (QpAttr::default().modify(0, 0, None), 112),
            (QpAttr::default().modify(0, 0, Some(1)), 120),
            (query_qp(0, 0), 16),
            (srq.command(), 32),
            (CreateSrq { special: Some([1, 0, 0, 0]), ..srq }.command(), 48),
            (modify_srq(0, 0, 0, 0), 16),
            (wq.command(), 40),
            (modify_cq(0, 0, 0, 0), 16),
            (create_table(0, &[1]), 16),
            (post(Queue::Send, 0, &[send_wr(0, 1, 0, 0, 0, [0; 32])], &[0; 16]), 24 + 56 + 16),
        ];
        for (command, size) in sizes {
            assert_eq!(command.request.len(), size, "{command:?}");
        }
    }

    #[test]
    fn a_doorbell_is_a_post_of_nothing() {
        let written = post(Queue::Send, 0x1122, &[], &[]).written(&[], 0x7000_1000, 0).unwrap();
        assert_eq!(doorbell(0x1122, 0x7000_1000).as_slice(), written);
    }

    #[test]
    fn a_path_comes_back_as_it_went() {
        let path = Path {
            dgid: [7; 16],
            flow_label: 1,
            dlid: 2,
            sgid_index: 3,
            hop_limit: 4,
            traffic_class: 5,
            sl: 6,
            src_path_bits: 7,
            static_rate: 8,
            is_global: 1,
            port_num: 9,
        };
        let bytes = destination(Bytes::new(), &path);
        assert_eq!(bytes.0.len(), 32);
        assert_eq!(destination_of(Response(&bytes.0), 0), path);
    }
}
