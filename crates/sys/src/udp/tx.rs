//! Sending: packets of one size by GSO, packets of different sizes together.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ironverbs_wire::{Gid, Path};
use libc::{SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_UDP, c_int};

use super::address::{self, SocketAddress};
use super::control::Control;
use super::{DEFAULT_HOP_LIMIT, MAX_BATCH, MAX_SEGMENTS, sockopt};
use crate::cancel;

/// Which IP a [`TxSocket`] sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of packets to a GID.
    pub fn of(dst: &Gid) -> Self {
        if dst.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// One send: a packet, or several of one size to the same place.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Where from and to. An unspecified `src` leaves the source address to routing; hop limit 0
    /// means [`DEFAULT_HOP_LIMIT`].
    pub path: &'a Path,
    /// The interface to send from: required for link-local and IPv6 multicast destinations, 0
    /// leaves it to routing.
    pub ifindex: u32,
    /// UDP port of the destination.
    pub dst_port: u16,
    /// UDP payload of the packets, one behind the other.
    pub bytes: &'a [u8],
    /// Bytes of every packet but the last, which may be shorter; `None` when it is one packet.
    pub segment: Option<u16>,
}

/// An unconnected UDP socket that sends from one port, with any local source address.
///
/// Packets have the don't-fragment bit set, and IPv4 Identification 0, or the index of the segment
/// within its send. What is sent to the socket's port is dropped by the kernel. Sends never block.
#[derive(Debug)]
pub struct TxSocket {
    fd: OwnedFd,
    family: Family,
    port: u16,
    gso: bool,
}

/// Packets that one sendmmsg(2) takes here.
const CHUNK: usize = 32;

const SEND_SPACE: usize = 4 << 20;

impl TxSocket {
    /// Binds a port of every local address; another one when `port_hint` is taken, any when it is
    /// 0.
    ///
    /// # Errors
    /// `EAFNOSUPPORT` where the kernel lacks the family, `EACCES` for a privileged port; otherwise
    /// as socket(2), setsockopt(2) and bind(2).
    pub fn bind(family: Family, port_hint: u16) -> io::Result<Self> {
        let (fd, any): (_, IpAddr) = match family {
            Family::V4 => (Self::open_v4()?, Ipv4Addr::UNSPECIFIED.into()),
            Family::V6 => (Self::open_v6()?, Ipv6Addr::UNSPECIFIED.into()),
        };
        let s = fd.as_fd();
        sockopt::set_buffer(s, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_SPACE);
        drop_all_received(s)?;
        match address::bind(s, any, port_hint) {
            Err(e) if port_hint != 0 && e.kind() == io::ErrorKind::AddrInUse => {
                address::bind(s, any, 0)?;
            }
            other => other?,
        }
        let port = address::local_port(s)?;
        let gso = sockopt::get_int(s, SOL_UDP, libc::UDP_SEGMENT).is_ok();
        Ok(Self { fd, family, port, gso })
    }

    fn open_v4() -> io::Result<OwnedFd> {
        let fd = sockopt::udp_socket(libc::AF_INET)?;
        let s = fd.as_fd();
        let hops = c_int::from(DEFAULT_HOP_LIMIT);
        sockopt::set(s, SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        sockopt::set(s, SOL_IP, libc::IP_TTL, hops)?;
        sockopt::set(s, SOL_IP, libc::IP_MULTICAST_TTL, hops)?;
        Ok(fd)
    }

    fn open_v6() -> io::Result<OwnedFd> {
        let fd = sockopt::udp_socket(libc::AF_INET6)?;
        let s = fd.as_fd();
        let hops = c_int::from(DEFAULT_HOP_LIMIT);
        // So that an IPv4 socket can have the same port.
        sockopt::set(s, SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_DONTFRAG, 1)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_UNICAST_HOPS, hops)?;
        sockopt::set(s, SOL_IPV6, libc::IPV6_MULTICAST_HOPS, hops)?;
        // The flow label of a packet is its path's, 0 included, not one that the kernel invents.
        sockopt::set(s, SOL_IPV6, libc::IPV6_AUTOFLOWLABEL, 0)?;
        Ok(fd)
    }

