//! Packets to QP1 of other hosts that are heard of when they do not arrive (ICMP).

use std::io;
use std::sync::Arc;

use ironverbs_sys::errno::{EAFNOSUPPORT, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH};
use ironverbs_sys::udp::{Family, Transmit, TxSocket};
use ironverbs_transport::device::Sink;
use ironverbs_wire::mad::GSI_QPN;
use ironverbs_wire::{Gid, Packet, Path};

use crate::host::Inner;
use crate::link::{self, Outlet, Sender};
use crate::subnet::Subnet;

/// Sockets of their own, so that what ICMP says of them is about what was sent here.
#[derive(Debug)]
pub(crate) struct Reporting {
    sockets: Arc<ReportingSockets>,
    sender: Sender,
}

/// Why a packet did not arrive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// No process of the host has the port.
    Port,
    /// There is no way to the host, or no host.
    Host,
}

impl Reporting {
    /// Sockets whose source ports follow from `seed`.
    pub(crate) fn open(host: &Inner, seed: u16) -> io::Result<Reporting> {
        let open = |family| match link::socket(family, seed) {
            Ok(socket) => socket.keep_unreached().map(|()| Some(socket)),
            Err(e) if e.raw_os_error() == Some(EAFNOSUPPORT) => Ok(None),
            Err(e) => Err(e),
        };
        let port = host.config.udp_port.value;
        let (v4, v6) = (open(Family::V4)?, open(Family::V6)?);
        let sockets = Arc::new(ReportingSockets { v4, v6, port, subnet: host.subnet.clone() });
        let sender = Sender::new(sockets.clone(), host.sent.clone());
        Ok(Reporting { sockets, sender })
    }

    /// Sends a packet, by itself: they are few, and to different hosts.
    pub(crate) fn send(&mut self, host: &Inner, path: &Path, packet: &Packet<'_>) {
        send(&mut self.sender, host, path, packet);
    }

    /// Where packets have not arrived, and why, since the last call.
    pub(crate) fn unreached(&self) -> Vec<(Gid, Unreached)> {
        let mut found = Vec::new();
        for socket in [&self.sockets.v4, &self.sockets.v6].into_iter().flatten() {
            while let Ok(Some(unreached)) = socket.next_unreached() {
                let why = match unreached.errno {
                    ECONNREFUSED => Unreached::Port,
                    EHOSTUNREACH | ENETUNREACH => Unreached::Host,
                    _ => continue,
                };
                let what = (self.sockets.gid_of(unreached.dst), why);
                if !found.contains(&what) {
                    found.push(what);
                }
            }
        }
        found
    }
}

/// Sends a packet to QP1 as a batch of its own.
pub(crate) fn send(sender: &mut Sender, host: &Inner, path: &Path, packet: &Packet<'_>) {
    let devices = host.present_devices();
    let device = devices.iter().find(|device| device.has_gid(&path.src));
    sender.begin(device.map_or(0, |device| device.ifindex()));
    if let Some(room) = sender.reserve(path, GSI_QPN, len(packet)) {
        write(packet, room);
        sender.commit();
    }
    sender.flush();
}

/// Bytes from the BTH to the end of the MAD.
pub(crate) fn len(packet: &Packet<'_>) -> usize {
    Packet::header_len(packet.service, packet.op) + packet.payload.len()
}

/// Writes those bytes.
pub(crate) fn write(packet: &Packet<'_>, out: &mut [u8]) {
    let headers = packet.emit_header(out);
    if let Some(room) = out.get_mut(headers..).filter(|room| room.len() == packet.payload.len()) {
        room.copy_from_slice(packet.payload);
    }
}

#[derive(Debug)]
struct ReportingSockets {
    v4: Option<TxSocket>,
    v6: Option<TxSocket>,
    port: u16,
    subnet: Option<Arc<Subnet>>,
}

impl ReportingSockets {
    /// The path of the datagram that carries a packet.
    fn carrier(&self, path: &Path) -> Option<Path> {
        let Some(route) = &path.ib else { return Some(*path) };
        let subnet = self.subnet.as_ref()?;
        let address = |lid| subnet.of_lid(lid).map(|place| Gid::from_ip(place.address));
        let (src, dst) = (address(route.slid)?, address(route.dlid)?);
        Some(Path { src, dst, hop_limit: path.hop_limit, ..Path::default() })
    }

    /// What is asked for at an address.
    fn gid_of(&self, address: Gid) -> Gid {
        let place = self.subnet.as_ref().and_then(|subnet| subnet.of_address(address.to_ip()));
        place.map_or(address, |place| place.gid)
    }

    fn of(&self, path: &Path) -> Option<&TxSocket> {
        if path.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }
    }
}

impl Outlet for ReportingSockets {
    fn source_port(&self, path: &Path, _: u32) -> u16 {
        self.of(path).map_or(0, TxSocket::local_port)
    }

    fn send(&self, path: &Path, ifindex: u32, _: u32, bytes: &[u8], _: usize) -> io::Result<()> {
        let path = &self.carrier(path).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = self.of(path).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let ifindex = if path.dst.is_link_local() { ifindex } else { 0 };
        let transmit = Transmit { path, ifindex, dst_port: self.port, bytes, segment: None };
        // The first may only have told what became of an earlier one.
        socket.transmit(&transmit).or_else(|_| socket.transmit(&transmit))
    }

    fn port(&self) -> u16 {
        self.port
    }
}
