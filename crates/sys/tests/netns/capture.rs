//! Frames as they come off the cable.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use ironverbs_sys::event::{Epoll, Event, Interest};

use crate::WATCHDOG;

/// A packet socket (packet(7)) on every interface of the namespace it was made in.
pub(crate) struct Capture {
    file: File,
    epoll: Epoll,
}

/// An IPv4 packet over UDP.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) tos: u8,
    pub(crate) identification: u16,
    pub(crate) dont_fragment: bool,
    pub(crate) fragment: bool,
    pub(crate) ttl: u8,
    pub(crate) src: [u8; 4],
    pub(crate) dst: [u8; 4],
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) payload: Vec<u8>,
}

impl Capture {
    pub(crate) fn new() -> Self {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) };
        assert!(fd >= 0, "packet socket: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let space: libc::c_int = 8 << 20;
        // SAFETY: reads the integer `space`.
        let rc = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const space).cast(),
                size_of_val(&space) as _,
            )
        };
        assert_eq!(rc, 0);
        let epoll = Epoll::new().unwrap();
        epoll.add(fd.as_fd(), 0, Interest::READ).unwrap();
        Self { file: fd.into(), epoll }
    }

    /// The next `n` packets to a UDP port.
    pub(crate) fn take(&mut self, n: usize, dst_port: u16) -> Vec<Frame> {
        let mut frames = Vec::new();
        let end = Instant::now() + WATCHDOG;
        let mut buffer = vec![0; 1 << 17];
        while frames.len() < n {
            assert!(Instant::now() < end, "captured {} frames of {n}", frames.len());
            match self.file.read(&mut buffer) {
                Ok(len) => {
                    frames.extend(parse(&buffer[..len]).filter(|f| f.dst_port == dst_port));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let tick = Some(Duration::from_millis(100));
                    self.epoll.wait(&mut [Event::EMPTY], tick).unwrap();
                }
                Err(e) => panic!("capture: {e}"),
            }
        }
        frames
    }
}

/// An Ethernet frame with IPv4 without options and UDP.
fn parse(frame: &[u8]) -> Option<Frame> {
    let ip = frame.get(14..)?;
    if ip.first() != Some(&0x45) || ip.get(9) != Some(&(libc::IPPROTO_UDP as u8)) {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]));
    let flags = u16_at(6)?;
    Some(Frame {
        tos: *ip.get(1)?,
        identification: u16_at(4)?,
        dont_fragment: flags & 0x4000 != 0,
        fragment: flags & 0x3fff != 0,
        ttl: *ip.get(8)?,
        src: *ip.get(12..)?.first_chunk()?,
        dst: *ip.get(16..)?.first_chunk()?,
        src_port: u16_at(20)?,
        dst_port: u16_at(22)?,
        payload: ip.get(28..usize::from(u16_at(2)?))?.to_vec(),
    })
}
