//! The kernel's devices as programs see them, and the drivers that know them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::ptr;
use std::sync::Once;

use ironverbs::raw::config::KernelDriver;
use ironverbs_kernel::discover::{self, KernelDevice};
use ironverbs_kernel::{drivers, pattern};
use ironverbs_sys::uverbs;
use parking_lot::Mutex;

use super::abi::*;
use super::objects::alloc_async_fd;
use super::watch::Watch;
use super::{Private, rxe, siw};
use crate::abi::*;
use crate::fail::{Failure, Outcome};

/// What plug-ins registered, by address.
static DRIVERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The kernel's devices that were ever seen. Their structures stay as long as the process: programs keep pointers.
static DEVICES: Mutex<Vec<Known>> = Mutex::new(Vec::new());

struct Known {
    device: KernelDevice,
    /// The driver's `verbs_device`, or ours where no driver knows the device.
    address: usize,
    driven: bool,
}

/// `verbs_register_driver_34`, called by constructors of plug-ins.
pub(crate) extern "C" fn register_driver(ops: *const verbs_device_ops) {
    if !ops.is_null() {
        DRIVERS.lock().push(ops.expose_provenance());
    }
}

pub(crate) fn sysfs() -> &'static Path {
    // SAFETY: a string that stays.
    let path = unsafe { CStr::from_ptr(crate::sysfs::get_sysfs_path()) };
    Path::new(path.to_str().unwrap_or("/sys"))
}

/// The kernel's devices that are there now, without those whose names are taken.
pub(crate) fn list(taken: &[String]) -> Outcome<Vec<*mut ibv_device>> {
    let mut present = discover::devices(sysfs())?;
    present.retain(|device| !taken.contains(&device.name));
    let mut known = DEVICES.lock();
    let mut out = Vec::new();
    for device in present {
        let at = match known.iter().position(|k| k.device == device) {
            Some(at) if known[at].driven => at,
            before => {
                let made = make(&device)?;
                match (before, made.driven) {
                    // Still nobody's.
                    (Some(at), false) => at,
                    _ => {
                        known.push(made);
                        known.len() - 1
                    }
                }
            }
        };
        out.push(ptr::with_exposed_provenance_mut(known[at].address));
    }
    Ok(out)
}

/// Finds the device's driver: ours where that is wanted, one of those that are registered, of all that are installed.
fn make(device: &KernelDevice) -> Outcome<Known> {
    let sysfs_dev = describe(device)?;
    let mut made = match crate::host::host()?.config().kernel_driver.value {
        KernelDriver::Own => try_own(device)?,
        KernelDriver::PlugIn => ptr::null_mut(),
    };
    if made.is_null() {
        made = try_drivers(sysfs_dev);
    }
    if made.is_null() {
        static LOADED: Once = Once::new();
        LOADED.call_once(load_drivers);
        made = try_drivers(sysfs_dev);
    }
    let driven = !made.is_null();
    if !driven {
        made = blank()?;
    }
    // SAFETY: it is a structure of the driver's, or ours, that nobody else uses yet.
    unsafe {
        let public = &mut (*made).device;
        (public.node_type, public.transport_type) = kind(device.node_type);
        put(&mut public.name, &device.name);
        put(&mut public.dev_name, &device.file);
        let root = sysfs().display();
        put(&mut public.dev_path, &format!("{root}/class/infiniband_verbs/{}", device.file));
        put(&mut public.ibdev_path, &format!("{root}/class/infiniband/{}", device.name));
        (*made).refcount = 1;
        (*made).sysfs = sysfs_dev;
    }
    Ok(Known { device: device.clone(), address: made.expose_provenance(), driven })
}

/// A device of no driver yet, which stays for ever.
fn blank() -> Outcome<*mut verbs_device> {
    // SAFETY: calloc has no requirements, and zeroes are a valid device.
    let made = unsafe { libc::calloc(1, size_of::<verbs_device>()) }.cast::<verbs_device>();
    if made.is_null() { Err(Failure::Full { what: "device" }) } else { Ok(made) }
}

