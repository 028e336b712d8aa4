//! Devices: the list, names, opening and closing.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use ironverbs::raw as soft;
use parking_lot::Mutex;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::host::host;
use crate::objects::{self, Child, ContextId, ContextView, Device, DeviceView, PdExtra, View};
use crate::pool::Object;
use crate::{comp_cntr, driver, events, import, newer, ops, subnet};

/// A device's C structure lives as long as the process: programs keep pointers to it after they
/// freed the list, and see the same pointer in the next list.
static KNOWN: Mutex<Vec<(Arc<soft::Device>, usize)>> = Mutex::new(Vec::new());

fn c_device(device: &Arc<soft::Device>) -> Outcome<*mut ibv_device> {
    let mut known = KNOWN.lock();
    if let Some((_, address)) = known.iter().find(|(d, _)| Arc::ptr_eq(d, device)) {
        return Ok(ptr::with_exposed_provenance_mut(*address));
    }
    // In a fork it takes the place of its parent's device, whose structure the program may have.
    let of_parent = |d: &soft::Device| d.is_of_parent() && d.name() == device.name();
    if let Some((known, address)) = known.iter_mut().find(|(d, _)| of_parent(d)) {
        // What the parent holds with it is not the fork's to give back.
        std::mem::forget(std::mem::replace(known, device.clone()));
        return Ok(ptr::with_exposed_provenance_mut(*address));
    }
    let view = DeviceView { device: device.clone() };
    let object = Device::pool().insert(view, |object, _| {
        // SAFETY: the pool hands out zeroed memory that nobody else sees yet.
        let public = unsafe { &mut (*object).public };
        public.node_type = IBV_NODE_CA;
        public.transport_type = IBV_TRANSPORT_IB;
        let (name, index) = (device.name(), device.index());
        put(&mut public.name, name);
        put(&mut public.dev_name, &format!("uverbs{index}"));
        put(&mut public.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
        put(&mut public.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    })?;
    known.push((device.clone(), object.as_ptr().expose_provenance()));
    Ok(object.as_ptr())
}

/// Writes a string into a zeroed field, cut to its size.
fn put(field: &mut [c_char], text: &str) {
    let room = field.len().saturating_sub(1);
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// ibv_get_device_list(3): NULL with EINVAL when the configuration is wrong.
///
/// # Safety
/// `num` is null or points to an int.
pub(crate) unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    if !num.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *num = 0 };
    }
    fail::object("ibv_get_device_list", || {
        let host = host()?;
        let software = match host.config().soft.value {
            soft::config::Soft::Off => Vec::new(),
            soft::config::Soft::Also | soft::config::Soft::Only => host.devices()?,
        };
        let names: Vec<_> = software.iter().map(|device| device.name().to_owned()).collect();
        let mut devices = match host.config().soft.value {
            soft::config::Soft::Only => Vec::new(),
            soft::config::Soft::Also | soft::config::Soft::Off => driver::list(&names)?,
        };
        for device in &software {
            devices.push(c_device(device)?);
        }
        // SAFETY: calloc has no requirements; the list is freed by ibv_free_device_list.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Failure::Full { what: "device list" });
        }
        // SAFETY: the array has room for all and for the NULL that ends it.
        unsafe { ptr::copy_nonoverlapping(devices.as_ptr(), list, devices.len()) };
        if !num.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *num = devices.len() as c_int };
        }
        Ok(list)
    })
}

/// ibv_free_device_list(3): the array alone; devices stay.
///
/// # Safety
/// `list` is null or came from [`get_device_list`] and was not freed before.
pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it was allocated with calloc; free(NULL) does nothing.
    unsafe { libc::free(list.cast()) };
}

/// Runs `get` on the device behind a pointer.
///
/// # Safety
/// As for [`objects::find`].
unsafe fn with<T>(
    device: *const ibv_device,
    get: impl FnOnce(&Arc<soft::Device>) -> T,
) -> Outcome<T> {
    // SAFETY: the caller's promise.
    unsafe { Device::pool().find(device) }.map(|found| get(&found.device))
}

/// ibv_get_device_name(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    fail::object("ibv_get_device_name", || {
        // SAFETY: the caller's promise.
        unsafe {
            if !driver::is_driven(device) {
                with(device, |_| ())?;
            }
            Ok((&raw mut (*device).name).cast::<c_char>())
        }
    })
}

/// ibv_get_device_index(3): -1 for what is no device.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    if driver::is_driven(device) {
        return driver::get_device_index(device);
    }
    // SAFETY: the caller's promise.
    fail::number("ibv_get_device_index", || unsafe {
        with(device, |d| c_int::try_from(d.index()).unwrap_or(-1))
    })
}

/// ibv_get_device_guid(3), in network order; 0 for what is no device.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    if driver::is_driven(device) {
        return driver::get_device_guid(device);
    }
    // SAFETY: the caller's promise.
    fail::returned("ibv_get_device_guid", || unsafe { with(device, |d| d.guid().to_be()) })
        .unwrap_or(0)
}

/// ibv_open_device(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    fail::object("ibv_open_device", || {
        if driver::is_driven(device) {
            return driver::open_with(device, ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        let soft = unsafe { with(device, Arc::clone)? };
        if !soft.is_of_parent() {
            return open(&soft);
        }
        // A list has no state of the process that asked for it, which may have become a daemon since.
        let own = host()?.devices()?.into_iter().find(|own| own.name() == soft.name());
        std::mem::forget(soft);
        open(&own.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?)
    })
}

