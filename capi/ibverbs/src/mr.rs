//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};

use ironverbs::raw::Access;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, ContextId, View, find};
use crate::pool::Object;

/// ibv_alloc_pd(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    fail::object("ibv_alloc_pd", || unsafe { alloc(context) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn alloc(context: *mut ibv_context) -> Outcome<*mut ibv_pd> {
    // SAFETY: the caller's promise.
    let soft = unsafe { objects::context(context)? }.context.clone();
    let view = View::new(soft.alloc_pd()?, ContextId::of(context));
    let pd = ibv_pd::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(ibv_pd { context, handle }) };
    })?;
    Ok(pd.as_ptr())
}

/// ibv_dealloc_pd(3): EBUSY while anything belongs to it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dealloc_pd", || unsafe {
        objects::destroy::<ibv_pd, _, _>(pd, |pd: &ironverbs::raw::Pd| pd.destroy())
    })
}

/// The rights that a program asked for. Rights from the optional range may be ignored, and are when
/// unknown; any other unknown right is refused.
fn access(flags: u32) -> Outcome<Access> {
    let known = Access::from_bits_truncate(flags);
    if flags & !Access::all().bits() & !IBV_ACCESS_OPTIONAL_RANGE != 0 {
        return Err(Failure::Argument { what: "access", value: flags.into() });
    }
    Ok(known)
}

/// ibv_reg_mr(3).
///
/// # Safety
/// As for [`objects::find`]; the memory stays mapped until the region is deregistered.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { reg_mr_iova2(pd, addr, length, addr as u64, access as u32) }
}

/// ibv_reg_mr_iova(3).
///
/// # Safety
/// As for [`reg_mr`].
pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

/// ibv_reg_mr_iova2: what the header's inline functions call when the rights are not constant.
///
/// # Safety
/// As for [`reg_mr`].
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    fail::object("ibv_reg_mr", || {
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_pd>(pd)? };
        let (context, soft) = (found.context, found.inner.clone());
        drop(found);
        // SAFETY: the caller keeps the memory mapped, as ibv_reg_mr(3) asks.
        let mr = unsafe { soft.reg_mr(addr as u64, length as u64, iova, access(flags)?)? };
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        let view = View::new(mr, context);
        let context = context.pointer();
        let object = ibv_mr::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_mr { context, pd, addr, length, handle, lkey, rkey }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_rereg_mr(3). Every failure leaves the region as it was: IBV_REREG_MR_ERR_INPUT and errno.
///
/// # Safety
/// As for [`reg_mr`]; `pd` as for [`objects::find`] where it is used.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags_of_access: c_int,
) -> c_int {
    let done = fail::returned("ibv_rereg_mr", || {
        let known =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Failure::Argument { what: "flags", value: flags as u64 });
        }
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_mr>(mr)? };
        let soft = found.inner.clone();
        let new_pd = match flags & IBV_REREG_MR_CHANGE_PD {
            0 => None,
            // SAFETY: the caller's promise.
            _ => Some(unsafe { find::<ibv_pd>(pd)? }.inner.clone()),
        };
        let new_range = (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0).then_some((
            addr as u64,
            length as u64,
            addr as u64,
        ));
        if new_range.is_some() && addr.is_null() {
            return Err(Failure::Null { what: "address" });
        }
        let new_access = match flags & IBV_REREG_MR_CHANGE_ACCESS {
            0 => None,
            _ => Some(access(flags_of_access as u32)?),
        };
        // SAFETY: as for `reg_mr`.
        unsafe { soft.rereg(new_pd.as_ref(), new_range, new_access)? };
        // SAFETY: `found` keeps the place; a program does not read the region while it changes it.
        let object = unsafe { &mut *found.object() };
        if new_pd.is_some() {
            object.pd = pd;
        }
        if new_range.is_some() {
            (object.addr, object.length) = (addr, length);
        }
        (object.lkey, object.rkey) = (soft.lkey(), soft.rkey());
        Ok(())
    });
    done.map_or(IBV_REREG_MR_ERR_INPUT, |()| 0)
}

/// ibv_dereg_mr(3): when it returns, nobody reads or writes the memory any more.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dereg_mr", || unsafe {
        objects::destroy::<ibv_mr, _, _>(mr, |mr: &ironverbs::raw::Mr| mr.destroy())
    })
}

/// ibv_reg_dmabuf_mr(3).
pub(crate) extern "C" fn reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    fail::object("ibv_reg_dmabuf_mr", || Err(Failure::Unsupported { what: "dma-buf memory" }))
}
