//! The vocabulary of the verbs: states, requests, completions, attributes.
//!
//! Discriminants are those of `<infiniband/verbs.h>`, so that the C ABI converts by value.

use bitflags::bitflags;
use ironverbs_wire::{Gid, Mtu, Path};

/// State of a queue pair (IBA 10.3.1, `enum ibv_qp_state`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum QpState {
    /// Created, or reset: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; nothing is sent or received.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained (or draining); no new sends are started.
    Sqd = 4,
    /// Send queue error: an unreliable QP's send failed; receives go on.
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

/// Transport service of a queue pair (`enum ibv_qp_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// The requesting side of an extended reliable connection (IBA A14): it has no receives.
    XrcSend = 9,
    /// The responding side of one: it has no sends, and its receives are those of the SRQs of its
    /// XRC domain that requests name.
    XrcRecv = 10,
}

impl QpType {
    /// Whether what is sent is acknowledged, and sent again until it is.
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Whether it can send requests.
    pub const fn has_requester(self) -> bool {
        !matches!(self, QpType::XrcRecv)
    }

    /// Whether it takes requests of peers.
    pub const fn has_responder(self) -> bool {
        !matches!(self, QpType::XrcSend)
    }
}

/// Opcode of a send work request (`enum ibv_wr_opcode`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WrOpcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE that also consumes a receive request and carries immediate data.
    WriteWithImm = 1,
    /// SEND.
    Send = 2,
    /// SEND with immediate data.
    SendWithImm = 3,
    /// RDMA READ.
    Read = 4,
    /// 64-bit compare and swap.
    CompareSwap = 5,
    /// 64-bit fetch and add.
    FetchAdd = 6,
    /// Invalidation of an rkey of this side.
    LocalInv = 7,
    /// Binding of a memory window.
    BindMw = 8,
    /// SEND that invalidates an rkey of the responder.
    SendWithInv = 9,
    /// RDMA WRITE of eight bytes that is seen whole, RC only.
    AtomicWrite = 15,
}

impl WrOpcode {
    /// Whether it concerns this side alone, and sends nothing.
    pub const fn is_local(self) -> bool {
        matches!(self, WrOpcode::LocalInv | WrOpcode::BindMw)
    }
}

/// Status of a completion (`enum ibv_wc_status`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// What completed (`enum ibv_wc_opcode`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    AtomicWrite = 9,
    Recv = 128,
    RecvWriteWithImm = 129,
}

bitflags! {
    /// Access rights of a region or queue pair (`enum ibv_access_flags`).
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The local adapter may write.
        const LOCAL_WRITE = 1;
        /// RDMA WRITE may write.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA READ may read.
        const REMOTE_READ = 1 << 2;
        /// Remote atomics may read and write.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Remote addresses start at 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// Placement flush, global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Placement flush, persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Relaxed ordering (first of the optional range, bits 20 to 29).
        const RELAXED_ORDERING = 1 << 20;
    }

    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1;
        /// Completes visibly even where the QP does not signal all.
        const SIGNALED = 1 << 1;
        /// Raises a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// The data is copied at post time.
        const INLINE = 1 << 3;
        /// IP checksum offload (raw QPs only).
        const IP_CSUM = 1 << 4;
    }

    /// Flags of a completion (`enum ibv_wc_flags`).
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
    pub struct WcFlags: u32 {
        /// A GRH (or its stand-in of 40 bytes) precedes the payload.
        const GRH = 1;
        /// Immediate data is valid.
        const WITH_IMM = 1 << 1;
        /// IP checksum was checked.
        const IP_CSUM_OK = 1 << 2;
        /// An rkey was invalidated by the peer.
        const WITH_INV = 1 << 3;
    }

    /// Which attributes a modify names (`enum ibv_qp_attr_mask`).
    #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AttrMask: u32 {
        /// State.
        const STATE = 1;
        /// State the caller believes in.
        const CUR_STATE = 1 << 1;
        /// Event when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Remote operations allowed.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Primary address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries.
        const RETRY_CNT = 1 << 10;
        /// RNR retries.
        const RNR_RETRY = 1 << 11;
        /// First PSN expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics held as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// Capabilities.
        const CAP = 1 << 19;
        /// Destination QPN.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// One element of a scatter/gather list: `len` bytes at virtual address `addr` of the region `lkey`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Virtual address (or offset, for zero-based regions).
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// Where a UD send goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Resolved address.
    pub path: Path,
    /// Destination QPN.
    pub qpn: u32,
    /// Q_Key; one with its top bit set stands for the QP's own (IBA 10.2.5).
    pub qkey: u32,
}

