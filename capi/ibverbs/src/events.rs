//! Asynchronous events.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ironverbs::raw as soft;
use soft::{AsyncEvent, EventKind, EventSource};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, Child, ContextId, View};
use crate::subnet;

/// ibv_get_async_event(3).
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for an event.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's promise.
    let find = || unsafe { objects::context(context) };
    let descriptor = || {
        if out.is_null() {
            return Err(Failure::Null { what: "event" });
        }
        Ok(find()?.context.async_event_fd()?)
    };
    let take = || {
        let Some(event) = find()?.context.signalled_async_event()? else { return Ok(None) };
        let Some(element) = element(&event, ContextId::of(context)) else {
            // Its object is not known to C (yet): nobody could acknowledge it.
            event.ack();
            return Ok(None);
        };
        // SAFETY: the caller's promise.
        unsafe { out.write(ibv_async_event { element, event_type: event.kind as u32 }) };
        Ok(Some(()))
    };
    fail::waiting("ibv_get_async_event", descriptor, take)
}

/// What C sees of the source, whose unacknowledged events are counted.
fn element(event: &AsyncEvent, context: ContextId) -> Option<ibv_async_element> {
    Some(match &event.source {
        EventSource::Qp(qp) => {
            ibv_async_element { qp: counted::<ibv_qp_ex, _, _>(qp.cookie(), qp)? }
        }
        EventSource::Cq(cq) => {
            ibv_async_element { cq: counted::<ibv_cq_ex, _, _>(cq.cookie(), cq)? }
        }
        EventSource::Srq(srq) => {
            ibv_async_element { srq: counted::<ibv_srq, _, _>(srq.cookie(), srq)? }
        }
        EventSource::Port(port) => ibv_async_element { port_num: (*port).into() },
        EventSource::Device => ibv_async_element { port_num: 0 },
        EventSource::Gid(gid) => ibv_async_element { gid: subnet::give(*gid, context) },
    })
}

fn counted<C, T, X>(cookie: usize, inner: &Arc<T>) -> Option<*mut C::Public>
where
    C: Child<View = View<T, X>>,
    T: 'static,
    X: 'static,
{
    let pointer: *mut C::Public = ptr::with_exposed_provenance_mut(cookie);
    // SAFETY: the cookie is 0 or the address of a place, and places are never unmapped.
    let found = unsafe { C::pool().find(pointer) }.ok()?;
    if !Arc::ptr_eq(&found.inner, inner) {
        return None;
    }
    found.unacknowledged.fetch_add(1, Ordering::Relaxed);
    Some(pointer)
}

/// ibv_ack_async_event(3).
///
/// # Safety
/// `event` is null or points to an event.
pub(crate) unsafe extern "C" fn ack_async_event(event: *const ibv_async_event) {
    fail::silent("ibv_ack_async_event", || {
        if event.is_null() {
            return Err(Failure::Null { what: "event" });
        }
        // SAFETY: the caller's promise; the type of the event says which element is meant.
        unsafe {
            let event = *event;
            match source(event.event_type) {
                Source::Cq => {
                    acknowledge::<ibv_cq_ex, _, _>(event.element.cq, EventSource::Cq, |cq| {
                        &raw mut (*cq).base.async_events_completed
                    })
                }
                Source::Srq => {
                    acknowledge::<ibv_srq, _, _>(event.element.srq, EventSource::Srq, |srq| {
                        &raw mut (*srq).events_completed
                    })
                }
                Source::Qp => {
                    acknowledge::<ibv_qp_ex, _, _>(event.element.qp, EventSource::Qp, |qp| {
                        &raw mut (*qp).qp_base.events_completed
                    })
                }
                Source::Gid => subnet::take_back(event.element.gid),
                Source::Other => Ok(()),
            }
        }
    });
}

/// Which member of the event's union its type means.
pub(crate) enum Source {
    Cq,
    Srq,
    Qp,
    /// A GID of the subnet.
    Gid,
    /// A port, or the device.
    Other,
}

pub(crate) fn source(event_type: u32) -> Source {
    const CQ_ERR: u32 = EventKind::CqErr as u32;
    const QP_FIRST: u32 = EventKind::QpFatal as u32;
    const QP_LAST: u32 = EventKind::PathMigErr as u32;
    const LAST_WQE: u32 = EventKind::QpLastWqeReached as u32;
    const SRQ_ERR: u32 = EventKind::SrqErr as u32;
    const SRQ_LIMIT: u32 = EventKind::SrqLimitReached as u32;
    const SUBNET_FIRST: u32 = EventKind::GidAvail as u32;
    const SUBNET_LAST: u32 = EventKind::McgDeleted as u32;
    match event_type {
        CQ_ERR => Source::Cq,
        QP_FIRST..=QP_LAST | LAST_WQE => Source::Qp,
        SRQ_ERR | SRQ_LIMIT => Source::Srq,
        SUBNET_FIRST..=SUBNET_LAST => Source::Gid,
        _ => Source::Other,
    }
}

/// # Safety
/// As for [`objects::find`]; `completed` finds the field of the structure.
unsafe fn acknowledge<C, T, X>(
    object: *mut C::Public,
    source: fn(Arc<T>) -> EventSource,
    completed: impl FnOnce(*mut C) -> *mut u32,
) -> Outcome<()>
where
    C: Child<View = View<T, X>>,
    T: 'static,
    X: 'static,
{
    // SAFETY: the caller's promise.
    let found = unsafe { objects::find::<C>(object)? };
    let take = |n: u32| n.checked_sub(1);
    let counted =
        found.unacknowledged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
    if counted {
        // SAFETY: the place is alive; the field is ours to write.
        unsafe { AtomicU32::from_ptr(completed(found.object())) }.fetch_add(1, Ordering::Relaxed);
        one_of(source(found.inner.clone())).ack();
    }
    Ok(())
}

/// Acknowledges whatever was read for an object that is about to end with its context.
pub(crate) fn acknowledge_all<T, X>(view: &View<T, X>, source: fn(Arc<T>) -> EventSource) {
    for _ in 0..view.unacknowledged.swap(0, Ordering::Relaxed) {
        one_of(source(view.inner.clone())).ack();
    }
}

/// An event of the source; which one makes no difference to its count.
fn one_of(source: EventSource) -> AsyncEvent {
    AsyncEvent { kind: EventKind::QpFatal, source }
}
