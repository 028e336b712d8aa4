//! What the drivers that are built in have in common: what is the same whatever lies in a device's queues.
//!
//! Pointers are the program's and the library's: to objects of the driver.

use std::ffi::{CStr, c_int, c_void};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use ironverbs_kernel::command::{QUERY_DEVICE_EXTENDED_RESPONSE, Response};

use super::abi::*;
use super::command::Errno;
use super::context::descriptor;
use super::{
    cmd_alloc_pd, cmd_dealloc_pd, cmd_dereg_mr, cmd_get_context, cmd_modify_qp,
    cmd_query_device_any, cmd_query_port, cmd_query_qp, cmd_query_srq, init_and_alloc_context,
    set_ops, uninit_context,
};
use crate::abi::*;
use crate::fail;

/// `alloc_context` of a driver.
type Open = unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context;

/// What a driver of that name would register as a plug-in, made once.
pub(super) fn registered(
    made: &OnceLock<usize>,
    name: &'static CStr,
    abi: RangeInclusive<u32>,
    open: Open,
) -> *const verbs_device_ops {
    let made = made.get_or_init(|| {
        let ops = verbs_device_ops {
            name: name.as_ptr(),
            match_min_abi_version: *abi.start(),
            match_max_abi_version: *abi.end(),
            match_table: ptr::null(),
            static_providers: ptr::null(),
            match_device: None,
            alloc_context: Some(open),
            import_context: None,
            alloc_device: None,
            uninit_device: None,
        };
        // As long as the process, as a plug-in's.
        Box::into_raw(Box::new(ops)).expose_provenance()
    });
    ptr::with_exposed_provenance(*made)
}

/// A table of functions, those that it does not name absent.
macro_rules! table {
    ($($name:ident: $function:expr,)*) => {{
        // SAFETY: the structure is pointers, for which zeros are null.
        let mut ops: verbs_context_ops = unsafe { std::mem::zeroed() };
        $(ops.$name = $function as *const c_void;)*
        ops
    }};
}
pub(super) use table;

/// Memory for an object of C, all zeros; null with ENOMEM.
///
/// # Safety
/// Zeros are a valid `T`.
pub(super) unsafe fn zeroed<T>() -> *mut T {
    // SAFETY: calloc has no requirements.
    let object = unsafe { libc::calloc(1, size_of::<T>()) }.cast::<T>();
    if object.is_null() {
        fail::set_errno(libc::ENOMEM);
    }
    object
}

/// Frees an object if what ended it worked.
///
/// # Safety
/// `object` came from [`zeroed`], and is used no more where `errno` is 0.
pub(super) unsafe fn free_if<T>(errno: c_int, object: *mut T) -> c_int {
    if errno == 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::free(object.cast()) };
    }
    errno
}

/// A context with these functions; null with an errno. `response` has room for the fixed part of the kernel's answer, 8 bytes,
/// and the driver's, or is empty where that has none.
///
/// # Safety
/// A device of a driver that is built in, and a descriptor to keep.
pub(super) unsafe fn open(
    device: *mut ibv_device,
    cmd_fd: c_int,
    driver: u32,
    response: &mut [u8],
    ops: &verbs_context_ops,
) -> *mut verbs_context {
    // SAFETY: the caller's promise.
    unsafe {
        let size = size_of::<verbs_context>();
        let memory = init_and_alloc_context(device, cmd_fd, size, ptr::null_mut(), driver);
        let context = memory.cast::<verbs_context>();
        if context.is_null() {
            return context;
        }
        let (out, len) = (response.as_mut_ptr().cast(), response.len());
        let errno = cmd_get_context(context, ptr::null_mut(), 0, out, len);
        if errno != 0 {
            uninit_context(context);
            libc::free(memory);
            fail::set_errno(errno);
            return ptr::null_mut();
        }
        set_ops(context, ops);
        context
    }
}

pub(super) unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: the library's promise: a context of this driver, which it uses no more.
    unsafe {
        let whole = context.byte_sub(std::mem::offset_of!(verbs_context, context));
        uninit_context(whole.cast());
        libc::free(whole.cast());
    }
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let mut response = [0_u8; QUERY_DEVICE_EXTENDED_RESPONSE];
    let mut room = response.len();
    // SAFETY: the library's promise.
    unsafe {
        let told = response.as_mut_ptr().cast();
        let errno = cmd_query_device_any(context, input.cast(), attr, size, told, &raw mut room);
        if errno != 0 {
            return errno;
        }
        // Three numbers of 16 bits.
        let version = Response(&response).u64(0);
        let part = |shift: u32| version >> shift & 0xffff;
        let text = format!("{}.{}.{}", part(32), part(16), part(0));
        let field = &raw mut (*attr).orig_attr.fw_ver;
        super::device::put(&mut *field, &text);
    }
    0
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the library's promise.
    unsafe { cmd_query_port(context, port, attr, ptr::null_mut(), 0) }
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the verb's promise.
    unsafe {
        let pd = zeroed::<ibv_pd>();
        if pd.is_null() || cmd_alloc_pd(context, pd, ptr::null_mut(), 0, ptr::null_mut(), 0) == 0 {
            return pd;
        }
        libc::free(pd.cast());
        ptr::null_mut()
    }
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { free_if(cmd_dealloc_pd(pd), pd) }
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { free_if(cmd_dereg_mr(mr), mr) }
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { cmd_modify_qp(qp, attr, mask, ptr::null_mut(), 0) }
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { cmd_query_qp(qp, attr, mask, init, ptr::null_mut(), 0) }
}

pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { cmd_query_srq(srq, attr, ptr::null_mut(), 0) }
}

/// Memory that the kernel shares.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: mapped memory belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps so many bytes of the device's file.
    ///
    /// # Errors
    /// mmap(2)'s; EINVAL for an offset that is none.
    ///
    /// # Safety
    /// `context` is a driver's.
    pub(super) unsafe fn new(
        context: *mut ibv_context,
        offset: u64,
        len: usize,
    ) -> Result<Mapping, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, in no place of ours; the context's descriptor is open.
        let base = unsafe {
            let fd = descriptor(context).as_raw_fd();
            libc::mmap(ptr::null_mut(), len, rights, flags, fd, offset)
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        }
        Ok(Mapping { base: NonNull::new(base.cast()).ok_or(libc::EINVAL)?, len })
    }

    /// Its first byte, at the start of a page.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has pointers into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
