//! What the file system says of descriptors: of ours, of another process's, of a port's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use ironverbs_sys::process::PidFd;

/// The inode number of what a descriptor refers to.
pub(super) fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.ino())
}

/// The open descriptors of another process.
pub(super) struct Foreign {
    process: PidFd,
    /// Number, and what the link says it is.
    open: Vec<(RawFd, String)>,
}

impl Foreign {
    pub(super) fn list(process: PidFd, pid: u32) -> io::Result<Foreign> {
        let mut open = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(number), Ok(link)) = (number, fs::read_link(entry.path())) {
                open.push((number, link.to_string_lossy().into_owned()));
            }
        }
        if !process.alive() {
            // The directory may have been of another process with the same number.
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Foreign { process, open })
    }

    /// A duplicate of the memfd with this name.
    pub(super) fn memfd(&self, name: &str) -> io::Result<OwnedFd> {
        let link = format!("/memfd:{name} (deleted)");
        self.take(&link)
    }

    /// A duplicate of the socket with this inode.
    pub(super) fn socket(&self, wanted: u64) -> io::Result<OwnedFd> {
        let fd = self.take(&format!("socket:[{wanted}]"))?;
        // The number may have come to mean another descriptor in between.
        if inode(fd.as_fd())? == wanted { Ok(fd) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn take(&self, link: &str) -> io::Result<OwnedFd> {
        let found = self.open.iter().find(|(_, target)| target == link);
        let (number, _) = found.ok_or(io::ErrorKind::NotFound)?;
        self.process.duplicate(*number)
    }
}

/// How many UDP sockets of this network namespace are bound to the port on every address
/// (proc_pid_net(5)); None where that cannot be read.
pub(super) fn wildcard_sockets(port: u16) -> Option<usize> {
    let v4 = fs::read_to_string("/proc/thread-self/net/udp").ok()?;
    let v6 = fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    Some(count(&v4, port) + count(&v6, port))
}

fn count(text: &str, port: u16) -> usize {
    let bound = |line: &&str| {
        let local = line.split_ascii_whitespace().nth(1)?;
        let (address, number) = local.split_once(':')?;
        let wildcard = address.bytes().all(|digit| digit == b'0');
        (wildcard && u16::from_str_radix(number, 16) == Ok(port)).then_some(())
    };
    text.lines().filter(|line| bound(line).is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Instant;

    #[test]
    fn sockets_on_every_address_are_counted() {
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        // The kernel's list can miss a socket while others of the machine come and go.
        let counts = |socket: &UdpSocket, expected| {
            let start = Instant::now();
            while wildcard_sockets(port(socket)) != Some(expected) {
                let counted = wildcard_sockets(port(socket));
                assert!(start.elapsed().as_secs() < 20, "{counted:?} for {expected}");
            }
        };
        counts(&UdpSocket::bind("0.0.0.0:0").unwrap(), 1);
        counts(&UdpSocket::bind("[::]:0").unwrap(), 1);
        counts(&UdpSocket::bind("127.0.0.1:0").unwrap(), 0);
    }

    #[test]
    fn descriptors_of_a_process_are_found_by_what_they_are() {
        let pid = std::process::id();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let memfd = ironverbs_sys::shm::Memfd::create(c"found", 1).unwrap();
        let foreign = Foreign::list(PidFd::open(pid).unwrap(), pid).unwrap();
        let number = inode(socket.as_fd()).unwrap();
        assert_eq!(inode(foreign.socket(number).unwrap().as_fd()).unwrap(), number);
        let copy = foreign.memfd("found").unwrap();
        assert_eq!(inode(copy.as_fd()).unwrap(), inode(memfd.as_fd()).unwrap());
        assert!(foreign.memfd("lost").is_err());
        assert!(foreign.socket(1).is_err());
    }
}
