//! Which channel adapters there are, and what they say of themselves (umad_get_ca(3), umad_get_port(3)).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use ironverbs::raw as soft;
use ironverbs_kernel::management::Adapter;
use soft::config::Soft;

use super::abi::*;
use super::{errno, kernel, number};
use crate::host::host;

/// An adapter: a software device whose link is InfiniBand (others have no management datagrams), or one of the kernel's.
pub(super) enum Ca {
    Soft(Arc<soft::Context>),
    Kernel(Adapter),
}

impl Ca {
    fn name(&self) -> &str {
        match self {
            Ca::Soft(context) => context.device().name(),
            Ca::Kernel(adapter) => &adapter.name,
        }
    }
}

/// All adapters, the kernel's first.
pub(super) fn adapters() -> Result<Vec<Ca>, c_int> {
    let host = host().map_err(errno)?;
    if host.config().soft.value == Soft::Off {
        return Ok(kernel::adapters(&[]).into_iter().map(Ca::Kernel).collect());
    }
    // The files of a view of /sys name all software devices.
    let taken: Vec<_> =
        host.devices().map_err(errno)?.iter().map(|device| device.name().to_owned()).collect();
    let kernels = kernel::adapters(&taken).into_iter().map(Ca::Kernel);
    Ok(kernels.chain(devices()?.into_iter().map(Ca::Soft)).collect())
}

fn devices() -> Result<Vec<Arc<soft::Context>>, c_int> {
    let devices = host().map_err(errno)?.devices().map_err(errno)?;
    let context = |device: &Arc<soft::Device>| device.open().ok();
    let infiniband = |context: &Arc<soft::Context>| {
        context.port(1).is_ok_and(|port| port.link_layer == soft::LinkLayer::InfiniBand)
    };
    Ok(devices.iter().filter_map(context).filter(infiniband).collect())
}

/// The adapter of that name, if it has such a port (0: any). Without a name it is the first on an active InfiniBand link,
/// or the first of all.
///
/// # Safety
/// `name` is null or a string.
pub(super) unsafe fn find(name: *const c_char, port: c_int) -> Result<Ca, c_int> {
    // SAFETY: the caller's promise.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let mut all = adapters()?;
    let is_managed = |ca: &Ca| match ca {
        Ca::Soft(_) => true,
        Ca::Kernel(adapter) => kernel::is_managed(adapter),
    };
    let at = match name {
        Some(name) => all.iter().position(|ca| name.to_bytes() == ca.name().as_bytes()),
        None => all.iter().position(is_managed).or((!all.is_empty()).then_some(0)),
    };
    let found = all.swap_remove(at.ok_or(libc::ENODEV)?);
    match &found {
        Ca::Soft(_) if !(0..=1).contains(&port) => Err(libc::EINVAL),
        Ca::Kernel(adapter) => kernel::number(adapter, port).map(|_| found),
        Ca::Soft(_) => Ok(found),
    }
}

/// Writes a string and its end into a field, cut to its size.
pub(super) fn put(field: &mut [c_char], text: &str) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// # Safety
/// `cas` has room for `max` names.
pub(crate) unsafe extern "C" fn get_cas_names(
    cas: *mut [c_char; CA_NAME_LEN],
    max: c_int,
) -> c_int {
    number(|| {
        let all = adapters()?;
        let count = all.len().min(usize::try_from(max).unwrap_or(0));
        for (at, ca) in all.iter().take(count).enumerate() {
            let mut name = [0; CA_NAME_LEN];
            put(&mut name, ca.name());
            // SAFETY: the caller's promise.
            unsafe { cas.add(at).write(name) };
        }
        Ok(count as c_int)
    })
}

/// # Safety
/// `name` is null or a string; `guids` has room for `max` numbers.
pub(crate) unsafe extern "C" fn get_ca_portguids(
    name: *const c_char,
    guids: *mut u64,
    max: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let ca = unsafe { find(name, 0)? };
        // Port 0 is a switch's.
        let all = match &ca {
            Ca::Soft(context) => vec![0, port_guid(context)],
            Ca::Kernel(adapter) => {
                let of = |&number: &u8| kernel::port_guid(adapter, number);
                std::iter::once(0).chain(adapter.ports.iter().map(of)).collect()
            }
        };
        let count = all.len().min(usize::try_from(max).unwrap_or(0));
        if guids.is_null() {
            return Ok(count as c_int);
        }
        for (at, guid) in all.into_iter().take(count).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { guids.add(at).write(guid) };
        }
        Ok(count as c_int)
    })
}

