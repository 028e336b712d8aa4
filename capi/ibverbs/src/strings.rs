//! What numbers are called. The words are those that programs print and scripts look for.

use std::ffi::{CStr, c_char, c_int};

use ironverbs::raw::EventKind;

fn name(names: &[&'static CStr], value: c_int) -> *const c_char {
    usize::try_from(value).ok().and_then(|n| names.get(n).copied()).unwrap_or(c"unknown").as_ptr()
}

/// ibv_wc_status_str: one of `enum ibv_wc_status`.
pub(crate) extern "C" fn wc_status_str(status: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(NAMES, status)
}

/// ibv_event_type_str(3).
pub(crate) extern "C" fn event_type_str(event: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    // Of `subnet`.
    const OURS: &[&CStr] = &[
        c"GID available",
        c"GID unavailable",
        c"multicast group created",
        c"multicast group deleted",
    ];
    match event.checked_sub(EventKind::GidAvail as c_int) {
        Some(n @ 0..) => name(OURS, n),
        _ => name(NAMES, event),
    }
}

/// ibv_node_type_str(3).
pub(crate) extern "C" fn node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(NAMES, node_type)
}

/// ibv_port_state_str(3).
pub(crate) extern "C" fn port_state_str(state: c_int) -> *const c_char {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(NAMES, state)
}
