//! Packet sockets (packet(7)): whole Ethernet frames of one interface, in and out. They need CAP_NET_RAW.
//!
//! A [`FrameSender`] marks what it sends, and a [`FrameReceiver`] takes of what leaves the interface only what is
//! marked so: programs of one host hear each other as an adapter's queues do, and not what the kernel sends.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use libc::{SOL_PACKET, SOL_SOCKET, c_int, c_void, socklen_t};

use crate::cancel;
use crate::event::EventFd;
use crate::process::{check, owned};

/// SO_MARK of what is sent.
const MARK: u32 = 0x4952_4f4e;

/// Bytes of the longest frame: what a GSO batch of the kernel holds at most.
pub const MAX_FRAME: usize = 65_536 + 18;

/// Frames that one system call takes.
pub const BATCH: usize = 32;

/// Frames that one system call brings.
const RECEIVED: usize = 16;

const RECEIVE_SPACE: c_int = 8 << 20;

// linux/if_packet.h.
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_OUTGOING: u8 = 4;

/// `struct packet_mreq`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Membership {
    ifindex: c_int,
    kind: u16,
    address_len: u16,
    address: [u8; 8],
}

/// `struct virtio_net_hdr` (virtio 1.2, 5.1.6), with which a frame starts under PACKET_VNET_HDR.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Offload {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;

/// `struct tpacket_auxdata` (linux/if_packet.h), which the libc crate lacks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Auxiliary {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const ETH_P_8021Q: u16 = 0x8100;

fn set<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: T) -> io::Result<()> {
    // SAFETY: `value` is alive during the call, and its size is passed with it.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as socklen_t,
        )
    })
    .map(drop)
}

/// A packet socket that takes nothing in yet.
fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointers; the descriptor is new.
    unsafe { owned(libc::socket(libc::AF_PACKET, kind, 0)) }
}

fn bind(fd: BorrowedFd<'_>, ifindex: u32, protocol: c_int) -> io::Result<()> {
    // SAFETY: integers and an array of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = ifindex as c_int;
    // SAFETY: an address of the length given.
    check(unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as socklen_t)
    })
    .map(drop)
}

/// Sends frames on one interface.
#[derive(Debug)]
pub struct FrameSender {
    fd: OwnedFd,
}

impl FrameSender {
    /// For the interface of that number.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; ENODEV for an interface that is not there; otherwise as socket(2).
    pub fn open(ifindex: u32) -> io::Result<FrameSender> {
        let fd = open()?;
        bind(fd.as_fd(), ifindex, 0)?;
        // Kernels before 5.17 ask for CAP_NET_ADMIN: without it other programs of this host do not hear what is sent.
        let _ = set(fd.as_fd(), SOL_SOCKET, libc::SO_MARK, MARK);
        Ok(FrameSender { fd })
    }

    /// Sends frames, at most [`BATCH`]; how many were sent, of which the first is counted as sent whatever is said of
    /// others. Waits where the interface's queue is full.
    ///
    /// # Errors
    /// Of the first frame: EMSGSIZE where it is longer than the interface takes, EINVAL where it has no Ethernet
    /// header, ENETDOWN or ENXIO where the interface is down or gone, ENOBUFS where there is no room for it.
    pub fn send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let frames = frames.get(..BATCH).unwrap_or(frames);
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        for ((piece, message), frame) in pieces.iter_mut().zip(&mut messages).zip(frames) {
            let iov = libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast::<c_void>(),
                iov_len: frame.len(),
            };
            // SAFETY: integers and pointers, for which zero is a value.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_iov = ptr::from_mut(piece.write(iov));
            header.msg_hdr.msg_iovlen = 1;
            message.write(header);
        }
        let _held = cancel::held();
        loop {
            // SAFETY: as many messages as there are frames are filled in; they and what they point to outlive the call.
            let sent = check(unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    messages.as_mut_ptr().cast(),
                    frames.len() as u32,
                    0,
                )
            });
            match sent {
                Ok(sent) => return Ok(sent as usize),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What is to be known of a frame besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody has looked at the one of its transport.
    Unknown,
    /// It is right, whatever stands there.
    Right,
    /// It is to be filled in yet: over what is from `start` on, to `at`.
    Missing {
        /// Where the transport's header starts.
        start: usize,
        /// Where the checksum belongs.
        at: usize,
    },
}

/// A frame that came in.
#[derive(Debug)]
pub struct Frame<'a> {
    /// From the destination's address on, a VLAN tag included.
    pub bytes: &'a mut [u8],
    /// Of its transport.
    pub checksum: Checksum,
    /// It is several frames in one (GSO), with so many bytes of payload each; 0: it is one.
    pub segment: usize,
    /// It is on its way out, and was sent by a [`FrameSender`].
    pub leaves: bool,
}

