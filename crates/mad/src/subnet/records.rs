//! Which bits of an attribute each bit of a component mask stands for (IBA 15.2.5), and how a query is compared.

/// Where a component is: first bit and number of bits.
type Field = (u16, u16);

/// NodeRecord: LID, then NodeInfo and NodeDescription.
pub(super) const NODE: &[Field] = &[
    (0, 16),
    (16, 16),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 8),
    (64, 64),
    (128, 64),
    (192, 64),
    (256, 16),
    (272, 16),
    (288, 32),
    (320, 8),
    (328, 24),
    (352, 512),
];

/// PortInfoRecord: LID, port, options, then of PortInfo as far as anybody asks for it.
pub(super) const PORT_INFO: &[Field] =
    &[(0, 16), (16, 8), (24, 8), (32, 64), (96, 64), (160, 16), (176, 16), (192, 32)];

/// SwitchInfoRecord: LID.
pub(super) const SWITCH_INFO: &[Field] = &[(0, 16), (16, 16)];

/// LinkRecord: LID and port of both ends.
pub(super) const LINK: &[Field] = &[(0, 16), (16, 8), (24, 8), (32, 16)];

/// SMInfoRecord: LID, GUID, SM_Key, activity, priority, state.
pub(super) const SM_INFO: &[Field] =
    &[(0, 16), (16, 16), (32, 64), (96, 64), (160, 32), (192, 4), (196, 4)];

/// P_KeyTableRecord: LID, block, port.
pub(super) const PKEY_TABLE: &[Field] = &[(0, 16), (16, 16), (32, 8)];

/// ServiceRecord: ID, GID, P_Key, reserved, lease, key, name, data in 8, 16, 32 and 64 bits.
pub(super) const SERVICE: &[Field] = &{
    let mut fields = [(0, 0); 37];
    let head = [(0, 64), (64, 128), (192, 16), (208, 16), (224, 32), (256, 128), (384, 512)];
    let (mut at, mut start) = (0, 896);
    while at < fields.len() {
        let size = match at {
            0..7 => 0,
            7..23 => 8,
            23..31 => 16,
            31..35 => 32,
            _ => 64,
        };
        fields[at] = if size == 0 { head[at] } else { (start, size) };
        start += size;
        at += 1;
    }
    fields
};

/// GUIDInfoRecord: LID, block.
pub(super) const GUID_INFO: &[Field] = &[(0, 16), (16, 8)];

/// SLtoVLMappingTableRecord: LID, port in, port out.
pub(super) const SL_TO_VL: &[Field] = &[(0, 16), (16, 8), (24, 8)];

/// VLArbitrationTableRecord: LID, port, block.
pub(super) const VL_ARBITRATION: &[Field] = &[(0, 16), (16, 8), (24, 8)];

/// LinearForwardingTableRecord: LID, block.
pub(super) const FORWARDING: &[Field] = &[(0, 16), (16, 16)];

/// MulticastForwardingTableRecord: LID, position, reserved, block.
pub(super) const MULTICAST_FORWARDING: &[Field] = &[(0, 16), (16, 4), (20, 3), (23, 9)];

/// InformInfoRecord: subscriber, number.
pub(super) const INFORM: &[Field] = &[(0, 128), (128, 16)];

/// MCMemberRecord.
pub(super) const MC_MEMBER: &[Field] = &[
    (0, 128),
    (128, 128),
    (256, 32),
    (288, 16),
    (304, 2),
    (306, 6),
    (312, 8),
    (320, 16),
    (336, 2),
    (338, 6),
    (344, 2),
    (346, 6),
    (352, 4),
    (356, 20),
    (376, 8),
    (384, 4),
    (388, 4),
    (392, 1),
];

/// The bits of a field.
fn bits(bytes: &[u8], (start, count): Field) -> Option<impl Iterator<Item = bool>> {
    let (start, end) = (usize::from(start), usize::from(start + count));
    let inside = bytes.len() * 8 >= end;
    inside.then(|| (start..end).map(|bit| bytes[bit / 8] & 0x80 >> (bit % 8) != 0))
}

/// Whether a record is one that is asked for. None: a component is asked for that is not known here.
pub(super) fn matches(record: &[u8], query: &[u8], mask: u64, fields: &[Field]) -> Option<bool> {
    for bit in (0..64).filter(|bit| mask & 1 << bit != 0) {
        let field = *fields.get(bit)?;
        if !bits(record, field)?.eq(bits(query, field)?) {
            return Some(false);
        }
    }
    Some(true)
}
