//! Management datagrams of devices on InfiniBand links, other than the connection manager's: what comes to QP0 and
//! QP1 is answered by the port itself, or goes to the agent that asked for it, in whatever process of the user.
//!
//! The upper half of a request's transaction ID is the agent's: its process's slot and its number, so that the answer
//! finds it. Which process takes requests of a class is in the registry, where listeners of the connection manager
//! are, too.

mod agent;
mod counters;
mod port;
mod smp;
pub(crate) mod steward;

use ironverbs_transport::device::{Instant, Sink};
use ironverbs_wire::ib::PERMISSIVE_LID;
use ironverbs_wire::mad::{GSI_QKEY, GSI_QPN, MAD_LEN, Mad, MadHeader, cm};
use ironverbs_wire::{Bth, Deth, Gid, Op, Opcode, Packet, Path, Service};

use agent::{MANAGER, SA_CLIENT};
pub use agent::{MadAddress, MadPort, ReceivedMad};
pub(crate) use agent::{Manager, TIMER};

use crate::cm::{Came, pass};
use crate::host::Inner;
use crate::registry::Registry;
use crate::subnet::{Place, Subnet};

/// QP number of subnet management (IBA 3.9.3).
pub(crate) const SMI_QPN: u32 = 0;

/// Classes (IBA 13.4.4).
const SUBN_LID: u8 = 0x01;
const SUBN_DIRECTED: u8 = 0x81;
const PERFORMANCE: u8 = 0x04;

/// The administrator's class, and the method of its reports.
const SUBN_ADM: u8 = 0x03;
const REPORT: u8 = 0x06;

/// Methods (IBA 13.4.5).
const GET: u8 = 0x01;
const SET: u8 = 0x02;
const TRAP_REPRESS: u8 = 0x07;
const RESPONSE: u8 = 0x80;

/// Who a MAD is for.
enum To {
    /// A port of this host, or the switch.
    Node(Target),
    /// An agent of this process.
    Agent(u32),
    /// A process of this host.
    Slot(u16),
    Nobody,
}

/// A node that answers by itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Target {
    Port(Place),
    Switch,
}

/// Sends a MAD to QP0 or QP1 of whoever `path` leads to, this host's ports and the switch included.
pub(crate) fn send(host: &Inner, path: &Path, qpn: u32, pkey: u16, mad: &Mad) {
    let packet = packet_of(qpn, pkey, mad);
    let Some(subnet) = &host.subnet else { return };
    let Some(path) = directed(subnet, path, mad) else { return };
    let dlid = path.ib.map_or(0, |route| route.dlid);
    if host.is_local(&path.dst) || dlid == subnet.switch_lid() {
        return take(host, &path, &packet, mad, None);
    }
    let Some(mut sender) = host.sender() else { return };
    let headers = Packet::header_len(packet.service, packet.op);
    if let Some(room) = sender.reserve(&path, qpn, headers + MAD_LEN) {
        let (head, payload) = room.split_at_mut(headers);
        packet.emit_header(head);
        payload.copy_from_slice(mad);
        sender.commit();
    }
    sender.flush();
}

/// Takes a MAD that has arrived, by the way of `came` if at a socket.
pub(crate) fn take(
    host: &Inner,
    path: &Path,
    packet: &Packet<'_>,
    mad: &Mad,
    came: Option<&Came<'_>>,
) {
    let Some(subnet) = &host.subnet else { return };
    let qpn = packet.bth.dest_qpn;
    match addressee(host, subnet, path, qpn, mad) {
        To::Node(target) => {
            if let Some(answer) = answer(host, subnet, &target, path, mad) {
                send(host, &path.reversed(), qpn, packet.bth.pkey, &answer);
            }
        }
        To::Agent(agent) => {
            let source = packet.deth.map_or(qpn, |deth| deth.src_qpn);
            if agent & SA_CLIENT == MANAGER {
                return host.steward.receive(host, path, qpn, packet.bth.pkey, mad);
            }
            if agent & SA_CLIENT == SA_CLIENT {
                return host.fabric.sa.receive(host, path, mad);
            }
            host.management.deliver(host, agent, path, source, packet.bth.pkey, mad);
        }
        To::Slot(slot) => {
            if let Some(registry) = host.registry() {
                pass(host, registry, slot, path, packet, came);
            }
        }
        To::Nobody => host.received.unknown_qp(),
    }
}

