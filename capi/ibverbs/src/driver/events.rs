//! Events of the kernel's devices, from the descriptors that the kernel gives.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

use ironverbs_kernel::event;
use ironverbs_sys::uverbs;

use super::Driven;
use crate::abi::*;
use crate::events::{Source, source};
use crate::fail;

const WQ_FATAL: u32 = 19;

/// ibv_get_async_event(3).
///
/// # Safety
/// The context is the driver's; `out` is null or has room for an event.
pub(super) unsafe fn get_async_event(driven: Driven, out: *mut ibv_async_event) -> c_int {
    if out.is_null() {
        fail::set_errno(libc::EINVAL);
        return -1;
    }
    let mut record = [0; event::ASYNC];
    // SAFETY: the caller's promise; the element is what the program's object was called: its address.
    unsafe {
        let read = match driven.watch() {
            Some(watch) => watch.next((*driven.context).cmd_fd, &mut record),
            None => {
                let fd = BorrowedFd::borrow_raw((*driven.context).async_fd.max(0));
                uverbs::read_event(fd, &mut record)
            }
        };
        if let Err(error) = read {
            fail::set_errno(error);
            return -1;
        }
        let (element, event_type) = event::asynchronous(&record);
        let address = element as usize;
        let element = match source(event_type) {
            Source::Cq => ibv_async_element { cq: ptr::with_exposed_provenance_mut(address) },
            Source::Qp => ibv_async_element { qp: ptr::with_exposed_provenance_mut(address) },
            Source::Srq => ibv_async_element { srq: ptr::with_exposed_provenance_mut(address) },
            _ if event_type == WQ_FATAL => {
                ibv_async_element { qp: ptr::with_exposed_provenance_mut(address) }
            }
            _ => ibv_async_element { port_num: address as c_int },
        };
        out.write(ibv_async_event { element, event_type });
        let hook = driven.ops().async_event;
        let hook: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) =
            std::mem::transmute(hook);
        hook(driven.context, out);
    }
    0
}

/// The object of an event that a driver's object may have raised: null where the event is a port's or the device's.
///
/// # Safety
/// `event` points to an event.
pub(crate) unsafe fn object(event: *const ibv_async_event) -> *mut ibv_pd {
    // SAFETY: the caller's promise; all start with their context, and the type says which it is.
    unsafe {
        let event = *event;
        match source(event.event_type) {
            Source::Cq | Source::Qp | Source::Srq => event.element.cq.cast(),
            _ if event.event_type == WQ_FATAL => event.element.cq.cast(),
            _ => ptr::null_mut(),
        }
    }
}

/// Counts an event as acknowledged, and tells whoever waits for that.
///
/// # Safety
/// The three are of one driver's object.
unsafe fn acknowledge(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    count: *mut u32,
    n: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        count.write_volatile(count.read_volatile().wrapping_add(n));
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// ibv_ack_async_event(3), for an object of a driver.
///
/// # Safety
/// `event` came from [`get_async_event`].
pub(super) unsafe fn ack_async_event(event: *const ibv_async_event) {
    // SAFETY: the caller's promise.
    unsafe {
        let event = *event;
        match source(event.event_type) {
            Source::Cq => {
                let cq = event.element.cq;
                let count = &raw mut (*cq).async_events_completed;
                acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, count, 1);
            }
            Source::Qp => {
                let qp = event.element.qp;
                let count = &raw mut (*qp).events_completed;
                acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, count, 1);
            }
            Source::Srq => {
                let srq = event.element.srq;
                let count = &raw mut (*srq).events_completed;
                acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, count, 1);
            }
            _ if event.event_type == WQ_FATAL => {
                let wq = event.element.qp.cast::<ibv_wq>();
                let count = &raw mut (*wq).events_completed;
                acknowledge(&raw mut (*wq).mutex, &raw mut (*wq).cond, count, 1);
            }
            _ => {}
        }
    }
}

/// ibv_get_cq_event(3).
///
/// # Safety
/// `channel` is a driver's; the others are null or have room for a pointer.
pub(super) unsafe fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut record = [0; event::COMPLETION];
    // SAFETY: the caller's promise; the name of a queue is its address.
    unsafe {
        let fd = BorrowedFd::borrow_raw((*channel).fd.max(0));
        if let Err(error) = uverbs::read_event(fd, &mut record) {
            fail::set_errno(error);
            return -1;
        }
        let address = event::completion(&record) as usize;
        let object = ptr::with_exposed_provenance_mut::<ibv_cq>(address);
        let Some(driven) = super::of(object) else {
            fail::set_errno(libc::EIO);
            return -1;
        };
        if !cq.is_null() {
            *cq = object;
        }
        if !cq_context.is_null() {
            *cq_context = (*object).cq_context;
        }
        let hook: unsafe extern "C" fn(*mut ibv_cq) = std::mem::transmute(driven.ops().cq_event);
        hook(object);
    }
    0
}

/// ibv_ack_cq_events(3).
///
/// # Safety
/// `cq` is a driver's.
pub(super) unsafe fn ack_cq_events(cq: *mut ibv_cq, n: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let count = &raw mut (*cq).comp_events_completed;
        acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, count, n);
    }
}
