//! One connection, and the table of all.

use std::collections::HashMap;

use ironverbs_wire::mad::Mad;
use ironverbs_wire::mad::cm::{Message, Rej, RejReason, Responded, Transport};
use ironverbs_wire::{Gid, Path};

use super::ListenerId;
use super::outbox::{Deadlines, Route, Timer};
use super::refusal::Refusal;
use crate::Instant;

/// Where a connection is in its life (IBA 12.9.5 and 12.9.7, with the message that was received
/// acknowledged or not in one state).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum State {
    /// Active: waits for a REP.
    ReqSent(Resend),
    /// Active: waits for the program to establish.
    RepRcvd,
    /// Passive: waits for the program to accept.
    ReqRcvd,
    /// Passive: waits for an RTU.
    RepSent(Resend),
    /// Waits for an end.
    Established,
    /// Waits for a DREP.
    DreqSent(Resend),
    /// Waits until no packet can be under way.
    TimeWait,
    /// Passive: refused, and kept to refuse again.
    Rejected,
}

impl State {
    /// Whether a peer has asked and the connection is not established.
    pub(super) fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqRcvd | Self::RepSent(_))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::ReqSent(_) => "waiting for a reply",
            Self::RepRcvd => "replied to, not established",
            Self::ReqRcvd => "requested, not answered",
            Self::RepSent(_) => "waiting for the peer to be ready",
            Self::Established => "established",
            Self::DreqSent(_) => "disconnecting",
            Self::TimeWait => "disconnected",
            Self::Rejected => "rejected",
        }
    }
}

/// How a message is repeated.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Resend {
    /// Times that are left.
    pub(super) left: u8,
    /// The peer has asked for more time. It may do so once for a message.
    pub(super) extended: bool,
    /// The peer's host refuses the message.
    pub(super) refusal: Option<Refusal>,
}

impl Resend {
    pub(super) fn new(times: u8) -> Self {
        Self { left: times, extended: false, refusal: None }
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: u32,
    /// The peer's communication ID; 0 until it is known.
    pub(super) remote_id: u32,
    pub(super) state: State,
    /// The program is not to hear of this any more.
    pub(super) released: bool,
    pub(super) is_active: bool,
    pub(super) route: Route,
    /// Transaction of the REQ, which REP, REJ, MRA and RTU belong to.
    pub(super) tid: u64,
    pub(super) transport: Transport,
    /// GUID of the local device; 0 on the passive side until it accepts.
    pub(super) ca_guid: u64,
    /// GUID of the peer's device; 0 until it is known.
    pub(super) remote_guid: u64,
    /// 0 on the passive side until it accepts.
    pub(super) qpn: u32,
    /// 0 until it is known.
    pub(super) remote_qpn: u32,
    /// Nanoseconds until a message is repeated.
    pub(super) timeout: u64,
    /// Times that a message is.
    pub(super) max_retries: u8,
    /// Nanoseconds to rest in the end.
    pub(super) timewait: u64,
    /// The last message sent, while it may have to be sent again.
    pub(super) sent: Option<Box<Mad>>,
    /// The listener whose backlog this counts against.
    pub(super) counted: Option<ListenerId>,
    pub(super) deadline: Option<Instant>,
}

impl Conn {
    pub(super) fn set_deadline(&mut self, deadlines: &mut Deadlines, at: Option<Instant>) {
        Timer::Conn(self.id).set(deadlines, &mut self.deadline, at);
    }

    /// A REJ of what was received last.
    pub(super) fn rej(&self, reason: RejReason) -> Rej {
        let message = match self.state {
            State::ReqRcvd => Responded::Req,
            State::RepRcvd => Responded::Rep,
            _ => Responded::Other,
        };
        Rej {
            local_comm_id: self.id,
            remote_comm_id: self.remote_id,
            message,
            info_len: 0,
            reason,
            info: [0; Rej::INFO],
            private_data: [0; Rej::PRIVATE_DATA],
        }
    }

