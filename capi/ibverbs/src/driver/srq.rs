//! Calls of drivers about shared receive queues.
//!
//! All pointers are the driver's: null or to their structures, commands and responses as long as their sizes say.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::command::{HEADER, Response};
use ironverbs_kernel::queue::{self, CreateSrq};

use super::abi::*;
use super::command::{Errno, Extra, ended, issue, status, wait};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

/// # Safety
/// As for the calls; `whole` is null or the structure that `srq` starts.
pub(super) unsafe fn make_srq(
    pd: *mut ibv_pd,
    srq: *mut ibv_srq,
    whole: *mut verbs_srq,
    attr: *mut ibv_srq_init_attr_ex,
    extra: Extra,
) -> Result<(), Errno> {
    const MASK_TM: u32 = 1 << 4;
    const TM: c_int = 2;
    // SAFETY: the caller's promise; fields behind `comp_mask` are there where their bits say so.
    unsafe {
        let mask = (*attr).comp_mask;
        let has = |bit: u32| mask & bit != 0;
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { (*attr).srq_type } else { IBV_SRQT_BASIC };
        let cq = if has(IBV_SRQ_INIT_ATTR_CQ) { (*attr).cq } else { ptr::null_mut() };
        let mut xrcd: *mut verbs_xrcd = ptr::null_mut();
        let special = match kind {
            IBV_SRQT_XRC => {
                if !has(IBV_SRQ_INIT_ATTR_XRCD) || (*attr).xrcd.is_null() || cq.is_null() {
                    return Err(libc::EINVAL);
                }
                xrcd = (*attr).xrcd.cast();
                Some([kind as u32, 0, (*xrcd).handle, (*cq).handle])
            }
            TM => {
                if cq.is_null() || !has(MASK_TM) || (*attr).tm_cap[0] == 0 {
                    return Err(libc::EINVAL);
                }
                Some([kind as u32, (*attr).tm_cap[0], 0, (*cq).handle])
            }
            _ => None,
        };
        let context = (*pd).context;
        (*srq).context = context;
        (*srq).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        (*srq).cond = libc::PTHREAD_COND_INITIALIZER;
        let wanted = CreateSrq {
            user: srq.expose_provenance() as u64,
            pd: (*pd).handle,
            max_wr: (*attr).attr.max_wr,
            max_sge: (*attr).attr.max_sge,
            limit: (*attr).attr.srq_limit,
            special,
        };
        let response = issue(context, &wanted.command(), extra)?;
        let r = Response(&response);
        (*srq).handle = r.u32(0);
        ((*attr).attr.max_wr, (*attr).attr.max_sge) = (r.u32(4), r.u32(8));
        if !whole.is_null() {
            (*whole).srq_type = kind;
            if kind == IBV_SRQT_XRC {
                ((*whole).srq_num, (*whole).xrcd) = (r.u32(12), xrcd);
            }
            if !cq.is_null() {
                (*whole).cq = cq;
            }
        }
    }
    Ok(())
}

/// `ibv_cmd_create_srq`.
pub(crate) unsafe extern "C" fn cmd_create_srq(
    pd: *mut ibv_pd,
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_init_attr,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 32, resp, resp_size, 16)?;
        // SAFETY: the driver's promise; zeroes are a valid structure.
        unsafe {
            let mut whole: ibv_srq_init_attr_ex = std::mem::zeroed();
            whole.attr = (*attr).attr;
            make_srq(pd, srq, ptr::null_mut(), &raw mut whole, extra)?;
            ((*attr).attr.max_wr, (*attr).attr.max_sge) = (whole.attr.max_wr, whole.attr.max_sge);
        }
        Ok(())
    })
}

/// `ibv_cmd_create_srq_ex`.
pub(crate) unsafe extern "C" fn cmd_create_srq_ex(
    _context: *mut ibv_context,
    srq: *mut verbs_srq,
    attr: *mut ibv_srq_init_attr_ex,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    const RESERVED: u32 = 1 << 5;
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 48, resp, resp_size, 16)?;
        // SAFETY: the driver's promise.
        unsafe {
            if (*attr).comp_mask >= RESERVED {
                return Err(libc::EOPNOTSUPP);
            }
            if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
                return Err(libc::EINVAL);
            }
            make_srq((*attr).pd, srq.cast(), srq, attr, extra)
        }
    })
}

/// `ibv_cmd_modify_srq`.
pub(crate) unsafe extern "C" fn cmd_modify_srq(
    srq: *mut ibv_srq,
    attr: *const ibv_srq_attr,
    mask: c_int,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let (size, limit) = ((*attr).max_wr, (*attr).srq_limit);
            let command = queue::modify_srq((*srq).handle, mask as u32, size, limit);
            issue((*srq).context, &command, extra).map(drop)
        }
    })
}

/// `ibv_cmd_query_srq`.
pub(crate) unsafe extern "C" fn cmd_query_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let response = issue((*srq).context, &queue::query_srq((*srq).handle), extra)?;
            let r = Response(&response);
            attr.write(ibv_srq_attr { max_wr: r.u32(0), max_sge: r.u32(4), srq_limit: r.u32(8) });
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_srq`: back when the program has acknowledged every event.
pub(crate) unsafe extern "C" fn cmd_destroy_srq(srq: *mut ibv_srq) -> c_int {
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::destroy_srq((*srq).handle);
            let Some(response) = ended(issue((*srq).context, &command, Extra::NONE))? else {
                return Ok(());
            };
            let reported = Response(&response).u32(0);
            wait(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
                (&raw const (*srq).events_completed).read_volatile() == reported
            });
        }
        Ok(())
    })
}
