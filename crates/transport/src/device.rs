//! What a queue pair needs from the device around it.

use crate::verbs::{Access, Bind, Fault, Sge, Wc};
use ironverbs_wire::Path;

/// A point in time: nanoseconds of a monotonic clock, real or simulated.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant, `nanoseconds` later; saturates.
    pub fn after(self, nanoseconds: u64) -> Instant {
        Instant(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds since `earlier`, 0 if that lies ahead.
    pub fn since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Which completion queue of the QP.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Send CQ.
    Send,
    /// Receive CQ.
    Recv,
}

/// What is counted of a QP (`enum ibv_qp_attach_comp_cntr_op`, by the numbers of its bits).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SENDs of this side.
    Send = 0,
    /// Receives, of SENDs and of immediate data.
    Recv = 1,
    /// RDMA READs of this side.
    Read = 2,
    /// RDMA READs of the peer.
    RemoteRead = 3,
    /// RDMA WRITEs of this side, with immediate data or without.
    Write = 4,
    /// RDMA WRITEs of the peer, with immediate data or without.
    RemoteWrite = 5,
}

impl Operation {
    /// Every one, in the order of their numbers.
    pub const ALL: [Operation; 6] = [
        Operation::Send,
        Operation::Recv,
        Operation::Read,
        Operation::RemoteRead,
        Operation::Write,
        Operation::RemoteWrite,
    ];
}

/// Asynchronous events of a QP (`enum ibv_event_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum QpEvent {
    /// The QP moved to the error state on its own (IBV_EVENT_QP_FATAL).
    Fatal,
    /// A request was invalid (IBV_EVENT_QP_REQ_ERR).
    RequestError,
    /// A peer's request broke an access rule (IBV_EVENT_QP_ACCESS_ERR).
    AccessError,
    /// First packet while in RTR (IBV_EVENT_COMM_EST).
    CommunicationEstablished,
    /// The send queue drained (IBV_EVENT_SQ_DRAINED).
    SendQueueDrained,
    /// The last receive of the SRQ's share was consumed (IBV_EVENT_QP_LAST_WQE_REACHED).
    LastWqeReached,
}

/// A 64-bit atomic on the responder's memory, in host order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// A receive request taken from a shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWqe {
    /// The caller's identifier.
    pub wr_id: u64,
    /// Where the data goes.
    pub sges: Vec<Sge>,
}

/// A WRITE, READ or atomic that the device may carry out by itself, without packets: all requests
/// before it are complete.
#[derive(Copy, Clone, Debug)]
pub struct OneSided<'a> {
    /// What is to be done.
    pub action: Action<'a>,
    /// Address at the peer, as `rkey` has it.
    pub va: u64,
    /// Key of the peer's region.
    pub rkey: u32,
    /// Bytes: more than 0, at most 2^31; 8 of an atomic.
    pub len: u64,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// PSN that the request would have: the one that the peer expects, if the two are connected.
    pub psn: u32,
}

/// What a [`OneSided`] does.
#[derive(Copy, Clone, Debug)]
pub enum Action<'a> {
    /// RDMA WRITE of what is in these elements.
    Write(&'a [Sge]),
    /// RDMA WRITE of these bytes.
    WriteInline(&'a [u8]),
    /// RDMA READ into these elements.
    Read(&'a [Sge]),
    /// An atomic, whose result goes into these elements, in the byte order of the host.
    Atomic(Atomic, &'a [Sge]),
}

/// How a device carried out a [`OneSided`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The peer's memory is this process's.
    Process,
    /// Memory that both processes have mapped.
    Mapped,
    /// The kernel copied between the two processes.
    Kernel,
}

/// Bytes of a process's memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where they are.
    pub addr: u64,
    /// How many.
    pub len: u32,
}

/// Pieces that one packet's payload has at most, where it is named by reference.
pub const PIECES: usize = 4;

/// Which payloads a sink takes by reference: the receiving device fetches them from the sender's
/// memory, which belongs to the request until it is acknowledged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ByReference {
    /// Bytes of the shortest message that is worth it.
    pub least: u64,
    /// Bytes that one packet names at most.
    pub most: u32,
}

/// Why the payload of a packet in hand, named by reference, was not placed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PullError {
    /// The access is refused here, as that of a payload by value would be.
    Fault(Fault),
    /// It could not be fetched, for whatever reason: the peer is asked to send it by value, which
    /// shows whose memory is at fault, if any.
    Elsewhere,
}

/// The device as one queue pair sees it during a call. The protection domain is the QP's own.
///
/// Every access is checked again where it happens: a region may be deregistered between two packets.
pub trait Device {
    /// Whether `sge` lies within a region of this PD, writable if `write`. Zero-length SGEs are not checked.
    fn check_local(&mut self, sge: &Sge, write: bool) -> Result<(), Fault>;
    /// Copies `dst.len()` bytes from `offset` bytes into `sge`.
    fn gather(&mut self, sge: &Sge, offset: u32, dst: &mut [u8]) -> Result<(), Fault>;
    /// Copies `src` to `offset` bytes into `sge`.
    fn scatter(&mut self, sge: &Sge, offset: u32, src: &[u8]) -> Result<(), Fault>;

