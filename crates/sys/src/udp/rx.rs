//! Receiving: one socket per port for both address families.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use ironverbs_wire::{Gid, Path};
use libc::{SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_UDP, c_int};

use super::address::{self, SocketAddress};
use super::control::{self, Control};
use super::sockopt::{self, UDP_NO_CHECK6_RX};
use crate::cancel;

/// How to bind an [`RxSocket`].
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// UDP port; 0 lets the kernel choose one, see [`RxSocket::local_port`].
    pub port: u16,
    /// Whether other sockets of the same user may share the port (`SO_REUSEPORT`, socket(7)).
    pub reuseport: bool,
    /// Receive IPv4 alone, as where the kernel runs without IPv6.
    pub only_v4: bool,
    /// Receive buffer in bytes, which the kernel doubles for its own overhead. Beyond the limit
    /// `net.core.rmem_max` only with CAP_NET_ADMIN; else the limit.
    pub receive_space: usize,
}

impl Default for BindOptions {
    fn default() -> Self {
        Self { port: 0, reuseport: false, only_v4: false, receive_space: 8 << 20 }
    }
}

/// A nonblocking UDP socket that receives on a port of every address of the host.
///
/// One socket serves both families; where the kernel has no IPv6 it is an IPv4 socket. It never
/// has `SO_REUSEADDR`, with which a newcomer would take the port's packets away from whoever has it.
#[derive(Debug)]
pub struct RxSocket {
    fd: OwnedFd,
}

impl RxSocket {
    /// Binds a port with the default [`BindOptions`].
    ///
    /// # Errors
    /// As [`RxSocket::bind_with`].
    pub fn bind(port: u16, reuseport: bool) -> io::Result<Self> {
        Self::bind_with(&BindOptions { port, reuseport, ..BindOptions::default() })
    }

    /// Binds a port.
    ///
    /// # Errors
    /// `EADDRINUSE` when the port is taken, with `reuseport` by another user or by a socket without
    /// it; `EACCES` for a privileged port; otherwise as socket(2) and setsockopt(2).
    pub fn bind_with(options: &BindOptions) -> io::Result<Self> {
        if !options.only_v4 {
            match sockopt::udp_socket(libc::AF_INET6) {
                Ok(fd) => return Self::bind_v6(fd, options),
                Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
                Err(e) => return Err(e),
            }
        }
        let fd = sockopt::udp_socket(libc::AF_INET)?;
        sockopt::set(fd.as_fd(), SOL_IP, libc::IP_PKTINFO, 1)?;
        Self::finish(fd, Ipv4Addr::UNSPECIFIED.into(), options)
    }

