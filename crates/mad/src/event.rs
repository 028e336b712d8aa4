//! What the program hears of.

use ironverbs_wire::mad::cm::{
    Drep, Dreq, Ece, IpHeader, Rej, RejReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
    SidrStatus, Transport,
};
use ironverbs_wire::{Mtu, Path};

use crate::{ConnId, ListenerId, SidrId};

/// Something that a peer did or failed to do. Private data is the whole field of the message,
/// zero-padded: its length is not on the wire.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Event {
    /// A peer asks for a connection: [`accept`](crate::Cm::accept) or
    /// [`reject`](crate::Cm::reject) it.
    Request(Box<Request>),
    /// A request has to make room for one of a sender that is known to have its address. If the program has not looked at it,
    /// [`abandon`](crate::Cm::abandon) it: its sender asks again. If it has, there is nothing to do.
    Displaced {
        /// The connection.
        conn: ConnId,
    },
    /// The peer accepts: [`establish`](crate::Cm::establish) the connection when the QP is ready,
    /// or [`reject`](crate::Cm::reject) it.
    Reply(Box<Reply>),
    /// The peer, which had been accepted, is ready. Its private data is all zero if this was found
    /// out by other signs than its message.
    Established {
        /// The connection.
        conn: ConnId,
        /// Of the RTU.
        private_data: Box<[u8; Rtu::PRIVATE_DATA]>,
    },
    /// The peer refuses. The connection is gone.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// Reason, additional information and private data.
        rej: Box<Rej>,
    },
    /// The connection has not come about. It is gone.
    Failed {
        /// The connection.
        conn: ConnId,
        /// Why.
        failure: Failure,
    },
    /// The connection has ended, and its QP rests until `TimewaitExit`.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// By whom.
        by: Disconnect,
    },
    /// No packet of the connection can be under way any more. It is gone.
    TimewaitExit {
        /// The connection.
        conn: ConnId,
    },
    /// A peer asks for the QP of a datagram service:
    /// [`sidr_answer`](crate::Cm::sidr_answer) it.
    SidrRequest(Box<SidrRequest>),
    /// As [`Event::Displaced`]: [`sidr_abandon`](crate::Cm::sidr_abandon) it.
    SidrDisplaced {
        /// The request.
        sidr: SidrId,
    },
    /// The answer to a [`resolve`](crate::Cm::resolve). The request is gone.
    SidrReply(Box<SidrReply>),
    /// No answer came to a [`resolve`](crate::Cm::resolve). The request is gone.
    SidrFailed {
        /// The request.
        sidr: SidrId,
        /// Why: [`Failure::NoReply`] or [`Failure::Refused`].
        failure: Failure,
    },
}

/// Why a connection has not come about.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Failure {
    /// The REQ was not answered.
    NoReply,
    /// The peer's host has nobody who could answer, and says so ([`refused`](crate::Cm::refused)).
    Refused,
    /// The REP was not answered.
    NotReady,
    /// The REP named a QP that is connected already. The peer has lost its memory; the old
    /// connection is being ended, and a new attempt may succeed.
    StaleReply,
}

/// How a connection has ended.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Disconnect {
    /// The peer asked for it.
    Peer(Box<[u8; Dreq::PRIVATE_DATA]>),
    /// We asked for it and the peer agreed.
    Confirmed(Box<[u8; Drep::PRIVATE_DATA]>),
    /// We asked for it and the peer never answered.
    NoAnswer,
    /// The peer holds no such connection.
    Rejected(RejReason),
    /// The peer was known to be gone ([`Cm::lose`](crate::Cm::lose)).
    Lost,
}

