//! Port counters (IBA 16.1): performance management of the ports of this host.

use ironverbs_wire::mad::{BASE_VERSION, Mad};

use super::smp::{BAD_ATTRIBUTE, BAD_METHOD, BAD_VALUE, BAD_VERSION};
use super::{GET, RESPONSE, SET, Target, header};
use crate::host::Inner;
use crate::subnet::Subnet;

mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const PORT_COUNTERS: u16 = 0x12;
    pub(super) const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
}

/// Extended counters are there (IBA 16.1.3.1).
const EXTENDED_WIDTH: u16 = 1 << 9;

/// What a node says to a request of the class; None: nothing.
pub(super) fn answer(host: &Inner, subnet: &Subnet, target: &Target, mad: &Mad) -> Option<Mad> {
    let asked = header(mad);
    let mut out = *mad;
    let data: &mut [u8; 192] = out.get_mut(64..)?.try_into().ok()?;
    let selected = usize::from(data[1]);
    let ports = if *target == Target::Switch { subnet.ports() } else { 1 };
    let there = selected == 0xff || (selected <= ports && (selected > 0 || ports > 1));
    let status = match (asked.attribute, asked.method) {
        _ if asked.base_version != BASE_VERSION || asked.class_version != 1 => BAD_VERSION,
        (_, method) if !matches!(method, GET | SET) => return None,
        (attribute::CLASS_PORT_INFO, GET) => {
            data.fill(0);
            data[..4].copy_from_slice(&[1, 1, (EXTENDED_WIDTH >> 8) as u8, 0]);
            data[7] = crate::context::limits::RESPONSE_TIME;
            0
        }
        (attribute::PORT_COUNTERS | attribute::PORT_COUNTERS_EXTENDED, _) if !there => BAD_VALUE,
        (attribute::PORT_COUNTERS, GET) => {
            let counted = Counted::of(host, target);
            data[2..].fill(0);
            let words = [counted.sent_data, counted.received_data, counted.sent, counted.received];
            for (room, value) in data[24..40].as_chunks_mut::<4>().0.iter_mut().zip(words) {
                // They stop at their largest value.
                *room = u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
            }
            0
        }
        (attribute::PORT_COUNTERS_EXTENDED, GET) => {
            let counted = Counted::of(host, target);
            data[2..].fill(0);
            let words = [
                counted.sent_data,
                counted.received_data,
                counted.sent,
                counted.received,
                counted.sent,
                counted.received,
            ];
            for (room, value) in data[8..56].as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *room = value.to_be_bytes();
            }
            0
        }
        // They cannot be set back.
        (attribute::PORT_COUNTERS | attribute::PORT_COUNTERS_EXTENDED, SET) => BAD_METHOD,
        _ => BAD_ATTRIBUTE,
    };
    out[3] = GET | RESPONSE;
    out[4..6].copy_from_slice(&status.to_be_bytes());
    Some(out)
}

/// What this user's processes have sent and received by their queue pairs, in packets and words of four bytes.
#[derive(Copy, Clone, Debug, Default)]
struct Counted {
    sent: u64,
    received: u64,
    sent_data: u64,
    received_data: u64,
}

impl Counted {
    fn of(host: &Inner, target: &Target) -> Counted {
        let mut sum = Counted::default();
        if *target == Target::Switch {
            return sum;
        }
        let processes = host.registry().map(|registry| registry.processes()).unwrap_or_default();
        for counters in processes.iter().flat_map(|p| &p.qps).map(|qp| &qp.counters) {
            sum.sent += counters.tx_packets;
            sum.received += counters.rx_packets;
            sum.sent_data += counters.tx_bytes / 4;
            sum.received_data += counters.rx_bytes / 4;
        }
        sum
    }
}
