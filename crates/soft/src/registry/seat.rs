//! Taking a slot.

use std::io;
use std::time::Duration;

use ironverbs_sys::udp::RxSocket;
use ironverbs_sys::unix::{Datagrams, Listener};

use super::group::Group;
use super::life::{Coroner, Life};
use super::{JoinError, SLOTS};
use crate::status::Will;

/// The lock is held for a millisecond at most by a process that runs; by a stopped one, as long as
/// it is stopped.
const LOCK: Duration = Duration::from_secs(2);

/// Newcomers that may wait to be answered.
const BACKLOG: u16 = 64;

/// The slot whose socket is QP1's. It has no tenant.
pub(super) const MANAGEMENT_SLOT: u16 = 0;

/// A slot and what goes with it.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) slot: u16,
    pub(super) socket: RxSocket,
    /// QP1's, which every member reads.
    pub(super) management: RxSocket,
    pub(super) entry: Listener,
    pub(super) mailbox: Datagrams,
    /// What the dead of whom this is the heir have left to be done.
    pub(super) estates: Vec<Estate>,
}

/// The last wills of the process that had a slot.
pub(crate) type Estate = (u16, Vec<Will>);

/// Takes the slot that has been free for the longest time, else adds one to the group.
pub(super) fn take(group: &Group, coroner: &Coroner) -> Result<Seat, JoinError> {
    let io = |doing| move |source| JoinError::Io { doing, source };
    let table = &group.table;
    let lock = group.lock(LOCK).map_err(io("locking the registry"))?;
    let (mut free, mut estates) = (Vec::new(), Vec::new());
    if table.sockets() == MANAGEMENT_SLOT {
        group.add_slot(&lock)?;
    }
    for slot in MANAGEMENT_SLOT + 1..table.sockets() {
        match table.tenant(slot) {
            None => free.push(slot),
            Some(tenant) => {
                if matches!(coroner.examine(slot, &tenant), Life::Dead) {
                    estates.extend(group.inherit(slot, &tenant));
                    table.vacate(slot);
                    free.push(slot);
                }
            }
        }
    }
    free.sort_by_key(|&slot| table.freed_at(slot));
    let mut free = free.into_iter();
    loop {
        let slot = match free.next() {
            Some(slot) => slot,
            None => group.add_slot(&lock)?.ok_or(JoinError::Full { slots: SLOTS - 1 })?,
        };
        let Some((entry, mailbox)) = names(coroner, slot).map_err(io("binding a name"))? else {
            continue;
        };
        let socket = group.socket(&lock, slot)?;
        let management = group.shared_socket(&lock, MANAGEMENT_SLOT)?;
        table.occupy(slot, coroner.own);
        return Ok(Seat { slot, socket, management, entry, mailbox, estates });
    }
}

/// Binds the slot's names. None: somebody has one, a stray child of the slot's last tenant, or
/// another user.
fn names(coroner: &Coroner, slot: u16) -> io::Result<Option<(Listener, Datagrams)>> {
    let bound = Datagrams::bind(&coroner.names.mailbox(slot)?)
        .and_then(|mailbox| Ok((Listener::bind(&coroner.names.entry(slot)?, BACKLOG)?, mailbox)));
    match bound {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}
