//! What the exported verbs do on objects of drivers: they call the driver, and fill in what it leaves to the library.
//!
//! All functions have the promises of the verb that they stand for, and are called with the driver's context.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::{mem, ptr};

use super::abi::*;
use super::command::failed;
pub(crate) use super::queries::*;
use super::{Driven, context, events, objects};
use crate::abi::*;
use crate::device;
use crate::fail;

/// Calls a driver's function, of the type that the header gives to its name.
macro_rules! call {
    ($driven:expr, $name:ident($($arg:expr => $ty:ty),*) -> $ret:ty) => {{
        let function: unsafe extern "C" fn($($ty),*) -> $ret = mem::transmute($driven.ops().$name);
        function($($arg),*)
    }};
}
pub(super) use call;

pub(crate) unsafe fn ack_async_event(_: Driven, event: *const ibv_async_event) {
    // SAFETY: the verb's promise.
    unsafe { events::ack_async_event(event) };
}

pub(crate) unsafe fn ack_cq_events(_: Driven, cq: *mut ibv_cq, n: u32) {
    // SAFETY: the verb's promise.
    unsafe { events::ack_cq_events(cq, n) };
}

pub(crate) unsafe fn get_async_event(
    driven: Driven,
    _: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { events::get_async_event(driven, out) }
}

pub(crate) unsafe fn get_cq_event(
    _: Driven,
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { events::get_cq_event(channel, cq, cq_context) }
}

pub(crate) unsafe fn close_device(driven: Driven, context: *mut ibv_context) -> c_int {
    // SAFETY: the verb's promise; the driver's function ends the context.
    unsafe { call!(driven, free_context(context => *mut ibv_context) -> ()) };
    0
}

pub(crate) unsafe fn alloc_pd(driven: Driven, context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the verb's promise.
    unsafe {
        let pd = call!(driven, alloc_pd(context => *mut ibv_context) -> *mut ibv_pd);
        if !pd.is_null() {
            (*pd).context = context;
        }
        pd
    }
}

pub(crate) unsafe fn dealloc_pd(driven: Driven, pd: *mut ibv_pd) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, dealloc_pd(pd => *mut ibv_pd) -> c_int) }
}

pub(crate) unsafe fn reg_mr(
    driven: Driven,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe { reg_mr_iova2(driven, pd, addr, length, addr as u64, access as u32) }
}

pub(crate) unsafe fn reg_mr_iova(
    driven: Driven,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe { reg_mr_iova2(driven, pd, addr, length, iova, access as u32) }
}

pub(crate) unsafe fn reg_mr_iova2(
    driven: Driven,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe {
        let device = (*driven.context).device.cast::<verbs_device>();
        let takes_all = (*device).core_support & CORE_SUPPORT_OPTIONAL_MR_ACCESS != 0;
        let access = if takes_all { access } else { access & !ACCESS_OPTIONAL_RANGE };
        let mr = call!(driven, reg_mr(pd => *mut ibv_pd, addr => *mut c_void, length => usize,
            iova => u64, access as c_int => c_int) -> *mut ibv_mr);
        if !mr.is_null() {
            (*mr).context = driven.context;
            (*mr).pd = pd;
            (*mr).addr = addr;
            (*mr).length = length;
        }
        mr
    }
}

pub(crate) unsafe fn reg_dmabuf_mr(
    driven: Driven,
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe {
        let mr = call!(driven, reg_dmabuf_mr(pd => *mut ibv_pd, offset => u64, length => usize,
            iova => u64, fd => c_int, access => c_int) -> *mut ibv_mr);
        if !mr.is_null() {
            (*mr).context = driven.context;
            (*mr).pd = pd;
            (*mr).addr = ptr::without_provenance_mut(offset as usize);
            (*mr).length = length;
        }
        mr
    }
}

const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 1 << 1;
const REREG_ACCESS: c_int = 1 << 2;
const REREG_ERR_INPUT: c_int = -1;
const REREG_ERR_CMD: c_int = -4;

pub(crate) unsafe fn rereg_mr(
    driven: Driven,
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the verb's promise; a driver's region is the whole structure.
    unsafe {
        let has = |flag: c_int| flags & flag != 0;
        let wrong = (*mr.cast::<verbs_mr>()).mr_type != IBV_MR_TYPE_MR
            || flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0
            || (has(REREG_TRANSLATION) && (length == 0 || addr.is_null()))
            || (access != 0 && !has(REREG_ACCESS));
        if wrong {
            fail::set_errno(libc::EINVAL);
            return REREG_ERR_INPUT;
        }
        let errno = call!(driven, rereg_mr(mr => *mut ibv_mr, flags => c_int, pd => *mut ibv_pd,
            addr => *mut c_void, length => usize, access => c_int) -> c_int);
        if errno != 0 {
            return REREG_ERR_CMD;
        }
        if has(REREG_PD) {
            (*mr).pd = pd;
        }
        if has(REREG_TRANSLATION) {
            ((*mr).addr, (*mr).length) = (addr, length);
        }
        0
    }
}

