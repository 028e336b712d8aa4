//! What the program decides about a connection.

use ironverbs_wire::mad::cm::{Ece, IpHeader, ServiceId, SidrStatus, Transport};
use ironverbs_wire::{Gid, Mtu, Path};

/// The addresses that a listener takes requests to.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum LocalAddr {
    /// Every one.
    Any,
    /// Every IPv4 address.
    AnyIpv4,
    /// Every IPv6 address.
    AnyIpv6,
    /// This one.
    Gid(Gid),
}

impl LocalAddr {
    /// Whether requests to `gid` are for this listener.
    pub fn contains(&self, gid: Gid) -> bool {
        match self {
            Self::Any => true,
            Self::AnyIpv4 => gid.is_ipv4(),
            Self::AnyIpv6 => !gid.is_ipv4(),
            Self::Gid(own) => *own == gid,
        }
    }

    /// Whether some request would be for both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gid(gid), wider) | (wider, Self::Gid(gid)) => wider.contains(*gid),
            (Self::AnyIpv4, Self::AnyIpv6) | (Self::AnyIpv6, Self::AnyIpv4) => false,
            _ => true,
        }
    }
}

/// What a REQ says. Where the format is narrower than the field, the largest value that fits is
/// sent. Of an extended reliable connection the local QP only sends, so that what would be for the
/// peer's sending (`responder_resources`, the retry counts, `srq`) is not said.
#[derive(Copy, Clone, Debug)]
pub struct Connect<'a> {
    /// From the local port to the peer's; MADs and the connection itself take it.
    pub path: Path,
    /// Partition.
    pub pkey: u16,
    /// Whom to reach.
    pub service_id: ServiceId,
    /// Addresses and port to send in front of the private data, as the port spaces of rdma_cm
    /// have it.
    pub ip: Option<IpHeader>,
    /// GUID of the local device.
    pub ca_guid: u64,
    /// The local QP.
    pub qpn: u32,
    /// The kind of QP.
    pub transport: Transport,
    /// The PSN that the peer's QP is to start with: the first that the local QP expects.
    pub starting_psn: u32,
    /// READs and atomics that the local QP serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the local QP issues at a time.
    pub initiator_depth: u8,
    /// The local QP counts the peer's receives.
    pub flow_control: bool,
    /// Retries of the peer's QP when acknowledgements stay away, up to 7.
    pub retry_count: u8,
    /// Retries of the peer's QP when the local one is not ready, up to 7, which is for ever.
    pub rnr_retry_count: u8,
    /// The local QP has a shared receive queue.
    pub srq: bool,
    /// Options of a vendor, for the peer to take up or not.
    pub ece: Ece,
    /// Path MTU.
    pub mtu: Mtu,
    /// Rate of the path as in `enum ibv_rate`; 0 is the port's.
    pub packet_rate: u8,
    /// Local ACK timeout of both QPs, 4.096 us * 2^n. Also the time that the connection rests
    /// when it has ended.
    pub ack_timeout: u8,
    /// Longest time of a packet on the path, 4.096 us * 2^n. An answer is waited for twice this
    /// long, besides the time the peer has to answer.
    pub packet_life_time: u8,
    /// Time the peer has to answer, 4.096 us * 2^n.
    pub remote_cm_response_timeout: u8,
    /// Time within which we answer, 4.096 us * 2^n.
    pub local_cm_response_timeout: u8,
    /// Times a message is repeated, up to 15.
    pub max_cm_retries: u8,
    /// At most 92 bytes, with `ip` 56.
    pub private_data: &'a [u8],
}

impl<'a> Connect<'a> {
    /// A request like those of the kernel's rdma_cm: 4.3 s to answer, 15 repetitions, a packet
    /// life of 1.07 s.
    pub fn new(path: Path, service_id: ServiceId, ca_guid: u64, qpn: u32) -> Self {
        Self {
            path,
            pkey: 0xffff,
            service_id,
            ip: None,
            ca_guid,
            qpn,
            transport: Transport::Rc,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ece: Ece::default(),
            mtu: Mtu::M1024,
            packet_rate: 0,
            ack_timeout: 19,
            packet_life_time: 18,
            remote_cm_response_timeout: 20,
            local_cm_response_timeout: 20,
            max_cm_retries: 15,
            private_data: &[],
        }
    }
}

/// What a REP says. Of an extended reliable connection the local QP only receives, so that
/// `initiator_depth` and `flow_control` are not said, and its receives are always shared.
#[derive(Copy, Clone, Debug)]
pub struct Accept<'a> {
    /// GUID of the local device.
    pub ca_guid: u64,
    /// The local QP.
    pub qpn: u32,
    /// The PSN that the peer's QP is to start with: the first that the local QP expects.
    pub starting_psn: u32,
    /// READs and atomics that the local QP serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that the local QP issues at a time.
    pub initiator_depth: u8,
    /// Longest time until the local QP acknowledges, 4.096 us * 2^n.
    pub target_ack_delay: u8,
    /// The local QP counts the peer's receives.
    pub flow_control: bool,
    /// Retries of the peer's QP when the local one is not ready, up to 7, which is for ever.
    pub rnr_retry_count: u8,
    /// The local QP has a shared receive queue.
    pub srq: bool,
    /// Those of the peer's options that are taken up.
    pub ece: Ece,
    /// At most 196 bytes.
    pub private_data: &'a [u8],
}

impl<'a> Accept<'a> {
    /// A reply like those of the kernel, with an acknowledgement delay of 134 ms.
    pub fn new(ca_guid: u64, qpn: u32) -> Self {
        Self {
            ca_guid,
            qpn,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: 15,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ece: Ece::default(),
            private_data: &[],
        }
    }
}

/// What a SIDR_REQ says and how long its answer is waited for.
#[derive(Copy, Clone, Debug)]
pub struct Resolve<'a> {
    /// From the local port to the peer's.
    pub path: Path,
    /// Partition.
    pub pkey: u16,
    /// Whom to reach.
    pub service_id: ServiceId,
    /// Addresses and port to send in front of the private data.
    pub ip: Option<IpHeader>,
    /// Nanoseconds until the request is repeated.
    pub timeout: u64,
    /// Times that it is.
    pub max_retries: u8,
    /// At most 216 bytes, with `ip` 180.
    pub private_data: &'a [u8],
}

impl<'a> Resolve<'a> {
    /// A request like those of the kernel's rdma_cm: repeated 15 times, every 4.096 s.
    pub fn new(path: Path, service_id: ServiceId) -> Self {
        Self {
            path,
            pkey: 0xffff,
            service_id,
            ip: None,
            timeout: 4_096_000_000,
            max_retries: 15,
            private_data: &[],
        }
    }
}

/// What a SIDR_REP says.
#[derive(Copy, Clone, Debug)]
pub struct SidrAnswer<'a> {
    /// Whether the service is here.
    pub status: SidrStatus,
    /// Its QP.
    pub qpn: u32,
    /// The Q_Key of that QP.
    pub qkey: u32,
    /// At most 136 bytes.
    pub private_data: &'a [u8],
}