/// In network order, as the functions below tell it.
fn port_guid(context: &soft::Context) -> u64 {
    gid_halves(context)[1]
}

/// Subnet prefix and port GUID as they stand in the GID.
fn gid_halves(context: &soft::Context) -> [u64; 2] {
    let gid = context.gid(1, 0).map_or(0, |entry| u128::from_be_bytes(entry.gid.0));
    [((gid >> 64) as u64).to_be(), (gid as u64).to_be()]
}

/// # Safety
/// `name` is null or a string; `ca` points to the structure.
pub(crate) unsafe extern "C" fn get_ca(name: *const c_char, ca: *mut umad_ca_t) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let context = match unsafe { find(name, 0)? } {
            Ca::Soft(context) => context,
            Ca::Kernel(adapter) => {
                let mut out = kernel::ca(&adapter);
                for &number in &adapter.ports {
                    let Some(place) = out.ports.get_mut(usize::from(number)) else { continue };
                    let made = kernel::port(&adapter, number).and_then(give);
                    match made {
                        Ok(room) => *place = room,
                        Err(errno) => {
                            // SAFETY: filled like one that a program gets.
                            unsafe { release_ca(&raw mut out) };
                            return Err(errno);
                        }
                    }
                }
                // SAFETY: the caller's promise.
                unsafe { ca.write(out) };
                return Ok(0);
            }
        };
        let attr = context.attr();
        let mut out = umad_ca_t {
            ca_name: [0; CA_NAME_LEN],
            node_type: 1,
            numports: 1,
            fw_ver: [0; 20],
            ca_type: [0; 40],
            hw_ver: [0; 20],
            node_guid: attr.node_guid.to_be(),
            system_guid: attr.sys_image_guid.to_be(),
            ports: [ptr::null_mut(); CA_MAX_PORTS],
        };
        put(&mut out.ca_name, context.device().name());
        put(&mut out.fw_ver, &attr.fw_ver);
        put(&mut out.ca_type, "ironverbs");
        put(&mut out.hw_ver, &format!("{:#x}", attr.hw_ver));
        out.ports[1] = give(port_of(&context)?)?;
        // SAFETY: the caller's promise.
        unsafe { ca.write(out) };
        Ok(0)
    })
}

/// Room of the C library's with a port in it; umad_release_ca frees it.
fn give(port: umad_port_t) -> Result<*mut umad_port_t, c_int> {
    // SAFETY: malloc has no requirements.
    let room = unsafe { libc::malloc(size_of::<umad_port_t>()) }.cast::<umad_port_t>();
    if room.is_null() {
        // SAFETY: from malloc, or null.
        unsafe { libc::free(port.pkeys.cast()) };
        return Err(libc::ENOMEM);
    }
    // SAFETY: the room was just allocated for it.
    unsafe { room.write(port) };
    Ok(room)
}

/// Room of the C library's with P_Keys in it; umad_release_port frees it.
pub(super) fn copy_pkeys(pkeys: &[u16]) -> Result<*mut u16, c_int> {
    // SAFETY: malloc has no requirements.
    let room = unsafe { libc::malloc(size_of_val(pkeys).max(1)) }.cast::<u16>();
    if room.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: there is room for all.
    unsafe { ptr::copy_nonoverlapping(pkeys.as_ptr(), room, pkeys.len()) };
    Ok(room)
}

fn port_of(context: &soft::Context) -> Result<umad_port_t, c_int> {
    context.await_subnet_manager();
    let attr = context.port(1).map_err(errno)?;
    let pkeys: Vec<u16> =
        (0..attr.pkey_tbl_len).map(|at| context.pkey(1, at.into()).unwrap_or(0)).collect();
    let room = copy_pkeys(&pkeys)?;
    let [gid_prefix, port_guid] = gid_halves(context);
    let mut port = umad_port_t {
        ca_name: [0; CA_NAME_LEN],
        portnum: 1,
        base_lid: attr.lid.into(),
        lmc: attr.lmc.into(),
        sm_lid: attr.sm_lid.into(),
        sm_sl: attr.sm_sl.into(),
        state: attr.state as c_uint,
        phys_state: attr.phys_state.into(),
        // 4X EDR.
        rate: 100,
        capmask: attr.port_cap_flags.to_be(),
        gid_prefix,
        port_guid,
        pkeys_size: pkeys.len() as c_uint,
        pkeys: room,
        link_layer: [0; CA_NAME_LEN],
    };
    put(&mut port.ca_name, context.device().name());
    put(&mut port.link_layer, "InfiniBand");
    Ok(port)
}

