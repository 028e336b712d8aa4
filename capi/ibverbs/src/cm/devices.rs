//! Devices that are open for all ids.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use ironverbs::raw as soft;
use parking_lot::Mutex;
use soft::config::Soft;

use crate::abi::*;
use crate::device;
use crate::fail::{self, Failure, Outcome};
use crate::host::host;
use crate::objects;
use crate::{mr, xrcd};

/// The devices opened so far; they stay open. Pointers to C objects, as numbers.
static OPENED: Mutex<Vec<Arc<Opened>>> = Mutex::new(Vec::new());

/// A device that is open for all ids, and what they share.
pub(super) struct Opened {
    device: Arc<soft::Device>,
    context: usize,
    shared: Mutex<Shared>,
}

/// Made when first needed.
#[derive(Default)]
struct Shared {
    pd: usize,
    xrcd: usize,
}

/// The device of an id, opened if it is not yet.
pub(super) fn opened(device: &Arc<soft::Device>) -> Outcome<Arc<Opened>> {
    let mut opened = OPENED.lock();
    // A program that closes the context it found in an id gets a new one.
    opened.retain(|one| one.is_open());
    if let Some(found) = opened.iter().find(|one| Arc::ptr_eq(&one.device, device)) {
        return Ok(found.clone());
    }
    let context = device::open(device)?.expose_provenance();
    let new = Opened { device: device.clone(), context, shared: Mutex::default() };
    opened.push(Arc::new(new));
    opened.last().cloned().ok_or(Failure::Panic)
}

impl Opened {
    fn is_open(&self) -> bool {
        // SAFETY: contexts lie in places that are never unmapped.
        unsafe { objects::context(self.context()) }.is_ok()
    }

    /// Its context.
    pub(super) fn context(&self) -> *mut ibv_context {
        ptr::with_exposed_provenance_mut(self.context)
    }

    /// The protection domain of ids that are given none.
    pub(super) fn pd(&self) -> Outcome<*mut ibv_pd> {
        let mut shared = self.shared.lock();
        if shared.pd == 0 {
            // SAFETY: the context is ours.
            shared.pd = unsafe { mr::alloc(self.context())? }.expose_provenance();
        }
        Ok(ptr::with_exposed_provenance_mut(shared.pd))
    }

    /// The XRC domain of ids that are given none.
    pub(super) fn xrcd(&self) -> Outcome<*mut ibv_xrcd> {
        let mut shared = self.shared.lock();
        if shared.xrcd == 0 {
            let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            let init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the context is ours, and -1 is no descriptor.
            shared.xrcd = unsafe { xrcd::open(self.context(), &init)? }.expose_provenance();
        }
        Ok(ptr::with_exposed_provenance_mut(shared.xrcd))
    }
}

/// rdma_get_devices(3): the contexts that ids have too.
///
/// # Safety
/// `num` is null or points to an int.
pub(crate) unsafe extern "C" fn get_devices(num: *mut c_int) -> *mut *mut ibv_context {
    if !num.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *num = 0 };
    }
    fail::object("rdma_get_devices", || {
        let host = host()?;
        let which = host.config().soft.value;
        let devices = if which == Soft::Off { Vec::new() } else { host.devices()? };
        let names: Vec<_> = devices.iter().map(|device| device.name().to_owned()).collect();
        let mut contexts = match which {
            Soft::Only => Vec::new(),
            Soft::Also | Soft::Off => super::kernel::get_devices(&names)?,
        };
        let mut refusal = None;
        for device in &devices {
            match opened(device) {
                Ok(opened) => contexts.push(opened.context()),
                // Gone meanwhile, or at a limit: the others are still there.
                Err(failure) => refusal = Some(failure),
            }
        }
        if contexts.is_empty() {
            let none = Failure::Io(std::io::Error::from_raw_os_error(libc::ENODEV));
            return Err(refusal.unwrap_or(none));
        }
        // SAFETY: calloc has no requirements; the list is freed by rdma_free_devices.
        let list = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let list = list.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Failure::Full { what: "device list" });
        }
        // SAFETY: the array has room for all and for the NULL that ends it.
        unsafe { ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len()) };
        if !num.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *num = contexts.len() as c_int };
        }
        Ok(list)
    })
}

/// rdma_free_devices(3): the array alone; devices stay open.
///
/// # Safety
/// `list` is null or came from [`get_devices`] and was not freed before.
pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    // SAFETY: it was allocated with calloc; free(NULL) does nothing.
    unsafe { libc::free(list.cast()) };
}