/// Receives the frames of one interface, whoever they are addressed to.
#[derive(Debug)]
pub struct FrameReceiver {
    fd: OwnedFd,
}

fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

impl FrameReceiver {
    /// On the interface of that number. `loopback` says that what is sent there comes in again by itself.
    ///
    /// # Errors
    /// As for [`FrameSender::open`].
    pub fn open(ifindex: u32, loopback: bool) -> io::Result<FrameReceiver> {
        let fd = open()?;
        filter(fd.as_fd(), loopback)?;
        set(fd.as_fd(), SOL_PACKET, PACKET_AUXDATA, 1)?;
        set(fd.as_fd(), SOL_PACKET, PACKET_VNET_HDR, 1)?;
        // A failure leaves the default; without CAP_NET_ADMIN it is cut to the limit.
        if set(fd.as_fd(), SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_SPACE).is_err() {
            let _ = set(fd.as_fd(), SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_SPACE);
        }
        bind(fd.as_fd(), ifindex, libc::ETH_P_ALL)?;
        let request = Membership {
            ifindex: ifindex as c_int,
            kind: PACKET_MR_PROMISC,
            address_len: 0,
            address: [0; 8],
        };
        set(fd.as_fd(), SOL_PACKET, PACKET_ADD_MEMBERSHIP, request)?;
        Ok(FrameReceiver { fd })
    }

    /// Waits for frames, until `stop` is signalled, or for `timeout`. Whether to look for frames: false after `stop`.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&self, stop: &EventFd, timeout: Duration) -> io::Result<bool> {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [poll(self.fd.as_raw_fd()), poll(stop.as_fd().as_raw_fd())];
        let timeout = timeout.as_millis().try_into().unwrap_or(c_int::MAX);
        // SAFETY: two pollfds, alive during the call.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), 2, timeout) }) {
            Ok(_) => Ok(polled[1].revents == 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes frames that are there into `batch`; how many.
    ///
    /// # Errors
    /// ENETDOWN, once, when the interface has gone down; otherwise as recvmmsg(2).
    pub fn receive(&self, batch: &mut Frames) -> io::Result<usize> {
        batch.count = 0;
        batch.prepare();
        // SAFETY: `prepare` has all headers point to room in the batch, which outlives the call.
        let received = check(unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                batch.headers.as_mut_ptr(),
                batch.headers.len() as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        });
        match received {
            Ok(count) => batch.count = count as usize,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(batch.count)
    }
}

/// Takes what comes in, and of what goes out what is marked; nothing of that on a loopback interface.
fn filter(fd: BorrowedFd<'_>, loopback: bool) -> io::Result<()> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let ancillary = |offset: c_int| (libc::SKF_AD_OFF + offset) as u32;
    let marked = if loopback { 0 } else { u32::MAX };
    let mut program = [
        op(LOAD, 0, 0, ancillary(libc::SKF_AD_PKTTYPE)),
        op(IF_EQUAL, 0, 3, u32::from(PACKET_OUTGOING)),
        op(LOAD, 0, 0, ancillary(libc::SKF_AD_MARK)),
        op(IF_EQUAL, 0, 2, MARK),
        op(RETURN, 0, 0, marked),
        op(RETURN, 0, 0, u32::MAX),
        op(RETURN, 0, 0, 0),
    ];
    // SAFETY: an integer and a pointer, for which zero is a value.
    let mut handed: libc::sock_fprog = unsafe { mem::zeroed() };
    (handed.len, handed.filter) = (program.len() as u16, program.as_mut_ptr());
    // SAFETY: a live program of the length given, which the kernel copies.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            ptr::from_ref(&handed).cast(),
            size_of_val(&handed) as socklen_t,
        )
    })
    .map(drop)
}

/// Room for a VLAN tag before the frame as the kernel gives it.
const TAG: usize = 4;
const ADDRESSES: usize = 12;
const STRIDE: usize = (TAG + MAX_FRAME).next_multiple_of(64);
const CONTROL: usize = 64;

/// Room for control messages, aligned as they are.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// Frames that came in with one call, and the memory for them.
pub struct Frames {
    offloads: Box<[Offload]>,
    memory: Box<[u8]>,
    controls: Box<[Control]>,
    origins: Box<[libc::sockaddr_ll]>,
    pieces: Box<[[libc::iovec; 2]]>,
    headers: Box<[libc::mmsghdr]>,
    count: usize,
}