/// # Safety
/// `ca` was filled by [`get_ca`].
pub(crate) unsafe extern "C" fn release_ca(ca: *mut umad_ca_t) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let Some(ca) = (unsafe { ca.as_mut() }) else { return Err(libc::ENODEV) };
        for port in &mut ca.ports {
            if !port.is_null() {
                // SAFETY: made by get_ca.
                unsafe {
                    release_port(*port);
                    libc::free(port.cast());
                }
                *port = ptr::null_mut();
            }
        }
        Ok(0)
    })
}

/// # Safety
/// `name` is null or a string; `port` points to the structure.
pub(crate) unsafe extern "C" fn get_port(
    name: *const c_char,
    number_of: c_int,
    port: *mut umad_port_t,
) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let found = match unsafe { find(name, number_of)? } {
            Ca::Soft(context) => port_of(&context)?,
            Ca::Kernel(adapter) => kernel::port(&adapter, kernel::number(&adapter, number_of)?)?,
        };
        // SAFETY: the caller's promise.
        unsafe { port.write(found) };
        Ok(0)
    })
}

/// # Safety
/// `port` was filled by [`get_port`] or [`get_ca`].
pub(crate) unsafe extern "C" fn release_port(port: *mut umad_port_t) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let Some(port) = (unsafe { port.as_mut() }) else { return Err(libc::ENODEV) };
        // SAFETY: from malloc, or null.
        unsafe { libc::free(port.pkeys.cast::<c_void>()) };
        port.pkeys = ptr::null_mut();
        Ok(0)
    })
}

/// # Safety
/// `name` is null or a string; `path` has room for `max` bytes.
pub(crate) unsafe extern "C" fn get_issm_path(
    name: *const c_char,
    number_of: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    number(|| {
        // SAFETY: the caller's promise.
        let mut text = match unsafe { find(name, number_of)? } {
            Ca::Soft(context) => format!("/dev/infiniband/issm{}", context.device().index()),
            Ca::Kernel(adapter) => kernel::issm(&adapter, kernel::number(&adapter, number_of)?)?,
        };
        text.push('\0');
        let room = usize::try_from(max).unwrap_or(0);
        if room == 0 || path.is_null() {
            return Err(libc::EINVAL);
        }
        let len = text.len().min(room);
        // SAFETY: the caller's promise.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), path, len);
            path.add(len - 1).write(0);
        }
        Ok(0)
    })
}

/// NULL where there is none, or no memory.
pub(crate) extern "C" fn get_ca_device_list() -> *mut umad_device_node {
    let mut first: *mut umad_device_node = ptr::null_mut();
    number(|| {
        for ca in adapters()?.iter().rev() {
            let name = ca.name();
            // A node and its name in one piece.
            let len = size_of::<umad_device_node>() + name.len() + 1;
            // SAFETY: calloc has no requirements.
            let node = unsafe { libc::calloc(1, len) }.cast::<umad_device_node>();
            if node.is_null() {
                return Err(libc::ENOMEM);
            }
            // SAFETY: there is room for the node, and behind it for the name and its end, which is zeroed.
            unsafe {
                let text = node.add(1).cast::<c_char>();
                ptr::copy_nonoverlapping(name.as_ptr().cast(), text, name.len());
                node.write(umad_device_node { next: first, ca_name: text });
            }
            first = node;
        }
        Ok(0)
    });
    first
}

/// # Safety
/// `list` is from [`get_ca_device_list`].
pub(crate) unsafe extern "C" fn free_ca_device_list(list: *mut umad_device_node) {
    let mut next = list;
    while !next.is_null() {
        let node = next;
        // SAFETY: the caller's promise; each node is freed once.
        unsafe {
            next = (*node).next;
            libc::free(node.cast());
        }
    }
}

/// # Safety
/// `head` points to a list from [`get_ca_device_list`].
pub(crate) unsafe extern "C" fn sort_ca_device_list(
    head: *mut *mut umad_device_node,
    _size: usize,
) -> c_int {
    let mut nodes = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        let mut next = if head.is_null() { ptr::null_mut() } else { *head };
        while !next.is_null() {
            nodes.push(next);
            next = (*next).next;
        }
        nodes.sort_by_key(|node| CStr::from_ptr((**node).ca_name));
        let mut after = ptr::null_mut();
        for node in nodes.into_iter().rev() {
            (*node).next = after;
            after = node;
        }
        if !head.is_null() {
            *head = after;
        }
    }
    0
}
