//! Events of 1.0. The context of an object of today leads back to its object of 1.0.

use std::ffi::{c_int, c_void};

use super::*;
use crate::fail;
use crate::{cq, events};

/// The object of 1.0 that a context pointer means.
///
/// # Safety
/// As for [`real`].
unsafe fn known<C: Old>(context: *mut c_void) -> Outcome<*mut C> {
    let old = context.cast::<C>();
    // SAFETY: the caller's promise.
    unsafe { C::pool().find(old) }.map(|_| old)
}

pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq_1_0,
    cq_context: *mut *mut c_void,
) -> c_int {
    let (mut today, mut context) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller's promise.
    if unsafe { cq::get_cq_event(channel, &raw mut today, &raw mut context) } != 0 {
        return -1;
    }
    // SAFETY: the caller's promise; the event's CQ cannot end before it is acknowledged.
    fail::number("ibv_get_cq_event", || unsafe {
        let old = known::<ibv_cq_1_0>(context)?;
        if !cq.is_null() {
            *cq = old;
        }
        if !cq_context.is_null() {
            *cq_context = (*old).cq_context;
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq_1_0, n: u32) {
    fail::silent("ibv_ack_cq_events", || {
        // SAFETY: the caller's promise.
        unsafe { cq::ack_cq_events(real(cq)?, n) };
        Ok(())
    });
}

pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context_1_0,
    event: *mut ibv_async_event,
) -> c_int {
    const VERB: &str = "ibv_get_async_event";
    // SAFETY: the caller's promise.
    let Ok(today) = fail::returned(VERB, || unsafe { real(context) }) else { return -1 };
    // SAFETY: the caller's promise.
    if unsafe { events::get_async_event(today, event) } != 0 {
        return -1;
    }
    // SAFETY: it was filled in; an event's object cannot end before it is acknowledged.
    fail::number(VERB, || unsafe {
        let event = &mut *event;
        match events::source(event.event_type) {
            events::Source::Cq => {
                let old = known::<ibv_cq_1_0>((*event.element.cq).cq_context)?;
                event.element.cq = old.cast();
            }
            events::Source::Srq => {
                let old = known::<ibv_srq_1_0>((*event.element.srq).srq_context)?;
                event.element.srq = old.cast();
            }
            events::Source::Qp => {
                let old = known::<ibv_qp_1_0>((*event.element.qp).qp_context)?;
                event.element.qp = old.cast();
            }
            events::Source::Gid | events::Source::Other => {}
        }
        Ok(0)
    })
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *const ibv_async_event) {
    fail::silent("ibv_ack_async_event", || {
        // SAFETY: the caller's promise.
        unsafe {
            let Some(event) = event.as_ref() else { return Ok(()) };
            let mut today = *event;
            match events::source(event.event_type) {
                events::Source::Cq => {
                    today.element.cq = real(event.element.cq.cast::<ibv_cq_1_0>())?;
                }
                events::Source::Srq => {
                    today.element.srq = real(event.element.srq.cast::<ibv_srq_1_0>())?;
                }
                events::Source::Qp => {
                    today.element.qp = real(event.element.qp.cast::<ibv_qp_1_0>())?;
                }
                events::Source::Gid | events::Source::Other => {}
            }
            events::ack_async_event(&raw const today);
        }
        Ok(())
    });
}
