//! Completion queues and channels.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use ironverbs::raw as soft;

use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome, swift};
use crate::objects::{self, ContextId, CqExtra, View, find};
use crate::pool::Object;

/// ibv_create_comp_channel(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller's promise.
    fail::object("ibv_create_comp_channel", || unsafe { create_channel(context) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn create_channel(context: *mut ibv_context) -> Outcome<*mut ibv_comp_channel> {
    // SAFETY: the caller's promise. Programs of version 1.0 come here too.
    let today = unsafe { crate::old::context_behind(context) };
    // SAFETY: the caller's promise.
    let soft = unsafe { objects::context(today)? }.context.clone();
    let channel = soft.create_channel()?;
    let fd = channel.fd();
    let view = View::new(channel, ContextId::of(context));
    let object = ibv_comp_channel::pool().insert(view, |object, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(ibv_comp_channel { context, fd, refcnt: 0 }) };
    })?;
    Ok(object.as_ptr())
}

/// ibv_destroy_comp_channel(3): EBUSY while a CQ uses it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_comp_channel", || unsafe { end_channel(channel) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn end_channel(channel: *mut ibv_comp_channel) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe { objects::destroy::<ibv_comp_channel, _, _>(channel, |c: &soft::Channel| c.destroy()) }
}

/// Keeps the channel's own count of its CQs, which programs may read.
fn count(channel: *mut ibv_comp_channel, change: i32) {
    // SAFETY: places of the pool are never unmapped; the field is ours to write.
    let refcnt = unsafe { AtomicI32::from_ptr(&raw mut (*channel).refcnt) };
    refcnt.fetch_add(change, Ordering::Relaxed);
}

/// ibv_modify_cq(3): how long events wait for more completions.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    fail::status("ibv_modify_cq", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        let (found, attr) = unsafe { (find::<ibv_cq_ex>(cq)?, *attr) };
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
            return Err(Failure::Argument { what: "attr_mask", value: attr.attr_mask.into() });
        }
        Ok(found.inner.moderate(attr.cq_count, attr.cq_period)?)
    })
}

/// What both ways to create a CQ share. `extra` and `finish` add what the extended one has.
///
/// # Safety
/// As for [`objects::find`].
#[allow(
    clippy::too_many_arguments,
    reason = "those of ibv_create_cq(3), and what the extended one adds"
)]
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    options: soft::CqOptions,
    mut extra: CqExtra,
    finish: impl FnOnce(*mut ibv_cq_ex),
) -> Outcome<*mut ibv_cq_ex> {
    // SAFETY: the caller's promise.
    let soft = unsafe { objects::context(context)? }.context.clone();
    let soft_channel = match channel.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { find::<ibv_comp_channel>(channel)? }.inner.clone()),
    };
    let domain = extra.domain.as_ref().map(soft::Hold::pd);
    let cq = soft.create_cq_with(cqe, soft_channel.as_ref(), comp_vector, options, domain)?;
    extra.channel = channel as usize;
    let view = View {
        inner: cq.clone(),
        context: ContextId::of(context),
        unacknowledged: AtomicU32::new(0),
        extra,
    };
    let object = ibv_cq_ex::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let base = unsafe { &mut (*object).base };
        (base.context, base.channel, base.cq_context) = (context, channel, cq_context);
        (base.handle, base.cqe) = (handle, c_int::try_from(cq.cqe()).unwrap_or(c_int::MAX));
        finish(object);
    })?;
    if !channel.is_null() {
        count(channel, 1);
    }
    cq.set_cookie(object.as_ptr().expose_provenance());
    Ok(object.as_ptr().cast())
}

