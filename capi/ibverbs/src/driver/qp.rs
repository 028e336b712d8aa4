//! Calls of drivers about queue pairs.
//!
//! All pointers are the driver's: null or to their structures, commands and responses as long as their sizes say.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::command::{EXTENDED_HEADER, HEADER, Response};
use ironverbs_kernel::queue::{self, CREATE_QP, CreateQp, QpAttr};

use super::abi::*;
use super::command::{Errno, Extra, ended, issue, status, wait};
use super::objects::{ah_attr, path};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

const MASK_MAX_TSO_HEADER: u32 = 1 << 3;
const MASK_IND_TABLE: u32 = 1 << 4;
const MASK_RX_HASH: u32 = 1 << 5;
/// BLOCK_SELF_MCAST_LB, SCATTER_FCS, CVLAN_STRIPPING, SOURCE_QPN, PCI_WRITE_END_PADDING.
const CREATE_FLAGS: u32 = 1 << 1 | 1 << 8 | 1 << 9 | SOURCE_QPN | 1 << 11;
const SOURCE_QPN: u32 = 1 << 10;

/// Makes a queue pair; `extended` where the driver has put room for that generation in front of its part.
///
/// # Safety
/// As for the calls; `whole` is null or the structure that `qp` starts.
pub(super) unsafe fn make_qp(
    context: *mut ibv_context,
    qp: *mut ibv_qp,
    whole: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    extra: Extra,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise; fields behind `comp_mask` are there where their bits say so.
    unsafe {
        let mask = (*attr).comp_mask;
        let has = |bit: u32| mask & bit != 0;
        let cq = |cq: *mut ibv_cq| if cq.is_null() { Err(libc::EINVAL) } else { Ok((*cq).handle) };
        let srq = (!(*attr).srq.is_null()).then(|| (*(*attr).srq).handle);
        let (mut xrcd, mut table): (*mut verbs_xrcd, _) = (ptr::null_mut(), None);
        let (mut send_cq, mut recv_cq) = (0, 0);
        let pd = if (*attr).qp_type == IBV_QPT_XRC_RECV {
            if !has(IBV_QP_INIT_ATTR_XRCD) || (*attr).xrcd.is_null() {
                return Err(libc::EINVAL);
            }
            xrcd = (*attr).xrcd.cast();
            (*xrcd).handle
        } else {
            if !has(IBV_QP_INIT_ATTR_PD) || (*attr).pd.is_null() {
                return Err(libc::EINVAL);
            }
            if has(MASK_IND_TABLE) {
                let cap = (*attr).cap;
                let receives = cap.max_recv_wr != 0 || cap.max_recv_sge != 0;
                let table_of = (*attr).rwq_ind_tbl.cast::<ibv_rwq_ind_table>();
                if receives || !(*attr).recv_cq.is_null() || srq.is_some() || table_of.is_null() {
                    return Err(libc::EINVAL);
                }
                table = Some((*table_of).ind_tbl_handle);
                if cap.max_send_wr != 0 {
                    send_cq = cq((*attr).send_cq)?;
                }
            } else {
                send_cq = cq((*attr).send_cq)?;
                if (*attr).qp_type == IBV_QPT_XRC_SEND {
                    ((*attr).cap.max_recv_wr, (*attr).cap.max_recv_sge) = (0, 0);
                } else {
                    recv_cq = cq((*attr).recv_cq)?;
                }
            }
            (*(*attr).pd).handle
        };
        let create_flags =
            if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { (*attr).create_flags } else { 0 };
        if create_flags & !CREATE_FLAGS != 0 {
            return Err(libc::EINVAL);
        }
        let cap = (*attr).cap;
        let wanted = CreateQp {
            user: qp.expose_provenance() as u64,
            pd,
            send_cq,
            recv_cq,
            srq,
            max_wr: [cap.max_send_wr, cap.max_recv_wr],
            max_sge: [cap.max_send_sge, cap.max_recv_sge],
            max_inline: cap.max_inline_data,
            signal_all: (*attr).sq_sig_all != 0,
            kind: (*attr).qp_type as u8,
            create_flags,
            source_qpn: if create_flags & SOURCE_QPN != 0 { (*attr).source_qpn } else { 0 },
            table,
        };
        (*qp).context = context;
        let extended = create_flags != 0 || table.is_some();
        let response = issue(context, &wanted.command(extended), extra)?;
        let r = Response(&response);
        (*attr).cap = ibv_qp_cap {
            max_send_wr: r.u32(8),
            max_recv_wr: r.u32(12),
            max_send_sge: r.u32(16),
            max_recv_sge: r.u32(20),
            max_inline_data: r.u32(24),
        };
        (*qp).handle = r.u32(0);
        (*qp).qp_num = r.u32(4);
        (*qp).qp_context = (*attr).qp_context;
        (*qp).pd = if has(IBV_QP_INIT_ATTR_PD) { (*attr).pd } else { ptr::null_mut() };
        (*qp).send_cq = (*attr).send_cq;
        (*qp).recv_cq = (*attr).recv_cq;
        (*qp).srq = (*attr).srq;
        (*qp).qp_type = (*attr).qp_type;
        fresh(qp, RESET);
        if !whole.is_null() {
            (*whole).comp_mask = 0;
            if has(IBV_QP_INIT_ATTR_XRCD) {
                (*whole).comp_mask = VERBS_QP_XRCD;
                (*whole).xrcd = xrcd;
            }
        }
    }
    Ok(())
}