    fn bind_v6(fd: OwnedFd, options: &BindOptions) -> io::Result<Self> {
        let s = fd.as_fd();
        sockopt::set(s, SOL_IPV6, libc::IPV6_V6ONLY, 0)?;
        // Also reports the destination of an IPv4 packet, as a mapped address.
        sockopt::set(s, SOL_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
        // The traffic class comes with the flow label; a message only where one is not zero.
        sockopt::set(s, SOL_IPV6, libc::IPV6_FLOWINFO, 1)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
        // Kernel rxe sends without a UDP checksum; the ICRC is the check that counts.
        sockopt::set(s, SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        Self::finish(fd, Ipv6Addr::UNSPECIFIED.into(), options)
    }

    /// What both families need, then the bind itself.
    fn finish(fd: OwnedFd, any: IpAddr, options: &BindOptions) -> io::Result<Self> {
        let s = fd.as_fd();
        sockopt::set(s, SOL_IP, libc::IP_RECVTTL, 1)?;
        sockopt::set(s, SOL_IP, libc::IP_RECVTOS, 1)?;
        sockopt::set(s, SOL_IP, libc::IP_MULTICAST_ALL, 0)?;
        // Kernels before 5.0 have no UDP_GRO: they deliver every packet by itself.
        let _ = sockopt::set(s, SOL_UDP, libc::UDP_GRO, 1);
        sockopt::set_buffer(s, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.receive_space);
        if options.reuseport {
            sockopt::set(s, SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        address::bind(s, any, options.port)?;
        Ok(Self { fd })
    }

    /// The port that the socket is bound to.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_port(&self) -> io::Result<u16> {
        address::local_port(self.fd.as_fd())
    }

    /// Receives as many messages as are queued, up to the room of `batch`, whose previous contents
    /// are gone. Returns their number; 0 when there is none. Never blocks.
    ///
    /// # Errors
    /// As recvmmsg(2), save that `EAGAIN` and `EINTR` count as 0 messages.
    pub fn recv(&self, batch: &mut RxBatch) -> io::Result<usize> {
        self.recv_some(batch, usize::MAX)
    }

    /// [`RxSocket::recv`] of at most `max` messages; with 1 it is the cheaper recvmsg(2).
    ///
    /// # Errors
    /// As [`RxSocket::recv`].
    pub fn recv_some(&self, batch: &mut RxBatch, max: usize) -> io::Result<usize> {
        batch.filled = 0;
        match max.min(batch.slots.len()) {
            0 => Ok(0),
            1 => self.recv_one(batch),
            n => self.recv_many(batch, n),
        }
    }

    fn recv_one(&self, batch: &mut RxBatch) -> io::Result<usize> {
        let _held = cancel::held();
        let mut iov = batch.iovec(0);
        let mut header = batch.header(0, &mut iov);
        // SAFETY: `header` points at a buffer, a name and a control area of `batch` and at `iov`,
        // each of the size given, all alive and untouched by others until the call returns.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        let Ok(n) = usize::try_from(n) else { return none_waiting(io::Error::last_os_error()) };
        batch.received(0, &header, n);
        batch.filled = 1;
        Ok(1)
    }

    fn recv_many(&self, batch: &mut RxBatch, n: usize) -> io::Result<usize> {
        let _held = cancel::held();
        let mut iovs = [MaybeUninit::<libc::iovec>::uninit(); RxBatch::MAX_MESSAGES];
        let mut headers = [MaybeUninit::<libc::mmsghdr>::uninit(); RxBatch::MAX_MESSAGES];
        for (i, (iov, header)) in iovs.iter_mut().zip(&mut headers).take(n).enumerate() {
            let iov = iov.write(batch.iovec(i));
            header.write(libc::mmsghdr { msg_hdr: batch.header(i, iov), msg_len: 0 });
        }
        // SAFETY: the first `n` headers are initialised and point, as in `recv_one`, at memory that
        // is alive until the call returns; `n` is at most the length of the array.
        let got = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                n as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let Ok(got) = usize::try_from(got) else { return none_waiting(io::Error::last_os_error()) };
        for (i, header) in headers.iter().take(got.min(n)).enumerate() {
            // SAFETY: written above for every index below `n`.
            let header = unsafe { header.assume_init_ref() };
            batch.received(i, &header.msg_hdr, header.msg_len as usize);
        }
        batch.filled = got.min(n);
        Ok(batch.filled)
    }

    /// Joins a multicast group on an interface; the socket then receives the group's packets that
    /// arrive there. Joining twice is an error (`EADDRINUSE`).
    ///
    /// Of several sockets that share the port every one that joined gets a copy. But if it is one
    /// alone, Linux (6.18) gives an IPv4 packet that came over a wire to any of them: its early
    /// demultiplexing finds the member, and then selects in the group anew. So a process must be
    /// ready to hand on packets of groups that it did not join.
    ///
    /// # Errors
    /// `EINVAL` when the address is no multicast address, `ENODEV` without that interface,
    /// `ENOBUFS` beyond `net.ipv4.igmp_max_memberships` groups.
    pub fn join(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.membership(group, ifindex, libc::IP_ADD_MEMBERSHIP, libc::IPV6_ADD_MEMBERSHIP)
    }

    /// Leaves a group that was joined on that interface.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when it was not.
    pub fn leave(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.membership(group, ifindex, libc::IP_DROP_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP)
    }

    fn membership(&self, group: IpAddr, ifindex: u32, v4: c_int, v6: c_int) -> io::Result<()> {
        let index = c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        match group {
            IpAddr::V4(group) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: index,
                };
                sockopt::set(self.fd.as_fd(), SOL_IP, v4, request)
            }
            IpAddr::V6(group) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: ifindex,
                };
                sockopt::set(self.fd.as_fd(), SOL_IPV6, v6, request)
            }
        }
    }

    /// How full the receive buffer is, and how many packets did not fit so far.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn backlog(&self) -> io::Result<Backlog> {
        // Indices of linux/sock_diag.h: RMEM_ALLOC 0, RCVBUF 1, DROPS 8.
        let words: [c_int; 9] = sockopt::get(self.fd.as_fd(), SOL_SOCKET, libc::SO_MEMINFO)?;
        let [used, limit, _, _, _, _, _, _, drops] = words.map(|w| w as u32);
        Ok(Backlog { used, limit, drops })
    }
}