    /// The REJ that says that we wait no longer. A peer whose ID we never learnt knows the
    /// connection by our GUID and ID (IBA 12.6.7.2).
    pub(super) fn timeout_rej(&self) -> Message {
        let mut rej = self.rej(RejReason::Timeout);
        let guid = self.ca_guid.to_be_bytes();
        rej.info[..guid.len()].copy_from_slice(&guid);
        rej.info_len = guid.len() as u8;
        Message::Rej(rej)
    }

    fn remote_id_key(&self) -> RemoteKey {
        RemoteKey { gid: self.route.path.dst, guid: self.remote_guid, number: self.remote_id }
    }

    fn remote_qpn_key(&self) -> RemoteKey {
        RemoteKey { gid: self.route.path.dst, guid: self.remote_guid, number: self.remote_qpn }
    }
}

/// A communication ID or QPN of a peer. The address is part of it, so that nobody at another
/// address can pass for the peer by naming its GUID.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub(super) struct RemoteKey {
    pub(super) gid: Gid,
    pub(super) guid: u64,
    pub(super) number: u32,
}

/// Why a message belongs to no connection.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Miss {
    /// There is none of this ID.
    Unknown,
    /// It is another peer's.
    WrongPeer,
}

/// All connections, by every name they have.
#[derive(Debug, Default)]
pub(super) struct Table {
    conns: HashMap<u32, Conn>,
    by_remote_id: HashMap<RemoteKey, u32>,
    by_remote_qpn: HashMap<RemoteKey, u32>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.conns.contains_key(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    /// Connections that wait for an answer from a host.
    pub(super) fn waiting_for(&self, dst: &Gid) -> Vec<u32> {
        let waits = |conn: &&Conn| {
            let state = conn.state;
            matches!(state, State::ReqSent(_) | State::RepSent(_) | State::DreqSent(_))
                && conn.route.path.dst == *dst
        };
        self.conns.values().filter(waits).map(|conn| conn.id).collect()
    }

    pub(super) fn insert(&mut self, conn: Conn) {
        self.conns.insert(conn.id, conn);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Conn> {
        let conn = self.conns.remove(&id)?;
        // A later connection of the same peer may have taken the name.
        for (names, key) in [
            (&mut self.by_remote_id, conn.remote_id_key()),
            (&mut self.by_remote_qpn, conn.remote_qpn_key()),
        ] {
            if names.get(&key) == Some(&id) {
                names.remove(&key);
            }
        }
        Some(conn)
    }

    /// Makes a connection known by its peer's names, which it has by now.
    pub(super) fn name(&mut self, id: u32) {
        if let Some(conn) = self.conns.get(&id) {
            self.by_remote_id.insert(conn.remote_id_key(), id);
            self.by_remote_qpn.insert(conn.remote_qpn_key(), id);
        }
    }

    /// The connection that a peer gave this ID.
    pub(super) fn by_remote_id(&self, key: &RemoteKey) -> Option<u32> {
        self.by_remote_id.get(key).copied()
    }

    /// The connection that a peer's QP has.
    pub(super) fn by_remote_qpn(&self, key: &RemoteKey) -> Option<u32> {
        self.by_remote_qpn.get(key).copied()
    }

    /// The connection that a message is about: `id` is what it says is ours, `remote_id` what it
    /// says is its sender's. Before that is known the transaction has to match.
    pub(super) fn find(
        &mut self,
        path: &Path,
        tid: u64,
        id: u32,
        remote_id: u32,
    ) -> Result<&mut Conn, Miss> {
        let conn = self.conns.get_mut(&id).ok_or(Miss::Unknown)?;
        let is_peer = match conn.state {
            State::ReqSent(_) => conn.tid == tid,
            _ => conn.remote_id == remote_id,
        };
        if is_peer && conn.route.is_from(path) { Ok(conn) } else { Err(Miss::WrongPeer) }
    }
}
