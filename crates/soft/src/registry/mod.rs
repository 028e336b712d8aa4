//! The processes of one user in one network namespace: who has which slot, socket and QPN blocks.
//!
//! There is no daemon, and no member is special. Each has a *slot*; with it come a UDP socket of the
//! group that shares port 4791 (SO_REUSEPORT), and the QPN blocks whose number modulo 1,024 is the
//! slot, to which a classic BPF program steers packets by their destination QPN. What members share
//! is the *table* in a memfd, under a robust lock, and the *vault*, a socket queue in which the
//! slots' sockets are kept open. Sockets belong to slots, not to processes: they are bound in the
//! order of their slots and never closed while a member lives, because the kernel fills the hole
//! that a closed one leaves with the last.
//!
//! - A newcomer connects to the members' abstract unix sockets in turn; whoever is of the same user
//!   (SO_PEERCRED) and answers first hands table and vault over. A member that is silent is passed
//!   over; if all are silent, because they are stopped, the newcomer helps itself to duplicates of
//!   their descriptors (pidfd_getfd(2)), where ptrace(2) would be allowed.
//! - If there is no member, the newcomer founds the group: see [`join`].
//! - A slot is free when its tenant leaves or is dead. Newcomers look at every tenant; besides, each
//!   member watches the pidfd of the next one, so that a death is noticed when nobody comes.
//! - Slot 0 has no tenant: packets for QPN 1, of the connection manager, come to its socket, which every
//!   member reads. Whoever gets one hands it to whom it is for: the one that listens (see [`ports`])
//!   or gave out the communication ID.
//! - The death of a process at any point leaves nothing to clean up but what the lock's next holder
//!   repairs ([`Group::repair`]). When the last member dies, the table, the sockets and the port go.
//! - A child of fork(2) is no member: it finds the descriptors closed, and its copy of the
//!   [`Registry`] does nothing.

mod fds;
mod group;
mod groups;
mod join;
mod life;
mod mail;
mod names;
mod observe;
mod peers;
mod ports;
mod presence;
mod seat;
mod service;
mod slots;
mod table;
#[cfg(test)]
mod tests;
mod vault;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::diag::Owner;
use ironverbs_sys::process::{self, ForkGuard};
use ironverbs_sys::udp::RxSocket;
use ironverbs_wire::Path;

use crate::local::Lanes;
use crate::status::{Board, View};
use life::Coroner;
use mail::Mail;
use names::Names;
pub use observe::{Observer, users};
pub(crate) use peers::{Peer, Tenancy, ding};
pub(crate) use ports::Claim;
pub(crate) use presence::Neighbour;
pub(crate) use service::Membership;
use table::Identity;
pub(crate) use table::Presence;

/// Slots of a group: processes that can be members at once.
pub const SLOTS: u16 = 1024;

/// QPN blocks of a slot.
pub const BLOCKS_PER_SLOT: u16 = 4096 / SLOTS;

/// The slot that packets for a QPN are steered to.
pub fn slot_of(qpn: u32) -> u16 {
    (qpn >> 12) as u16 % SLOTS
}

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
    /// Whether to take part in the local path: to make lanes and to take those of others.
    pub lanes: bool,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions { port: ironverbs_wire::ROCE_PORT, namespace: "ironverbs".into(), lanes: true }
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
///
/// Dropping it leaves the group: the slot is free for a newcomer, its socket stays with the group.
#[derive(Debug)]
pub struct Registry {
    /// In a child of fork(2) it must not be dropped: its descriptors are closed, their numbers may
    /// be others'.
    member: ManuallyDrop<Membership>,
    fork: ForkGuard,
}

impl Registry {
    /// Joins the group of this user and network namespace, or starts it. Takes milliseconds; some
    /// seconds at worst, when there are members but none answers.
    ///
    /// # Errors
    /// See [`JoinError`]. With [`JoinError::PortTaken`] the local path works, the wire path does not.
    pub fn join(options: &JoinOptions) -> Result<Registry, JoinError> {
        let io = |doing| move |source| JoinError::Io { doing, source };
        let uid = process::uid();
        let coroner = Coroner { names: Names::new(options, uid), uid, own: Identity::own() };
        let fork = ForkGuard::new().map_err(io("marking the process"))?;
        let (group, seat) = join::join(options, &coroner)?;
        let member = Membership::new(group, seat, coroner, options.lanes)
            .map_err(io("serving the group"))?;
        member.leave_groups();
        Ok(Registry { member: ManuallyDrop::new(member), fork })
    }

    /// This process's slot.
    pub fn slot(&self) -> u16 {
        self.member.seat.slot
    }

    /// The slot's UDP socket: packets for the slot's QPN blocks arrive here, and, by GRO, now and
    /// then a packet for another's.
    pub fn socket(&self) -> &RxSocket {
        &self.member.seat.socket
    }

    /// The socket of QP1, which all members read.
    pub fn management_socket(&self) -> &RxSocket {
        &self.member.seat.management
    }

