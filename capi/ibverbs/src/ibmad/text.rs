//! Values as text, as libibmad prints them: what scripts read in the output of diagnostics.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::ptr;

use super::warn::warn;

/// How the value of a field is printed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Uint,
    Hex,
    /// Without 0x.
    Rhex,
    /// The bytes in hex.
    Array,
    /// A quoted string.
    Text,
    Bitfield,
    NodeType,
    NodeDesc,
    PortState,
    PhysPortState,
    LinkDownDefState,
    LinkWidth,
    LinkWidthSup,
    LinkWidthEn,
    LinkSpeed,
    /// Supported and enabled speeds read alike.
    LinkSpeedSup,
    LinkSpeedExt,
    LinkSpeedExtSup,
    LinkSpeedExtEn,
    Mtu,
    VlCap,
    OperVls,
    PortCapMask,
    PortCapMask2,
    SlToVl,
    VlArbitration,
}

const WIDTHS: &[&str] = &["1X", "4X", "8X", "12X", "2X"];
const SPEEDS: &[&str] = &["2.5 Gbps", "5.0 Gbps", "10.0 Gbps"];
const EXTENDED: &[&str] = &["14.0625 Gbps", "25.78125 Gbps", "53.125 Gbps", "106.25 Gbps"];
const VLS: &[&str] = &["VL0", "VL0-1", "VL0-3", "VL0-7", "VL0-14"];

/// PortInfo:CapabilityMask, by bit (IBA 14.2.5.6).
const CAPABILITIES: [&str; 32] = [
    "",
    "IsSM",
    "IsNoticeSupported",
    "IsTrapSupported",
    "IsOptionalIPDSupported",
    "IsAutomaticMigrationSupported",
    "IsSLMappingSupported",
    "IsMKeyNVRAM",
    "IsPKeyNVRAM",
    "IsLedInfoSupported",
    "IsSMdisabled",
    "IsSystemImageGUIDsupported",
    "IsPkeySwitchExternalPortTrapSupported",
    "",
    "IsExtendedSpeedsSupported",
    "IsCapabilityMask2Supported",
    // So it is spelled.
    "IsCommunicatonManagementSupported",
    "IsSNMPTunnelingSupported",
    "IsReinitSupported",
    "IsDeviceManagementSupported",
    "IsVendorClassSupported",
    "IsDRNoticeSupported",
    "IsCapabilityMaskNoticeSupported",
    "IsBootManagementSupported",
    "IsLinkRoundTripLatencySupported",
    "IsClientRegistrationSupported",
    "IsOtherLocalChangesNoticeSupported",
    "IsLinkSpeedWidthPairsTableSupported",
    "IsVendorSpecificMadsTableSupported",
    "IsMcastPkeyTrapSuppressionSupported",
    "IsMulticastFDBTopSupported",
    "IsHierarchyInfoSupported",
];

/// PortInfo:CapabilityMask2, by bit.
const CAPABILITIES2: [&str; 11] = [
    "IsSetNodeDescriptionSupported",
    "IsPortInfoExtendedSupported",
    "IsVirtualizationSupported",
    "IsSwitchPortStateTableSupported",
    "IsLinkWidth2xSupported",
    "IsLinkSpeedHDRSupported",
    "IsMKeyProtectBitsExtSupported",
    "IsEnhancedTrap128Supported",
    "IsPartitionTopSupported",
    "IsEnhancedQoSArbiterSupported",
    "IsLinkSpeedNDRSupported",
];

/// Writes text and its end to a buffer, cut to its size; nothing where there is no room at all.
///
/// # Safety
/// `buf` has room for `size` bytes.
pub(super) unsafe fn put(buf: *mut c_char, size: c_int, text: &[u8]) {
    let Ok(room @ 1..) = usize::try_from(size) else { return };
    let len = text.len().min(room - 1);
    // SAFETY: the caller's promise.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), len);
        buf.add(len).write(0);
    }
}

