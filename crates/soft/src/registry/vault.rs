//! Where the group's UDP sockets are kept: in the queue of a unix socket.
//!
//! A message with a descriptor keeps what it refers to open, whichever processes live, as long as
//! the queue's receiving end is; and it can be read again and again (MSG_PEEK), a fresh duplicate
//! each time. So every member holds two descriptors, the ends of the vault, instead of a duplicate
//! of each member's socket; no socket is ever in the hands of mortals only, not even of those that
//! a stopped member has not come round to take; and a newcomer is handed three descriptors.
//!
//! One queue has room for some 270 messages under the default limits (`net.core.wmem_default`).
//! So the vault's own queue holds the ends of up to eight shelves, and a shelf's queue 128 sockets.
//! Everything here happens under the registry's lock, whose guard proves it: where a queue is peeked at is
//! a property of the socket, which all members share (SO_PEEK_OFF).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ironverbs_sys::lock::Guard;
use ironverbs_sys::unix::{Connection, Received};

use super::fds::inode;

/// Sockets a shelf.
const SHELF: u16 = 128;

/// Bytes a message: its number, so that what is found can be checked against what was sought.
const MESSAGE: usize = 2;

#[derive(Debug)]
pub(super) struct Vault {
    tx: Connection,
    rx: Connection,
}

impl Vault {
    pub(super) fn create() -> io::Result<Vault> {
        let (tx, rx) = Connection::pair()?;
        Ok(Vault { tx, rx })
    }

    /// From the ends that another member handed over.
    pub(super) fn received(tx: OwnedFd, rx: OwnedFd) -> Vault {
        Vault { tx: tx.into(), rx: rx.into() }
    }

    /// The sending and the receiving end.
    pub(super) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.tx.as_fd(), self.rx.as_fd()]
    }

    /// What the ends are known by in /proc/PID/fd.
    pub(super) fn inodes(&self) -> io::Result<[u64; 2]> {
        Ok([inode(self.tx.as_fd())?, inode(self.rx.as_fd())?])
    }

    /// A duplicate of the slot's socket; None: it is not there.
    pub(super) fn socket(&self, _: &Guard<'_>, slot: u16) -> io::Result<Option<OwnedFd>> {
        let Some(shelf) = self.shelf(slot / SHELF)? else { return Ok(None) };
        let Some(found) = look(&shelf.rx, slot % SHELF)? else { return Ok(None) };
        let mut fds = found.fds.into_iter();
        fds.next().map(Some).ok_or_else(corrupt)
    }

    /// Stores the socket of the next slot: all before it are there.
    pub(super) fn store(&self, _: &Guard<'_>, slot: u16, socket: BorrowedFd<'_>) -> io::Result<()> {
        let shelf = match self.shelf(slot / SHELF)? {
            Some(shelf) => shelf,
            None => {
                let shelf = Vault::create()?;
                self.tx.send(&(slot / SHELF).to_le_bytes(), &shelf.ends())?;
                shelf
            }
        };
        shelf.tx.send(&(slot % SHELF).to_le_bytes(), &[socket])
    }

    fn shelf(&self, number: u16) -> io::Result<Option<Vault>> {
        let Some(found) = look(&self.rx, number)? else { return Ok(None) };
        let mut fds = found.fds.into_iter();
        match (fds.next(), fds.next()) {
            (Some(tx), Some(rx)) => Ok(Some(Vault::received(tx, rx))),
            _ => Err(corrupt()),
        }
    }
}

fn look(queue: &Connection, number: u16) -> io::Result<Option<Received>> {
    let mut buffer = [0; MESSAGE];
    let Some(found) = queue.peek_at(u32::from(number) * MESSAGE as u32, &mut buffer)? else {
        return Ok(None);
    };
    if found.fds.is_empty() && found.truncated {
        // The process is out of descriptors.
        return Err(io::Error::other("no descriptor free to take a socket"));
    }
    if found.len != MESSAGE || buffer != number.to_le_bytes() {
        return Err(corrupt());
    }
    Ok(Some(found))
}

fn corrupt() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the registry's vault holds something else")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::table::Table;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn sockets_outlive_their_makers_as_long_as_the_vault_does() {
        let vault = Vault::create().unwrap();
        let (_memfd, table) = Table::create(1, true, vault.inodes().unwrap()).unwrap();
        let (lock, _) = table.lock(Duration::from_secs(1)).unwrap();
        let mut ports = Vec::new();
        for slot in 0..300 {
            assert!(vault.socket(&lock, slot).unwrap().is_none());
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            vault.store(&lock, slot, socket.as_fd()).unwrap();
            ports.push(socket.local_addr().unwrap());
        }
        let [tx, rx] = vault.ends().map(|fd| fd.try_clone_to_owned().unwrap());
        let again = Vault::received(tx, rx);
        assert_eq!(vault.inodes().unwrap(), again.inodes().unwrap());
        drop(vault);
        for slot in [299, 0, 128, 127, 255, 256, 0] {
            let socket = UdpSocket::from(again.socket(&lock, slot).unwrap().unwrap());
            assert_eq!(socket.local_addr().unwrap(), ports[usize::from(slot)]);
        }
        drop(again);
        // The kernel frees what was in the queues in its own time.
        let start = std::time::Instant::now();
        while UdpSocket::bind(ports[0]).is_err() {
            assert!(start.elapsed().as_secs() < 20, "the socket was never closed");
            std::thread::yield_now();
        }
    }
}
