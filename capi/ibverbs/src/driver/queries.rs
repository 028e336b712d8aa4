//! What the exported verbs ask of devices, ports and tables of drivers, and address handles by what was received.
//!
//! All functions have the promises of the verb that they stand for, and are called with the driver's context.

use std::ffi::{c_int, c_void};
use std::{mem, ptr, slice};

use ironverbs::raw::Gid;
use ironverbs_kernel::discover;

use super::command::failed;
use super::verbs::{call, create_ah};
use super::{Driven, addresses, gids};
use crate::abi::*;
use crate::ah;
use crate::fail::{self, Failure, Outcome};

/// The way back to the sender of a datagram.
unsafe fn way_back(
    driven: Driven,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<ibv_ah_attr> {
    let index = |gid: &Gid| {
        if gid.is_multicast() {
            return Err(Failure::Argument {
                what: "a multicast destination, port",
                value: port.into(),
            });
        }
        let entries = (0..=u8::MAX).map(|index| {
            // SAFETY: the verb's promise.
            (index, unsafe { gids::whole(driven.context, port.into(), index.into()) })
        });
        // An error behind the table's end; empty entries in it are ENODATA.
        let entries = entries.take_while(|(_, entry)| matches!(entry, Ok(_) | Err(libc::ENODATA)));
        let same = |(_, entry): &(u8, Result<ibv_gid_entry, c_int>)| {
            entry.is_ok_and(|entry| entry.gid == gid.0)
        };
        let found: Vec<_> = entries.filter(same).collect();
        let v2 = |(_, entry): &&(u8, Result<ibv_gid_entry, c_int>)| {
            entry.is_ok_and(|entry| entry.gid_type == IBV_GID_TYPE_ROCE_V2)
        };
        let best = found.iter().find(v2).or(found.first());
        best.map(|&(index, _)| index).ok_or(Failure::Argument {
            what: "port_num (it does not have the GID)",
            value: port.into(),
        })
    };
    // SAFETY: the verb's promise.
    unsafe { ah::way_back_by(port, wc, grh, index) }
}

pub(crate) unsafe fn init_ah_from_wc(
    driven: Driven,
    _: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    fail::number("ibv_init_ah_from_wc", || {
        // SAFETY: the verb's promise.
        unsafe { attr.write(way_back(driven, port, wc, grh)?) };
        Ok(0)
    })
}

pub(crate) unsafe fn create_ah_from_wc(
    driven: Driven,
    pd: *mut ibv_pd,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the verb's promise.
    let attr =
        fail::returned("ibv_create_ah_from_wc", || unsafe { way_back(driven, port, wc, grh) });
    match attr {
        // SAFETY: the verb's promise.
        Ok(attr) => unsafe { create_ah(driven, pd, &raw const attr) },
        Err(_) => ptr::null_mut(),
    }
}

pub(crate) unsafe fn query_device(
    driven: Driven,
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the verb's promise; the plain attributes start the others.
    unsafe {
        call!(driven, query_device_ex(context => *mut ibv_context, ptr::null() => *const c_void,
            attr.cast() => *mut ibv_device_attr_ex, size_of::<ibv_device_attr>() => usize) -> c_int)
    }
}

pub(crate) unsafe fn query_port(
    _: Driven,
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    let size = mem::offset_of!(ibv_port_attr, flags) + 1;
    // SAFETY: the verb's promise.
    unsafe { query_port_ex(context, port, attr, size) }
}

/// ibv_query_port(3), in the context's table.
pub(super) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the verb's promise; zeroes are a valid structure.
    unsafe {
        let Some(driven) = super::of(context) else { return failed(libc::EINVAL) };
        let mut whole: ibv_port_attr = mem::zeroed();
        let errno = call!(driven, query_port(context => *mut ibv_context, port => u8,
            &raw mut whole => *mut ibv_port_attr) -> c_int);
        if errno == 0 {
            let n = size.min(size_of::<ibv_port_attr>());
            attr.cast::<u8>().write_bytes(0, size);
            ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), attr.cast::<u8>(), n);
        }
        errno
    }
}

pub(crate) unsafe fn query_gid(
    driven: Driven,
    _: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let gid = match gids::whole(driven.context, port.into(), index as u32) {
            Ok(entry) => entry.gid,
            Err(libc::ENODATA) => [0; 16],
            Err(errno) => {
                fail::set_errno(errno);
                return -1;
            }
        };
        out.write_unaligned(gid);
    }
    0
}

pub(crate) unsafe fn query_gid_ex(
    driven: Driven,
    _: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let room = slice::from_raw_parts_mut(out.cast::<u8>(), size);
        gids::entry(driven.context, port, index, flags, room).map_or_else(failed, |()| 0)
    }
}

pub(crate) unsafe fn query_gid_table(
    driven: Driven,
    _: *mut ibv_context,
    entries: *mut u8,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let result = || {
        let bytes = max.checked_mul(size).ok_or(libc::EINVAL)?;
        // SAFETY: the verb's promise; zeroes are a valid structure.
        unsafe {
            let room: &mut [u8] = match bytes {
                0 => &mut [],
                bytes => slice::from_raw_parts_mut(entries, bytes),
            };
            let mut attr: ibv_device_attr = mem::zeroed();
            match query_device(driven, driven.context, &raw mut attr) {
                0 => gids::table(driven.context, room, max, size, flags, attr.phys_port_cnt),
                errno => Err(errno),
            }
        }
    };
    match result() {
        Ok(n) => n as isize,
        Err(errno) => -(failed(errno) as isize),
    }
}

pub(crate) unsafe fn query_gid_type(
    driven: Driven,
    _: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let v2 = match gids::whole(driven.context, port.into(), index) {
            Ok(entry) => entry.gid_type == IBV_GID_TYPE_ROCE_V2,
            Err(libc::ENODATA) => false,
            Err(errno) => {
                fail::set_errno(errno);
                return -1;
            }
        };
        *out = if v2 { GID_TYPE_SYSFS_ROCE_V2 } else { 0 };
    }
    0
}

/// A P_Key, in network order.
unsafe fn pkey(driven: Driven, port: u8, index: u32) -> Option<u16> {
    // SAFETY: the verb's promise.
    let name = unsafe { gids::name(driven.context) };
    discover::pkey(super::device::sysfs(), &name, port, index).map(u16::to_be)
}

pub(crate) unsafe fn query_pkey(
    driven: Driven,
    _: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        match u32::try_from(index).ok().and_then(|index| pkey(driven, port, index)) {
            Some(key) => {
                *out = key;
                0
            }
            None => {
                fail::set_errno(libc::EINVAL);
                -1
            }
        }
    }
}

pub(crate) unsafe fn get_pkey_index(
    driven: Driven,
    _: *mut ibv_context,
    port: u8,
    wanted: u16,
) -> c_int {
    // SAFETY: the verb's promise.
    let keys = (0..=u32::from(u16::MAX)).map_while(|index| unsafe { pkey(driven, port, index) });
    match keys.into_iter().position(|key| key == wanted) {
        Some(index) => index as c_int,
        None => {
            fail::set_errno(libc::EINVAL);
            -1
        }
    }
}

pub(crate) unsafe fn resolve_eth_l2_from_gid(
    driven: Driven,
    _: *mut ibv_context,
    attr: *const ibv_ah_attr,
    mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        match addresses::resolve(driven.context, &*attr) {
            Ok((address, vlan)) => {
                mac.write_unaligned(address);
                if !vid.is_null() {
                    *vid = vlan;
                }
                0
            }
            Err(errno) => {
                fail::set_errno(errno);
                -errno
            }
        }
    }
}
