//! What is to be said for a process that dies without a word.

use ironverbs_wire::Path;
use ironverbs_wire::mad::cm::{Dreq, Message};

use super::conn::State;
use super::{Cm, Transmit};

/// The request to disconnect that an established connection's process would send if it could: all that somebody else
/// needs to send it when the process is dead.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Parting {
    /// From the local port to the peer's.
    pub path: Path,
    /// Partition.
    pub pkey: u16,
    /// Transaction ID of the request.
    pub tid: u64,
    /// The process's communication ID for the connection.
    pub comm_id: u32,
    /// The peer's.
    pub remote_comm_id: u32,
    /// The peer's queue pair.
    pub remote_qpn: u32,
}

impl Parting {
    /// The MAD.
    pub fn transmit(&self) -> Transmit {
        let dreq = Dreq {
            local_comm_id: self.comm_id,
            remote_comm_id: self.remote_comm_id,
            remote_qpn: self.remote_qpn,
            private_data: [0; Dreq::PRIVATE_DATA],
        };
        let mad = Message::Dreq(dreq).emit(self.tid);
        Transmit { path: self.path, pkey: self.pkey, mad }
    }
}

/// A change of what is left behind for a local queue pair.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Bequest {
    /// The queue pair's connection is established.
    Leave {
        /// The local queue pair.
        qpn: u32,
        /// What to say for it.
        parting: Parting,
    },
    /// Its connection is established no more.
    Revoke {
        /// The local queue pair.
        qpn: u32,
        /// The local communication ID of the connection.
        comm_id: u32,
    },
}

impl Cm {
    /// The next change of what is to be said should this process die, in order.
    pub fn poll_bequest(&mut self) -> Option<Bequest> {
        self.bequests.pop_front()
    }

    pub(super) fn bequeath(&mut self, id: u32) {
        let tid = self.ids.tid(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let parting = Parting {
            path: conn.route.path,
            pkey: conn.route.pkey,
            tid,
            comm_id: conn.id,
            remote_comm_id: conn.remote_id,
            remote_qpn: conn.remote_qpn,
        };
        let qpn = conn.qpn;
        self.bequests.push_back(Bequest::Leave { qpn, parting });
    }

    /// Takes it back, if the connection is still established.
    pub(super) fn disinherit(&mut self, id: u32) {
        let established = self.conns.get_mut(id).filter(|conn| conn.state == State::Established);
        if let Some(qpn) = established.map(|conn| conn.qpn) {
            self.bequests.push_back(Bequest::Revoke { qpn, comm_id: id });
        }
    }
}
