//! Who owns a UDP port.

use std::io;
use std::path::{Path, PathBuf};

use crate::netlink::frame::{Netlink, Reply};

/// The owner of a UDP port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// The process that has the socket; `None` when it is the kernel, or a process that we may not
    /// look into or that lives in another PID namespace.
    pub pid: Option<u32>,
    /// The process's name, empty when unknown.
    pub comm: String,
    /// The user the socket belongs to.
    pub uid: u32,
    /// Whether the kernel itself has the port, as kernel rxe does: no process has the socket, and
    /// either we could look into all of them, or it is root's and rdma_rxe is loaded.
    pub kernel: bool,
    /// Whether the module rdma_rxe is loaded (`/sys/module/rdma_rxe`).
    pub rxe: bool,
}

/// The owner of a UDP port, bound to any address of either family in this network namespace; `None`
/// when nobody has it, or when the system does not tell.
///
/// With several sockets on the port it is the first whose process we find. Asks sock_diag(7), or
/// reads `/proc/net/udp` where that is missing, then looks through `/proc/*/fd`: for messages, not
/// for the data path.
pub fn udp_port_owner(port: u16) -> Option<Owner> {
    let sockets = by_sock_diag(port).or_else(|_| by_proc(port)).ok()?;
    let holders = Holders::find(&sockets);
    let rxe = Path::new("/sys/module/rdma_rxe").exists();
    if let Some((pid, uid)) = holders.found {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = comm.trim_end().to_owned();
        return Some(Owner { pid: Some(pid), comm, uid, kernel: false, rxe });
    }
    let uid = sockets.first()?.uid;
    let kernel = holders.complete || (uid == 0 && rxe);
    Some(Owner { pid: None, comm: String::new(), uid, kernel, rxe })
}

/// A socket that has the port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Socket {
    uid: u32,
    inode: u32,
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, u32 states; then the socket
/// id, whose first field is the source port in network byte order.
const REQUEST: usize = 56;

/// Where `struct inet_diag_msg` has its fields: family, state, timer, retransmits, the socket id of
/// 48 bytes, and u32s: expires, receive queue, send queue, uid, inode.
const MESSAGE: usize = 72;

fn by_sock_diag(port: u16) -> io::Result<Vec<Socket>> {
    let netlink = Netlink::open(libc::NETLINK_SOCK_DIAG)?;
    let mut sockets = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = [0; REQUEST];
        request[0] = family as u8;
        request[1] = libc::IPPROTO_UDP as u8;
        request[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        request[8..10].copy_from_slice(&port.to_be_bytes());
        let replies = netlink.dump(SOCK_DIAG_BY_FAMILY, &request)?;
        sockets.extend(replies.iter().filter_map(|reply| parse(reply, port)));
    }
    Ok(sockets)
}

/// The request's and the replies' type, by linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

fn parse(reply: &Reply, port: u16) -> Option<Socket> {
    let message: &[u8; MESSAGE] = reply.payload.first_chunk()?;
    let [.., u0, u1, u2, u3, i0, i1, i2, i3] = *message;
    let [_, _, _, _, p0, p1, ..] = *message;
    (reply.kind == SOCK_DIAG_BY_FAMILY && u16::from_be_bytes([p0, p1]) == port).then(|| Socket {
        uid: u32::from_ne_bytes([u0, u1, u2, u3]),
        inode: u32::from_ne_bytes([i0, i1, i2, i3]),
    })
}

fn by_proc(port: u16) -> io::Result<Vec<Socket>> {
    let v4 = std::fs::read_to_string("/proc/thread-self/net/udp")?;
    // Missing where the kernel has no IPv6.
    let v6 = std::fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    Ok(v4.lines().chain(v6.lines()).filter_map(|line| parse_line(line, port)).collect())
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`, where an address is
/// hexadecimal `ip:port`.
fn parse_line(line: &str, port: u16) -> Option<Socket> {
    let mut fields = line.split_whitespace();
    let (_, local) = fields.nth(1)?.rsplit_once(':')?;
    if u16::from_str_radix(local, 16).ok()? != port {
        return None;
    }
    let uid = fields.nth(5)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Socket { uid, inode })
}

/// What a search of all processes found.
struct Holders {
    /// The process of one of the sockets, and the socket's user.
    found: Option<(u32, u32)>,
    /// Whether every process could be looked into.
    complete: bool,
}

impl Holders {
    fn find(sockets: &[Socket]) -> Self {
        let links: Vec<_> = sockets
            .iter()
            .map(|s| (PathBuf::from(format!("socket:[{}]", s.inode)), s.uid))
            .collect();
        let Ok(processes) = std::fs::read_dir("/proc") else {
            return Self { found: None, complete: false };
        };
        let mut complete = true;
        let pids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids {
            let fds = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
                Ok(fds) => fds,
                Err(e) => {
                    // One that ended meanwhile hides nothing.
                    complete &= e.kind() == io::ErrorKind::NotFound;
                    continue;
                }
            };
            for fd in fds.flatten() {
                let Ok(target) = std::fs::read_link(fd.path()) else { continue };
                if let Some((_, uid)) = links.iter().find(|(link, _)| *link == target) {
                    return Self { found: Some((pid, *uid)), complete };
                }
            }
        }
        Self { found: None, complete }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn both_sources_agree() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(address).unwrap();
            let port = socket.local_addr().unwrap().port();
            let by_diag = by_sock_diag(port).unwrap();
            assert_eq!(by_diag, by_proc(port).unwrap());
            assert_eq!(by_diag.len(), 1, "{by_diag:?}");
        }
    }

    #[test]
    fn a_line_of_proc() {
        let line = " 1234: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    1000        0 29051 2 000000002c58a3b1 0";
        assert_eq!(parse_line(line, 4791), Some(Socket { uid: 1000, inode: 29051 }));
        assert_eq!(parse_line(line, 4790), None);
        assert_eq!(parse_line("  sl  local_address rem_address   st", 4791), None);
    }
}
