//! QP1: how MADs leave and arrive.
//!
//! Between processes of this host they go through lanes, as other datagrams do, save that a full lane loses none; where
//! there is no lane, by the registry's mail; all else by UDP.

use std::sync::atomic::{AtomicBool, Ordering};

use ironverbs_mad::{Destination, Transmit, destination};
use ironverbs_wire::icrc::Prefix;
use ironverbs_wire::mad::{Mad, gmp};
use ironverbs_wire::{Gid, ICRC_LEN, Packet, Path, ib};

use parking_lot::Mutex;

use super::grace;
use super::manager::{SLOT_BITS, TIMER};
use crate::config::DataPath;
use crate::host::Inner;
use crate::registry::Registry;
use crate::reporting::{self, Reporting, Unreached, len, write};

/// The source port that a MAD has which another process of this host is handed.
const HANDED_PORT: u16 = 0x8000;

/// What became of a MAD.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way, or lost.
    Away,
    /// It is for this process.
    Here,
}

/// Which processes of this host a MAD is for.
enum For {
    Us,
    Slot(u16),
    Everybody,
}

/// Sends a MAD: to peers on this host from process to process, to others by UDP.
pub(super) fn send(host: &Inner, transmit: &Transmit, psn: u32) -> Sent {
    let packet = gmp(transmit.pkey, psn, &transmit.mad);
    let near = host.config.path.value != DataPath::Wire && host.is_local(&transmit.path.dst);
    let Some(registry) = host.registry().filter(|_| near) else {
        // Without a wire there is nobody but us.
        if near && !host.has_wire() {
            return Sent::Here;
        }
        by_udp(host, &transmit.path, &packet);
        return Sent::Away;
    };
    match addressee(host, registry, &transmit.path.dst, &transmit.mad) {
        For::Us => Sent::Here,
        For::Slot(slot) => {
            pass(host, registry, slot, &transmit.path, &packet, None);
            Sent::Away
        }
        For::Everybody => {
            let bytes = whole(host, &transmit.path, &packet);
            registry.hand_to_all(&carrier(host, &transmit.path), HANDED_PORT, &bytes);
            Sent::Here
        }
    }
}

/// Hands a MAD that has waited in this process to whom it is for.
pub(super) fn hand_on(host: &Inner, path: &Path, pkey: u16, mad: &Mad) -> Sent {
    let Some(registry) = host.registry() else { return Sent::Here };
    let For::Slot(slot) = addressee(host, registry, &path.dst, mad) else { return Sent::Here };
    pass(host, registry, slot, path, &gmp(pkey, 0, mad), None);
    Sent::Away
}

/// Gives a packet to the process in a slot: through a lane, or by mail, then as it `came` to a socket, if it did: the
/// source port and all bytes.
pub(crate) fn pass(
    host: &Inner,
    registry: &Registry,
    slot: u16,
    path: &Path,
    packet: &Packet<'_>,
    came: Option<&Came<'_>>,
) {
    if host.post_datagram(slot, path, packet) {
        return;
    }
    let handed = match came {
        Some(came) => {
            Handed { path: *came.path, src_port: came.src_port, bytes: came.bytes.to_vec() }
        }
        None => Handed {
            path: carrier(host, path),
            src_port: HANDED_PORT,
            bytes: whole(host, path, packet),
        },
    };
    hand(host, registry, slot, handed);
}

/// A packet as it came to a socket: by which way, and all bytes.
pub(crate) struct Came<'a> {
    /// What its IP header said; of an InfiniBand packet it is not the packet's own path.
    pub(crate) path: &'a Path,
    /// Its source port.
    pub(crate) src_port: u16,
    /// The UDP payload.
    pub(crate) bytes: &'a [u8],
}

/// What the IP header of the datagram says that carries a packet on this path.
fn carrier(host: &Inner, path: &Path) -> Path {
    let (Some(route), Some(subnet)) = (&path.ib, &host.subnet) else { return *path };
    let address = |lid| subnet.of_lid(lid).map(|place| Gid::from_ip(place.address));
    let (src, dst) = (address(route.slid), address(route.dlid));
    // What goes to or comes from the switch stays on the host.
    let (src, dst) = (src.or(dst), dst.or(src));
    let known = |gid: Option<Gid>| gid.unwrap_or(Gid::UNSPECIFIED);
    let (src, dst) = (known(src), known(dst));
    Path { src, dst, hop_limit: path.hop_limit, ..Path::default() }
}

/// A whole packet for another process of this host.
#[derive(Debug)]
pub(super) struct Handed {
    path: Path,
    src_port: u16,
    bytes: Vec<u8>,
}

/// Packets that may wait for room in mailboxes.
const MOST_WAITING: usize = 4096;

/// How soon a full mailbox is tried again, in nanoseconds.
const AGAIN: u64 = 500_000;

/// Mails a packet, or keeps it until there is room in the mailbox: those of Linux hold ten by default.
fn hand(host: &Inner, registry: &Registry, slot: u16, handed: Handed) {
    let mut waiting = host.cm.waiting.lock();
    // In order.
    let first = !waiting.iter().any(|(other, _)| *other == slot);
    if first && registry.hand_to(slot, &handed.path, handed.src_port, &handed.bytes)
        || waiting.len() >= MOST_WAITING
        || !registry.has_tenant(slot)
    {
        return;
    }
    waiting.push_back((slot, handed));
    drop(waiting);
    host.add_timer(host.now().after(AGAIN), TIMER);
}

