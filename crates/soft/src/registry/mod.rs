//! The processes of one user on one host: who has which slot, socket and QPN blocks.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ironverbs_sys::diag::Owner;
use ironverbs_sys::udp::RxSocket;
use ironverbs_wire::Path;

/// Why a process could not join the group of its user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The UDP port belongs to somebody who is not of the group: another user's process, a program
    /// of this user that is not ours, or the kernel's rxe.
    #[error("UDP port {port} is taken")]
    PortTaken {
        /// The port asked for.
        port: u16,
        /// Who has it, as far as that can be seen.
        owner: Option<Owner>,
    },
    /// The group exists, but none of its processes answers (all are stopped, as in a debugger).
    #[error("no process of the group answers; stopped: {pids:?}")]
    Unresponsive {
        /// The processes asked.
        pids: Vec<u32>,
    },
    /// All slots are taken.
    #[error("all {slots} slots of the group are taken")]
    Full {
        /// How many there are.
        slots: u16,
    },
    /// The group was made by an incompatible version.
    #[error("the group speaks version {theirs}, this library {ours}")]
    Version {
        /// The group's.
        theirs: u32,
        /// This library's.
        ours: u32,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
}

/// The slot's 16,384 QPNs are all claimed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("all QPN blocks of slot {slot} are claimed")]
pub struct Exhausted {
    /// This process's slot.
    pub slot: u16,
}

/// 4,096 queue pair numbers of this process: the upper 12 bits of a QPN.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QpnBlock(u16);

impl QpnBlock {
    /// The upper 12 bits of its QPNs.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The QPN with the lower 12 bits `index`.
    pub fn qpn(self, index: u16) -> u32 {
        u32::from(self.0) << 12 | u32::from(index & 0xfff)
    }
}

impl fmt::Display for QpnBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}", self.0)
    }
}

/// How to join.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JoinOptions {
    /// The UDP port, 4791 unless a test wants its own.
    pub port: u16,
    /// The prefix of the names of the group's unix sockets, `ironverbs` unless a test wants its own.
    pub namespace: String,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions { port: ironverbs_wire::ROCE_PORT, namespace: "ironverbs".into() }
    }
}

/// A process of the group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Member {
    /// Its slot.
    pub slot: u16,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// QPN blocks claimed.
    pub blocks: u8,
}

/// This process's membership.
#[derive(Debug)]
pub struct Registry {
    socket: RxSocket,
    slot: u16,
}

impl Registry {
    /// Joins the group of this user and network namespace, or starts it. Blocks for milliseconds,
    /// at worst some seconds.
    pub fn join(options: &JoinOptions) -> Result<Registry, JoinError> {
        let _ = options;
        Err(JoinError::Io { doing: "join", source: io::ErrorKind::Unsupported.into() })
    }

    /// This process's slot.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The slot's UDP socket: packets for the slot's QPN blocks arrive here.
    pub fn socket(&self) -> &RxSocket {
        &self.socket
    }

    /// Claims a block of QPNs.
    pub fn claim_block(&self) -> Result<QpnBlock, Exhausted> {
        Err(Exhausted { slot: self.slot })
    }

    /// Gives a block back.
    pub fn release_block(&self, block: QpnBlock) {
        let _ = block;
    }

    /// Hands a packet that arrived here, but is for `dest_qpn` of another process, to that process.
    /// Best effort, as the network is; never blocks. Returns whether it was handed over.
    pub fn forward(&self, dest_qpn: u32, path: &Path, src_port: u16, segment: &[u8]) -> bool {
        let _ = (dest_qpn, path, src_port, segment);
        false
    }

    /// Readable when [`Registry::service`] has something to do.
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers newcomers, notices deaths, and passes on the packets that other members forwarded:
    /// `on_forwarded(path, source port, packet)`. Never blocks for long.
    pub fn service(&self, on_forwarded: &mut dyn FnMut(&Path, u16, &[u8])) {
        let _ = on_forwarded;
    }

    /// The living members, this process included, by slot.
    pub fn members(&self) -> Vec<Member> {
        Vec::new()
    }
}