/// What a send work request does besides its local data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// The caller's identifier.
    pub wr_id: u64,
    /// The operation.
    pub opcode: WrOpcode,
    /// Flags.
    pub flags: SendFlags,
    /// Immediate data, as it stands on the wire (network order, opaque).
    pub imm: [u8; 4],
    /// The rkey that `SendWithInv` or `LocalInv` invalidates.
    pub invalidate_rkey: u32,
    /// Remote address of WRITE, READ and atomics.
    pub remote_addr: u64,
    /// Remote key of WRITE, READ and atomics.
    pub rkey: u32,
    /// Compare value, or the number to add.
    pub compare_add: u64,
    /// Swap value.
    pub swap: u64,
    /// Destination, UD only.
    pub ud: Option<UdDest>,
    /// The peer's SRQ that the request is for, XRC only, 24 bits.
    pub xrc_srqn: u32,
}

/// What a [`WrOpcode::BindMw`] does (`struct ibv_mw_bind_info`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's key after it; what it had names the window by all but its lowest byte.
    pub rkey: u32,
    /// Local key of the region.
    pub lkey: u32,
    /// Where the window begins, as the region's keys name it.
    pub addr: u64,
    /// Bytes; 0, of windows of type 1, ends what was bound.
    pub len: u64,
    /// Rights of peers, and whether they count from 0.
    pub access: Access,
}

impl SendWr {
    /// A request with nothing but that: what else an operation needs is set by the caller.
    #[inline]
    pub const fn new(wr_id: u64, opcode: WrOpcode, flags: SendFlags) -> SendWr {
        SendWr {
            wr_id,
            opcode,
            flags,
            imm: [0; 4],
            invalidate_rkey: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            ud: None,
            xrc_srqn: 0,
        }
    }

    /// The request that binds a window. A request has no fields of its own for it, so as to be no longer than others.
    pub fn bind(wr_id: u64, flags: SendFlags, bind: &Bind) -> SendWr {
        SendWr {
            wr_id,
            opcode: WrOpcode::BindMw,
            flags,
            imm: [0; 4],
            invalidate_rkey: bind.lkey,
            remote_addr: bind.addr,
            rkey: bind.rkey,
            compare_add: bind.len,
            swap: bind.access.bits().into(),
            ud: None,
            xrc_srqn: 0,
        }
    }

    /// What it binds, if that is what it does.
    pub fn binding(&self) -> Option<Bind> {
        (self.opcode == WrOpcode::BindMw).then_some(Bind {
            rkey: self.rkey,
            lkey: self.invalidate_rkey,
            addr: self.remote_addr,
            len: self.compare_add,
            access: Access::from_bits_truncate(self.swap as u32),
        })
    }
}

/// A work completion (`struct ibv_wc`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Identifier of the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was; meaningful on errors too.
    pub opcode: WcOpcode,
    /// Why it failed, as a stable code; 0 on success. See [`VendorErr`].
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data as received.
    pub imm: [u8; 4],
    /// The rkey the peer invalidated.
    pub invalidated_rkey: u32,
    /// QPN of the local QP.
    pub qpn: u32,
    /// QPN of the sender (UD).
    pub src_qpn: u32,
    /// Flags.
    pub flags: WcFlags,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// LID of the sender (UD on InfiniBand links).
    pub slid: u16,
    /// The low seven bits of the LID that the sender used (UD on InfiniBand links).
    pub dlid_path_bits: u8,
    /// The receive asked for a solicited event (not part of `ibv_wc`).
    pub solicited: bool,
}

impl Wc {
    /// A successful completion with nothing but that.
    #[inline]
    pub const fn new(wr_id: u64, opcode: WcOpcode, qpn: u32) -> Wc {
        Wc {
            wr_id,
            status: WcStatus::Success,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm: [0; 4],
            invalidated_rkey: 0,
            qpn,
            src_qpn: 0,
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            slid: 0,
            dlid_path_bits: 0,
            solicited: false,
        }
    }
}

