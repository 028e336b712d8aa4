//! Reachability and SM events: names that libibverbs of Linux lacks, in a version node and with a header
//! (`infiniband/ironverbs.h`) of this project.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ironverbs::raw as soft;
use parking_lot::Mutex;
use soft::{Gid, SmEvents, SmRegistration};

use crate::abi::*;
use crate::driver;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, ContextId};

/// GIDs of events that were read and not yet acknowledged, by their address.
static GIVEN: LazyLock<Mutex<HashMap<usize, Given>>> = LazyLock::new(Mutex::default);

struct Given {
    context: ContextId,
    gid: *mut ibv_gid,
}

// SAFETY: the pointer is the only one of its allocation that is used on this side; the program reads through a copy.
unsafe impl Send for Given {}

impl Drop for Given {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw` and is freed here only.
        drop(unsafe { Box::from_raw(self.gid) });
    }
}

/// A place for the GID of an event, until [`take_back`].
pub(crate) fn give(gid: Gid, context: ContextId) -> *mut ibv_gid {
    let gid = Box::into_raw(Box::new(ibv_gid { raw: gid.0 }));
    GIVEN.lock().insert(gid.expose_provenance(), Given { context, gid });
    gid
}

/// The event is acknowledged.
pub(crate) fn take_back(gid: *mut ibv_gid) -> Outcome<()> {
    let known = GIVEN.lock().remove(&gid.addr());
    known.map(drop).ok_or(Failure::Argument { what: "event", value: gid.addr() as u64 })
}

/// The context is closed: nobody will acknowledge its events.
pub(crate) fn forget(context: ContextId) {
    GIVEN.lock().retain(|_, given| given.context != context);
}

/// # Safety
/// As for [`objects::find`].
unsafe fn context_of(context: *mut ibv_context) -> Outcome<Arc<soft::Context>> {
    if context.is_null() {
        return Err(Failure::Null { what: "context" });
    }
    // SAFETY: the caller's promise.
    let found = unsafe { objects::context(context) };
    let value = context.addr() as u64;
    // What is no context is an argument like any other here: the man pages know no ENOENT.
    found
        .map(|found| found.context.clone())
        .map_err(|_| Failure::Argument { what: "context", value })
}

/// ibv_gid_reachable(3).
///
/// # Safety
/// As for [`objects::find`]; `gid` is null or points to a GID.
pub(crate) unsafe extern "C" fn gid_reachable(
    context: *mut ibv_context,
    port: c_uint,
    gid: *const ibv_gid,
    timeout: c_int,
) -> c_int {
    fail::number("ibv_gid_reachable", || {
        // SAFETY: the caller's promise; any bytes are a GID.
        let gid = unsafe { ptr::NonNull::new(gid.cast_mut()).map(|gid| gid.read_unaligned().raw) };
        let gid = Gid(gid.ok_or(Failure::Null { what: "GID" })?);
        let timeout = u64::try_from(timeout).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        // SAFETY: the caller's promise.
        unsafe {
            if driver::of(context).is_some() {
                crate::cm::gid_reachable(context, port, gid.0, timeout)?;
            } else {
                context_of(context)?.gid_reachable(port, &gid, timeout)?;
            }
        }
        Ok(0)
    })
}

/// ibv_register_sm_events(3).
///
/// # Safety
/// As for [`objects::find`]; `gids` is null or points to `gid_num` GIDs.
pub(crate) unsafe extern "C" fn register_sm_events(
    context: *mut ibv_context,
    events: u32,
    gid_num: c_int,
    gids: *const ibv_gid,
) -> c_int {
    fail::number("ibv_register_sm_events", || {
        // SAFETY: the caller's promise.
        let (context, registration) = unsafe { arguments(context, events, gid_num, gids)? };
        context.register_sm_events(registration)?;
        Ok(0)
    })
}

/// ibv_unregister_sm_events(3).
///
/// # Safety
/// As for [`register_sm_events`].
pub(crate) unsafe extern "C" fn unregister_sm_events(
    context: *mut ibv_context,
    events: u32,
    gid_num: c_int,
    gids: *const ibv_gid,
) -> c_int {
    fail::number("ibv_unregister_sm_events", || {
        // SAFETY: the caller's promise.
        let (context, registration) = unsafe { arguments(context, events, gid_num, gids)? };
        context.unregister_sm_events(&registration)?;
        Ok(0)
    })
}

/// # Safety
/// As for [`register_sm_events`].
unsafe fn arguments(
    context: *mut ibv_context,
    events: u32,
    gid_num: c_int,
    gids: *const ibv_gid,
) -> Outcome<(Arc<soft::Context>, SmRegistration)> {
    // SAFETY: the caller's promise.
    if unsafe { driver::of(context) }.is_some() {
        let what = "telling of the subnet's events by the descriptor of a device of the kernel";
        return Err(Failure::Missing { what });
    }
    // SAFETY: the caller's promise.
    let context = unsafe { context_of(context)? };
    let unknown = Failure::Argument { what: "events", value: events.into() };
    let events = SmEvents::from_bits(events).ok_or(unknown)?;
    let wrong = Failure::Argument { what: "gid_num", value: gid_num as u64 };
    let count = usize::try_from(gid_num).map_err(|_| wrong)?;
    let gids: Vec<Gid> = match (count, gids.is_null()) {
        (0, true) => Vec::new(),
        (0, false) | (_, true) => {
            return Err(Failure::Argument { what: "gid_num", value: count as u64 });
        }
        // SAFETY: the caller's promise; any bytes are GIDs.
        _ => unsafe { (0..count).map(|n| Gid(gids.add(n).read_unaligned().raw)).collect() },
    };
    Ok((context, SmRegistration::new(events, &gids)?))
}