/// A REQ, from our point of view.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Request {
    /// The connection to be.
    pub conn: ConnId,
    /// Who was asked for.
    pub listener: ListenerId,
    /// The service that was asked for.
    pub service_id: ServiceId,
    /// Addresses and port, if the service ID is that of a port. They are those of the packet.
    pub ip: Option<IpHeader>,
    /// From the local port to the peer's.
    pub path: Path,
    /// Partition.
    pub pkey: u16,
    /// GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The kind of QP to connect.
    pub transport: Transport,
    /// The peer's QP.
    pub remote_qpn: u32,
    /// The PSN that the local QP is to start with, as its peer asks (kernel rxe's captures show whose it is).
    pub starting_psn: u32,
    /// READs and atomics that the peer's QP would issue at a time: what the local QP may have to
    /// serve.
    pub responder_resources: u8,
    /// READs and atomics that the peer's QP serves at a time: the most that the local QP may
    /// issue.
    pub initiator_depth: u8,
    /// The peer's QP counts the receives of the local one.
    pub flow_control: bool,
    /// Retries of the local QP when acknowledgements stay away.
    pub retry_count: u8,
    /// Retries of the local QP when the peer's is not ready.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Options of a vendor that the peer offers or has taken up.
    pub ece: Ece,
    /// Path MTU.
    pub mtu: Mtu,
    /// Rate of the path as in `enum ibv_rate`.
    pub packet_rate: u8,
    /// Service level of the path.
    pub sl: u8,
    /// Local ACK timeout, 4.096 us * 2^n.
    pub ack_timeout: u8,
    /// Whole private data; the addresses, if any, are its first bytes.
    pub field: [u8; Req::PRIVATE_DATA],
}

impl Request {
    /// What the consumer sent: 92 bytes, or 56 after addresses.
    pub fn private_data(&self) -> &[u8] {
        consumers(&self.field, self.ip.as_ref())
    }
}

/// A REP, from our point of view.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Reply {
    /// The connection.
    pub conn: ConnId,
    /// GUID of the peer's device.
    pub remote_ca_guid: u64,
    /// The peer's QP.
    pub remote_qpn: u32,
    /// The PSN that the local QP is to start with, as its peer asks (kernel rxe's captures show whose it is).
    pub starting_psn: u32,
    /// READs and atomics that the peer's QP issues at a time: what the local QP may have to serve.
    pub responder_resources: u8,
    /// READs and atomics that the peer's QP serves at a time: the most that the local QP may
    /// issue.
    pub initiator_depth: u8,
    /// Longest time until the peer's QP acknowledges, 4.096 us * 2^n.
    pub target_ack_delay: u8,
    /// The peer's QP counts the receives of the local one.
    pub flow_control: bool,
    /// Retries of the local QP when the peer's is not ready.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Options of a vendor that the peer offers or has taken up.
    pub ece: Ece,
    /// What the consumer sent.
    pub private_data: [u8; Rep::PRIVATE_DATA],
}

/// A SIDR_REQ.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct SidrRequest {
    /// The request.
    pub sidr: SidrId,
    /// Who was asked for.
    pub listener: ListenerId,
    /// The service that was asked for.
    pub service_id: ServiceId,
    /// Addresses and port, if the service ID is that of a port. They are those of the packet.
    pub ip: Option<IpHeader>,
    /// From the local port to the peer's.
    pub path: Path,
    /// Partition of the datagrams to come.
    pub pkey: u16,
    /// Whole private data; the addresses, if any, are its first bytes.
    pub field: [u8; SidrReq::PRIVATE_DATA],
}

impl SidrRequest {
    /// What the consumer sent: 216 bytes, or 180 after addresses.
    pub fn private_data(&self) -> &[u8] {
        consumers(&self.field, self.ip.as_ref())
    }
}

/// A SIDR_REP.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct SidrReply {
    /// The request, which is gone.
    pub sidr: SidrId,
    /// The answer; QPN and Q_Key mean something if it is [`SidrStatus::VALID`].
    pub status: SidrStatus,
    /// QP of the service.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// What the consumer sent.
    pub private_data: [u8; SidrRep::PRIVATE_DATA],
}

fn consumers<'a>(field: &'a [u8], ip: Option<&IpHeader>) -> &'a [u8] {
    let used = ip.map_or(0, |_| IpHeader::LEN);
    field.get(used..).unwrap_or_default()
}