/// The MAD in a packet that came to QP0 or QP1, whatever its class.
pub(crate) fn mad_in<'a>(packet: &Packet<'a>) -> Option<&'a Mad> {
    let qkey = packet.deth?.qkey;
    let plain = packet.service == Service::Ud && packet.op == Op::SendOnly;
    // IBA 10.2.5: QP0 has no Q_Key.
    let keyed = packet.bth.dest_qpn == SMI_QPN || qkey == GSI_QKEY;
    if plain && keyed { packet.payload.try_into().ok() } else { None }
}

/// Whether a MAD is the connection manager's.
pub(crate) fn is_cm(mad: &Mad) -> bool {
    mad.get(1) == Some(&cm::CLASS)
}

/// Whether the port with a GID is one of this host's, and its link is up.
pub(crate) fn is_up(host: &Inner, gid: &Gid) -> bool {
    let devices = host.present_devices();
    let own = |device: &std::sync::Arc<crate::Device>| {
        device.link().0 && device.place().is_some_and(|place| place.gid == *gid)
    };
    devices.iter().any(own)
}

fn header(mad: &Mad) -> MadHeader {
    mad.first_chunk().map(MadHeader::parse).unwrap_or_default()
}

/// A TrapRepress is one, too, without the bit (IBA 13.4.5).
fn is_response(header: &MadHeader) -> bool {
    header.method & RESPONSE != 0
        || header.method == TRAP_REPRESS
        || header.class == SUBN_DIRECTED && header.status & smp::DIRECTION != 0
}

fn addressee(host: &Inner, subnet: &Subnet, path: &Path, qpn: u32, mad: &Mad) -> To {
    let header = header(mad);
    if is_response(&header) {
        let number = (header.tid >> 32) as u32;
        return match host.registry().map(Registry::slot) {
            Some(slot) if agent::slot_of(number) != slot => To::Slot(agent::slot_of(number)),
            _ => To::Agent(number),
        };
    }
    let target = match path.ib {
        Some(route) if route.dlid == subnet.switch_lid() => Some(Target::Switch),
        _ => subnet.of_gid(&path.dst).map(Target::Port),
    };
    let own = match (qpn, header.class) {
        (SMI_QPN, SUBN_LID | SUBN_DIRECTED) => smp::is_the_ports(&header),
        (GSI_QPN, PERFORMANCE) => true,
        _ => false,
    };
    let steward =
        || host.registry().and_then(|registry| Some((registry, steward::slot(registry)?)));
    if own && let Some(target) = target {
        // The steward knows which hosts are there, and is to hear who manages the subnet.
        let concerns = qpn == SMI_QPN && (header.method == SET || target == Target::Switch);
        return match steward().filter(|(registry, slot)| concerns && *slot != registry.slot()) {
            Some((_, slot)) => To::Slot(slot),
            None => To::Node(target),
        };
    }
    if (qpn, header.class, header.method) == (GSI_QPN, SUBN_ADM, REPORT)
        && let Some((registry, slot)) = steward()
    {
        return match slot == registry.slot() {
            true => To::Agent(agent::number(slot, MANAGER)),
            false => To::Slot(slot),
        };
    }
    let Some(registry) = host.registry() else {
        return host.management.taker(qpn, &header).map_or(To::Nobody, To::Agent);
    };
    match registry.listener(agent::service(qpn, header.class).into(), &path.dst) {
        Some(slot) if slot != registry.slot() => To::Slot(slot),
        Some(_) => host.management.taker(qpn, &header).map_or(To::Nobody, To::Agent),
        None => match (qpn, header.class, steward()) {
            (SMI_QPN, SUBN_LID | SUBN_DIRECTED, Some((_, slot)))
            | (GSI_QPN, SUBN_ADM, Some((_, slot))) => match slot == registry.slot() {
                true => To::Agent(agent::number(slot, MANAGER)),
                false => To::Slot(slot),
            },
            _ => To::Nobody,
        },
    }
}