const RESET: u32 = 0;
const UNKNOWN: u32 = 7;

/// # Safety
/// `qp` is a driver's new queue pair.
unsafe fn fresh(qp: *mut ibv_qp, state: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        (*qp).state = state;
        (*qp).events_completed = 0;
        (*qp).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        (*qp).cond = libc::PTHREAD_COND_INITIALIZER;
    }
}

/// The newer attributes of a queue pair that is wanted by the older ones.
pub(super) fn extended(attr: &ibv_qp_init_attr, pd: *mut ibv_pd) -> ibv_qp_init_attr_ex {
    // SAFETY: integers and pointers, for which zeros are values.
    let mut whole: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    whole.qp_context = attr.qp_context;
    (whole.send_cq, whole.recv_cq, whole.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
    (whole.cap, whole.qp_type) = (attr.cap, attr.qp_type);
    (whole.sq_sig_all, whole.comp_mask) = (attr.sq_sig_all, IBV_QP_INIT_ATTR_PD);
    whole.pd = pd;
    whole
}

/// `ibv_cmd_create_qp`.
pub(crate) unsafe extern "C" fn cmd_create_qp(
    pd: *mut ibv_pd,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_init_attr,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::of(CREATE_QP, false, (cmd, cmd_size), (resp, resp_size))?;
        // SAFETY: the driver's promise.
        unsafe {
            let mut whole = extended(&*attr, pd);
            make_qp((*pd).context, qp, ptr::null_mut(), &raw mut whole, extra)?;
            (*attr).cap = whole.cap;
        }
        Ok(())
    })
}

/// `ibv_cmd_create_qp_ex`.
pub(crate) unsafe extern "C" fn cmd_create_qp_ex(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    run(|| {
        let extra = Extra::of(CREATE_QP, false, (cmd, cmd_size), (resp, resp_size))?;
        // SAFETY: the driver's promise.
        unsafe {
            if (*attr).comp_mask & !known != 0 {
                return Err(libc::EINVAL);
            }
            make_qp(context, qp.cast(), qp, attr, extra)
        }
    })
}