/// Opens a device.
pub(crate) fn open(soft: &Arc<soft::Device>) -> Outcome<*mut ibv_context> {
    present(soft.open()?, import::descriptor()?)
}

/// The C side of an open device, of which there may be several.
pub(crate) fn present(context: Arc<soft::Context>, cmd: File) -> Outcome<*mut ibv_context> {
    let device = c_device(context.device())?;
    let (cmd_fd, async_fd) = (cmd.as_raw_fd(), context.async_fd());
    let vectors = context.attr().num_comp_vectors as c_int;
    let view = ContextView { context, cmd };
    let object = verbs_context::pool().insert(view, |object, _| {
        // SAFETY: the pool hands out memory that nobody else sees yet.
        unsafe { object.write(ops::table(device, cmd_fd, async_fd, vectors)) };
    })?;
    object.as_ptr().expose_provenance();
    Ok(object.as_ptr())
}

/// ibv_close_device(3). What the program did not destroy ends here, as it does when the kernel
/// closes a device file.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    fail::status("ibv_close_device", || {
        // SAFETY: the caller's promise.
        let found = unsafe { objects::context(context)? };
        let (inner, handle) = (found.context.clone(), found.number());
        drop(found);
        let same = |view: &ContextView| Arc::ptr_eq(&view.context, &inner);
        if verbs_context::pool().living(same).len() > 1 {
            // The others go on, with what they have imported of this one.
            forget_children(ContextId::of(context));
        } else {
            inner.destroy()?;
            end_children(ContextId::of(context));
        }
        subnet::forget(ContextId::of(context));
        verbs_context::pool().remove(handle);
        Ok(())
    })
}

/// Drops what is left of a context, and with it what nobody else has imported.
fn forget_children(id: ContextId) {
    end_all::<ibv_flow>(id, |_| Ok(()));
    end_all::<raw_qp>(id, |_| Ok(()));
    end_all::<ibv_rwq_ind_table>(id, |_| Ok(()));
    end_all::<ibv_wq>(id, |_| Ok(()));
    end_all::<ibv_counters>(id, |_| Ok(()));
    end_all::<ibv_qp_ex>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Qp);
        Ok(())
    });
    end_all::<comp_cntr::ibv_comp_cntr>(id, |_| Ok(()));
    end_all::<ibv_srq>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Srq);
        Ok(())
    });
    end_all::<ibv_xrcd>(id, |_| Ok(()));
    end_all::<ibv_ah>(id, |_| Ok(()));
    end_all::<ibv_mw>(id, |_| Ok(()));
    end_all::<ibv_mr>(id, |_| Ok(()));
    end_all::<ibv_dm>(id, |_| Ok(()));
    end_all::<newer::ibv_buf>(id, |_| Ok(()));
    end_all::<ibv_cq_ex>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Cq);
        Ok(())
    });
    end_all::<ibv_comp_channel>(id, |_| Ok(()));
    end_all::<ibv_pd>(id, |_| Ok(()));
    end_all::<ibv_td>(id, |_| Ok(()));
}

/// Ends what is left of a context, users before what they use.
pub(crate) fn end_children(id: ContextId) {
    end_all::<ibv_flow>(id, |view| view.inner.destroy());
    end_all::<raw_qp>(id, |view| view.inner.destroy());
    end_all::<ibv_rwq_ind_table>(id, |view| view.inner.destroy());
    end_all::<ibv_wq>(id, |view| view.inner.destroy());
    end_all::<ibv_counters>(id, |view| view.inner.destroy());
    end_all::<ibv_qp_ex>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Qp);
        view.inner.detach_all_mcast();
        view.inner.destroy()
    });
    end_all::<comp_cntr::ibv_comp_cntr>(id, |view| view.inner.destroy());
    end_all::<ibv_srq>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Srq);
        view.inner.destroy()
    });
    end_all::<ibv_xrcd>(id, |view| view.inner.destroy());
    end_all::<ibv_ah>(id, |view| view.inner.destroy());
    end_all::<ibv_mw>(id, |view| view.inner.destroy());
    end_all::<ibv_mr>(id, |view| view.inner.destroy());
    end_all::<ibv_dm>(id, |view| view.inner.destroy());
    end_all::<newer::ibv_buf>(id, |_| Ok(()));
    end_all::<ibv_cq_ex>(id, |view| {
        events::acknowledge_all(view, soft::EventSource::Cq);
        view.inner.ack_events(u32::MAX);
        view.inner.destroy()
    });
    end_all::<ibv_comp_channel>(id, |view| view.inner.destroy());
    // Parent domains before what they are views of.
    for parents in [true, false] {
        let of_kind = |view: &View<soft::Pd, PdExtra>| view.inner.is_parent() == parents;
        end_some::<ibv_pd>(id, of_kind, |view| view.inner.destroy());
    }
    end_all::<ibv_td>(id, |_| Ok(()));
}

/// Ends what is left of one type. Events that nobody will acknowledge any more must not hold it up.
fn end_all<C: Child>(context: ContextId, end: impl Fn(&C::View) -> Result<(), soft::Error>) {
    end_some::<C>(context, |_| true, end);
}

fn end_some<C: Child>(
    context: ContextId,
    which: impl Fn(&C::View) -> bool,
    end: impl Fn(&C::View) -> Result<(), soft::Error>,
) {
    let living = C::pool().living(|view| C::owner(view) == context && which(view));
    let handles: Vec<u32> = living.iter().map(|object| object.number()).collect();
    drop(living);
    for view in handles.into_iter().filter_map(|handle| C::pool().remove(handle)) {
        // Refused only when somebody else ended it meanwhile.
        let _ = end(&view);
    }
}
