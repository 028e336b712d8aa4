//! Netlink's frames: requests, replies in several datagrams, attributes (netlink(7)).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libc::c_int;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// Headers, payloads and attributes start at multiples of this.
const ALIGN: usize = 4;
/// Room for a datagram: the kernel fills up to 32 KiB.
const ROOM: usize = 64 * 1024;
/// The kernel answers at once; this bounds what waits for one that does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to repeat a dump that changes interrupted before taking it as it is.
const REPEATS: usize = 8;

/// A netlink socket, close-on-exec.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
}

impl Netlink {
    /// A blocking socket for requests.
    pub(crate) fn open(protocol: c_int) -> io::Result<Self> {
        let netlink = Self::socket(protocol, 0)?;
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as _, tv_usec: 0 };
        // SAFETY: `patience` is alive during the call and its size is passed with it.
        let rc = unsafe {
            libc::setsockopt(
                netlink.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                size_of_val(&patience) as libc::socklen_t,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(netlink) }
    }

    /// A nonblocking socket that hears the `RTMGRP_*` groups given.
    pub(crate) fn subscribe(protocol: c_int, groups: c_int) -> io::Result<Self> {
        let netlink = Self::socket(protocol, libc::SOCK_NONBLOCK)?;
        // SAFETY: a sockaddr_nl is integers, for which zero is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups as u32;
        // SAFETY: `address` is alive during the call and its size is passed with it.
        let rc = unsafe {
            libc::bind(
                netlink.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(netlink) }
    }

    fn socket(protocol: c_int, flags: c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// All replies to a dump request.
    pub(crate) fn dump(&self, kind: u16, body: &[u8]) -> io::Result<Vec<Reply>> {
        for repeat in 0.. {
            let sequence = repeat as u32 + 1;
            self.send(kind, (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16, sequence, body)?;
            let (replies, interrupted) = self.collect(sequence, true)?;
            if !interrupted || repeat == REPEATS {
                return Ok(replies);
            }
        }
        Ok(Vec::new())
    }

    /// The reply to a request for one object.
    pub(crate) fn ask(&self, kind: u16, body: &[u8]) -> io::Result<Reply> {
        self.send(kind, libc::NLM_F_REQUEST as u16, 1, body)?;
        let (replies, _) = self.collect(1, false)?;
        replies.into_iter().next().ok_or_else(malformed)
    }

    fn send(&self, kind: u16, flags: u16, sequence: u32, body: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&sequence.to_ne_bytes());
        message.extend_from_slice(&0u32.to_ne_bytes());
        message.extend_from_slice(body);
        // SAFETY: reads the bytes of `message`.
        let n =
            unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads until the end of a dump, or the first reply to something else. Also tells whether the
    /// dump is inconsistent (`NLM_F_DUMP_INTR`).
    fn collect(&self, sequence: u32, dump: bool) -> io::Result<(Vec<Reply>, bool)> {
        let mut buffer = vec![0; ROOM];
        let mut replies = Vec::new();
        let mut interrupted = false;
        loop {
            let n = match self.receive(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            for message in Messages(buffer.get(..n).unwrap_or_default()) {
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match c_int::from(message.kind) {
                    libc::NLMSG_DONE => return Ok((replies, interrupted)),
                    libc::NLMSG_ERROR => match int(message.payload).map(|e| e.wrapping_neg()) {
                        Some(0) => return Ok((replies, interrupted)),
                        Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                        None => return Err(malformed()),
                    },
                    libc::NLMSG_NOOP => {}
                    _ => replies.push(message.to_reply()),
                }
            }
            if !dump && !replies.is_empty() {
                return Ok((replies, interrupted));
            }
        }
    }

    /// One datagram. Fails with `ENOBUFS` when some were lost before it.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: writes at most the length of `buffer` into it.
        let n =
            unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "netlink reply without an answer")
}

/// A message kept: its type, its payload.
pub(crate) struct Reply {
    pub(crate) kind: u16,
    pub(crate) payload: Vec<u8>,
}

/// One message of a datagram.
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl Message<'_> {
    fn to_reply(&self) -> Reply {
        Reply { kind: self.kind, payload: self.payload.to_vec() }
    }
}

/// The messages of a datagram; ends at the first that does not fit.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header: &[u8; HEADER] = self.0.first_chunk()?;
        let [a, b, c, d, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let payload = self.0.get(HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    }
}

/// The attributes behind a message's fixed part: type and value; ends at the first that does not
/// fit.
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [l0, l1, k0, k1] = *self.0.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = self.0.get(ALIGN..len)?;
        self.0 = self.0.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        // The two highest bits say how the value is encoded (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
        Some((u16::from_ne_bytes([k0, k1]) & 0x3fff, value))
    }
}

/// Appends an attribute.
pub(crate) fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((ALIGN + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(ALIGN), 0);
}

/// The integer at the start of a value.
pub(crate) fn int(value: &[u8]) -> Option<c_int> {
    value.first_chunk().map(|b| c_int::from_ne_bytes(*b))
}

/// The address that a value is.
pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|b| IpAddr::from(*b)),
        16 => value.first_chunk::<16>().map(|b| IpAddr::from(*b)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_as_they_went_in() {
        let mut body = Vec::new();
        push_attribute(&mut body, 3, b"lo\0");
        push_attribute(&mut body, 1, &[127, 0, 0, 1]);
        let seen: Vec<_> = Attributes(&body).collect();
        assert_eq!(seen, [(3, &b"lo\0"[..]), (1, &[127, 0, 0, 1][..])]);
    }

    #[test]
    fn lengths_beyond_the_end_or_below_a_header_end_the_list() {
        for len in [0u16, 3, 9, u16::MAX] {
            let mut body = len.to_ne_bytes().to_vec();
            body.extend_from_slice(&[1, 0, 0, 0, 0, 0]);
            assert_eq!(Attributes(&body).count(), 0, "attribute of {len} bytes");
        }
        for len in [0u32, 15, 17, u32::MAX] {
            let mut datagram = len.to_ne_bytes().to_vec();
            datagram.resize(HEADER, 0);
            assert_eq!(Messages(&datagram).count(), 0, "message of {len} bytes");
        }
    }
}
