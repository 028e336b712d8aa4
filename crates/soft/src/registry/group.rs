//! The group as every member holds it, how it is handed on, and how it is put right after a death.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ironverbs_sys::bpf;
use ironverbs_sys::lock::Guard;
use ironverbs_sys::process::PidFd;
use ironverbs_sys::shm::Memfd;
use ironverbs_sys::udp::{BindOptions, RxSocket};
use ironverbs_sys::unix::Connection;

use super::fds::{Foreign, wildcard_sockets};
use super::seat::Estate;
use super::slots;
use super::table::{self, Table, Tenant};
use super::vault::Vault;
use super::{JoinError, SLOTS};
use crate::status::{self, View};

/// Starts the one message that hands the group over; the version follows.
const HELLO: [u8; 4] = *b"irv\n";

/// How long a dying process may take to close its sockets.
const CLOSING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Group {
    pub(super) port: u16,
    pub(super) memfd: Memfd,
    pub(super) table: Table,
    pub(super) vault: Vault,
    /// What each member tells of itself.
    pub(super) status: Memfd,
}

fn io_error(doing: &'static str) -> impl FnOnce(io::Error) -> JoinError {
    move |source| JoinError::Io { doing, source }
}

impl Group {
    /// A new group, without a socket yet.
    pub(super) fn create(port: u16, only_v4: bool) -> io::Result<Group> {
        let vault = Vault::create()?;
        let (memfd, table) = Table::create(port, only_v4, vault.inodes()?)?;
        Ok(Group { port, memfd, table, vault, status: status::create()? })
    }

    /// Hands the group to a newcomer, who must be of the same user: that is the caller's to check.
    pub(super) fn hand_over(&self, newcomer: &Connection) -> io::Result<()> {
        let mut hello = [0; 8];
        hello[..4].copy_from_slice(&HELLO);
        hello[4..].copy_from_slice(&table::VERSION.to_le_bytes());
        let [tx, rx] = self.vault.ends();
        newcomer.send(&hello, &[self.memfd.as_fd(), tx, rx, self.status.as_fd()])
    }