/// Stable codes in `vendor_err` that say exactly why a request failed. Never renumbered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum VendorErr {
    /// No error.
    None = 0,
    /// Flushed because the QP is in the error state.
    Flushed = 1,
    /// An lkey names no region.
    LkeyUnknown = 2,
    /// The region belongs to another protection domain.
    LkeyPd = 3,
    /// The SGE reaches outside its region.
    LkeyRange = 4,
    /// The region may not be written locally.
    LkeyAccess = 5,
    /// The message is larger than the port or path MTU, or 2^31, allows.
    TooLong = 6,
    /// The receive buffer is too small for the message.
    RecvTooSmall = 7,
    /// No acknowledgement within the retries.
    RetryExceeded = 8,
    /// The responder stayed not ready within the RNR retries.
    RnrRetryExceeded = 9,
    /// The responder answered NAK invalid request.
    NakInvalidRequest = 10,
    /// The responder answered NAK remote access error.
    NakRemoteAccess = 11,
    /// The responder answered NAK remote operational error.
    NakRemoteOperational = 12,
    /// The responder answered NAK invalid RD request.
    NakInvalidRdRequest = 13,
    /// A response did not fit the request (length, opcode).
    BadResponse = 14,
    /// The rkey to invalidate is not one this QP may invalidate.
    InvalidateRefused = 15,
    /// A memory fault under a registered region.
    MemoryFault = 16,
    /// The operation is not allowed on this QP type or by its attributes.
    OpNotAllowed = 17,
    /// Remote atomics, READ or WRITE refused: responder side reason.
    RemoteAccessHere = 18,
    /// The peer's process on this host was killed.
    PeerKilled = 19,
    /// A window cannot be bound with that key: it is not the window's, or it is bound already, or the region's is none.
    BindKey = 20,
    /// Window, region and queue pair are not of one protection domain.
    BindPd = 21,
    /// The range is not within the region, or empty.
    BindRange = 22,
    /// The region does not allow windows, or not with these rights.
    BindAccess = 23,
    /// The responder, on this host: the rkey names no region, nor a window that is bound for this queue pair.
    PeerKey = 24,
    /// The responder, on this host: the region is of another protection domain than its queue pair.
    PeerPd = 25,
    /// The responder, on this host: the range is not within its region.
    PeerRange = 26,
    /// The responder, on this host: its region does not give the right.
    PeerRegionAccess = 27,
    /// The responder, on this host: its queue pair does not give the right.
    PeerQpAccess = 28,
    /// The responder, on this host: the address of an atomic is no multiple of 8.
    PeerAlignment = 29,
    /// The responder, on this host: the memory under its region is gone.
    PeerMemory = 30,
    /// The responder, on this host: more READs and atomics than agreed.
    PeerResources = 31,
    /// The responder, on this host: its receive is too small for the message.
    PeerRecvTooSmall = 32,
    /// The responder, on this host: the memory of its receive cannot be written.
    PeerRecvMemory = 33,
    /// The responder, on this host: the rkey may not be invalidated by this queue pair.
    PeerInvalidate = 34,
    /// The responder, on this host: its XRC domain has no such shared receive queue.
    PeerQueue = 35,
}

impl VendorErr {
    /// What a responder says of itself, where its word is one of those.
    pub(crate) fn of_peer(code: u32) -> Option<VendorErr> {
        const CODES: [VendorErr; 12] = [
            VendorErr::PeerKey,
            VendorErr::PeerPd,
            VendorErr::PeerRange,
            VendorErr::PeerRegionAccess,
            VendorErr::PeerQpAccess,
            VendorErr::PeerAlignment,
            VendorErr::PeerMemory,
            VendorErr::PeerResources,
            VendorErr::PeerRecvTooSmall,
            VendorErr::PeerRecvMemory,
            VendorErr::PeerInvalidate,
            VendorErr::PeerQueue,
        ];
        CODES.into_iter().find(|known| *known as u32 == code)
    }
}

/// Why a memory access was refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The key names no region.
    Key,
    /// The region belongs to another protection domain.
    Pd,
    /// The range is not within the region.
    Range,
    /// The region or QP does not grant this access.
    Access,
    /// An atomic's address is not a multiple of 8.
    Alignment,
    /// The memory under the region is gone.
    Memory,
}

/// Capabilities of a queue pair (`struct ibv_qp_cap`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests.
    pub max_recv_wr: u32,
    /// Elements of a send's list.
    pub max_send_sge: u32,
    /// Elements of a receive's list.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// Address vector as the caller gives it (`struct ibv_ah_attr`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct AhAttr {
    /// Destination GID.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit; 0 counts as 64 on RoCE.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Destination LID (InfiniBand links only).
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// A GRH is present; RoCE requires it.
    pub is_global: bool,
    /// Port, from 1.
    pub port_num: u8,
}

/// Path migration state (`enum ibv_mig_state`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum MigState {
    #[default]
    Migrated = 0,
    Rearm = 1,
    Armed = 2,
}

/// Attributes of a queue pair (`struct ibv_qp_attr`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to move to, or the state found.
    pub state: QpState,
    /// State the caller believes the QP to be in.
    pub cur_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Remote operations allowed.
    pub access: Access,
    /// Capabilities.
    pub cap: QpCap,
    /// Primary address vector.
    pub ah: AhAttr,
    /// Alternate address vector.
    pub alt_ah: AhAttr,
    /// P_Key index.
    pub pkey_index: u16,
    /// Alternate P_Key index.
    pub alt_pkey_index: u16,
    /// Raise SQ_DRAINED.
    pub en_sqd_async_notify: bool,
    /// Draining is under way.
    pub sq_draining: bool,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics held as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code sent to peers (IBA table 45; 0 is 655.36 ms).
    pub min_rnr_timer: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// Local ACK timeout: 4.096 us * 2^n; 0 is for ever.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 is for ever.
    pub rnr_retry: u8,
    /// Alternate port.
    pub alt_port_num: u8,
    /// Alternate timeout.
    pub alt_timeout: u8,
    /// Rate limit in kbit/s.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        QpAttr {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::M1024,
            path_mig_state: MigState::Migrated,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: Access::empty(),
            cap: QpCap::default(),
            ah: AhAttr::default(),
            alt_ah: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        }
    }
}
