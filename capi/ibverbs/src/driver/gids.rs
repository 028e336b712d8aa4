//! GID tables of the kernel's devices: from the kernel, or from sysfs where it is too old to tell.

use std::ffi::CStr;

use ironverbs_kernel::{discover, method};
use ironverbs_sys::netlink;

use super::command::{Call, Errno, is_missing};
use super::device::sysfs;
use crate::abi::*;

/// The name of a context's device.
///
/// # Safety
/// `context` is a driver's.
pub(super) unsafe fn name(context: *mut ibv_context) -> String {
    // SAFETY: the caller's promise: a string in its field.
    unsafe { CStr::from_ptr((&raw const (*(*context).device).name).cast()) }
        .to_string_lossy()
        .into_owned()
}

const ENTRY: usize = size_of::<ibv_gid_entry>();

fn bytes_of(entry: &ibv_gid_entry) -> Vec<u8> {
    let numbers = [entry.gid_index, entry.port_num, entry.gid_type, entry.ndev_ifindex];
    entry.gid.iter().copied().chain(numbers.into_iter().flat_map(u32::to_ne_bytes)).collect()
}

/// One entry, as many bytes as the caller has room for; ENODATA when it is empty.
///
/// # Safety
/// `context` is a driver's.
pub(super) unsafe fn entry(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    flags: u32,
    room: &mut [u8],
) -> Result<(), Errno> {
    let mut call = Call::new(method::QUERY_GID_ENTRY);
    call.u64(0, port.into());
    call.u64(1, index.into());
    call.u32(2, flags);
    call.output(3, room);
    // SAFETY: the caller's promise.
    unsafe {
        match call.issue(context) {
            Err(errno) if is_missing(errno) && flags == 0 => {
                let entry = shown(context, port, index).ok_or(libc::EINVAL)?;
                if entry.gid == [0; 16] {
                    return Err(libc::ENODATA);
                }
                let bytes = bytes_of(&entry);
                let n = room.len().min(bytes.len());
                room.fill(0);
                if let (Some(to), Some(from)) = (room.get_mut(..n), bytes.get(..n)) {
                    to.copy_from_slice(from);
                }
                Ok(())
            }
            Err(errno) if is_missing(errno) => Err(libc::EOPNOTSUPP),
            other => other.map(drop),
        }
    }
}

/// One entry whole.
///
/// # Safety
/// As for [`entry`].
pub(super) unsafe fn whole(
    context: *mut ibv_context,
    port: u32,
    index: u32,
) -> Result<ibv_gid_entry, Errno> {
    let mut bytes = [0; ENTRY];
    // SAFETY: the caller's promise.
    unsafe { entry(context, port, index, 0, &mut bytes)? };
    let r = ironverbs_kernel::command::Response(&bytes);
    Ok(ibv_gid_entry {
        gid: r.part(0).unwrap_or_default(),
        gid_index: r.u32(16),
        port_num: r.u32(20),
        gid_type: r.u32(24),
        ndev_ifindex: r.u32(28),
    })
}

/// An entry as sysfs shows it.
///
/// # Safety
/// As for [`entry`].
unsafe fn shown(context: *mut ibv_context, port: u32, index: u32) -> Option<ibv_gid_entry> {
    const IB: u32 = 0;
    const ROCE_V1: u32 = 1;
    let number = u8::try_from(port).ok()?;
    // SAFETY: the caller's promise.
    let name = unsafe { name(context) };
    let entry = discover::gid(sysfs(), &name, number, index)?;
    let interfaces =
        if entry.interface.is_empty() { Vec::new() } else { netlink::interfaces().ok()? };
    let ndev = interfaces.iter().find(|i| i.name == entry.interface).map_or(0, |i| i.index);
    let ethernet = !entry.interface.is_empty();
    let gid_type = match (entry.v2, ethernet) {
        (true, _) => IBV_GID_TYPE_ROCE_V2,
        (false, true) => ROCE_V1,
        (false, false) => IB,
    };
    Some(ibv_gid_entry {
        gid: entry.gid,
        gid_index: index,
        port_num: port,
        gid_type,
        ndev_ifindex: ndev,
    })
}

/// All entries that are not empty, into room for `max` of `size` bytes each; how many.
///
/// # Safety
/// `context` is a driver's; `room` has `max` times `size` bytes.
pub(super) unsafe fn table(
    context: *mut ibv_context,
    room: &mut [u8],
    max: usize,
    size: usize,
    flags: u32,
    ports: u8,
) -> Result<usize, Errno> {
    let mut count = [0; 8];
    let mut call = Call::new(method::QUERY_GID_TABLE);
    call.u64(0, size as u64);
    call.u32(1, flags);
    call.output(2, room);
    call.output(3, &mut count);
    // SAFETY: the caller's promise.
    unsafe {
        match call.issue(context) {
            Err(errno) if is_missing(errno) && flags == 0 => {
                let mut places = room.chunks_exact_mut(size.max(1));
                let mut found = 0;
                for port in 1..=u32::from(ports) {
                    for entry in (0..).map_while(|index| shown(context, port, index)) {
                        if entry.gid == [0; 16] {
                            continue;
                        }
                        if found == max {
                            return Err(libc::EINVAL);
                        }
                        let place = places.next().ok_or(libc::EINVAL)?;
                        let bytes = bytes_of(&entry);
                        let n = place.len().min(bytes.len());
                        place.fill(0);
                        if let (Some(to), Some(from)) = (place.get_mut(..n), bytes.get(..n)) {
                            to.copy_from_slice(from);
                        }
                        found += 1;
                    }
                }
                Ok(found)
            }
            Err(errno) if is_missing(errno) => Err(libc::EOPNOTSUPP),
            Err(errno) => Err(errno),
            Ok(_) => Ok(u64::from_ne_bytes(count) as usize),
        }
    }
}
