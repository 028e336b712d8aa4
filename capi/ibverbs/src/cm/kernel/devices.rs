//! Devices of the kernel that are open for all ids.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::abi::*;
use crate::fail::{Failure, Outcome};
use crate::{dispatch, driver};

/// The devices opened so far; they stay open. Pointers to C objects, as numbers.
static OPENED: Mutex<Vec<Arc<Opened>>> = Mutex::new(Vec::new());

/// A device that is open for all ids, and what they share.
pub(in crate::cm) struct Opened {
    guid: u64,
    context: usize,
    pd: usize,
    /// The XRC domain of ids that are given none, once one was needed.
    xrcd: Mutex<usize>,
    /// READs and atomics that it allows a queue pair: as responder, as initiator.
    pub(super) most: (u8, u8),
    gone: AtomicBool,
}

impl Opened {
    pub(super) fn context(&self) -> *mut ibv_context {
        ptr::with_exposed_provenance_mut(self.context)
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        ptr::with_exposed_provenance_mut(self.pd)
    }

    /// The XRC domain of ids that are given none.
    pub(super) fn xrcd(&self) -> Outcome<*mut ibv_xrcd> {
        let mut xrcd = self.xrcd.lock();
        if *xrcd == 0 {
            let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the context is ours and a driver's, and -1 is no descriptor.
            let made = unsafe {
                let lost = Failure::Null { what: "driver of the device" };
                driver::verbs::open_xrcd(driver::of(self.context()).ok_or(lost)?, &raw mut init)
            };
            if made.is_null() {
                return Err(Failure::Io(std::io::Error::last_os_error()));
            }
            *xrcd = made.expose_provenance();
        }
        Ok(ptr::with_exposed_provenance_mut(*xrcd))
    }
}

/// The device with that GUID, in network order, opened if it is not yet.
pub(in crate::cm) fn opened(guid: u64) -> Outcome<Arc<Opened>> {
    let mut opened = OPENED.lock();
    if let Some(found) = opened.iter().find(|one| one.guid == guid) {
        return Ok(found.clone());
    }
    let device = driver::list(&[])?.into_iter().find(|&d| driver::get_device_guid(d) == guid);
    let none = || Failure::Io(std::io::Error::from_raw_os_error(libc::ENODEV));
    let new = Arc::new(open(device.ok_or_else(none)?, guid)?);
    opened.push(new.clone());
    Ok(new)
}

fn open(device: *mut ibv_device, guid: u64) -> Outcome<Opened> {
    let context = driver::open_with(device, ptr::null_mut())?;
    let refused = || Failure::Io(std::io::Error::last_os_error());
    // SAFETY: the context is ours; zeroes are a valid structure.
    unsafe {
        let mut attr: ibv_device_attr = std::mem::zeroed();
        let pd = dispatch::alloc_pd(context);
        if pd.is_null() || dispatch::query_device(context, &raw mut attr) != 0 {
            return Err(refused());
        }
        let number = |most: i32| u8::try_from(most).unwrap_or(u8::MAX);
        let most = (number(attr.max_qp_rd_atom), number(attr.max_qp_init_rd_atom));
        let (context, pd) = (context.expose_provenance(), pd.expose_provenance());
        Ok(Opened { guid, context, pd, xrcd: Mutex::new(0), most, gone: AtomicBool::new(false) })
    }
}

/// A device is gone, as an id was told. It is closed when the last of its ids is destroyed, not before.
pub(super) fn removed(device: &Arc<Opened>) {
    device.gone.store(true, Ordering::Release);
    OPENED.lock().retain(|one| !Arc::ptr_eq(one, device));
}

impl Drop for Opened {
    /// The kernel waits with the end of some devices (rxe's) until nobody has their files open any more. A program may
    /// still have objects of the context, and will end them: so the structures stay, and their descriptors lead nowhere.
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the context is ours and stays; what it was opened for has no user any more.
        unsafe {
            dispatch::dealloc_pd(self.pd());
            if let Some(driven) = driver::of(self.context()) {
                driven.let_go();
            }
        }
    }
}

/// Whether there are any.
pub(in crate::cm) fn has_devices() -> bool {
    driver::list(&[]).is_ok_and(|devices| !devices.is_empty())
}

/// The contexts of all devices that can be opened, but for those whose names are taken.
pub(in crate::cm) fn get_devices(taken: &[String]) -> Outcome<Vec<*mut ibv_context>> {
    let guids: Vec<u64> =
        driver::list(taken)?.into_iter().map(|d| driver::get_device_guid(d)).collect();
    Ok(guids.into_iter().filter_map(|guid| opened(guid).ok()).map(|one| one.context()).collect())
}
