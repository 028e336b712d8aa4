//! Memory regions and windows.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::rxe::send;

use super::super::abi::verbs_mr;
use super::super::command::failed;
use super::{free_if, post, zeroed};
use crate::abi::*;
use crate::driver::{cmd_alloc_mw, cmd_dealloc_mw, cmd_reg_mr};

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the verb's promise.
    unsafe {
        let mr = zeroed::<verbs_mr>();
        let (null, none) = (ptr::null_mut(), 0);
        if mr.is_null()
            || cmd_reg_mr(pd, addr, length, iova, access, mr, null, none, null, none) == 0
        {
            return mr.cast();
        }
        libc::free(mr.cast());
        ptr::null_mut()
    }
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    // SAFETY: the verb's promise.
    unsafe {
        let mw = zeroed::<ibv_mw>();
        let (null, none) = (ptr::null_mut(), 0);
        if mw.is_null() || cmd_alloc_mw(pd, kind, mw, null, none, null, none) == 0 {
            return mw;
        }
        libc::free(mw.cast());
        ptr::null_mut()
    }
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { free_if(cmd_dealloc_mw(mw), mw) }
}

/// ibv_bind_mw(3): a request of the queue pair, after which the window has its next key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    wanted: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the verb's promise.
    unsafe {
        let ibv_mw_bind { wr_id, send_flags, bind_info } = *wanted;
        if (*mw).type_ != 1 {
            return failed(libc::EINVAL);
        }
        // The key's last byte is the owner's to choose.
        let rkey = (*mw).rkey & !0xff | u32::from(((*mw).rkey as u8).wrapping_add(1));
        let Some(bind) = binding(qp, mw, rkey, &bind_info) else { return failed(libc::EINVAL) };
        let errno = post::bind(qp, wr_id, send_flags, &bind);
        if errno == 0 {
            (*mw).rkey = rkey;
        }
        errno
    }
}

/// What a request to bind says; `None` when that cannot be: a window of another domain, or memory of no region.
///
/// # Safety
/// Pointers are null or to objects of this driver.
pub(super) unsafe fn binding(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Option<send::Bind> {
    /// Windows have no addresses of their own.
    const ZERO_BASED: u32 = 1 << 5;
    // SAFETY: the caller's promise.
    unsafe {
        let (qp, mw) = (qp.as_ref()?, mw.as_ref()?);
        let mr = info.mr.as_ref();
        let alike = mw.pd == qp.pd && mr.is_none_or(|mr| mr.pd == qp.pd);
        let whole = mr.is_some() || (info.addr == 0 && info.length == 0);
        if !alike || !whole || info.mw_access_flags & ZERO_BASED != 0 {
            return None;
        }
        Some(send::Bind {
            addr: info.addr,
            length: info.length,
            mr_lkey: mr.map_or(0, |mr| mr.lkey),
            mw_rkey: mw.rkey,
            rkey,
            access: info.mw_access_flags,
        })
    }
}