/// `ibv_cmd_create_qp_ex2`.
pub(crate) unsafe extern "C" fn cmd_create_qp_ex2(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | MASK_MAX_TSO_HEADER
        | MASK_IND_TABLE
        | MASK_RX_HASH
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    run(|| {
        let extra = Extra::of(CREATE_QP, true, (cmd, cmd_size), (resp, resp_size))?;
        // SAFETY: the driver's promise.
        unsafe {
            if (*attr).comp_mask & !known != 0 {
                return Err(libc::EINVAL);
            }
            make_qp(context, qp.cast(), qp, attr, extra)
        }
    })
}

/// `ibv_cmd_open_qp`.
pub(crate) unsafe extern "C" fn cmd_open_qp(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    _size: c_int,
    attr: *const ibv_qp_open_attr,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 32, resp, resp_size, 32)?;
        // SAFETY: the driver's promise; fields are there where their bits say so.
        unsafe {
            let mask = (*attr).comp_mask;
            let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
            if mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if mask & needed != needed || (*attr).xrcd.is_null() {
                return Err(libc::EINVAL);
            }
            let xrcd = (*attr).xrcd.cast::<verbs_xrcd>();
            let user = qp.expose_provenance() as u64;
            let (qpn, kind) = ((*attr).qp_num, (*attr).qp_type);
            let command = queue::open_qp(user, (*xrcd).handle, qpn, kind as u8);
            let response = issue(context, &command, extra)?;
            let public = &raw mut (*qp).qp_ex.qp_base;
            (*public).handle = Response(&response).u32(0);
            (*public).context = context;
            (*public).qp_context = match mask & IBV_QP_OPEN_ATTR_CONTEXT {
                0 => ptr::null_mut(),
                _ => (*attr).qp_context,
            };
            (*public).pd = ptr::null_mut();
            ((*public).send_cq, (*public).recv_cq) = (ptr::null_mut(), ptr::null_mut());
            (*public).srq = ptr::null_mut();
            ((*public).qp_num, (*public).qp_type) = (qpn, kind);
            fresh(public, UNKNOWN);
            ((*qp).comp_mask, (*qp).xrcd) = (VERBS_QP_XRCD, xrcd);
        }
        Ok(())
    })
}

const RATE_LIMIT: u32 = 1 << 25;

/// `ibv_cmd_query_qp`.
pub(crate) unsafe extern "C" fn cmd_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        if mask as u32 >= RATE_LIMIT {
            return Err(libc::EOPNOTSUPP);
        }
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::query_qp((*qp).handle, mask as u32);
            let response = issue((*qp).context, &command, extra)?;
            let r = Response(&response);
            let told = QpAttr::read(r);
            let cap = ibv_qp_cap {
                max_send_wr: r.u32(64),
                max_recv_wr: r.u32(68),
                max_send_sge: r.u32(72),
                max_recv_sge: r.u32(76),
                max_inline_data: r.u32(80),
            };
            let out = ibv_qp_attr {
                qp_state: told.state[0].into(),
                cur_qp_state: told.state[1].into(),
                path_mtu: told.path_mtu.into(),
                path_mig_state: told.path_mig_state.into(),
                qkey: told.qkey,
                rq_psn: told.rq_psn,
                sq_psn: told.sq_psn,
                dest_qp_num: told.dest_qpn,
                qp_access_flags: told.access,
                cap,
                ah_attr: ah_attr(&told.path),
                alt_ah_attr: ah_attr(&told.alternate),
                pkey_index: told.pkey_index[0],
                alt_pkey_index: told.pkey_index[1],
                en_sqd_async_notify: 0,
                sq_draining: told.drain,
                max_rd_atomic: told.max_rd_atomic[0],
                max_dest_rd_atomic: told.max_rd_atomic[1],
                min_rnr_timer: told.min_rnr_timer,
                port_num: told.port,
                timeout: told.timeout,
                retry_cnt: told.retry_cnt,
                rnr_retry: told.rnr_retry,
                alt_port_num: told.alt_port,
                alt_timeout: told.alt_timeout,
                rate_limit: 0,
            };
            out.write_without_rate_limit(attr);
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: r.u8(queue::QUERY_QP_SIGNAL_ALL).into(),
            });
        }
        Ok(())
    })
}

