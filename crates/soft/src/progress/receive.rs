//! What comes from the network, and its way to the queue pairs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::udp::Datagram;
use ironverbs_transport::qp::Short;
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::icrc::{self, Verdict};
use ironverbs_wire::mad::{GSI_QPN, mad_of};
use ironverbs_wire::{Gid, ICRC_LEN, Packet, Path, ib, peek_dest_qpn};

use super::Now;
use crate::cm::{self, Came};
use crate::host::Inner;
use crate::link::max_ident;
use crate::management::{self, SMI_QPN};
use crate::multicast;
use crate::neighbours::{Content, Record};
use crate::qp::Left;
use crate::registry::Registry;
use crate::surroundings::Pull;
use crate::{Device, Qp};

const UDP_HEADER: usize = 8;

/// What came from the network.
#[derive(Debug, Default)]
pub(crate) struct ReceiveCounters {
    pub(crate) packets: AtomicU64,
    /// Shorter than a packet can be, or cut by the kernel.
    pub(crate) truncated: AtomicU64,
    pub(crate) bad_icrc: AtomicU64,
    pub(crate) malformed: AtomicU64,
    /// For a queue pair that does not exist.
    pub(crate) unknown_qp: AtomicU64,
    /// UD packets to an address that the queue pair's device does not have.
    pub(crate) wrong_address: AtomicU64,
    /// For another process of this host, and handed on.
    pub(crate) forwarded: AtomicU64,
}

impl ReceiveCounters {
    pub(crate) fn unknown_qp(&self) {
        count(&self.unknown_qp);
    }
}

