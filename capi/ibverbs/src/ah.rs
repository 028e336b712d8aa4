//! Address handles.

use std::ffi::c_int;

use ironverbs::raw as soft;
use ironverbs_wire::{Gid, grh};

use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, View, find};
use crate::pool::Object;

/// ibv_create_ah(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd,
    attr: *const ibv_ah_attr,
) -> *mut ibv_ah {
    fail::object("ibv_create_ah", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        unsafe { create(pd, &*attr) }
    })
}

/// # Safety
/// As for [`objects::find`].
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Outcome<*mut ibv_ah> {
    // SAFETY: the caller's promise.
    let found = unsafe { find::<ibv_pd>(pd)? };
    let ah = found.inner.create_ah(&convert::ah_attr(attr))?;
    let id = found.context;
    let object = ibv_ah::pool().insert(View::new(ah, id), |object, handle| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(ibv_ah { context: id.pointer(), pd, handle }) };
    })?;
    Ok(object.as_ptr())
}

/// ibv_destroy_ah(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_ah", || unsafe {
        objects::destroy::<ibv_ah, _, _>(ah, |ah: &soft::Ah| ah.destroy())
    })
}

/// ibv_init_ah_from_wc(3): the way back to the sender of a datagram.
///
/// # Safety
/// As for [`objects::find`]; `wc` and `attr` are null or point to their structures; `grh` points to
/// 40 bytes if the completion says that there is a GRH.
pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    fail::number("ibv_init_ah_from_wc", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "ah_attr" });
        }
        // SAFETY: the caller's promise.
        unsafe { attr.write(way_back(context, port, wc, grh)?) };
        Ok(0)
    })
}

/// ibv_create_ah_from_wc(3).
///
/// # Safety
/// As for [`init_ah_from_wc`].
pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    fail::object("ibv_create_ah_from_wc", || {
        // SAFETY: the caller's promise.
        unsafe {
            let context = find::<ibv_pd>(pd)?.context.pointer();
            create(pd, &way_back(context, port, wc, grh)?)
        }
    })
}

/// # Safety
/// As for [`init_ah_from_wc`].
unsafe fn way_back(
    context: *const ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<ibv_ah_attr> {
    // SAFETY: the caller's promise.
    unsafe {
        let found = objects::context(context)?;
        way_back_by(port, wc, grh, |gid| own_index(&found.context, port, gid))
    }
}

/// The same, where the index of the own GID is found by whoever has the table.
///
/// # Safety
/// As for [`init_ah_from_wc`].
pub(crate) unsafe fn way_back_by(
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    own_index: impl FnOnce(&Gid) -> Outcome<u8>,
) -> Outcome<ibv_ah_attr> {
    if wc.is_null() {
        return Err(Failure::Null { what: "completion" });
    }
    // SAFETY: the caller's promise.
    let wc = unsafe { &*wc };
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    if wc.wc_flags & soft::WcFlags::GRH.bits() == 0 {
        return Ok(attr);
    }
    if grh.is_null() {
        return Err(Failure::Null { what: "grh" });
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { grh.read_unaligned() }.bytes;
    let path = grh::path_of(&bytes).ok_or(Failure::Argument {
        what: "the first byte of a header that is neither IPv6 nor IPv4",
        value: bytes[0].into(),
    })?;
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: path.src.0,
        flow_label: path.flow_label,
        sgid_index: own_index(&path.dst)?,
        hop_limit: u8::MAX,
        traffic_class: path.traffic_class,
        ..Default::default()
    };
    Ok(attr)
}

/// Index of the GID that a datagram was sent to; for a multicast one, of one of the same family.
fn own_index(context: &soft::Context, port: u8, gid: &Gid) -> Outcome<u8> {
    let table = context.gid_table(port);
    let same = |entry: &&soft::GidEntry| match gid.is_multicast() {
        true => entry.gid.is_ipv4() == gid.is_ipv4(),
        false => entry.gid == *gid,
    };
    let entry = table.iter().find(same).and_then(|entry| u8::try_from(entry.index).ok());
    entry.ok_or(Failure::Argument {
        what: "port_num (it does not have the GID)",
        value: port.into(),
    })
}