// SAFETY: the pointers within lead to memory that it owns itself.
unsafe impl Send for Frames {}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Default for Frames {
    fn default() -> Frames {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: integers and pointers, for which zero is a value.
        let (header, origin): (libc::mmsghdr, libc::sockaddr_ll) = unsafe { mem::zeroed() };
        Frames {
            offloads: vec![Offload::default(); RECEIVED].into(),
            memory: vec![0; RECEIVED * STRIDE].into(),
            controls: vec![Control([0; CONTROL]); RECEIVED].into(),
            origins: vec![origin; RECEIVED].into(),
            pieces: vec![[empty; 2]; RECEIVED].into(),
            headers: vec![header; RECEIVED].into(),
            count: 0,
        }
    }
}

impl Frames {
    fn prepare(&mut self) {
        let memory = self.memory.chunks_exact_mut(STRIDE);
        let rooms = self.offloads.iter_mut().zip(memory).zip(&mut self.controls);
        let places = self.pieces.iter_mut().zip(&mut self.origins).zip(&mut self.headers);
        for (((offload, memory), control), ((pieces, origin), header)) in rooms.zip(places) {
            let room = memory.get_mut(TAG..TAG + MAX_FRAME).unwrap_or_default();
            *pieces = [
                libc::iovec {
                    iov_base: ptr::from_mut(offload).cast(),
                    iov_len: size_of::<Offload>(),
                },
                libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() },
            ];
            header.msg_len = 0;
            header.msg_hdr.msg_name = ptr::from_mut(origin).cast();
            header.msg_hdr.msg_namelen = size_of_val(origin) as socklen_t;
            header.msg_hdr.msg_iov = pieces.as_mut_ptr();
            header.msg_hdr.msg_iovlen = pieces.len() as _;
            header.msg_hdr.msg_control = ptr::from_mut(control).cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
            header.msg_hdr.msg_flags = 0;
        }
    }

    /// Hands each to `take`.
    pub fn each(&mut self, mut take: impl FnMut(Frame<'_>)) {
        let memory = self.memory.chunks_exact_mut(STRIDE);
        let frames = self.headers.iter().zip(&self.offloads).zip(&self.origins).zip(memory);
        for (((header, offload), origin), memory) in frames.take(self.count) {
            let Some(len) = (header.msg_len as usize).checked_sub(size_of::<Offload>()) else {
                continue;
            };
            let cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            if !(ADDRESSES + 2..=MAX_FRAME).contains(&len) || cut {
                continue;
            }
            let tag = tag_of(&header.msg_hdr);
            let first = if tag.is_some() { 0 } else { TAG };
            if let Some((kind, value)) = tag {
                memory.copy_within(TAG..TAG + ADDRESSES, 0);
                let at = ADDRESSES..ADDRESSES + TAG;
                if let Some(to) = memory.get_mut(at) {
                    to[..2].copy_from_slice(&kind.to_be_bytes());
                    to[2..].copy_from_slice(&value.to_be_bytes());
                }
            }
            let Some(bytes) = memory.get_mut(first..TAG + len) else { continue };
            let shift = TAG - first;
            let start = usize::from(offload.csum_start) + shift;
            let checksum = match offload.flags {
                flags if flags & NEEDS_CSUM != 0 => {
                    Checksum::Missing { start, at: start + usize::from(offload.csum_offset) }
                }
                flags if flags & DATA_VALID != 0 => Checksum::Right,
                _ => Checksum::Unknown,
            };
            let segment = if offload.gso_type == 0 { 0 } else { offload.gso_size.into() };
            let leaves = origin.sll_pkttype == PACKET_OUTGOING;
            take(Frame { bytes, checksum, segment, leaves });
        }
    }
}

/// The VLAN tag that the kernel took off: its kind and value.
fn tag_of(header: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel filled the control messages of the header in, which lead to memory of the batch's own.
    let auxiliary = unsafe {
        let message = libc::CMSG_FIRSTHDR(header);
        let message = message.as_ref()?;
        let fits =
            message.cmsg_len as usize >= libc::CMSG_LEN(size_of::<Auxiliary>() as u32) as usize;
        if message.cmsg_level != SOL_PACKET || message.cmsg_type != PACKET_AUXDATA || !fits {
            return None;
        }
        libc::CMSG_DATA(message).cast::<Auxiliary>().read_unaligned()
    };
    let has = |bit: u32| auxiliary.status & bit != 0;
    let kind = if has(VLAN_TPID_VALID) { auxiliary.vlan_tpid } else { ETH_P_8021Q };
    has(VLAN_VALID).then_some((kind, auxiliary.vlan_tci))
}