/// Mails what has waited for room.
pub(super) fn hand_again(host: &Inner) {
    let mut waiting = host.cm.waiting.lock();
    let Some(registry) = host.registry().filter(|_| !waiting.is_empty()) else { return };
    let mut full = Vec::new();
    waiting.retain(|(slot, handed)| {
        if full.contains(slot) {
            return true;
        }
        let sent = registry.hand_to(*slot, &handed.path, handed.src_port, &handed.bytes);
        let keep = !sent && registry.has_tenant(*slot);
        if keep {
            full.push(*slot);
        }
        keep
    });
    if !waiting.is_empty() {
        drop(waiting);
        host.add_timer(host.now().after(AGAIN), TIMER);
    }
}

fn addressee(host: &Inner, registry: &Registry, dst: &Gid, mad: &Mad) -> For {
    let slot = match destination(mad) {
        Destination::CommId(id) => {
            let slot = ironverbs_mad::slot_of(id, SLOT_BITS) as u16;
            // For a process that is gone any other answers: it knows no such connection, and says so.
            Some(if registry.has_tenant(slot) { slot } else { registry.slot() })
        }
        // Who refuses where nobody listens, and nobody did, does not matter.
        Destination::ServiceId(service) => {
            let address = Gid::from_ip(host.ip_of(dst));
            let waits = || grace::waits_with(registry, service, &address);
            registry.listener(service.0, &address).or_else(waits).or(Some(registry.slot()))
        }
        Destination::Unknown => None,
    };
    match slot {
        None => For::Everybody,
        Some(slot) if slot == registry.slot() => For::Us,
        Some(slot) => For::Slot(slot),
    }
}

/// Whether a MAD that came to QP1's socket is for this process. If not, it is handed to whom it is for.
pub(crate) fn is_ours(
    host: &Inner,
    registry: &Registry,
    path: &Path,
    came: &Came<'_>,
    packet: &Packet<'_>,
    mad: &Mad,
) -> bool {
    match addressee(host, registry, &path.dst, mad) {
        For::Us => true,
        For::Slot(slot) => {
            pass(host, registry, slot, path, packet, Some(came));
            false
        }
        For::Everybody => {
            registry.hand_to_all(came.path, came.src_port, came.bytes);
            true
        }
    }
}

fn by_udp(host: &Inner, path: &Path, packet: &Packet<'_>) {
    if host.cm.reports.send(host, path, packet) {
        return;
    }
    let Some(mut sender) = host.sender() else { return };
    reporting::send(&mut sender, host, path, packet);
}

/// The sockets of MADs to other hosts. None until there is one, and where the network is no real one.
#[derive(Debug, Default)]
pub(super) struct Reports {
    open: Mutex<Option<Reporting>>,
    /// Something was sent since the last look: on a short way what ICMP says of it is there already.
    sent: AtomicBool,
    /// A look is to come.
    expected: AtomicBool,
}

/// How long after a MAD its host, if it is not further away than most, has said that nobody has the port, in nanoseconds.
/// What is said later is found when the MAD would be repeated.
const ICMP: u64 = 20_000_000;

impl Reports {
    /// False: not sent.
    fn send(&self, host: &Inner, path: &Path, packet: &Packet<'_>) -> bool {
        let Some(registry) = host.registry() else { return false };
        let mut open = self.open.lock();
        if open.is_none() {
            *open = Reporting::open(host, registry.slot().wrapping_add(0x3000)).ok();
        }
        let Some(reporting) = &mut *open else { return false };
        reporting.send(host, path, packet);
        drop(open);
        self.sent.store(true, Ordering::Relaxed);
        if !self.expected.swap(true, Ordering::Relaxed) {
            host.add_timer(host.now().after(ICMP), TIMER);
        }
        true
    }

    /// Hosts on which nobody has the port, as far as has been heard since the last call. `due`: a timer has brought us
    /// here.
    pub(super) fn refusals(&self, due: bool) -> Vec<Gid> {
        if due {
            self.expected.store(false, Ordering::Relaxed);
        } else if !self.sent.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.sent.store(false, Ordering::Relaxed);
        let open = self.open.lock();
        let found = open.as_ref().map(Reporting::unreached).unwrap_or_default();
        found.into_iter().filter(|(_, why)| *why == Unreached::Port).map(|(gid, _)| gid).collect()
    }
}

/// The packet as it would come from a socket.
fn whole(host: &Inner, path: &Path, packet: &Packet<'_>) -> Vec<u8> {
    let len = len(packet);
    if let Some(route) = &path.ib {
        let head = ib::head_len(route);
        let mut bytes = vec![0; head + len + ib::TRAILER];
        if let Some(body) = bytes.get_mut(head..head + len) {
            write(packet, body);
        }
        // What could not be sealed is dropped by whoever gets it.
        let _ = ib::seal(path, &mut bytes);
        return bytes;
    }
    let mut bytes = vec![0; len + ICRC_LEN];
    let (body, trailer) = bytes.split_at_mut(len);
    write(packet, body);
    let port = host.config.udp_port.value;
    let icrc = Prefix::new(path, HANDED_PORT, port, len).compute(0, body);
    trailer.copy_from_slice(&icrc.to_le_bytes());
    bytes
}
