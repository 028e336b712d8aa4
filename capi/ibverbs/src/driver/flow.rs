//! Calls of drivers about flows: rules of the header become the kernel's.
//!
//! All pointers are the driver's: null or to their structures; rules follow the attributes, each as long as it says.

use std::ffi::{c_int, c_void};
use std::slice;

use ironverbs_kernel::command::{self, Bytes, FlowAttr, Response};

use super::abi::*;
use super::command::{Errno, Extra, ended, issue, status};
use crate::abi::*;

/// The fixed part of `struct ibv_flow_attr`.
#[repr(C)]
pub(crate) struct driver_flow_attr {
    comp_mask: u32,
    kind: u32,
    size: u16,
    priority: u16,
    rules: u8,
    port: u8,
    flags: u32,
}

const INNER: u32 = 0x100;

/// How a rule's value and mask lie in the header's structure and in the kernel's: where the header's starts, its
/// length, and the length of the kernel's.
fn filter(kind: u32) -> Option<(usize, usize, usize)> {
    Some(match kind & !INNER {
        // Ethernet, IPv4.
        0x20 => (6, 16, 16),
        0x30 => (8, 8, 8),
        // IPv6, IPv4 with more fields.
        0x31 => (8, 40, 40),
        0x32 => (8, 12, 12),
        // ESP.
        0x34 => (8, 8, 8),
        // TCP, UDP.
        0x40 | 0x41 => (6, 4, 4),
        // VXLAN, GRE, MPLS.
        0x50 => (8, 4, 4),
        0x51 => (8, 8, 8),
        0x60 => (8, 4, 4),
        _ => return None,
    })
}

/// One rule, from the bytes that it says it has.
///
/// # Safety
/// Pointers in it lead to a driver's objects.
unsafe fn rule(kind: u32, rule: &[u8]) -> Result<Vec<u8>, Errno> {
    const IPV4: u32 = 0x30;
    const IPV4_EXT: u32 = 0x32;
    const TAG: u32 = 0x1000;
    const DROP: u32 = 0x1001;
    const HANDLE: u32 = 0x1002;
    const COUNT: u32 = 0x1003;
    let r = Response(rule);
    let start = |kind: u32, size: usize| Bytes::new().u32(kind).u16(size as u16).u16(0);
    if let Some((at, len, kernels)) = filter(kind) {
        let part = |from: usize| rule.get(from..from + len).ok_or(libc::EINVAL);
        let (value, mask) = (part(at)?, part(at + len)?);
        let kind = if kind & !INNER == IPV4_EXT { IPV4 | (kind & INNER) } else { kind };
        let rule = start(kind, 8 + 2 * kernels);
        let pad = kernels - len;
        return Ok(rule.bytes(value).zeros(pad).bytes(mask).zeros(pad).0);
    }
    // SAFETY: the caller's promise: both kinds of objects have their handle behind their context.
    let of = |at: usize| unsafe {
        let object = std::ptr::with_exposed_provenance::<verbs_counters>(r.u64(at) as usize);
        object.as_ref().map(|object| object.handle).ok_or(libc::EINVAL)
    };
    match kind {
        TAG => Ok(start(kind, 16).u32(r.u32(8)).u32(0).0),
        DROP => Ok(start(kind, 8).0),
        HANDLE | COUNT => Ok(start(kind, 16).u32(of(8)?).u32(0).0),
        _ => Err(libc::EINVAL),
    }
}

/// `ibv_cmd_create_flow`.
pub(crate) unsafe extern "C" fn cmd_create_flow(
    qp: *mut ibv_qp,
    flow: *mut ibv_flow,
    attr: *const driver_flow_attr,
    ucmd: *mut c_void,
    ucmd_size: usize,
) -> c_int {
    let work = || {
        // SAFETY: the driver's promise.
        unsafe {
            let fixed = &*attr;
            let (mut rules, mut at) = (Vec::new(), attr.add(1).cast::<u8>());
            for _ in 0..fixed.rules {
                let kind = at.cast::<u32>().read_unaligned();
                let size = usize::from(at.add(4).cast::<u16>().read_unaligned());
                if size < 6 {
                    return Err(libc::EINVAL);
                }
                rules.extend(rule(kind, slice::from_raw_parts(at, size))?);
                at = at.add(size);
            }
            let fixed = FlowAttr {
                kind: fixed.kind,
                priority: fixed.priority,
                rules: fixed.rules,
                port: fixed.port,
                flags: fixed.flags,
            };
            let extra = Extra::new(ucmd, ucmd_size, 0, std::ptr::null_mut(), 0, 0)?;
            let command = command::create_flow((*qp).handle, &fixed, &rules);
            let response = issue((*qp).context, &command, extra)?;
            (*flow).context = (*qp).context;
            (*flow).handle = Response(&response).u32(4);
        }
        Ok(())
    };
    status(work())
}

/// `ibv_cmd_destroy_flow`.
pub(crate) unsafe extern "C" fn cmd_destroy_flow(flow: *mut ibv_flow) -> c_int {
    let work = || {
        // SAFETY: the driver's promise.
        unsafe {
            let command = command::destroy_flow((*flow).handle);
            ended(issue((*flow).context, &command, Extra::NONE)).map(drop)
        }
    };
    status(work())
}
