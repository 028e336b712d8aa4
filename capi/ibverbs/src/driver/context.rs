//! Contexts of drivers: made, filled with a driver's functions, ended.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use ironverbs_kernel::method;
use ironverbs_sys::uverbs::{self, Attribute};

use super::abi::*;
use super::{Private, register, unregister, unset};
use crate::abi::*;
use crate::fail;

/// `_verbs_init_and_alloc_context`: memory of the driver's size, with a context at the offset. The descriptor belongs to
/// the context, and is closed where there is none.
///
/// # Safety
/// `cmd_fd` is the caller's to give away; `device` is one that this library made.
pub(crate) unsafe extern "C" fn init_and_alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    size: usize,
    offset: *mut c_void,
    driver_id: u32,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let fd = (cmd_fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(cmd_fd) });
    let offset = offset as usize;
    let fits = offset.checked_add(size_of::<verbs_context>()).is_some_and(|end| end <= size);
    if !fits || !offset.is_multiple_of(align_of::<verbs_context>()) {
        fail::set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: calloc has no requirements; the driver frees it.
    let memory = unsafe { libc::calloc(1, size) };
    if memory.is_null() {
        fail::set_errno(libc::ENOMEM);
        return ptr::null_mut();
    }
    // SAFETY: the context lies within the memory, is aligned in it, and zeroes are a valid start for it.
    unsafe {
        let context = memory.cast::<u8>().add(offset).cast::<verbs_context>();
        let by_ioctl = fd.as_ref().is_some_and(|fd| takes_commands(fd, driver_id));
        let private = Box::into_raw(Box::new(Private {
            ops: unset::all(),
            driver_id,
            by_ioctl,
            watch: None,
        }));
        let public = &raw mut (*context).context;
        (*public).device = device;
        (*public).cmd_fd = cmd_fd;
        (*public).async_fd = -1;
        (*public).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        (*public).abi_compat = VERBS_ABI_IS_EXTENDED;
        (*context).sz = size_of::<verbs_context>();
        (*context).priv_ = private.cast_const().cast();
        set_ops(context, &raw const (*private).ops);
        register(public, private);
    }
    std::mem::forget(fd);
    memory
}

/// Whether the kernel takes commands of write(2) by ioctl(2): one that is too short is then refused for that.
fn takes_commands(fd: &OwnedFd, driver_id: u32) -> bool {
    const QUERY_DEVICE: u64 = 1;
    let Ok(number) = Attribute::input(method::WRITE_CMD, &QUERY_DEVICE.to_ne_bytes()) else {
        return false;
    };
    let fd = std::os::fd::AsFd::as_fd(fd);
    let method::Method(object, method) = method::INVOKE_WRITE;
    // SAFETY: there are no pointers in it.
    match unsafe { uverbs::ioctl(fd, object, method, driver_id, &mut [number]) } {
        Ok(()) => true,
        Err(e) => !matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EPROTONOSUPPORT)),
    }
}

/// `verbs_set_ops`: takes the driver's functions; what is null in them stays as it was. Those behind inline functions
/// are copied to where these look.
///
/// # Safety
/// `context` came from [`init_and_alloc_context`]; `ops` points to the structure.
pub(crate) unsafe extern "C" fn set_ops(
    context: *mut verbs_context,
    ops: *const verbs_context_ops,
) {
    if context.is_null() || ops.is_null() {
        return;
    }
    macro_rules! inline {
        ($table:expr, $($name:ident)*) => {$(
            inline!($table, $name = $name,);
        )*};
        ($table:expr, $($place:ident = $name:ident,)*) => {$(
            if !(*ops).$name.is_null() {
                (&raw mut (*$table).$place).cast::<Unused>().write((*ops).$name);
            }
        )*};
    }
    // SAFETY: the caller's promise; each place holds a pointer to a function or null, and the functions have the types
    // that the header gives to the places of their names.
    unsafe {
        let private = (*context).priv_.cast_mut().cast::<Private>();
        if !ptr::eq(ops, &raw const (*private).ops) {
            (*private).ops.update(&*ops);
        }
        let public = &raw mut (*context).context.ops;
        inline!(public, alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv);
        inline!(context, advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters
            destroy_counters reg_dm_mr alloc_dm free_dm modify_flow_action_esp destroy_flow_action
            create_flow_action_esp modify_qp_rate_limit alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops
            destroy_rwq_ind_table create_rwq_ind_table destroy_wq modify_wq create_wq query_rt_values query_device_ex
            open_qp create_qp_ex get_srq_num create_srq_ex open_xrcd close_xrcd);
        inline!(
            context,
            ibv_create_flow = create_flow,
            ibv_destroy_flow = destroy_flow,
            abi_placeholder1 = create_flow,
            abi_placeholder2 = destroy_flow,
        );
        (*context).create_cq_ex = Some(super::verbs::create_cq_ex);
        (*context).query_port = Some(super::verbs::query_port_ex);
    }
}

/// `verbs_uninit_context`: what [`init_and_alloc_context`] made; the memory is the driver's to free.
///
/// # Safety
/// `context` came from there and is used no more.
pub(crate) unsafe extern "C" fn uninit_context(context: *mut verbs_context) {
    if context.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let public = &raw mut (*context).context;
        unregister(public);
        let private = (*context).priv_.cast_mut().cast::<Private>();
        let mut own = [(*public).cmd_fd, (*public).async_fd];
        if !private.is_null() {
            let private = Box::from_raw(private);
            if private.watch.is_some() {
                // It has that one.
                own[1] = -1;
            }
        }
        for fd in own {
            if fd >= 0 {
                drop(OwnedFd::from_raw_fd(fd));
            }
        }
    }
}

/// The descriptor for commands of a context.
///
/// # Safety
/// `context` is a driver's and stays open.
pub(super) unsafe fn descriptor<'a>(context: *mut ibv_context) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw((*context).cmd_fd.max(0)) }
}

/// `verbs_init_cq`: the public part of a driver's new completion queue.
///
/// # Safety
/// All are null or point to their structures.
pub(crate) unsafe extern "C" fn verbs_init_cq(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
) {
    // SAFETY: the caller's promise.
    unsafe {
        (*cq).context = context;
        (*cq).channel = channel;
        (*cq).cq_context = cq_context;
        (*cq).comp_events_completed = 0;
        (*cq).async_events_completed = 0;
        (*cq).mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        (*cq).cond = libc::PTHREAD_COND_INITIALIZER;
        if !channel.is_null() {
            count(channel, 1);
        }
    }
}

/// Counts the queues of a channel, under the context's mutex as the header's users know it.
///
/// # Safety
/// `channel` is a driver's.
pub(super) unsafe fn count(channel: *mut ibv_comp_channel, change: c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        let mutex = &raw mut (*(*channel).context).mutex;
        libc::pthread_mutex_lock(mutex);
        (*channel).refcnt += change;
        libc::pthread_mutex_unlock(mutex);
    }
}
