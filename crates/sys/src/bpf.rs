//! The program that steers packets within a SO_REUSEPORT group (socket(7)): classic BPF, which
//! needs no privilege.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::process::check;

/// Where the BTH has the upper 16 bits of the destination QPN (IBA 9.2: bytes 5 to 7 of the BTH,
/// with which the UDP payload starts).
const DEST_QPN: u32 = 5;

/// The low bits of those 16 that belong to the index within a block of 4,096 QPNs.
const INDEX_BITS: u32 = 4;

fn op(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Has the kernel give every packet for the group to its socket number `(QPN >> 12) % slots`, in
/// the order in which they were bound; `slots` must be a power of two up to 4,096.
///
/// To the program a packet starts with its UDP payload. One too short for a BTH goes to socket 0;
/// where the group has fewer sockets than the number says, the kernel chooses by its hash. A GRO
/// batch is steered by its first segment alone.
///
/// `socket` is any socket of the group (bound with SO_REUSEPORT): the program is the group's, and
/// attaching it again, by any holder of a member, replaces it.
///
/// # Errors
/// InvalidInput for another `slots`; EINVAL when the socket is in no group; otherwise as
/// setsockopt(2).
pub fn attach_reuseport_cbpf(socket: BorrowedFd<'_>, slots: u16) -> io::Result<()> {
    if !slots.is_power_of_two() || slots > 4096 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut program = [
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, DEST_QPN),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, INDEX_BITS),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, u32::from(slots) - 1),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ];
    // Zeroed first: tools that watch system calls complain of padding that nobody wrote.
    // SAFETY: an integer and a pointer, for which zero is a value.
    let mut handed: libc::sock_fprog = unsafe { std::mem::zeroed() };
    (handed.len, handed.filter) = (program.len() as u16, program.as_mut_ptr());
    // SAFETY: a live program of the length given, which the kernel copies.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            std::ptr::from_ref(&handed).cast(),
            size_of_val(&handed) as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Throws away what has arrived on a datagram socket; stops after `limit` datagrams, lest somebody
/// who sends without pause keep it busy. Returns how many there were.
///
/// # Errors
/// As recv(2).
pub fn drain(socket: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
    for count in 0..limit {
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: no room is offered, so nothing is written.
        let n = unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, flags) };
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(count),
                io::ErrorKind::Interrupted => continue,
                _ => Err(error),
            };
        }
    }
    Ok(limit)
}

/// Whether a socket is of the IPv4 family alone (SO_DOMAIN).
///
/// # Errors
/// As getsockopt(2).
pub fn is_ipv4(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut domain: libc::c_int = 0;
    let mut len = size_of_val(&domain) as libc::socklen_t;
    // SAFETY: room for the integer that the option gives.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            std::ptr::from_mut(&mut domain).cast(),
            &mut len,
        )
    })?;
    Ok(domain == libc::AF_INET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{RxBatch, RxSocket};
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn packets_go_to_the_socket_of_their_block() {
        let first = RxSocket::bind(0, true).unwrap();
        let port = first.local_port().unwrap();
        attach_reuseport_cbpf(first.as_fd(), 4).unwrap();
        let mut sockets = vec![first];
        for _ in 1..4 {
            sockets.push(RxSocket::bind(port, true).unwrap());
        }
        // Attaching again changes nothing, from whichever socket.
        attach_reuseport_cbpf(sockets[2].as_fd(), 4).unwrap();

        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut batch = RxBatch::new(1);
        for block in [0u32, 1, 2, 3, 6, 0xfff, 0x801] {
            let mut packet = [0u8; 12];
            packet[5..8].copy_from_slice(&((block << 12) | 0xabc).to_be_bytes()[1..]);
            sender.send_to(&packet, ("127.0.0.1", port)).unwrap();
            for (slot, socket) in sockets.iter().enumerate() {
                let expected = usize::from(slot == block as usize % 4);
                assert_eq!(socket.recv(&mut batch).unwrap(), expected, "{block:#x} at {slot}");
            }
        }
        sender.send_to(&[0; 6], ("127.0.0.1", port)).unwrap();
        sender.send_to(&[0x10; 5000], ("127.0.0.1", port)).unwrap();
        assert_eq!(drain(sockets[0].as_fd(), 10).unwrap(), 1);
        assert_eq!(drain(sockets[1].as_fd(), 10).unwrap(), 1);
        assert_eq!(drain(sockets[0].as_fd(), 10).unwrap(), 0);
    }

    #[test]
    fn only_a_group_can_be_steered() {
        let alone = RxSocket::bind(0, false).unwrap();
        let error = attach_reuseport_cbpf(alone.as_fd(), 4).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert!(is_ipv4(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()).unwrap());
        assert!(attach_reuseport_cbpf(alone.as_fd(), 3).is_err());
        assert!(attach_reuseport_cbpf(alone.as_fd(), 0).is_err());
    }
}
