//! Sending: packets of one QP gathered into batches that the kernel takes in one call.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironverbs_sys::udp::{Family, MAX_BATCH, MAX_SEGMENTS, Transmit, TxSocket};
use ironverbs_transport::device::Sink;
use ironverbs_wire::icrc::Prefix;
use ironverbs_wire::{Gid, ICRC_LEN, IbRoute, Path, ib};

use crate::subnet::Subnet;

/// Source ports of ours. RoCEv2 adapters and rxe use 0xc000 and above, so a receiver tells by the port that the
/// IPv4 Identification can only be the index of a segment.
const SOURCE_PORTS: std::ops::Range<u16> = 0x8000..0xc000;

/// Sockets per family: packets to different processes of a host come from different ports, so that GRO does not
/// merge them.
const SOCKETS: usize = 4;

/// The largest Identification to believe of a packet from this port.
pub(crate) fn max_ident(src_port: u16) -> u16 {
    if SOURCE_PORTS.contains(&src_port) { MAX_SEGMENTS as u16 - 1 } else { 0xffff }
}

/// What was sent and what could not be.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    pub(crate) packets: AtomicU64,
    pub(crate) batches: AtomicU64,
    /// Packets that the kernel did not take; to the transport they are lost on the way.
    pub(crate) refused: AtomicU64,
}

/// Where batches go: the network, or a simulated one.
pub(crate) trait Outlet: Send + Sync + std::fmt::Debug {
    /// The source port of packets to `dest_qpn` on `path`.
    fn source_port(&self, path: &Path, dest_qpn: u32) -> u16;
    /// Sends packets of `segment` bytes each (the last may be shorter), one behind the other in `bytes`.
    fn send(
        &self,
        path: &Path,
        ifindex: u32,
        dest_qpn: u32,
        bytes: &[u8],
        segment: usize,
    ) -> io::Result<()>;
    /// The destination port.
    fn port(&self) -> u16;
}

/// UDP sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    v4: Vec<TxSocket>,
    v6: Vec<TxSocket>,
    port: u16,
    subnet: Option<Arc<Subnet>>,
}

impl Sockets {
    pub(crate) fn open(port: u16, seed: u16, subnet: Option<Arc<Subnet>>) -> io::Result<Sockets> {
        let open = |family| -> io::Result<Vec<_>> {
            (0..SOCKETS as u16).map(|i| socket(family, seed.wrapping_add(i))).collect()
        };
        let v4 = open(Family::V4).or_else(none_without_family)?;
        let v6 = open(Family::V6).or_else(none_without_family)?;
        Ok(Sockets { v4, v6, port, subnet })
    }

    fn socket(&self, path: &Path, dest_qpn: u32) -> Option<&TxSocket> {
        let pool = if path.is_ipv4() { &self.v4 } else { &self.v6 };
        // Bits 12 to 21 are the slot of the process.
        pool.get((dest_qpn >> 12) as usize % SOCKETS)
    }

    /// Sends InfiniBand packets to the host of the port that they are for; those of a group to every host of the
    /// subnet, this one included.
    fn send_on_subnet(
        &self,
        path: &Path,
        route: &IbRoute,
        dest_qpn: u32,
        bytes: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        let unreachable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let subnet = self.subnet.as_ref().ok_or_else(unreachable)?;
        let own = subnet.of_lid(route.slid).ok_or_else(unreachable)?.address;
        let one = |to: IpAddr| {
            let path = Path {
                src: Gid::from_ip(own),
                dst: Gid::from_ip(to),
                hop_limit: 64,
                traffic_class: path.traffic_class,
                ..Path::default()
            };
            self.send(&path, 0, dest_qpn, bytes, segment)
        };
        if path.dst.is_multicast() {
            let mut result = Ok(());
            for to in subnet.addresses() {
                // One that cannot be reached keeps no other from its copy.
                let family = to.is_ipv4() == own.is_ipv4();
                if let (Err(e), true) = (one(to), family) {
                    result = Err(e);
                }
            }
            return result;
        }
        one(subnet.of_lid(route.dlid).ok_or_else(unreachable)?.address)
    }
}