    /// The source port of everything this socket sends.
    pub fn local_port(&self) -> u16 {
        self.port
    }

    /// The family of the destinations that it can send to.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Sends one packet, or several of one size, on a path that routing decides:
    /// [`TxSocket::transmit`] with interface 0.
    ///
    /// # Errors
    /// As [`TxSocket::transmit`].
    pub fn send(
        &self,
        path: &Path,
        dst_port: u16,
        bytes: &[u8],
        segment: Option<u16>,
    ) -> io::Result<()> {
        self.transmit(&Transmit { path, ifindex: 0, dst_port, bytes, segment })
    }

    /// Sends one packet, or several of one size by GSO. All of them or none.
    ///
    /// # Errors
    /// - `WouldBlock`: the send buffer or the device's queue is full.
    /// - `Unsupported`: kernel, route or device refuses GSO; send the segments one by one. For
    ///   segments beyond the MTU and for a source address that is not ours some kernels give the
    ///   same error (`EINVAL`): sent one by one, they tell.
    /// - `InvalidInput`: a destination of the other family, more than [`MAX_SEGMENTS`] or
    ///   [`MAX_BATCH`].
    /// - `ENETUNREACH` or `EINVAL`: a source address that is not ours.
    /// - `EMSGSIZE`: a packet longer than the path's MTU; `ENETUNREACH`, `EHOSTUNREACH`: no route;
    ///   `EPERM`: a firewall; otherwise as sendmsg(2).
    pub fn transmit(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let _held = cancel::held();
        let mut message = self.message(transmit)?;
        let mut iov = iovec(transmit.bytes);
        let header = message.header(&mut iov);
        // SAFETY: `header` points at `message`, `iov` and the bytes borrowed by `transmit`, each
        // with its size; the kernel only reads them, and they outlive the call.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &header, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(error(io::Error::last_os_error(), transmit)) } else { Ok(()) }
    }

    /// Sends dissimilar packets with as few system calls as there can be. Returns how many, from
    /// the first on, were sent: fewer than given when the next one failed.
    ///
    /// # Errors
    /// As [`TxSocket::transmit`], when the very first fails.
    pub fn send_many(&self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        let mut sent = 0;
        for chunk in transmits.chunks(CHUNK) {
            match self.send_chunk(chunk) {
                Ok(n) => {
                    sent += n;
                    if n < chunk.len() {
                        break;
                    }
                }
                Err(e) if sent == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    fn send_chunk(&self, chunk: &[Transmit<'_>]) -> io::Result<usize> {
        let _held = cancel::held();
        let mut messages = [const { MaybeUninit::<Message>::uninit() }; CHUNK];
        let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; CHUNK];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; CHUNK];
        let mut n = 0;
        let slots = messages.iter_mut().zip(&mut iovs).zip(&mut headers);
        for (transmit, ((message, iov), header)) in chunk.iter().zip(slots) {
            let message = match self.message(transmit) {
                Ok(m) => message.write(m),
                Err(e) if n == 0 => return Err(e),
                Err(_) => break,
            };
            let iov = iov.write(iovec(transmit.bytes));
            header.write(libc::mmsghdr { msg_hdr: message.header(iov), msg_len: 0 });
            n += 1;
        }
        // SAFETY: the first `n` headers are initialised and point, as in `transmit`, at memory that
        // outlives the call; `n` is at most the length of the array.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                n,
                libc::MSG_DONTWAIT as _,
            )
        };
        match (usize::try_from(sent), chunk.first()) {
            (Ok(sent), _) => Ok(sent),
            (Err(_), Some(first)) => Err(error(io::Error::last_os_error(), first)),
            (Err(_), None) => Ok(0),
        }
    }