/// The attributes that the mask names.
///
/// # Safety
/// `attr` points to the structure, without its last field.
unsafe fn wanted(attr: *const ibv_qp_attr, mask: u32) -> QpAttr {
    let has = |bit: u32| mask & 1 << bit != 0;
    let mut out = QpAttr::default();
    macro_rules! take {
        ($($bit:literal => $to:expr, $from:ident;)*) => {$(
            if has($bit) {
                $to = (*attr).$from.try_into().unwrap_or(u8::MAX.into());
            }
        )*};
    }
    // SAFETY: the caller's promise.
    unsafe {
        take! {
            0 => out.state[0], qp_state;
            1 => out.state[1], cur_qp_state;
            2 => out.drain, en_sqd_async_notify;
            5 => out.port, port_num;
            8 => out.path_mtu, path_mtu;
            9 => out.timeout, timeout;
            10 => out.retry_cnt, retry_cnt;
            11 => out.rnr_retry, rnr_retry;
            13 => out.max_rd_atomic[0], max_rd_atomic;
            15 => out.min_rnr_timer, min_rnr_timer;
            17 => out.max_rd_atomic[1], max_dest_rd_atomic;
            18 => out.path_mig_state, path_mig_state;
        }
        if has(3) {
            out.access = (*attr).qp_access_flags;
        }
        if has(4) {
            out.pkey_index[0] = (*attr).pkey_index;
        }
        if has(6) {
            out.qkey = (*attr).qkey;
        }
        if has(7) {
            out.path = path(&(*attr).ah_attr);
        }
        if has(12) {
            out.rq_psn = (*attr).rq_psn;
        }
        if has(14) {
            out.alternate = path(&(*attr).alt_ah_attr);
            out.pkey_index[1] = (*attr).alt_pkey_index;
            (out.alt_port, out.alt_timeout) = ((*attr).alt_port_num, (*attr).alt_timeout);
        }
        if has(16) {
            out.sq_psn = (*attr).sq_psn;
        }
        if has(20) {
            out.dest_qpn = (*attr).dest_qp_num;
        }
    }
    out
}

/// `ibv_cmd_modify_qp`.
pub(crate) unsafe extern "C" fn cmd_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        if mask as u32 >= RATE_LIMIT {
            return Err(libc::EOPNOTSUPP);
        }
        let extra = Extra::new(cmd, cmd_size, HEADER + 112, ptr::null_mut(), 0, 0)?;
        // SAFETY: the driver's promise.
        unsafe {
            let command = wanted(attr, mask as u32).modify((*qp).handle, mask as u32, None);
            issue((*qp).context, &command, extra).map(drop)
        }
    })
}

/// `ibv_cmd_modify_qp_ex`.
pub(crate) unsafe extern "C" fn cmd_modify_qp_ex(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, EXTENDED_HEADER + 120, resp, resp_size, 8)?;
        // SAFETY: the driver's promise; the rate is there if its bit is set.
        unsafe {
            let rate = if mask as u32 & RATE_LIMIT != 0 { (*attr).rate_limit } else { 0 };
            let command = wanted(attr, mask as u32).modify((*qp).handle, mask as u32, Some(rate));
            issue((*qp).context, &command, extra).map(drop)
        }
    })
}

/// `ibv_cmd_destroy_qp`: back when the program has acknowledged every event.
pub(crate) unsafe extern "C" fn cmd_destroy_qp(qp: *mut ibv_qp) -> c_int {
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            let command = queue::destroy_qp((*qp).handle);
            let Some(response) = ended(issue((*qp).context, &command, Extra::NONE))? else {
                return Ok(());
            };
            let reported = Response(&response).u32(0);
            wait(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
                (&raw const (*qp).events_completed).read_volatile() == reported
            });
        }
        Ok(())
    })
}
