//! Device memory.

use std::ffi::{c_int, c_void};

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::mr;
use crate::objects::{self, ContextId, View, find};
use crate::pool::Object;

/// ibv_alloc_dm(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    fail::object("ibv_alloc_dm", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        // SAFETY: the caller's promise.
        let (soft, attr) = unsafe { (objects::context(context)?.context.clone(), *attr) };
        if attr.comp_mask != 0 {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        let dm = soft.alloc_dm(attr.length as u64, attr.log_align_req)?;
        present(View::new(dm, ContextId::of(context)))
    })
}

/// The C side of device memory.
pub(crate) fn present(view: View<soft::Dm>) -> Outcome<*mut ibv_dm> {
    let context = view.context.pointer();
    let object = ibv_dm::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet.
        unsafe {
            object.write(ibv_dm {
                context,
                memcpy_to_dm: Some(memcpy_to_dm),
                memcpy_from_dm: Some(memcpy_from_dm),
                comp_mask: IBV_DM_MASK_HANDLE,
                handle,
            });
        };
    })?;
    Ok(object.as_ptr())
}

/// ibv_free_dm(3): EBUSY while a region is registered on it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_free_dm", || unsafe {
        objects::destroy::<ibv_dm, _, _>(dm, |dm: &soft::Dm| dm.destroy())
    })
}

/// ibv_memcpy_to_dm(3).
///
/// # Safety
/// As for [`objects::find`]; `from` leads to `length` readable bytes.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    fail::status("ibv_memcpy_to_dm", || {
        if from.is_null() && length > 0 {
            return Err(Failure::Null { what: "host_addr" });
        }
        // SAFETY: the caller's promise.
        unsafe { find::<ibv_dm>(dm)?.inner.copy_in(offset, from.cast(), length)? };
        Ok(())
    })
}

/// ibv_memcpy_from_dm(3).
///
/// # Safety
/// As for [`objects::find`]; `to` leads to `length` writable bytes.
unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    fail::status("ibv_memcpy_from_dm", || {
        if to.is_null() && length > 0 {
            return Err(Failure::Null { what: "host_addr" });
        }
        // SAFETY: the caller's promise.
        unsafe { find::<ibv_dm>(dm)?.inner.copy_out(to.cast(), offset, length)? };
        Ok(())
    })
}

/// ibv_reg_dm_mr(3): zero-based, so that the region has no address.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: u32,
) -> *mut ibv_mr {
    fail::object("ibv_reg_dm_mr", || {
        // SAFETY: the caller's promise.
        let ((soft, context), memory) =
            unsafe { (mr::domain(pd)?, find::<ibv_dm>(dm)?.inner.clone()) };
        let region = soft.reg_dm_mr(&memory, offset, length as u64, mr::access(flags)?)?;
        mr::present(region, context, pd, |mr| mr.length = length)
    })
}