    /// The address and control messages of a send.
    fn message(&self, t: &Transmit<'_>) -> io::Result<Message> {
        if Family::of(&t.path.dst) != self.family {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut control = Control::EMPTY;
        if let Some(size) = t.segment.filter(|&size| usize::from(size) < t.bytes.len()) {
            if size == 0
                || t.bytes.len() > MAX_BATCH
                || t.bytes.len() > MAX_SEGMENTS * usize::from(size)
            {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if !self.gso {
                return Err(io::ErrorKind::Unsupported.into());
            }
            control.push(SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        }
        match self.family {
            Family::V4 => control_v4(&mut control, t),
            Family::V6 => control_v6(&mut control, t),
        }
        let scope = if t.path.dst.is_link_local() { t.ifindex } else { 0 };
        Ok(Message { name: SocketAddress::new(t.path.dst.to_ip(), t.dst_port, scope), control })
    }
}

fn control_v4(control: &mut Control, t: &Transmit<'_>) {
    let source = match t.path.src.to_ip() {
        IpAddr::V4(source) => source,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    if !source.is_unspecified() || t.ifindex != 0 {
        // in_pktinfo: interface, source address, and a destination that sends ignore.
        let mut info = [0; 12];
        info[0..4].copy_from_slice(&t.ifindex.to_ne_bytes());
        info[4..8].copy_from_slice(&source.octets());
        control.push(SOL_IP, libc::IP_PKTINFO, &info);
    }
    if let Some(hops) = special_hop_limit(t.path) {
        control.push(SOL_IP, libc::IP_TTL, &hops.to_ne_bytes());
    }
    if t.path.traffic_class != 0 {
        let tos = c_int::from(t.path.traffic_class);
        control.push(SOL_IP, libc::IP_TOS, &tos.to_ne_bytes());
    }
}

fn control_v6(control: &mut Control, t: &Transmit<'_>) {
    if t.path.src != Gid::UNSPECIFIED || t.ifindex != 0 {
        let mut info = [0; 20];
        info[0..16].copy_from_slice(&t.path.src.0);
        info[16..20].copy_from_slice(&t.ifindex.to_ne_bytes());
        control.push(SOL_IPV6, libc::IPV6_PKTINFO, &info);
    }
    if let Some(hops) = special_hop_limit(t.path) {
        control.push(SOL_IPV6, libc::IPV6_HOPLIMIT, &hops.to_ne_bytes());
    }
    if t.path.traffic_class != 0 {
        let class = c_int::from(t.path.traffic_class);
        control.push(SOL_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
    }
    if t.path.flow_label != 0 {
        let label = t.path.flow_label & 0xf_ffff;
        control.push(SOL_IPV6, libc::IPV6_FLOWINFO, &label.to_be_bytes());
    }
}

/// The hop limit where it is not the one that the socket has anyway.
fn special_hop_limit(path: &Path) -> Option<c_int> {
    match path.hop_limit {
        0 | DEFAULT_HOP_LIMIT => None,
        hops => Some(c_int::from(hops)),
    }
}

/// What `msg_name` and `msg_control` of one send point at.
struct Message {
    name: SocketAddress,
    control: Control,
}

impl Message {
    /// A header for this message and `iov`; valid while both stay where they are.
    fn header(&mut self, iov: &mut libc::iovec) -> libc::msghdr {
        // SAFETY: a msghdr is integers and pointers, for which zero is a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = self.name.as_mut_ptr();
        header.msg_namelen = self.name.len();
        header.msg_iov = iov;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr();
        header.msg_controllen = self.control.len() as _;
        header
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The kernel's error for a send, in the terms of [`TxSocket::transmit`].
fn error(error: io::Error, transmit: &Transmit<'_>) -> io::Error {
    let segmented = transmit.segment.is_some_and(|size| usize::from(size) < transmit.bytes.len());
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => io::ErrorKind::WouldBlock.into(),
        Some(libc::EIO | libc::EINVAL) if segmented => io::ErrorKind::Unsupported.into(),
        _ => error,
    }
}

/// Attaches a filter that accepts nothing: nobody reads the socket, and what strangers send there
/// must not fill its buffer.
fn drop_all_received(fd: BorrowedFd<'_>) -> io::Result<()> {
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut program = [libc::sock_filter { code: ret, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    sockopt::set(fd, SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
}

impl AsFd for TxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