/// Prints a value to a buffer. `value` has `bytes` bytes, but numbers of up to four bytes are an int, longer ones a
/// uint64_t, in the host's order, whatever their width.
///
/// # Safety
/// `buf` has room for `size` bytes; `value` is as said.
pub(super) unsafe fn print(
    kind: Kind,
    buf: *mut c_char,
    size: c_int,
    value: *const c_void,
    bytes: c_int,
) {
    if buf.is_null() || value.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let text = unsafe {
        match kind {
            Kind::Int | Kind::Uint | Kind::Hex | Kind::Rhex => {
                number(kind, value, bytes).unwrap_or_default()
            }
            Kind::Array => {
                let shown = bytes.min(size / 2).max(0) as usize;
                if shown == 0 {
                    return;
                }
                hex(&from(value, shown))
            }
            // Cut to the field's size, quotes included.
            Kind::Text => return put(buf, size.min(bytes), &quoted(value, bytes)),
            Kind::NodeDesc => return node_desc(buf, size, value, bytes),
            Kind::SlToVl => sl_to_vl(&from(value, 8)),
            Kind::VlArbitration => vl_arbitration(&from(value, bytes.max(0) as usize)),
            _ => word(kind, value.cast::<u32>().read_unaligned(), size),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { put(buf, size, text.as_bytes()) };
}

/// # Safety
/// `value` has that many bytes.
unsafe fn from(value: *const c_void, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(value.cast(), bytes) }.to_vec()
}

/// None where there are no numbers of that size.
///
/// # Safety
/// As [`print`].
unsafe fn number(kind: Kind, value: *const c_void, bytes: c_int) -> Option<String> {
    let long = match bytes {
        // SAFETY: the caller's promise.
        1..=4 => u64::from(unsafe { value.cast::<u32>().read_unaligned() }),
        // SAFETY: the caller's promise.
        5..=8 => unsafe { value.cast::<u64>().read_unaligned() },
        _ => {
            let function = match kind {
                Kind::Int => "mad_dump_int",
                Kind::Uint => "mad_dump_uint",
                Kind::Rhex => "mad_dump_rhex",
                _ => "mad_dump_hex",
            };
            warn(function, format_args!("bad int sz {bytes}"));
            return None;
        }
    };
    let digits = 2 * bytes as usize;
    let masked = long & (u64::MAX >> (64 - 4 * digits));
    Some(match kind {
        // Of three bytes all four are shown.
        Kind::Int if bytes == 3 || bytes == 4 => (long as u32 as i32).to_string(),
        Kind::Int | Kind::Uint if bytes >= 3 => long.to_string(),
        Kind::Int | Kind::Uint => masked.to_string(),
        Kind::Rhex => format!("{masked:0digits$x}"),
        _ => format!("0x{masked:0digits$x}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// # Safety
/// `value` has `bytes` bytes.
unsafe fn quoted(value: *const c_void, bytes: c_int) -> Vec<u8> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { from(value, bytes.max(0) as usize) };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    [b"'", text, b"'"].concat()
}

/// Without an end where it fills the buffer.
///
/// # Safety
/// As [`print`].
unsafe fn node_desc(buf: *mut c_char, size: c_int, value: *const c_void, bytes: c_int) {
    let (Ok(room), Ok(bytes)) = (usize::try_from(size), usize::try_from(bytes)) else { return };
    // SAFETY: the caller's promise.
    let desc = unsafe { from(value, bytes.min(room)) };
    let text = desc.split(|byte| *byte == 0).next().unwrap_or_default();
    // SAFETY: the caller's promise; no more than there is room for.
    unsafe {
        ptr::write_bytes(buf, 0, room);
        ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), text.len());
    }
}

fn sl_to_vl(table: &[u8]) -> String {
    let mut text = String::from("|");
    for vl in table.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        let _ = write!(text, "{vl:2}|");
    }
    text + "\n"
}

fn vl_arbitration(table: &[u8]) -> String {
    let (entries, _) = table.as_chunks::<2>();
    let line = |values: &mut dyn Iterator<Item = u8>| {
        values.fold(String::new(), |mut line, value| {
            let _ = write!(line, "0x{value:<2X}|");
            line
        })
    };
    let vls = line(&mut entries.iter().map(|[vl, _]| vl & 15));
    let weights = line(&mut entries.iter().map(|[_, weight]| *weight));
    format!("\nVL    : |{vls}\nWEIGHT: |{weights}\n")
}

/// The kinds whose value is an int.
fn word(kind: Kind, value: u32, size: c_int) -> String {
    let room = usize::try_from(size).unwrap_or(0);
    let signed = value as i32;
    let at = value as usize;
    let known = |names: &[&str]| names.get(at).map(|name| (*name).to_owned());
    let from_one = |names: &[&str]| {
        at.checked_sub(1).and_then(|at| names.get(at)).map(|name| (*name).to_owned())
    };
    let unknown = || format!("?({signed})");
    match kind {
        Kind::NodeType => {
            from_one(&["Channel Adapter", "Switch", "Router"]).unwrap_or(format!("?({signed})?"))
        }
        Kind::PortState => {
            known(&["NoChange", "Down", "Initialize", "Armed", "Active"]).unwrap_or_else(unknown)
        }
        Kind::PhysPortState => known(&[
            "NoChange",
            "Sleep",
            "Polling",
            "Disabled",
            "PortConfigurationTraining",
            "LinkUp",
            "LinkErrorRecovery",
            "PhyTest",
        ])
        .unwrap_or_else(unknown),
        Kind::LinkDownDefState => known(&["NoChange", "Sleep", "Polling"]).unwrap_or_else(unknown),
        Kind::Mtu => from_one(&["256", "512", "1024", "2048", "4096"]).unwrap_or_else(unknown),
        Kind::VlCap => from_one(VLS).unwrap_or_else(unknown),
        Kind::OperVls if value == 0 => "No change".to_owned(),
        Kind::OperVls => from_one(VLS).unwrap_or_else(unknown),
        Kind::LinkWidth => exactly(value, WIDTHS).unwrap_or_else(|| {
            warn("mad_dump_linkwidth", format_args!("bad width {signed}"));
            format!("undefined ({signed})")
        }),
        Kind::LinkWidthEn => any_of(value, WIDTHS, room, true),
        Kind::LinkWidthSup => {
            // Those that the first release of the specification had.
            any_of(value, WIDTHS, room, value & 3 == 3 || value & !16 == 1 || value >= 32)
        }
        Kind::LinkSpeed if value == 0 => "Extended speed".to_owned(),
        Kind::LinkSpeed => exactly(value, SPEEDS).unwrap_or(format!("undefined ({signed})")),
        Kind::LinkSpeedSup => any_of(value, SPEEDS, room, value & 1 == 1 || value >= 8),
        Kind::LinkSpeedExt if value == 0 => "No Extended Speed".to_owned(),
        Kind::LinkSpeedExt => exactly(value, EXTENDED).unwrap_or(format!("undefined ({signed})")),
        Kind::LinkSpeedExtEn if value == 30 => "Extended link speeds disabled".to_owned(),
        Kind::LinkSpeedExtSup | Kind::LinkSpeedExtEn if value == 0 => "0".to_owned(),
        Kind::LinkSpeedExtSup | Kind::LinkSpeedExtEn => extended(value, room),
        Kind::PortCapMask => mask(value, &CAPABILITIES),
        Kind::PortCapMask2 => mask(value, &CAPABILITIES2),
        _ => format!("{value:#x}"),
    }
}

/// The one bit that is set.
fn exactly(value: u32, names: &[&str]) -> Option<String> {
    let at = value.is_power_of_two().then(|| value.trailing_zeros() as usize)?;
    names.get(at).map(|name| (*name).to_owned())
}

/// The bits that are set, and the value itself where others are.
fn parts(value: u32, names: &[&str]) -> Vec<String> {
    let bits = names.iter().enumerate().filter(|(bit, _)| value >> bit & 1 == 1);
    let mut parts: Vec<String> = bits.map(|(_, name)| (*name).to_owned()).collect();
    if value >> names.len() != 0 || value == 0 {
        parts.push(format!("undefined ({})", value as i32));
    }
    parts
}

const OR: &str = " or ";
const EXTENSION: &str = " (IBA extension)";

/// Each with an "or" behind it, the last of which goes if there was room for it.
fn any_of(value: u32, names: &[&str], room: usize, plain: bool) -> String {
    let text = parts(value, names).join(OR);
    let is_known = value != 0 && value >> names.len() == 0;
    if is_known && text.len() + OR.len() >= room {
        return text + OR;
    }
    if plain { text } else { text + EXTENSION }
}

/// An "or" stands only where there is room for all of it.
fn extended(value: u32, room: usize) -> String {
    let mut text = String::new();
    for part in parts(value, EXTENDED) {
        if !text.is_empty() && text.len() + OR.len() >= room {
            return text;
        }
        text += if text.is_empty() { "" } else { OR };
        text += &part;
    }
    text
}

fn mask(value: u32, names: &[&str]) -> String {
    let mut text = format!("{value:#x}");
    for (bit, name) in names.iter().enumerate() {
        if value >> bit & 1 == 1 && !name.is_empty() {
            text += "\n\t\t\t\t";
            text += name;
        }
    }
    text
}

/// The C string of at most `most` bytes.
///
/// # Safety
/// `text` is null or a string.
pub(super) unsafe fn string<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}