    /// Claims a block of QPNs: of the slot's, the one that has rested longest.
    ///
    /// # Errors
    /// [`Exhausted`] when all are claimed, and in a child of fork(2).
    pub fn claim_block(&self) -> Result<QpnBlock, Exhausted> {
        let slot = self.slot();
        if self.fork.is_child() {
            return Err(Exhausted { slot });
        }
        // Where none has rested longer than another, any will do but always the same.
        let first = monotonic_ns() as u16 % BLOCKS_PER_SLOT;
        self.member.claim_block(first).ok_or(Exhausted { slot })
    }

    /// Gives a block back. One that this process has not claimed is left alone.
    pub fn release_block(&self, block: QpnBlock) {
        if !self.fork.is_child() {
            self.member.release_block(block);
        }
    }

    /// Hands a packet that arrived here, but is for `dest_qpn` of another process, to that process.
    /// Best effort, as the network is; never blocks. Returns whether it was handed over.
    pub fn forward(&self, dest_qpn: u32, path: &Path, src_port: u16, segment: &[u8]) -> bool {
        let slot = slot_of(dest_qpn);
        if self.fork.is_child() || slot == self.slot() {
            return false;
        }
        let member = &self.member;
        if member.group.table.tenant(slot).is_none() {
            return false;
        }
        let mail = Mail::Packet { path: *path, src_port, bytes: segment };
        let sent = member
            .coroner
            .names
            .mailbox(slot)
            .and_then(|name| mail.send(&member.seat.mailbox, &name));
        sent.is_ok()
    }

    /// Hands a whole packet for QP1 to the process in a slot. Best effort; never blocks. Returns whether it was handed
    /// over.
    pub(crate) fn hand_to(&self, slot: u16, path: &Path, src_port: u16, packet: &[u8]) -> bool {
        let Some(member) = self.member().filter(|member| member.group.table.tenant(slot).is_some())
        else {
            return false;
        };
        let mail = Mail::Packet { path: *path, src_port, bytes: packet };
        let name = member.coroner.names.mailbox(slot);
        name.and_then(|name| mail.send(&member.seat.mailbox, &name)).is_ok()
    }

    /// LID and service level of the subnet manager, of InfiniBand links; 0: none is known.
    pub(crate) fn subnet_manager(&self) -> (u16, u8) {
        self.member().map_or((0, 0), |member| member.group.table.subnet_manager())
    }

    /// Tells all processes who manages the subnet.
    pub(crate) fn set_subnet_manager(&self, lid: u16, sl: u8) {
        if let Some(member) = self.member() {
            member.group.table.set_subnet_manager(lid, sl);
        }
    }

    /// The slots that have a process, as far as is known.
    pub(crate) fn tenants(&self) -> Vec<u16> {
        let Some(member) = self.member() else { return Vec::new() };
        let table = &member.group.table;
        (0..table.sockets()).filter(|slot| table.tenant(*slot).is_some()).collect()
    }

    /// Whether a process is in the slot, as far as is known.
    pub(crate) fn has_tenant(&self, slot: u16) -> bool {
        self.member().is_some_and(|member| member.group.table.tenant(slot).is_some())
    }

    /// The same to all other processes.
    pub(crate) fn hand_to_all(&self, path: &Path, src_port: u16, packet: &[u8]) {
        let Some(member) = self.member() else { return };
        let own = member.seat.slot;
        for slot in (0..member.group.table.sockets()).filter(|slot| *slot != own) {
            self.hand_to(slot, path, src_port, packet);
        }
    }

    /// Readable when [`Registry::service`] has something to do: an epoll instance.
    pub fn service_fd(&self) -> BorrowedFd<'_> {
        self.member.service_fd()
    }

    /// Answers newcomers, notices deaths, and passes on the packets that other members forwarded:
    /// `on_forwarded(path, source port, packet)`. The process must call it whenever
    /// [`Registry::service_fd`] is readable. Takes no longer than its work; a call while another
    /// thread is in it returns at once.
    pub fn service(&self, on_forwarded: &mut dyn FnMut(&Path, u16, &[u8])) {
        if !self.fork.is_child() {
            self.member.serve(on_forwarded);
        }
    }

    /// The local path.
    pub fn lanes(&self) -> Lanes<'_> {
        Lanes::new(self)
    }

    /// Opens this process's window, in which it tells others of itself.
    ///
    /// # Errors
    /// As mmap(2); NotConnected in a child of fork(2).
    pub(crate) fn board(&self) -> io::Result<Board> {
        let member = self.member().ok_or(io::ErrorKind::NotConnected)?;
        let (group, slot) = (&member.group, member.seat.slot);
        let tenant = group.table.tenant(slot).ok_or(io::ErrorKind::NotConnected)?;
        Board::open(&group.status, slot, tenant.tenure)
    }

    /// What the members tell of themselves; None in a child of fork(2).
    pub(crate) fn view(&self) -> Option<View<'_>> {
        Some(View::new(&self.member()?.group.status))
    }

    /// None in a child of fork(2).
    pub(crate) fn member(&self) -> Option<&Membership> {
        (!self.fork.is_child()).then_some(&*self.member)
    }

    /// The living members, this process included, by slot.
    pub fn members(&self) -> Vec<Member> {
        if self.fork.is_child() {
            return Vec::new();
        }
        self.member.members()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return;
        }
        self.announce(&Presence::default());
        // SAFETY: taken here only, and `self.member` is not used after.
        let member = unsafe { ManuallyDrop::take(&mut self.member) };
        member.leave();
    }
}