    /// Takes the group from a member; None: it has not answered yet.
    pub(super) fn take_over(member: &Connection, port: u16) -> Result<Option<Group>, JoinError> {
        let doing = "taking the registry over";
        let mut hello = [0; 8];
        let Some(received) = member.recv(&mut hello).map_err(io_error(doing))? else {
            return Ok(None);
        };
        let (start, version) = hello.split_at(4);
        if received.len != hello.len() || start != HELLO {
            return Err(io_error(doing)(io::ErrorKind::InvalidData.into()));
        }
        let theirs = version.try_into().map_or(0, u32::from_le_bytes);
        if theirs != table::VERSION {
            return Err(JoinError::Version { theirs, ours: table::VERSION });
        }
        let mut fds = received.fds.into_iter();
        match (fds.next(), fds.next(), fds.next(), fds.next()) {
            (Some(memfd), Some(tx), Some(rx), Some(status)) => {
                Group::assemble(port, memfd, status, |_| Ok((tx, rx))).map(Some)
            }
            _ => Err(io_error(doing)(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Takes the group from a member that does not answer, because it is stopped: duplicates of its
    /// descriptors, where ptrace(2) of it would be allowed.
    pub(super) fn take_from(process: PidFd, pid: u32, port: u16) -> Result<Group, JoinError> {
        let doing = "taking the registry from a stopped process";
        let foreign = Foreign::list(process, pid).map_err(io_error(doing))?;
        let name = table::NAME.to_str().unwrap_or_default();
        let memfd = foreign.memfd(name).map_err(io_error(doing))?;
        let status = foreign.memfd(status::NAME.to_str().unwrap_or_default());
        let status = status.map_err(io_error(doing))?;
        Group::assemble(port, memfd, status, |[tx, rx]| {
            Ok((foreign.socket(tx)?, foreign.socket(rx)?))
        })
    }

    fn assemble(
        port: u16,
        memfd: OwnedFd,
        status: OwnedFd,
        vault: impl FnOnce([u64; 2]) -> io::Result<(OwnedFd, OwnedFd)>,
    ) -> Result<Group, JoinError> {
        let doing = "opening the registry";
        let memfd = Memfd::received(memfd).map_err(io_error(doing))?;
        let table = Table::open(&memfd, port)?;
        let (tx, rx) = vault(table.vault()).map_err(io_error(doing))?;
        let status = Memfd::received(status).map_err(io_error(doing))?;
        Ok(Group { port, memfd, table, vault: Vault::received(tx, rx), status })
    }

    /// What a dead process has left to be done; to be taken under the lock, before its slot is vacated.
    pub(super) fn inherit(&self, slot: u16, tenant: &Tenant) -> Option<Estate> {
        let wills = View::new(&self.status).wills(slot, tenant.tenure);
        (!wills.is_empty()).then_some((slot, wills))
    }

    /// Takes the registry's lock, and puts right what its last holder left half done if that died.
    ///
    /// # Errors
    /// TimedOut: somebody holds it, stopped. Otherwise what keeps it from being put right.
    pub(super) fn lock(&self, timeout: Duration) -> io::Result<Guard<'_>> {
        // Whether its last holder died says less than the table: who was to put it right may have given up.
        let (lock, _) = self.table.lock(timeout)?;
        slots::repair(&UnderLock { group: self, lock: &lock })?;
        Ok(lock)
    }

    /// The slot's socket, emptied of what came for a tenant before.
    pub(super) fn socket(&self, lock: &Guard<'_>, slot: u16) -> Result<RxSocket, JoinError> {
        let socket = self.shared_socket(lock, slot)?;
        // More than a receive buffer holds; an endless stream must not keep us here.
        let drained = bpf::drain(socket.as_fd(), 16_384);
        drained.map_err(io_error("emptying the slot's socket"))?;
        Ok(socket)
    }

    /// The slot's socket with what is in it, which others read, too.
    pub(super) fn shared_socket(&self, lock: &Guard<'_>, slot: u16) -> Result<RxSocket, JoinError> {
        let missing = io::ErrorKind::NotFound;
        let fd = self.vault.socket(lock, slot).and_then(|fd| fd.ok_or(missing.into()));
        fd.map(RxSocket::from).map_err(io_error("taking the slot's socket"))
    }

    /// Adds a socket, and with it a slot, to the group; None: there are as many as there may be.
    pub(super) fn add_slot(&self, lock: &Guard<'_>) -> Result<Option<u16>, JoinError> {
        let slot = self.table.sockets();
        if slot >= SLOTS {
            return Ok(None);
        }
        slots::add(&UnderLock { group: self, lock }).map(Some)
    }

    fn await_sockets(&self, count: usize) -> io::Result<()> {
        let start = Instant::now();
        while wildcard_sockets(self.port).is_some_and(|bound| bound > count) {
            if start.elapsed() > CLOSING {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The group with its lock held.
struct UnderLock<'a> {
    group: &'a Group,
    lock: &'a Guard<'a>,
}

impl slots::World for UnderLock<'_> {
    type Socket = RxSocket;
    type Error = JoinError;

    fn sockets(&self) -> u16 {
        self.group.table.sockets()
    }

    fn set_sockets(&self, count: u16) {
        self.group.table.set_sockets(count);
    }

    fn creating(&self) -> bool {
        self.group.table.creating()
    }

    fn set_creating(&self, creating: bool) {
        self.group.table.set_creating(creating);
    }

    fn bind(&self, slot: u16) -> Result<RxSocket, JoinError> {
        let port = self.group.port;
        let only_v4 = self.group.table.only_v4();
        let options = BindOptions { port, reuseport: true, only_v4, ..BindOptions::default() };
        let socket = RxSocket::bind_with(&options).map_err(|error| taken(error, port))?;
        if slot == 0 {
            bpf::attach_reuseport_cbpf(socket.as_fd(), SLOTS).map_err(io_error("steering"))?;
        }
        Ok(socket)
    }

    fn store(&self, slot: u16, socket: RxSocket) -> Result<(), JoinError> {
        let stored = self.group.vault.store(self.lock, slot, socket.as_fd());
        stored.map_err(io_error("storing a socket"))
    }

    fn is_stored(&self, slot: u16) -> io::Result<bool> {
        self.group.vault.socket(self.lock, slot).map(|socket| socket.is_some())
    }

    fn await_bound(&self, count: u16) -> io::Result<()> {
        self.group.await_sockets(count.into())
    }
}

/// What it means that the port could not be bound.
pub(super) fn taken(error: io::Error, port: u16) -> JoinError {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            JoinError::PortTaken { port, owner: ironverbs_sys::diag::udp_port_owner(port) }
        }
        _ => JoinError::Io { doing: "binding the port", source: error },
    }
}