/// A socket with one of our source ports.
pub(crate) fn socket(family: Family, seed: u16) -> io::Result<TxSocket> {
    let span = SOURCE_PORTS.end - SOURCE_PORTS.start;
    for attempt in 0..64u16 {
        let hint = SOURCE_PORTS.start
            + seed.wrapping_mul(97).wrapping_add(attempt.wrapping_mul(1021)) % span;
        let socket = TxSocket::bind(family, hint)?;
        if SOURCE_PORTS.contains(&socket.local_port()) {
            return Ok(socket);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no free UDP source port from 32768 to 49151"))
}

fn none_without_family(e: io::Error) -> io::Result<Vec<TxSocket>> {
    match e.raw_os_error() {
        Some(ironverbs_sys::errno::EAFNOSUPPORT) => Ok(Vec::new()),
        _ => Err(e),
    }
}

impl Outlet for Sockets {
    fn source_port(&self, path: &Path, dest_qpn: u32) -> u16 {
        self.socket(path, dest_qpn).map_or(0, TxSocket::local_port)
    }

    fn send(
        &self,
        path: &Path,
        ifindex: u32,
        dest_qpn: u32,
        bytes: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        if let Some(route) = &path.ib {
            return self.send_on_subnet(path, route, dest_qpn, bytes, segment);
        }
        let socket = self.socket(path, dest_qpn).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let scoped = path.dst.is_link_local() || path.dst.is_multicast();
        let ifindex = if scoped { ifindex } else { 0 };
        let batch = bytes.len() > segment;
        let transmit = Transmit {
            path,
            ifindex,
            dst_port: self.port,
            bytes,
            segment: if batch { u16::try_from(segment).ok() } else { None },
        };
        socket.transmit(&transmit)
    }

    fn port(&self) -> u16 {
        self.port
    }
}

/// Gathers packets to one place into a batch; it is sent when a packet does not fit it, and on `flush`.
#[derive(Debug)]
pub(crate) struct Sender {
    outlet: Arc<dyn Outlet>,
    counters: Arc<LinkCounters>,
    buffer: Box<[u8]>,
    ifindex: u32,
    batch: Batch,
    /// Bytes of the packet reserved last, with all that is around it.
    reserved: usize,
    prefix: Option<(PrefixKey, Prefix)>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Batch {
    path: Path,
    dest_qpn: u32,
    src_port: u16,
    /// Bytes of all packets but the last.
    segment: usize,
    packets: usize,
    used: usize,
}

type PrefixKey = (Path, u16, usize);

impl Batch {
    /// Whether a packet of `len` bytes can be the next one: to the same process, no longer than the first, and
    /// none behind a shorter one.
    fn takes(&self, path: &Path, dest_qpn: u32, len: usize) -> bool {
        self.packets > 0
            && self.packets < MAX_SEGMENTS
            && self.used + len <= MAX_BATCH
            && self.used == self.packets * self.segment
            && len <= self.segment
            && self.dest_qpn >> 12 == dest_qpn >> 12
            && self.path == *path
    }
}

impl Sender {
    pub(crate) fn new(outlet: Arc<dyn Outlet>, counters: Arc<LinkCounters>) -> Sender {
        Sender {
            outlet,
            counters,
            buffer: vec![0; MAX_BATCH].into(),
            ifindex: 0,
            batch: Batch::default(),
            reserved: 0,
            prefix: None,
        }
    }

    /// Starts to send for a device on this interface.
    pub(crate) fn begin(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }

    /// Sends what is gathered.
    pub(crate) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if batch.packets == 0 {
            return;
        }
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.packets.fetch_add(batch.packets as u64, Ordering::Relaxed);
        let bytes = &self.buffer[..batch.used];
        let send = |bytes: &[u8]| {
            self.outlet.send(&batch.path, self.ifindex, batch.dest_qpn, bytes, batch.segment)
        };
        match send(bytes) {
            Ok(()) => {}
            // The kernel or the device does not split for us.
            Err(_) if batch.packets > 1 => self.send_singly(&batch),
            Err(_) => self.refused(1),
        }
    }

    /// Sends the packets of a batch one by one; their Identifications are then all 0.
    #[cold]
    fn send_singly(&mut self, batch: &Batch) {
        let mut refused = 0;
        for packet in self.buffer[..batch.used].chunks_mut(batch.segment) {
            if batch.path.ib.is_some() {
                // Nothing in an InfiniBand packet is about the datagram.
                let sent = self.outlet.send(
                    &batch.path,
                    self.ifindex,
                    batch.dest_qpn,
                    packet,
                    batch.segment,
                );
                refused += u64::from(sent.is_err());
                continue;
            }
            let Some((body, trailer)) = packet.split_at_mut_checked(packet.len() - ICRC_LEN) else {
                continue;
            };
            let port = self.outlet.port();
            let prefix = Prefix::new(&batch.path, batch.src_port, port, body.len());
            trailer.copy_from_slice(&prefix.compute(0, body).to_le_bytes());
            let sent =
                self.outlet.send(&batch.path, self.ifindex, batch.dest_qpn, packet, batch.segment);
            refused += u64::from(sent.is_err());
        }
        self.refused(refused);
    }

    fn refused(&self, packets: u64) {
        self.counters.refused.fetch_add(packets, Ordering::Relaxed);
    }

    fn prefix(&mut self, len: usize) -> Prefix {
        let key = (self.batch.path, self.batch.src_port, len);
        match self.prefix {
            Some((of, prefix)) if of == key => prefix,
            _ => {
                let prefix =
                    Prefix::new(&self.batch.path, self.batch.src_port, self.outlet.port(), len);
                self.prefix = Some((key, prefix));
                prefix
            }
        }
    }
}

/// Bytes before and behind what the transport writes of a packet.
fn surroundings(path: &Path) -> (usize, usize) {
    match &path.ib {
        Some(route) => (ib::head_len(route), ib::TRAILER),
        None => (0, ICRC_LEN),
    }
}

impl Sink for Sender {
    fn reserve(&mut self, path: &Path, dest_qpn: u32, len: usize) -> Option<&mut [u8]> {
        let (head, tail) = surroundings(path);
        let whole = head + len + tail;
        if whole > MAX_BATCH {
            return None;
        }
        if !self.batch.takes(path, dest_qpn, whole) {
            self.flush();
            let src_port = self.outlet.source_port(path, dest_qpn);
            self.batch =
                Batch { path: *path, dest_qpn, src_port, segment: whole, packets: 0, used: 0 };
        }
        self.reserved = whole;
        self.buffer.get_mut(self.batch.used + head..self.batch.used + head + len)
    }

    fn commit(&mut self) {
        let (start, end) = (self.batch.used, self.batch.used + self.reserved);
        if self.batch.path.ib.is_some() {
            // What is no packet is dropped by whoever gets it.
            let _ = ib::seal(&self.batch.path, &mut self.buffer[start..end]);
        } else {
            let body = end - ICRC_LEN;
            let ident = self.batch.packets as u16;
            let icrc = self.prefix(body - start).compute(ident, &self.buffer[start..body]);
            self.buffer[body..end].copy_from_slice(&icrc.to_le_bytes());
        }
        self.batch.used = end;
        self.batch.packets += 1;
    }
}
