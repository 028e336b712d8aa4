//! What a queue pair counts.

use crate::device::Carrier;

/// Counters of one queue pair since it was created. Bytes are payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets sent, repeated ones and acknowledgements included.
    pub tx_packets: u64,
    /// Payload bytes sent, repeated ones included.
    pub tx_bytes: u64,
    /// Packets sent by reference: their payload is fetched by the peer.
    pub tx_references: u64,
    /// Requests that were completed with success.
    pub tx_messages: u64,
    /// Packets that were taken.
    pub rx_packets: u64,
    /// Payload bytes in packets that were taken.
    pub rx_bytes: u64,
    /// Messages received whole (SEND, WRITE, READ and atomic requests).
    pub rx_messages: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// Local ACK timeouts (IBA 9.7.6.1), each of which costs a retry.
    pub timeouts: u64,
    /// Probes of the oldest packet after a silence, which cost no retry.
    pub probes: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// PSN sequence NAKs sent.
    pub seq_naks_sent: u64,
    /// PSN sequence NAKs received.
    pub seq_naks_received: u64,
    /// Times the requester went back because a packet or a response was found missing.
    pub recoveries: u64,
    /// Request packets that had been received before.
    pub duplicates: u64,
    /// Packets dropped.
    pub dropped: Dropped,
    /// WRITEs, READs and atomics that were carried out at the peer without packets. They count as
    /// `tx_messages`; the peer, which took no part, counts nothing.
    pub direct: Direct,
}

/// Requests that the device carried out at the peer, by how it did.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Direct {
    /// The peer is of the same process.
    pub process: Carried,
    /// Both processes have the memory mapped.
    pub mapped: Carried,
    /// The kernel copied from one process to the other.
    pub kernel: Carried,
}

/// What went one way.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Carried {
    /// Requests.
    pub messages: u64,
    /// Their payload bytes.
    pub bytes: u64,
}

impl Direct {
    /// All of them.
    pub fn total(&self) -> Carried {
        let Direct { process, mapped, kernel } = *self;
        let ways = [process, mapped, kernel];
        Carried {
            messages: ways.iter().map(|way| way.messages).sum(),
            bytes: ways.iter().map(|way| way.bytes).sum(),
        }
    }

    pub(super) fn count(&mut self, carrier: Carrier, bytes: u64) {
        let way = match carrier {
            Carrier::Process => &mut self.process,
            Carrier::Mapped => &mut self.mapped,
            Carrier::Kernel => &mut self.kernel,
        };
        way.messages += 1;
        way.bytes += bytes;
    }
}

/// Packets dropped, by reason.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Not in a state that takes it.
    pub state: u64,
    /// Of another service, or an operation that this side does not take.
    pub service: u64,
    /// Not from the peer this QP is connected to.
    pub peer: u64,
    /// P_Key of another partition.
    pub pkey: u64,
    /// Wrong Q_Key (UD).
    pub qkey: u64,
    /// Ahead of the PSN expected; the sender repeats it, or on UC lost it.
    pub sequence: u64,
    /// Of a message that an unreliable QP had lost part of, or could not take.
    pub message: u64,
    /// No receive request was posted (UC, UD).
    pub no_receive: u64,
    /// Acknowledges or answers what was not asked, or no longer matters.
    pub stale: u64,
}

impl Dropped {
    /// Packets for which nobody was there: no QP that takes them, or another's peer. What else is dropped the sender
    /// hears of, or does not wait for.
    pub fn unwanted(&self) -> u64 {
        self.state + self.service + self.peer + self.pkey
    }

    /// Packets dropped for whatever reason.
    pub fn total(&self) -> u64 {
        let Dropped { state, service, peer, pkey, qkey, sequence, message, no_receive, stale } =
            *self;
        state + service + peer + pkey + qkey + sequence + message + no_receive + stale
    }
}
