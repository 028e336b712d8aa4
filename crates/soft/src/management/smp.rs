//! Subnet management packets as the port or the switch answers them (IBA 14.2).

use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::port::Node;
use super::{GET, RESPONSE, SET, SUBN_DIRECTED, header};

/// In the status of a directed-route packet: it is on its way back.
pub(super) const DIRECTION: u16 = 0x8000;

/// The attribute's bytes in the packet.
const DATA: std::ops::Range<usize> = 64..128;
const M_KEY: std::ops::Range<usize> = 24..32;
const INITIAL_PATH: usize = 128;
const LONGEST_PATH: usize = 63;

/// Status codes (IBA 13.4.7).
pub(super) const BAD_VERSION: u16 = 1 << 2;
pub(super) const BAD_METHOD: u16 = 2 << 2;
pub(super) const BAD_ATTRIBUTE: u16 = 3 << 2;
pub(super) const BAD_VALUE: u16 = 7 << 2;

mod attribute {
    pub(super) const NODE_DESCRIPTION: u16 = 0x10;
    pub(super) const NODE_INFO: u16 = 0x11;
    pub(super) const SWITCH_INFO: u16 = 0x12;
    pub(super) const GUID_INFO: u16 = 0x14;
    pub(super) const PORT_INFO: u16 = 0x15;
    pub(super) const PKEY_TABLE: u16 = 0x16;
    pub(super) const SL_TO_VL: u16 = 0x17;
    pub(super) const VL_ARBITRATION: u16 = 0x18;
    pub(super) const LINEAR_FORWARDING: u16 = 0x19;
    pub(super) const MULTICAST_FORWARDING: u16 = 0x1b;
    pub(super) const SM_INFO: u16 = 0x20;
}

/// Whether the node answers such a packet, and not a subnet manager.
pub(super) fn is_the_ports(header: &MadHeader) -> bool {
    matches!(header.method, GET | SET) && header.attribute != attribute::SM_INFO
}

/// The ports by which a directed-route request leaves, one for each hop; None: more than can be.
pub(super) fn initial_path(mad: &Mad) -> Option<&[u8]> {
    let hops = usize::from(mad[7]);
    // Entry 0 is not used.
    (hops <= LONGEST_PATH).then(|| mad.get(INITIAL_PATH + 1..=INITIAL_PATH + hops)).flatten()
}

/// Whether a directed route has a part by LID before it: DrSLID is not the permissive LID (IBA 14.2.2).
pub(super) fn begins_by_lid(mad: &Mad) -> bool {
    mad[32..34] != [0xff; 2]
}

/// Whether a packet has the node's key (IBA 14.2.4).
fn knows_key(node: &Node<'_>, mad: &Mad) -> bool {
    let key = mad.get(M_KEY).and_then(|key| key.try_into().ok()).map(u64::from_be_bytes);
    key == Some(node.m_key())
}

/// Whether a packet is one that nobody is to send without the node's key: what changes something. With M_KeyProtectBits 1
/// all may ask.
pub(super) fn violates_key(node: &Node<'_>, mad: &Mad) -> bool {
    node.m_key() != 0 && header(mad).method == SET && !knows_key(node, mad)
}

/// What the node says to a Get or Set. A Set changes what a subnet manager may change here: whose port it is. All
/// else follows from the configuration, and is told as it is.
pub(super) fn answer(node: &Node<'_>, mad: &Mad) -> Option<Mad> {
    let asked = header(mad);
    let mut out = *mad;
    let mut data = [0; 64];
    let set = asked.method == SET;
    let given: &[u8; 64] = mad.get(DATA)?.try_into().ok()?;
    let status = if asked.base_version != BASE_VERSION || asked.class_version != 1 {
        BAD_VERSION
    } else {
        attribute_of(node, &asked, set, given, &mut data)
    };
    out[3] = GET | RESPONSE;
    if asked.attribute == attribute::PORT_INFO && knows_key(node, mad) {
        data[..8].copy_from_slice(&node.m_key().to_be_bytes());
    }
    let directed = asked.class == SUBN_DIRECTED;
    let status = if directed { status | DIRECTION } else { status };
    out[4..6].copy_from_slice(&status.to_be_bytes());
    if directed {
        // It has arrived at its beginning again.
        out[6] = 0;
    }
    if status & !DIRECTION == 0 {
        out.get_mut(DATA)?.copy_from_slice(&data);
    }
    Some(out)
}

fn attribute_of(
    node: &Node<'_>,
    asked: &MadHeader,
    set: bool,
    given: &[u8; 64],
    data: &mut [u8; 64],
) -> u16 {
    let port = asked.modifier & 0xff;
    match (asked.attribute, set) {
        (attribute::NODE_DESCRIPTION, false) => node.description(data),
        (attribute::NODE_INFO, false) => node.info(data),
        (attribute::SWITCH_INFO, _) if node.is_switch() => node.switch_info(data),
        (attribute::GUID_INFO, _) => node.guids(asked.modifier, data),
        (attribute::PORT_INFO, _) => {
            if set && !node.set_port_info(port, given) {
                return BAD_VALUE;
            }
            if !node.port_info(port, data) {
                return BAD_VALUE;
            }
        }
        (attribute::PKEY_TABLE, _) => {
            // A switch has the port in the upper half.
            node.pkeys(asked.modifier & 0xffff, data);
        }
        (attribute::SL_TO_VL | attribute::VL_ARBITRATION, false) => {}
        (attribute::LINEAR_FORWARDING, _) if node.is_switch() => {
            node.forwarding(asked.modifier, data);
        }
        (
            attribute::SL_TO_VL | attribute::VL_ARBITRATION | attribute::MULTICAST_FORWARDING,
            true,
        ) => *data = *given,
        (attribute::MULTICAST_FORWARDING, false) if node.is_switch() => {}
        (attribute::NODE_DESCRIPTION | attribute::NODE_INFO, true) => return BAD_METHOD,
        _ => return BAD_ATTRIBUTE,
    }
    0
}
