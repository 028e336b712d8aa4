//! Objects under another handle, of the same process (ibv_import_device(3)).
//!
//! A context is found by its command descriptor, of which each has a file of its own, and objects by their handles. What
//! another process exported is out of reach: its objects are in its memory.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, Child, ContextId, ContextView, View, find};
use crate::pool::Object;
use crate::{device, dm, driver, mr};

const NAME: &std::ffi::CStr = c"ironverbs-context";

/// A file for `cmd_fd`: empty, its own, and nothing can be done with it.
pub(crate) fn descriptor() -> Outcome<File> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// ibv_import_device(3). The descriptor belongs to the new context.
///
/// # Safety
/// `cmd_fd` is the caller's to give away, or no descriptor at all.
pub(crate) unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    fail::object("ibv_import_device", || {
        // SAFETY: F_GETFD only asks.
        if unsafe { libc::fcntl(cmd_fd, libc::F_GETFD) } < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF).into());
        }
        if let Some(context) = driver::import(cmd_fd) {
            return context;
        }
        // SAFETY: the caller's promise. It stays the caller's where this fails.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(cmd_fd) });
        let wanted = file.metadata()?;
        let same = |view: &ContextView| {
            let own = view.cmd.metadata();
            own.is_ok_and(|own| (own.dev(), own.ino()) == (wanted.dev(), wanted.ino()))
        };
        let context = verbs_context::pool().living(same).first().map(|c| c.context.clone());
        let Some(context) = context else {
            let link = std::fs::read_link(format!("/proc/self/fd/{cmd_fd}"))?;
            let ours = link.to_string_lossy().contains(NAME.to_str().unwrap_or("ironverbs"));
            return Err(match ours {
                true => {
                    Failure::Unsupported { what: "a context of another process, or a closed one," }
                }
                false => Failure::Argument { what: "cmd_fd", value: cmd_fd as u64 },
            });
        };
        device::present(context, std::mem::ManuallyDrop::into_inner(file))
    })
}

/// ibv_import_pd(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    fail::object("ibv_import_pd", || {
        // SAFETY: the caller's promise.
        let soft = unsafe { objects::context(context)? }.context.clone();
        let pd = ibv_pd::pool().numbered(handle)?.inner.clone();
        if !Arc::ptr_eq(pd.context(), &soft) {
            return Err(Failure::OtherContext { what: "protection domain" });
        }
        let view = View::new(pd, ContextId::of(context));
        let object = ibv_pd::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_pd { context, handle }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_import_mr(3): the address is not known to who imports it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    fail::object("ibv_import_mr", || {
        // SAFETY: the caller's promise.
        let (domain, context) = unsafe { mr::domain(pd)? };
        let region = ibv_mr::pool().numbered(handle)?.inner.clone();
        if !region.pd().is_same(&domain) {
            return Err(Failure::OtherDomain { what: "memory region" });
        }
        let length = region.len() as usize;
        mr::present(region, context, pd, |mr| mr.length = length)
    })
}

/// ibv_import_dm(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    fail::object("ibv_import_dm", || {
        // SAFETY: the caller's promise.
        let soft = unsafe { objects::context(context)? }.context.clone();
        let found = ibv_dm::pool().numbered(handle)?;
        // SAFETY: contexts live in places that are never unmapped, and are looked up.
        let owner = unsafe { objects::context(found.context.pointer())? };
        if !Arc::ptr_eq(&owner.context, &soft) {
            return Err(Failure::OtherContext { what: "device memory" });
        }
        dm::present(View::new(found.inner.clone(), ContextId::of(context)))
    })
}

/// Gives one handle of an object back.
///
/// # Safety
/// As for [`objects::find`].
unsafe fn unimport<C: Child>(object: *const C::Public) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let handle = unsafe { find::<C>(object)? }.number();
    C::pool().remove(handle);
    Ok(())
}

/// ibv_unimport_pd(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller's promise.
    fail::silent("ibv_unimport_pd", || unsafe { unimport::<ibv_pd>(pd) });
}

/// ibv_unimport_mr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    fail::silent("ibv_unimport_mr", || unsafe { unimport::<ibv_mr>(mr) });
}

/// ibv_unimport_dm(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller's promise.
    fail::silent("ibv_unimport_dm", || unsafe { unimport::<ibv_dm>(dm) });
}