/// `EAGAIN` and `EINTR` are no messages, the rest are errors.
fn none_waiting(error: io::Error) -> io::Result<usize> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
        _ => Err(error),
    }
}

impl AsFd for RxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes a socket that [`RxSocket::bind`] made, here or in another process.
impl From<OwnedFd> for RxSocket {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<RxSocket> for OwnedFd {
    fn from(socket: RxSocket) -> Self {
        socket.fd
    }
}

/// The state of a socket's receive buffer, `SO_MEMINFO`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// Bytes taken, the kernel's overhead included.
    pub used: u32,
    /// Bytes there are.
    pub limit: u32,
    /// Packets dropped since the socket was made, for want of room or for a wrong UDP checksum;
    /// wraps.
    pub drops: u32,
}

/// Page-aligned storage. Large allocations start 16 bytes behind a page's beginning; receiving into
/// such was 2 to 6 % slower (measured).
#[derive(Clone)]
#[repr(align(4096))]
#[expect(dead_code, reason = "read through a cast of many pages to bytes")]
struct Page([u8; 4096]);

/// Bytes of one buffer: more than an IP packet can carry, merged by GRO or not.
const BUFFER: usize = 64 * 1024;
const PAGES: usize = BUFFER / size_of::<Page>();

/// What one message's headers said, in the kernel's words.
struct Slot {
    name: SocketAddress,
    control: Control,
    len: usize,
    truncated: bool,
}

/// Buffers for received messages, and the messages of the last receive.
pub struct RxBatch {
    pages: Vec<Page>,
    slots: Vec<Slot>,
    filled: usize,
}

impl RxBatch {
    /// The most messages that one batch can have.
    pub const MAX_MESSAGES: usize = 32;

    /// Room for `messages` messages of 64 KiB each, between 1 and [`RxBatch::MAX_MESSAGES`].
    pub fn new(messages: usize) -> Self {
        let n = messages.clamp(1, Self::MAX_MESSAGES);
        let slot = || Slot {
            name: SocketAddress::EMPTY,
            control: Control::EMPTY,
            len: 0,
            truncated: false,
        };
        Self {
            pages: vec![Page([0; 4096]); n * PAGES],
            slots: std::iter::repeat_with(slot).take(n).collect(),
            filled: 0,
        }
    }

    /// Messages that fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The messages of the last receive, in the order in which they arrived.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> {
        let buffers = self.pages.chunks_exact(PAGES);
        self.slots[..self.filled]
            .iter()
            .zip(buffers)
            .map(|(slot, pages)| Datagram::parse(slot, &pages.as_flattened_bytes()[..slot.len]))
    }

    fn iovec(&mut self, i: usize) -> libc::iovec {
        let pages = &mut self.pages[i * PAGES..(i + 1) * PAGES];
        libc::iovec { iov_base: pages.as_mut_ptr().cast(), iov_len: BUFFER }
    }

    /// A header that receives into slot `i` and `iov`; valid while both stay where they are.
    fn header(&mut self, i: usize, iov: &mut libc::iovec) -> libc::msghdr {
        let slot = &mut self.slots[i];
        // SAFETY: a msghdr is integers and pointers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = slot.name.as_mut_ptr();
        header.msg_namelen = SocketAddress::EMPTY.len();
        header.msg_iov = iov;
        header.msg_iovlen = 1;
        header.msg_control = slot.control.as_mut_ptr();
        header.msg_controllen = Control::ROOM as _;
        header
    }

    fn received(&mut self, i: usize, header: &libc::msghdr, len: usize) {
        let slot = &mut self.slots[i];
        slot.len = len.min(BUFFER);
        slot.control.set_len(header.msg_controllen);
        slot.truncated = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    }
}