/// The structure of a device that this library has a data path for; null for others.
fn try_own(device: &KernelDevice) -> Outcome<*mut verbs_device> {
    if !drivers::has_own(device) {
        return Ok(ptr::null_mut());
    }
    let made = blank()?;
    let is_siw = device.driver == ironverbs_kernel::siw::DRIVER;
    // SAFETY: it is new.
    unsafe { (*made).ops = if is_siw { siw::registered() } else { rxe::registered() } };
    Ok(made)
}

/// Node type and transport by the kernel's node type.
fn kind(node_type: u8) -> (c_int, c_int) {
    match node_type {
        1..=3 => (node_type.into(), 0),
        // iWARP, usNIC, usNIC over UDP, unspecified.
        4 => (4, 1),
        5 => (5, 2),
        6 => (6, 3),
        7 => (7, 4),
        _ => (-1, -1),
    }
}

pub(super) fn put(field: &mut [c_char], text: &str) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// The device as a driver is told of it. It stays for ever.
fn describe(device: &KernelDevice) -> Outcome<*mut verbs_sysfs_dev> {
    // SAFETY: calloc has no requirements, and zeroes are a valid structure.
    let told = unsafe { libc::calloc(1, size_of::<verbs_sysfs_dev>()) }.cast::<verbs_sysfs_dev>();
    // SAFETY: null, or memory of that size that nobody else sees.
    let Some(fields) = (unsafe { told.as_mut() }) else {
        return Err(Failure::Full { what: "device" });
    };
    fields.flags = VSYSFS_READ_MODALIAS | VSYSFS_READ_NODE_GUID;
    put(&mut fields.sysfs_name, &device.file);
    fields.sysfs_cdev = uverbs::make_device(device.number.0, device.number.1);
    put(&mut fields.ibdev_name, &device.name);
    let path = format!("{}/class/infiniband/{}", sysfs().display(), device.name);
    put(&mut fields.ibdev_path, &path);
    put(&mut fields.modalias, &discover::modalias(sysfs(), &device.name));
    fields.node_guid = device.guid;
    fields.driver_id = device.driver;
    fields.node_type = kind(device.node_type).0;
    fields.ibdev_idx = device.index;
    fields.num_ports = device.ports;
    fields.abi_ver = device.abi;
    Ok(told)
}

/// The structure of the first driver that knows the device; by the number of its kernel driver before all else.
fn try_drivers(told: *mut verbs_sysfs_dev) -> *mut verbs_device {
    let registered = DRIVERS.lock().clone();
    let all =
        || registered.iter().map(|&ops| ptr::with_exposed_provenance::<verbs_device_ops>(ops));
    // SAFETY: plug-ins stay loaded, and with them what they registered.
    unsafe {
        let by_number = all().filter(|&ops| !entry(ops, told, by_driver_id).is_null());
        by_number.chain(all()).map(|ops| try_driver(ops, told)).find(|device| !device.is_null())
    }
    .unwrap_or(ptr::null_mut())
}

/// # Safety
/// `ops` is a plug-in's, and `told` came from [`describe`].
unsafe fn try_driver(
    ops: *const verbs_device_ops,
    told: *mut verbs_sysfs_dev,
) -> *mut verbs_device {
    // SAFETY: the caller's promise.
    unsafe {
        let matched = [by_driver_id, by_name, by_modalias]
            .into_iter()
            .map(|way| entry(ops, told, way))
            .find(|entry| !entry.is_null());
        (*told).match_ = matched.unwrap_or(ptr::null());
        let knows = match (*ops).match_device {
            Some(asked) => asked(told),
            None => matched.is_some(),
        };
        if !knows {
            return ptr::null_mut();
        }
        let abi = (*told).abi_ver;
        if abi < (*ops).match_min_abi_version || abi > (*ops).match_max_abi_version {
            eprintln!(
                "ironverbs: {}: its kernel driver has version {abi} of its interface, the plug-in {} knows {} to {}",
                text(&raw const (*told).ibdev_name),
                if (*ops).name.is_null() {
                    "?".into()
                } else {
                    CStr::from_ptr((*ops).name).to_string_lossy()
                },
                (*ops).match_min_abi_version,
                (*ops).match_max_abi_version
            );
            return ptr::null_mut();
        }
        let Some(alloc) = (*ops).alloc_device else { return ptr::null_mut() };
        let device = alloc(told);
        if !device.is_null() {
            (*device).ops = ops;
        }
        device
    }
}