/// ibv_create_cq(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    fail::object("ibv_create_cq", || {
        let not_negative = |what, value: c_int| {
            u32::try_from(value).map_err(|_| Failure::Argument { what, value: value as u64 })
        };
        let cqe = not_negative("cqe", cqe)?;
        let vector = not_negative("comp_vector", comp_vector)?;
        // SAFETY: the caller's promise.
        let cq = unsafe {
            let (options, extra) = (soft::CqOptions::default(), CqExtra::default());
            create(context, cqe, cq_context, channel, vector, options, extra, |_| ())?
        };
        Ok(cq.cast())
    })
}

/// ibv_destroy_cq(3): EBUSY while a QP uses it; waits until its events are acknowledged.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_cq", || unsafe { end(cq) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn end(cq: *mut ibv_cq) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let channel = find::<ibv_cq_ex>(cq)?.extra.channel;
        objects::destroy::<ibv_cq_ex, _, _>(cq, |cq: &soft::Cq| cq.destroy())?;
        if channel != 0 {
            count(ptr::with_exposed_provenance_mut(channel), -1);
        }
    }
    Ok(())
}

/// ibv_resize_cq(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    fail::status("ibv_resize_cq", || {
        let asked =
            u32::try_from(cqe).map_err(|_| Failure::Argument { what: "cqe", value: cqe as u64 })?;
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_cq_ex>(cq)? };
        found.inner.resize(asked)?;
        let granted = c_int::try_from(found.inner.cqe()).unwrap_or(c_int::MAX);
        // SAFETY: the place is alive; the field is ours to write.
        unsafe { (&raw mut (*found.object()).base.cqe).write(granted) };
        Ok(())
    })
}

/// ibv_poll_cq(3).
///
/// # Safety
/// As for [`objects::find`]; `wc` has room for `num` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num: c_int, wc: *mut ibv_wc) -> c_int {
    swift::number("ibv_poll_cq", || {
        let max = usize::try_from(num)
            .map_err(|_| Failure::Argument { what: "num_entries", value: num as u64 })?;
        // SAFETY: the caller's promise.
        let found = unsafe { ibv_cq_ex::pool().find(cq)? };
        let mut next = wc;
        let taken = found.inner.poll(max, |entry| {
            // SAFETY: at most `max` completions come, for which the caller has room.
            unsafe {
                next.write(convert::c_wc(entry));
                next = next.add(1);
            }
        })?;
        Ok(taken as c_int)
    })
}

/// ibv_req_notify_cq(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    swift::status("ibv_req_notify_cq", || {
        // SAFETY: the caller's promise.
        let found = unsafe { ibv_cq_ex::pool().find(cq)? };
        Ok(found.inner.request_notify(solicited_only != 0)?)
    })
}

/// ibv_get_cq_event(3).
///
/// # Safety
/// As for [`objects::find`]; `cq` and `cq_context` are null or have room for a pointer.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let find = || unsafe { find::<ibv_comp_channel>(channel) };
    let take = || {
        let Some(event) = find()?.inner.signalled_event()? else { return Ok(None) };
        let object: *mut ibv_cq = match event.cookie() {
            // Raised before its maker returned it: nobody asked for that.
            0 => {
                event.ack_events(1);
                return Ok(None);
            }
            address => ptr::with_exposed_provenance_mut(address),
        };
        // SAFETY: CQs live in places that are never unmapped; the out pointers are the caller's.
        unsafe {
            if !cq.is_null() {
                *cq = object;
            }
            if !cq_context.is_null() {
                *cq_context = (*object).cq_context;
            }
        }
        Ok(Some(()))
    };
    fail::waiting("ibv_get_cq_event", || Ok(find()?.inner.event_fd()?), take)
}

/// ibv_ack_cq_events(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, n: u32) {
    fail::silent("ibv_ack_cq_events", || {
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_cq_ex>(cq)? };
        // SAFETY: the place is alive; the field is ours to write.
        let completed =
            unsafe { AtomicU32::from_ptr(&raw mut (*found.object()).base.comp_events_completed) };
        completed.fetch_add(n, Ordering::Relaxed);
        found.inner.ack_events(n);
        Ok(())
    });
}