/// The pages as the bytes that they are.
trait AsFlattenedBytes {
    fn as_flattened_bytes(&self) -> &[u8];
}

impl AsFlattenedBytes for [Page] {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: a Page is 4096 bytes without padding, its alignment being its size.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self)) }
    }
}

impl std::fmt::Debug for RxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RxBatch({} of {})", self.filled, self.slots.len())
    }
}

/// One received message: a packet, or several of one sender that GRO merged.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The UDP payloads, one behind the other.
    pub data: &'a [u8],
    /// Bytes of every packet but the last, which may be shorter; the length of `data` when it is
    /// one packet.
    pub segment_size: usize,
    /// Addresses and what else the IP header said: `src` is the sender, `dst` the address of ours,
    /// or the multicast group, that it was sent to.
    pub path: Path,
    /// The sender's UDP port.
    pub src_port: u16,
    /// The interface it arrived on; 0 when the kernel did not say.
    pub ifindex: u32,
    /// Whether the kernel cut off data or header fields: the rest of the values may then be wrong.
    pub truncated: bool,
}

impl<'a> Datagram<'a> {
    /// The packets of the message, in order.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        self.data.chunks(self.segment_size.max(1))
    }

    fn parse(slot: &Slot, data: &'a [u8]) -> Self {
        let (src, src_port) = slot.name.parse().unwrap_or_default();
        let path = Path { src, ..Path::default() };
        let mut datagram = Self {
            data,
            segment_size: data.len(),
            path,
            src_port,
            ifindex: 0,
            truncated: slot.truncated,
        };
        for (level, kind, value) in slot.control.messages() {
            datagram.apply(level, kind, value);
        }
        datagram
    }

    fn apply(&mut self, level: c_int, kind: c_int, value: &[u8]) {
        let byte = |v: &[u8]| v.first().copied().unwrap_or_default();
        match (level, kind) {
            (SOL_IPV6, libc::IPV6_PKTINFO) => {
                if let Some((dst, rest)) = value.split_first_chunk::<16>() {
                    self.path.dst = Gid(*dst);
                    self.ifindex = control::int(rest).unwrap_or_default() as u32;
                }
            }
            // in_pktinfo: interface, the local address routing chose, the header's destination.
            (SOL_IP, libc::IP_PKTINFO) => {
                if let Some(dst) = value.last_chunk::<4>() {
                    self.path.dst = Gid::from_ipv4((*dst).into());
                    self.ifindex = control::int(value).unwrap_or_default() as u32;
                }
            }
            (SOL_IPV6, libc::IPV6_HOPLIMIT) | (SOL_IP, libc::IP_TTL) => {
                self.path.hop_limit = control::int(value).unwrap_or_default() as u8;
            }
            (SOL_IP, libc::IP_TOS) => self.path.traffic_class = byte(value),
            (SOL_IPV6, libc::IPV6_FLOWINFO) => {
                let info = value.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
                self.path.traffic_class = (info >> 20) as u8;
                self.path.flow_label = info & 0xf_ffff;
            }
            (SOL_UDP, libc::UDP_GRO) => {
                let size = control::int(value).unwrap_or_default();
                if let Ok(size @ 1..) = usize::try_from(size) {
                    self.segment_size = size.min(self.data.len());
                }
            }
            _ => {}
        }
    }
}