pub(crate) unsafe fn dereg_mr(driven: Driven, mr: *mut ibv_mr) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, dereg_mr(mr => *mut ibv_mr) -> c_int) }
}

pub(crate) unsafe fn import_pd(
    driven: Driven,
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_pd {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, import_pd(context => *mut ibv_context, handle => u32) -> *mut ibv_pd) }
}

pub(crate) unsafe fn import_mr(driven: Driven, pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, import_mr(pd => *mut ibv_pd, handle => u32) -> *mut ibv_mr) }
}

pub(crate) unsafe fn import_dm(
    driven: Driven,
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_dm {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, import_dm(context => *mut ibv_context, handle => u32) -> *mut ibv_dm) }
}

pub(crate) unsafe fn unimport_pd(driven: Driven, pd: *mut ibv_pd) {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, unimport_pd(pd => *mut ibv_pd) -> ()) }
}

pub(crate) unsafe fn unimport_mr(driven: Driven, mr: *mut ibv_mr) {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, unimport_mr(mr => *mut ibv_mr) -> ()) }
}

pub(crate) unsafe fn unimport_dm(driven: Driven, dm: *mut ibv_dm) {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, unimport_dm(dm => *mut ibv_dm) -> ()) }
}

pub(crate) unsafe fn create_comp_channel(
    _: Driven,
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the verb's promise; malloc has no requirements.
    unsafe {
        let fd = match objects::create_channel(context) {
            Ok(fd) => OwnedFd::from_raw_fd(fd),
            Err(errno) => {
                fail::set_errno(errno);
                return ptr::null_mut();
            }
        };
        let channel = libc::malloc(size_of::<ibv_comp_channel>()).cast::<ibv_comp_channel>();
        if channel.is_null() {
            fail::set_errno(libc::ENOMEM);
            return channel;
        }
        use std::os::fd::IntoRawFd;
        channel.write(ibv_comp_channel { context, fd: fd.into_raw_fd(), refcnt: 0 });
        channel
    }
}

pub(crate) unsafe fn destroy_comp_channel(driven: Driven, channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let mutex = &raw mut (*driven.context).mutex;
        libc::pthread_mutex_lock(mutex);
        let busy = (*channel).refcnt != 0;
        libc::pthread_mutex_unlock(mutex);
        if busy {
            return failed(libc::EBUSY);
        }
        drop(OwnedFd::from_raw_fd((*channel).fd));
        libc::free(channel.cast());
        0
    }
}

pub(crate) unsafe fn create_cq(
    driven: Driven,
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the verb's promise.
    unsafe {
        let cq = call!(driven, create_cq(context => *mut ibv_context, cqe => c_int,
            channel => *mut ibv_comp_channel, comp_vector => c_int) -> *mut ibv_cq);
        if !cq.is_null() {
            context::verbs_init_cq(cq, context, channel, cq_context);
        }
        cq
    }
}

/// Bits of `enum ibv_create_cq_wc_flags` that there are.
const WC_FLAGS: u64 = 0xfff;

/// ibv_create_cq_ex(3), in the context's table.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the verb's promise.
    unsafe {
        let Some(driven) = super::of(context) else {
            fail::set_errno(libc::EINVAL);
            return ptr::null_mut();
        };
        if (*attr).wc_flags & !WC_FLAGS != 0 {
            fail::set_errno(libc::EOPNOTSUPP);
            return ptr::null_mut();
        }
        let cq = call!(driven, create_cq_ex(context => *mut ibv_context,
            attr => *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex);
        if !cq.is_null() {
            context::verbs_init_cq(cq.cast(), context, (*attr).channel, (*attr).cq_context);
        }
        cq
    }
}

pub(crate) unsafe fn resize_cq(driven: Driven, cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, resize_cq(cq => *mut ibv_cq, cqe => c_int) -> c_int) }
}

pub(crate) unsafe fn destroy_cq(driven: Driven, cq: *mut ibv_cq) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let channel = (*cq).channel;
        let errno = call!(driven, destroy_cq(cq => *mut ibv_cq) -> c_int);
        if errno == 0 && !channel.is_null() {
            context::count(channel, -1);
        }
        errno
    }
}

pub(crate) unsafe fn create_srq(
    driven: Driven,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the verb's promise.
    unsafe {
        let srq = call!(driven, create_srq(pd => *mut ibv_pd, attr => *mut ibv_srq_init_attr)
            -> *mut ibv_srq);
        if !srq.is_null() {
            (*srq).context = driven.context;
            (*srq).srq_context = (*attr).srq_context;
            (*srq).pd = pd;
            (*srq).events_completed = 0;
            (*srq).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
            (*srq).cond = libc::PTHREAD_COND_INITIALIZER;
        }
        srq
    }
}

pub(crate) unsafe fn modify_srq(
    driven: Driven,
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, modify_srq(srq => *mut ibv_srq, attr => *mut ibv_srq_attr, mask => c_int)
            -> c_int)
    }
}

