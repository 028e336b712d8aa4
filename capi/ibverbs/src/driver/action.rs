//! Calls of drivers about counters and about actions of flows.
//!
//! All pointers are the driver's: null or to their structures.

use std::ffi::c_int;
use std::slice;

use ironverbs_kernel::method;

use super::abi::*;
use super::command::{Call, Errno, ended, handle, status};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

/// `ibv_cmd_create_counters`.
pub(crate) unsafe extern "C" fn cmd_create_counters(
    context: *mut ibv_context,
    init: *const u32,
    counters: *mut verbs_counters,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        let mut call = Call::new(method::CREATE_COUNTERS);
        let at = call.object(0, 0);
        // SAFETY: the driver's promise: the attributes are a mask, of which nothing is known.
        unsafe {
            if *init != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            call.link(link);
            let attributes = call.issue(context)?;
            (*counters).context = context;
            (*counters).handle = handle(&attributes, at);
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_counters`.
pub(crate) unsafe extern "C" fn cmd_destroy_counters(counters: *mut verbs_counters) -> c_int {
    run(|| {
        let mut call = Call::new(method::DESTROY_COUNTERS);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(0, (*counters).handle.into());
            ended(call.issue((*counters).context).map(|_| Vec::new())).map(drop)
        }
    })
}

/// `ibv_cmd_read_counters`.
pub(crate) unsafe extern "C" fn cmd_read_counters(
    counters: *mut verbs_counters,
    values: *mut u64,
    n: u32,
    flags: u32,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        if n > 0 && values.is_null() {
            return Err(libc::EINVAL);
        }
        let mut call = Call::new(method::READ_COUNTERS);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(0, (*counters).handle.into());
            let room: &mut [u8] = match n {
                0 => &mut [],
                n => slice::from_raw_parts_mut(values.cast(), n as usize * 8),
            };
            call.output(1, room);
            call.u32(2, flags);
            call.link(link);
            call.issue((*counters).context).map(drop)
        }
    })
}

/// Bytes of `struct ibv_flow_action_esp_encap` and `struct ibv_flow_action_esp`, which are the kernel's.
const ENCAP: usize = 24;
const ESP: usize = 24;
const MASK_ESN: u32 = 1;

/// # Safety
/// As for the calls.
unsafe fn describe(call: &mut Call, attr: *const driver_esp_attr) {
    // SAFETY: the caller's promise; the parts stay until the call.
    unsafe {
        let attr = &*attr;
        if attr.comp_mask & MASK_ESN != 0 {
            call.u32(2, attr.esn);
        }
        if !attr.keymat_ptr.is_null() {
            let key = slice::from_raw_parts(attr.keymat_ptr, attr.keymat_len.into());
            call.element(3, attr.keymat_proto as u16, key);
        }
        if !attr.replay_ptr.is_null() {
            let replay = slice::from_raw_parts(attr.replay_ptr, attr.replay_len.into());
            call.element(4, attr.replay_proto as u16, replay);
        }
        if !attr.esp_encap.is_null() {
            call.input(5, slice::from_raw_parts(attr.esp_encap, ENCAP));
        }
        if !attr.esp_attr.is_null() {
            call.input(1, slice::from_raw_parts(attr.esp_attr, ESP));
        }
    }
}

/// `ibv_cmd_create_flow_action_esp`.
pub(crate) unsafe extern "C" fn cmd_create_flow_action_esp(
    context: *mut ibv_context,
    attr: *const driver_esp_attr,
    action: *mut verbs_flow_action,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        let mut call = Call::new(method::CREATE_ESP);
        let at = call.object(0, 0);
        // SAFETY: the driver's promise.
        unsafe {
            describe(&mut call, attr);
            call.link(link);
            let attributes = call.issue(context)?;
            (*action).context = context;
            (*action).type_ = IBV_FLOW_ACTION_ESP;
            (*action).handle = handle(&attributes, at);
        }
        Ok(())
    })
}

/// `ibv_cmd_modify_flow_action_esp`.
pub(crate) unsafe extern "C" fn cmd_modify_flow_action_esp(
    action: *mut verbs_flow_action,
    attr: *const driver_esp_attr,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        let mut call = Call::new(method::MODIFY_ESP);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(0, (*action).handle.into());
            describe(&mut call, attr);
            call.link(link);
            call.issue((*action).context).map(drop)
        }
    })
}

/// `ibv_cmd_destroy_flow_action`.
pub(crate) unsafe extern "C" fn cmd_destroy_flow_action(action: *mut verbs_flow_action) -> c_int {
    run(|| {
        let mut call = Call::new(method::DESTROY_ACTION);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(0, (*action).handle.into());
            ended(call.issue((*action).context).map(|_| Vec::new())).map(drop)
        }
    })
}
