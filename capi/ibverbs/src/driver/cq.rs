//! Calls of drivers about completion queues.
//!
//! All pointers are the driver's: null or to their structures, commands and responses as long as their sizes say.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::command::{EXTENDED_HEADER, HEADER, Response};
use ironverbs_kernel::queue::{self, CREATE_CQ, CreateCq};

use super::command::{Errno, Extra, ended, issue, status, wait};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

/// # Safety
/// As for the calls.
pub(super) unsafe fn make_cq(
    context: *mut ibv_context,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    wanted: CreateCq,
    extra: Extra,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        let channel = (!channel.is_null()).then(|| (*channel).fd);
        (*cq).context = context;
        let response = issue(context, &CreateCq { channel, ..wanted }.command(), extra)?;
        (*cq).handle = Response(&response).u32(0);
        (*cq).cqe = Response(&response).u32(4) as c_int;
    }
    Ok(())
}

/// `ibv_cmd_create_cq`.
pub(crate) unsafe extern "C" fn cmd_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
    cq: *mut ibv_cq,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::of(CREATE_CQ, false, (cmd, cmd_size), (resp, resp_size))?;
        let wanted = CreateCq {
            user: cq.expose_provenance() as u64,
            cqe: cqe as u32,
            vector: comp_vector as u32,
            channel: None,
            flags: 0,
        };
        // SAFETY: the driver's promise.
        unsafe { make_cq(context, cq, channel, wanted, extra) }
    })
}

const WC_TIMESTAMPS: u64 = 1 << 7 | 1 << 11;
const CQ_TIMESTAMP: u32 = 1;
const CQ_IGNORE_OVERRUN: u32 = 1 << 1;
/// The driver does without the flag for time stamps where the kernel takes no flags.
const TIMESTAMP_IS_OPTIONAL: u32 = 1;

/// `ibv_cmd_create_cq_ex`.
pub(crate) unsafe extern "C" fn cmd_create_cq_ex(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    cq: *mut ibv_cq,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
    cmd_flags: u32,
) -> c_int {
    run(|| {
        let extra = || Extra::of(CREATE_CQ, true, (cmd, cmd_size), (resp, resp_size));
        // SAFETY: the driver's promise; `flags` is there if its bit is set.
        unsafe {
            let mask = (*attr).comp_mask;
            if mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let mut flags = 0;
            if (*attr).wc_flags & WC_TIMESTAMPS != 0 {
                flags |= CQ_TIMESTAMP;
            }
            if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
                && (*attr).flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0
            {
                flags |= CQ_IGNORE_OVERRUN;
            }
            let wanted = CreateCq {
                user: cq.expose_provenance() as u64,
                cqe: (*attr).cqe,
                vector: (*attr).comp_vector,
                channel: None,
                flags,
            };
            match make_cq(context, cq, (*attr).channel, wanted, extra()?) {
                Err(libc::EOPNOTSUPP | libc::ENOSYS)
                    if flags == CQ_TIMESTAMP && cmd_flags & TIMESTAMP_IS_OPTIONAL != 0 =>
                {
                    let plain = CreateCq { flags: 0, ..wanted };
                    make_cq(context, cq, (*attr).channel, plain, extra()?)
                }
                other => other,
            }
        }
    })
}

/// `ibv_cmd_resize_cq`.
pub(crate) unsafe extern "C" fn cmd_resize_cq(
    cq: *mut ibv_cq,
    cqe: c_int,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, resp, resp_size, 8)?;
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::resize_cq((*cq).handle, cqe as u32);
            let response = issue((*cq).context, &command, extra)?;
            (*cq).cqe = Response(&response).u32(0) as c_int;
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_cq`: back when the program has acknowledged every event.
pub(crate) unsafe extern "C" fn cmd_destroy_cq(cq: *mut ibv_cq) -> c_int {
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::destroy_cq((*cq).handle);
            let Some(response) = ended(issue((*cq).context, &command, Extra::NONE))? else {
                return Ok(());
            };
            let (completions, others) = (Response(&response).u32(0), Response(&response).u32(4));
            wait(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
                (&raw const (*cq).comp_events_completed).read_volatile() == completions
                    && (&raw const (*cq).async_events_completed).read_volatile() == others
            });
        }
        Ok(())
    })
}

/// `ibv_cmd_req_notify_cq`.
pub(crate) unsafe extern "C" fn cmd_req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let command = queue::req_notify_cq((*cq).handle, solicited != 0);
        issue((*cq).context, &command, Extra::NONE).map(drop)
    })
}

/// `ibv_cmd_modify_cq`.
pub(crate) unsafe extern "C" fn cmd_modify_cq(
    cq: *mut ibv_cq,
    attr: *const ibv_modify_cq_attr,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, EXTENDED_HEADER + 16, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let attr = *attr;
            if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
                return Err(libc::EINVAL);
            }
            let (count, period) = (attr.cq_count, attr.cq_period);
            let command = queue::modify_cq((*cq).handle, attr.attr_mask, count, period);
            issue((*cq).context, &command, extra).map(drop)
        }
    })
}