    /// Whether `rkey` grants `need` on `len` bytes at `va`.
    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, need: Access) -> Result<(), Fault>;
    /// Reads for an RDMA READ (rights checked again).
    fn read_remote(&mut self, rkey: u32, va: u64, dst: &mut [u8]) -> Result<(), Fault>;
    /// Writes for an RDMA WRITE (rights checked again).
    fn write_remote(&mut self, rkey: u32, va: u64, src: &[u8]) -> Result<(), Fault>;
    /// Runs an atomic (rights and alignment checked); returns the value before.
    fn atomic(&mut self, rkey: u32, va: u64, op: Atomic) -> Result<u64, Fault>;
    /// Carries out a request of a connected QP at the peer, if that is possible: wholly, with all
    /// the checks that the peer's responder would make. None, with nothing done that packets would not
    /// do again: it goes by packets, and what is wrong with it is found on the way.
    ///
    /// On an unreliable QP requests before it may still be on their way as packets; the device looks
    /// whether they are.
    fn carry_out(&mut self, request: &OneSided<'_>) -> Option<Carrier> {
        let _ = request;
        None
    }
    /// Whether [`carry_out`](Device::carry_out) would do this request if those before it were complete, as far as
    /// can be told: then it is waited for that.
    fn could_carry_out(&mut self, request: &OneSided<'_>) -> bool {
        let _ = request;
        false
    }
    /// Invalidates `rkey` for a SEND with invalidate.
    fn invalidate(&mut self, rkey: u32) -> Result<(), Fault>;

    /// Binds a memory window to part of a region, for this QP where it is of type 2.
    fn bind(&mut self, _bind: &Bind) -> Result<(), Fault> {
        Err(Fault::Key)
    }
    /// Ends what a window of type 2 is bound to, at the wish of this side.
    fn invalidate_local(&mut self, _rkey: u32) -> Result<(), Fault> {
        Err(Fault::Key)
    }

    /// Where in this process `len` bytes from `offset` bytes into `sge` on are, to be named to a sink
    /// that takes payloads by reference.
    fn locate(&mut self, _sge: &Sge, _offset: u32, _len: u32) -> Result<Piece, Fault> {
        Err(Fault::Memory)
    }
    /// Peers must not take any more what this QP has named by reference: the program gets the memory
    /// back.
    fn revoke(&mut self) {}
    /// Fetches `len` bytes of the payload of the packet in hand, from byte `from` of it on, to `offset`
    /// bytes into `sge`.
    fn pull(&mut self, _from: u64, _sge: &Sge, _offset: u32, _len: u32) -> Result<(), PullError> {
        Err(PullError::Elsewhere)
    }
    /// Fetches `len` bytes, all of the payload of the packet in hand, for an RDMA WRITE (rights checked
    /// again).
    fn pull_remote(&mut self, _rkey: u32, _va: u64, _len: u32) -> Result<(), PullError> {
        Err(PullError::Elsewhere)
    }

    /// Makes `srqn`, of the QP's XRC domain, the SRQ that this and later calls are about: receives
    /// are taken from it, their completions go to its CQ, and memory is checked against its
    /// protection domain (IBA A14). False, with none chosen, where the domain has no such SRQ.
    /// XRC_RECV only.
    fn select_srq(&mut self, srqn: u32) -> bool {
        let _ = srqn;
        false
    }
    /// Takes the next receive request of the QP's SRQ into `wqe`; false when there is none.
    fn srq_take(&mut self, wqe: &mut RecvWqe) -> bool;

    /// The next completion of a send covers so many requests, counted since RESET: itself and all
    /// before it, unsignaled ones included. Their places in the queue are the program's again once
    /// it has read that completion (IBA 10.8.5.1).
    fn covers(&mut self, _requests: u64) {}

    /// Adds a completion. One of a receive whose SRQ is gone meanwhile goes with it.
    fn complete(&mut self, queue: Queue, wc: Wc);
    /// An operation of a QP that is [watched](crate::qp::Qp::watch) has ended, visibly or not: with success, having
    /// moved so many bytes, or (None) with an error. Told before its completion is added.
    fn ended(&mut self, operation: Operation, bytes: Option<u64>) {
        let _ = (operation, bytes);
    }
    /// Raises an asynchronous event.
    fn event(&mut self, event: QpEvent);
}

/// Where outgoing packets go. A packet is reserved, filled and committed; one that is reserved and
/// not committed is as if it had never been.
pub trait Sink {
    /// Space for a packet of `len` bytes from the BTH up to, excluding, the ICRC, which the sink adds.
    /// None: no more can be taken now; the QP stays ready and is asked again later.
    fn reserve(&mut self, path: &Path, dest_qpn: u32, len: usize) -> Option<&mut [u8]>;
    /// Sends the packet reserved last.
    fn commit(&mut self);

    /// Which payloads may be named by reference; None: none.
    fn by_reference(&self) -> Option<ByReference> {
        None
    }
    /// As [`reserve`](Sink::reserve), of a packet whose `len` bytes are headers and whose payload is
    /// these pieces, [`PIECES`] at most. Only of a sink that takes them.
    fn reserve_reference(
        &mut self,
        _path: &Path,
        _dest_qpn: u32,
        _len: usize,
        _pieces: &[Piece],
    ) -> Option<&mut [u8]> {
        None
    }
}
