//! Names of classes, methods, attributes and states of management datagrams, as libibumad has them.

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;

use super::abi::{ib_mad_addr_t, ib_user_mad_t};

fn name(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}

pub(crate) extern "C" fn class_str(class: u8) -> *const c_char {
    name(match class {
        0x01 => c"Subn",
        0x03 => c"SubnAdm",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        0x07 => c"CommMgt",
        0x08 => c"SNMP",
        0x10..=0x1f => c"DevAdm",
        0x30..=0x4f => c"Vendor (range 2)",
        0x09..=0x0f => c"Vendor (range 1)",
        0x81 => c"Subn (directed route)",
        _ => c"<unknown>",
    })
}

pub(crate) extern "C" fn method_str(class: u8, method: u8) -> *const c_char {
    name(match (class, method) {
        (_, 0x01) => c"Get",
        (_, 0x02) => c"Set",
        (_, 0x81) => c"GetResp",
        (_, 0x03) => c"Send",
        (_, 0x05) => c"Trap",
        (_, 0x06) => c"Report",
        (_, 0x86) => c"ReportResp",
        (_, 0x07) => c"TrapRepress",
        (0x03, 0x12) => c"GetTable",
        (0x03, 0x92) => c"GetTableResp",
        (0x03, 0x13) => c"GetTraceTable",
        (0x03, 0x14) => c"GetMulti",
        (0x03, 0x94) => c"GetMultiResp",
        (0x03, 0x15) => c"Delete",
        (0x03, 0x95) => c"DeleteResp",
        _ => c"<unknown>",
    })
}

/// The status is in network order.
pub(crate) extern "C" fn common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    if status & 1 != 0 {
        return name(c"Busy");
    }
    if status & 2 != 0 {
        return name(c"Redirection required");
    }
    name(match status >> 2 & 7 {
        0 => c"Success",
        1 => c"Bad Version",
        2 => c"Method not supported",
        3 => c"Method/Attribute not supported",
        7 => c"Invalid value in one or more fields of attribute or attribute modifier",
        _ => c"<unknown>",
    })
}

/// The status is in network order.
pub(crate) extern "C" fn sa_mad_status_str(status: u16) -> *const c_char {
    name(match u16::from_be(status) >> 8 {
        0 => c"Success",
        1 => c"No Resources",
        2 => c"Request Invalid",
        3 => c"No Records",
        4 => c"Too Many Records",
        5 => c"Request Invalid GID",
        6 => c"Request Insufficient Components",
        7 => c"Request Denied",
        8 => c"Priority Suggested",
        _ => c"<unknown>",
    })
}

/// The attribute is in network order.
pub(crate) extern "C" fn attribute_str(class: u8, attribute: u16) -> *const c_char {
    name(match (class, u16::from_be(attribute)) {
        (_, 0x01) => c"Class Port Info",
        (_, 0x02) => c"Notice",
        (_, 0x03) => c"Inform Info",
        (0x01 | 0x81, 0x10) => c"Node Description",
        (0x01 | 0x81, 0x11) => c"Node Info",
        (0x01 | 0x81, 0x12) => c"Switch Info",
        (0x01 | 0x81, 0x14) => c"GUID Info",
        (0x01 | 0x81, 0x15) => c"Port Info",
        (0x01 | 0x81, 0x16) => c"P_Key Table",
        (0x01 | 0x81, 0x17) => c"SL to VL Table",
        (0x01 | 0x81, 0x18) => c"VL Arbitration Table",
        (0x01 | 0x81, 0x19) => c"LFT",
        (0x01 | 0x81, 0x1a) => c"RFT",
        (0x01 | 0x81, 0x1b) => c"MFT",
        (0x01 | 0x81, 0x20) => c"SM Info",
        (0x03, 0x11) => c"Node Record",
        (0x03, 0x12) => c"Port Info Record",
        (0x03, 0x14) => c"Switch Info Record",
        (0x03, 0x18) => c"SM Info Record",
        (0x03, 0x20) => c"Link Record",
        (0x03, 0x30) => c"Guid Info Record",
        (0x03, 0x31) => c"Service Record",
        (0x03, 0x33) => c"P_Key Table Record",
        (0x03, 0x35) => c"Path Record",
        (0x03, 0x38) => c"MC Member Record",
        (0x03, 0x3a) => c"MultiPath Record",
        (0x03, 0xf3) => c"Inform Info Record",
        _ => c"<unknown>",
    })
}

/// # Safety
/// `addr` is null or points to the structure.
pub(crate) unsafe extern "C" fn addr_dump(addr: *const ib_mad_addr_t) {
    // SAFETY: the caller's promise.
    let Some(addr) = (unsafe { addr.as_ref() }) else { return };
    let (qpn, qkey, lid) =
        (u32::from_be(addr.qpn), u32::from_be(addr.qkey), u16::from_be(addr.lid));
    // Nobody is to be told when stderr is closed.
    let _ = writeln!(
        std::io::stderr(),
        "umad_addr_dump: qpn {qpn} qkey {qkey:#x} lid {lid} sl {} grh_present {}",
        addr.sl,
        addr.grh_present
    );
}

/// # Safety
/// `umad` is null or points to a header.
pub(crate) unsafe extern "C" fn dump(umad: *const c_void) {
    // SAFETY: the caller's promise.
    let Some(header) = (unsafe { umad.cast::<ib_user_mad_t>().as_ref() }) else { return };
    let _ = writeln!(
        std::io::stderr(),
        "umad_dump: agent id {} status {} timeout {}",
        header.agent_id,
        header.status,
        header.timeout_ms
    );
    // SAFETY: a part of the same structure.
    unsafe { addr_dump(&header.addr) };
}