/// A string in a field.
///
/// # Safety
/// `field` is readable and has a NUL.
unsafe fn text<const N: usize>(field: *const [c_char; N]) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(field.cast()) }.to_string_lossy().into_owned()
}

type Way = unsafe fn(&verbs_match_ent, &verbs_sysfs_dev) -> bool;

/// The driver's first entry that fits in that way; null without one.
///
/// # Safety
/// As for [`try_driver`].
unsafe fn entry(
    ops: *const verbs_device_ops,
    told: *const verbs_sysfs_dev,
    way: Way,
) -> *const verbs_match_ent {
    /// More entries than any driver has.
    const LONGEST: usize = 4096;
    // SAFETY: the caller's promise: the table ends with an entry of kind 0.
    unsafe {
        let mut entry = (*ops).match_table;
        for _ in 0..LONGEST {
            if entry.is_null() || (*entry).kind == 0 {
                break;
            }
            if way(&*entry, &*told) {
                return entry;
            }
            entry = entry.add(1);
        }
    }
    ptr::null()
}

unsafe fn by_driver_id(entry: &verbs_match_ent, told: &verbs_sysfs_dev) -> bool {
    told.driver_id != 0
        && entry.kind == VERBS_MATCH_DRIVER_ID
        && entry.value == u64::from(told.driver_id)
}

unsafe fn by_name(entry: &verbs_match_ent, told: &verbs_sysfs_dev) -> bool {
    // SAFETY: a field that `describe` filled.
    let name = unsafe { text(&raw const told.ibdev_name) };
    // SAFETY: the caller's promise.
    unsafe { fits(entry, &format!("rdma_device:N{name}")) }
}

unsafe fn by_modalias(entry: &verbs_match_ent, told: &verbs_sysfs_dev) -> bool {
    // SAFETY: a field that `describe` filled.
    let modalias = unsafe { text(&raw const told.modalias) };
    // SAFETY: the caller's promise.
    !modalias.is_empty() && unsafe { fits(entry, &modalias) }
}

/// # Safety
/// The entry is a driver's.
unsafe fn fits(entry: &verbs_match_ent, text: &str) -> bool {
    match entry.kind {
        VERBS_MATCH_MODALIAS if entry.value != 0 => {
            let pattern = ptr::with_exposed_provenance::<c_char>(entry.value as usize);
            // SAFETY: the caller's promise: it is a string.
            pattern::matches(unsafe { CStr::from_ptr(pattern) }.to_bytes(), text.as_bytes())
        }
        VERBS_MATCH_PCI => {
            let pattern = format!("pci:v{:08X}d{:08X}sv*", entry.vendor, entry.device);
            pattern::matches(pattern.as_bytes(), text.as_bytes())
        }
        _ => false,
    }
}

/// Loads every plug-in that is installed. They register themselves.
fn load_drivers() {
    // SAFETY: getauxval only reads the process's auxiliary vector.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let variable = ["RDMAV_DRIVERS", "IBV_DRIVERS"].into_iter().find_map(std::env::var_os);
    let variable = variable.filter(|_| !privileged);
    for name in drivers::names(Path::new(drivers::CONFIG), variable.as_deref()) {
        let files = drivers::candidates(&name);
        // The last one's error is the telling one where there is no file at all.
        let (mut loaded, mut problem) = (false, String::new());
        for file in files.into_iter().filter(|f| !f.contains(&b'/') || exists(f)) {
            let Ok(file) = CString::new(file) else { continue };
            // SAFETY: constructors of plug-ins run, as the administrator wants.
            if !unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) }.is_null() {
                loaded = true;
                break;
            }
            // SAFETY: dlerror gives a string or null.
            let said = unsafe { libc::dlerror() };
            if !said.is_null() {
                // SAFETY: it is a string until the next call.
                problem = unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned();
            }
        }
        if !loaded && crate::host::explains() {
            let name = String::from_utf8_lossy(&name).into_owned();
            eprintln!("ironverbs: the driver plug-in {name} cannot be loaded: {problem}");
        }
    }
}

fn exists(path: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(path)).exists()
}

/// What is known of a kernel's device by its address; `None` for any other.
fn known<T>(device: *const ibv_device, get: impl FnOnce(&Known) -> T) -> Option<T> {
    DEVICES.lock().iter().find(|known| known.address == device as usize).map(get)
}