/// Takes the packets of a round to their queue pairs.
pub(super) struct Receiver<'a> {
    host: &'a Inner,
    /// None for packets that another process handed on: they are not handed on again.
    group: Option<&'a Registry>,
    /// The interface that packets arrived on; 0: not known.
    ifindex: u32,
    pub(super) now: Now<'a>,
    /// The QP of the last packet, to be settled when one for another comes.
    current: Option<Arc<Qp>>,
    /// What is left to do for it.
    left: Left,
    /// The QP that was looked up last.
    last: &'a mut Weak<Qp>,
    owing: &'a mut Vec<Arc<Qp>>,
    /// Acknowledgements wait for the next round.
    pub(super) defer: bool,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(
        host: &'a Inner,
        group: Option<&'a Registry>,
        last: &'a mut Weak<Qp>,
        owing: &'a mut Vec<Arc<Qp>>,
    ) -> Receiver<'a> {
        Receiver {
            host,
            group,
            ifindex: 0,
            now: Now::of(&host.clock),
            current: None,
            left: Left::Nothing,
            last,
            owing,
            defer: false,
        }
    }

    pub(super) fn datagram(&mut self, datagram: &Datagram<'_>) {
        if datagram.truncated {
            count(&self.host.received.truncated);
            return;
        }
        self.ifindex = datagram.ifindex;
        for packet in datagram.segments() {
            self.packet(&datagram.path, datagram.src_port, packet);
        }
    }

    pub(super) fn packet(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let counters = &self.host.received;
        count(&counters.packets);
        if ib::is_datagram(bytes) {
            return self.infiniband(path, src_port, bytes);
        }
        // Hosts of a subnet hear each other only in its own format.
        if self.host.subnet.is_some() {
            return count(&counters.malformed);
        }
        let Some(qpn) = peek_dest_qpn(bytes) else { return count(&counters.truncated) };
        if qpn == GSI_QPN {
            return self.management(path, src_port, bytes);
        }
        if qpn == multicast::QPN {
            return self.multicast(path, src_port, bytes);
        }
        if !self.select(qpn) {
            return self.stranger(qpn, path, src_port, bytes);
        }
        if let Some(packet) = self.verify(path, src_port, bytes) {
            self.deliver(path, &packet);
        }
    }

    /// An InfiniBand packet, which came by the way of `from`.
    fn infiniband(&mut self, from: &Path, src_port: u16, bytes: &[u8]) {
        let counters = &self.host.received;
        let Some(subnet) = &self.host.subnet else { return count(&counters.malformed) };
        let Some(qpn) = peek_dest_qpn(bytes) else { return count(&counters.truncated) };
        let known = qpn <= GSI_QPN || qpn == multicast::QPN || self.select(qpn);
        if !known {
            return self.stranger(qpn, from, src_port, bytes);
        }
        let (path, body) = match ib::open(bytes) {
            Ok(opened) => opened,
            Err(ib::OpenError::Malformed) => return count(&counters.malformed),
            Err(ib::OpenError::Vcrc | ib::OpenError::Icrc) => return count(&counters.bad_icrc),
        };
        let Some(path) = subnet.arrived(from.src.to_ip(), from.dst.to_ip(), &path) else {
            return count(&counters.wrong_address);
        };
        let Ok(packet) = Packet::parse(body) else { return count(&counters.malformed) };
        match qpn {
            // Until its link is up nothing comes to a port, and nobody takes it for one that is there.
            SMI_QPN | GSI_QPN if !management::is_up(self.host, &path.dst) => {
                count(&counters.wrong_address);
            }
            SMI_QPN | GSI_QPN => match management::mad_in(&packet) {
                Some(mad) if qpn == GSI_QPN && management::is_cm(mad) => {
                    self.gmp(&path, from, src_port, bytes, &packet);
                }
                Some(mad) => {
                    let came = Came { path: from, src_port, bytes };
                    management::take(self.host, &path, &packet, mad, Some(&came));
                }
                None => count(&counters.malformed),
            },
            multicast::QPN => self.group_packet(&path, from, src_port, bytes, &packet),
            _ => self.deliver(&path, &packet),
        }
    }

    /// The packet, if it is intact.
    fn verify<'b>(&self, path: &Path, src_port: u16, bytes: &'b [u8]) -> Option<Packet<'b>> {
        let counters = &self.host.received;
        let port = self.host.config.udp_port.value;
        if icrc::verify(path, src_port, port, bytes, max_ident(src_port)) == Verdict::Bad {
            count(&counters.bad_icrc);
            return None;
        }
        // `verify` finds packets without room for the ICRC bad.
        let body = bytes.len().checked_sub(ICRC_LEN).and_then(|len| bytes.get(..len))?;
        let packet = Packet::parse(body).ok();
        if packet.is_none() {
            count(&counters.malformed);
        }
        packet
    }

    /// A packet for QP1: the connection manager's, of this process or another.
    fn management(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let Some(packet) = self.verify(path, src_port, bytes) else { return };
        self.gmp(path, path, src_port, bytes, &packet);
    }

    /// The packet that `bytes` are and that came by the way of `from`.
    fn gmp(&mut self, path: &Path, from: &Path, src_port: u16, bytes: &[u8], packet: &Packet<'_>) {
        let Ok(mad) = mad_of(packet) else { return count(&self.host.received.malformed) };
        let came = Came { path: from, src_port, bytes };
        let ours =
            self.group.is_none_or(|group| cm::is_ours(self.host, group, path, &came, packet, mad));
        match ours {
            true => self.host.cm.receive(self.host, path, packet.bth.pkey, mad),
            false => count(&self.host.received.forwarded),
        }
    }

    /// A packet for every QP that is attached to the group.
    fn multicast(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let members = self.host.groups.members(&path.dst, self.ifindex);
        if members.is_empty() {
            let joined =
                |group: &Registry| group.forward_group(path, self.ifindex, src_port, bytes);
            let counters = &self.host.received;
            return match self.group.map_or(0, joined) {
                0 => count(&counters.unknown_qp),
                _ => count(&counters.forwarded),
            };
        }
        let Some(packet) = self.verify(path, src_port, bytes) else { return };
        for qp in members.iter().filter(|qp| qp.hears(path, &packet)) {
            qp.handle_packet(&packet, path, udp_len(&packet), self.now.get());
        }
    }

    /// A packet of an InfiniBand multicast group. The host got it once, whatever processes have members.
    fn group_packet(
        &mut self,
        path: &Path,
        from: &Path,
        src_port: u16,
        bytes: &[u8],
        packet: &Packet<'_>,
    ) {
        let devices = self.host.present_devices();
        let place = |device: &Arc<Device>| device.place().map(|place| Gid::from_ip(place.address));
        let device = devices.iter().find(|device| place(device) == Some(from.dst));
        let Some(ifindex) = device.map(|device| device.ifindex()) else {
            return count(&self.host.received.unknown_qp);
        };
        let members = self.host.groups.members(&path.dst, ifindex);
        let elsewhere = |group: &Registry| {
            group.forward_subnet_group(&path.dst, ifindex, from, src_port, bytes)
        };
        if self.group.map_or(0, elsewhere) == 0 && members.is_empty() {
            return count(&self.host.received.unknown_qp);
        }
        for qp in members.iter().filter(|qp| qp.hears(path, packet)) {
            qp.handle_packet(packet, path, udp_len(packet), self.now.get());
        }
    }

    /// Gives the current QP a packet.
    fn deliver(&mut self, path: &Path, packet: &Packet<'_>) {
        let Some(qp) = &self.current else { return };
        if qp.qp_type() == QpType::Ud && !qp.context().device().has_gid(&path.dst) {
            return count(&self.host.received.wrong_address);
        }
        qp.handle_packet(packet, path, udp_len(packet), self.now.get());
    }

    /// A record that came by a lane.
    pub(super) fn record(&mut self, record: &Record<'_>) {
        match record.content() {
            Content::Packet(packet) => self.connected(record.slot, &packet, None),
            Content::Reference(source, packet) => {
                self.connected(record.slot, &packet, Some(Pull { pid: record.pid, source }));
            }
            Content::Datagram(path, packet)
                if path.ib.is_some() && packet.bth.dest_qpn <= GSI_QPN =>
            {
                match management::mad_in(&packet).copied() {
                    Some(mad) if packet.bth.dest_qpn == GSI_QPN && management::is_cm(&mad) => {
                        self.host.cm.receive(self.host, &path, packet.bth.pkey, &mad);
                    }
                    Some(mad) => management::take(self.host, &path, &packet, &mad, None),
                    None => count(&self.host.received.malformed),
                }
            }
            Content::Datagram(path, packet) if packet.bth.dest_qpn == GSI_QPN => {
                // A copy: the sender may still write where this is.
                match mad_of(&packet).copied() {
                    Ok(mad) => self.host.cm.receive(self.host, &path, packet.bth.pkey, &mad),
                    Err(_) => count(&self.host.received.malformed),
                }
            }
            Content::Datagram(path, packet) => {
                if self.select(packet.bth.dest_qpn) {
                    self.deliver(&path, &packet);
                }
            }
            Content::Absent(qpn) => self.host.refused(record.slot, qpn),
            Content::Nonsense => count(&self.host.received.malformed),
        }
    }

    /// A packet of a connected QP of the process in `slot`, its payload to be fetched where there is a `pull`.
    fn connected(&mut self, slot: u16, packet: &Packet<'_>, pull: Option<Pull>) {
        let qpn = packet.bth.dest_qpn;
        let taken = self.select(qpn)
            && self
                .current
                .as_ref()
                .is_some_and(|qp| qp.handle_record(slot, packet, pull, &mut self.now));
        if !taken {
            self.host.refuse(slot, qpn);
        }
    }

    /// A short message from the process in `slot`.
    pub(super) fn short(&mut self, slot: u16, mut short: Short<'_>, has_message: bool) {
        if let Some(qp) = self.choose(short.dest_qpn)
            && let Some(left) = qp.handle_short(slot, &mut short, has_message)
        {
            self.left = self.left.max(left);
            return;
        }
        if let Some(packet) = short.acknowledgement() {
            self.connected(slot, &packet, None);
        }
        if has_message {
            self.connected(slot, &short.request(), None);
        }
    }

    /// Makes the QP of that number the current one, of which everything may have changed; false when there is none.
    fn select(&mut self, qpn: u32) -> bool {
        let found = self.choose(qpn).is_some();
        self.left = Left::Unknown;
        found
    }

    /// Makes the QP of that number the current one.
    fn choose(&mut self, qpn: u32) -> Option<&Arc<Qp>> {
        if self.current.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
            self.finish();
            self.current = self.last.upgrade().filter(|qp| qp.is(qpn));
            if self.current.is_none() {
                self.current = self.host.qps.read().get(qpn);
                *self.last = self.current.as_ref().map(Arc::downgrade).unwrap_or_default();
            }
        }
        self.current.as_ref()
    }

    /// A packet that is for nobody here: GRO may have merged it with packets of ours.
    #[cold]
    fn stranger(&mut self, qpn: u32, path: &Path, src_port: u16, bytes: &[u8]) {
        match self.group {
            Some(registry) if !self.host.qps.read().is_ours(qpn) => {
                count(&self.host.received.forwarded);
                registry.forward(qpn, path, src_port, bytes);
            }
            _ => count(&self.host.received.unknown_qp),
        }
    }

    pub(super) fn finish(&mut self) {
        let Some(qp) = self.current.take() else { return };
        let left = match std::mem::replace(&mut self.left, Left::Nothing) {
            Left::Nothing => return,
            Left::Acks if self.defer => Left::Acks,
            Left::Acks | Left::Unknown => qp.settle(self.defer, &mut self.now),
        };
        if left == Left::Acks && !self.owing.iter().any(|other| Arc::ptr_eq(other, &qp)) {
            self.owing.push(qp);
        }
    }
}

/// The UDP length field of the packet's datagram.
fn udp_len(packet: &Packet<'_>) -> u16 {
    let body = Packet::header_len(packet.service, packet.op) + packet.payload.len();
    let len = UDP_HEADER + body + usize::from(packet.bth.pad) + ICRC_LEN;
    u16::try_from(len).unwrap_or(u16::MAX)
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
