//! Flow steering (ibv_create_flow(3)).

use std::ffi::c_int;

use ironverbs::raw as soft;
use soft::raw::{Flow, FlowInit, FlowKind, Layer, Spec};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, View, find};
use crate::pool::Object;

/// Type, size and padding, with which a specification starts.
const HEADER: usize = 6;

/// ibv_create_flow(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure, which its specifications follow, each as long as
/// it says.
pub(crate) unsafe extern "C" fn create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> *mut ibv_flow {
    fail::object("ibv_create_flow", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "flow_attr" });
        }
        // SAFETY: the caller's promise.
        let found = match unsafe { find::<raw_qp>(qp) } {
            Ok(found) => found,
            Err(failure) => {
                // SAFETY: the caller's promise.
                let other = unsafe { find::<ibv_qp_ex>(qp) };
                let wrong = |found: crate::pool::Ref<'_, ibv_qp_ex>| Failure::Argument {
                    what: "flow of a queue pair of type",
                    value: found.inner.qp_type() as u64,
                };
                return Err(other.map_or(failure, wrong));
            }
        };
        // SAFETY: the caller's promise.
        let init = unsafe { init(attr)? };
        let flow = Flow::new(&found.inner, init)?;
        let (id, view) = (found.context, View::new(flow, found.context));
        let object = ibv_flow::pool().insert(view, |object, handle| {
            let flow = ibv_flow { comp_mask: 0, context: id.pointer(), handle };
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(flow) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_destroy_flow(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_flow", || unsafe {
        objects::destroy::<ibv_flow, _, _>(flow, |flow: &Flow| flow.destroy())
    })
}

/// # Safety
/// As for [`create_flow`], of what is not null.
unsafe fn init(from: *const ibv_flow_attr) -> Outcome<FlowInit> {
    // SAFETY: the caller's promise.
    let attr = unsafe { from.read_unaligned() };
    let argument = |what, value: u64| Err(Failure::Argument { what, value });
    if attr.comp_mask != 0 {
        return argument("comp_mask", attr.comp_mask.into());
    }
    let kind = match attr.type_ {
        0 => FlowKind::Normal,
        1 => FlowKind::AllDefault,
        2 => FlowKind::MulticastDefault,
        3 => FlowKind::Sniffer,
        other => return argument("type", other.into()),
    };
    if attr.flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(Failure::Unsupported { what: "a flow of what is sent" });
    }
    if attr.flags & !IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return argument("flags", attr.flags.into());
    }
    let mut flow = FlowInit {
        kind,
        priority: attr.priority,
        port: attr.port,
        passes_on: attr.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0,
        ..FlowInit::default()
    };
    let mut at = size_of::<ibv_flow_attr>();
    for _ in 0..attr.num_of_specs {
        // SAFETY: the caller's promise: as many specifications as it says, each as long as it says.
        let (kind, size) = unsafe {
            let spec = from.cast::<u8>().add(at);
            (spec.cast::<u32>().read_unaligned(), spec.add(4).cast::<u16>().read_unaligned())
        };
        // SAFETY: as above.
        let spec = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(at), size.into()) };
        // SAFETY: the caller's promise, of the objects in it.
        unsafe { add(&mut flow, kind, spec)? };
        at += usize::from(size);
    }
    Ok(flow)
}

/// Adds what a specification says.
///
/// # Safety
/// As for [`find`] of what it points to.
unsafe fn add(flow: &mut FlowInit, kind: u32, spec: &[u8]) -> Outcome<()> {
    let size = |wanted: usize| match spec.len() == wanted {
        true => Ok(()),
        false => {
            Err(Failure::Argument { what: "size of a specification", value: spec.len() as u64 })
        }
    };
    let inner = kind & IBV_FLOW_SPEC_INNER != 0;
    let layer = match kind & !IBV_FLOW_SPEC_INNER {
        0x20 => Layer::Ethernet,
        0x30 => Layer::Ipv4,
        0x31 => Layer::Ipv6,
        0x32 => Layer::Ipv4Ext,
        0x40 => Layer::Tcp,
        0x41 => Layer::Udp,
        0x50 => Layer::Vxlan,
        0x34 | 0x51 | 0x60 => {
            return Err(Failure::Unsupported { what: "a specification of ESP, GRE or MPLS" });
        }
        IBV_FLOW_SPEC_ACTION_TAG if !inner => {
            size(12)?;
            flow.tag = number(spec, 8);
            return Ok(());
        }
        IBV_FLOW_SPEC_ACTION_DROP if !inner => {
            size(8)?;
            flow.drops = true;
            return Ok(());
        }
        IBV_FLOW_SPEC_ACTION_HANDLE if !inner => {
            return Err(Failure::Unsupported { what: "a flow action" });
        }
        IBV_FLOW_SPEC_ACTION_COUNT if !inner => {
            size(16)?;
            let low = u64::from(number(spec, 8));
            let address = u64::from(number(spec, 12)) << 32 | low;
            let counters = std::ptr::with_exposed_provenance::<ibv_counters>(address as usize);
            // SAFETY: the caller's promise.
            flow.counters = Some(unsafe { find::<ibv_counters>(counters)? }.inner.clone());
            return Ok(());
        }
        _ => return Err(Failure::Argument { what: "type of a specification", value: kind.into() }),
    };
    // Value and mask lie behind the size, aligned as their largest field, and so does the end.
    let (first, stride) = match layer {
        Layer::Ethernet => (HEADER, 16),
        Layer::Tcp | Layer::Udp => (HEADER, 4),
        Layer::Ipv6 => (8, 40),
        other => (8, other.len()),
    };
    size((first + 2 * stride).next_multiple_of(4))?;
    let part = |at: usize| spec.get(at..at + stride).unwrap_or_default();
    flow.specs.push(Spec::new(layer, inner, part(first), part(first + stride)));
    Ok(())
}

fn number(spec: &[u8], at: usize) -> u32 {
    let bytes = spec.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}