/// Whether the device is one of the kernel's.
pub(crate) fn is_driven(device: *const ibv_device) -> bool {
    known(device, |_| ()).is_some()
}

/// GUID of the node, in network order.
pub(crate) fn get_device_guid(device: *const ibv_device) -> u64 {
    known(device, |known| known.device.guid.to_be()).unwrap_or(0)
}

/// Number of the device.
pub(crate) fn get_device_index(device: *const ibv_device) -> c_int {
    known(device, |known| known.device.index).unwrap_or(-1)
}

/// The device of a file: number of the device to its address.
fn by_number(number: libc::dev_t) -> Option<*mut verbs_device> {
    let of = |known: &&Known| {
        known.driven && uverbs::make_device(known.device.number.0, known.device.number.1) == number
    };
    let devices = DEVICES.lock();
    devices.iter().rev().find(of).map(|known| ptr::with_exposed_provenance_mut(known.address))
}

/// Opens a device of the kernel, with what a driver's own call passes on.
pub(crate) fn open_with(
    device: *mut ibv_device,
    private: *mut c_void,
) -> Outcome<*mut ibv_context> {
    let unknown = Failure::Unknown { what: "device", handle: 0 };
    let (about, driven) = known(device, |k| (k.device.clone(), k.driven)).ok_or(unknown)?;
    if !driven {
        return Err(Failure::Driver { device: about.name, needs: drivers::plug_in(about.driver) });
    }
    let path = CString::new(format!("/dev/infiniband/{}", about.file));
    let path = path.map_err(|_| Failure::Null { what: "path" })?;
    let number = uverbs::make_device(about.number.0, about.number.1);
    let fd = uverbs::open(&path, Some(number)).map_err(|error| {
        let path = path.to_string_lossy().into_owned();
        Failure::Open { errno: opening(error.raw_os_error()), path, error }
    })?;
    let device = device.cast::<verbs_device>();
    // SAFETY: a driver's device, whose structures stay.
    unsafe {
        let Some(alloc) = (*(*device).ops).alloc_context else {
            return Err(Failure::Unsupported { what: "opening the device by its driver" });
        };
        // The descriptor is the driver's now, whether that works or not.
        let made = alloc(&raw mut (*device).device, fd.into_raw_fd(), private);
        ready(made)
    }
}

/// The errno by which opening says why: the device is gone, or it is not for this user.
fn opening(errno: Option<i32>) -> i32 {
    match errno {
        Some(libc::EACCES | libc::EPERM) => libc::EPERM,
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => libc::ENODEV,
        Some(other) => other,
        None => libc::EIO,
    }
}

/// What is still to be done for a context that a driver made.
///
/// # Safety
/// `made` is null or a driver's new context.
unsafe fn ready(made: *mut verbs_context) -> Outcome<*mut ibv_context> {
    if made.is_null() {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the caller's promise.
    unsafe {
        let context = &raw mut (*made).context;
        // Drivers may have put their own there.
        (*made).create_cq_ex = Some(super::verbs::create_cq_ex);
        (*made).query_port = Some(super::verbs::query_port_ex);
        if (*context).async_fd < 0 {
            let errno = alloc_async_fd(context);
            if errno != 0 {
                if let Some(driven) = super::of(context) {
                    super::verbs::close_device(driven, context);
                }
                return Err(std::io::Error::from_raw_os_error(errno).into());
            }
        }
        let private = (*made).priv_.cast_mut().cast::<Private>();
        if (*private).watch.is_none() {
            (*private).watch = Watch::begin(context, (*private).driver_id);
        }
        Ok(context)
    }
}

/// ibv_import_device(3) of a descriptor of the kernel's; `None` where it is not one.
pub(crate) fn import(fd: c_int) -> Option<Outcome<*mut ibv_context>> {
    let number = uverbs::device_number(&fd)?;
    let device = by_number(number).or_else(|| {
        // The program may not have asked for the list.
        list(&[]).ok()?;
        by_number(number)
    })?;
    // SAFETY: a driver's device, whose structures stay.
    Some(unsafe {
        match (*(*device).ops).import_context {
            Some(import) => ready(import(&raw mut (*device).device, fd)),
            None => {
                Err(Failure::Unsupported { what: "importing a context by the device's driver" })
            }
        }
    })
}
