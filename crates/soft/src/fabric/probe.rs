//! How questions leave, and what comes back for those that did not arrive.

use std::io;
use std::sync::Arc;

use ironverbs_mad::Prober;
use ironverbs_sys::errno::{EAFNOSUPPORT, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH};
use ironverbs_sys::udp::{Family, Transmit, TxSocket};
use ironverbs_transport::device::Sink;
use ironverbs_wire::mad::{GSI_QPN, gmp};
use ironverbs_wire::{Gid, Packet, Path};

use crate::host::Inner;
use crate::link::{self, Outlet, Sender};
use crate::subnet::Subnet;

/// The prober with sockets of its own, so that what ICMP says of them is about its questions.
#[derive(Debug)]
pub(super) struct Probes {
    pub(super) prober: Prober,
    sockets: Arc<ProbeSockets>,
    sender: Sender,
    psn: u32,
}

impl Probes {
    pub(super) fn open(host: &Inner, prober: Prober, slot: u16) -> io::Result<Probes> {
        let seed = slot.wrapping_add(0x2000);
        let open = |family| match link::socket(family, seed) {
            Ok(socket) => socket.keep_unreached().map(|()| Some(socket)),
            Err(e) if e.raw_os_error() == Some(EAFNOSUPPORT) => Ok(None),
            Err(e) => Err(e),
        };
        let port = host.config.udp_port.value;
        let (v4, v6) = (open(Family::V4)?, open(Family::V6)?);
        let sockets = Arc::new(ProbeSockets { v4, v6, port, subnet: host.subnet.clone() });
        let sender = Sender::new(sockets.clone(), host.sent.clone());
        Ok(Probes { prober, sockets, sender, psn: 0 })
    }

    /// Takes what has come back, lets time pass, sends.
    pub(super) fn turn(&mut self, host: &Inner, now: ironverbs_mad::Instant) {
        self.take_unreached(now);
        self.prober.handle_timeout(now);
        self.send(host, now);
    }

    /// Sends what is to be sent.
    pub(super) fn send(&mut self, host: &Inner, now: ironverbs_mad::Instant) {
        let mut sent = false;
        while let Some(transmit) = self.prober.poll_transmit() {
            self.psn = self.psn.wrapping_add(1) & 0xff_ffff;
            let packet = gmp(transmit.pkey, self.psn, &transmit.mad);
            let devices = host.present_devices();
            let device = devices.iter().find(|device| device.has_gid(&transmit.path.src));
            self.sender.begin(device.map_or(0, |device| device.ifindex()));
            let len = Packet::header_len(packet.service, packet.op) + packet.payload.len();
            if let Some(room) = self.sender.reserve(&transmit.path, GSI_QPN, len) {
                let headers = packet.emit_header(room);
                if let Some(body) = room.get_mut(headers..) {
                    body.copy_from_slice(packet.payload);
                }
                self.sender.commit();
            }
            // Each is a packet of its own: they are few, and to different hosts.
            self.sender.flush();
            sent = true;
        }
        if sent {
            // On a short way the answer is there already.
            self.take_unreached(now);
        }
    }

    fn take_unreached(&mut self, now: ironverbs_mad::Instant) {
        for socket in [&self.sockets.v4, &self.sockets.v6].into_iter().flatten() {
            while let Ok(Some(unreached)) = socket.next_unreached() {
                if [ECONNREFUSED, EHOSTUNREACH, ENETUNREACH].contains(&unreached.errno) {
                    self.prober.unreachable(now, &self.sockets.gid_of(unreached.dst));
                }
            }
        }
    }
}

#[derive(Debug)]
struct ProbeSockets {
    v4: Option<TxSocket>,
    v6: Option<TxSocket>,
    port: u16,
    subnet: Option<Arc<Subnet>>,
}

impl ProbeSockets {
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

impl Outlet for ProbeSockets {
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
