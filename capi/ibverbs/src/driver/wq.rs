//! Calls of drivers about work queues and tables of them.
//!
//! All pointers are the driver's: null or to their structures, commands and responses as long as their sizes say.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::command::{EXTENDED_HEADER, Response};
use ironverbs_kernel::queue::{self, CreateWq};

use super::command::{Errno, Extra, ended, issue, status, wait};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

const FLAGS: u32 = 1;
/// CVLAN_STRIPPING, SCATTER_FCS, DELAY_DROP, PCI_WRITE_END_PADDING.
const KNOWN_FLAGS: u32 = 0xf;

/// `ibv_cmd_create_wq`.
pub(crate) unsafe extern "C" fn cmd_create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    wq: *mut ibv_wq,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, EXTENDED_HEADER + 40, resp, resp_size, 24)?;
        // SAFETY: the driver's promise.
        unsafe {
            let mask = (*attr).comp_mask;
            if mask & !FLAGS != 0 || (*attr).pd.is_null() || (*attr).cq.is_null() {
                return Err(libc::EINVAL);
            }
            let flags = if mask & FLAGS != 0 { (*attr).create_flags } else { 0 };
            if flags & !KNOWN_FLAGS != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            let wanted = CreateWq {
                user: wq.expose_provenance() as u64,
                kind: (*attr).wq_type,
                pd: (*(*attr).pd).handle,
                cq: (*(*attr).cq).handle,
                max_wr: (*attr).max_wr,
                max_sge: (*attr).max_sge,
                flags,
            };
            (*wq).context = context;
            ((*wq).cq, (*wq).pd, (*wq).wq_type) = ((*attr).cq, (*attr).pd, (*attr).wq_type);
            let response = issue(context, &wanted.command(), extra)?;
            let r = Response(&response);
            ((*wq).handle, (*wq).wq_num) = (r.u32(8), r.u32(20));
            ((*attr).max_wr, (*attr).max_sge) = (r.u32(12), r.u32(16));
        }
        Ok(())
    })
}

/// `ibv_cmd_modify_wq`.
pub(crate) unsafe extern "C" fn cmd_modify_wq(
    wq: *mut ibv_wq,
    attr: *const ibv_wq_attr,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    const STATE: u32 = 1;
    const MASK_FLAGS: u32 = 1 << 2;
    run(|| {
        let extra = Extra::new(cmd, cmd_size, EXTENDED_HEADER + 24, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let attr = &*attr;
            if attr.attr_mask >= 1 << 3 {
                return Err(libc::EINVAL);
            }
            let mut flags = [0, 0];
            if attr.attr_mask & MASK_FLAGS != 0 {
                if attr.flags_mask & !KNOWN_FLAGS != 0 {
                    return Err(libc::EOPNOTSUPP);
                }
                flags = [attr.flags, attr.flags_mask];
            }
            let (mask, current) = (attr.attr_mask, attr.curr_wq_state);
            let command = queue::modify_wq(mask, (*wq).handle, attr.wq_state, current, flags);
            issue((*wq).context, &command, extra)?;
            if mask & STATE != 0 {
                (*wq).state = attr.wq_state;
            }
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_wq`: back when the program has acknowledged every event.
pub(crate) unsafe extern "C" fn cmd_destroy_wq(wq: *mut ibv_wq) -> c_int {
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::destroy_wq((*wq).handle);
            let Some(response) = ended(issue((*wq).context, &command, Extra::NONE))? else {
                return Ok(());
            };
            let reported = Response(&response).u32(8);
            wait(&raw mut (*wq).mutex, &raw mut (*wq).cond, || {
                (&raw const (*wq).events_completed).read_volatile() == reported
            });
        }
        Ok(())
    })
}

/// `ibv_cmd_create_rwq_ind_table`.
pub(crate) unsafe extern "C" fn cmd_create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *const ibv_rwq_ind_table_init_attr,
    table: *mut ibv_rwq_ind_table,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    /// The kernel's limit.
    const LARGEST: u32 = 13;
    run(|| {
        let extra = Extra::new(ptr::null(), 0, 0, resp, resp_size, 16)?;
        // SAFETY: the driver's promise: the table has so many entries.
        unsafe {
            let size = (*attr).log_ind_tbl_size;
            if (*attr).comp_mask != 0 || size > LARGEST || (*attr).ind_tbl.is_null() {
                return Err(libc::EINVAL);
            }
            let entry = |i: usize| *(*attr).ind_tbl.add(i);
            let entries = 0..1usize << size;
            if entries.clone().any(|i| entry(i).is_null()) {
                return Err(libc::EINVAL);
            }
            let handles: Vec<u32> = entries.map(|i| (*entry(i)).handle).collect();
            let response = issue(context, &queue::create_table(size, &handles), extra)?;
            let r = Response(&response);
            (*table).ind_tbl_handle = r.u32(8);
            (*table).ind_tbl_num = r.u32(12);
            (*table).context = context;
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_rwq_ind_table`.
pub(crate) unsafe extern "C" fn cmd_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let command = queue::destroy_table((*table).ind_tbl_handle);
        ended(issue((*table).context, &command, Extra::NONE)).map(drop)
    })
}
