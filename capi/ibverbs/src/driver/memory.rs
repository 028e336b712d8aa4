//! Calls of drivers that the kernel takes by ioctl alone, about regions and device memory.
//!
//! All pointers are the driver's: null or to their structures.

use std::ffi::c_int;
use std::{ptr, slice};

use ironverbs_kernel::method;

use super::abi::*;
use super::command::{Call, Errno, ended, handle, status};
use crate::abi::*;

fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

/// `ibv_cmd_advise_mr`.
pub(crate) unsafe extern "C" fn cmd_advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *const ibv_sge,
    n: u32,
) -> c_int {
    run(|| {
        if n > 0 && list.is_null() {
            return Err(libc::EINVAL);
        }
        let mut call = Call::new(method::ADVISE_MR);
        // SAFETY: the driver's promise; the entries have no padding.
        unsafe {
            let bytes = n as usize * size_of::<ibv_sge>();
            let list = if n == 0 { &[] } else { slice::from_raw_parts(list.cast::<u8>(), bytes) };
            call.object(0, (*pd).handle.into());
            call.u64(1, advice.into());
            call.u32(2, flags);
            call.input(3, list);
            call.issue((*pd).context).map(drop)
        }
    })
}

/// `ibv_cmd_query_mr`, of an imported region.
pub(crate) unsafe extern "C" fn cmd_query_mr(
    pd: *mut ibv_pd,
    mr: *mut verbs_mr,
    mr_handle: u32,
) -> c_int {
    run(|| {
        let (mut lkey, mut rkey, mut length) = ([0; 4], [0; 4], [0; 8]);
        let mut call = Call::new(method::QUERY_MR);
        call.object(0, mr_handle.into());
        call.output(1, &mut lkey);
        call.output(2, &mut rkey);
        call.output(3, &mut length);
        // SAFETY: the driver's promise.
        unsafe {
            call.issue((*pd).context)?;
            (*mr).ibv_mr = ibv_mr {
                context: (*pd).context,
                pd,
                addr: ptr::null_mut(),
                length: u64::from_ne_bytes(length) as usize,
                handle: mr_handle,
                lkey: u32::from_ne_bytes(lkey),
                rkey: u32::from_ne_bytes(rkey),
            };
            (*mr).mr_type = IBV_MR_TYPE_IMPORTED_MR;
        }
        Ok(())
    })
}

/// `ibv_cmd_reg_dmabuf_mr`.
pub(crate) unsafe extern "C" fn cmd_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mr: *mut verbs_mr,
) -> c_int {
    run(|| {
        let (mut lkey, mut rkey) = ([0; 4], [0; 4]);
        let mut call = Call::new(method::REG_DMABUF_MR);
        let at = call.object(0, 0);
        call.output(7, &mut lkey);
        call.output(8, &mut rkey);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(1, (*pd).handle.into());
            call.u64(2, offset);
            call.u64(3, length as u64);
            call.u64(4, iova);
            call.u32(5, fd as u32);
            call.u32(6, access as u32);
            let attributes = call.issue((*pd).context)?;
            (*mr).ibv_mr = ibv_mr {
                context: (*pd).context,
                pd,
                addr: ptr::without_provenance_mut(offset as usize),
                length,
                handle: handle(&attributes, at),
                lkey: u32::from_ne_bytes(lkey),
                rkey: u32::from_ne_bytes(rkey),
            };
            (*mr).mr_type = IBV_MR_TYPE_DMABUF_MR;
        }
        Ok(())
    })
}

/// `ibv_cmd_alloc_dm`.
pub(crate) unsafe extern "C" fn cmd_alloc_dm(
    context: *mut ibv_context,
    attr: *const ibv_alloc_dm_attr,
    dm: *mut verbs_dm,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        let mut call = Call::new(method::ALLOC_DM);
        let at = call.object(0, 0);
        // SAFETY: the driver's promise.
        unsafe {
            call.u64(1, (*attr).length as u64);
            call.u32(2, (*attr).log_align_req);
            call.link(link);
            let attributes = call.issue(context)?;
            (*dm).handle = handle(&attributes, at);
            (*dm).dm.handle = (*dm).handle;
            (*dm).dm.comp_mask = IBV_DM_MASK_HANDLE;
            (*dm).dm.context = context;
        }
        Ok(())
    })
}

/// `ibv_cmd_free_dm`.
pub(crate) unsafe extern "C" fn cmd_free_dm(dm: *mut verbs_dm) -> c_int {
    run(|| {
        let mut call = Call::new(method::FREE_DM);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(0, (*dm).handle.into());
            ended(call.issue((*dm).dm.context).map(|_| Vec::new())).map(drop)
        }
    })
}

/// `ibv_cmd_reg_dm_mr`.
pub(crate) unsafe extern "C" fn cmd_reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut verbs_dm,
    offset: u64,
    length: usize,
    access: u32,
    mr: *mut verbs_mr,
    link: *mut ibv_command_buffer,
) -> c_int {
    const ZERO_BASED: u32 = 1 << 5;
    run(|| {
        if access & ZERO_BASED == 0 {
            return Err(libc::EINVAL);
        }
        let (mut lkey, mut rkey) = ([0; 4], [0; 4]);
        let mut call = Call::new(method::REG_DM_MR);
        let at = call.object(0, 0);
        call.output(6, &mut lkey);
        call.output(7, &mut rkey);
        // SAFETY: the driver's promise.
        unsafe {
            call.object(3, (*pd).handle.into());
            call.object(5, (*dm).handle.into());
            call.u64(1, offset);
            call.u64(2, length as u64);
            call.u32(4, access);
            call.link(link);
            let attributes = call.issue((*pd).context)?;
            (*mr).ibv_mr = ibv_mr {
                context: (*pd).context,
                pd,
                addr: ptr::null_mut(),
                length,
                handle: handle(&attributes, at),
                lkey: u32::from_ne_bytes(lkey),
                rkey: u32::from_ne_bytes(rkey),
            };
            (*mr).mr_type = IBV_MR_TYPE_MR;
        }
        Ok(())
    })
}