pub(crate) unsafe fn query_srq(
    driven: Driven,
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, query_srq(srq => *mut ibv_srq, attr => *mut ibv_srq_attr) -> c_int) }
}

pub(crate) unsafe fn destroy_srq(driven: Driven, srq: *mut ibv_srq) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, destroy_srq(srq => *mut ibv_srq) -> c_int) }
}

pub(crate) unsafe fn create_qp(
    driven: Driven,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, create_qp(pd => *mut ibv_pd, attr => *mut ibv_qp_init_attr) -> *mut ibv_qp)
    }
}

/// What the header's inline function of that name comes to.
pub(crate) unsafe fn create_qp_ex(driven: Driven, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, create_qp_ex(driven.context => *mut ibv_context,
            attr => *mut ibv_qp_init_attr_ex) -> *mut ibv_qp)
    }
}

/// What the header's inline function of that name comes to.
pub(crate) unsafe fn create_srq_ex(
    driven: Driven,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, create_srq_ex(driven.context => *mut ibv_context,
            attr => *mut ibv_srq_init_attr_ex) -> *mut ibv_srq)
    }
}

/// What the header's inline function of that name comes to.
pub(crate) unsafe fn open_xrcd(driven: Driven, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, open_xrcd(driven.context => *mut ibv_context,
            attr => *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd)
    }
}

pub(crate) unsafe fn qp_to_qp_ex(_: Driven, qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the verb's promise; drivers that make the smaller structure have their own behind it, as rdma-core's
    // library takes for granted, too.
    unsafe {
        match (*qp.cast::<verbs_qp>()).comp_mask & VERBS_QP_EX {
            0 => ptr::null_mut(),
            _ => qp.cast(),
        }
    }
}

pub(crate) unsafe fn modify_qp(
    driven: Driven,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let errno = call!(driven, modify_qp(qp => *mut ibv_qp, attr => *mut ibv_qp_attr,
            mask => c_int) -> c_int);
        if errno == 0 && mask & STATE != 0 {
            (*qp).state = (*attr).qp_state;
        }
        errno
    }
}

const STATE: c_int = 1;

pub(crate) unsafe fn query_qp(
    driven: Driven,
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let errno = call!(driven, query_qp(qp => *mut ibv_qp, attr => *mut ibv_qp_attr,
            mask => c_int, init => *mut ibv_qp_init_attr) -> c_int);
        if errno == 0 && mask & STATE != 0 {
            (*qp).state = (*attr).qp_state;
        }
        errno
    }
}

pub(crate) unsafe fn query_qp_data_in_order(
    driven: Driven,
    qp: *mut ibv_qp,
    op: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, query_qp_data_in_order(qp => *mut ibv_qp, op => u32, flags => u32) -> c_int)
    }
}

pub(crate) unsafe fn destroy_qp(driven: Driven, qp: *mut ibv_qp) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, destroy_qp(qp => *mut ibv_qp) -> c_int) }
}

pub(crate) unsafe fn query_ece(driven: Driven, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, query_ece(qp => *mut ibv_qp, ece => *mut ibv_ece) -> c_int) }
}

pub(crate) unsafe fn set_ece(driven: Driven, qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        if (*ece).vendor_id == 0 {
            return failed(libc::EOPNOTSUPP);
        }
        call!(driven, set_ece(qp => *mut ibv_qp, ece => *mut ibv_ece) -> c_int)
    }
}

pub(crate) unsafe fn attach_mcast(
    driven: Driven,
    qp: *mut ibv_qp,
    gid: *const c_void,
    lid: u16,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, attach_mcast(qp => *mut ibv_qp, gid => *const c_void, lid => u16) -> c_int)
    }
}

pub(crate) unsafe fn detach_mcast(
    driven: Driven,
    qp: *mut ibv_qp,
    gid: *const c_void,
    lid: u16,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        call!(driven, detach_mcast(qp => *mut ibv_qp, gid => *const c_void, lid => u16) -> c_int)
    }
}

pub(crate) unsafe fn create_ah(
    driven: Driven,
    pd: *mut ibv_pd,
    attr: *const ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the verb's promise.
    unsafe {
        let ah = call!(driven, create_ah(pd => *mut ibv_pd, attr => *const ibv_ah_attr)
            -> *mut ibv_ah);
        if !ah.is_null() {
            ((*ah).context, (*ah).pd) = (driven.context, pd);
        }
        ah
    }
}

pub(crate) unsafe fn destroy_ah(driven: Driven, ah: *mut ibv_ah) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { call!(driven, destroy_ah(ah => *mut ibv_ah) -> c_int) }
}

/// `verbs_open_device`, by which libraries of drivers open one with wishes of their own.
pub(crate) unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    private: *mut c_void,
) -> *mut ibv_context {
    if super::is_driven(device) {
        return fail::object("verbs_open_device", || super::open_with(device, private));
    }
    // SAFETY: the verb's promise.
    unsafe { device::open_device(device) }
}
