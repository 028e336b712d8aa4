//! Records of what nodes have in tables: GUIDs, virtual lanes, forwarding (IBA 15.2.5.5 to 15.2.5.9, 15.2.5.18).

use super::attribute::{GUID_INFO, LINEAR_FORWARDING, MULTICAST_FORWARDING};
use super::db::{Node, NodeKind};

/// Blocks of arbitration: two of low priority, two of high.
const ARBITRATION: std::ops::RangeInclusive<u8> = 1..=4;

/// Ports of a switch that is not too large to tell how each passes on to each.
const MOST_PORTS: usize = 37;

/// A node's records of an attribute of subnet management.
pub(super) fn records(node: &Node, attribute: u16) -> Vec<Vec<u8>> {
    let of = node.tables.range((attribute, 0)..=(attribute, u32::MAX));
    of.filter_map(|((_, modifier), data)| {
        let [_, _, high, low] = modifier.to_be_bytes();
        let names = match attribute {
            GUID_INFO => [low, 0],
            // A block; of multicast the position in the upper four bits.
            LINEAR_FORWARDING | MULTICAST_FORWARDING => [high, low],
            _ => return None,
        };
        Some(record(node, names, data))
    })
    .collect()
}

/// SLtoVLMappingTableRecords: of an adapter, ports 0. Ports with one lane have all service levels in it.
pub(super) fn service_levels(node: &Node) -> Vec<Vec<u8>> {
    if node.kind() != NodeKind::Switch {
        return single(node).map(|_| record(node, [0, 0], &[0; 8])).collect();
    }
    if node.ports.len() > MOST_PORTS {
        return Vec::new();
    }
    let ports = || single(node);
    ports().flat_map(|to| ports().map(move |from| record(node, [from, to], &[0; 8]))).collect()
}

/// VLArbitrationTableRecords: with one lane there is nothing to arbitrate.
pub(super) fn arbitration(node: &Node) -> Vec<Vec<u8>> {
    let blocks = |port| ARBITRATION.map(move |block| record(node, [port, block], &[0; 64]));
    single(node).flat_map(blocks).collect()
}

/// Ports with one virtual lane for data, as VLCap says (IBA 14.2.5.6); how those with more use them is left to them.
fn single(node: &Node) -> impl Iterator<Item = u8> {
    node.ports.iter().filter(|(_, info)| info[37] >> 4 <= 1).map(|(port, _)| *port)
}

fn record(node: &Node, names: [u8; 2], table: &[u8]) -> Vec<u8> {
    let mut record = node.lid().to_be_bytes().to_vec();
    record.extend_from_slice(&names);
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(table);
    record
}