/// The number of the administrator's client in the process in a slot.
pub(crate) fn sa_number(slot: u16) -> u32 {
    agent::number(slot, SA_CLIENT)
}

/// What a node says to a request; None: nothing.
fn answer(host: &Inner, subnet: &Subnet, target: &Target, path: &Path, mad: &Mad) -> Option<Mad> {
    match header(mad).class {
        PERFORMANCE => counters::answer(host, subnet, target, mad),
        _ => {
            let asker = subnet.of_gid(&path.src)?;
            let node = port::Node::new(host, subnet, target, &asker)?;
            if smp::violates_key(&node, mad) {
                steward::violated(host, subnet, target, path, mad);
                return None;
            }
            smp::answer(&node, mad)
        }
    }
}

/// Where a MAD goes. A directed route is that of its initial path (IBA 14.2.2): from a port there is one way, to the
/// switch, and from there one to each port. It begins at the sender, or where its first part by LID ends. None: it leads
/// nowhere.
fn directed(subnet: &Subnet, path: &Path, mad: &Mad) -> Option<Path> {
    let header = header(mad);
    if header.class != SUBN_DIRECTED || is_response(&header) {
        return Some(*path);
    }
    let route = path.ib?;
    let own = subnet.of_lid(route.slid)?;
    let to = |lid, gid| {
        let ib = ironverbs_wire::IbRoute { slid: own.lid, dlid: lid, sl: 0, grh: false };
        Some(Path { src: own.gid, dst: gid, ib: Some(ib), ..Path::default() })
    };
    let switch = || to(subnet.switch_lid(), Gid::UNSPECIFIED);
    let port = |number: u8| {
        let place = subnet.of_number(number.into())?;
        to(place.lid, place.gid)
    };
    let by_lid = smp::begins_by_lid(mad);
    let begins_at_switch = by_lid && route.dlid == subnet.switch_lid();
    match (begins_at_switch, smp::initial_path(mad)?) {
        (false, []) => {
            let start = if by_lid { subnet.of_lid(route.dlid)? } else { own };
            to(start.lid, start.gid)
        }
        (true, []) | (false, [1]) => switch(),
        (true, &[number]) | (false, &[1, number]) => port(number),
        _ => None,
    }
}

/// The packet that carries a MAD to QP0 or QP1.
fn packet_of(qpn: u32, pkey: u16, mad: &Mad) -> Packet<'_> {
    let qkey = if qpn == SMI_QPN { 0 } else { GSI_QKEY };
    Packet {
        bth: Bth {
            opcode: Opcode::new(Service::Ud, Op::SendOnly),
            pkey,
            dest_qpn: qpn,
            ..Bth::default()
        },
        deth: Some(Deth { qkey, src_qpn: qpn }),
        ..ironverbs_wire::mad::gmp(pkey, 0, mad)
    }
}

/// The LID that a program is told a MAD came from: of a directed route none (IBA 14.2.2.2).
fn told_lid(path: &Path, header: &MadHeader) -> u16 {
    if header.class == SUBN_DIRECTED { PERMISSIVE_LID } else { path.ib.map_or(0, |r| r.slid) }
}

/// Something may have to be repeated, or given up.
pub(crate) fn timeout(host: &Inner, now: Instant) {
    host.management.timeout(host, now);
}
